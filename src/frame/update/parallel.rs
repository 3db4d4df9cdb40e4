//! Writes the blocks of a part in parallel, and appends them in order.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crc32fast::Hasher;
use rayon::ScopeFifo;

use super::write::{LIGHT, Memory, Weighed, first_of_weight, write_block};
use crate::bits::Output;
use crate::block::{Sets, WrittenBlock};
use crate::codes::Table;
use crate::error::{Error, Result};
use crate::frame::Manifest;

/// Largest weight ([`WireBlock::check`](crate::block::WireBlock)) of several blocks that a thread writes at a
/// time.
const BATCH: u64 = 8 << 20;

/// Appends the blocks of a part. Returns a hasher for each that has seen its bytes.
pub(super) fn write_blocks(
    out: &mut dyn Output,
    manifest: &Manifest,
    sets: &Sets,
    blocks: &[Weighed<'_>],
    tables: &[Table],
    memory: &mut Vec<Memory>,
) -> Result<Vec<Hasher>> {
    let threads = rayon::current_num_threads();
    let hashers = Vec::with_capacity(blocks.len());
    let line = Line { out, memory, hashers, written: BTreeMap::new(), appended: 0, begun: 0, error: None };
    let groups = groups(blocks, threads);
    let work = Work { groups, manifest, sets, tables, line: Mutex::new(line) };
    // Hardly more than threads: what all of them write should stay in the caches until it is appended.
    let ahead = threads + threads / 4;
    rayon::in_place_scope_fifo(|scope| (0..ahead).for_each(|_| work.begin(&mut work.line(), scope)));
    let Line { hashers, error, .. } = work.line.into_inner().unwrap_or_else(PoisonError::into_inner);
    error.map_or(Ok(hashers), Err)
}

/// The work that threads share.
struct Work<'a> {
    groups: Vec<&'a [Weighed<'a>]>,
    manifest: &'a Manifest,
    sets: &'a Sets,
    tables: &'a [Table],
    line: Mutex<Line<'a>>,
}

/// Groups in their order. A few are written while the first of them is not.
struct Line<'a> {
    out: &'a mut dyn Output,
    memory: &'a mut Vec<Memory>,
    /// Hashers of the blocks that were appended.
    hashers: Vec<Hasher>,
    /// Groups that were written, but not yet appended.
    written: BTreeMap<usize, Result<Written>>,
    /// Numbers of groups that were appended, and begun.
    appended: usize,
    begun: usize,
    /// The error of the first group that has one.
    error: Option<Error>,
}

/// A group that was written.
struct Written {
    /// Blocks, each with a hasher that has seen its bytes while they were in the caches.
    blocks: Vec<(WrittenBlock, Hasher)>,
    memory: Memory,
}

impl<'a> Work<'a> {
    fn line(&self) -> MutexGuard<'_, Line<'a>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a thread write the next group, and append all that are next in the line.
    fn begin<'s>(&'s self, line: &mut Line<'_>, scope: &ScopeFifo<'s>) {
        let number = line.begun;
        let Some(&group) = self.groups.get(number).filter(|_| line.error.is_none()) else { return };
        line.begun += 1;
        let memory = line.memory.pop().unwrap_or_default();
        scope.spawn_fifo(move |scope| {
            let written = self.write(group, memory);
            let mut line = self.line();
            line.written.insert(number, written);
            while line.append() {
                self.begin(&mut line, scope);
            }
        });
    }

    fn write(&self, group: &[Weighed<'_>], mut memory: Memory) -> Result<Written> {
        let mut blocks = Vec::with_capacity(group.len());
        for block in group {
            let tables = if block.weight <= LIGHT { self.tables } else { &[] };
            let block = write_block(block, self.manifest, self.sets, tables, None, &mut memory)?;
            let hasher = block.hasher();
            blocks.push((block, hasher));
        }
        Ok(Written { blocks, memory })
    }
}

impl Line<'_> {
    /// Appends the next group; false if it is not yet written.
    fn append(&mut self) -> bool {
        let Some(written) = self.written.remove(&self.appended) else { return false };
        self.appended += 1;
        match written {
            Ok(Written { blocks, mut memory }) => {
                for (block, hasher) in blocks {
                    block.append_to(self.out);
                    self.hashers.push(hasher);
                    memory.payloads.push(block.into_memory());
                }
                self.memory.push(memory);
            }
            Err(e) => self.error = self.error.take().or(Some(e)),
        }
        true
    }
}

/// Divides blocks into groups that one thread writes at a time.
fn groups<'b, 'a>(blocks: &'b [Weighed<'a>], threads: usize) -> Vec<&'b [Weighed<'a>]> {
    let all = blocks.iter().fold(0u64, |sum, block| sum.saturating_add(block.weight).saturating_add(1));
    let most = (all / (8 * threads as u64)).clamp(LIGHT, BATCH);
    let (mut rest, mut groups) = (blocks, Vec::new());
    while !rest.is_empty() {
        let (group, others) = rest.split_at(first_of_weight(rest, most));
        groups.push(group);
        rest = others;
    }
    groups
}
