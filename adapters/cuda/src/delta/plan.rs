//! Tables of the changes of an update, and where their results are in memory.

use std::ops::Range;

use gcodec::internal::device::delta::{CODES, Form, Found, KEYS, KeyCount, STEP_LEN, Task};

use super::DeltaInput;
use crate::abi::TILE_LEN;
use crate::abi::delta::{Change, Span};
use crate::error::{Result, TensorError, inconsistent};

/// Words of the counts of a task: for each key its elements, then its changed elements by code.
const COUNT_WORDS: usize = KEYS * (1 + CODES);

/// The tables of one update.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) spans: Vec<Span>,
    /// One for each task.
    pub(super) changes: Vec<Change>,
    pub(super) tiles: u32,
    /// The class of each key, for each task with several classes.
    pub(super) class_of: Vec<u8>,
}

/// Where the output of a task is in the payload, as ranges of bytes.
#[derive(Debug, Default, Clone)]
pub(super) struct Output {
    ranks: Range<u64>,
    values: Range<u64>,
}

impl Plan {
    pub(super) fn new(tasks: &[Task], inputs: &[DeltaInput<'_>]) -> Result<Self> {
        let mut plan = Self::default();
        let (mut tiles, mut total) = (0u64, 0u64);
        for task in tasks {
            let width = task.dtype.bits() / 8;
            let (mut start, mut step, first_tile) = (0, 0, tiles);
            for span in task.spans.iter().filter(|span| span.len > 0) {
                let (input, skip) = (&inputs[span.input], span.start * u64::from(width));
                plan.spans.push(Span {
                    base: input.base.address() + skip,
                    fresh: input.new.address() + skip,
                    len: span.len,
                    start,
                    task: plan.changes.len() as u32,
                    first_tile: tiles as u32,
                    first_step: step as u32,
                    reserved: 0,
                });
                start += span.len;
                step += span.len.div_ceil(STEP_LEN);
                tiles += span.len.div_ceil(TILE_LEN);
            }
            plan.changes.push(Change {
                every: task.sample_every().unwrap_or(0) as u32,
                width,
                first_tile: first_tile as u32,
                tiles: (tiles - first_tile) as u32,
                ..Change::default()
            });
            total += task.spans.len() as u64;
        }
        // Numbers of the tables have 32 bits, and those of grids 31.
        if i32::try_from(tiles).is_err() || i32::try_from(total).is_err() {
            return Err(TensorError::TooMany { most: i32::MAX as usize }.into());
        }
        plan.tiles = tiles as u32;
        Ok(plan)
    }

    /// Bytes of spans and changes.
    pub(super) fn table_bytes(&self) -> u64 {
        (size_of_val(&*self.spans) + size_of_val(&*self.changes)) as u64
    }

    /// Bytes of the counts of all tasks; 0 if no elements are counted.
    pub(super) fn count_bytes(&self) -> u64 {
        match self.changes.iter().any(|change| change.every > 0 && change.tiles > 0) {
            true => (4 * COUNT_WORDS * self.changes.len()) as u64,
            false => 0,
        }
    }

    pub(super) fn place_counts(&mut self, address: u64) {
        for (change, at) in self.changes.iter_mut().zip((address..).step_by(4 * COUNT_WORDS)) {
            change.counts = at;
        }
    }

    /// Reads the counts of all tasks.
    pub(super) fn counts(&self, words: &[u32]) -> Vec<[KeyCount; KEYS]> {
        let of_key = |words: &[u32]| KeyCount {
            elements: words[0],
            codes: std::array::from_fn(|code| words[1 + code]),
        };
        let of_task = |words: &[u32]| {
            let mut keys = words.chunks_exact(1 + CODES).map(of_key);
            std::array::from_fn(|_| keys.next().unwrap_or_default())
        };
        match words {
            [] => vec![[KeyCount::default(); KEYS]; self.changes.len()],
            words => words.chunks_exact(COUNT_WORDS).map(of_task).collect(),
        }
    }

    /// Takes the forms of all tasks.
    pub(super) fn take_forms(&mut self, forms: &[Form]) {
        for (change, form) in self.changes.iter_mut().zip(forms) {
            let bounds = form.bounds();
            change.classes = if *form == Form::All { 0 } else { bounds.len() as u32 + 1 };
            change.overwrites = u32::from(matches!(form, Form::Elements | Form::All));
            if !bounds.is_empty() {
                // Bounds descend: an element's class is the number of those above its key.
                let class = |key: u8| bounds.partition_point(|&bound| bound > key) as u8;
                self.class_of.extend((0..=255).map(class));
            }
        }
    }

    /// Bytes of the totals of all classes; 0 if no elements are counted.
    pub(super) fn total_bytes(&self) -> u64 {
        let classes = self.changes.iter().map(|change| u64::from(change.classes)).sum::<u64>();
        if self.tiles > 0 { 4 * classes } else { 0 }
    }

    /// Bytes of the sums of all tiles.
    pub(super) fn sum_bytes(&self) -> u64 {
        self.changes.iter().map(Change::sum_bytes).sum()
    }

    /// Sets the addresses of the classes of keys.
    pub(super) fn place_classes(&mut self, tables: u64) {
        let several = self.changes.iter_mut().filter(|change| change.classes > 1);
        several.zip((tables..).step_by(KEYS)).for_each(|(change, at)| change.class_of = at);
    }

    /// Sets the addresses of totals and sums.
    pub(super) fn place_sums(&mut self, mut totals: u64, mut sums: u64) {
        for change in &mut self.changes {
            (change.totals, change.sums) = (totals, sums);
            totals += 4 * u64::from(change.classes);
            sums += change.sum_bytes();
        }
    }

    /// Divides the totals of all classes among the tasks.
    pub(super) fn totals(&self, tasks: &[Task], words: &[u32]) -> Result<Vec<Vec<u64>>> {
        // Nothing is counted without elements, and for a task that takes all elements.
        let mut words = words.iter().map(|&n| u64::from(n));
        let own = |(change, task): (&Change, &Task)| {
            let mut own: Vec<u64> = words.by_ref().take(change.classes as usize).collect();
            own.resize(change.classes.max(1) as usize, 0);
            if own.iter().sum::<u64>() > task.elements() { Err(inconsistent()) } else { Ok(own) }
        };
        self.changes.iter().zip(tasks).map(own).collect()
    }

    /// Decides where outputs are in the payload, from byte `start` on. Returns for each class where its first
    /// change is in the output of its task, the outputs, and the end of them.
    pub(super) fn outputs(
        &self,
        tasks: &[Task],
        totals: &[Vec<u64>],
        start: u64,
    ) -> (Vec<u32>, Vec<Output>, u64) {
        let (mut places, mut outputs, mut at) = (Vec::new(), Vec::new(), start);
        for ((change, task), totals) in self.changes.iter().zip(tasks).zip(totals) {
            let mut changed = 0;
            if change.classes > 0 {
                for total in totals {
                    // A task has at most 2^24 elements.
                    places.push(changed as u32);
                    changed += total;
                }
            }
            let values = if change.classes > 0 { changed } else { task.elements() };
            let ranks = at..at + 4 * changed;
            let values = ranks.end..ranks.end + u64::from(change.width) * values;
            at = values.end.next_multiple_of(4);
            outputs.push(Output { ranks, values });
        }
        (places, outputs, at)
    }

    /// Sets the addresses of outputs and of the classes' places in them.
    pub(super) fn place_outputs(&mut self, outputs: &[Output], payload: u64, places: u64) {
        let mut place = places;
        for (change, output) in self.changes.iter_mut().zip(outputs) {
            (change.ranks, change.values) = (payload + output.ranks.start, payload + output.values.start);
            change.places = place;
            place += 4 * u64::from(change.classes);
        }
    }
}

impl Change {
    /// Bytes of two sums for each class and tile.
    fn sum_bytes(&self) -> u64 {
        8 * u64::from(self.classes) * u64::from(self.tiles)
    }
}

impl Output {
    /// `payload`: the copy of the device's.
    pub(super) fn found<'a>(&self, counts: &'a [u64], payload: &'a [u8]) -> Result<Found<'a>> {
        let part = |range: &Range<u64>| {
            let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
            range.and_then(|(start, end)| payload.get(start..end)).ok_or_else(inconsistent)
        };
        Ok(Found { counts, ranks: part(&self.ranks)?, values: part(&self.values)? })
    }
}
