//! `.pt`, `.pth`, `.bin`: what `torch.save` wrote, without executing its pickle.
//!
//! ```text
//! zip archive: NAME/data.pkl (a pickle of tensors and containers) | NAME/data/KEY (the bytes of a storage)
//!            | NAME/byteorder ("little" or "big"; little if missing)
//!            | NAME/constants.pkl, NAME/constants/KEY (of TorchScript, the same for constants)
//! ```
//! Tensors are found in any container, object and module. A sparse or nested tensor becomes its parts, such
//! as `NAME.indices` and `NAME.values`. A tensor whose elements are not told is opaque.
//!
//! The archive's entries are stored, so tensors borrow from the mapped file if their elements are contiguous.

mod container;
pub(crate) mod dcp;
mod elements;
pub(crate) mod exported;
#[cfg(test)]
mod hostile;
pub(crate) mod legacy;
mod machine;
mod pickle;
mod rebuild;
mod strided;
mod values;
mod view;
mod walk;
mod wrapped;

use super::archive::{self, Archive};
use super::{Data, Dump, Opaque, Plain, check_unique};
use crate::fail::{Failure, Result};
use crate::input::{Input, Section};
use container::{Storages, entry};
use pickle::{Node, Pickle};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use walk::Reader;

/// Most bytes of the pickle: of names, shapes and offsets.
const MAX_PICKLE: u64 = 256 << 20;
/// Most bytes that views may have together beyond those of their files: an expanded view repeats elements.
pub(super) const MAX_VIEWS: u64 = 1 << 30;
/// Why elements are not read.
const NOT_READ: &str = "elements of this type are not read";
const BIG_ENDIAN: &str = "its elements are big-endian; load and save it on a little-endian machine";

/// Returns the prefix of the archive's names if it has a `data.pkl`.
pub(crate) fn prefix(archive: &Archive<'_>) -> Option<String> {
    prefix_of(archive, "data.pkl")
}

/// Returns what stands before the name of an entry, in the fewest folders.
fn prefix_of(archive: &Archive<'_>, entry: &str) -> Option<String> {
    let prefixes = archive.file_names().flatten().filter_map(|name| {
        let prefix = name.strip_suffix(entry)?;
        (prefix.is_empty() || prefix.ends_with('/')).then(|| prefix.to_owned())
    });
    prefixes.min_by_key(|prefix| prefix.matches('/').count())
}

/// Reads all tensors, in the order of the pickle. `copies`: bytes of views that may be copied.
pub(super) fn read(input: &Arc<Input>, copies: &mut u64) -> Result<Dump> {
    let file = Section::from(&**input);
    let dump = match legacy::is_legacy(&file.head(legacy::HEAD)) {
        true => {
            let (pickle, storages) = legacy::read(&file)?;
            collect(input, &pickle, &storages, "", copies)?
        }
        false => {
            let mut archive = archive::open(file)?;
            match (prefix(&archive), exported::prefix(&archive)) {
                (Some(prefix), _) => saved(input, &mut archive, &prefix, 0, copies)?,
                (None, Some(prefix)) => exported::read(input, &mut archive, &prefix, copies)?,
                (None, None) => return Err(not_saved()),
            }
        }
    };
    match dump.tensors.is_empty() && dump.opaque.is_empty() {
        true => Err(Failure::without_tensors("a PyTorch file")),
        false => Ok(dump),
    }
}

/// Reads all tensors of the archive of `torch.save` that is this part of the input.
fn read_range(input: &Arc<Input>, range: Range<u64>, copies: &mut u64) -> Result<Dump> {
    let start = range.start;
    let mut archive = archive::open(input.section(range))?;
    // Not an archive of archives: each level would take a part of the stack.
    let prefix = prefix(&archive).ok_or_else(not_saved)?;
    saved(input, &mut archive, &prefix, start, copies)
}

fn not_saved() -> Failure {
    Failure::invalid("a zip archive without data.pkl")
}

/// Reads all tensors of an archive of `torch.save` that begins at `start` in the input.
fn saved(
    input: &Arc<Input>,
    archive: &mut Archive<'_>,
    prefix: &str,
    start: u64,
    copies: &mut u64,
) -> Result<Dump> {
    let order = entry(archive, &format!("{prefix}byteorder"), 16).ok();
    if order.is_some_and(|order| order.trim_ascii() == b"big") {
        return Err(Failure::invalid(BIG_ENDIAN));
    }
    let mut dump = part(input, archive, (prefix, "data"), "", start, copies)?;
    if archive.index_for_name(&format!("{prefix}constants.pkl")).is_some() {
        let constants = part(input, archive, (prefix, "constants"), "constants", start, copies)?;
        dump.tensors.extend(constants.tensors);
        dump.opaque.extend(constants.opaque);
        dump.faults.extend(constants.faults);
    }
    check_unique(dump.names(), Failure::invalid)?;
    Ok(dump)
}

/// Reads the tensors of one pickle of an archive, and of the folder that has its storages.
fn part(
    input: &Arc<Input>,
    archive: &mut Archive<'_>,
    (prefix, name): (&str, &str),
    root: &str,
    start: u64,
    copies: &mut u64,
) -> Result<Dump> {
    let file = format!("{name}.pkl");
    let pickle = entry(archive, &format!("{prefix}{file}"), MAX_PICKLE)?;
    let pickle = Pickle::read(&pickle).map_err(|e| e.about(&file))?;
    let storages = Storages::of_archive(archive, &format!("{prefix}{name}/"), start)?;
    collect(input, &pickle, &storages, root, copies)
}

/// Returns the integer or the text that an archive of `torch.save` holds.
fn plain(file: Section<'_>) -> Option<Plain> {
    let mut archive = archive::open(file).ok()?;
    let prefix = prefix(&archive)?;
    let pickle = Pickle::read(&entry(&mut archive, &format!("{prefix}data.pkl"), MAX_PICKLE).ok()?).ok()?;
    match pickle.node(pickle.root()) {
        Node::Int(number) => Some(Plain::Int(*number)),
        Node::Text(text) => Some(Plain::Text(text.clone())),
        _ => None,
    }
}

/// Collects the tensors of a pickle; a storage that none has is opaque.
fn collect(
    input: &Arc<Input>,
    pickle: &Pickle,
    storages: &Storages,
    root: &str,
    copies: &mut u64,
) -> Result<Dump> {
    let mut dump = Reader::new(input, storages, pickle, copies).read(root)?;
    let key = |id| match pickle.items(id)? {
        [_, _, key, ..] => pickle.text(*key),
        _ => None,
    };
    let used: HashSet<&str> = pickle.persistent().filter_map(key).collect();
    pickle.check()?;
    for (key, range) in storages.all() {
        if !used.contains(key) {
            let bytes = range.end - range.start;
            let data = Data::shared(input, range);
            let name = format!("storage {key}");
            let opaque = Opaque::new(name, "bytes", Some(vec![bytes]), bytes, "a storage of no tensor");
            dump.opaque.push(opaque.with_data(data));
        }
    }
    Ok(dump)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::Code;
    use gcodec::tensor::Dtype;

    fn parse(bytes: &[u8]) -> Result<Dump> {
        read(&Arc::new(Input::Owned(bytes.to_vec())), &mut MAX_VIEWS.clone())
    }

    const STATE: &[u8] = include_bytes!("../../../fixtures/state.pt");

    #[test]
    fn a_state_dict_of_pytorch_is_read() {
        let dump = parse(STATE).unwrap();
        let names: Vec<_> =
            dump.tensors.iter().map(|t| (t.name(), t.view().dtype(), t.view().shape())).collect();
        assert_eq!(
            names,
            [
                ("model.weight", Dtype::F32, &[2, 3][..]),
                ("model.turned", Dtype::F32, &[3, 2]),
                ("model.half", Dtype::Bf16, &[4]),
                ("model.f8", Dtype::F8E4M3Fn, &[2]),
                ("model.parameter", Dtype::F64, &[2]),
                ("steps.0", Dtype::I64, &[]),
                ("steps.1", Dtype::Bool, &[2]),
            ]
        );
        let values = |number: usize| {
            let view = dump.tensors[number].view();
            let mut values = vec![0.0; view.elements() as usize];
            gcodec::internal::element::decode_f64s(view.dtype(), view.data(), 0, &mut values).unwrap();
            values
        };
        assert_eq!(values(0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        // The same storage, transposed.
        assert_eq!(values(1), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(values(2), [0.5, 1.5, 2.5, 3.5]);
        assert_eq!((values(3), values(4)), (vec![1.0, -2.0], vec![1.0, 2.0]));
        assert_eq!((values(5), values(6)), (vec![7.0], vec![1.0, 0.0]));
    }

    const ODD: &[u8] = include_bytes!("../../../fixtures/odd.pt");

    #[test]
    fn nothing_is_left_out_silently() {
        let dump = parse(ODD).unwrap();
        let read: Vec<_> =
            dump.tensors.iter().map(|t| (t.name(), t.view().dtype(), t.shape.clone())).collect();
        let f32s = |name, shape: &[u64]| (name, Dtype::F32, shape.to_vec());
        let i64s = |name, shape: &[u64]| (name, Dtype::I64, shape.to_vec());
        assert_eq!(
            read,
            [
                f32s("dense", &[2, 3]),
                i64s("sparse.indices", &[2, 3]),
                f32s("sparse.values", &[3]),
                i64s("csr.crow_indices", &[3]),
                i64s("csr.col_indices", &[2]),
                f32s("csr.values", &[2]),
                ("storage", Dtype::U8, vec![12]),
                f32s("nested.values", &[5]),
                i64s("nested.sizes", &[2, 1]),
                i64s("nested.strides", &[2, 1]),
                i64s("nested.offsets", &[2]),
                f32s("deque.0", &[1]),
                f32s("module.0.weight", &[3, 2]),
                f32s("module.0.bias", &[3]),
                f32s("module.1.weight", &[3]),
                f32s("module.1.bias", &[3]),
                f32s("module.1.running_mean", &[3]),
                f32s("module.1.running_var", &[3]),
                i64s("module.1.num_batches_tracked", &[]),
                f32s("group.0", &[1]),
                f32s("1.5", &[1]),
                f32s("None", &[0, 3]),
            ]
        );
        let named: Vec<_> = dump
            .opaque
            .iter()
            .map(|t| (t.name.as_str(), &*t.dtype, t.shape.as_deref().unwrap(), t.bytes))
            .collect();
        assert_eq!(
            named,
            [
                ("quantised", "qint8", &[3][..], 3),
                ("complex", "complex64", &[2], 16),
                ("meta", "f32", &[3, 4], 0),
                ("numpy", "numpy", &[4], 16),
            ]
        );
        assert_eq!(dump.metadata["sparse.layout"], "torch.sparse_coo 2x3");
        assert_eq!(dump.metadata["csr.layout"], "torch.sparse_csr 2x2");
    }

    #[test]
    fn every_cut_and_flipped_byte_ends_well() {
        for file in [STATE, ODD] {
            for len in (0..file.len()).step_by(3) {
                assert_eq!(parse(&file[..len]).unwrap_err().code, Code::Invalid, "{len}");
            }
            for at in 0..file.len() {
                let mut wrong = file.to_vec();
                wrong[at] ^= 0x11;
                let _ = parse(&wrong);
            }
        }
    }
}
