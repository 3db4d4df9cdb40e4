//! Dependencies between modules: each module uses only modules of lower layers, and only `arch` has unsafe
//! code.

use std::path::{Path, PathBuf};

/// Modules by layer, lowest layer first. The modules of one layer do not use each other.
const LAYERS: &[&[&str]] = &[
    &["error"],
    &["limits"],
    &["arch", "tensor"],
    &["random"],
    &["bits"],
    &["codes"],
    &["block"],
    &["frame"],
    &["compress", "reduce", "stream"],
    &["file"],
    &["oneshot"],
];

fn layer(module: &str) -> usize {
    LAYERS
        .iter()
        .position(|row| row.contains(&module))
        .unwrap_or_else(|| panic!("module `{module}` has no layer"))
}

/// Finds sources, except files of unit tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<(String, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    sources(&src, &mut found);
    found
        .into_iter()
        .map(|path| {
            let inside = path.strip_prefix(&src).unwrap();
            let module = inside.components().next().unwrap().as_os_str().to_string_lossy().replace(".rs", "");
            (module, std::fs::read_to_string(&path).unwrap())
        })
        .filter(|(module, _)| module != "lib")
        .collect()
}

/// Returns the lines of a source text without comments, up to the unit tests at its end.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let end = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    text[..end].lines().map(|line| line.split("//").next().unwrap_or(""))
}

#[test]
fn no_module_uses_a_higher_layer() {
    for (module, text) in all_sources() {
        for line in code(&text) {
            for used in line.split("crate::").skip(1) {
                let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                assert!(
                    !used.is_empty() && used.starts_with(char::is_lowercase),
                    "{module}: use the full path with its module: {line}"
                );
                let fits = used == module || layer(&used) < layer(&module);
                assert!(fits, "`{module}` uses `{used}`, which is not in a lower layer: {line}");
            }
        }
    }
}

#[test]
fn only_arch_has_unsafe_code() {
    for (module, text) in all_sources().into_iter().filter(|(module, _)| module != "arch") {
        assert!(!code(&text).any(|line| line.contains("unsafe ")), "unsafe code in `{module}`");
    }
}

#[test]
fn no_native_byte_order() {
    for (module, text) in all_sources() {
        let native = code(&text).find(|line| {
            line.contains("_ne_bytes") || line.contains("NativeEndian") || line.contains("transmute")
        });
        assert_eq!(native, None, "`{module}` depends on this machine's byte order");
    }
}

/// Modules that implement the wire format.
const FORMAT: &[&str] = &["tensor", "random", "bits", "codes", "block", "frame", "stream", "file"];

/// On a 32-bit machine, casting a 64-bit number to `usize` can change it. The wire format uses
/// `limits::in_memory` instead.
#[test]
fn the_format_casts_to_no_native_width() {
    let mut files = 0;
    for (module, text) in all_sources().into_iter().filter(|(module, _)| FORMAT.contains(&module.as_str())) {
        files += 1;
        let native = code(&text).find(|line| line.contains(" as usize") || line.contains(" as isize"));
        assert_eq!(native, None, "`{module}` depends on the width of this machine's words");
    }
    assert!(files > FORMAT.len());
}
