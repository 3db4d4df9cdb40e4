//! The dictionary of libFuzzer: the format's constants and the ids of its registry.

use std::fmt::Write;

use gcodec::frame::{MAGIC, SYNC};

use crate::{Result, root};

/// Returns the text of `fuzz/gcodec.dict`.
pub(crate) fn text() -> Result<String> {
    let registry = std::fs::read_to_string(root().join("spec/registry.toml"))?;
    let mut out =
        "# The format's constants and the ids of spec/registry.toml: cargo xtask fuzz --write\n".to_owned();
    put(&mut out, "magic", &MAGIC)?;
    put(&mut out, "sync", &SYNC)?;
    put(&mut out, "tail", b"GCUE")?;
    for (table, id, name) in entries(&registry) {
        let name = format!("{table}-{name}").replace(['_', '.'], "-");
        match (table, u16::try_from(id)) {
            // With the sync word, as in a frame's header.
            ("frame", Ok(kind)) => put(&mut out, &name, &[&SYNC[..], &kind.to_le_bytes()].concat())?,
            (_, Ok(id @ 0..128)) => put(&mut out, &name, &[id as u8])?,
            (_, Ok(id @ 128..256)) => put(&mut out, &name, &[id as u8, 1])?,
            _ => return Err(format!("{name}: an id of more than a byte").into()),
        }
    }
    Ok(out)
}

fn put(out: &mut String, name: &str, bytes: &[u8]) -> Result<()> {
    write!(out, "{name}=\"")?;
    bytes.iter().try_for_each(|b| write!(out, "\\x{b:02x}"))?;
    out.push_str("\"\n");
    Ok(())
}

/// Returns table, id and name of each entry of the registry; the rest of its TOML is not needed.
fn entries(registry: &str) -> Vec<(&str, u64, &str)> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let (mut table, mut id) = ("", None);
    let mut entries = Vec::new();
    for line in registry.lines() {
        if let Some(name) = line.strip_prefix("[[") {
            (table, id) = (name.trim_end_matches("]]"), None);
        } else if let Some(value) = line.strip_prefix("id = ") {
            id = number(value);
        } else if let (Some(name), Some(id)) = (line.strip_prefix("name = "), id) {
            entries.push((table, id, name.trim_matches('"')));
        }
    }
    entries
}
