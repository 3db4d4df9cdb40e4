//! Compares `spec/registry.toml` with the library's constants, in both directions.

use std::collections::BTreeMap;

use gcodec::Dtype;
use gcodec::block::{MinifloatFormat, ScaleFormat, SupportId, ValuesId};
use gcodec::frame::{FrameKind, VERSION_MAJOR, VERSION_MINOR};
use gcodec::internal::AttributeId;
use gcodec::internal::CODINGS;

/// Returns the tables of the registry: for each table its entries, each a map of keys to values. Parses only
/// the part of TOML that the registry uses.
fn registry() -> BTreeMap<String, Vec<BTreeMap<String, String>>> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/spec/registry.toml")).unwrap();
    let mut tables: BTreeMap<String, Vec<BTreeMap<String, String>>> = BTreeMap::new();
    let mut table = String::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if line.starts_with('[') {
            table = line.trim_matches(['[', ']']).to_owned();
            tables.entry(table.clone()).or_default().push(BTreeMap::new());
        } else {
            let (key, value) = line.split_once('=').unwrap();
            let entry = tables.get_mut(&table).and_then(|t| t.last_mut()).unwrap();
            let value = value.trim().trim_matches('"').to_owned();
            assert_eq!(
                entry.insert(key.trim().to_owned(), value),
                None,
                "duplicate key in [[{table}]]: {line}"
            );
        }
    }
    tables
}

fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

/// Returns the ids and names of a table, in order of id.
fn ids(table: &str) -> Vec<(u64, String)> {
    let mut ids: Vec<_> = registry()[table].iter().map(|e| (number(&e["id"]), e["name"].clone())).collect();
    ids.sort();
    ids
}

/// Checks that a table has exactly the ids and names of `constants`.
fn check<'n>(table: &str, constants: impl IntoIterator<Item = (u64, &'n str)>) {
    let mut constants: Vec<_> = constants.into_iter().map(|(id, name)| (id, name.to_owned())).collect();
    constants.sort();
    assert_eq!(ids(table), constants, "table {table}");
    let mut unique = constants.clone();
    unique.dedup_by_key(|(id, _)| *id);
    assert_eq!(unique, constants, "duplicate id in table {table}");
}

#[test]
fn every_id_is_registered_and_every_registered_id_is_known() {
    check("frame", FrameKind::REGISTERED.map(|(id, name)| (id.0.into(), name)));
    check("attribute", AttributeId::REGISTERED.map(|(id, name)| (id.0, name)));
    check("support", SupportId::REGISTERED.map(|(id, name)| (id.0, name)));
    check("values", ValuesId::REGISTERED.map(|(id, name)| (id.0, name)));
    check("coding", CODINGS.map(|(id, name)| (id.into(), name)));
    check("dtype", Dtype::ALL.map(|d| (d.id().into(), d.name())));
    check("scale", ScaleFormat::REGISTERED.map(|(f, name)| (f as u64, name)));
    check("minifloat", MinifloatFormat::REGISTERED.map(|(f, name)| (f as u64, name)));
    let tables: Vec<_> = registry().into_keys().collect();
    let known =
        ["attribute", "coding", "dtype", "format", "frame", "minifloat", "scale", "support", "values"];
    assert_eq!(tables, known);
}

#[test]
fn widths_and_version_agree() {
    let registry = registry();
    let bits = |table: &str, name: &str| {
        let entry = registry[table].iter().find(|e| e["name"] == name).unwrap();
        number(&entry["bits"])
    };
    Dtype::ALL.iter().for_each(|d| assert_eq!(bits("dtype", d.name()), u64::from(d.bits()), "{d}"));
    for (format, name) in ScaleFormat::REGISTERED {
        assert_eq!(bits("scale", name), 8 * format.bytes() as u64, "{name}");
    }
    for (format, name) in MinifloatFormat::REGISTERED {
        assert_eq!(bits("minifloat", name), u64::from(format.bits()), "{name}");
    }
    let format = &registry["format"][0];
    let version = (number(&format["major"]), number(&format["minor"]));
    assert_eq!(version, (VERSION_MAJOR.into(), VERSION_MINOR.into()));
}

#[test]
fn every_page_exists() {
    for (table, entries) in registry() {
        for entry in entries.iter().filter(|e| e.contains_key("page")) {
            let page = format!("{}/spec/{}", env!("CARGO_MANIFEST_DIR"), entry["page"]);
            assert!(std::path::Path::new(&page).is_file(), "[[{table}]] {}: no page {page}", entry["name"]);
        }
    }
}
