//! A tensor that is decoded a few blocks at a time.

use std::collections::VecDeque;
use std::ops::Range;

use rayon::prelude::*;

use super::File;
use super::pieces::{Piece, batch_bytes};
use crate::arch::spare::Spare;
use crate::arch::threads;
use crate::block::Target;
use crate::digest::SumDigest;
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{Delta, TensorInfo, UpdatePart};
use crate::limits::in_memory;
use crate::stream::{copy, span};
use crate::tensor::TensorView;

/// A tensor that blocks of consecutive elements cover, each of this tensor only: dense blocks, or those of a
/// delta and what is between them.
pub(super) struct Large<'f, 'a> {
    tensor: u64,
    parts: Vec<UpdatePart<'a>>,
    /// The blocks that are not decoded, in order.
    blocks: VecDeque<Place>,
    /// Bytes of the tensor that were decoded, and all.
    done: u64,
    bytes: u64,
    delta: Option<Changed<'f>>,
}

/// A block, and where its elements go.
struct Place {
    part: usize,
    block: usize,
    /// Bytes in the tensor.
    bytes: Range<u64>,
}

/// The base of a tensor that a delta changes, and the sums of its result.
struct Changed<'f> {
    info: TensorInfo,
    base: &'f [u8],
    /// Sum of the elements that were decoded.
    sum: SumDigest,
    /// Sum of all, as the delta says.
    result: SumDigest,
}

impl<'f, 'a> Large<'f, 'a> {
    /// Returns a tensor of an update that is no delta; `None` if it does not consist of dense blocks.
    pub(super) fn of(file: &File<'a>, update: usize, tensor: usize) -> Result<Option<Self>> {
        let Some(large) = Self::located(file, update, tensor)? else { return Ok(None) };
        let mut end = 0;
        let is_next = |place: &Place| {
            let starts = std::mem::replace(&mut end, place.bytes.end) == place.bytes.start;
            starts && large.parts[place.part].blocks[place.block].is_dense_in_one()
        };
        let is_dense = large.blocks.iter().all(is_next) && end == large.bytes;
        Ok(Some(large).filter(|_| is_dense))
    }

    /// Returns a tensor of a delta, whose base has this sum, if it is known; `None` if the digest of the
    /// result is no sum, or not of this tensor alone.
    ///
    /// # Errors
    /// [`InputErrorKind::BaseMismatch`] if the delta was made against another base.
    pub(super) fn of_delta(
        file: &File<'a>,
        update: usize,
        tensor: usize,
        base: TensorView<'f>,
        known: Option<SumDigest>,
    ) -> Result<Option<Self>> {
        let entry = file.entry(update)?;
        let (header, info) = (&entry.header, &entry.manifest.tensors()[tensor]);
        let own = |run: &&Delta<SumDigest>| run.contains(tensor as u64);
        let mut runs = header.sums.iter().flatten().filter(own);
        let (Some(run), None) = (runs.next(), runs.next()) else { return Ok(None) };
        if run.more > 0 || header.delta.is_some() || base.data().len() as u64 != info.bytes() {
            return Ok(None);
        }
        let Some(mut large) = Self::located(file, update, tensor)? else { return Ok(None) };
        let before = known.map_or_else(|| info.sum_digest(base), Ok)?;
        if before != run.base {
            return Err(Error::input(InputErrorKind::BaseMismatch).in_tensor(tensor as u64));
        }
        let (info, base) = (info.clone(), base.data());
        large.delta = Some(Changed { info, base, sum: SumDigest::ZERO, result: run.result });
        Ok(Some(large))
    }

    /// Returns a tensor all of whose blocks are of it alone and follow each other.
    fn located(file: &File<'a>, update: usize, tensor: usize) -> Result<Option<Self>> {
        let entry = file.entry(update)?;
        let info = &entry.manifest.tensors()[tensor];
        let mut wanted = vec![false; entry.manifest.tensors().len()];
        wanted[tensor] = true;
        let parts = file.wanted_parts(entry, wanted).collect::<Result<Vec<_>>>()?;
        let (mut blocks, mut covered) = (VecDeque::new(), 0);
        for (part, read) in parts.iter().enumerate() {
            for (block, raw) in read.blocks.iter().enumerate() {
                let (_, start, len) = span(raw);
                if raw.add || raw.space.lens.len() != 1 || info.dtype.bits() < 8 || start < covered {
                    return Ok(None);
                }
                covered = start + len;
                let bytes = |elements| info.dtype.bytes_for(elements).unwrap_or(u64::MAX);
                blocks.push_back(Place { part, block, bytes: bytes(start)..bytes(covered) });
            }
        }
        let (tensor, bytes) = (tensor as u64, info.bytes());
        Ok(Some(Self { tensor, parts, blocks, done: 0, bytes, delta: None }))
    }

    /// Decodes the next elements.
    pub(super) fn next(&mut self, spare: &mut Spare) -> Result<Option<Piece>> {
        if self.done == self.bytes {
            return Ok(None);
        }
        let (range, blocks) = self.window();
        self.done = range.end;
        let len = in_memory(range.end - range.start);
        let mut data = spare.bytes(len);
        if let Some(delta) = &self.delta {
            copy(&delta.base[in_memory(range.start)..in_memory(range.end)], &mut data);
        }
        let (mut rest, mut at) = (data.as_mut_slice(), range.start);
        let mut cut = |bytes: &Range<u64>| {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(in_memory(bytes.start - at));
            let (own, later) = from.split_at_mut(in_memory(bytes.end - bytes.start));
            (rest, at) = (later, bytes.end);
            own
        };
        let places: Vec<_> = blocks.iter().map(|place| cut(&place.bytes)).collect();
        threads::in_order(blocks.par_iter().zip(places).map(|(place, data)| self.decode(place, data)))?;
        let mut sum = None;
        if let Some(delta) = &mut self.delta {
            let width = u64::from(delta.info.dtype.bits()) / 8;
            delta.sum += delta.info.sum_of_elements(range.start / width, &data)?;
            sum = (range.end == self.bytes).then_some(delta.sum);
            if sum.is_some_and(|sum| sum != delta.result) {
                return Err(Error::input(InputErrorKind::ResultMismatch).in_tensor(self.tensor));
            }
        }
        Ok(Some(Piece { tensor: self.tensor, start: range.start, data, sum }))
    }

    /// Returns the next bytes to decode, and their blocks: at least one, and then as many as are decoded at a
    /// time; or elements of the base that no block changes.
    fn window(&mut self) -> (Range<u64>, Vec<Place>) {
        let start = self.done;
        let most = start.saturating_add(batch_bytes());
        let next = self.blocks.front().map_or(self.bytes, |place| place.bytes.start);
        let (mut end, mut blocks) = (next.min(most), Vec::new());
        while let Some(place) = self.blocks.pop_front_if(|place| {
            let is_first = blocks.is_empty() && place.bytes.start <= most;
            is_first || place.bytes.end <= most
        }) {
            end = place.bytes.end;
            blocks.push(place);
        }
        (start..end, blocks)
    }

    fn decode(&self, place: &Place, data: &mut [u8]) -> Result<()> {
        let part = &self.parts[place.part];
        let (raw, budget) = (&part.blocks[place.block], part.budget());
        if raw.is_dense_in_one() {
            return part.decode_into(place.block, &budget, data);
        }
        let block = part.decode(place.block, &budget)?;
        let mut target = [Target { data, start: 0, len: raw.space.len() }];
        let applied = block.apply(&raw.space, part.sets(), &budget, &mut target);
        applied.map_err(|e| part.place(e.not_before(raw.offset), place.block))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};
    use std::sync::Arc;

    use super::*;
    use crate::block::{Block, Floats, Scope, Sparse, Stored, Support, Ulp, Values};
    use crate::compress::{Input, Options, compress};
    use crate::frame::{Manifest, UpdateHeader, run_digest, tensor_digest};
    use crate::limits::Limits;
    use crate::stream::{EncodeOptions, Encoder, Writer};
    use crate::tensor::{Dtype, TensorBuf};

    const LEN: usize = 9000;

    fn tensor(step: usize) -> TensorBuf {
        let is_within = |i| (100..2100).contains(&i) || (2800..4000).contains(&i);
        let change = |i: usize| if is_within(i) && i.is_multiple_of(7) { 1e-6 * step as f32 } else { 0.0 };
        let value = |i: usize| (i as f32 * 0.37).sin() + change(i);
        TensorBuf::from_f32(vec![90, 100], &(0..LEN).map(value).collect::<Vec<f32>>()).unwrap()
    }

    /// A delta with blocks of these elements, whose header has this sum of the result.
    fn stream(codec: &str, spans: &[Range<usize>], result: SumDigest) -> Vec<u8> {
        let info = TensorInfo::new("w", Dtype::F32, [90, 100]);
        let (old, new) = (tensor(0), tensor(1));
        let mut blocks = Vec::new();
        for span in spans {
            let shape = [span.len() as u64];
            let cut = |of: &'_ TensorBuf| of.data()[span.start * 4..span.end * 4].to_vec();
            let [old, new] =
                [&old, &new].map(|of| TensorBuf::new(Dtype::F32, shape.to_vec(), cut(of)).unwrap());
            let input = Input { tensor: 0, name: "w", view: new.view(), base: Some(old.view()) };
            let mut made = compress(&[input], &[codec.parse().unwrap()], &Options::default(), None).unwrap();
            made.iter_mut().for_each(|coded| {
                if span.len() < LEN {
                    let start = span.start as u64;
                    coded.block.scope = Scope::Range { tensor: 0, start, len: shape[0] };
                }
            });
            blocks.extend(made);
        }
        let base = info.sum_digest(old.view()).unwrap();
        let sums = vec![Delta { first: 0, more: 0, base, result }];
        let manifest = Arc::new(Manifest::new(vec![info]).unwrap());
        let mut writer = Writer::new(Vec::new(), EncodeOptions::default());
        writer.update(&UpdateHeader::default().with_sums(Some(sums)), &manifest, &blocks).unwrap();
        writer.finish().unwrap()
    }

    /// Returns the elements, the number of pieces and the sum in the last one.
    fn decode(
        bytes: &[u8],
        base: &TensorBuf,
        known: Option<SumDigest>,
    ) -> Result<(Vec<u8>, usize, SumDigest)> {
        let file = File::open(bytes, Limits::default())?;
        let base = BTreeMap::from([("w".to_owned(), base.view())]);
        let sums: HashMap<_, _> = known.map(|sum| ("w".to_owned(), sum)).into_iter().collect();
        let pieces = file.pieces(0, |_| true, &base)?.with_sums(sums).collect::<Result<Vec<_>>>()?;
        let mut data = Vec::new();
        for (number, piece) in pieces.iter().enumerate() {
            assert_eq!((piece.start, piece.sum.is_some()), (data.len() as u64, number + 1 == pieces.len()));
            data.extend(&piece.data);
        }
        Ok((data, pieces.len(), pieces.last().and_then(|piece| piece.sum).unwrap()))
    }

    #[test]
    fn deltas_of_a_large_tensor_are_decoded_piece_by_piece() {
        let info = TensorInfo::new("w", Dtype::F32, [90, 100]);
        let (old, new) = (tensor(0), tensor(1));
        let [before, after] = [&old, &new].map(|of| info.sum_digest(of.view()).unwrap());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        for codec in ["delta", "delta:values=overwrite"] {
            // Blocks side by side and apart; elements before, between and after them.
            for ends in [&[100, 1500, 1500, 2100, 2800, 4000][..], &[0, LEN], &[99, 4001]] {
                let spans = ends.as_chunks::<2>().0.iter().map(|&[start, end]| start..end);
                let spans = &spans.collect::<Vec<_>>()[..];
                let bytes = stream(codec, spans, after);
                for known in [None, Some(before)] {
                    let (data, count, sum) = pool.install(|| decode(&bytes, &old, known)).unwrap();
                    assert!(data == new.data() && sum == after, "{codec} {spans:?}");
                    assert!(count > 1 || ends == [0, LEN], "{codec} {spans:?}: {count} pieces");
                }
                // Another base, another result than the sender's, and a base whose stated sum is another's.
                let other = stream(codec, spans, before);
                for (bytes, base, known) in
                    [(&bytes, &new, None), (&other, &old, None), (&bytes, &old, Some(after))]
                {
                    let failed = pool.install(|| decode(bytes, base, known)).map(drop);
                    assert_eq!(failed.unwrap_err().name(), "checksum_mismatch");
                }
            }
        }
    }

    #[test]
    fn a_window_has_one_block_or_as_many_as_are_decoded_at_a_time() {
        let unit = batch_bytes() / 4;
        let place = |(start, end): &(u64, u64)| Place { part: 0, block: 0, bytes: start * unit..end * unit };
        let blocks = [(1, 2), (3, 4), (4, 7), (7, 9), (13, 20), (29, 30)].iter().map(place).collect();
        let mut large = Large { tensor: 0, parts: vec![], blocks, done: 0, bytes: 33 * unit, delta: None };
        let mut windows = Vec::new();
        while large.done < large.bytes {
            let (range, blocks) = large.window();
            large.done = range.end;
            windows.push((range.start / unit, range.end / unit, blocks.len()));
        }
        let one_by_one = [(4, 7, 1), (7, 9, 1), (9, 20, 1)];
        let base = [(20, 24, 0), (24, 28, 0)];
        assert_eq!(windows, [&[(0, 4, 2)][..], &one_by_one, &base, &[(28, 30, 1), (30, 33, 0)]].concat());
    }

    /// A stream of one update.
    fn update(header: &UpdateHeader, infos: &[TensorInfo], blocks: &[Block]) -> Vec<u8> {
        let manifest = Arc::new(Manifest::new(infos.to_vec()).unwrap());
        let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.update(&mut bytes, header, &manifest, blocks).unwrap();
        encoder.finish(&mut bytes);
        bytes
    }

    fn filled(scope: Scope, support: Support, count: usize) -> Block {
        let bytes = 1f32.to_le_bytes().repeat(count);
        Block { scope, add: false, support, values: Values::Floats(Floats { stored: Stored::F32, bytes }) }
    }

    /// Returns the elements of a tensor, decoded in memory of other contents, and the number of pieces.
    fn in_used_memory(
        file: &File<'_>,
        name: &str,
        base: &BTreeMap<String, TensorView<'_>>,
    ) -> Result<(Vec<u8>, usize)> {
        let mut pieces = file.pieces(0, |n| n == name, base)?;
        pieces.reuse(vec![0xaa; 200_000]);
        let pieces = pieces.collect::<Result<Vec<_>>>()?;
        Ok((pieces.iter().flat_map(|piece| &piece.data).copied().collect(), pieces.len()))
    }

    #[test]
    fn elements_that_no_block_gives_are_zeros() {
        let infos = [TensorInfo::new("w", Dtype::F32, [50_000])];
        let range = |start: u64, len: u64| {
            filled(Scope::Range { tensor: 0, start, len }, Support::All, in_memory(len))
        };
        let sparse = Support::Sparse(Sparse { positions: vec![7] });
        for blocks in [
            vec![filled(Scope::Tensor(0), sparse, 1)],
            vec![range(100, 49_900)],
            vec![range(0, 49_900)],
            vec![range(0, 100), range(200, 49_800)],
        ] {
            let bytes = update(&UpdateHeader::default(), &infos, &blocks);
            let file = File::open(&bytes, Limits::default()).unwrap();
            let expected = file.tensor(0, "w", &BTreeMap::new()).unwrap();
            let (found, _) = in_used_memory(&file, "w", &BTreeMap::new()).unwrap();
            assert!(found == expected.data(), "{:?}", blocks[0].scope);
        }
    }

    #[test]
    fn a_tensor_of_bytes_comes_in_pieces() {
        let infos = [TensorInfo::new("w", Dtype::F8E4M3Fn, [80_000])];
        let block = |start| Block {
            values: Values::Floats(Floats { stored: Stored::Source, bytes: vec![start as u8 + 3; 40_000] }),
            ..filled(Scope::Range { tensor: 0, start, len: 40_000 }, Support::All, 0)
        };
        let bytes = update(&UpdateHeader::default(), &infos, &[block(0), block(40_000)]);
        let file = File::open(&bytes, Limits::default()).unwrap();
        let expected = [[3; 40_000], [(40_000u64 as u8) + 3; 40_000]].concat();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let found = pool.install(|| in_used_memory(&file, "w", &BTreeMap::new())).unwrap();
        assert!(found == (expected, 2), "{} pieces", found.1);
    }

    #[test]
    fn a_tensor_of_a_delta_is_decoded_whole_where_pieces_are_not_enough() {
        let names = ["a", "b"];
        let tensors = |dtype: Dtype, data: [Vec<u8>; 2]| {
            let tensor = |data: Vec<u8>| {
                let len = data.len() as u64 * 8 / u64::from(dtype.bits());
                TensorBuf::new(dtype, vec![len], data).unwrap()
            };
            data.map(tensor)
        };
        // The first elements of both tensors change, all of which are zero in the base.
        let changed = |value: f32| {
            let mut data = vec![0; 20_000];
            data[..40].copy_from_slice(&value.to_le_bytes().repeat(10));
            tensors(Dtype::F32, [data.clone(), data])
        };
        let (ones, twos) = (changed(1.0), changed(2.0));
        let sparse = |positions: Vec<u64>| Support::Sparse(Sparse { positions });
        let both =
            filled(Scope::Tensors { first: 0, count: 2 }, sparse((0..10).chain(5000..5010).collect()), 20);
        let first = |tensor| filled(Scope::Range { tensor, start: 0, len: 10 }, Support::All, 10);
        let added = [0, 0, 1, 1].map(|tensor| Block { add: true, ..first(tensor) });
        let step = |tensor| Block {
            scope: Scope::Tensor(tensor),
            add: false,
            support: sparse(vec![3]),
            values: Values::Ulp(Ulp { diffs: vec![1] }),
        };
        let mut halves = vec![0; 10_000];
        halves[1] = 0x10;
        let halves = tensors(Dtype::F4E2M1, [halves.clone(), halves]);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        for (what, new, blocks, more, hash) in [
            ("one sum of both", &ones, vec![first(0)], 1, None),
            ("one block of both", &ones, vec![both], 0, None),
            ("added blocks", &twos, added.to_vec(), 0, None),
            ("elements of 4 bits", &halves, vec![step(0), step(1)], 0, None),
            ("right hashes", &ones, vec![first(0), first(1)], 0, Some(&ones)),
            ("wrong hashes", &ones, vec![first(0), first(1)], 0, Some(&twos)),
        ] {
            let (dtype, shape) = (new[0].dtype(), new[0].shape().to_vec());
            let infos = names.map(|name| TensorInfo::new(name, dtype, shape.clone()));
            let zeros = TensorBuf::new(dtype, shape, vec![0; new[0].data().len()]).unwrap();
            // Of two tensors with a common sum, only the first changes.
            let old = [zeros.clone(), if more > 0 { new[1].clone() } else { zeros }];
            let sums = |of: [TensorView<'_>; 2]| -> Vec<SumDigest> {
                let each = infos.iter().zip(of).map(|(info, view)| info.sum_digest(view).unwrap());
                if more > 0 { vec![each.sum()] } else { each.collect() }
            };
            let [before, after] = [&old, new].map(|[a, b]| sums([a.view(), b.view()]));
            let pairs = before.into_iter().zip(after);
            let runs = (0..).zip(pairs).map(|(first, (base, result))| Delta { first, more, base, result });
            let hashes = hash.map(|new| {
                let digest = |of: &TensorBuf| run_digest(&[tensor_digest(of.view())]);
                let run =
                    |(first, (old, new))| Delta { first, more: 0, base: digest(old), result: digest(new) };
                (0..).zip(old.iter().zip(new)).map(run).collect()
            });
            let header = UpdateHeader::default().with_sums(Some(runs.collect())).with_delta(hashes);
            let bytes = update(&header, &infos, &blocks);
            let file = File::open(&bytes, Limits::default()).unwrap();
            let base = BTreeMap::from([0, 1].map(|i| (names[i].to_owned(), old[i].view())));
            let found = pool.install(|| in_used_memory(&file, "a", &base)).map_err(|e| e.name());
            let is_wrong = what == "wrong hashes";
            let expected = if is_wrong { Err("checksum_mismatch") } else { Ok((new[0].data().to_vec(), 1)) };
            assert!(found == expected, "{what}");
        }
    }
}
