//! Sums of sparse updates without expanding them.

use rayon::prelude::*;

use super::total;
use super::windows::Window;
use crate::block::values::{Content, to_number};
use crate::block::{Block, RawBlock, Scope, Sets, Stored, ValuesId};
use crate::error::Result;
use crate::limits::{Budget, in_memory};
use crate::tensor::Dtype;
use crate::tensor::element::{decode_f32s, encode_f32s, round_f32s};

/// Elements that are summed in one step, so that they stay in the second-level cache.
const WINDOW: usize = 1 << 15;
/// A window is divided by its positions if fewer than one of so many elements has a value.
const FEW: usize = 32;
/// Windows that one thread sums one after the other.
const WINDOWS: usize = 32;

/// Whether a block can be added to a sum by its positions alone.
pub(super) fn takes(raw: &RawBlock<'_>) -> bool {
    raw.is_sparse()
        && !matches!(raw.scope, Scope::Range { .. })
        && !raw.add
        && raw.values_id != ValuesId::ULP
        && takes_elements(raw.space.dtype)
        && raw.space.len() <= 1 << 32
}

/// Whether elements of this type are numbers of binary32.
pub(super) fn takes_elements(dtype: Dtype) -> bool {
    dtype.is_float() && (8..=32).contains(&dtype.bits())
}

/// A position and an f32 value: together, because both are read at once, and half of a position is zeros.
#[derive(Debug, Clone, Copy)]
struct Entry(u64);

impl Entry {
    fn new(position: u64, value: f32) -> Self {
        Self(position | u64::from(value.to_bits()) << 32)
    }

    #[inline(always)]
    fn position(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_bits((self.0 >> 32) as u32)
    }
}

/// A sparse block of a sender, with its values as numbers that its elements can have.
#[derive(Debug, Clone)]
pub(super) struct Entries {
    pub(super) scope: Scope,
    /// Position of the first element of each of its tensors, and the number of all elements.
    starts: Vec<u64>,
    entries: Vec<Entry>,
}

impl Entries {
    /// Joins positions and numbers, in the memory of the positions.
    fn new(raw: &RawBlock<'_>, positions: Vec<u64>, numbers: impl Iterator<Item = f32>) -> Self {
        let ends = raw.space.lens.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        let starts = std::iter::once(0).chain(ends).collect();
        let entries = positions.into_iter().zip(numbers).map(|(p, number)| Entry::new(p, number));
        Self { scope: raw.scope, starts, entries: entries.collect() }
    }

    /// Joins positions and elements of a block that [`takes`] accepted.
    pub(super) fn of_elements(raw: &RawBlock<'_>, positions: Vec<u64>, elements: &[u8]) -> Result<Self> {
        if raw.space.dtype == Dtype::F32 {
            let numbers = elements.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            return Ok(Self::new(raw, positions, numbers));
        }
        let mut numbers = vec![0.0; positions.len()];
        decode_f32s(raw.space.dtype, elements, 0, &mut numbers)?;
        Ok(Self::new(raw, positions, numbers.into_iter()))
    }

    /// Reads a block that [`takes`] accepted.
    pub(super) fn of_block(raw: &RawBlock<'_>, block: Block, sets: &Sets, budget: &Budget) -> Result<Self> {
        if let Content::Elements(Stored::Source, elements) = block.values.facts().content {
            return Self::of_elements(raw, block.support.into_positions().unwrap_or_default(), elements);
        }
        let mut numbers = block.numbers(&raw.space, sets, budget)?;
        round_f32s(raw.space.dtype, &mut numbers)?;
        Ok(Self::new(raw, block.support.into_positions().unwrap_or_default(), numbers.into_iter()))
    }

    /// Memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        (size_of_val(&*self.entries) + size_of_val(&*self.starts) + size_of::<Self>()) as u64
    }

    /// Gives the memory of the values back.
    pub(super) fn clear(&mut self) {
        self.entries = Vec::new();
    }

    /// Returns each tensor of the block in a window and the part that belongs to it, each value of the given
    /// weight.
    pub(super) fn parts<'s>(
        &'s self,
        weight: f64,
        window: &Window,
    ) -> impl Iterator<Item = (usize, Portion<'s>)> {
        let first = in_memory(self.scope.first());
        let mut rest = &*self.entries;
        window.common(first..first + self.starts.len() - 1).map(move |tensor| {
            let [start, end] = [self.starts[tensor - first], self.starts[tensor - first + 1]];
            let within = window.within(end - start);
            let base = start + within.start;
            rest = &rest[rest.partition_point(|e| e.position() < base)..];
            let (entries, later) = rest.split_at(rest.partition_point(|e| e.position() < start + within.end));
            rest = later;
            (tensor, Portion { entries, base, weight })
        })
    }
}

/// The values of one sender for one tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portion<'a> {
    entries: &'a [Entry],
    /// Position of the first element that the part is about.
    base: u64,
    weight: f64,
}

impl<'a> Portion<'a> {
    /// Replaces elements of the tensor by their values, without the weight.
    pub(super) fn write(&self, dtype: Dtype, elements: &mut [u8]) -> Result<()> {
        let mut each = self.places().zip(self.entries);
        if dtype == Dtype::F32 {
            let elements = elements.as_chunks_mut::<4>().0;
            each.for_each(|(at, entry)| elements[at] = entry.value().to_le_bytes());
            return Ok(());
        }
        each.try_for_each(|(at, entry)| encode_f32s(dtype, &[entry.value()], at as u64, elements))
    }

    /// Returns the elements from `start` on.
    fn from(self, start: usize) -> Self {
        let base = self.base + start as u64;
        let at = self.entries.partition_point(|e| e.position() < base);
        Self { entries: &self.entries[at..], base, ..self }
    }

    /// Adds the values of the next elements to these, and returns their part.
    fn add_next(&mut self, window: &mut [[u8; 4]]) -> Self {
        let count = match self.weight {
            1.0 => self.add(window, |number| number),
            weight => self.add(window, |number| (weight * f64::from(number)) as f32),
        };
        let (here, later) = self.entries.split_at(count);
        let added = Self { entries: here, ..*self };
        *self = Self { entries: later, base: self.base + window.len() as u64, ..*self };
        added
    }

    /// Adds a term of each value in `window`, and returns their number.
    #[inline(always)]
    fn add(&self, window: &mut [[u8; 4]], term: impl Fn(f32) -> f32) -> usize {
        for (count, (at, entry)) in self.places().zip(self.entries).enumerate() {
            // A search for the last one would wait for the memory that is read here.
            let Some(element) = window.get_mut(at) else { return count };
            let sum = f32::from_le_bytes(*element) + term(entry.value());
            *element = to_number(f64::from(sum)).to_le_bytes();
        }
        self.entries.len()
    }

    /// Returns the places of the positions.
    fn places(&self) -> impl Iterator<Item = usize> + use<'a> {
        let base = self.base;
        self.entries.iter().map(move |entry| in_memory(entry.position() - base))
    }
}

/// Returns the sums of elements as numbers of binary32: of all parts, added in their order to `elements`,
/// which are zeros, and divided by `divisor`, which is more than 0.
///
/// Elements without a value stay zero: adding zero and dividing zero do not change them.
pub(super) fn sum(mut elements: Vec<u8>, parts: &[Portion<'_>], divisor: Option<f64>) -> Vec<u8> {
    elements.par_chunks_mut(4 * WINDOW * WINDOWS).enumerate().for_each(|(i, windows)| {
        let mut rest: Vec<Portion<'_>> = parts.iter().map(|part| part.from(i * WINDOW * WINDOWS)).collect();
        let mut here = Vec::with_capacity(rest.len());
        for window in windows.chunks_mut(4 * WINDOW) {
            let window = window.as_chunks_mut::<4>().0;
            here.clear();
            here.extend(rest.iter_mut().map(|part| part.add_next(window)));
            let Some(divisor) = divisor else { continue };
            let values: usize = here.iter().map(|part| part.entries.len()).sum();
            match values >= window.len() / FEW {
                true => total::divide(window, divisor),
                false => divide(window, &here, divisor),
            }
        }
    });
    elements
}

/// Divides each element that a part has once, though several parts may have it.
fn divide(window: &mut [[u8; 4]], parts: &[Portion<'_>], divisor: f64) {
    let mut divided = [0u64; WINDOW / 64];
    for part in parts {
        for at in part.places() {
            let (word, bit) = (&mut divided[at / 64], 1 << (at % 64));
            if *word & bit == 0 {
                *word |= bit;
                let quotient = f64::from(f32::from_le_bytes(window[at])) / divisor;
                window[at] = to_number(quotient).to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_at_the_edges_of_windows_and_threads_get_their_sums() {
        const SHARE: u64 = (WINDOW * WINDOWS) as u64;
        let window = WINDOW as u64;
        let all = [0, window - 1, window, SHARE - 1, SHARE, SHARE + window, 2 * SHARE - 1];
        let some = [window, SHARE, 2 * SHARE - 1];
        let entries = |positions: &[u64]| -> Vec<Entry> {
            let numbers = (1..=7u8).map(f32::from);
            positions.iter().zip(numbers).map(|(&p, number)| Entry::new(p, number)).collect()
        };
        let (all, some) = (entries(&all), entries(&some));
        let part = |entries, weight| Portion { entries, base: 0, weight };
        let parts = [part(&all[..], 1.0), part(&some[..], 10.0)];
        let sums = sum(vec![0; 8 * SHARE as usize], &parts, Some(2.0));
        let sums = sums.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x));
        let found: Vec<(u64, f32)> = (0..).zip(sums).filter(|(_, x)| *x != 0.0).collect();
        let expected = [1.0, 2.0, 3.0 + 10.0, 4.0, 5.0 + 20.0, 6.0, 7.0 + 30.0].map(|x: f32| x / 2.0);
        let expected: Vec<(u64, f32)> = all.iter().map(|e| e.position()).zip(expected).collect();
        assert_eq!(found, expected);
    }
}
