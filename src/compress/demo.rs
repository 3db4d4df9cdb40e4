//! DeMo, decoupled momentum (Peng et al., arXiv 2411.19870): the momentum's largest cosine coefficients travel, the rest of
//! the momentum stays with its sender.
//!
//! ```text
//! m <- decay m + g                                  every sender
//! q = the largest coefficients of each chunk of the DCT-II of m
//! m <- m - what the receivers make of q
//! Q = the mean of each coefficient over the senders that sent it; step along the sign of its inverse
//! ```
//!
//! A matrix is cut into chunks whose sides are the largest divisors of its dimensions that are at most `chunk`, as the authors'
//! code has it; a tensor of more than two dimensions is the matrix of its first and the product of the others, and a vector is
//! cut into runs. Where a dimension is a large prime that leaves chunks of one row or one element, and what is kept of each is
//! at most all of it.

use super::chunked::{largest, support_of};
use super::source::{CHUNK, Source};
use super::sparse::{floats, mean_magnitude};
use super::{Codec, Feedback, Input, Kept, Options, compress};
use crate::block::values::dct::{Layout, MAX_SIDE, coefficients_of};
use crate::block::values::numbers as values_numbers;
use crate::block::{Bits, Block, Groups, ScaleFormat, Scales, Scope, Sets, Stored, Support, Values, support};
use crate::element::{max_finite, round_f32s};
use crate::error::{Error, InputErrorKind, Result};
use crate::limits::{Budget, Limits};
use crate::tensor::Dtype;

/// The longest side of a chunk.
pub(super) const MAX_CHUNK: u64 = MAX_SIDE as u64;

/// What is asked of each tensor.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) chunk: u64,
    pub(super) kept: u64,
    pub(super) values: Kept,
}

/// A tensor as a matrix in chunks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct View {
    rows: u64,
    cols: u64,
    chunk_rows: u64,
    chunk_cols: u64,
}

impl View {
    /// Of a tensor of this shape that has elements.
    fn new(shape: &[u64], chunk: u64) -> Self {
        let side = |dim: u64| (1..=chunk.min(dim)).rev().find(|s| dim.is_multiple_of(*s)).unwrap_or(1);
        match shape {
            [] => Self { rows: 1, cols: 1, chunk_rows: 1, chunk_cols: 1 },
            // Runs of a vector are rows, so that a long one can be sent in several blocks.
            [n] => Self { rows: n / side(*n), cols: side(*n), chunk_rows: 1, chunk_cols: side(*n) },
            [rows, rest @ ..] => {
                let cols = rest.iter().product();
                Self { rows: *rows, cols, chunk_rows: side(*rows), chunk_cols: side(cols) }
            }
        }
    }

    fn area(&self) -> u64 {
        self.chunk_rows * self.chunk_cols
    }
}

/// Blocks of a run of tensors, each of whole rows of chunks of one of them.
pub(super) fn blocks(
    tensors: &mut [Source<'_>],
    inputs: &[Input<'_>],
    settings: Settings,
    options: &Options,
    blocks: &mut Vec<Block>,
) -> Result<()> {
    for (tensor, input) in tensors.iter_mut().zip(inputs).filter(|(tensor, _)| tensor.len > 0) {
        let view = View::new(input.view.shape(), settings.chunk);
        let of_row = view.chunk_rows * view.cols;
        let step = of_row * (options.block_len / of_row).max(1);
        for start in (0..tensor.len as u64).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let len = step.min(tensor.len as u64 - start);
            blocks.push(block(tensor, view, start, len, settings)?);
        }
    }
    Ok(())
}

/// The block of the elements `start .. start + len`, whole rows of chunks.
fn block(tensor: &mut Source<'_>, view: View, start: u64, len: u64, settings: Settings) -> Result<Block> {
    let range = start as usize..(start + len) as usize;
    let of_row = (view.chunk_rows * view.cols) as usize;
    let layout = Layout::new(view.cols, view.chunk_rows, view.chunk_cols);
    let found = tensor.scan(range.clone(), of_row * (CHUNK / of_row).max(1), |chunk| {
        chunk.whole(|_, elements| {
            let all_finite = elements.iter().all(|x| x.is_finite());
            let chunks = 0..elements.len() / layout.area();
            let kept = |number| largest(&layout.coefficients(number, elements), settings.kept);
            all_finite.then(|| chunks.map(kept).collect::<Vec<_>>())
        })
    });
    let (mut positions, mut numbers, mut at) = (Vec::new(), Vec::new(), 0);
    for part in found {
        let Some(chunks) = part else { return Err(tensor.non_finite()) };
        for (of_chunk, coefficients) in chunks {
            positions.extend(of_chunk.iter().map(|&p| at + u64::from(p)));
            numbers.extend(coefficients.into_iter().map(finite));
            at += view.area();
        }
    }
    let support = support_of(positions, settings.kept, view.area(), len);
    let (values, mut decoded) = loop {
        let coefficients = Box::new(coefficients(settings.values, &numbers));
        let View { cols, chunk_rows, chunk_cols, .. } = view;
        let support = support.clone();
        let values = Values::Dct { rows: len / cols, cols, chunk_rows, chunk_cols, support, coefficients };
        if tensor.residual_after.is_none() && surely_fits(tensor.dtype, &numbers, settings.kept) {
            break (values, Vec::new());
        }
        let decoded = numbers_of(&values, len)?;
        let max = max_finite(tensor.dtype);
        if decoded.iter().all(|x| x.abs() <= max) {
            break (values, decoded);
        }
        // Part of a sum may be larger than the whole, and than the tensor's type holds.
        numbers.iter_mut().for_each(|x| *x *= 0.5);
    };
    if let Some(after) = &mut tensor.residual_after {
        round_f32s(tensor.dtype, &mut decoded)?;
        after[range].iter_mut().zip(&decoded).for_each(|(x, d)| *x = finite(*x - d));
    }
    let scope = match len == tensor.len as u64 {
        true => Scope::Tensor(tensor.tensor),
        false => Scope::Range { tensor: tensor.tensor, start, len },
    };
    Ok(Block { scope, add: false, support: Support::All, values })
}

/// A number that was made of finite ones, no larger than the largest.
pub(super) fn finite(x: f32) -> f32 {
    x.clamp(-f32::MAX, f32::MAX)
}

/// Whether an element, the sum of `kept` coefficients times at most 2, cannot exceed the type.
fn surely_fits(dtype: Dtype, numbers: &[f32], kept: u64) -> bool {
    let largest = numbers.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    // The mean of magnitudes and a rounding to 16 bits are no larger than twice the largest.
    f64::from(largest) * 4.0 * kept as f64 <= f64::from(max_finite(dtype))
}

/// What a receiver makes of values that are a whole matrix of `n` elements.
pub(super) fn numbers_of(values: &Values, n: u64) -> Result<Vec<f32>> {
    let mut decoded = vec![0.0; n as usize];
    let limits = Limits::default().with_max_alloc_bytes(u64::MAX);
    values_numbers(values, &[], &Budget::new(&limits), &mut decoded)?;
    Ok(decoded)
}

fn coefficients(kept: Kept, numbers: &[f32]) -> Values {
    match kept {
        Kept::Sign => {
            let scales = Scales::from_f32s(ScaleFormat::F32, &[mean_magnitude(numbers)]);
            let negative: Bits = numbers.iter().map(|x| x.is_sign_negative()).collect();
            Values::Sign { groups: Groups::Block, scales, negative }
        }
        // As for elements of 64 bits: nested values have no element type to be stored as.
        kept => match floats(Dtype::F64, kept, numbers) {
            Ok((values, _)) => values,
            Err(_) => Values::Floats { stored: Stored::F32, bytes: Vec::new() },
        },
    }
}

/// The settings of [`DeMo`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct DeMoOptions {
    /// The longest side of a chunk: 1 to 128. Default: 64, as the authors' code.
    pub chunk: u64,
    /// Coefficients kept of each chunk, at least 1. Default: 32, as the authors' code.
    pub kept: u64,
    /// What is sent of a coefficient: [`Kept::Sign`], [`Kept::F32`], [`Kept::F16`] or [`Kept::Bf16`]. Default: its sign, and
    /// the mean magnitude once for each block.
    pub values: Kept,
    /// What is left of the momentum from step to step: 0 to 1. Default: 0.999, as the authors' code.
    pub decay: f32,
}

impl Default for DeMoOptions {
    fn default() -> Self {
        Self { chunk: 64, kept: 32, values: Kept::Sign, decay: 0.999 }
    }
}

impl DeMoOptions {
    /// Sets [`DeMoOptions::chunk`].
    #[must_use]
    pub fn with_chunk(mut self, chunk: u64) -> Self {
        self.chunk = chunk;
        self
    }

    /// Sets [`DeMoOptions::kept`].
    #[must_use]
    pub fn with_kept(mut self, kept: u64) -> Self {
        self.kept = kept;
        self
    }

    /// Sets [`DeMoOptions::values`].
    #[must_use]
    pub fn with_values(mut self, values: Kept) -> Self {
        self.values = values;
        self
    }

    /// Sets [`DeMoOptions::decay`].
    #[must_use]
    pub fn with_decay(mut self, decay: f32) -> Self {
        self.decay = decay;
        self
    }
}

/// The state of one sender: its momentum, by tensor. Receivers have none: see [`direction`].
#[derive(Debug, Clone, PartialEq)]
pub struct DeMo {
    options: DeMoOptions,
    momenta: Feedback,
}

impl DeMo {
    /// A sender without momentum.
    ///
    /// # Errors
    /// [`Error::Input`] if an option is out of its range.
    pub fn new(options: DeMoOptions) -> Result<Self> {
        if !(0.0..=1.0).contains(&options.decay) {
            return Err(Error::bad_option("decay"));
        }
        let demo = Self { options, momenta: Feedback::new() };
        demo.codec().check()?;
        Ok(demo)
    }

    /// The codec of a step.
    pub fn codec(&self) -> Codec {
        let DeMoOptions { chunk, kept, values, .. } = self.options;
        Codec::Demo { chunk, kept, values }
    }

    /// The blocks of one step. `inputs`: gradients, times the learning rate as the authors' code has it, or not: signs do
    /// not depend on it while it is constant.
    ///
    /// # Errors
    /// Those of [`compress`]; the state is then as it was.
    pub fn step(&mut self, inputs: &[Input<'_>], options: &Options) -> Result<Vec<Block>> {
        let mut momenta = self.momenta.clone();
        for input in inputs {
            let before = self.momenta.of(input.name, input.view.shape());
            if let Some(momentum) = before.map_err(|e| e.in_tensor(input.tensor))? {
                let decayed = momentum.iter().map(|m| self.options.decay * m).collect();
                momenta.set(input.name, input.view.shape(), decayed);
            }
        }
        let blocks = compress(inputs, &vec![self.codec(); inputs.len()], options, Some(&mut momenta))?;
        self.momenta = momenta;
        Ok(blocks)
    }

    /// The momentum, for a checkpoint. It never travels.
    pub fn momenta(&self) -> &Feedback {
        &self.momenta
    }

    /// Takes up the momentum of a checkpoint.
    pub fn set_momenta(&mut self, momenta: Feedback) {
        self.momenta = momenta;
    }
}

/// What all receivers step along, once they have the senders' blocks of one scope: -1, 0 or 1 for each element of the scope.
///
/// Each coefficient becomes the mean of those that were sent for it, added in the order of `blocks`: give them in the order of
/// their senders' numbers, and all receivers get the same bits. That is the authors' rule; [`reduce::Sum`](crate::reduce::Sum)
/// divides by the number of all senders instead, and its signs may differ.
///
/// # Errors
/// [`Error::Input`] if there is no block, one is not of [`Values::Dct`], or they differ in scope or layout.
pub fn direction(blocks: &[&Block]) -> Result<Vec<f32>> {
    let wrong = |i: usize| Error::cannot_reduce("it is no transform of the same chunks").of_sender(i as u64);
    let Some(Block { scope, values: Values::Dct { rows, cols, chunk_rows, chunk_cols, .. }, .. }) =
        blocks.first()
    else {
        return Err(wrong(0));
    };
    let n = rows.checked_mul(*cols).ok_or_else(|| wrong(0))?;
    let len = usize::try_from(n).map_err(|_| wrong(0))?;
    let (mut sums, mut counts) = (vec![0.0f64; len], vec![0u32; len]);
    for (i, block) in blocks.iter().enumerate() {
        let Values::Dct { rows: r, cols: c, chunk_rows: a, chunk_cols: b, support, coefficients } =
            &block.values
        else {
            return Err(wrong(i));
        };
        if block.scope != *scope || (r, c, a, b) != (rows, cols, chunk_rows, chunk_cols) {
            return Err(wrong(i));
        }
        let numbers = numbers_of(coefficients, coefficients_of(&block.values, n)?)?;
        let mut rest = numbers.as_slice();
        support::for_each_run(support, n, &Sets::new(), &mut |start, len| {
            let (mine, others) = rest.split_at(len as usize);
            for (at, x) in (start as usize..).zip(mine) {
                sums[at] += f64::from(*x);
                counts[at] += 1;
            }
            rest = others;
            Ok(())
        })?;
    }
    let means = sums.iter().zip(&counts).map(|(s, &c)| (s / f64::from(c.max(1))) as f32);
    let bytes = means.flat_map(f32::to_le_bytes).collect();
    let coefficients = Box::new(Values::Floats { stored: Stored::F32, bytes });
    let (rows, cols, chunk_rows, chunk_cols) = (*rows, *cols, *chunk_rows, *chunk_cols);
    let mean = Values::Dct { rows, cols, chunk_rows, chunk_cols, support: Support::All, coefficients };
    let mut direction = numbers_of(&mean, n)?;
    for (index, x) in direction.iter_mut().enumerate() {
        if x.is_nan() {
            return Err(Error::input(InputErrorKind::NonFinite { index: index as u64 }));
        }
        *x = if *x == 0.0 { 0.0 } else { 1f32.copysign(*x) };
    }
    Ok(direction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_those_of_the_authors() {
        let view = |shape: &[u64]| {
            let View { rows, cols, chunk_rows, chunk_cols } = View::new(shape, 64);
            [rows, cols, chunk_rows, chunk_cols]
        };
        assert_eq!(view(&[]), [1, 1, 1, 1]);
        assert_eq!(view(&[1000]), [20, 50, 1, 50]);
        assert_eq!(view(&[768, 3072]), [768, 3072, 64, 64]);
        assert_eq!(view(&[64, 3, 7, 7]), [64, 147, 64, 49]);
        assert_eq!(view(&[10, 67]), [10, 67, 10, 1]);
    }

    #[test]
    fn positions_take_the_smaller_form() {
        let spread =
            |kept: u64| (0..8).flat_map(move |c| (0..kept).map(move |i| c * 4096 + i * (4096 / kept)));
        let of = |kept| support_of(spread(kept).collect(), kept, 4096, 8 * 4096);
        assert!(matches!(of(1), Support::Chunked { .. }));
        assert!(matches!(of(32), Support::Sparse(_)));
        assert_eq!(support_of((0..20).collect(), 10, 10, 20), Support::All);
    }
}
