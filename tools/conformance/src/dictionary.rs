//! The dictionary of libFuzzer: the format's constants and the ids of its registry.

use std::fmt::Write;

use gcodec::frame::MAGIC;
use gcodec::internal::SYNC;

use crate::Result;
use crate::registry::{self, Entry};

/// Returns the text of `fuzz/gcodec.dict`.
pub(crate) fn text() -> Result<String> {
    let registry = registry::read()?;
    let mut out =
        "# The format's constants and the ids of spec/registry.toml: cargo xtask fuzz --write\n".to_owned();
    put(&mut out, "magic", &MAGIC)?;
    put(&mut out, "sync", &SYNC)?;
    put(&mut out, "tail", b"GCUE")?;
    for Entry { table, id, name, .. } in registry::entries(&registry) {
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
