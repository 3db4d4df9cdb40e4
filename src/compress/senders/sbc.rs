//! A sender of Sparse Binary Compression (Sattler et al., arXiv 1805.08768) with the paper's communication
//! delay.
//!
//! ```text
//! every step            r <- r + local update
//! every `delay` steps   q = sbc(r), send q, r <- r - q, mask_momenta(q)
//! ```

use super::state;
use crate::block::{CodedBlock, Positions};
use crate::compress::codecs;
use crate::compress::source::Source;
use crate::compress::update::check;
use crate::compress::{Amount, Codec, Feedback, Input, Options, compress};
use crate::error::{Error, Result};
use crate::limits::setters;
use crate::tensor::TensorBuf;

/// The options of [`SbcSender`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SbcOptions {
    /// Number of elements sent per tensor. Default: a density of 0.001.
    pub amount: Amount,
    /// Steps of the optimiser per message, at least 1. Default: 1. The paper uses up to 100.
    pub delay: u64,
    /// Coding of positions. Default: the smallest. [`Positions::RiceOne`] is the paper's code.
    pub positions: Positions,
}

impl Default for SbcOptions {
    fn default() -> Self {
        Self { amount: Amount::Density(0.001), delay: 1, positions: Positions::Auto }
    }
}

setters! {
    SbcOptions {
        with_amount(amount: Amount)
        with_delay(delay: u64)
        with_positions(positions: Positions)
    }
}

/// The state of one sender of Sparse Binary Compression (arXiv 1805.08768, algorithm 1).
///
/// The caller keeps the momentum of the local optimiser, and clears it with
/// [`mask_momenta`](crate::compress::senders::mask_momenta) after each message, as the paper does.
///
/// Memory: 4 bytes per element, 8 inside a step.
#[derive(Debug, Clone, PartialEq)]
pub struct SbcSender {
    options: SbcOptions,
    step: u64,
    /// By tensor: the residual plus the local updates since the last message.
    residuals: Feedback,
}

impl SbcSender {
    /// Returns a sender at step 0.
    ///
    /// # Errors
    /// [`Error::Input`] if an option is out of its range.
    pub fn new(options: SbcOptions) -> Result<Self> {
        let sender = Self { options, step: 0, residuals: Feedback::new() };
        sender.codec().check()?;
        match sender.options.delay {
            0 => Err(Error::bad_option("delay")),
            _ => Ok(sender),
        }
    }

    /// Returns the codec of the messages.
    pub(crate) fn codec(&self) -> Codec {
        Codec::Sbc(codecs::Sbc { amount: self.options.amount, positions: self.options.positions })
    }

    /// Adds the local updates of one step. Returns the blocks of a message every `delay` steps, otherwise
    /// `None`.
    ///
    /// `inputs`: the changes that the optimiser makes to the weights, in ascending order of tensor numbers. A
    /// tensor that is missing in the step of a message waits for the next message.
    ///
    /// # Errors
    /// The errors of [`compress`], also if the sum of an update and the residual is not finite. The state
    /// does not change then.
    pub fn step(&mut self, inputs: &[Input<'_>], options: &Options) -> Result<Option<Vec<CodedBlock>>> {
        let codecs = vec![self.codec(); inputs.len()];
        let sent = match (self.step + 1).is_multiple_of(self.options.delay) {
            true => Some(compress(inputs, &codecs, options, Some(&mut self.residuals))?),
            false => {
                self.accumulate(inputs, &codecs, options)?;
                None
            }
        };
        self.step += 1;
        Ok(sent)
    }

    fn accumulate(&mut self, inputs: &[Input<'_>], codecs: &[Codec], options: &Options) -> Result<()> {
        check(inputs, codecs, options, true)?;
        let mut sums = Vec::with_capacity(inputs.len());
        for (input, codec) in inputs.iter().zip(codecs) {
            let source = Source::new(input, codec.is_lossy(), options, Some(&self.residuals));
            let source = source.map_err(|e| e.in_tensor(input.tensor))?;
            let mut sum = vec![0.0; source.len];
            source.read(0, &mut sum);
            if sum.iter().any(|x| !x.is_finite()) {
                return Err(source.non_finite());
            }
            sums.push(sum);
        }
        for (input, sum) in inputs.iter().zip(sums) {
            self.residuals.set(input.name, input.view.shape(), sum);
        }
        Ok(())
    }

    /// Returns the options.
    pub fn options(&self) -> &SbcOptions {
        &self.options
    }

    /// Returns the number of steps so far, with and without messages.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Returns the residuals, including the local updates since the last message.
    pub fn residuals(&self) -> &Feedback {
        &self.residuals
    }

    /// Returns the state as tensors for a checkpoint, which also needs [`Self::steps`] and the options.
    pub fn save(&self) -> Vec<(String, TensorBuf)> {
        state::save(&self.residuals, [])
    }

    /// Restores the state that [`Self::save`] returned after `steps` steps.
    ///
    /// # Errors
    /// The errors of [`Self::new`] and of [`Feedback::load`].
    pub fn load(
        options: SbcOptions,
        steps: u64,
        tensors: impl IntoIterator<Item = (String, TensorBuf)>,
    ) -> Result<Self> {
        let (residuals, []) = state::load([], tensors)?;
        Ok(Self { step: steps, residuals, ..Self::new(options)? })
    }
}
