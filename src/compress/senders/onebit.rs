//! 1-bit Adam (Tang et al., arXiv 2102.02888, algorithm 1): the state of workers and of a server.
//!
//! ```text
//! warm-up, T steps      worker -> server   g                    server -> worker   the mean of g
//!   m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2            Adam, with v frozen at the end
//! afterwards            worker -> server   sign(b1 m + (1 - b1) g + d)      d: the worker's residual
//!                       server -> worker   sign(mean of those + D)           D: the server's residual
//!   m <- the server's message
//! every step            x <- x - learning rate * m / (sqrt(v) + epsilon)
//! ```
//!
//! `sign` is the codec `sign`: signs times mean magnitudes. A [`OneBitWorker`] makes the blocks of a step
//! ([`OneBitWorker::message`]) and takes the tensors of the server's answer ([`OneBitWorker::apply`]). A
//! [`OneBitServer`] takes the mean of the workers' tensors, for example from
//! [`reduce::Sum`](../../reduce/struct.Sum.html), and makes blocks. The workers' weights depend only on the
//! server's messages, so they are equal on all workers, bit for bit.
//!
//! The learning rate has to fall: a step of signs is proportional to the rate and does not vanish by itself,
//! unlike a step of Adam (`tests/compressors/onebit.rs` prints both).
//!
//! Two things are not in the paper. Moments have the bias correction of Adam (arXiv 1412.6980), so that the
//! variance is not too small after a short warm-up. An element whose frozen variance is zero, because it had
//! no gradient in the whole warm-up, does not move: its step would be plus or minus the scale of its
//! neighbours, divided by epsilon.

use super::state::{self, MOMENTUM, VARIANCE};
use crate::block::CodedBlock;
use crate::compress::codecs::Sign;
use crate::compress::source::checked_f32s;
use crate::compress::{Codec, Feedback, Input, Options, Share, compress};
use crate::error::{Error, InputErrorKind, Result};
use crate::limits::setters;
use crate::tensor::TensorBuf;

/// The options that all workers and the server share.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct OneBitOptions {
    /// Steps of the warm-up, at least 1, until the variance is stable. The paper uses 15 to 25 % of all
    /// steps. Default: 1000.
    pub warm_up: u64,
    /// Decay of the momentum, b1: at least 0, less than 1. Default: 0.9.
    pub momentum: f32,
    /// Decay of the variance, b2: at least 0, less than 1. Default: 0.999.
    pub variance: f32,
    /// Term added to the square root of the variance: more than 0. Default: 1e-8.
    pub epsilon: f32,
    /// Elements that share a scale. Default: those of a tensor.
    pub group: Share,
}

impl Default for OneBitOptions {
    fn default() -> Self {
        Self { warm_up: 1000, momentum: 0.9, variance: 0.999, epsilon: 1e-8, group: Share::Tensor }
    }
}

impl OneBitOptions {
    fn check(&self) -> Result<()> {
        let decays = [self.momentum, self.variance].iter().all(|b| (0.0..1.0).contains(b));
        let fits = decays && self.warm_up > 0 && self.epsilon > 0.0 && self.epsilon.is_finite();
        if !fits {
            return Err(Error::bad_option("settings of 1-bit Adam"));
        }
        Codec::Sign(Sign { group: self.group }).check()
    }

    /// Returns the codec of the messages of a step, in both directions.
    pub fn codec(&self, step: u64) -> Codec {
        match step < self.warm_up {
            true => Codec::Raw,
            false => Codec::Sign(Sign { group: self.group }),
        }
    }

    /// Returns the blocks of `values`, one row per input. The codec of the step reads and replaces the
    /// residuals.
    fn blocks(
        &self,
        step: u64,
        inputs: &[Input<'_>],
        values: &[Vec<f32>],
        options: &Options,
        residuals: &mut Feedback,
    ) -> Result<Vec<CodedBlock>> {
        let tensors = inputs.iter().zip(values);
        let tensors = tensors
            .map(|(input, values)| TensorBuf::from_f32(input.view.shape().to_vec(), values))
            .collect::<Result<Vec<_>>>()?;
        let inputs: Vec<Input<'_>> =
            inputs.iter().zip(&tensors).map(|(input, t)| Input { view: t.view(), ..*input }).collect();
        compress(&inputs, &vec![self.codec(step); inputs.len()], options, Some(residuals))
    }
}

setters! {
    OneBitOptions {
        with_warm_up(warm_up: u64)
        with_momentum(momentum: f32)
        with_variance(variance: f32)
        with_epsilon(epsilon: f32)
        with_group(group: Share)
    }
}

/// One worker's state.
///
/// A step is [`Self::message`], then [`Self::apply`]. The saved state changes only in `apply`: if the
/// server's answer is lost, another `message` restarts the step. Between steps, [`Self::save`],
/// [`Self::steps`] and the options are the whole state.
///
/// Memory: 8 bytes per element in the warm-up, then 12, and 16 inside a step.
#[derive(Debug, Clone, PartialEq)]
pub struct OneBitWorker {
    options: OneBitOptions,
    step: u64,
    momenta: Feedback,
    /// By tensor. The bias is removed in the last step of the warm-up.
    variances: Feedback,
    residuals: Feedback,
    /// The residuals after the open step.
    open: Option<Feedback>,
}

impl OneBitWorker {
    /// Returns a worker at step 0.
    ///
    /// # Errors
    /// [`Error::Input`] if a setting is out of its range.
    pub fn new(options: OneBitOptions) -> Result<Self> {
        options.check()?;
        let (momenta, variances, residuals) = (Feedback::new(), Feedback::new(), Feedback::new());
        Ok(Self { options, step: 0, momenta, variances, residuals, open: None })
    }

    /// Begins a step with this worker's gradients. Returns the blocks for the server.
    ///
    /// # Errors
    /// [`Error::Input`] for tensors of another type than f32, NaN or infinity, or a shape that changed, and
    /// those of [`compress`]. The state does not change then.
    pub fn message(&mut self, gradients: &[Input<'_>], options: &Options) -> Result<Vec<CodedBlock>> {
        let mut rows = checked(gradients, options)?;
        if self.step >= self.options.warm_up {
            let b1 = self.options.momentum;
            for (input, row) in gradients.iter().zip(&mut rows) {
                let momentum = state::of(&self.momenta, input)?;
                for (i, x) in row.iter_mut().enumerate() {
                    *x = b1 * momentum.map_or(0.0, |m| m[i]) + (1.0 - b1) * *x;
                }
            }
        }
        let mut residuals = self.residuals.clone();
        let blocks = self.options.blocks(self.step, gradients, &rows, options, &mut residuals)?;
        self.open = Some(residuals);
        Ok(blocks)
    }

    /// Ends a step with the server's decoded message: mean gradients in the warm-up, momenta afterwards.
    ///
    /// Returns a row for each tensor of `received`. The caller multiplies it by the learning rate and
    /// subtracts it from the weights.
    ///
    /// # Errors
    /// [`Error::Input`] if no step is open, and for tensors of another type than f32, NaN or infinity, a
    /// square that is not finite, or a shape that changed. The state does not change then.
    pub fn apply(&mut self, received: &[Input<'_>]) -> Result<Vec<Vec<f32>>> {
        if self.open.is_none() {
            return Err(state::out_of_turn("1-bit Adam has no open step"));
        }
        let OneBitOptions { warm_up, momentum: b1, variance: b2, epsilon, .. } = self.options;
        let t = self.step.saturating_add(1).min(i32::MAX as u64) as i32;
        let without_bias = |b: f32| (1.0 / (1.0 - f64::from(b).powi(t))) as f32;
        let (first, second) = (without_bias(b1), without_bias(b2));
        let (warm, last) = (self.step < warm_up, self.step + 1 == warm_up);
        let mut rows = checked(received, &Options::default())?;
        let mut new = Vec::with_capacity(rows.len());
        for (input, row) in received.iter().zip(&mut rows) {
            let (momentum, variance) = (state::of(&self.momenta, input)?, state::of(&self.variances, input)?);
            let mut m = vec![0.0; row.len()];
            let mut v = variance.map_or_else(|| vec![0.0; row.len()], <[f32]>::to_vec);
            for (i, x) in row.iter_mut().enumerate() {
                let mut frozen = v[i];
                if warm {
                    m[i] = b1 * momentum.map_or(0.0, |m| m[i]) + (1.0 - b1) * *x;
                    v[i] = b2 * v[i] + (1.0 - b2) * *x * *x;
                    frozen = v[i] * second;
                    if !frozen.is_finite() {
                        let kind = InputErrorKind::NonFinite { index: i as u64 };
                        return Err(Error::input(kind).in_tensor(input.tensor));
                    }
                    v[i] = if last { frozen } else { v[i] };
                } else {
                    m[i] = if frozen == 0.0 { 0.0 } else { *x };
                }
                *x = if frozen == 0.0 { 0.0 } else { m[i] * first / (frozen.sqrt() + epsilon) };
            }
            new.push((m, v));
        }
        for (input, (m, v)) in received.iter().zip(new) {
            self.momenta.set(input.name, input.view.shape(), m);
            if warm {
                self.variances.set(input.name, input.view.shape(), v);
            }
        }
        self.residuals = self.open.take().unwrap_or_default();
        self.step += 1;
        Ok(rows)
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Returns the residuals of the messages, by tensor.
    pub fn residuals(&self) -> &Feedback {
        &self.residuals
    }

    /// Returns the momenta, by tensor. They are equal on all workers.
    pub fn momenta(&self) -> &Feedback {
        &self.momenta
    }

    /// Returns the state as tensors for a checkpoint, which also needs [`Self::steps`] and the options. An
    /// open step is not part of it.
    pub fn save(&self) -> Vec<(String, TensorBuf)> {
        state::save(&self.residuals, [(MOMENTUM, &self.momenta), (VARIANCE, &self.variances)])
    }

    /// Restores the state that [`Self::save`] returned after `steps` steps.
    ///
    /// # Errors
    /// The errors of [`Self::new`] and of [`Feedback::load`].
    pub fn load(
        options: OneBitOptions,
        steps: u64,
        tensors: impl IntoIterator<Item = (String, TensorBuf)>,
    ) -> Result<Self> {
        let (residuals, [momenta, variances]) = state::load([MOMENTUM, VARIANCE], tensors)?;
        Ok(Self { step: steps, momenta, variances, residuals, ..Self::new(options)? })
    }
}

/// The server's state. Memory: 4 bytes per element after the warm-up.
#[derive(Debug, Clone, PartialEq)]
pub struct OneBitServer {
    options: OneBitOptions,
    step: u64,
    residuals: Feedback,
}

impl OneBitServer {
    /// Returns a server at step 0.
    ///
    /// # Errors
    /// [`Error::Input`] if a setting is out of its range.
    pub fn new(options: OneBitOptions) -> Result<Self> {
        options.check()?;
        Ok(Self { options, step: 0, residuals: Feedback::new() })
    }

    /// Makes one step. `means`: the means of the workers' tensors. Returns the blocks for all workers.
    ///
    /// # Errors
    /// The errors of [`OneBitWorker::message`]. The state does not change then.
    pub fn message(&mut self, means: &[Input<'_>], options: &Options) -> Result<Vec<CodedBlock>> {
        let rows = checked(means, options)?;
        let blocks = self.options.blocks(self.step, means, &rows, options, &mut self.residuals)?;
        self.step += 1;
        Ok(blocks)
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Returns the residuals of the messages, by tensor.
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
        options: OneBitOptions,
        steps: u64,
        tensors: impl IntoIterator<Item = (String, TensorBuf)>,
    ) -> Result<Self> {
        let (residuals, []) = state::load([], tensors)?;
        Ok(Self { step: steps, residuals, ..Self::new(options)? })
    }
}

fn checked(inputs: &[Input<'_>], options: &Options) -> Result<Vec<Vec<f32>>> {
    inputs.iter().map(|input| checked_f32s(input, options, "1-bit Adam")).collect()
}
