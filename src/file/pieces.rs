//! The tensors of an update one after another, in bounded memory.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{Range, RangeInclusive};

use super::File;
use super::large::Large;
use super::open::Listed;
use crate::arch::spare::Spare;
use crate::digest::{SumDigest, TensorDigests};
use crate::error::Result;
use crate::frame::{Delta, Manifest, TensorInfo, run_digest, tensor_digest};
use crate::limits::in_memory;
use crate::stream::Assembler;
use crate::tensor::{TensorBuf, TensorView};

/// Bytes of tensors that are decoded at a time, for each thread. The unit tests decode few, to cut more.
const BATCH: u64 = if cfg!(test) { 2000 } else { 8 << 20 };

/// Consecutive elements of one tensor: all of them, unless the tensor is large.
#[derive(Debug)]
pub struct Piece {
    /// Number of the tensor in the manifest.
    pub tensor: u64,
    /// Offset of the first byte in the tensor.
    pub start: u64,
    /// The bytes of the elements.
    pub data: Vec<u8>,
    /// Sum of the whole tensor ([`TensorInfo::sum_digest`]), with its last piece, if it was computed to
    /// verify a delta or the caller gave that of the base ([`Pieces::with_sums`]).
    pub sum: Option<SumDigest>,
}

/// The tensors of an update in the order of its manifest, as [`File::pieces`] makes them. After an error it
/// ends. A tensor that is not the sender's is such an error, with the last of its pieces: earlier ones may be
/// out already.
///
/// # Memory
/// 8 MiB of tensors per thread, or one larger tensor, and the memory of an [`Assembler`]. A larger tensor is
/// decoded a few blocks at a time if it consists of dense blocks, or if the update is a delta against the
/// base, with a sum digest of this tensor. Tensors that share a block, or a digest of a delta, are decoded
/// together.
pub struct Pieces<'f, 'a> {
    file: &'f File<'a>,
    /// Updates to apply in turn. All but the first are deltas.
    updates: RangeInclusive<usize>,
    base: &'f BTreeMap<String, TensorView<'f>>,
    wanted: Vec<bool>,
    /// Whether a tensor must be decoded together with the one before.
    joined: Vec<bool>,
    /// First tensor that is not decoded.
    next: usize,
    ready: VecDeque<Piece>,
    large: Option<Large<'f, 'a>>,
    /// Sums of bases that are known.
    sums: HashMap<String, SumDigest>,
    /// Memory of earlier pieces.
    spare: Spare,
}

impl<'a> File<'a> {
    /// Returns the tensors of an update whose names `wanted` accepts, one after another.
    ///
    /// `base`: the tensors that the update, or an earlier delta of the file, was made against. All deltas
    /// from there on are applied in turn. A chain of deltas that begins with a full update needs no base.
    ///
    /// The tensors may have more than [`Limits::max_alloc_bytes`](crate::Limits::max_alloc_bytes) together:
    /// the limit is for what is decoded at a time.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if the update does not exist. Each piece may give the errors of
    /// [`Self::tensors`].
    pub fn pieces<'f>(
        &'f self,
        update: usize,
        wanted: impl Fn(&str) -> bool,
        base: &'f BTreeMap<String, TensorView<'f>>,
    ) -> Result<Pieces<'f, 'a>> {
        let manifest = &self.entry(update)?.manifest;
        let wanted: Vec<bool> = manifest.tensors().iter().map(|info| wanted(&info.name)).collect();
        let updates = self.chain(update, base)..=update;
        let joined = self.joined(updates.clone(), manifest);
        let (next, ready, large, sums, spare) = Default::default();
        let mut pieces =
            Pieces { file: self, updates, base, wanted, joined, next, ready, large, sums, spare };
        pieces.spare = Spare::new(pieces.most());
        Ok(pieces)
    }

    /// Returns the first of the updates to apply: the one that was made against `base`, or that is no delta.
    /// If there is none, returns `update`, which then reports what is wrong with the base.
    fn chain(&self, update: usize, base: &BTreeMap<String, TensorView<'_>>) -> usize {
        // Digests of the base are computed only where there is a choice.
        match update {
            0 => 0,
            _ => (0..=update).rev().find(|&first| self.fits(first, base)).unwrap_or(update),
        }
    }

    /// Whether an update was made against this base; true for an update that is no delta. A delta that
    /// changes nothing has no digest of its base: an update before it tells.
    fn fits(&self, update: usize, base: &BTreeMap<String, TensorView<'_>>) -> bool {
        let entry = &self.updates()[update];
        if !entry.header.is_delta() {
            return true;
        }
        let tensors = |first, last| {
            let infos = entry.manifest.tensors().get(in_memory(first)..=in_memory(last));
            let infos = infos.unwrap_or_default().iter();
            infos.map(|info| Some((info, base.get(&info.name).copied()?))).collect::<Option<Vec<_>>>()
        };
        let is_base = |run: &Delta| {
            let digests = |found: Vec<_>| found.into_iter().map(|(_, base)| tensor_digest(base)).collect();
            tensors(run.first, run.last()).map(digests).is_some_and(|of: Vec<_>| run_digest(&of) == run.base)
        };
        let is_summed = |run: &Delta<SumDigest>| {
            let sum = |found: Vec<(&TensorInfo, _)>| {
                found.into_iter().map(|(info, base)| info.sum_digest(base)).sum::<Result<SumDigest>>().ok()
            };
            tensors(run.first, run.last()).and_then(sum) == Some(run.base)
        };
        // One run suffices here: the decoder compares them all.
        match entry.header.sums.iter().flatten().next() {
            Some(sum) => is_summed(sum),
            None => entry.header.delta.iter().flatten().next().is_some_and(is_base),
        }
    }

    /// Marks each tensor that must be decoded together with the one before.
    fn joined(&self, mut updates: RangeInclusive<usize>, manifest: &Manifest) -> Vec<bool> {
        let tensors = manifest.tensors().len();
        let entries = &self.updates()[updates.clone()];
        if !entries.iter().all(|entry| entry.manifest.id() == manifest.id()) {
            // Numbers of one manifest mean nothing in another.
            return vec![true; tensors];
        }
        let mut joined = vec![false; tensors];
        for (first, last) in
            updates.by_ref().flat_map(|i| self.updates()[i].header.runs().chain(self.spans(i)))
        {
            let more = in_memory(first).saturating_add(1)..=in_memory(last);
            joined.get_mut(more).into_iter().for_each(|joined| joined.fill(true));
        }
        joined
    }

    /// Returns the first and last tensor of each block of an update, as far as the index lists them. A block
    /// of several tensors takes the memory and the time of them all, whichever are wanted.
    fn spans(&self, update: usize) -> impl Iterator<Item = (u64, u64)> + '_ {
        let listed = self.parts[self.updates()[update].parts.clone()].iter().map(|part| &part.listed);
        let blocks = listed.flat_map(|listed| match listed {
            Listed::ByIndex(indexed) => &indexed.blocks[..],
            Listed::Read { .. } => &[],
        });
        blocks.map(|block| (block.first, block.first.saturating_add(block.tensors.saturating_sub(1))))
    }
}

impl<'f, 'a> Pieces<'f, 'a> {
    /// Sets the sums ([`TensorInfo::sum_digest`]) of tensors of the base that the caller knows: they are not
    /// computed again.
    #[must_use]
    pub fn with_sums(mut self, sums: HashMap<String, SumDigest>) -> Self {
        self.sums = sums;
        self
    }

    /// Lends the memory of a piece to later ones: new memory can take longer than decoding. Of few bytes, or
    /// more than are decoded at a time, it is freed.
    pub fn reuse(&mut self, memory: Vec<u8>) {
        self.spare.give(memory);
    }

    /// Returns the memory that was lent and is not in use, for another update.
    pub fn into_memory(self) -> Vec<Vec<u8>> {
        self.spare.into_memory()
    }

    fn find(&mut self) -> Result<Option<Piece>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            if let Some(large) = &mut self.large {
                match large.next(&mut self.spare)? {
                    Some(piece) => return Ok(Some(piece)),
                    None => self.large = None,
                }
            }
            let batch = self.batch();
            if batch.is_empty() {
                return Ok(None);
            }
            self.next = batch.end;
            match self.large(&batch)? {
                Some(large) => self.large = Some(large),
                None => self.ready = self.decode(batch)?,
            }
        }
    }

    /// Returns the next tensors to decode together.
    fn batch(&self) -> Range<usize> {
        let infos = self.file.updates()[*self.updates.end()].manifest.tensors();
        let most = batch_bytes();
        let (mut end, mut bytes) = (self.next, 0u64);
        while end < infos.len() {
            let (after, own) = self.group(infos, end);
            let sum = bytes.saturating_add(own);
            if sum > most && bytes > 0 {
                break;
            }
            (end, bytes) = (after, sum);
        }
        self.next..end
    }

    /// Returns the end of a group, of tensors that are decoded together, and the bytes of those wanted.
    fn group(&self, infos: &[TensorInfo], start: usize) -> (usize, u64) {
        let end = start + 1 + self.joined[start + 1..].iter().take_while(|joined| **joined).count();
        let sizes = (start..end).filter(|&i| self.wanted[i]).map(|i| infos[i].bytes());
        (end, sizes.fold(0, u64::saturating_add))
    }

    /// Returns the most bytes that are decoded at a time.
    fn most(&self) -> u64 {
        let infos = self.file.updates()[*self.updates.end()].manifest.tensors();
        let (mut at, mut most) = (0, batch_bytes());
        while at < infos.len() {
            let (end, bytes) = self.group(infos, at);
            (at, most) = (end, most.max(bytes));
        }
        most
    }

    /// Returns the tensor of a batch if it is large and can be decoded block by block.
    fn large(&self, batch: &Range<usize>) -> Result<Option<Large<'f, 'a>>> {
        let (first, last) = (*self.updates.start(), *self.updates.end());
        let entry = &self.file.updates()[last];
        let mut wanted = batch.clone().filter(|&i| self.wanted[i]);
        let (Some(tensor), None) = (wanted.next(), wanted.next()) else { return Ok(None) };
        let info = &entry.manifest.tensors()[tensor];
        if info.bytes() <= batch_bytes() || first != last {
            return Ok(None);
        }
        match (entry.header.is_delta(), self.base.get(&info.name)) {
            (false, _) => Large::of(self.file, last, tensor),
            (true, Some(base)) if (base.dtype(), base.shape()) == (info.dtype, &*info.shape) => {
                Large::of_delta(self.file, last, tensor, *base, self.sums.get(&info.name).copied())
            }
            _ => Ok(None),
        }
    }

    /// Decodes the wanted tensors of a batch.
    fn decode(&mut self, batch: Range<usize>) -> Result<VecDeque<Piece>> {
        let (last, updates) = (*self.updates.end(), self.file.updates());
        let mut earlier: Option<HashMap<String, (TensorBuf, TensorDigests)>> = None;
        for update in self.updates.clone() {
            let manifest = &updates[update].manifest;
            let is_same = manifest.id() == updates[last].manifest.id();
            // The next delta may have a digest for several tensors: all of the batch are its base.
            let wanted = (0..manifest.tensors().len()).map(|i| match update == last {
                true => batch.contains(&i) && self.wanted[i],
                false => batch.contains(&i) || !is_same,
            });
            let wanted: Vec<bool> = wanted.collect();
            let mut assembler =
                Assembler::with_memory(manifest, self.file.limits(), &wanted, &mut self.spare)?;
            let of_batch = if is_same { batch.clone() } else { 0..manifest.tensors().len() };
            for info in manifest.tensors()[of_batch].iter().filter(|_| updates[update].header.is_delta()) {
                let known = || TensorDigests { sum: self.sums.get(&info.name).copied(), hash: None };
                let base = match &earlier {
                    Some(earlier) => earlier.get(&info.name).map(|(base, digests)| (base.view(), *digests)),
                    None => self.base.get(&info.name).map(|base| (*base, known())),
                };
                if let Some((base, digests)) = base {
                    assembler.base_with_digests(&info.name, base, digests)?;
                }
            }
            self.file.apply(update, &mut assembler)?;
            let decoded = assembler.finish_with_digests()?;
            let used = earlier.take().into_iter().flatten();
            used.for_each(|(_, (tensor, _))| self.spare.give(tensor.into_data()));
            if update == last {
                let piece = |(tensor, data, digests): (u64, TensorBuf, TensorDigests)| Piece {
                    tensor,
                    start: 0,
                    data: data.into_data(),
                    sum: digests.sum,
                };
                return Ok(decoded.into_iter().map(piece).collect());
            }
            let named = |(number, tensor, digests): (u64, TensorBuf, TensorDigests)| {
                (manifest.tensors()[in_memory(number)].name.clone(), (tensor, digests))
            };
            earlier = Some(decoded.into_iter().map(named).collect());
        }
        Ok(VecDeque::new())
    }
}

impl Iterator for Pieces<'_, '_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.find();
        if found.is_err() {
            (self.next, self.large) = (self.wanted.len(), None);
        }
        found.transpose()
    }
}

/// Bytes of tensors that are decoded at a time.
pub(super) fn batch_bytes() -> u64 {
    BATCH.saturating_mul(rayon::current_num_threads() as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::block::{Block, Floats, Scope, Stored, Support, Values};
    use crate::compress::{Input, Options, compress, deltas};
    use crate::frame::{TensorInfo, UpdateHeader};
    use crate::limits::Limits;
    use crate::stream::{EncodeOptions, Encoder, Writer};
    use crate::tensor::Dtype;

    const LENS: [u64; 9] = [3, 0, 400, 5000, 1, 900, 2500, 7, 33];

    /// Tensors whose values depend on the step; half of them are the same in every step.
    fn tensors(step: usize) -> Vec<(String, TensorBuf)> {
        let value = |i: usize, x: u64| {
            let changes = i.is_multiple_of(2) && x.is_multiple_of(3);
            (x as f32 * 0.37 + i as f32).sin() + if changes { step as f32 * 0.01 } else { 0.0 }
        };
        let tensor = |(i, &len): (usize, &u64)| {
            let values: Vec<f32> = (0..len).map(|x| value(i, x)).collect();
            (format!("t{i}"), TensorBuf::from_f32(vec![len], &values).unwrap())
        };
        LENS.iter().enumerate().map(tensor).collect()
    }

    fn manifest() -> Arc<Manifest> {
        let infos =
            LENS.iter().enumerate().map(|(i, &len)| TensorInfo::new(format!("t{i}"), Dtype::F32, [len]));
        Arc::new(Manifest::new(infos.collect()).unwrap())
    }

    /// A stream of an update with each of these codecs; `delta` is made against the tensors of the step
    /// before.
    fn stream(codecs: &[&str], index: bool) -> Vec<u8> {
        let manifest = manifest();
        let options = EncodeOptions::default().with_part_bytes(7000).with_index(index);
        let mut writer = Writer::new(Vec::new(), options);
        for (step, spec) in codecs.iter().enumerate() {
            let (old, new) = (tensors(step.wrapping_sub(1)), tensors(step));
            let is_delta = spec.starts_with("delta");
            let pairs = (0..).zip(new.iter().zip(&old));
            let inputs: Vec<Input<'_>> = pairs
                .map(|(tensor, ((name, new), (_, old)))| Input {
                    tensor,
                    name,
                    view: new.view(),
                    base: is_delta.then(|| old.view()),
                })
                .collect();
            let compressing = Options::default().with_block_len(300);
            let codecs = vec![spec.parse().unwrap(); inputs.len()];
            let blocks = compress(&inputs, &codecs, &compressing, None).unwrap();
            let runs = deltas(&manifest, &inputs, &codecs, &blocks).unwrap();
            let header = UpdateHeader::default().with_step(step as u64).with_runs(runs);
            writer.update(&header, &manifest, &blocks).unwrap();
        }
        writer.finish().unwrap()
    }

    fn views(tensors: &[(String, TensorBuf)]) -> BTreeMap<String, TensorView<'_>> {
        tensors.iter().map(|(name, tensor)| (name.clone(), tensor.view())).collect()
    }

    /// Returns the bytes of each tensor, and the number of pieces.
    fn joined(pieces: Pieces<'_, '_>) -> Result<(BTreeMap<u64, Vec<u8>>, usize)> {
        let (mut pieces, mut all, mut count) = (pieces, BTreeMap::<u64, Vec<u8>>::new(), 0);
        while let Some(piece) = pieces.next().transpose()? {
            let tensor = all.entry(piece.tensor).or_default();
            assert_eq!(piece.start, tensor.len() as u64);
            tensor.extend(&piece.data);
            count += 1;
            // Later tensors must not depend on what is in the memory.
            pieces.reuse(vec![0xaa; piece.data.len()]);
        }
        Ok((all, count))
    }

    #[test]
    fn pieces_are_the_tensors_of_an_update() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        for codec in
            ["raw", "lossless", "natural", "topk:density=0.1", "topk:density=0.1,scope=global", "demo"]
        {
            for index in [true, false] {
                let bytes = stream(&[codec], index);
                let file = match index {
                    true => File::open(&bytes, Limits::default()).unwrap(),
                    false => File::scan(&bytes, Limits::default()).unwrap(),
                };
                let none = BTreeMap::new();
                for wanted in [&|_: &str| true, &|name: &str| name != "t3", &|name: &str| name == "t6"]
                    as [&(dyn Fn(&str) -> bool + Sync); 3]
                {
                    let expected = file.tensors(0, wanted, &none).unwrap();
                    let pieces = || joined(file.pieces(0, wanted, &none).unwrap()).unwrap();
                    let (found, count) = pool.install(pieces);
                    let expected: BTreeMap<_, _> =
                        expected.into_iter().map(|(number, t)| (number, t.into_data())).collect();
                    assert!(found == expected, "{codec}, index: {index}");
                    // Dense blocks of large tensors come a few at a time.
                    let is_dense = ["raw", "lossless", "natural"].contains(&codec);
                    assert!(!is_dense || count > expected.len(), "{codec}: {count} pieces");
                }
            }
        }
    }

    #[test]
    fn deltas_are_applied_in_turn_from_their_base_or_the_last_full_update() {
        let bytes = stream(&["lossless", "delta", "delta", "delta"], true);
        let file = File::open(&bytes, Limits::default()).unwrap();
        let data = |step| -> BTreeMap<u64, Vec<u8>> {
            (0..).zip(tensors(step).into_iter().map(|(_, tensor)| tensor.into_data())).collect()
        };
        let all = |_: &str| true;
        for update in 0..4 {
            for from in [None, Some(0), Some(2)] {
                let base = from.map(tensors).unwrap_or_default();
                let (found, _) = joined(file.pieces(update, all, &views(&base)).unwrap()).unwrap();
                assert!(found == data(update), "{update} from {from:?}");
            }
            let (one, _) =
                joined(file.pieces(update, |name| name == "t6", &BTreeMap::new()).unwrap()).unwrap();
            assert_eq!((one.len(), &one[&6]), (1, &data(update)[&6]));
        }
        let other = stream(&["delta"], true);
        let file = File::open(&other, Limits::default()).unwrap();
        for (base, error) in [(vec![], "unknown_reference"), (tensors(7), "checksum_mismatch")] {
            let found = joined(file.pieces(0, all, &views(&base)).unwrap());
            assert_eq!(found.unwrap_err().name(), error);
        }
    }

    #[test]
    fn pieces_end_with_an_error_and_stay_within_the_limits() {
        let mut bytes = stream(&["lossless"], true);
        let none = BTreeMap::new();
        let all = |limit| {
            let file = File::open(&bytes, Limits::default().with_max_alloc_bytes(limit)).unwrap();
            file.pieces(0, |_| true, &none).unwrap().find_map(Result::err).map(|e| e.name())
        };
        assert_eq!([all(35_000), all(1000)], [None, Some("limit")]);
        let file = File::open(&bytes, Limits::default()).unwrap();
        assert_eq!(file.pieces(1, |_| true, &none).err().unwrap().name(), "input");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        let file = File::open(&bytes, Limits::default()).unwrap();
        let mut pieces = file.pieces(0, |_| true, &none).unwrap();
        let error = pieces.by_ref().find_map(Result::err).unwrap();
        assert_eq!((error.name(), pieces.next().is_none()), ("checksum_mismatch", true));
    }

    /// A stream of deltas, each from a step to another; of a full update where there is no step before. Each
    /// tensor that changes has digests of its own: hashes or sums.
    fn chain(steps: &[(Option<usize>, usize)], hashed: bool) -> Vec<u8> {
        let manifest = manifest();
        let mut writer = Writer::new(Vec::new(), EncodeOptions::default());
        for &(from, to) in steps {
            let (old, new) = (tensors(from.unwrap_or(to)), tensors(to));
            let (mut inputs, mut hashes, mut sums) = (Vec::new(), Vec::new(), Vec::new());
            for (first, ((name, new), (_, old))) in (0..).zip(new.iter().zip(&old)) {
                if from.is_some() && old == new {
                    continue;
                }
                let (view, base) = (new.view(), from.map(|_| old.view()));
                inputs.push(Input { tensor: first, name, view, base });
                let info = &manifest.tensors()[first as usize];
                let [base, result] = [old, new].map(|of| run_digest(&[tensor_digest(of.view())]));
                hashes.push(Delta { first, more: 0, base, result });
                let [base, result] = [old, new].map(|of| info.sum_digest(of.view()).unwrap());
                sums.push(Delta { first, more: 0, base, result });
            }
            let codec = if from.is_some() { "delta" } else { "raw" };
            let codecs = vec![codec.parse().unwrap(); inputs.len()];
            // Blocks of one tensor each: those of several would need one digest.
            let each = inputs.chunks(1).zip(codecs.chunks(1));
            let blocks: Vec<_> = each
                .flat_map(|(input, codec)| compress(input, codec, &Options::default(), None).unwrap())
                .collect();
            let header = UpdateHeader::default().with_step(to as u64);
            let header = match (from, hashed) {
                (None, _) => header,
                (_, true) => header.with_delta(Some(hashes)),
                (_, false) => header.with_sums(Some(sums)),
            };
            writer.update(&header, &manifest, &blocks).unwrap();
        }
        writer.finish().unwrap()
    }

    /// Compares an update with the tensors of a step: all of them, and one large tensor.
    fn assert_step(bytes: &[u8], update: usize, from: Option<usize>, step: usize) {
        let file = File::open(bytes, Limits::default()).unwrap();
        let base = from.map(tensors).unwrap_or_default();
        let base = views(&base);
        let expected: BTreeMap<u64, Vec<u8>> =
            (0..).zip(tensors(step).into_iter().map(|(_, tensor)| tensor.into_data())).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        pool.install(|| {
            let (found, _) = joined(file.pieces(update, |_| true, &base).unwrap()).unwrap();
            assert!(found == expected, "{update} from {from:?}");
            let (one, _) = joined(file.pieces(update, |name| name == "t6", &base).unwrap()).unwrap();
            assert!(one.len() == 1 && one[&6] == expected[&6], "{update} from {from:?}");
        });
    }

    #[test]
    fn the_digests_of_tensors_tell_which_deltas_are_applied() {
        for hashed in [false, true] {
            let full = chain(&[(None, 0), (Some(0), 1), (Some(1), 2)], hashed);
            let deltas = chain(&[(Some(0), 1), (Some(1), 2), (Some(2), 3)], hashed);
            for update in 0..3 {
                for from in [None, Some(0), Some(1), Some(7)] {
                    assert_step(&full, update, from, update);
                }
                for from in 0..=update {
                    assert_step(&deltas, update, Some(from), update + 1);
                }
            }
        }
    }

    #[test]
    fn a_delta_that_changes_nothing_is_applied_after_those_before_it() {
        for hashed in [false, true] {
            let full = chain(&[(None, 1), (Some(1), 1)], hashed);
            assert_step(&full, 1, None, 1);
            let deltas = chain(&[(Some(0), 1), (Some(1), 1), (Some(1), 1), (Some(1), 2)], hashed);
            for from in [0, 1] {
                assert_step(&deltas, 1, Some(from), 1);
                assert_step(&deltas, 2, Some(from), 1);
                assert_step(&deltas, 3, Some(from), 2);
            }
        }
    }

    #[test]
    fn tensors_that_share_a_block_are_decoded_together() {
        let manifest = manifest();
        let bytes = vec![0; 4 * LENS[4..7].iter().sum::<u64>() as usize];
        let values = Values::Floats(Floats { stored: Stored::F32, bytes });
        let scope = Scope::Tensors { first: 4, count: 3 };
        let block = Block { scope, add: false, support: Support::All, values };
        let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.update(&mut bytes, &UpdateHeader::default(), &manifest, &[block]).unwrap();
        encoder.finish(&mut bytes);
        let file = File::open(&bytes, Limits::default()).unwrap();
        let none = BTreeMap::new();
        let found = file.pieces(0, |_| true, &none).unwrap().joined;
        assert_eq!(found, [false, false, false, false, false, true, true, false, false]);
    }

    #[test]
    fn an_update_without_tensors_has_no_pieces() {
        let manifest = Arc::new(Manifest::new(vec![]).unwrap());
        let mut writer = Writer::new(Vec::new(), EncodeOptions::default());
        writer.update(&UpdateHeader::default(), &manifest, &[] as &[Block]).unwrap();
        let bytes = writer.finish().unwrap();
        let file = File::open(&bytes, Limits::default()).unwrap();
        assert!(file.pieces(0, |_| true, &BTreeMap::new()).unwrap().next().is_none());
    }
}
