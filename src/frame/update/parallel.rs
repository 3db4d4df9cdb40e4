//! Writes the blocks of a part in parallel, and appends them in order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crc32fast::Hasher;
use rayon::ScopeFifo;

use super::write::{Context, Form, LIGHT, Memory, Queued, first_of_weight, write_block};
use crate::bits::{Checksums, Output};
use crate::block::{Scope, WrittenBlock};
use crate::codes::Table;
use crate::error::{Error, Result};
use crate::frame::IndexedBlock;

/// Largest weight ([`WireBlock::check`](crate::block::WireBlock)) of several blocks that a thread writes at a
/// time.
const BATCH: u64 = 8 << 20;

/// Appends the blocks of a part, and adds them to its checksums. Returns their entries in an index.
pub(super) fn write_blocks(
    out: &mut dyn Output,
    context: Context<'_>,
    blocks: Vec<Queued<'_>>,
    tables: &[Table],
    memory: &mut Vec<Memory>,
    checksums: &mut Checksums,
) -> Result<Vec<IndexedBlock>> {
    let threads = rayon::current_num_threads();
    let entries = Vec::with_capacity(blocks.len());
    let groups = groups(blocks, threads);
    let (written, appended, begun, error) = Default::default();
    let line = Line { groups, out, memory, checksums, entries, written, appended, begun, error };
    let work = Work { context, tables, line: Mutex::new(line) };
    // Hardly more than threads: what all of them write should stay in the caches until it is appended.
    let ahead = threads + threads / 4;
    rayon::in_place_scope_fifo(|scope| (0..ahead).for_each(|_| work.begin(&mut work.line(), scope)));
    let Line { entries, error, .. } = work.line.into_inner().unwrap_or_else(PoisonError::into_inner);
    error.map_or(Ok(entries), Err)
}

/// The work that threads share.
struct Work<'w, 'a> {
    context: Context<'w>,
    tables: &'w [Table],
    line: Mutex<Line<'w, 'a>>,
}

/// Groups in their order. A few are written while the first of them is not.
struct Line<'w, 'a> {
    /// Groups that are not begun.
    groups: VecDeque<Vec<Queued<'a>>>,
    out: &'w mut dyn Output,
    memory: &'w mut Vec<Memory>,
    /// Checksums of the part so far, and the entries of the blocks that were appended.
    checksums: &'w mut Checksums,
    entries: Vec<IndexedBlock>,
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
    /// Blocks, each with its scope and a hasher that has seen its bytes while they were in the caches.
    blocks: Vec<(Scope, WrittenBlock, Hasher)>,
    memory: Memory,
}

impl<'w, 'a> Work<'w, 'a> {
    fn line(&self) -> MutexGuard<'_, Line<'w, 'a>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a thread write the next group, and append all that are next in the line.
    fn begin<'s>(&'s self, line: &mut Line<'w, 'a>, scope: &ScopeFifo<'s>) {
        let Some(group) = line.groups.pop_front().filter(|_| line.error.is_none()) else { return };
        let number = line.begun;
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

    fn write(&self, group: Vec<Queued<'a>>, mut memory: Memory) -> Result<Written> {
        let mut blocks = Vec::with_capacity(group.len());
        for Queued { scope, weight, form, .. } in group {
            let tables = if weight <= LIGHT { self.tables } else { &[] };
            let bytes = match form {
                Form::Written(bytes) => bytes,
                Form::Pending(block) => write_block(&block, self.context, tables, None, &mut memory)?,
            };
            let hasher = bytes.hasher();
            blocks.push((scope, bytes, hasher));
        }
        Ok(Written { blocks, memory })
    }
}

impl Line<'_, '_> {
    /// Appends the next group; false if it is not yet written.
    fn append(&mut self) -> bool {
        let Some(written) = self.written.remove(&self.appended) else { return false };
        self.appended += 1;
        match written {
            Ok(Written { blocks, mut memory }) => {
                for (scope, block, hasher) in blocks {
                    let start = self.out.bytes().len();
                    block.append_to(self.out);
                    let bytes = &self.out.bytes()[start..];
                    let crc = self.checksums.hashed(bytes, hasher);
                    self.entries.push(IndexedBlock::new(scope, bytes.len() as u64, crc));
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
fn groups(blocks: Vec<Queued<'_>>, threads: usize) -> VecDeque<Vec<Queued<'_>>> {
    let all = blocks.iter().map(Queued::share).fold(0, u64::saturating_add);
    let most = (all / (8 * threads as u64)).clamp(LIGHT, BATCH);
    let (mut rest, mut groups) = (VecDeque::from(blocks), VecDeque::new());
    while !rest.is_empty() {
        groups.push_back(rest.drain(..first_of_weight(&rest, most)).collect());
    }
    groups
}
