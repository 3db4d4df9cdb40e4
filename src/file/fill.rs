//! Elements of tensors in memory that the caller gives.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::ops::Range;

use super::File;
use super::open::UpdateEntry;
use crate::arch::{pages, threads};
use crate::block::{RawBlock, SupportId, Target, ValuesId};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{TensorInfo, UpdatePart};
use crate::limits::{MEMORY, check, check_allocation, in_memory};
use crate::stream::span;
use crate::tensor::TensorView;

/// Memory for consecutive elements of a tensor, all of which [`File::fill`] writes.
#[derive(Debug)]
pub struct Place<'m> {
    /// Number of the tensor in the manifest.
    pub tensor: u64,
    /// First element.
    pub start: u64,
    /// The elements, little-endian. Its length is the number of elements times their size.
    pub data: &'m mut [u8],
}

/// The elements of a place that no block has given yet.
struct Rest<'p> {
    tensor: usize,
    elements: Range<u64>,
    data: &'p mut [u8],
}

/// A block to decode: number of its part, number in the part, and where its elements go.
struct Job<'p> {
    part: usize,
    block: usize,
    pieces: Vec<Piece<'p>>,
}

/// Elements of a block that go to one place.
struct Piece<'p> {
    /// Number of the tensor in the block's scope.
    tensor: usize,
    /// First byte in the block's elements of the tensor.
    from: usize,
    data: &'p mut [u8],
}

impl File<'_> {
    /// Decodes elements of an update into the places, in parallel. Only blocks that contain them are read and
    /// checked. After an error the places have arbitrary contents.
    ///
    /// `base`: as for [`File::pieces`]. A delta is decoded as whole tensors, whose elements are then copied,
    /// and so are tensors that sparse blocks change. `read`: is called with the place in the file of each
    /// block that was decoded and is not needed any more ([`Map::forget`](crate::file::Map::forget)); the
    /// first call for an update, which compares the heads of all its blocks with the index, gives all places.
    ///
    /// # Memory
    /// One block per thread, unless all of it goes to one place.
    ///
    /// # Errors
    /// [`Error::Input`] if the update or a tensor does not exist, or if a place is longer than the tensor's
    /// elements from its start on, or does not begin and end with whole bytes; the errors of
    /// [`Self::tensors`].
    pub fn fill(
        &self,
        update: usize,
        places: &mut [Place<'_>],
        base: &BTreeMap<String, TensorView<'_>>,
        read: &(dyn Fn(Range<u64>) + Sync),
    ) -> Result<()> {
        let entry = self.entry(update)?;
        let infos = entry.manifest.tensors();
        let elements = places.iter().map(|place| elements_of(place, infos)).collect::<Result<Vec<_>>>()?;
        let mut wanted = vec![Vec::new(); infos.len()];
        for (place, range) in places.iter().zip(&elements).filter(|(_, range)| !range.is_empty()) {
            wanted[in_memory(place.tensor)].push(range.clone());
        }
        let of_blocks = match entry.header.is_delta() {
            true => BTreeSet::new(),
            false => self.fill_from_blocks(entry, (places, &elements), &wanted, read)?,
        };
        let is_left = |tensor: usize| !wanted[tensor].is_empty() && !of_blocks.contains(&tensor);
        let left: BTreeSet<&str> =
            (0..infos.len()).filter(|&tensor| is_left(tensor)).map(|tensor| &*infos[tensor].name).collect();
        if left.is_empty() {
            return Ok(());
        }
        let mut pieces = self.pieces(update, |name| left.contains(name), base)?;
        while let Some(piece) = pieces.next().transpose()? {
            for (place, range) in places.iter_mut().zip(&elements).filter(|(p, _)| p.tensor == piece.tensor) {
                copy_common(
                    &piece.data,
                    piece.start,
                    &infos[in_memory(piece.tensor)],
                    range.start,
                    place.data,
                );
            }
            pieces.reuse(piece.data);
        }
        Ok(())
    }

    /// As [`Self::fill`], for ranges of elements of tensors in new memory, one buffer for each.
    ///
    /// # Errors
    /// As [`Self::fill`]; [`Error::Limit`] if the elements have more bytes than
    /// [`Limits::max_alloc_bytes`](crate::Limits::max_alloc_bytes).
    pub fn elements(
        &self,
        update: usize,
        wanted: &[(u64, Range<u64>)],
        base: &BTreeMap<String, TensorView<'_>>,
        read: &(dyn Fn(Range<u64>) + Sync),
    ) -> Result<Vec<Vec<u8>>> {
        let infos = self.entry(update)?.manifest.tensors();
        let mut all = 0u64;
        let mut lens = Vec::with_capacity(wanted.len());
        for (tensor, range) in wanted {
            let info = info_of(*tensor, infos)?;
            let len = range.end.checked_sub(range.start).filter(|_| range.end <= info.elements());
            let bytes = len.and_then(|len| info.dtype.bytes_for(len));
            let bytes = bytes.ok_or(Error::input(InputErrorKind::Mismatch { what: "range and tensor" }))?;
            all = all.saturating_add(bytes);
            lens.push(bytes);
        }
        check(MEMORY, all, self.limits().max_alloc_bytes, 0)?;
        check_allocation(all, 0)?;
        let mut buffers: Vec<Vec<u8>> = lens.iter().map(|&bytes| pages::zeros(in_memory(bytes))).collect();
        let places = wanted.iter().zip(&mut buffers);
        let mut places: Vec<Place<'_>> = places
            .map(|((tensor, range), data)| Place { tensor: *tensor, start: range.start, data })
            .collect();
        self.fill(update, &mut places, base, read)?;
        Ok(buffers)
    }

    /// Fills the places of the tensors whose elements are all in dense blocks, and returns these tensors.
    fn fill_from_blocks(
        &self,
        entry: &UpdateEntry,
        (places, elements): (&mut [Place<'_>], &[Range<u64>]),
        wanted: &[Vec<Range<u64>>],
        read: &(dyn Fn(Range<u64>) + Sync),
    ) -> Result<BTreeSet<usize>> {
        let infos = entry.manifest.tensors();
        let parts = self.parts_of_elements(entry, wanted, read)?;
        let mut rests: Vec<Rest<'_>> = places
            .iter_mut()
            .zip(elements)
            .map(|(place, elements)| {
                let tensor = in_memory(place.tensor);
                Rest { tensor, elements: elements.clone(), data: &mut *place.data }
            })
            .collect();
        let mut by_tensor: Vec<Vec<usize>> = vec![Vec::new(); infos.len()];
        rests.iter().enumerate().for_each(|(number, rest)| by_tensor[rest.tensor].push(number));
        let mut jobs = Vec::new();
        for (part, unchecked) in parts.iter().enumerate() {
            let blocks = unchecked.part.blocks.iter().enumerate().filter(|(_, raw)| gives_all(raw));
            for (block, raw) in blocks {
                let pieces = pieces_of(raw, &by_tensor, &mut rests);
                if !pieces.is_empty() {
                    jobs.push(Job { part, block, pieces });
                }
            }
        }
        let mut whole: BTreeSet<usize> =
            (0..infos.len()).filter(|&tensor| !wanted[tensor].is_empty()).collect();
        // A block that adds to elements, or has few of them, changes what the others give.
        let others = parts.iter().flat_map(|unchecked| &unchecked.part.blocks).filter(|raw| !gives_all(raw));
        for raw in others {
            let (first, tensors) = (in_memory(raw.scope.first()), raw.space.lens.len());
            (first..first + tensors).for_each(|tensor| _ = whole.remove(&tensor));
        }
        for rest in rests.iter().filter(|rest| !rest.elements.is_empty()) {
            whole.remove(&rest.tensor);
        }
        let filled = threads::each(jobs.into_iter(), |job| {
            let unchecked = &parts[job.part];
            let raw = &unchecked.part.blocks[job.block];
            let place = raw.offset..raw.offset + raw.len;
            unchecked.check(job.block, self.slice(raw.offset, raw.len)?)?;
            job.run(&unchecked.part)?;
            read(place);
            Ok(())
        });
        filled.into_iter().collect::<Result<Vec<()>>>()?;
        Ok(whole)
    }
}

impl Job<'_> {
    /// Decodes the block.
    fn run(mut self, part: &UpdatePart<'_>) -> Result<()> {
        let (raw, budget) = (&part.blocks[self.block], part.budget());
        let bytes = |len: u64| raw.space.dtype.bytes_for(len).unwrap_or(u64::MAX);
        if raw.is_dense_in_one()
            && let [Piece { data, .. }] = &mut self.pieces[..]
            && data.len() as u64 == bytes(raw.space.len())
        {
            return part.decode_into(self.block, &budget, data);
        }
        let ends = raw.space.lens.iter().scan(0u64, |end, &len| {
            *end = end.saturating_add(bytes(len));
            Some(*end)
        });
        // Where each tensor of the scope begins, and all of them end.
        let starts: Vec<u64> = iter::once(0).chain(ends).collect();
        let all = starts.last().copied().unwrap_or(0);
        budget.reserve_bytes(all, raw.offset).map_err(|e| part.place(e, self.block))?;
        let mut all = pages::zeros(in_memory(all));
        if raw.is_dense() {
            part.decode_into(self.block, &budget, &mut all)?;
        } else {
            let block = part.decode(self.block, &budget)?;
            let mut rest = all.as_mut_slice();
            let targets = raw.space.lens.iter().map(|&len| {
                let data = rest.split_off_mut(..in_memory(bytes(len))).unwrap_or_default();
                Target { data, start: 0, len }
            });
            let applied = block.apply(&raw.space, part.sets(), &budget, &mut targets.collect::<Vec<_>>());
            applied.map_err(|e| part.place(e.not_before(raw.offset), self.block))?;
        }
        for Piece { tensor, from, data } in self.pieces {
            data.copy_from_slice(&all[in_memory(starts[tensor]) + from..][..data.len()]);
        }
        Ok(())
    }
}

/// Whether a block replaces all elements of its scope, whatever they were.
fn gives_all(raw: &RawBlock<'_>) -> bool {
    let all = raw.support_id == SupportId::ALL && raw.support.is_empty();
    all && !raw.add && raw.values_id != ValuesId::ULP
}

/// Cuts the elements that a block has from the rests of the places. The blocks of a tensor ascend.
fn pieces_of<'p>(raw: &RawBlock<'_>, by_tensor: &[Vec<usize>], rests: &mut [Rest<'p>]) -> Vec<Piece<'p>> {
    let (first, start, _) = span(raw);
    let mut pieces = Vec::new();
    let width = u64::from(raw.space.dtype.bits()) / 8;
    if width == 0 {
        // Two blocks may share a byte: these tensors are decoded in another way.
        return pieces;
    }
    for (number, &len) in raw.space.lens.iter().enumerate() {
        for &rest in &by_tensor[first + number] {
            let rest = &mut rests[rest];
            // A gap before the block stays in the rest, whose tensor is then decoded in another way.
            let starts_in = (start..start + len).contains(&rest.elements.start);
            let end = rest.elements.end.min(start + len);
            if !starts_in || rest.elements.start >= end {
                continue;
            }
            let bytes = |elements: u64| in_memory(elements * width);
            let from = rest.elements.start - start;
            let here = bytes(end - rest.elements.start);
            let (data, after) = std::mem::take(&mut rest.data).split_at_mut(here);
            (rest.elements.start, rest.data) = (end, after);
            pieces.push(Piece { tensor: number, from: bytes(from), data });
        }
    }
    pieces
}

fn info_of(tensor: u64, infos: &[TensorInfo]) -> Result<&TensorInfo> {
    infos.get(in_memory(tensor)).ok_or(Error::input(InputErrorKind::NoSuchTensor))
}

/// Returns the elements of a place, after checking that the tensor has them.
fn elements_of(place: &Place<'_>, infos: &[TensorInfo]) -> Result<Range<u64>> {
    let info = info_of(place.tensor, infos)?;
    let (bits, all) = (u64::from(info.dtype.bits()), info.elements());
    let mismatch = || Error::input(InputErrorKind::Mismatch { what: "place and tensor" });
    let len = (place.data.len() as u64).checked_mul(8).map(|of| of / bits).ok_or_else(mismatch)?;
    // The last byte of a tensor may have one element of 4 bits only.
    let end = place.start.checked_add(len).map(|end| if end == all + 1 && bits < 8 { all } else { end });
    let end = end.filter(|&end| end <= all && place.start <= end).ok_or_else(mismatch)?;
    let is_whole = (place.start * bits).is_multiple_of(8)
        && info.dtype.bytes_for(end - place.start) == Some(place.data.len() as u64);
    if is_whole { Ok(place.start..end) } else { Err(mismatch().in_tensor(place.tensor)) }
}

/// Copies the elements that a piece of a tensor and a place have in common. `start` and `to_start`: the
/// offset of the piece in bytes, and the first element of the place.
fn copy_common(from: &[u8], start: u64, info: &TensorInfo, to_start: u64, to: &mut [u8]) {
    let to_start = to_start * u64::from(info.dtype.bits()) / 8;
    let common = start.max(to_start)..(start + from.len() as u64).min(to_start + to.len() as u64);
    if !common.is_empty() {
        let within = |of: u64| in_memory(common.start - of)..in_memory(common.end - of);
        to[within(to_start)].copy_from_slice(&from[within(start)]);
    }
}
#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::block::{
        Block, Constant, Floats, Groups, ScaleFormat, Scales, Scope, Sparse, Stored, Support, Values,
    };
    use crate::compress::{Input, Options, compress, deltas};
    use crate::frame::{Manifest, UpdateHeader};
    use crate::limits::Limits;
    use crate::stream::{EncodeOptions, Encoder, Writer};
    use crate::tensor::{Dtype, TensorBuf};

    /// Large tensors with several blocks, small ones that share a block, an empty one, and one of 4 bits.
    const LENS: [u64; 8] = [5000, 3, 400, 0, 2500, 7, 33, 1201];

    fn tensors(step: usize) -> Vec<(String, TensorBuf)> {
        let value = |i: usize, x: u64| (x as f32 * 0.37 + i as f32 + step as f32 * 0.1).sin();
        let tensor = |(i, &len): (usize, &u64)| {
            let values: Vec<f32> = (0..len).map(|x| value(i, x)).collect();
            let floats = TensorBuf::from_f32(vec![len], &values).unwrap();
            let is_last = i + 1 == LENS.len();
            let halves: Vec<u8> = floats.data().iter().step_by(8).copied().collect();
            let tensor =
                if is_last { TensorBuf::new(Dtype::F4E2M1, vec![len], halves).unwrap() } else { floats };
            (format!("t{i}"), tensor)
        };
        LENS.iter().enumerate().map(tensor).collect()
    }

    fn manifest() -> Arc<Manifest> {
        let infos = tensors(0).into_iter().zip(LENS);
        let infos = infos.map(|((name, tensor), len)| TensorInfo::new(name, tensor.dtype(), [len]));
        Arc::new(Manifest::new(infos.collect()).unwrap())
    }

    /// A stream of an update with each of these codecs. `delta` is made against the step before, and a lossy
    /// codec does not code the last tensor.
    fn stream(codecs: &[&str], index: bool) -> Vec<u8> {
        let manifest = manifest();
        let options = EncodeOptions::default().with_part_bytes(7000).with_index(index);
        let mut writer = Writer::new(Vec::new(), options);
        for (step, spec) in codecs.iter().enumerate() {
            let (old, new) = (tensors(step.wrapping_sub(1)), tensors(step));
            let is_delta = spec.starts_with("delta");
            let coded = if *spec == "raw" || *spec == "lossless" { LENS.len() } else { LENS.len() - 1 };
            let inputs: Vec<Input<'_>> = (0..)
                .zip(new.iter().zip(&old).take(coded))
                .map(|(tensor, ((name, new), (_, old)))| Input {
                    tensor,
                    name,
                    view: new.view(),
                    base: is_delta.then(|| old.view()),
                })
                .collect();
            let codecs = vec![spec.parse().unwrap(); inputs.len()];
            let blocks = compress(&inputs, &codecs, &Options::default().with_block_len(300), None).unwrap();
            let runs = deltas(&manifest, &inputs, &codecs, &blocks).unwrap();
            writer.update(&UpdateHeader::default().with_runs(runs), &manifest, &blocks).unwrap();
        }
        writer.finish().unwrap()
    }

    /// Ranges of elements: whole tensors, ends of blocks and elements between, some of them twice.
    fn ranges() -> Vec<(u64, Range<u64>)> {
        let mut ranges: Vec<_> = (0..).zip(LENS).map(|(tensor, len)| (tensor, 0..len)).collect();
        ranges.extend([
            (0, 299..301),
            (0, 300..600),
            (0, 1..4999),
            (0, 4999..5000),
            (0, 17..17),
            (4, 0..2499),
        ]);
        ranges.extend([
            (5, 2..7),
            (5, 0..7),
            (6, 32..33),
            (7, 2..9),
            (7, 1000..1201),
            (0, 0..5000),
            (2, 0..400),
        ]);
        ranges
    }

    #[test]
    fn elements_are_those_of_the_tensors() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let none = BTreeMap::new();
        for codecs in [
            &["raw"][..],
            &["lossless"],
            &["natural"],
            &["int8"],
            &["topk:density=0.1"],
            &["lossless", "delta", "delta"],
        ] {
            for index in [true, false] {
                let bytes = stream(codecs, index);
                let file = match index {
                    true => File::open(&bytes, Limits::default()).unwrap(),
                    false => File::scan(&bytes, Limits::default()).unwrap(),
                };
                let last = codecs.len() - 1;
                let mut whole = vec![Vec::new(); LENS.len()];
                for piece in file.pieces(last, |_| true, &none).unwrap() {
                    let piece = piece.unwrap();
                    whole[piece.tensor as usize].extend(piece.data);
                }
                let found = pool.install(|| file.elements(last, &ranges(), &none, &|_| ())).unwrap();
                assert_eq!(found, file.elements(last, &ranges(), &none, &|_| ()).unwrap());
                for ((tensor, range), found) in ranges().into_iter().zip(found) {
                    let bits = if tensor == 7 { 4 } else { 32 };
                    let bytes = range.start as usize * bits / 8..(range.end as usize * bits).div_ceil(8);
                    let expected = &whole[tensor as usize][if range.is_empty() { 0..0 } else { bytes }];
                    assert!(found == expected, "{codecs:?}, index: {index}, {tensor}: {range:?}");
                }
            }
        }
    }

    #[test]
    fn only_blocks_of_the_elements_are_read() {
        let (none, all) = (BTreeMap::new(), Limits::default());
        let mut bytes = stream(&["lossless"], true);
        let middle = {
            let file = File::open(&bytes, all.clone()).unwrap();
            let part = file.parts(0, |name| name == "t0").unwrap().remove(0);
            (part.blocks[2].offset + part.blocks[2].len - 1) as usize
        };
        bytes[middle] ^= 1;
        let file = File::open(&bytes, all).unwrap();
        let read = |range| file.elements(0, &[(0, range)], &none, &|_| ()).map_err(|e| e.name());
        let places = Mutex::new(Vec::new());
        let note = |place: Range<u64>| places.lock().unwrap().push(place);
        file.elements(0, &[(0, 0..301)], &none, &note).unwrap();
        // The first call has read the heads of all blocks.
        assert_eq!(places.lock().unwrap().remove(0).end, bytes.len() as u64);
        let first = std::mem::take(&mut *places.lock().unwrap());
        file.elements(0, &[(0, 0..301)], &none, &note).unwrap();
        assert_eq!(*places.lock().unwrap(), first);
        let blocks = file.parts(0, |name| name == "t0");
        assert_eq!(blocks.unwrap_err().name(), "checksum_mismatch");
        let mut places = places.into_inner().unwrap();
        places.sort_by_key(|place| place.start);
        assert!(places.len() == 2 && places[1].end <= middle as u64 && places[0].end == places[1].start);
        assert!(read(0..600).is_ok() && read(900..5000).is_ok());
        for damaged in [599..601, 899..900, 0..5000] {
            assert_eq!(read(damaged), Err("checksum_mismatch"));
        }
    }

    #[test]
    fn a_scope_that_was_changed_hides_no_elements() {
        let none = BTreeMap::new();
        let bytes = stream(&["lossless"], true);
        let offset = {
            let file = File::open(&bytes, Limits::default()).unwrap();
            file.parts(0, |name| name == "t0").unwrap()[0].blocks[2].offset as usize
        };
        let expected = &tensors(0)[0].1.data()[600 * 4..900 * 4].to_vec();
        // Each bit of the block's header, in which is its range.
        for bit in 0..12 * 8 {
            let mut bytes = bytes.clone();
            bytes[offset + bit / 8] ^= 1 << (bit % 8);
            let file = File::open(&bytes, Limits::default()).unwrap();
            let read = file.elements(0, &[(0, 600..900)], &none, &|_| ());
            assert!(read.is_err() || &read.unwrap()[0] == expected, "bit {bit}");
        }
    }

    #[test]
    fn wrong_places_are_refused() {
        let none = BTreeMap::new();
        let bytes = stream(&["raw"], true);
        let file = File::open(&bytes, Limits::default()).unwrap();
        let fill = |tensor, start, len: usize| {
            let data = &mut vec![0; len][..];
            file.fill(0, &mut [Place { tensor, start, data }], &none, &|_| ()).map_err(|e| e.name())
        };
        assert_eq!((fill(1, 0, 12), fill(1, 1, 8), fill(7, 1200, 1)), (Ok(()), Ok(()), Ok(())));
        for (tensor, start, len) in [
            (8, 0, 4),
            (1, 0, 16),
            (1, 3, 4),
            (1, 0, 3),
            (1, u64::MAX, 4),
            (7, 1, 1),
            (7, 0, 602),
            (7, 1201, 1),
        ] {
            assert_eq!(fill(tensor, start, len), Err("input"), "{tensor} {start} {len}");
        }
        let (backwards, outside) = (Range { start: 2, end: 1 }, 0..4);
        for range in [backwards, outside] {
            assert_eq!(file.elements(0, &[(1, range)], &none, &|_| ()).unwrap_err().name(), "input");
        }
        assert_eq!(file.elements(1, &[], &none, &|_| ()).unwrap_err().name(), "input");
        let small = File::open(&bytes, Limits::default().with_max_alloc_bytes(5000)).unwrap();
        assert_eq!(small.elements(0, &[(0, 0..2000)], &none, &|_| ()).unwrap_err().name(), "limit");
    }

    /// A stream of an update of tensors of so many elements.
    fn update(lens: &[u64], blocks: &[Block]) -> Vec<u8> {
        let info = |(i, &len): (usize, &u64)| TensorInfo::new(format!("t{i}"), Dtype::F32, [len]);
        let manifest = Arc::new(Manifest::new(lens.iter().enumerate().map(info).collect()).unwrap());
        let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.update(&mut bytes, &UpdateHeader::default(), &manifest, blocks).unwrap();
        encoder.finish(&mut bytes);
        bytes
    }

    fn floats(scope: Scope, support: Support, values: Range<u16>) -> Block {
        let bytes = values.flat_map(|value| f32::from(value).to_le_bytes()).collect();
        Block { scope, add: false, support, values: Values::Floats(Floats { stored: Stored::F32, bytes }) }
    }

    /// A block whose elements are equal. Only with memory for all of them it is decoded.
    fn constant(scope: Scope, value: f32) -> Block {
        let scales = Scales::from_f32s(ScaleFormat::F32, &[value]);
        let values = Values::Constant(Constant { groups: Groups::Block, scales });
        Block { scope, add: false, support: Support::All, values }
    }

    #[test]
    fn elements_are_of_all_blocks_that_have_them() {
        let none = BTreeMap::new();
        let lens = [4, 5, 9, 7, 3, 6];
        let positions = Support::Sparse(Sparse { positions: vec![1, 8] });
        let blocks = [
            floats(Scope::Tensors { first: 0, count: 2 }, Support::All, 20..29),
            floats(Scope::Tensor(2), Support::All, 1..10),
            floats(Scope::Range { tensor: 3, start: 2, len: 3 }, Support::All, 30..33),
            constant(Scope::Tensors { first: 4, count: 2 }, 40.0),
            Block { add: true, ..floats(Scope::Tensor(2), positions, 50..52) },
            Block { add: true, ..floats(Scope::Tensors { first: 4, count: 2 }, Support::All, 60..69) },
        ];
        // Without the added blocks, elements of two tensors are in a dense block that is not read in place.
        for blocks in [&blocks[..4], &blocks] {
            let bytes = update(&lens, blocks);
            let file = File::open(&bytes, Limits::default()).unwrap();
            for (tensor, len) in (0..).zip(lens) {
                let whole = file.tensor(0, &format!("t{tensor}"), &none).unwrap();
                for start in 0..len {
                    for end in start + 1..=len {
                        let found = file.elements(0, &[(tensor, start..end)], &none, &|_| ()).unwrap();
                        let expected = &whole.data()[start as usize * 4..end as usize * 4];
                        assert_eq!(found[0], expected, "{tensor}: {start}..{end}");
                    }
                }
            }
            let all: Vec<_> = (0..).zip(lens).map(|(tensor, len)| (tensor, 0..len)).collect();
            let found = file.elements(0, &all, &none, &|_| ()).unwrap();
            let tensors = file.tensors(0, |_| true, &none).unwrap();
            assert!(found.iter().eq(tensors.iter().map(|(_, tensor)| tensor.data())));
        }
    }

    #[test]
    fn the_rest_of_a_block_is_read_only_for_its_elements() {
        let none = BTreeMap::new();
        let mut bytes = stream(&["lossless"], true);
        // The kind of its values, behind the scope and before the length of its support, which is 0.
        let kind = {
            let file = File::open(&bytes, Limits::default()).unwrap();
            let part = file.parts(0, |name| name == "t0").unwrap().remove(0);
            (part.blocks[2].values_offset() - 2) as usize
        };
        bytes[kind] = 0x7f;
        let file = File::open(&bytes, Limits::default()).unwrap();
        // The first call compares the heads of all blocks with the index.
        for _ in 0..2 {
            let around = [(0, 300..600), (0, 900..1200)];
            assert!(file.elements(0, &around, &none, &|_| ()).is_ok());
            for damaged in [599..601, 899..900] {
                let found = file.elements(0, &[(0, damaged)], &none, &|_| ());
                assert_eq!(found.unwrap_err().name(), "checksum_mismatch");
            }
        }
    }

    #[test]
    fn elements_stay_within_the_memory_limit() {
        let none = BTreeMap::new();
        let place = |e: Error| {
            let at = e.location().unwrap();
            (e.name(), at.offset, at.frame, at.block)
        };
        let bytes = stream(&["raw"], true);
        let open = |limit| File::open(&bytes, Limits::default().with_max_alloc_bytes(limit)).unwrap();
        let read = |limit| open(limit).elements(0, &[(0, 0..2000)], &none, &|_| ()).map(drop).map_err(place);
        assert_eq!((read(8000), read(7999)), (Ok(()), Err(("limit", 0, None, None))));
        // Blocks of 1200 bytes: memory is needed where not all of a block goes to one place.
        let file = open(1000);
        let second = file.parts(0, |name| name == "t0").unwrap()[0].blocks[1].offset;
        let fill = |ranges: &[Range<u64>]| {
            let mut data: Vec<_> = ranges.iter().map(|range| vec![0; range.clone().count() * 4]).collect();
            let places = ranges.iter().zip(&mut data);
            let mut places: Vec<_> =
                places.map(|(range, data)| Place { tensor: 0, start: range.start, data }).collect();
            file.fill(0, &mut places, &none, &|_| ()).map_err(place)
        };
        assert_eq!(fill(&[0..300, 300..600]), Ok(()));
        assert_eq!(fill(&[0..300, 300..599]), Err(("limit", second, Some(1), Some(1))));
        // Here also for all numbers, before they are in their places.
        let bytes = update(&[300], &[constant(Scope::Tensor(0), 1.0)]);
        let fill = |limit| {
            let file = File::open(&bytes, Limits::default().with_max_alloc_bytes(limit)).unwrap();
            let block = file.blocks(0).map(|_| file.parts(0, |_| true).unwrap()[0].blocks[0].offset).unwrap();
            let found = file.elements(0, &[(0, 0..300)], &none, &|_| ());
            found.map(drop).map_err(place).map_err(|(name, at, ..)| (name, at >= block))
        };
        assert_eq!((fill(2500), fill(2000)), (Ok(()), Err(("limit", true))));
    }

    #[test]
    fn elements_of_more_bytes_than_addresses_are_refused() {
        // Eight times 2^60 bytes.
        let bytes = update(&[1 << 58], &[]);
        let file = File::open(&bytes, Limits::default().with_max_alloc_bytes(u64::MAX)).unwrap();
        let e = file.elements(0, &vec![(0, 0..1 << 58); 8], &BTreeMap::new(), &|_| ()).unwrap_err();
        assert_eq!((e.name(), e.location().unwrap().offset), ("limit", 0));
    }

    #[test]
    fn for_no_elements_no_block_is_decoded() {
        let mut bytes = stream(&["lossless", "delta"], true);
        let last = {
            let file = File::open(&bytes, Limits::default()).unwrap();
            let raw = &file.parts(0, |name| name == "t0").unwrap()[0].blocks[0];
            (raw.offset + raw.len - 1) as usize
        };
        bytes[last] ^= 1;
        let file = File::open(&bytes, Limits::default()).unwrap();
        let read = |range| file.elements(1, &[(0, range)], &BTreeMap::new(), &|_| ()).map_err(|e| e.name());
        assert_eq!((read(3..3), read(3..4)), (Ok(vec![vec![]]), Err("checksum_mismatch")));
    }
}
