//! Files of `torch.save` from before PyTorch 1.6, which `_use_new_zipfile_serialization=False` still writes.
//!
//! ```text
//! pickle of a magic number | of the protocol 1001 | of the machine's types | of the tensors
//! | of the list of storages' keys | for each key: elements: i64 | their bytes
//! ```

use super::container::Storages;
use super::elements::Element;
use super::pickle::{Id, Node, Pickle};
use crate::fail::{Failure, Result};
use crate::input::Section;
use std::collections::HashMap;

/// The magic number, as a pickle writes it.
const MAGIC: &[u8] = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";
/// Most bytes before the magic number: the protocol and the length of a frame.
const BEFORE: usize = 12;
/// Bytes that tell such a file.
pub(super) const HEAD: u64 = (BEFORE + MAGIC.len()) as u64;
const PROTOCOL: i64 = 1001;

/// Whether the bytes are those of such a file.
pub(crate) fn is_legacy(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(BEFORE + MAGIC.len())];
    head.starts_with(b"\x80") && head.windows(MAGIC.len()).any(|window| window == MAGIC)
}

/// Reads the pickle of the tensors, and finds the storages.
pub(super) fn read(file: &Section<'_>) -> Result<(Pickle, Storages)> {
    let mut at = 0;
    let mut next = |what: &str| {
        let rest = file.cut(at..file.len());
        let (pickle, len) = rest.parse_head(Pickle::read_first).map_err(|e| e.about(what))?;
        at += len as u64;
        Ok::<_, Failure>((pickle, at))
    };
    next("magic number")?;
    let (protocol, _) = next("protocol")?;
    if protocol.node(protocol.root()) != &Node::Int(PROTOCOL) {
        return Err(Failure::invalid("a PyTorch file of an unknown protocol, 1001 is read"));
    }
    let (machine, _) = next("types of the machine")?;
    let little = machine.value(machine.root(), "little_endian").map(|id| machine.node(id));
    if little == Some(&Node::Bool(false)) {
        return Err(Failure::invalid(super::BIG_ENDIAN));
    }
    let (pickle, _) = next("tensors")?;
    let (keys, mut at) = next("keys of storages")?;
    let widths = widths(&pickle);
    pickle.check()?;
    let mut storages = Storages::default();
    for id in keys.items(keys.root()).unwrap_or_default() {
        let wrong = |what: &str| Failure::invalid(format_args!("the storage at byte {at:#x} {what}"));
        let key = keys.text(*id).ok_or_else(|| wrong("has no key"))?;
        let width = widths.get(key).ok_or_else(|| wrong("is not described"))?;
        let data = at + 8;
        let word = file.get(at..data).and_then(|word| Some(u64::from_le_bytes((*word).try_into().ok()?)));
        let len = word.and_then(|elements| elements.checked_mul(*width));
        let end = len.and_then(|len| data.checked_add(len)).filter(|end| *end <= file.len());
        let end = end.ok_or_else(|| wrong("is cut"))?;
        storages.add(key.to_owned(), data..end);
        at = end;
    }
    keys.check()?;
    let rest = file.cut(at..file.len());
    match rest.len() {
        0 => Ok((pickle, storages)),
        _ if is_legacy(&rest.head(HEAD)) => Err(Failure::invalid(format_args!(
            "several files one after another, the second at byte {at:#x}, as torch.save writes to a file opened \
             for appending: call torch.load as often on the open file, and save each in its own file"
        ))),
        more => Err(Failure::invalid(format_args!("{more} bytes behind the last storage, at {at:#x}"))),
    }
}

/// Returns the bytes of an element of each storage.
fn widths(pickle: &Pickle) -> HashMap<&str, u64> {
    let of = |id: Id| {
        let [_, class, key, ..] = pickle.items(id)? else { return None };
        Some((pickle.text(*key)?, Element::of_storage(pickle.name(*class)?).width()))
    };
    pickle.persistent().filter_map(of).collect()
}
