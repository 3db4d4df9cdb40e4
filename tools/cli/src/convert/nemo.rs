//! Payloads of NeMo-RL's sparse weight transfer: elements that differ from the weights before.
//!
//! ```text
//! NNNNNN.pt: torch.save((indices, values, items)), also compressed by zstd
//! indices: bytes; an item's are the gaps between its positions, u16, u32 or u64 LE, each less one
//! values: a tuple of tensors of integers; an item's are a range of one of them
//! items: a list of dicts: name, shape, operation (xor or overwrite), index_encoding (deltas or range) ..
//! ```
//! Source: NVIDIA-NeMo/RL, `nemo_rl/utils/weight_transfer_sparse_codec.py` of 2026. The files are objects
//! that a sync deletes once they are loaded; their checksums travel apart from them.

use super::Foreign;
use crate::fail::{Failure, InFile, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::origin::Origin;
use crate::tensors::kind::Kind;
use crate::tensors::{Dump, Labels, NamedTensor, Plain};
use gcodec::{TensorBuf, TensorView};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// Reads a payload, or the payloads of a folder in the order of their names: one update.
pub(super) fn read(path: &Path, base: &Dump) -> Result<Foreign> {
    let mut tensors: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    let labels = Labels::of(&base.metadata);
    for file in files(path)? {
        let payload = Payload { dump: open(&file, base).in_file(&file)? };
        let mut names = BTreeSet::new();
        for item in 0.. {
            let Some(Plain::Text(name)) = payload.dump.plain.get(&format!("2.{item}.name")) else { break };
            let about = |e: Failure| e.about(format_args!("tensor {name:?}")).in_file(&file);
            let old = base.tensors.iter().find(|t| t.name() == name);
            let old = old.ok_or_else(|| about(Failure::usage("--base has no tensor of this name")))?;
            if !names.insert(name.as_str()) {
                return Err(about(Failure::invalid("it occurs twice in a payload")));
            }
            let data = tensors.entry(old.name()).or_insert_with(|| old.view().data().to_vec());
            let label = labels.find(&old.into()).and_then(|label| label.shape.as_deref());
            payload.apply(item, label.unwrap_or(old.view().shape()), data).map_err(about)?;
        }
        if names.is_empty() {
            return Err(Failure::invalid("it has no items as payloads of NeMo-RL do")).in_file(&file);
        }
    }
    let tensor = |old: &NamedTensor| -> Result<NamedTensor> {
        let view = old.view();
        let data = tensors.remove(old.name()).unwrap_or_else(|| view.data().to_vec());
        let tensor = TensorBuf::new(view.dtype(), view.shape().to_vec(), data)?;
        Ok(NamedTensor::new(old.name().to_owned(), tensor))
    };
    Ok(Foreign {
        tensors: base.tensors.iter().map(tensor).collect::<Result<_>>()?,
        label: "converted from NeMo-RL".to_owned(),
        metadata: BTreeMap::new(),
        said: Origin::default(),
    })
}

fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).in_file(path)?;
    let mut files: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>().in_file(path)?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "pt"));
    files.sort_by(|a, b| crate::order::compare_paths(a, b));
    match files.is_empty() {
        true => Err(Failure::usage("the folder has no payload .pt")),
        false => Ok(files),
    }
}

/// Opens a payload. One that is compressed is at most a few times as large as the weights.
fn open(path: &Path, base: &Dump) -> Result<Dump> {
    let input = Input::open(path, DEFAULT_MAX_BYTES)?;
    if !input.starts_with(ZSTD) {
        return Dump::parse(Kind::of(&input)?, input, path);
    }
    let weights: u64 = base.tensors.iter().map(|t| t.view().data().len() as u64).sum();
    // A position of 8 bytes for each byte, and the description of each tensor.
    let limit = weights.saturating_mul(16).saturating_add(64 << 20);
    let mut bytes = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(&input[..]).map_err(Failure::invalid)?;
    decoder.take(limit + 1).read_to_end(&mut bytes).map_err(Failure::invalid)?;
    if bytes.len() as u64 > limit {
        return Err(Failure::limit(format_args!("more than {limit} bytes for {weights} bytes of weights")));
    }
    let input = Input::Owned(bytes);
    Dump::parse(Kind::of(&input)?, input, path)
}

struct Payload {
    dump: Dump,
}

impl Payload {
    /// Applies an item to the bytes of a tensor of the shape `old`.
    fn apply(&self, item: u64, old: &[u64], data: &mut [u8]) -> Result<()> {
        let shape: Vec<u64> =
            (0..).map_while(|dim| self.number(item, &format!("shape.{dim}")).ok()).collect();
        if shape != old {
            let what = format!("its shape is {shape:?}, in the base {old:?}");
            return Err(Failure::usage(what));
        }
        let elements = gcodec::internal::elements(old).unwrap_or(u64::MAX);
        let group = self.number(item, "value_group")?;
        let values = self.tensor(&format!("1.{group}"))?;
        let width = values.dtype().bits() / 8;
        if width == 0 || elements.checked_mul(u64::from(width)) != Some(data.len() as u64) {
            return Err(Failure::usage(format_args!(
                "its elements take {width} bytes, unlike those of the base"
            )));
        }
        let width = width as usize;
        let values = self.part(values.data(), item, "value", width)?;
        let places = self.places(item, values.len() / width)?;
        let is_xor = match self.text(item, "operation")? {
            "xor" => true,
            "overwrite" => false,
            other => {
                return Err(Failure::invalid(format_args!(
                    "operation {other:?}; xor and overwrite are known"
                )));
            }
        };
        for (place, value) in places.into_iter().zip(values.chunks_exact(width)) {
            if place >= elements {
                return Err(Failure::invalid(format_args!(
                    "position {place} in a tensor of {elements} elements"
                )));
            }
            let bytes = &mut data[place as usize * width..][..width];
            match is_xor {
                true => bytes.iter_mut().zip(value).for_each(|(byte, change)| *byte ^= change),
                false => bytes.copy_from_slice(value),
            }
        }
        Ok(())
    }

    /// Returns the positions of an item's values.
    fn places(&self, item: u64, count: usize) -> Result<Vec<u64>> {
        match self.text(item, "index_encoding")? {
            "range" => {
                let start = self.number(item, "range_start")?;
                Ok((start..start.saturating_add(count as u64)).collect())
            }
            "deltas" => {
                let indices = self.tensor("0")?;
                let gaps = self.part(indices.data(), item, "index", 1)?;
                let width = gaps.len() / count.max(1);
                if ![2, 4, 8].contains(&width) || gaps.len() != width * count {
                    let what = format!("{} bytes of positions for {count} values", gaps.len());
                    return Err(Failure::invalid(what));
                }
                let mut next = 0u64;
                let place = |gap: &[u8]| {
                    let mut word = [0; 8];
                    word[..width].copy_from_slice(gap);
                    let place = next.checked_add(u64::from_le_bytes(word));
                    next = place.and_then(|place| place.checked_add(1)).unwrap_or(u64::MAX);
                    place.ok_or_else(|| Failure::invalid("a position above 2^64"))
                };
                gaps.chunks_exact(width).map(place).collect()
            }
            other => {
                Err(Failure::invalid(format_args!("positions as {other:?}; deltas and range are known")))
            }
        }
    }

    /// Returns the bytes from an item's `WHAT_start` to its `WHAT_end`.
    fn part<'a>(&self, data: &'a [u8], item: u64, what: &str, width: usize) -> Result<&'a [u8]> {
        let end = |which| -> Result<Option<usize>> {
            let number = self.number(item, &format!("{what}_{which}"))?;
            Ok(usize::try_from(number).ok().and_then(|number| number.checked_mul(width)))
        };
        let range = end("start")?.zip(end("end")?);
        range.and_then(|(start, end)| data.get(start..end)).ok_or_else(|| {
            Failure::invalid(format_args!("its {what} range lies outside of the {} bytes", data.len()))
        })
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>> {
        let found = self.dump.tensors.iter().find(|t| t.name() == name);
        found
            .map(NamedTensor::view)
            .ok_or_else(|| Failure::invalid(format_args!("tensor {name:?} is missing")))
    }

    fn number(&self, item: u64, key: &str) -> Result<u64> {
        match self.dump.plain.get(&format!("2.{item}.{key}")) {
            Some(Plain::Int(number)) if *number >= 0 => Ok(number.unsigned_abs()),
            _ => Err(Failure::invalid(format_args!("its {key} is missing"))),
        }
    }

    fn text(&self, item: u64, key: &str) -> Result<&str> {
        match self.dump.plain.get(&format!("2.{item}.{key}")) {
            Some(Plain::Text(text)) => Ok(text),
            _ => Err(Failure::invalid(format_args!("its {key} is missing"))),
        }
    }
}
