//! `.gguf`: llama.cpp's models.
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | entries u64 | entries: key, type, value
//! | tensors: name, dimensions (fastest first), type, offset | padding | data
//! ```
//! Tensors of quantised types have a name and a size here, but no elements.

use super::{Data, Dump, NamedTensor, Opaque, check_unique, quoted};
use crate::fail::{Failure, Result};
use crate::input::Input;
use gcodec::internal::elements;
use gcodec::tensor::Dtype;
use std::sync::Arc;

pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
/// Bytes of data after which each tensor begins, unless an entry says otherwise.
const ALIGNMENT: u64 = 32;
/// Most dimensions of a tensor.
const MAX_RANK: u32 = 8;
/// Why the elements of quantised types are not read.
const QUANTISED: &str = "values of quantised types are not computed";
/// Deepest arrays of arrays.
const MAX_DEPTH: usize = 4;

/// Reads all tensors, in the order of the header; their bytes stay in `input`.
pub(crate) fn read(input: &Arc<Input>) -> Result<Dump> {
    let mut header = Header { bytes: input, at: MAGIC.len() };
    let (infos, start) =
        header.read().map_err(|e| e.about(format_args!("GGUF header, byte {:#x}", header.at)))?;
    check_unique(infos.iter().map(|info| info.name.as_str()), Failure::invalid)?;
    let mut dump = Dump::default();
    for info in infos {
        let name = info.name.clone();
        info.add_to(&mut dump, input, start).map_err(|e| e.about(quoted(&name)))?;
    }
    Ok(dump)
}

/// An element type: elements of one block, and bytes of one block.
struct Type {
    name: &'static str,
    dtype: Option<Dtype>,
    block: u64,
    bytes: u64,
}

struct Info {
    name: String,
    shape: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl Info {
    fn add_to(self, dump: &mut Dump, input: &Arc<Input>, start: u64) -> Result<()> {
        let kind = type_of(self.kind)
            .ok_or_else(|| Failure::invalid(format_args!("element type {} is not known", self.kind)))?;
        let outside = || Failure::invalid("its data lies outside of the file");
        let count = elements(&self.shape).ok_or_else(outside)?;
        let len = (count / kind.block).checked_mul(kind.bytes).ok_or_else(outside)?;
        let begin = start.checked_add(self.offset).ok_or_else(outside)?;
        let end = begin.checked_add(len).filter(|end| *end <= input.len() as u64).ok_or_else(outside)?;
        // Both are at most the length of a slice, so they fit.
        let range = begin as usize..end as usize;
        match kind.dtype {
            Some(dtype) => {
                let data = Data::Shared { input: Arc::clone(input), range };
                dump.tensors.push(NamedTensor::from_data(self.name, dtype, self.shape, data)?);
            }
            None => {
                let data = Data::Shared { input: Arc::clone(input), range };
                let opaque = Opaque::new(self.name, kind.name, Some(self.shape), len, QUANTISED);
                dump.opaque.push(opaque.with_data(data));
            }
        }
        Ok(())
    }
}

struct Header<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Header<'_> {
    /// Returns the tensors, and the offset of the data.
    fn read(&mut self) -> Result<(Vec<Info>, u64)> {
        let version = self.u32()?;
        if !(2..=3).contains(&version) {
            let swapped = if version.swap_bytes() <= 3 { " (a big-endian file)" } else { "" };
            return Err(Failure::invalid(format_args!("version {version}{swapped}, 2 and 3 are read")));
        }
        let (tensors, entries) = (self.u64()?, self.u64()?);
        let mut alignment = ALIGNMENT;
        for _ in 0..entries {
            let key = self.text()?;
            let kind = self.u32()?;
            let before = self.at;
            self.skip(kind, 0)?;
            if key == "general.alignment" && kind == 4 {
                alignment =
                    u64::from(u32::from_le_bytes(self.bytes[before..self.at].try_into().unwrap_or_default()));
            }
        }
        let mut infos = Vec::new();
        for _ in 0..tensors {
            let name = self.text()?;
            let rank = self.u32()?;
            if rank > MAX_RANK {
                return Err(Failure::invalid(format_args!("tensor {name:?} has {rank} dimensions")));
            }
            let mut shape = (0..rank).map(|_| self.u64()).collect::<Result<Vec<_>>>()?;
            shape.reverse();
            infos.push(Info { name, shape, kind: self.u32()?, offset: self.u64()? });
        }
        let start = (self.at as u64).checked_next_multiple_of(alignment.max(1));
        Ok((infos, start.ok_or_else(|| Failure::invalid("an alignment beyond 64 bits"))?))
    }

    /// Passes a value of this type.
    fn skip(&mut self, kind: u32, depth: usize) -> Result<()> {
        match kind {
            0 | 1 | 7 => self.take(1).map(drop),
            2 | 3 => self.take(2).map(drop),
            4..=6 => self.take(4).map(drop),
            10..=12 => self.take(8).map(drop),
            8 => self.text().map(drop),
            9 if depth < MAX_DEPTH => {
                let (inner, count) = (self.u32()?, self.u64()?);
                // Every item takes a byte or more, so this ends with the file.
                (0..count).try_for_each(|_| self.skip(inner, depth + 1))
            }
            _ => Err(Failure::invalid(format_args!("a value of type {kind}"))),
        }
    }

    fn text(&mut self) -> Result<String> {
        let len = self.u64()?;
        let len = usize::try_from(len).map_err(|_| cut())?;
        Ok(String::from_utf8_lossy(self.take(len)?).into_owned())
    }

    fn u32(&mut self) -> Result<u32> {
        self.take(4).map(|b| u32::from_le_bytes(b.try_into().unwrap_or_default()))
    }

    fn u64(&mut self) -> Result<u64> {
        self.take(8).map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default()))
    }

    fn take(&mut self, len: usize) -> Result<&[u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len()).ok_or_else(cut)?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }
}

fn cut() -> Failure {
    Failure::invalid("the file is cut")
}

/// Returns the element type with this number (`ggml_type`).
fn type_of(kind: u32) -> Option<Type> {
    let plain =
        |name, dtype: Dtype| Type { name, dtype: Some(dtype), block: 1, bytes: u64::from(dtype.bits() / 8) };
    let quantised = |name, block, bytes| Type { name, dtype: None, block, bytes };
    Some(match kind {
        0 => plain("f32", Dtype::F32),
        1 => plain("f16", Dtype::F16),
        24 => plain("i8", Dtype::I8),
        25 => plain("i16", Dtype::I16),
        26 => plain("i32", Dtype::I32),
        27 => plain("i64", Dtype::I64),
        28 => plain("f64", Dtype::F64),
        30 => plain("bf16", Dtype::Bf16),
        2 => quantised("q4_0", 32, 18),
        3 => quantised("q4_1", 32, 20),
        6 => quantised("q5_0", 32, 22),
        7 => quantised("q5_1", 32, 24),
        8 => quantised("q8_0", 32, 34),
        9 => quantised("q8_1", 32, 36),
        10 => quantised("q2_k", 256, 84),
        11 => quantised("q3_k", 256, 110),
        12 => quantised("q4_k", 256, 144),
        13 => quantised("q5_k", 256, 176),
        14 => quantised("q6_k", 256, 210),
        15 => quantised("q8_k", 256, 292),
        20 => quantised("iq4_nl", 32, 18),
        23 => quantised("iq4_xs", 256, 136),
        34 => quantised("tq1_0", 256, 54),
        35 => quantised("tq2_0", 256, 66),
        39 => quantised("mxfp4", 32, 17),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    /// A file with an array in its entries, a float tensor and a quantised one.
    fn file() -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        out.extend(text("general.alignment"));
        out.extend(4u32.to_le_bytes());
        out.extend(64u32.to_le_bytes());
        out.extend(text("tokens"));
        out.extend(9u32.to_le_bytes());
        out.extend(8u32.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        out.extend([text("a"), text("bc")].concat());
        for (name, dims, kind, offset) in [("w", &[3u64, 2][..], 1u32, 0u64), ("q", &[64], 8, 64)] {
            out.extend(text(name));
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(64), 0);
        out.extend([0, 0x3c].repeat(6));
        out.resize(out.len().next_multiple_of(64) + 68, 7);
        out
    }

    fn parse(bytes: &[u8]) -> Result<Dump> {
        read(&Arc::new(Input::Owned(bytes.to_vec())))
    }

    #[test]
    fn headers_and_tensors_are_read() {
        let dump = parse(&file()).unwrap();
        let view = dump.tensors[0].view();
        assert_eq!((dump.tensors[0].name(), view.dtype(), view.shape()), ("w", Dtype::F16, &[2, 3][..]));
        assert_eq!(view.to_f32().unwrap(), [1.0; 6]);
        let opaque = &dump.opaque[0];
        assert_eq!(
            (opaque.name.as_str(), &*opaque.dtype, opaque.shape.as_deref(), opaque.bytes),
            ("q", "q8_0", Some(&[64][..]), 68)
        );
    }

    #[test]
    fn cut_and_wrong_files_are_refused() {
        let whole = file();
        for len in 0..whole.len() {
            assert!(parse(&whole[..len]).is_err(), "{len}");
        }
        for bit in 0..whole.len() * 8 {
            let mut wrong = whole.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let _ = parse(&wrong);
        }
    }
}
