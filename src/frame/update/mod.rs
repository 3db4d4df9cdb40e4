//! Updates: the data of one sender at one step (spec, sections 4.2 and 6).

mod attributes;
mod parallel;
mod tables;
mod write;

pub use attributes::{AttributeId, Delta, DeltaRuns};
pub(crate) use write::UpdateWriter;

use std::sync::Arc;

use crate::arch::pages;
use crate::bits::{Cursor, put_varint};
use crate::block::space::Surroundings;
use crate::block::{Block, IndexSpace, RawBlock, Scope, Sets, Target, ValuesId, WireBlock};
use crate::codes::{Decoder, Table};
use crate::digest::SumDigest;
use crate::error::{Error, FormatErrorKind, Result};
use crate::frame::{Manifest, ManifestId};
use crate::limits::{Budget, Limits, check, in_memory};

/// Sender, step and kind of an update.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct UpdateHeader {
    /// Number of optimizer updates before this one.
    pub step: u64,
    /// Number of communication rounds before this one.
    pub round: u64,
    /// Number of the sender.
    pub sender: u64,
    /// Number of senders, 0 if unknown.
    pub world: u64,
    /// Number of senders whose updates are in this one, 0 if unknown.
    pub contributors: u64,
    /// Number of local steps that the update covers, 0 if unknown.
    pub inner_steps: u64,
    /// Whether the update is a sum or a mean of several.
    pub reduction: Reduction,
    /// Compression method, for people; at most 65,535 bytes are written.
    pub label: String,
    /// Tensors that a delta changes, with their digests before and after; `None` if the update is not a
    /// delta.
    pub delta: Option<Vec<Delta>>,
    /// The same with sum digests. An update with these or with [`Self::delta`] is a delta; a receiver
    /// compares both if it has both.
    pub sums: Option<Vec<Delta<SumDigest>>>,
}

macro_rules! with {
    ($($name:ident $field:ident $type:ty)*) => { $(
        #[doc = concat!("Sets [`UpdateHeader::", stringify!($field), "`].")]
        #[must_use]
        pub fn $name(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )* };
}

impl UpdateHeader {
    with! {
        with_step step u64
        with_round round u64
        with_sender sender u64
        with_world world u64
        with_contributors contributors u64
        with_inner_steps inner_steps u64
        with_reduction reduction Reduction
        with_label label String
        with_delta delta Option<Vec<Delta>>
        with_sums sums Option<Vec<Delta<SumDigest>>>
    }

    /// Sets [`UpdateHeader::delta`] and [`UpdateHeader::sums`].
    #[must_use]
    pub fn with_runs(self, runs: DeltaRuns) -> Self {
        self.with_delta(runs.hashed).with_sums(runs.summed)
    }

    /// Whether the update changes a base instead of starting from zeros.
    pub fn is_delta(&self) -> bool {
        self.delta.is_some() || self.sums.is_some()
    }

    /// Returns the runs of a delta, with either kind of digests: the first and the last tensor of each.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        let hashed = self.delta.iter().flatten().map(|run| (run.first, run.last()));
        hashed.chain(self.sums.iter().flatten().map(|run| (run.first, run.last())))
    }

    /// Whether a tensor is in a run of the delta.
    pub fn lists(&self, tensor: u64) -> bool {
        self.delta.as_ref().is_some_and(|runs| Delta::find(runs, tensor).is_some())
            || self.sums.as_ref().is_some_and(|runs| Delta::find(runs, tensor).is_some())
    }

    /// Returns the fields that later parts are compared with: without the digests of a delta, which may be
    /// many.
    pub(crate) fn without_details(&self) -> Self {
        let (delta, sums) = (self.delta.as_ref().map(|_| Vec::new()), self.sums.as_ref().map(|_| Vec::new()));
        let &Self { step, round, sender, world, contributors, inner_steps, reduction, .. } = self;
        let label = String::new();
        Self { step, round, sender, world, contributors, inner_steps, reduction, label, delta, sums }
    }

    /// Whether two parts may belong to one update (UPD-3).
    pub(crate) fn same_update(&self, other: &Self) -> bool {
        let key = |h: &Self| {
            let digests = (h.delta.is_some(), h.sums.is_some());
            (h.step, h.round, h.sender, h.world, h.contributors, h.inner_steps, h.reduction, digests)
        };
        key(self) == key(other)
    }
}

/// Reduction that an update is the result of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Reduction {
    /// One sender's own update.
    #[default]
    None = 0,
    /// Sum of several senders' updates.
    Sum = 1,
    /// Mean of several senders' updates.
    Mean = 2,
}

/// One part of an update. Its blocks are located but not decoded.
#[derive(Debug, Clone)]
pub struct UpdatePart<'a> {
    /// Header of the update.
    pub header: UpdateHeader,
    /// Manifest that the update refers to.
    pub manifest: Arc<Manifest>,
    /// Number of this part, the first is 0.
    pub part: u64,
    /// Whether this is the last part.
    pub last: bool,
    /// Bytes of the body before the blocks.
    pub head_len: u64,
    /// Blocks, in order.
    pub blocks: Vec<RawBlock<'a>>,
    /// Number of its frame in the stream, for errors; `None` if the stream was not read in order.
    pub(crate) frame: Option<u64>,
    /// Number of each block in the part, for errors; empty if all blocks were read.
    pub(crate) numbers: Vec<u64>,
    tables: Vec<Table>,
    sets: Arc<Sets>,
    limits: Limits,
}

/// Fields before the blocks.
pub(crate) struct Head {
    pub(crate) manifest: ManifestId,
    header: UpdateHeader,
    part: u64,
    tables: Vec<Table>,
    block_count: u64,
}

const MAX_TABLES: u64 = 64;

/// Index spaces of the blocks of one part. It counts the tensors and the elements that their scopes span,
/// because work on a block may take time for each of them (LIM-3).
struct Spaces<'a> {
    manifest: &'a Manifest,
    limits: &'a Limits,
    tensors: u64,
    elements: u64,
}

impl<'a> Spaces<'a> {
    /// Counts the tensors in the runs of a delta.
    fn new(manifest: &'a Manifest, limits: &'a Limits, head: &UpdateHeader, offset: u64) -> Result<Self> {
        let all = manifest.tensors().len() as u64;
        let runs = head.runs().map(|(first, last)| (last - first).saturating_add(1).min(all));
        let tensors = runs.fold(0, u64::saturating_add);
        check("max_blocks", tensors, limits.max_blocks, offset)?;
        Ok(Self { manifest, limits, tensors, elements: 0 })
    }

    /// Returns the space of the next block's scope, which stands at `offset`.
    fn of(&mut self, scope: Scope, offset: u64) -> Result<IndexSpace> {
        let tensors = scope.tensors().min(self.manifest.tensors().len() as u64);
        self.tensors = self.tensors.saturating_add(tensors);
        check("max_blocks", self.tensors, self.limits.max_blocks, offset)?;
        let space = self.manifest.space(scope, offset)?;
        self.elements = self.elements.saturating_add(space.len());
        check("max_elements", self.elements, self.limits.max_elements, offset)?;
        Ok(space)
    }
}

fn read_head(cursor: &mut Cursor<'_>, limits: &Limits) -> Result<Head> {
    let manifest = ManifestId(cursor.array()?);
    let mut header = UpdateHeader {
        step: cursor.varint()?,
        round: cursor.varint()?,
        sender: cursor.varint()?,
        world: cursor.varint()?,
        contributors: cursor.varint()?,
        inner_steps: cursor.varint()?,
        ..UpdateHeader::default()
    };
    header.reduction = match cursor.u8_in("reduction", 0, 2)? {
        0 => Reduction::None,
        1 => Reduction::Sum,
        _ => Reduction::Mean,
    };
    let part = cursor.varint()?;
    attributes::read(cursor, &mut header)?;
    let table_count = cursor.varint_in("table_count", 0, MAX_TABLES)?;
    let tables = (0..table_count).map(|_| Table::read(cursor)).collect::<Result<_>>()?;
    let count_offset = cursor.offset();
    let block_count = cursor.varint()?;
    check("max_blocks", block_count, limits.max_blocks, count_offset)?;
    Ok(Head { manifest, header, part, tables, block_count })
}

fn write_head(out: &mut Vec<u8>, header: &UpdateHeader, manifest: ManifestId, part: u64, runs: &DeltaRuns) {
    out.extend_from_slice(&manifest.0);
    let fields =
        [header.step, header.round, header.sender, header.world, header.contributors, header.inner_steps];
    fields.iter().for_each(|&v| put_varint(out, v));
    out.push(header.reduction as u8);
    put_varint(out, part);
    attributes::write(out, &header.label, runs);
}

impl<'a> UpdatePart<'a> {
    /// Reads a body at `offset` and locates its blocks without decoding them.
    pub(crate) fn read(
        body: &'a [u8],
        offset: u64,
        last: bool,
        limits: &Limits,
        sets: &Arc<Sets>,
        manifest_of: impl FnOnce(ManifestId) -> Option<Arc<Manifest>>,
    ) -> Result<Self> {
        let mut cursor = Cursor::new(body, offset, "update");
        let head = read_head(&mut cursor, limits)?;
        let unknown = Error::format(FormatErrorKind::UnknownReference { field: "manifest" }, offset);
        let manifest = manifest_of(head.manifest).ok_or(unknown)?;
        let head_len = cursor.offset() - offset;
        let mut blocks = Vec::new();
        let mut spaces = Spaces::new(&manifest, limits, &head.header, offset)?;
        for number in 0..head.block_count {
            let block = RawBlock::read(&mut cursor, |scope, at| spaces.of(scope, at));
            blocks.push(block.map_err(|e| e.in_block(number))?);
        }
        cursor.finish()?;
        let part = Self {
            header: head.header,
            manifest,
            part: head.part,
            last,
            head_len,
            blocks,
            tables: head.tables,
            frame: None,
            numbers: Vec::new(),
            sets: Arc::clone(sets),
            limits: limits.clone(),
        };
        part.check_delta(offset)?;
        Ok(part)
    }

    /// Reads the fields before the blocks of a part whose `head` stands at `offset`.
    pub(crate) fn read_head_only(
        head: &[u8],
        offset: u64,
        limits: &Limits,
        sets: &Arc<Sets>,
        manifest_of: impl FnOnce(ManifestId) -> Option<Arc<Manifest>>,
    ) -> Result<Self> {
        Self::read_blocks(head, offset, &[], false, limits, sets, manifest_of)
    }

    /// Reads a part with only some of its blocks, from its head and the blocks' bytes, each with its offset.
    /// Used with an index.
    pub(crate) fn read_blocks(
        head: &[u8],
        offset: u64,
        blocks: &[(&'a [u8], u64)],
        last: bool,
        limits: &Limits,
        sets: &Arc<Sets>,
        manifest_of: impl FnOnce(ManifestId) -> Option<Arc<Manifest>>,
    ) -> Result<Self> {
        let mut cursor = Cursor::new(head, offset, "update");
        let parsed = read_head(&mut cursor, limits)?;
        cursor.finish()?;
        let unknown = Error::format(FormatErrorKind::UnknownReference { field: "manifest" }, offset);
        let manifest = manifest_of(parsed.manifest).ok_or(unknown)?;
        let mut read = Vec::with_capacity(blocks.len());
        let mut spaces = Spaces::new(&manifest, limits, &parsed.header, offset)?;
        for &(bytes, at) in blocks {
            let mut cursor = Cursor::new(bytes, at, "update");
            read.push(RawBlock::read(&mut cursor, |scope, at| spaces.of(scope, at))?);
            cursor.finish()?;
        }
        let part = Self {
            header: parsed.header,
            manifest,
            part: parsed.part,
            last,
            head_len: head.len() as u64,
            blocks: read,
            tables: parsed.tables,
            frame: None,
            numbers: Vec::new(),
            sets: Arc::clone(sets),
            limits: limits.clone(),
        };
        part.check_delta(offset)?;
        Ok(part)
    }

    /// Checks the delta's lists of tensors against the blocks (DEL-2, DEL-3, SUM-3, CLS-7, CLS-8).
    fn check_delta(&self, offset: u64) -> Result<()> {
        let unknown = |field, at| Error::format(FormatErrorKind::UnknownReference { field }, at);
        if !self.header.is_delta() {
            let needs_base = |b: &&RawBlock<'_>| b.values_id == ValuesId::ULP || b.is_based();
            let block = self.blocks.iter().find(needs_base);
            return block.map_or(Ok(()), |b| Err(unknown("delta attribute", b.offset)));
        }
        self.header.delta.iter().try_for_each(|runs| self.check_runs(runs, offset))?;
        self.header.sums.iter().try_for_each(|runs| self.check_runs(runs, offset))
    }

    /// Checks that runs list the tensors of all blocks.
    fn check_runs<D>(&self, listed: &[Delta<D>], offset: u64) -> Result<()> {
        let unknown = |field, at| Error::format(FormatErrorKind::UnknownReference { field }, at);
        if let Some(entry) = listed.iter().find(|d| d.last() >= self.manifest.tensors().len() as u64) {
            return Err(Error::out_of_range("tensor of a delta", entry.last(), offset));
        }
        // For each run, the last tensor of the runs that follow it without a gap.
        let mut ends: Vec<u64> = listed.iter().map(Delta::last).collect();
        for i in (1..ends.len()).rev() {
            if ends[i - 1] + 1 == listed[i].first {
                ends[i - 1] = ends[i];
            }
        }
        for block in &self.blocks {
            let (first, count) = (block.scope.first(), block.scope.tensors());
            let run = listed.partition_point(|d| d.last() < first);
            let is_listed = listed.get(run).is_some_and(|d| d.first <= first);
            if !is_listed || ends[run] - first < count - 1 {
                return Err(unknown("digests of a tensor", block.offset));
            }
            if block.is_based() && listed[run].last() - first < count - 1 {
                return Err(unknown("common digest of a block's tensors", block.offset));
            }
        }
        Ok(())
    }

    /// Returns the index sets that were known when the part was read.
    pub fn sets(&self) -> &Sets {
        &self.sets
    }

    pub(crate) fn shared_sets(&self) -> Arc<Sets> {
        Arc::clone(&self.sets)
    }

    /// Returns the number of shared frequency tables.
    pub fn table_count(&self) -> usize {
        self.tables.len()
    }

    /// Returns the limits of its reader.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns a full allowance for decoding blocks of this part.
    pub fn budget(&self) -> Budget {
        Budget::new(&self.limits)
    }

    /// Decodes one block; `budget` is the allowance of the whole part.
    ///
    /// # Errors
    /// [`Error::Format`], [`Error::Unsupported`] or [`Error::Limit`] with the block's number and first
    /// tensor; [`Error::Input`] if the block does not exist.
    pub fn decode(&self, block: usize, budget: &Budget) -> Result<Block> {
        let raw = self.raw(block)?;
        let mut decoder = Decoder { tables: &self.tables, budget };
        raw.decode(&mut decoder, self.manifest.id().0, &self.sets).map_err(|e| self.place(e, block))
    }

    /// Decodes the positions of a sparse block whose values are elements as they are, and returns them with
    /// the bytes of these, which stay where they are; `None` for other blocks.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub(crate) fn decode_in_place(
        &self,
        block: usize,
        budget: &Budget,
    ) -> Result<Option<(Vec<u64>, &'a [u8])>> {
        let raw = self.raw(block)?;
        let mut decoder = Decoder { tables: &self.tables, budget };
        let decoded = raw.decode_in_place(&mut decoder, self.manifest.id().0, &self.sets);
        decoded.map_err(|e| self.place(e, block))
    }

    /// Returns what makes a block, or the whole update, more than the core profile (spec, core.md): a kind, a
    /// coding, the flag `add`, a delta. `None` if a reader of the core profile can read it. `budget` is as
    /// for [`Self::decode`]; the block's codes are decoded only where they tell the place of others.
    ///
    /// # Errors
    /// As [`Self::decode`], if the fields before the first coding are wrong.
    pub fn beyond_core(&self, block: usize, budget: &Budget) -> Result<Option<&'static str>> {
        if self.header.is_delta() {
            return Ok(Some("a delta"));
        }
        let decoder = Decoder { tables: &self.tables, budget };
        self.raw(block)?.beyond_core(&decoder).map_err(|e| self.place(e, block))
    }

    /// Decodes a dense block ([`RawBlock::is_dense`]) into `out`, the bytes of the elements of all its
    /// tensors. After an error these are arbitrary.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub(crate) fn decode_into(&self, block: usize, budget: &Budget, out: &mut [u8]) -> Result<()> {
        let decoder = Decoder { tables: &self.tables, budget };
        self.raw(block)?.decode_into(&decoder, out).map_err(|e| self.place(e, block))
    }

    /// Decodes a dense block into `targets`, one for each tensor of its scope. After an error these are
    /// unchanged. `memory` is used again.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub(crate) fn decode_into_each(
        &self,
        block: usize,
        budget: &Budget,
        targets: &mut [Target<'_>],
        memory: &mut Vec<u8>,
    ) -> Result<()> {
        let raw = self.raw(block)?;
        let bytes = |len: u64| raw.space.dtype.bytes_for(len).unwrap_or(u64::MAX);
        let all = budget.reserve_items::<u8>(bytes(raw.space.len()), raw.offset);
        let all = pages::reused(memory, all.map_err(|e| self.place(e, block))?);
        self.decode_into(block, budget, all)?;
        let mut rest = &*all;
        for Target { data, start, len } in targets {
            let (elements, more) = rest.split_at(in_memory(bytes(*len)));
            data[in_memory(bytes(*start))..][..elements.len()].copy_from_slice(elements);
            rest = more;
        }
        Ok(())
    }

    /// Returns one block in wire form, to be written again without decoding it
    /// ([`Encoder::update`](crate::stream::Encoder::update)). It makes the checks that
    /// [`WireBlock`] lists.
    ///
    /// # Errors
    /// The errors of [`Self::decode`]. A block that refers to a frequency table of this part gives
    /// [`FormatErrorKind::UnknownReference`], because another frame does not have the table: decode such a
    /// block.
    pub fn wire_block(&self, block: usize) -> Result<WireBlock<'a>> {
        let raw = self.raw(block)?;
        raw.to_wire(self.manifest.id().0, &self.sets, &self.budget()).map_err(|e| self.place(e, block))
    }

    fn raw(&self, block: usize) -> Result<&RawBlock<'a>> {
        self.blocks.get(block).ok_or(Error::out_of_bounds("block", block, self.blocks.len()))
    }

    /// Adds frame, block and tensor to an error of a block.
    pub(crate) fn place(&self, error: Error, block: usize) -> Error {
        let error =
            self.blocks.get(block).map(|raw| raw.scope.first()).into_iter().fold(error, Error::in_tensor);
        self.frame.into_iter().fold(error.in_block(self.number_of(block)), Error::in_frame)
    }

    /// Returns the number in the part of `blocks[block]`: a file may have read only some of its blocks.
    pub fn number_of(&self, block: usize) -> u64 {
        self.numbers.get(block).copied().unwrap_or(block as u64)
    }

    /// Decodes all blocks, in parallel. The result does not depend on the number of threads.
    ///
    /// # Errors
    /// The errors of [`Self::decode`], for the first block that has one.
    pub fn decode_all(&self) -> Result<Vec<Block>> {
        let numbers: Vec<usize> = (0..self.blocks.len()).collect();
        let blocks = self.budget().decode_each(&numbers, |&number, budget| self.decode(number, budget));
        blocks.into_iter().collect()
    }
}

impl WireBlock<'_> {
    /// Decodes the block as a reader without shared frequency tables would. Errors in a part in wire form
    /// that are not checked before writing are found here. `budget` is the block's allowance.
    ///
    /// # Errors
    /// The errors of [`UpdatePart::decode`], with an offset inside the part; [`Error::Input`] as
    /// [`Encoder::update`](crate::stream::Encoder::update).
    pub fn decode(&self, manifest: &Manifest, sets: &Sets, budget: &Budget) -> Result<Block> {
        let Ok(space) = manifest.space(self.scope, 0) else {
            return Err(Error::inconsistent("scope outside the manifest").in_tensor(self.scope.first()));
        };
        let around = Surroundings { space: &space, manifest: manifest.id().0, scope: self.scope, sets };
        self.decode_in(&around, budget).map_err(|e| e.in_tensor(self.scope.first()))
    }
}

/// Checks that the blocks of an update are in ascending order (UPD-6).
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockOrder {
    /// First tensor and element that the next block may cover.
    next: (u64, u64),
}

impl BlockOrder {
    /// Accepts the next block; returns false if it does not come after all blocks before it.
    pub(crate) fn accept(&mut self, scope: Scope, add: bool) -> bool {
        if add {
            return true;
        }
        let (start, end) = match scope {
            Scope::Tensor(t) => ((t, 0), (t.saturating_add(1), 0)),
            Scope::Tensors { first, count } => ((first, 0), (first.saturating_add(count), 0)),
            Scope::Range { tensor, start, len } => ((tensor, start), (tensor, start.saturating_add(len))),
        };
        let follows = start >= self.next;
        self.next = end;
        follows
    }
}

#[cfg(test)]
mod tests;
