//! Dependencies between modules: each module uses only modules of lower layers, and only `arch` has unsafe
//! code. Inside `compress` and `block`, each room (a file or folder) uses only rooms before it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Modules by layer, lowest layer first. The modules of one layer do not use each other.
const LAYERS: &[&[&str]] = &[
    &["error"],
    &["limits"],
    &["arch"],
    &["tensor"],
    &["random"],
    &["bits"],
    &["codes", "digest"],
    &["block"],
    &["frame"],
    &["compress", "reduce", "stream"],
    &["file"],
    &["oneshot"],
    &["internal"],
];

/// The rooms of a layer, and its arrows that climb back to a later room.
struct Rooms {
    layer: &'static str,
    /// Each room before those that use it.
    order: &'static [&'static str],
    /// At most four, each with its reason.
    climbs: &'static [(&'static str, &'static str)],
}

const COMPRESS: Rooms = Rooms {
    layer: "compress",
    order: &[
        "settings",
        "options",
        "sums",
        "state",
        "feedback",
        "extents",
        "source",
        "select",
        "moments",
        "compressor",
        "codecs",
        "codec",
        "digests",
        "update",
        "pending",
        "device",
        "senders",
    ],
    climbs: &[],
};

const BLOCK: Rooms = Rooms {
    layer: "block",
    order: &[
        "bits", "scales", "scope", "space", "views", "groups", "support", "values", "decoded", "dense",
        "part", "wire", "profile", "coded", "pending",
    ],
    climbs: &[
        // A space knows the sets that the support `set` refers to, and each set has a support.
        ("space", "support"),
        // A kind packs codes of a device into the written half of a block.
        ("values", "part"),
        // A block in wire form is written by the choices that `wire` defines.
        ("part", "wire"),
    ],
};

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

/// Returns the path of each module, and its text.
fn modules() -> Vec<(Vec<String>, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    sources(&src, &mut found);
    found
        .into_iter()
        .map(|path| {
            let inside = path.strip_prefix(&src).unwrap();
            let names = inside.iter().map(|name| name.to_string_lossy().replace(".rs", ""));
            (names.filter(|name| name != "mod").collect(), std::fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// Returns the top-level module of each source, and its text.
fn all_sources() -> impl Iterator<Item = (String, String)> {
    modules().into_iter().map(|(mut path, text)| (path.remove(0), text)).filter(|(module, _)| module != "lib")
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

/// Reads a path, or a tree of paths in braces, from the front of `code`. Returns every path of it.
fn tree(code: &mut &str) -> Vec<Vec<String>> {
    *code = code.trim_start();
    let mut paths = Vec::new();
    if let Some(inside) = code.strip_prefix('{') {
        *code = inside.trim_start();
        while !code.starts_with('}') {
            paths.extend(tree(code));
            // Skips `as name`, and `*`.
            *code = code.trim_start_matches(|c| !",}".contains(c)).trim_start_matches([',', ' ', '\n']);
        }
        *code = &code[1..];
        return paths;
    }
    let end = code.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(code.len());
    let name = code[..end].to_owned();
    *code = &code[end..];
    match code.strip_prefix("::") {
        Some(rest) => {
            *code = rest;
            paths.extend(tree(code).into_iter().map(|rest| [vec![name.clone()], rest].concat()));
        }
        None => paths.push(vec![name]),
    }
    paths
}

/// Returns the paths in `code` that begin with `crate` or `super`.
fn paths(code: &str) -> impl Iterator<Item = Vec<String>> {
    let starts =
        ["crate::", "super::"].into_iter().flat_map(|word| code.match_indices(word)).map(|(at, _)| at);
    let starts = starts.filter(|&at| !code[..at].ends_with("::") && !code[..at].ends_with("(in "));
    starts.flat_map(|at| tree(&mut &code[at..]))
}

/// Returns the arrows from a room of the layer to a later one.
fn climbs(rooms: &Rooms, modules: &[(Vec<String>, String)]) -> BTreeSet<(String, String)> {
    let (layer, place) = (rooms.layer, |room: &str| rooms.order.iter().position(|name| *name == room));
    let code = |text: &str| code(text).collect::<Vec<_>>().join("\n");
    let own = || modules.iter().filter(|(path, _)| path[0] == layer).map(|(path, text)| (path, code(text)));
    // The names that `mod.rs` passes on, each behind the room that it is from.
    let facade = own().find(|(path, _)| path.len() == 1).map(|(_, text)| text).unwrap_or_default();
    let passed: Vec<Vec<String>> = facade.split("use ").skip(1).flat_map(|rest| tree(&mut &*rest)).collect();
    let mut found = BTreeSet::new();
    for (path, text) in own().filter(|(path, _)| path.len() > 1) {
        let from = place(&path[1]).unwrap_or_else(|| panic!("room `{}` of `{layer}` has no place", path[1]));
        for used in paths(&text) {
            let ups = used.iter().take_while(|name| *name == "super").count();
            let base = if ups == 0 { &[][..] } else { &path[..path.len() - ups] };
            let used = [base, &used[ups.max(usize::from(ups == 0))..]].concat();
            let [first, name, ..] = &used[..] else { continue };
            if first != layer {
                continue;
            }
            let room =
                passed.iter().find(|passed| passed.last() == Some(name)).map_or(name, |passed| &passed[0]);
            let to = place(room);
            assert!(to.is_some() || room == "crate", "`{name}` of `{layer}` belongs into a room: {path:?}");
            if to.is_some_and(|to| to > from) {
                found.insert((path[1].clone(), room.clone()));
            }
        }
    }
    found
}

#[test]
fn no_room_uses_a_later_room() {
    for rooms in [&COMPRESS, &BLOCK] {
        let known = rooms.climbs.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect();
        assert_eq!(climbs(rooms, &modules()), known, "`{}`: arrows that climb back", rooms.layer);
        assert!(rooms.climbs.len() <= 4, "`{}`", rooms.layer);
    }
}

#[test]
fn every_form_of_a_climbing_arrow_is_found() {
    let rooms = Rooms { layer: "compress", order: &["a", "b"], climbs: &[] };
    for (text, climbs_back) in [
        ("use crate::compress::b::Name;", true),
        ("use crate::{\n    block::Block,\n    compress::{a::X as Y, Passed},\n};", true),
        ("fn f() { super::b::g() }", true),
        ("use super::{a, Passed};", true),
        ("use crate::compress::a::Name; // crate::compress::b", false),
        ("use crate::block::b::Name;\npub(in crate::compress) fn b() {}", false),
        ("#[cfg(test)]\nmod tests {\n    use super::b;\n}", false),
    ] {
        let module =
            |path: &[&str], text: &str| (path.iter().map(|&name| name.to_owned()).collect(), text.to_owned());
        let facade = module(&["compress"], "mod a;\npub mod b;\n\npub use b::{Other, Passed};");
        let found = climbs(&rooms, &[facade, module(&["compress", "a"], text)]);
        assert_eq!(found.len(), usize::from(climbs_back), "{text}");
    }
}

#[test]
fn only_arch_has_unsafe_code() {
    for (module, text) in all_sources().filter(|(module, _)| module != "arch") {
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
const FORMAT: &[&str] = &["tensor", "random", "bits", "codes", "digest", "block", "frame", "stream", "file"];

/// On a 32-bit machine, casting a 64-bit number to `usize` can change it. The wire format uses
/// `limits::in_memory` instead.
#[test]
fn the_format_casts_to_no_native_width() {
    let mut files = 0;
    for (module, text) in all_sources().filter(|(module, _)| FORMAT.contains(&module.as_str())) {
        files += 1;
        let native = code(&text).find(|line| line.contains(" as usize") || line.contains(" as isize"));
        assert_eq!(native, None, "`{module}` depends on the width of this machine's words");
    }
    assert!(files > FORMAT.len());
}
