//! A sender of Sparse Binary Compression (Sattler et al., arXiv 1805.08768), with the paper's communication delay:
//!
//! ```text
//! every step            r <- r + local update
//! every `delay` steps   send sbc(r), r <- r - what was sent      and mask_momenta(what was sent)
//! ```

use super::state;
use crate::block::{Block, Positions};
use crate::compress::source::Source;
use crate::compress::{Amount, Codec, Feedback, Input, Options, compress};
use crate::error::{Error, Result};
use crate::tensor::TensorBuf;

/// The settings of [`Sbc`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SbcOptions {
    /// How many elements of each tensor are sent. Default: a density of 0.001.
    pub amount: Amount,
    /// Steps of the optimiser from message to message, at least 1. Default: 1; the paper goes up to 100.
    pub delay: u64,
    /// How positions are written. Default: whatever is smallest; [`Positions::RiceOne`] is the paper's code.
    pub positions: Positions,
}

impl Default for SbcOptions {
    fn default() -> Self {
        Self { amount: Amount::Density(0.001), delay: 1, positions: Positions::Auto }
    }
}

impl SbcOptions {
    /// Sets [`SbcOptions::amount`].
    #[must_use]
    pub fn with_amount(mut self, amount: Amount) -> Self {
        self.amount = amount;
        self
    }

    /// Sets [`SbcOptions::delay`].
    #[must_use]
    pub fn with_delay(mut self, steps: u64) -> Self {
        self.delay = steps;
        self
    }

    /// Sets [`SbcOptions::positions`].
    #[must_use]
    pub fn with_positions(mut self, positions: Positions) -> Self {
        self.positions = positions;
        self
    }
}

/// The state of one sender of Sparse Binary Compression (arXiv 1805.08768, algorithm 1).
///
/// The momentum of the local optimiser is the caller's: clear it with [`mask_momenta`](crate::compress::senders::mask_momenta) where a message
/// sent something, as the paper does.
///
/// Memory: 4 bytes for each element, 8 inside a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Sbc {
    options: SbcOptions,
    step: u64,
    /// By tensor, what no message held yet: residuals, and the local updates since the last message.
    residuals: Feedback,
}

impl Sbc {
    /// A sender at step 0.
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

    /// The codec of the messages.
    pub fn codec(&self) -> Codec {
        Codec::Sbc { amount: self.options.amount, positions: self.options.positions }
    }

    /// Takes the local updates of one step. Every `delay` steps it gives the blocks of a message, otherwise `None`.
    ///
    /// `inputs`: what the optimiser adds to the weights, in ascending order of the tensors' numbers, all of them in the step
    /// of a message: a tensor that is missing there waits for the next message.
    ///
    /// # Errors
    /// Those of [`compress`]; a sum with the residual that is not finite is one of them. The state is then as it was before.
    pub fn step(&mut self, inputs: &[Input<'_>], options: &Options) -> Result<Option<Vec<Block>>> {
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
        crate::compress::check(inputs, codecs, options, true)?;
        let mut sums = Vec::with_capacity(inputs.len());
        for (input, codec) in inputs.iter().zip(codecs) {
            let source = Source::new(input, *codec, options, Some(&self.residuals));
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

    /// The settings.
    pub fn options(&self) -> &SbcOptions {
        &self.options
    }

    /// The steps that were made, messages or not.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// The residuals, with the local updates since the last message in them.
    pub fn residuals(&self) -> &Feedback {
        &self.residuals
    }

    /// The state as tensors for a checkpoint, beside [`Self::steps`] and the options.
    pub fn save(&self) -> Vec<(String, TensorBuf)> {
        state::save(&self.residuals, [])
    }

    /// The state that [`Self::save`] gave after `steps` steps.
    ///
    /// # Errors
    /// As [`Self::new`]; [`Error::Input`] if a tensor is not of floats.
    pub fn load(
        options: SbcOptions,
        steps: u64,
        tensors: impl IntoIterator<Item = (String, TensorBuf)>,
    ) -> Result<Self> {
        let (residuals, []) = state::load([], tensors)?;
        Ok(Self { step: steps, residuals, ..Self::new(options)? })
    }
}
