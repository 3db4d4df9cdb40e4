//! Sums of sparse updates without expanding them.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::arch::pages;
use crate::block::values::{Content, to_number};
use crate::block::{Block, RawBlock, Scope, Sets, Sparse, Stored, Support, ValuesId};
use crate::error::Result;
use crate::frame::Manifest;
use crate::limits::{Budget, in_memory};

/// Elements that are summed in one step, so that they stay in the second-level cache.
const WINDOW: usize = 1 << 15;
/// Windows that one thread sums one after the other.
const WINDOWS: usize = 32;

/// Whether a block can be added to a sum by its positions alone.
pub(super) fn takes(block: &Block) -> bool {
    matches!(block.support, Support::Sparse(_))
        && !matches!(block.scope, Scope::Range { .. })
        && !block.add
        && !matches!(block.values.facts().content, Content::Ulps(_))
}

/// Whether [`takes`] accepts a block once it is decoded.
pub(super) fn takes_raw(raw: &RawBlock<'_>) -> bool {
    raw.is_sparse() && !matches!(raw.scope, Scope::Range { .. }) && !raw.add && raw.values_id != ValuesId::ULP
}

/// A sparse block of a sender, with its values as numbers.
pub(super) struct Decoded<'a> {
    positions: &'a [u64],
    numbers: Cow<'a, [[u8; 4]]>,
    weight: f64,
    first: usize,
    lens: Vec<u64>,
}

impl<'a> Decoded<'a> {
    /// Reads a block of f32 tensors that [`takes`] accepts.
    pub(super) fn new(
        block: &'a Block,
        manifest: &Manifest,
        sets: &Sets,
        budget: &Budget,
        weight: f64,
    ) -> Result<Self> {
        let space = manifest.space(block.scope, 0)?;
        let positions = match &block.support {
            Support::Sparse(Sparse { positions }) => positions.as_slice(),
            _ => &[],
        };
        let numbers = match block.values.facts().content {
            Content::Elements(Stored::Source, bytes) => Cow::Borrowed(bytes.as_chunks().0),
            _ => Cow::Owned(block.numbers(&space, sets, budget)?.iter().map(|x| x.to_le_bytes()).collect()),
        };
        Ok(Self {
            positions,
            numbers,
            weight,
            first: in_memory(block.scope.first()),
            lens: space.lens.to_vec(),
        })
    }

    /// Calls `f` with each tensor of the block and the part that belongs to it.
    pub(super) fn for_each_part<'s>(&'s self, mut f: impl FnMut(usize, Portion<'s>)) {
        let (mut base, mut from) = (0, 0);
        for (tensor, &len) in (self.first..).zip(&self.lens) {
            let to = from + self.positions[from..].partition_point(|&p| p < base + len);
            let (positions, numbers) = (&self.positions[from..to], &self.numbers[from..to]);
            f(tensor, Portion { positions, numbers, base, weight: self.weight });
            (base, from) = (base + len, to);
        }
    }
}

/// The values of one sender for one tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portion<'a> {
    positions: &'a [u64],
    numbers: &'a [[u8; 4]],
    /// Position of the first element that the part is about.
    base: u64,
    weight: f64,
}

impl<'a> Portion<'a> {
    /// Returns the elements from `start` on.
    fn from(self, start: usize) -> Self {
        let base = self.base + start as u64;
        let at = self.positions.partition_point(|&p| p < base);
        Self { positions: &self.positions[at..], numbers: &self.numbers[at..], base, ..self }
    }

    /// Takes the first `len` elements.
    fn take(&mut self, len: usize) -> Self {
        let base = self.base + len as u64;
        // Few are in a window, and the search ends in the elements that are read next.
        let mut at = 1;
        while self.positions.get(at).is_some_and(|&p| p < base) {
            at *= 2;
        }
        let near = &self.positions[at / 2..self.positions.len().min(at)];
        let at = at / 2 + near.partition_point(|&p| p < base);
        let taken = Self { positions: &self.positions[..at], numbers: &self.numbers[..at], ..*self };
        *self = Self { positions: &self.positions[at..], numbers: &self.numbers[at..], base, ..*self };
        taken
    }

    /// Returns the places of the positions.
    fn places(&self) -> impl Iterator<Item = usize> + use<'a> {
        let base = self.base;
        self.positions.iter().map(move |&position| in_memory(position - base))
    }
}

/// Returns the `len` elements of an f32 tensor with the sum of all parts, added in their order, and divided
/// by `divisor`, which is more than 0.
///
/// Elements without a value stay zero: adding zero and dividing zero do not change them.
pub(super) fn sum(len: usize, parts: &[Portion<'_>], divisor: Option<f64>) -> Vec<u8> {
    let mut elements = pages::zeros(4 * len);
    elements.par_chunks_mut(4 * WINDOW * WINDOWS).enumerate().for_each(|(i, windows)| {
        let mut rest: Vec<Portion<'_>> = parts.iter().map(|part| part.from(i * WINDOW * WINDOWS)).collect();
        let mut here = Vec::with_capacity(rest.len());
        for window in windows.chunks_mut(4 * WINDOW) {
            let window = window.as_chunks_mut::<4>().0;
            here.clear();
            here.extend(rest.iter_mut().map(|part| part.take(window.len())));
            here.iter().for_each(|part| add(window, part));
            if let Some(divisor) = divisor {
                divide(window, &here, divisor);
            }
        }
    });
    elements
}

fn add(window: &mut [[u8; 4]], part: &Portion<'_>) {
    for (at, &number) in part.places().zip(part.numbers) {
        let (element, number) = (&mut window[at], f32::from_le_bytes(number));
        let term = if part.weight == 1.0 { number } else { (part.weight * f64::from(number)) as f32 };
        *element = to_number(f64::from(f32::from_le_bytes(*element) + term)).to_le_bytes();
    }
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
        let numbers: Vec<[u8; 4]> = (1..=7u8).map(|i| f32::from(i).to_le_bytes()).collect();
        let part = |positions, weight| Portion { positions, numbers: &numbers, base: 0, weight };
        let parts = [part(&all[..], 1.0), Portion { numbers: &numbers[..3], ..part(&some[..], 10.0) }];
        let sums = sum(2 * SHARE as usize, &parts, Some(2.0));
        let sums = sums.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x));
        let found: Vec<(u64, f32)> = (0..).zip(sums).filter(|(_, x)| *x != 0.0).collect();
        let expected = [1.0, 2.0, 3.0 + 10.0, 4.0, 5.0 + 20.0, 6.0, 7.0 + 30.0].map(|x: f32| x / 2.0);
        assert_eq!(found, all.into_iter().zip(expected).collect::<Vec<_>>());
    }
}
