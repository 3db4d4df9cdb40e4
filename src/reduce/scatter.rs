//! Sums of sparse updates without expanding them.

use rayon::prelude::*;

use crate::arch::pages;
use crate::block::values::{Content, to_number};
use crate::block::{Block, Scope, Sets, Sparse, Stored, Support};
use crate::error::Result;
use crate::frame::Manifest;
use crate::limits::{Budget, in_memory};
use crate::tensor::Dtype;
use crate::tensor::element::decode_f32s;

/// Elements that are summed in one step, so that they stay in the second-level cache.
const WINDOW: usize = 1 << 15;

/// Whether a block can be added to a sum by its positions alone.
pub(super) fn takes(block: &Block) -> bool {
    matches!(block.support, Support::Sparse(_))
        && !matches!(block.scope, Scope::Range { .. })
        && !block.add
        && !matches!(block.values.facts().content, Content::Ulps(_))
}

/// A sparse block of a sender, with its values as numbers.
pub(super) struct Decoded<'a> {
    positions: &'a [u64],
    numbers: Vec<f32>,
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
            Content::Elements(Stored::Source, bytes) => {
                let mut numbers = vec![0.0; budget.reserve_items::<f32>(positions.len() as u64, 0)?];
                decode_f32s(Dtype::F32, bytes, 0, &mut numbers)?;
                numbers
            }
            _ => block.numbers(&space, sets, budget)?,
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
    pub(super) fn for_each_part<'s>(&'s self, mut f: impl FnMut(usize, Part<'s>)) {
        let (mut base, mut from) = (0, 0);
        for (tensor, &len) in (self.first..).zip(&self.lens) {
            let to = from + self.positions[from..].partition_point(|&p| p < base + len);
            let (positions, numbers) = (&self.positions[from..to], &self.numbers[from..to]);
            f(tensor, Part { positions, numbers, base, weight: self.weight });
            (base, from) = (base + len, to);
        }
    }
}

/// The values of one sender for one tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    positions: &'a [u64],
    numbers: &'a [f32],
    /// Position of the tensor's first element.
    base: u64,
    weight: f64,
}

impl Part<'_> {
    /// Returns the positions and numbers of the `len` elements from `start` on, with the position of the
    /// first.
    fn within(&self, start: usize, len: usize) -> (u64, &[u64], &[f32]) {
        let first = self.base + start as u64;
        let from = self.positions.partition_point(|&p| p < first);
        let to = from + self.positions[from..].partition_point(|&p| p < first + len as u64);
        (first, &self.positions[from..to], &self.numbers[from..to])
    }
}

/// Returns the `len` elements of an f32 tensor with the sum of all parts, added in their order, and divided
/// by `divisor`, which is more than 0.
///
/// Elements without a value stay zero: adding zero and dividing zero do not change them.
pub(super) fn sum(len: usize, parts: &[Part<'_>], divisor: Option<f64>) -> Vec<u8> {
    let mut elements = pages::zeros(4 * len);
    elements.par_chunks_mut(4 * WINDOW).enumerate().for_each(|(i, window)| {
        let (start, window) = (i * WINDOW, window.as_chunks_mut::<4>().0);
        for part in parts {
            let (first, positions, numbers) = part.within(start, window.len());
            for (&position, &number) in positions.iter().zip(numbers) {
                let element = &mut window[in_memory(position - first)];
                let term = if part.weight == 1.0 { number } else { (part.weight * f64::from(number)) as f32 };
                *element = to_number(f64::from(f32::from_le_bytes(*element) + term)).to_le_bytes();
            }
        }
        let Some(divisor) = divisor else { return };
        // Each element is divided once, though several parts may have it.
        let mut divided = [0u64; WINDOW / 64];
        for part in parts {
            let (first, positions, _) = part.within(start, window.len());
            for at in positions.iter().map(|&position| in_memory(position - first)) {
                let (word, bit) = (&mut divided[at / 64], 1 << (at % 64));
                if *word & bit == 0 {
                    *word |= bit;
                    let quotient = f64::from(f32::from_le_bytes(window[at])) / divisor;
                    window[at] = to_number(quotient).to_le_bytes();
                }
            }
        }
    });
    elements
}
