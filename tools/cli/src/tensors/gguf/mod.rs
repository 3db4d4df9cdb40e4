//! `.gguf`: llama.cpp's models.
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | entries u64 | entries: key, type, value
//! | tensors: name, dimensions (fastest first), type, offset | padding | data
//! ```
//! The data are the tensors in the order of their offsets, each padded to a multiple of the alignment.
//! Tensors of quantised types are opaque.

mod types;

use super::{Data, Dump, NamedTensor, Opaque, check_unique, quoted};
use crate::fail::{Failure, Result};
use crate::input::{Input, Section};
use gcodec::internal::elements;
use std::ops::Range;
use std::sync::Arc;

pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
/// Bytes of data after which each tensor begins, unless an entry says otherwise.
const ALIGNMENT: u64 = 32;
/// Most dimensions of a tensor.
const MAX_RANK: u32 = 8;
/// Deepest arrays of arrays.
const MAX_DEPTH: usize = 4;

/// Reads all tensors, in the order of the header; their bytes stay in `input`.
pub(crate) fn read(input: &Arc<Input>) -> Result<Dump> {
    let file = Section::from(&**input);
    let (infos, end, alignment) = file.parse_head(|bytes| {
        let mut header = Header { bytes, at: MAGIC.len(), alignment: ALIGNMENT };
        let infos = header.read().map_err(|e| e.about(format_args!("GGUF header, byte {:#x}", header.at)))?;
        Ok::<_, Failure>((infos, header.at as u64, header.alignment))
    })?;
    check_unique(infos.iter().map(|info| info.name.as_str()), Failure::invalid)?;
    let ranges = places(&infos, &file, end, alignment)?;
    let mut dump = Dump::default();
    for (info, range) in infos.into_iter().zip(ranges) {
        let name = info.name.clone();
        info.add_to(&mut dump, input, range).map_err(|e| e.about(quoted(&name)))?;
    }
    Ok(dump)
}

struct Info {
    name: String,
    shape: Vec<u64>,
    kind: u32,
    offset: u64,
}

/// Returns where the data of each tensor are. They and their padding fill the file behind the header, which
/// ends before the byte `header`.
fn places(infos: &[Info], file: &Section<'_>, header: u64, alignment: u64) -> Result<Vec<Range<u64>>> {
    let len = file.len();
    // A file without data may end before the padding.
    let start = padded(header, alignment)?;
    let mut order: Vec<usize> = (0..infos.len()).collect();
    order.sort_by_key(|&number| infos[number].offset);
    let mut places = vec![0..0; infos.len()];
    let mut free = start.min(len);
    for (i, &number) in order.iter().enumerate() {
        let info = &infos[number];
        let fail = |what: &str| Failure::invalid(what).about(quoted(&info.name));
        let begin = start.checked_add(info.offset);
        let begin = begin.filter(|at| *at <= len).ok_or_else(|| fail("its data lies outside of the file"))?;
        if begin != free {
            let what = if begin < free { "overlaps" } else { "leaves a gap after" };
            return Err(fail(&format!("its data at byte {begin:#x} {what} the tensor before it")));
        }
        // Of an unknown type, the place of the next tensor tells the bytes.
        let next = || match order.get(i + 1) {
            Some(next) => infos[*next].offset.checked_add(start),
            None => Some(len),
        };
        let end = match types::of(info.kind) {
            Some(of) => info.bytes(&of).map_err(|e| e.about(quoted(&info.name)))?.checked_add(begin),
            None => next(),
        };
        let end = end.filter(|end| (begin..=len).contains(end));
        let end = end.ok_or_else(|| fail("its data lies outside of the file"))?;
        places[number] = begin..end;
        // Writers need not pad the last one.
        free = padded(end, alignment)?.min(len);
    }
    let is_last_known = order.last().is_none_or(|&number| types::of(infos[number].kind).is_some());
    match len - free {
        _ if file.cut(free..len).head(MAGIC.len() as u64) == &MAGIC[..] => Err(joined(free)),
        more if more > 0 => {
            Err(Failure::invalid(format_args!("{more} bytes from {free:#x} on belong to no tensor")))
        }
        // A second file could hide in the data of an unknown type.
        _ if !is_last_known && file.cut(start.min(len)..len).contains(b"GGUF\x03\0\0\0") => {
            Err(joined(start))
        }
        _ => Ok(places),
    }
}

/// Returns the next multiple of the alignment.
fn padded(at: u64, alignment: u64) -> Result<u64> {
    let padded = at.checked_next_multiple_of(alignment);
    padded.ok_or_else(|| Failure::invalid("an alignment beyond 64 bits"))
}

fn joined(at: u64) -> Failure {
    Failure::invalid(format_args!(
        "another GGUF file begins in it, at or behind byte {at:#x}: split the joined files again; \
         `llama-gguf-split --merge` makes one of the parts of a model"
    ))
}

impl Info {
    /// Returns the bytes of its data.
    fn bytes(&self, kind: &types::Type) -> Result<u64> {
        let outside = || Failure::invalid("its data lies outside of the file");
        let count = elements(&self.shape).ok_or_else(outside)?;
        if !count.is_multiple_of(kind.block) {
            let (name, block) = (kind.name, kind.block);
            return Err(Failure::invalid(format_args!("{count} elements, {name} has blocks of {block}")));
        }
        (count / kind.block).checked_mul(kind.bytes).ok_or_else(outside)
    }

    fn add_to(self, dump: &mut Dump, input: &Arc<Input>, range: Range<u64>) -> Result<()> {
        let bytes = range.end - range.start;
        let data = Data::shared(input, range);
        let (dtype, reason) = match types::of(self.kind) {
            Some(types::Type { dtype: Some(dtype), .. }) => {
                dump.tensors.push(NamedTensor::from_data(self.name, dtype, self.shape, data)?);
                return Ok(());
            }
            Some(types::Type { name, .. }) => {
                (name.to_owned(), "values of this quantised type are not computed")
            }
            None => (
                types::name(self.kind),
                "gcodec does not know this type; its bytes are those up to the next tensor",
            ),
        };
        dump.opaque.push(Opaque::new(self.name, dtype, Some(self.shape), bytes, reason).with_data(data));
        Ok(())
    }
}

struct Header<'a> {
    bytes: &'a [u8],
    at: usize,
    alignment: u64,
}

impl Header<'_> {
    /// Returns the tensors.
    fn read(&mut self) -> Result<Vec<Info>> {
        let version = self.u32()?;
        if !(2..=3).contains(&version) {
            let swapped = if version.swap_bytes() <= 3 { " (a big-endian file)" } else { "" };
            return Err(Failure::invalid(format_args!("version {version}{swapped}, 2 and 3 are read")));
        }
        let (tensors, entries) = (self.u64()?, self.u64()?);
        for _ in 0..entries {
            let key = self.text()?;
            let kind = self.u32()?;
            let before = self.at;
            self.skip(kind, 0)?;
            if key == "general.alignment" && kind == 4 {
                let word = self.bytes[before..self.at].try_into().unwrap_or_default();
                self.alignment = u64::from(u32::from_le_bytes(word)).max(1);
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
        Ok(infos)
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

#[cfg(test)]
mod tests {
    use super::*;
    use gcodec::tensor::Dtype;

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

    /// A file of tensors: name, dimensions, type, bytes.
    fn file_of(tensors: &[(&str, &[u64], u32, usize)]) -> Vec<u8> {
        let mut out =
            [&MAGIC[..], &3u32.to_le_bytes(), &(tensors.len() as u64).to_le_bytes(), &[0; 8]].concat();
        let mut offset = 0usize;
        for (name, dims, kind, bytes) in tensors {
            out.extend(text(name));
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + bytes).next_multiple_of(32);
        }
        for (.., bytes) in tensors {
            out.resize(out.len().next_multiple_of(32) + bytes, 1);
        }
        out
    }

    fn message(bytes: &[u8]) -> String {
        parse(bytes).unwrap_err().message
    }

    #[test]
    fn every_type_has_its_size() {
        for kind in 0..60 {
            let Some(of) = types::of(kind) else { continue };
            let dims = [of.block * 2, 3];
            let file = file_of(&[("a", &dims, kind, 6 * of.bytes as usize), ("b", &[1], 0, 4)]);
            let dump = parse(&file).unwrap();
            assert_eq!(dump.tensors.last().unwrap().name(), "b", "{}", of.name);
            let opaque = dump.opaque.first().map(|a| (&*a.dtype, a.shape.clone(), a.bytes));
            let expected = (of.name, Some(vec![3, of.block * 2]), 6 * of.bytes);
            assert_eq!(opaque, of.dtype.is_none().then_some(expected));
        }
    }

    #[test]
    fn types_that_are_not_known_reach_to_the_next_tensor() {
        for kind in [42, 99, u32::MAX] {
            let file = file_of(&[("n", &[1], 0, 4), ("q", &[2, 256], kind, 132), ("m", &[1], 0, 4)]);
            let dump = parse(&file).unwrap();
            assert_eq!((dump.tensors.len(), dump.opaque[0].bytes), (2, 160));
            let file = file_of(&[("n", &[1], 0, 4), ("q", &[2, 256], kind, 132)]);
            assert_eq!(parse(&file).unwrap().opaque[0].bytes, 132);
            // It must not hide another file.
            assert!(message(&[&file[..], &file].concat()).contains("another GGUF file"));
        }
    }

    #[test]
    fn every_byte_belongs_to_a_tensor() {
        let file = file_of(&[("a", &[3], 0, 12), ("b", &[1], 0, 4)]);
        assert!(parse(&file).is_ok());
        let mut padded = file.clone();
        padded.resize(file.len().next_multiple_of(32), 0);
        assert!(parse(&padded).is_ok());
        assert!(message(&[&padded[..], &file].concat()).contains("another GGUF file"));
        assert!(message(&[&padded[..], b"x"].concat()).contains("1 bytes from"));
        let empty = file_of(&[]);
        assert!(parse(&empty).is_ok());
        assert!(message(&[&empty[..], &[0; 9], &file].concat()).contains("belong to no tensor"));
        let gap = file_of(&[("a", &[3], 0, 64), ("b", &[1], 0, 4)]);
        assert!(message(&gap).contains("leaves a gap"));
        let overlap = file_of(&[("a", &[9], 0, 12), ("b", &[1], 0, 4)]);
        assert!(message(&overlap).contains("overlaps"));
        let broken = file_of(&[("a", &[33], 8, 34)]);
        assert!(message(&broken).contains("blocks of 32"));
    }
}
