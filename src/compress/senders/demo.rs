//! DeMo, decoupled momentum (Peng et al., arXiv 2411.19870): senders transmit the largest cosine coefficients
//! of their momentum and keep the rest of it.
//!
//! ```text
//! m <- decay m + g                                  every sender
//! q = the largest coefficients of each chunk of the DCT-II of m
//! m <- m - the inverse transform of q as receivers decode it
//! Q = the mean of each coefficient over the senders that sent it; step along the sign of its inverse
//! ```

use super::state;
use crate::block::{Block, CodedBlock, Dct, Floats, Sets, Stored, Support, Values};
use crate::compress::codecs::Demo;
use crate::compress::codecs::matrix::numbers_of;
use crate::compress::{Codec, Feedback, Input, Kept, Options, compress};
use crate::error::{Error, InputErrorKind, Result};
use crate::limits::setters;

/// The options of [`DeMo`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct DeMoOptions {
    /// Longest side of a chunk, in elements: 1 to 128. Default: 64, as in the authors' code.
    pub chunk: u64,
    /// Coefficients kept per chunk, at least 1. Default: 32, as in the authors' code.
    pub kept: u64,
    /// Representation of a coefficient: [`Kept::Sign`], [`Kept::F32`], [`Kept::F16`] or [`Kept::Bf16`].
    /// Default: its sign, and the mean magnitude once per block.
    pub values: Kept,
    /// Factor of the momentum per step: 0 to 1. Default: 0.999, as in the authors' code.
    pub decay: f32,
}

impl Default for DeMoOptions {
    fn default() -> Self {
        Self { chunk: 64, kept: 32, values: Kept::Sign, decay: 0.999 }
    }
}

setters! {
    DeMoOptions {
        with_chunk(chunk: u64)
        with_kept(kept: u64)
        with_values(values: Kept)
        with_decay(decay: f32)
    }
}

/// The state of one sender: its momentum, by tensor. Receivers have no state: see [`direction`].
#[derive(Debug, Clone, PartialEq)]
pub struct DeMo {
    options: DeMoOptions,
    /// The momentum, for a checkpoint. It is never transmitted.
    pub momenta: Feedback,
}

impl DeMo {
    /// Returns a sender with zero momentum.
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

    /// Returns the codec of every step.
    pub(crate) fn codec(&self) -> Codec {
        let DeMoOptions { chunk, kept, values, .. } = self.options;
        Codec::Demo(Demo { chunk, kept, values })
    }

    /// Returns the blocks of one step.
    ///
    /// `inputs`: gradients. The authors' code multiplies them by the learning rate; the signs of the result
    /// do not depend on it while it is constant.
    ///
    /// # Errors
    /// The errors of [`compress`]. The state does not change then.
    pub fn step(&mut self, inputs: &[Input<'_>], options: &Options) -> Result<Vec<CodedBlock>> {
        let mut momenta = self.momenta.clone();
        for input in inputs {
            if let Some(momentum) = state::of(&self.momenta, input)? {
                let decayed = momentum.iter().map(|m| self.options.decay * m).collect();
                momenta.set(input.name, input.view.shape(), decayed);
            }
        }
        let blocks = compress(inputs, &vec![self.codec(); inputs.len()], options, Some(&mut momenta))?;
        self.momenta = momenta;
        Ok(blocks)
    }
}

/// Returns the direction of the step of all receivers: -1, 0 or 1 for each element of the blocks' scope.
///
/// `blocks`: the blocks of all senders for one scope, in the order of the senders' numbers. All receivers
/// then get the same bits. Each coefficient is the mean over the senders that sent it, added in the order of
/// `blocks`. This is the authors' rule. [`reduce::Sum`](crate::reduce::Sum) divides by the number of all
/// senders instead, so its signs may differ.
///
/// # Errors
/// [`Error::Input`] if `blocks` is empty, a block has no [`Values::Dct`], or blocks differ in scope or
/// layout.
pub fn direction(blocks: &[&Block]) -> Result<Vec<f32>> {
    let wrong = |i: usize| Error::cannot_reduce("not a transform of the same chunks").of_sender(i as u64);
    let Some(Block { scope, values: Values::Dct(first), .. }) = blocks.first() else {
        return Err(wrong(0));
    };
    let n = first.rows.checked_mul(first.cols).ok_or_else(|| wrong(0))?;
    let len = usize::try_from(n).map_err(|_| wrong(0))?;
    let (mut sums, mut counts) = (vec![0.0f64; len], vec![0u32; len]);
    for (i, block) in blocks.iter().enumerate() {
        let Values::Dct(dct) = &block.values else {
            return Err(wrong(i));
        };
        if block.scope != *scope || !dct.has_layout_of(first) {
            return Err(wrong(i));
        }
        let numbers = numbers_of(&dct.coefficients, dct.count(n)?)?;
        let mut rest = numbers.as_slice();
        dct.support.for_each_run(n, &Sets::new(), &mut |start, len| {
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
    let coefficients = Box::new(Values::Floats(Floats { stored: Stored::F32, bytes }));
    let mean = Values::Dct(Dct { support: Support::All, coefficients, ..*first });
    let mut direction = numbers_of(&mean, n)?;
    for (index, x) in direction.iter_mut().enumerate() {
        if x.is_nan() {
            return Err(Error::input(InputErrorKind::NonFinite { index: index as u64 }));
        }
        *x = if *x == 0.0 { 0.0 } else { 1f32.copysign(*x) };
    }
    Ok(direction)
}
