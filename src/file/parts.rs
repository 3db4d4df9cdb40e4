//! The parts of an update in a file, with the blocks that a reader needs.

use std::ops::Range;
use std::sync::Arc;

use super::File;
use super::open::{Listed, PartEntry, UpdateEntry};
use crate::arch::threads;
use crate::bits::{check_crc, crc32};
use crate::block::{RawBlock, Scope, Sets};
use crate::error::{Error, FormatErrorKind, Result};
use crate::frame::{BlockOrder, HEADER_LEN, IndexedUpdate, UpdatePart};
use crate::limits::in_memory;

/// The blocks that a reader needs: those of some tensors, or only of some of their elements.
struct Needs<'n> {
    /// Number of needed tensors before each tensor, and one more: a block is tested in constant time, however
    /// many tensors it claims.
    before: Vec<u64>,
    /// Ranges of elements of each tensor; `None` is all.
    elements: Option<&'n [Vec<Range<u64>>]>,
}

impl<'n> Needs<'n> {
    fn new(tensors: Vec<bool>, elements: Option<&'n [Vec<Range<u64>>]>) -> Self {
        let mut before = vec![0u64];
        for needed in tensors {
            before.push(before[before.len() - 1] + u64::from(needed));
        }
        Self { before, elements }
    }

    /// Whether a block of `tensors` tensors from `first` on touches a needed one.
    fn touches(&self, first: u64, tensors: u64) -> bool {
        let before = |tensor: u64| {
            let last = self.before.len() - 1;
            self.before[usize::try_from(tensor).map_or(last, |t| t.min(last))]
        };
        before(first) < before(first.saturating_add(tensors))
    }

    /// Whether a block that touches a needed tensor has needed elements, or may change what others have.
    fn has(&self, scope: Scope, add: bool) -> bool {
        let (Some(elements), Scope::Range { tensor, start, len }, false) = (self.elements, scope, add) else {
            return true;
        };
        let end = start.saturating_add(len);
        let ranges = elements.get(in_memory(tensor)).map_or(&[][..], |ranges| ranges);
        ranges.iter().any(|range| range.start < end && start < range.end)
    }

    /// Whether a part may have needed blocks.
    fn may_be_in(&self, part: &PartEntry) -> bool {
        match &part.listed {
            Listed::ByIndex(indexed) => indexed.blocks.iter().any(|b| self.touches(b.first, b.tensors)),
            Listed::Read { .. } => true,
        }
    }
}

/// The needed blocks of a part: number, bytes, and offset of each.
type Located<'a> = Vec<(usize, &'a [u8], u64)>;

/// A part whose blocks have not been compared with their checksums, and these.
pub(super) struct Unchecked<'a> {
    pub(super) part: UpdatePart<'a>,
    /// The checksum of each block; none if the blocks were compared before.
    crcs: Vec<u32>,
}

impl Unchecked<'_> {
    /// Compares a block, whose bytes these are, with its checksum.
    pub(super) fn check(&self, block: usize, bytes: &[u8]) -> Result<()> {
        let Some(&crc) = self.crcs.get(block) else { return Ok(()) };
        let offset = self.part.blocks.get(block).map_or(0, |raw| raw.offset);
        check_crc(crc, crc32(bytes), offset).map_err(|e| self.part.place(e, block))
    }
}

impl<'a> File<'a> {
    /// Reads the parts of an update with the blocks that contain tensors marked in `wanted`.
    pub(super) fn wanted_parts(
        &self,
        entry: &UpdateEntry,
        wanted: Vec<bool>,
    ) -> impl Iterator<Item = Result<UpdatePart<'a>>> {
        let needs = Needs::new(needed(entry, wanted), None);
        self.needed_parts(entry, needs, true).map(|part| Ok(part?.part))
    }

    /// Reads the parts of an update that is no delta, with the blocks that contain some of these elements of
    /// each tensor. Their checksums are left to the caller. `read`: as for [`File::fill`].
    ///
    /// The first call compares the index with the heads of all blocks; others read those of needed ones only.
    pub(super) fn parts_of_elements(
        &self,
        entry: &UpdateEntry,
        elements: &[Vec<Range<u64>>],
        read: &(dyn Fn(Range<u64>) + Sync),
    ) -> Result<Vec<Unchecked<'a>>> {
        let tensors = elements.iter().map(|ranges| !ranges.is_empty()).collect();
        let needs = Needs::new(tensors, Some(elements));
        if entry.index_is_true.get().is_some() {
            let last = entry.parts.end - 1;
            let numbers = entry.parts.clone().filter(|&number| needs.may_be_in(&self.parts[number]));
            return numbers.map(|number| self.part(number, number == last, &needs, None, false)).collect();
        }
        let parts = self.needed_parts(entry, needs, false).collect::<Result<Vec<_>>>()?;
        if entry.index_is_true.set(()).is_ok()
            && let Some(first) = self.parts.get(entry.parts.start)
        {
            // A mapped file has a few pages of each block in memory now.
            read(first.offset..self.bytes.len() as u64);
        }
        Ok(parts)
    }

    fn needed_parts<'n>(
        &self,
        entry: &UpdateEntry,
        needs: Needs<'n>,
        check: bool,
    ) -> impl Iterator<Item = Result<Unchecked<'a>>> + use<'a, 'n, '_> {
        let mut order = BlockOrder::default();
        let numbers = entry.parts.clone();
        let end = numbers.end;
        numbers.map(move |number| self.part(number, number + 1 == end, &needs, Some(&mut order), check))
    }

    /// Reads the needed blocks of a part, and compares them with their checksums if `check`. The others
    /// must be where the index says, which is checked if `order` is given.
    fn part(
        &self,
        number: usize,
        last: bool,
        needs: &Needs<'_>,
        order: Option<&mut BlockOrder>,
        check: bool,
    ) -> Result<Unchecked<'a>> {
        let part = &self.parts[number];
        let indexed = match &part.listed {
            Listed::ByIndex(indexed) => indexed,
            Listed::Read { body_len, sets } => {
                let mut read = self.read_again(part, *body_len, sets, last)?;
                let mut number = 0;
                read.blocks.retain(|raw| {
                    let is_needed = needs.touches(raw.scope.first(), raw.scope.tensors())
                        && needs.has(raw.scope, raw.add);
                    read.numbers.extend(is_needed.then_some(number));
                    number += 1;
                    is_needed
                });
                return Ok(Unchecked { part: read, crcs: Vec::new() });
            }
        };
        let head = self.head(part.offset, indexed).map_err(|e| e.in_frame(part.frame))?;
        let mut blocks = Vec::new();
        let mut read = self.locate(part, indexed, needs, order, &mut blocks).and_then(|()| {
            let blocks: Vec<(&[u8], u64)> = blocks.iter().map(|&(_, bytes, at)| (bytes, at)).collect();
            let body_offset = part.offset + HEADER_LEN as u64;
            UpdatePart::read_blocks(head, body_offset, &blocks, last, self.limits(), &self.sets, |id| {
                self.manifests.get(&id).map(Arc::clone)
            })
            .map_err(|e| e.in_frame(part.frame))
        });
        // Of a block that cannot be read, its checksum says what is wrong.
        if check || read.is_err() {
            check_blocks(part, indexed, &blocks)?;
        }
        if let Ok(read) = &mut read {
            read.frame = Some(part.frame);
            read.numbers = blocks.iter().map(|&(number, ..)| number as u64).collect();
        }
        let crcs = blocks.iter().filter(|_| !check).map(|(number, ..)| indexed.blocks[*number].crc).collect();
        Ok(Unchecked { part: read?, crcs })
    }

    /// Adds the needed blocks of a part, up to the first block with an error.
    fn locate(
        &self,
        part: &PartEntry,
        indexed: &IndexedUpdate,
        needs: &Needs<'_>,
        mut order: Option<&mut BlockOrder>,
        blocks: &mut Located<'a>,
    ) -> Result<()> {
        let mut at = part.offset + HEADER_LEN as u64 + indexed.head_len;
        for (number, block) in indexed.blocks.iter().enumerate() {
            if order.is_none() && !needs.touches(block.first, block.tensors) {
                at = at.saturating_add(block.len);
                continue;
            }
            let place = |e: Error| e.in_frame(part.frame).in_block(number as u64);
            let bytes = self.slice(at, block.len).map_err(place)?;
            let scope = RawBlock::scope_of(bytes, at);
            let has = || scope.as_ref().map_or(true, |&(scope, add)| needs.has(scope, add));
            if needs.touches(block.first, block.tensors) && has() {
                blocks.push((number, bytes, at));
            }
            // The index entry of a skipped block must be true too, or data would be missing from the result.
            let (scope, add) = scope.map_err(place)?;
            if (scope.first(), scope.tensors()) != (block.first, block.tensors) {
                return Err(place(Error::format(FormatErrorKind::NotCanonical { field: "index" }, at)));
            }
            if order.as_mut().is_some_and(|order| !order.accept(scope, add)) {
                return Err(place(Error::format(FormatErrorKind::NotAscending, at)));
            }
            at = at.saturating_add(block.len);
        }
        Ok(())
    }

    /// Locates the blocks of a part of a stream that was read before.
    pub(super) fn read_again(
        &self,
        part: &PartEntry,
        body_len: u64,
        sets: &Arc<Sets>,
        last: bool,
    ) -> Result<UpdatePart<'a>> {
        let offset = part.offset + HEADER_LEN as u64;
        let body = self.slice(offset, body_len)?;
        let manifest_of = |id| self.manifests.get(&id).map(Arc::clone);
        let mut read = UpdatePart::read(body, offset, last, self.limits(), sets, manifest_of)
            .map_err(|e| e.in_frame(part.frame))?;
        read.frame = Some(part.frame);
        Ok(read)
    }
}

/// Compares blocks of a part with their checksums. These take a large part of the time of reading, so threads
/// share them.
fn check_blocks(part: &PartEntry, indexed: &IndexedUpdate, blocks: &Located<'_>) -> Result<()> {
    let checked = threads::each(blocks.iter(), |&(number, bytes, at)| {
        let block = &indexed.blocks[number];
        let place = |e: Error| e.in_frame(part.frame).in_block(number as u64).in_tensor(block.first);
        check_crc(block.crc, crc32(bytes), at).map_err(place)
    });
    checked.into_iter().collect()
}

/// Marks the tensors that share a digest with a wanted one, too: their blocks are needed.
fn needed(entry: &UpdateEntry, mut wanted: Vec<bool>) -> Vec<bool> {
    // The runs of one kind of digests are disjoint, but each can overlap runs of the other kind.
    let alone = wanted.clone();
    for (first, last) in entry.header.runs().filter(|(first, last)| first < last) {
        let run = in_memory(first)..=in_memory(last);
        if alone[run.clone()].contains(&true) {
            wanted[run].fill(true);
        }
    }
    wanted
}
