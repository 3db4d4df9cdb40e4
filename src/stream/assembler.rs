//! Dense tensors from the parts of an update.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rayon::prelude::*;

use crate::arch::pages;
use crate::arch::spare::Spare;
use crate::arch::storage::Storage;
use crate::block::{Block, RawBlock, Scope, Sets, Support, Target, ValuesId};
use crate::digest::{SumChange, SumDigest, TensorDigests};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{
    BlockOrder, Digest, Manifest, TensorInfo, UpdateHeader, UpdatePart, run_digest, tensor_digest,
};
use crate::limits::{Budget, Limits, MEMORY, check, check_allocation, in_memory};
use crate::stream::bases::{Base, ListedRuns, base_of, check_hashes, check_sums};
use crate::stream::buffers::{Buffer, copy, places, span};
use crate::tensor::{TensorBuf, TensorView};

/// Assembles the parts of one update into dense tensors.
///
/// Elements that the update does not contain are zero, or the base's elements if the update is a delta. The
/// caller's tensors never change: [`Assembler::finish`] returns new ones, after all parts are decoded and
/// every digest of a delta matches.
///
/// # Memory
/// Besides the tensors, 256 KiB per thread, up to 4 MiB of symbols per thread and coded plane, and the memory
/// of two decoded blocks per thread, or of more small ones with 2^17 elements together: 32 bytes per position
/// of a sparse block, up to 4 bytes per element of a dense block of several tensors; and the bytes of
/// unwanted tensors in blocks that also contain wanted ones. Most dense blocks of one tensor are decoded
/// straight into their elements. Each block may take [`Limits::max_alloc_bytes`], and so may all blocks
/// decoded at the same time.
///
/// Neighbouring tensors of less than 4 MiB share memory in pieces of 8 to 12 MiB (Linux), each freed with the
/// last of its tensors: clone what is kept longer than the others.
pub struct Assembler<'b> {
    manifest: Arc<Manifest>,
    /// Buffers of the wanted tensors, and of those that share a digest with one; `None` for the others.
    tensors: Vec<Option<Buffer<'b>>>,
    /// Tensors that are assembled for a digest only.
    extra: BTreeSet<u64>,
    /// Tensors whose elements begin as those of the base.
    begun: BTreeSet<u64>,
    /// Bytes that may still be allocated for such tensors.
    alloc_left: u64,
    touched: Vec<bool>,
    base: BTreeMap<String, Base<'b>>,
    /// Whether the update is a delta.
    is_delta: bool,
    /// The runs of tensors that a delta changes.
    hashed: ListedRuns<Digest>,
    summed: ListedRuns<SumDigest>,
    /// Sums of the changes of each tensor; `None` if those of one of its blocks are not known.
    changes: Vec<Option<SumDigest>>,
    applied: Applied,
}

/// Parts of the update that have been applied.
enum Applied {
    Nothing,
    /// The parts before `next_part`. The next part must have the header of the first, and its blocks continue
    /// `order`.
    Parts {
        first: UpdateHeader,
        next_part: u64,
        order: BlockOrder,
    },
    Complete,
    /// A part failed half-way: the elements are arbitrary.
    Failed,
}

impl<'b> Assembler<'b> {
    /// Returns an assembler of the tensors of `manifest` whose names `wanted` accepts.
    ///
    /// # Errors
    /// [`Error::Limit`] if their bytes exceed [`Limits::max_alloc_bytes`].
    pub fn new(manifest: &Arc<Manifest>, limits: &Limits, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let wanted: Vec<bool> = manifest.tensors().iter().map(|t| wanted(&t.name)).collect();
        Self::with_buffers_of(manifest, limits, &wanted, |lens| {
            // A tensor without blocks costs address space only.
            Storage::zeros(lens).into_iter().map(|data| (data, u64::MAX)).collect()
        })
    }

    /// As [`Self::new`], with a choice for each tensor, in memory that `spare` lends if it has enough.
    pub(crate) fn with_memory(
        manifest: &Arc<Manifest>,
        limits: &Limits,
        wanted: &[bool],
        spare: &mut Spare,
    ) -> Result<Self> {
        let mut buffer = |&len: &usize| match spare.take(len) {
            Some(memory) => (pages::of_len(memory, len).into(), 0),
            None => (pages::zeros(len).into(), u64::MAX),
        };
        Self::with_buffers_of(manifest, limits, wanted, |lens| lens.iter().map(&mut buffer).collect())
    }

    /// Returns an assembler of the wanted tensors in what `memory` returns: memory of these lengths, and how
    /// many elements of each are zeros already.
    fn with_buffers_of(
        manifest: &Arc<Manifest>,
        limits: &Limits,
        wanted: &[bool],
        memory: impl FnOnce(&[usize]) -> Vec<(Storage, u64)>,
    ) -> Result<Self> {
        let tensors = || manifest.tensors().iter().zip(wanted);
        let sizes = || tensors().filter(|(_, wanted)| **wanted).map(|(info, _)| info.bytes());
        let bytes = sizes().fold(0, u64::saturating_add);
        check(MEMORY, bytes, limits.max_alloc_bytes, 0)?;
        check_allocation(bytes, 0)?;
        let mut memory = memory(&sizes().map(in_memory).collect::<Vec<_>>()).into_iter();
        let mut buffer = |info: &TensorInfo| {
            let (data, ready) = memory.next()?;
            Some(Buffer::new(data, info.dtype, ready))
        };
        Ok(Self {
            tensors: tensors().map(|(info, wanted)| wanted.then(|| buffer(info)).flatten()).collect(),
            extra: BTreeSet::new(),
            begun: BTreeSet::new(),
            alloc_left: limits.max_alloc_bytes - bytes,
            touched: vec![false; wanted.len()],
            manifest: Arc::clone(manifest),
            base: BTreeMap::new(),
            is_delta: false,
            hashed: ListedRuns::default(),
            summed: ListedRuns::default(),
            changes: vec![Some(SumDigest::ZERO); wanted.len()],
            applied: Applied::Nothing,
        })
    }

    /// Returns an assembler that reuses the memory of `buffers`, for example of tensors from an earlier
    /// [`Assembler::finish`]. The numbers are the tensors' numbers in `manifest`; the contents do not matter.
    ///
    /// Reuse is the fastest way to decode a series of updates: new pages from the system cost more than all
    /// other work on a sparse update.
    ///
    /// # Errors
    /// [`Error::Input`] if `manifest` has no such tensor, or has another type or shape for it.
    pub fn with_buffers(
        manifest: &Arc<Manifest>,
        buffers: impl IntoIterator<Item = (u64, TensorBuf)>,
    ) -> Result<Self> {
        let mut assembler = Self::new(manifest, &Limits::default(), |_| false)?;
        for (number, buffer) in buffers {
            let info = usize::try_from(number).ok().and_then(|n| manifest.tensors().get(n));
            if info.is_none_or(|i| i.dtype != buffer.dtype() || i.shape != buffer.shape()) {
                return Err(
                    Error::input(InputErrorKind::Mismatch { what: "buffer and manifest" }).in_tensor(number)
                );
            }
            let dtype = buffer.dtype();
            assembler.tensors[in_memory(number)] = Some(Buffer::new(buffer.into_storage(), dtype, 0));
        }
        Ok(assembler)
    }

    /// Sets the base of a delta for the tensor `name`. A name that the manifest does not contain is ignored.
    ///
    /// # Errors
    /// [`Error::Input`] if the manifest has another type or shape for the tensor.
    pub fn base(&mut self, name: &str, tensor: TensorView<'b>) -> Result<()> {
        self.base_with_digests(name, tensor, TensorDigests::default())
    }

    /// As [`Self::base`], for a tensor some of whose digests the caller knows, as
    /// [`Self::finish_with_digests`] returned them: they are not computed again.
    ///
    /// # Errors
    /// As [`Self::base`].
    pub fn base_with_digests(
        &mut self,
        name: &str,
        tensor: TensorView<'b>,
        digests: TensorDigests,
    ) -> Result<()> {
        let Some(number) = self.manifest.find(name) else { return Ok(()) };
        let info = &self.manifest.tensors()[in_memory(number)];
        if info.dtype != tensor.dtype() || info.shape != tensor.shape() {
            return Err(Error::input(InputErrorKind::BaseOfAnotherKind).in_tensor(number));
        }
        self.base.insert(name.to_owned(), Base { tensor, digests });
        Ok(())
    }

    /// Applies a part. Its blocks are decoded in parallel and applied in order.
    ///
    /// # Errors
    /// The errors of [`UpdatePart::decode`]; [`Error::Input`] if the part belongs to another manifest, is not
    /// the next of its update, needs a base that is missing or differs, or needs a model. If a part fails
    /// after it was accepted as the next, no further part is taken and [`Self::finish`] fails.
    pub fn apply(&mut self, part: &UpdatePart<'_>) -> Result<()> {
        if part.manifest.id() != self.manifest.id() {
            return Err(Error::input(InputErrorKind::Mismatch { what: "manifests" }));
        }
        self.follow(part)?;
        let applied = self.apply_part(part);
        match applied {
            Ok(()) if part.last => self.applied = Applied::Complete,
            Ok(()) => {}
            Err(_) => self.applied = Applied::Failed,
        }
        applied
    }

    fn apply_part(&mut self, part: &UpdatePart<'_>) -> Result<()> {
        self.take_base(&part.header)?;
        let wanted: Vec<usize> =
            (0..part.blocks.len()).filter(|&i| self.wants(part.blocks[i].scope)).collect();
        let mut budget = part.budget();
        let mut rest = wanted.as_slice();
        while !rest.is_empty() {
            budget = budget.with_memory_renewed();
            let (batch, later) = rest.split_at(batch_len(part, rest));
            let before = budget.copied();
            if let Err(error) = self.apply_batch(part, batch, &budget) {
                // Which block finds too few elements left depends on the threads' timing: the error is that
                // of one block after another.
                let alone = if budget.lacks_elements() { batch } else { &[] };
                for number in alone.chunks(1) {
                    self.apply_batch(part, number, &before.with_memory_renewed())?;
                }
                return Err(error);
            }
            rest = later;
        }
        Ok(())
    }

    /// Applies blocks that are all dense in one tensor or all not.
    fn apply_batch(&mut self, part: &UpdatePart<'_>, batch: &[usize], budget: &Budget) -> Result<()> {
        match batch.iter().all(|&i| part.blocks[i].is_dense_in_one()) {
            true => self.fill_blocks(part, batch, budget),
            false => self.apply_blocks(part, batch, budget),
        }
    }

    /// Decodes blocks that are dense in one tensor in parallel, straight into their elements. The elements of
    /// a block that fails become zero.
    fn fill_blocks(&mut self, part: &UpdatePart<'_>, batch: &[usize], budget: &Budget) -> Result<()> {
        for &i in batch {
            let (number, start, len) = span(&part.blocks[i]);
            (self.touched[number], self.changes[number]) = (true, None);
            if let Some(buffer) = &mut self.tensors[number] {
                buffer.prepare(start, start + len, true);
            }
        }
        let places = places(&mut self.tensors, part, batch);
        let filled: Vec<Result<()>> = batch
            .par_iter()
            .zip(places)
            .map(|(&i, mut targets)| {
                let Some(Target { data: place, .. }) = targets.first_mut() else { return Ok(()) };
                let filled = budget.decode_one(|budget| part.decode_into(i, budget, place));
                filled.inspect_err(|_| place.fill(0))
            })
            .collect();
        filled.into_iter().collect()
    }

    /// Decodes blocks in parallel. Blocks that replace elements are disjoint and are applied in parallel,
    /// too; the others are applied in order.
    fn apply_blocks(&mut self, part: &UpdatePart<'_>, batch: &[usize], budget: &Budget) -> Result<()> {
        if batch.iter().all(|&i| self.is_apart(&part.blocks[i])) {
            return self.apply_apart(part, batch, budget);
        }
        let decode = |&i: &usize| {
            let budget = budget.for_one();
            (part.decode(i, &budget), budget)
        };
        let decoded: Vec<(Result<Block>, Budget)> = batch.par_iter().map(decode).collect();
        for (&i, (block, budget)) in batch.iter().zip(decoded) {
            let applied = block.and_then(|block| self.apply_block(&block, part, i, &budget));
            let applied = match applied {
                // Not in parallel, as these blocks are held until they are applied.
                Err(e) if e.is_memory() => {
                    let alone = budget.renewed();
                    part.decode(i, &alone).and_then(|block| self.apply_block(&block, part, i, &alone))
                }
                applied => applied,
            };
            applied.map_err(|e| part.place(e, i))?;
        }
        Ok(())
    }

    /// Whether no other block of the update changes the bytes of this one's elements, and all its tensors are
    /// assembled.
    fn is_apart(&self, raw: &RawBlock<'_>) -> bool {
        let first = in_memory(raw.scope.first());
        let tensors = &self.tensors[first..first + raw.space.lens.len()];
        !raw.add && raw.space.dtype.bits() >= 8 && tensors.iter().all(Option::is_some)
    }

    /// Decodes and applies disjoint blocks in parallel.
    fn apply_apart(&mut self, part: &UpdatePart<'_>, batch: &[usize], budget: &Budget) -> Result<()> {
        // Bases that are copied piece by piece while a block is applied.
        let mut copied: Vec<Option<Vec<&[u8]>>> = Vec::with_capacity(batch.len());
        for &i in batch {
            let raw = &part.blocks[i];
            let (first, start, _) = span(raw);
            let based = Support::needs_base(raw.support_id, raw.support);
            let buffers = || self.tensors[first..].iter().flatten().zip(&raw.space.lens);
            let bases = buffers().map(|(buffer, &len)| buffer.base_of(start, len).filter(|_| based));
            let bases: Option<Vec<&[u8]>> = bases.collect();
            let buffers = self.tensors[first..].iter_mut().flatten().zip(&raw.space.lens);
            buffers.for_each(|(buffer, len)| buffer.prepare(start, start + len, bases.is_some()));
            self.touched[first..first + raw.space.lens.len()].fill(true);
            copied.push(bases);
        }
        let places = places(&mut self.tensors, part, batch);
        let (infos, summed) = (Arc::clone(&self.manifest), &self.summed);
        let applied: Vec<Result<Option<Vec<SumDigest>>>> = batch
            .par_iter()
            .zip(places)
            .zip(copied)
            .map_init(Vec::new, |memory, ((&i, mut targets), bases)| {
                let raw = &part.blocks[i];
                let applied = budget.decode_one(|budget| {
                    if raw.is_dense() {
                        return part.decode_into_each(i, budget, &mut targets, memory).map(|()| None);
                    }
                    let block = part.decode(i, budget)?;
                    let applied = match &bases {
                        Some(bases) => {
                            let infos = infos.tensors().get(in_memory(raw.scope.first())..);
                            let infos = infos.filter(|_| summed.contains(raw.scope.first()));
                            apply_to_copies(&block, raw, infos, part.sets(), bases, &mut targets)
                        }
                        None => block.apply(&raw.space, part.sets(), budget, &mut targets).map(|()| None),
                    };
                    applied.map_err(|e| e.not_before(raw.offset))
                });
                applied.map_err(|e| part.place(e, i))
            })
            .collect();
        for (&i, sums) in batch.iter().zip(applied) {
            let (first, sums) = (in_memory(part.blocks[i].scope.first()), sums?);
            for (number, change) in
                self.changes[first..].iter_mut().take(part.blocks[i].space.lens.len()).enumerate()
            {
                *change = change.zip(sums.as_ref()).map(|(change, sums)| change + sums[number]);
            }
        }
        Ok(())
    }

    /// Checks that `part` is the next of the update, and that its blocks come after the earlier ones.
    fn follow(&mut self, part: &UpdatePart<'_>) -> Result<()> {
        let mismatch = || Error::input(InputErrorKind::Mismatch { what: "part and update" });
        let (first, next_part, mut order) = match &self.applied {
            Applied::Nothing => (part.header.without_details(), 0, BlockOrder::default()),
            Applied::Parts { first, next_part, order } => (first.clone(), *next_part, order.clone()),
            Applied::Complete | Applied::Failed => return Err(mismatch()),
        };
        let follows = part.part == next_part && first.same_update(&part.header);
        if !follows || !part.blocks.iter().all(|b| order.accept(b.scope, b.add)) {
            return Err(mismatch());
        }
        self.applied = Applied::Parts { first, next_part: next_part + 1, order };
        Ok(())
    }

    fn wants(&self, scope: Scope) -> bool {
        (scope.first()..scope.first() + scope.tensors()).any(|t| self.is_wanted(t))
    }

    /// Whether a tensor of the manifest is assembled.
    pub(crate) fn is_wanted(&self, tensor: u64) -> bool {
        self.tensors[in_memory(tensor)].is_some()
    }

    /// Copies the base into each tensor of a delta, and checks that all parts list the same digests (DEL-5,
    /// SUM-5).
    fn take_base(&mut self, header: &UpdateHeader) -> Result<()> {
        // A delta that touches no wanted tensor is a delta, too.
        self.is_delta |= header.is_delta();
        let is_wanted = |n: u64| self.tensors[in_memory(n)].is_some() && !self.extra.contains(&n);
        let hashed = self.hashed.add(header.delta.as_deref().unwrap_or_default(), is_wanted)?;
        let summed = self.summed.add(header.sums.as_deref().unwrap_or_default(), is_wanted)?;
        let infos = Arc::clone(&self.manifest);
        check_hashes(&hashed, |number| base_of(&self.base, &infos, number))?;
        for (number, sum) in check_sums(&summed, &infos, |number| base_of(&self.base, &infos, number))? {
            if let Some(base) = self.base.get_mut(&infos.tensors()[in_memory(number)].name) {
                base.digests.sum = Some(sum);
            }
        }
        let hashed = hashed.iter().map(|run| (run.first, run.last()));
        let summed = summed.iter().map(|run| (run.first, run.last()));
        for number in hashed.chain(summed).flat_map(|(first, last)| first..=last) {
            // The runs of one kind of digests can overlap those of the other.
            if !self.begun.insert(number) {
                continue;
            }
            let tensor = base_of(&self.base, &infos, number)?.tensor;
            let number = in_memory(number);
            let len = tensor.data().len() as u64;
            if self.tensors[number].is_none() {
                check(MEMORY, len, self.alloc_left, 0)?;
                self.alloc_left -= len;
                self.extra.insert(number as u64);
            }
            let buffer = self.tensors[number].get_or_insert_with(|| {
                Buffer::new(pages::zeros(tensor.data().len()).into(), tensor.dtype(), u64::MAX)
            });
            buffer.begin(tensor.data());
        }
        Ok(())
    }

    fn apply_block(
        &mut self,
        block: &Block,
        part: &UpdatePart<'_>,
        number: usize,
        budget: &Budget,
    ) -> Result<()> {
        let raw = &part.blocks[number];
        let first = in_memory(raw.scope.first());
        let start = match raw.scope {
            Scope::Range { start, .. } => start,
            _ => 0,
        };
        self.touched[first..first + raw.space.lens.len()].fill(true);
        self.changes[first..first + raw.space.lens.len()].fill(None);
        // Unwanted tensors of the scope are decoded into temporary buffers.
        for (buffer, &len) in self.tensors[first..].iter().zip(&raw.space.lens) {
            if buffer.is_none() {
                budget.reserve_bytes(raw.space.dtype.bytes_for(len).unwrap_or(u64::MAX), raw.offset)?;
            }
        }
        let buffers = &mut self.tensors[first..first + raw.space.lens.len()];
        let overwrites = block.support == Support::All && !block.add && raw.values_id != ValuesId::ULP;
        let ready: Vec<u64> = buffers.iter().flatten().map(|buffer| buffer.ready).collect();
        for (buffer, &len) in buffers.iter_mut().zip(&raw.space.lens) {
            if let Some(buffer) = buffer {
                buffer.prepare(start, start + len, overwrites);
            }
        }
        let mut spare: Vec<Vec<u8>> = buffers
            .iter()
            .zip(&raw.space.lens)
            .filter(|(buffer, _)| buffer.is_none())
            .map(|(_, &len)| vec![0; in_memory(raw.space.dtype.bytes_for(len).unwrap_or(0))])
            .collect();
        let mut spare = spare.iter_mut();
        let mut targets = Vec::with_capacity(raw.space.lens.len());
        for (buffer, &len) in buffers.iter_mut().zip(&raw.space.lens) {
            let own = buffer.as_mut().map(|b| &mut *b.data);
            let data = own.or_else(|| spare.next().map(Vec::as_mut_slice));
            let data = data.ok_or(Error::inconsistent("targets of a block"))?;
            targets.push(Target { data, start, len });
        }
        let applied = block.apply(&raw.space, part.sets(), budget, &mut targets);
        if applied.is_err() {
            // A block that fails overwrites nothing.
            buffers.iter_mut().flatten().zip(ready).for_each(|(buffer, ready)| buffer.ready = ready);
        }
        applied.map_err(|e| e.not_before(raw.offset))
    }

    /// Whether the last part has been applied.
    pub fn is_complete(&self) -> bool {
        matches!(self.applied, Applied::Complete)
    }

    /// Returns the wanted tensors with their numbers in the manifest.
    ///
    /// # Errors
    /// [`Error::Input`] if the last part is missing or a part failed, or if a delta's result differs from its
    /// sender's.
    pub fn finish(self) -> Result<Vec<(u64, TensorBuf)>> {
        Ok(self.finish_with_digests()?.into_iter().map(|(number, tensor, _)| (number, tensor)).collect())
    }

    /// As [`Self::finish`], with the digests of the tensors that a delta lists, of the kinds that were
    /// computed to verify it, and of those that it leaves as they are, if the caller gave them.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn finish_with_digests(mut self) -> Result<Vec<(u64, TensorBuf, TensorDigests)>> {
        if !self.is_complete() {
            return Err(Error::input(InputErrorKind::IncompleteUpdate));
        }
        let infos = Arc::clone(&self.manifest);
        let mut out = Vec::new();
        for (number, info) in infos.tensors().iter().enumerate() {
            let Some(mut buffer) = self.tensors[number].take() else { continue };
            buffer.prepare(u64::MAX, u64::MAX, false);
            let (number, mut data, mut digests) = (number as u64, buffer.data, TensorDigests::default());
            // A delta contains only the tensors that changed: the others are copied from the base.
            if self.is_delta && !self.begun.contains(&number) {
                let base = base_of(&self.base, &infos, number)?;
                copy(base.tensor.data(), &mut data);
                digests = base.digests;
            }
            out.push((number, TensorBuf::of(info.dtype, info.shape.clone(), data)?, digests));
        }
        let digested = out.par_iter_mut().map(|(number, tensor, digests)| {
            if self.hashed.contains(*number) {
                digests.hash = Some(tensor_digest(tensor.view()));
            }
            if self.summed.contains(*number) {
                let base = base_of(&self.base, &infos, *number)?;
                let info = &infos.tensors()[in_memory(*number)];
                digests.sum = Some(match (base.digests.sum, self.changes[in_memory(*number)]) {
                    (Some(sum), Some(change)) => sum + info.weighted(change),
                    (Some(sum), None) => info.sum_after(sum, base.tensor, tensor.view())?,
                    (None, _) => info.sum_digest(tensor.view())?,
                });
            }
            Ok(())
        });
        digested.collect::<Vec<_>>().into_iter().collect::<Result<()>>()?;
        let of_run = |first: u64, more: u64| {
            let start = out.partition_point(|(number, ..)| *number < first);
            out[start..=start + in_memory(more)].iter().map(|(.., digests)| digests)
        };
        for run in self.hashed.iter() {
            let digests: Vec<Digest> = of_run(run.first, run.more).filter_map(|d| d.hash).collect();
            if run_digest(&digests) != run.result {
                return Err(Error::input(InputErrorKind::ResultMismatch).in_tensor(run.first));
            }
        }
        for run in self.summed.iter() {
            if of_run(run.first, run.more).filter_map(|d| d.sum).sum::<SumDigest>() != run.result {
                return Err(Error::input(InputErrorKind::ResultMismatch).in_tensor(run.first));
            }
        }
        out.retain(|(number, ..)| !self.extra.contains(number));
        Ok(out)
    }

    /// Whether any block contained elements of `tensor`.
    pub fn touches(&self, tensor: u64) -> bool {
        usize::try_from(tensor).ok().and_then(|t| self.touched.get(t)).copied().unwrap_or(false)
    }
}

/// Elements and bytes of small blocks that are decoded together, however many blocks they are.
const TOGETHER: u64 = 1 << 17;

/// Returns how many of the blocks `numbers` of a part, of which there is at least one, are decoded together.
fn batch_len(part: &UpdatePart<'_>, numbers: &[usize]) -> usize {
    let is_filled = |number: usize| part.blocks[number].is_dense_in_one();
    let first = is_filled(numbers[0]);
    // Memory is bounded by a few blocks at a time: only those that are filled in place take none.
    let most = rayon::current_num_threads().max(1) * if first { 8 } else { 2 };
    let mut weight = 0u64;
    let is_next = |&(before, &number): &(usize, &usize)| {
        let raw = &part.blocks[number];
        weight = weight.saturating_add(raw.space.len()).saturating_add(raw.len);
        is_filled(number) == first && (before < most || weight <= TOGETHER)
    };
    numbers.iter().enumerate().take_while(is_next).count()
}

/// Applies a block to copies of `bases`. Returns what its changes add to the sum of each tensor of its scope,
/// if they are so few that a sum of all elements would take longer. `infos`: these tensors, if sums are
/// wanted.
fn apply_to_copies(
    block: &Block,
    raw: &RawBlock<'_>,
    infos: Option<&[TensorInfo]>,
    sets: &Sets,
    bases: &[&[u8]],
    targets: &mut [Target<'_>],
) -> Result<Option<Vec<SumDigest>>> {
    let (_, start, len) = span(raw);
    let count = block.count(&raw.space, sets)?;
    let Some(infos) = infos.filter(|_| count.saturating_mul(FEW) <= len) else {
        return block.apply_to_copies(&raw.space, bases, targets, |_, _, _, _| ()).map(|()| None);
    };
    let changes = infos.iter().take(targets.len()).map(TensorInfo::sum_change);
    let mut changes = changes.collect::<Result<Vec<_>>>()?;
    block.apply_to_copies(&raw.space, bases, targets, |target, element, old, new| {
        changes[target].add_element(start + element, old, new);
    })?;
    Ok(Some(changes.into_iter().map(SumChange::finish).collect()))
}

/// Up to one changed element in this many, the sum of the changes takes less time than that of all elements.
/// They are at hand here, while a comparison of two tensors has to find them first (`frame/sums.rs`).
const FEW: u64 = 32;

#[cfg(test)]
mod tests;
