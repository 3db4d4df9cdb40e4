//! Models of `torch.export`, `.pt2`: their weights and constants.
//!
//! ```text
//! data/weights/NAME_weights_config.json: for each tensor its entry, type, sizes, strides and offset
//! data/weights/weight_0, .. (bytes) | the same in data/constants
//! ```
//! Before PyTorch 2.9, they are archives of `torch.save` inside of the archive.

use super::container::entry;
use super::elements::Element;
use super::view::View;
use super::{Archive, MAX_PICKLE, prefix_of};
use crate::fail::{Failure, Result};
use crate::input::Input;
use crate::tensors::{Dump, Opaque};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use zip::CompressionMethod;

/// Entries that tell such an archive, of several versions.
const MARKS: [&str; 2] = ["archive_format", "serialized_exported_program.json"];
/// Folders of tensors, the ends of their descriptions, and what stands before the names.
const FOLDERS: [(&str, &str, &str); 2] = [
    ("data/weights/", "_weights_config.json", ""),
    ("data/constants/", "_constants_config.json", "constants."),
];
/// Entries of `torch.save` in older versions.
const OLDER: [(&str, &str); 2] =
    [("serialized_state_dict.pt", ""), ("serialized_constants.pt", "constants.")];

/// Returns the prefix of the archive's names, if it is such a model.
pub(crate) fn prefix(archive: &Archive<'_>) -> Option<String> {
    MARKS.iter().find_map(|mark| prefix_of(archive, mark))
}

#[derive(serde::Deserialize)]
struct Config {
    config: BTreeMap<String, Payload>,
}

#[derive(serde::Deserialize)]
struct Payload {
    path_name: String,
    #[serde(default)]
    use_pickle: bool,
    tensor_meta: Option<Meta>,
}

#[derive(serde::Deserialize)]
struct Meta {
    dtype: u64,
    sizes: Vec<Number>,
    strides: Vec<Number>,
    storage_offset: Number,
}

#[derive(serde::Deserialize)]
struct Number {
    as_int: u64,
}

/// Reads the weights and constants of the archive that the input is.
pub(super) fn read(
    input: &Arc<Input>,
    archive: &mut Archive<'_>,
    prefix: &str,
    copies: &mut u64,
) -> Result<Dump> {
    let names: Vec<String> = archive.file_names().flatten().map(|name| name.into_owned()).collect();
    let mut dump = Dump::default();
    for name in &names {
        let Some(local) = name.strip_prefix(prefix) else { continue };
        for (folder, end, before) in FOLDERS {
            let Some(file) = local.strip_prefix(folder) else { continue };
            if file.ends_with(end) {
                let config = entry(archive, name, MAX_PICKLE)?;
                let config: Config =
                    serde_json::from_slice(&config).map_err(|e| Failure::invalid(e).about(name))?;
                let folder = format!("{prefix}{folder}");
                for (tensor, payload) in config.config {
                    let name = format!("{before}{tensor}");
                    add(input, archive, &folder, name, &payload, copies, &mut dump);
                }
            } else if file.ends_with(".pt") {
                nested(input, archive, name, before, copies, &mut dump)?;
            }
        }
        if let Some((_, before)) = OLDER.iter().find(|(older, _)| *older == local) {
            nested(input, archive, name, before, copies, &mut dump)?;
        }
    }
    super::check_unique(dump.names(), Failure::invalid)?;
    Ok(dump)
}

/// Adds the tensors of an archive in the archive.
fn nested(
    input: &Arc<Input>,
    archive: &mut Archive<'_>,
    name: &str,
    before: &str,
    copies: &mut u64,
    dump: &mut Dump,
) -> Result<()> {
    let range = place(archive, name).map_err(|e| Failure::invalid(e).about(name))?;
    let inner = super::read_range(input, range, copies).map_err(|e| e.about(name))?;
    dump.faults.extend(inner.faults);
    dump.tensors.extend(inner.tensors.into_iter().map(|mut tensor| {
        tensor.name.insert_str(0, before);
        tensor
    }));
    dump.opaque.extend(inner.opaque.into_iter().map(|mut opaque| {
        opaque.name.insert_str(0, before);
        opaque
    }));
    Ok(())
}

/// Adds a tensor; one that cannot be read is opaque.
fn add(
    input: &Arc<Input>,
    archive: &mut Archive<'_>,
    folder: &str,
    name: String,
    payload: &Payload,
    copies: &mut u64,
    dump: &mut Dump,
) {
    let range = place(archive, &format!("{folder}{}", payload.path_name));
    let meta = payload.tensor_meta.as_ref().filter(|_| !payload.use_pickle);
    let numbers = |numbers: &[Number]| numbers.iter().map(|number| number.as_int).collect::<Vec<_>>();
    match (meta, range) {
        (Some(meta), Ok(range)) => {
            let view = View {
                element: element(meta.dtype),
                offset: meta.storage_offset.as_int,
                shape: numbers(&meta.sizes),
                strides: numbers(&meta.strides),
                is_negative: false,
                is_conjugate: false,
            };
            match view.read(input, range, &name, copies) {
                Ok(tensor) => dump.tensors.push(tensor),
                Err(unread) => {
                    dump.faults.extend(unread.fault);
                    dump.opaque.push(unread.opaque);
                }
            }
        }
        (_, range) => {
            let bytes = range.as_ref().map_or(0, |range| range.end - range.start);
            let reason = range.err().unwrap_or_else(|| "it is stored as an object of Python".to_owned());
            let shape = payload.tensor_meta.as_ref().map(|meta| numbers(&meta.sizes));
            dump.opaque.push(Opaque::new(name, "object", shape, bytes, reason));
        }
    }
}

/// Returns the bytes of an entry in the input.
fn place(archive: &mut Archive<'_>, name: &str) -> std::result::Result<Range<u64>, String> {
    let entry = archive.by_name(name).map_err(|e| format!("{name}: {e}"))?;
    if entry.compression() != CompressionMethod::Stored {
        return Err(format!("{name} is compressed"));
    }
    let range = entry.data_start().and_then(|first| Some(first..first.checked_add(entry.size())?));
    range.ok_or_else(|| format!("{name} has no data"))
}

/// Returns the element type of a number.
fn element(number: u64) -> Element {
    let found = TYPES.iter().find(|(of, _)| *of == number);
    found.map_or(Element::Other("unknown", 1), |(_, name)| Element::of_type(name))
}

/// Element types by their numbers.
const TYPES: [(u64, &str); 21] = [
    (1, "uint8"),
    (2, "int8"),
    (3, "int16"),
    (4, "int32"),
    (5, "int64"),
    (6, "float16"),
    (7, "float32"),
    (8, "float64"),
    (9, "complex32"),
    (10, "complex64"),
    (11, "complex128"),
    (12, "bool"),
    (13, "bfloat16"),
    (28, "uint16"),
    (29, "float8_e4m3fn"),
    (30, "float8_e5m2"),
    (31, "float8_e4m3fnuz"),
    (32, "float8_e5m2fnuz"),
    (33, "float8_e8m0fnu"),
    (34, "uint32"),
    (35, "uint64"),
];
