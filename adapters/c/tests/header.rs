//! The header in `include/` is the one that cbindgen makes from the sources.

use std::collections::HashSet;
use std::path::Path;
use std::{env, fs};

#[test]
fn the_header_is_up_to_date() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    // cbindgen follows the modules of this file: each further source would be declared twice.
    let builder = cbindgen::Builder::new().with_src(here.join("src/lib.rs"));
    let mut made = Vec::new();
    builder.with_config(config).generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = here.join("include/gcodec.h");
    if env::var_os("GCODEC_WRITE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let differs = made.lines().zip(committed.lines()).position(|(a, b)| a != b);
    let hint = "cargo xtask c --header";
    assert!(made == committed, "include/gcodec.h is out of date (line {differs:?}): {hint}");
}

#[test]
fn each_function_is_declared_once() {
    let header = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/gcodec.h")).unwrap();
    let declared = |line: &'_ str| line.split_once('(')?.0.split([' ', '*']).next_back().map(str::to_owned);
    let code = header.lines().filter(|line| !line.starts_with(' ')).filter_map(declared);
    let names: Vec<String> = code.filter(|name| name.starts_with("gcodec_")).collect();
    let distinct: HashSet<&String> = names.iter().collect();
    assert!(names.len() > 20 && names.len() == distinct.len(), "{names:?}");
}

#[test]
fn the_name_of_the_library_has_the_major_number_of_the_abi() {
    let build = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs")).unwrap();
    let name = format!("libgcodec_c.so.{}\"", gcodec_c::GCODEC_ABI_VERSION >> 16);
    assert!(build.contains(&name), "{name} is not in build.rs");
}
