//! The root of the crate stays small: a reader sees all of it at once.

use std::path::Path;

/// Public names that the root may have: modules and re-exported items together.
const MOST: usize = 21;

/// The room of what only this repository's crates use. No page of the documentation has it.
const HIDDEN: &str = "#[doc(hidden)]\npub mod internal;\n";

/// Returns the public names of `lib`. Items of fuzzing builds and of the hidden room do not count.
fn public_names(lib: &str) -> Vec<String> {
    let lib = lib.replacen(HIDDEN, "", 1);
    let (before, fuzzing) = lib.split_once("#[cfg(fuzzing)]").expect("the switches of the fuzz targets");
    let after = fuzzing.split_once("\n}").expect("the end of a module").1;
    let lines = before.lines().chain(after.lines());
    let code: String = lines.filter(|line| !line.trim_start().starts_with("//")).collect();
    let items: Vec<&str> = code.split(';').filter_map(|item| item.trim().strip_prefix("pub ")).collect();
    assert_eq!(items.len(), code.matches("pub ").count(), "only modules and imports, without attributes");
    let names = items.iter().flat_map(|item| {
        let names = item.rsplit_once("::").map_or(*item, |(_, names)| names);
        names.trim_start_matches("mod ").trim_matches(['{', '}']).split(',').map(str::trim)
    });
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_root_has_few_names() {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let names = public_names(&std::fs::read_to_string(lib).unwrap());
    for known in ["block", "encode", "Codec", "Writer"] {
        assert!(names.iter().any(|name| name == known), "`{known}` is not among {names:?}");
    }
    let is_name = |name: &String| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    assert!(names.iter().all(is_name), "no globs, no renames: {names:?}");
    assert!(names.len() <= MOST, "{} names: {names:?}", names.len());
}
