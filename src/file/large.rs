//! A tensor that is decoded a few blocks at a time.

use std::collections::VecDeque;
use std::ops::Range;

use rayon::prelude::*;

use super::File;
use super::pieces::{Piece, batch_bytes};
use crate::arch::{pages, threads};
use crate::block::Target;
use crate::digest::SumDigest;
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{Delta, TensorInfo, UpdatePart};
use crate::limits::in_memory;
use crate::stream::{Spare, copy, span};
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
        let mut data = pages::of_len(spare.take(len).unwrap_or_default(), len);
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
    use crate::block::Scope;
    use crate::compress::{Input, Options, compress};
    use crate::frame::{Manifest, UpdateHeader};
    use crate::limits::Limits;
    use crate::stream::{EncodeOptions, Writer};
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
}
