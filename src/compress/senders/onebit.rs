//! 1-bit Adam (Tang et al., arXiv 2102.02888, algorithm 1) as state of workers and of a server.
//!
//! ```text
//! warm-up, T steps      worker -> server   g, as it is          server -> worker   the mean of g
//!   m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2            Adam, with v frozen at the end
//! afterwards            worker -> server   sign(b1 m + (1 - b1) g + d)      d: what that left over, the worker's
//!                       server -> worker   sign(mean of those + D)           D: what that left over, the server's
//!   m <- what the server sent
//! every step            x <- x - learning rate * m / (sqrt(v) + epsilon)
//! ```
//!
//! `sign` stands for signs times mean magnitudes, the codec `sign`. Each side is a pair of calls: a [`Worker`] gives blocks
//! ([`Worker::message`]) and takes the tensors that came back ([`Worker::apply`]); a [`Server`] takes the mean of the workers'
//! tensors, as [`reduce::Sum`](../../reduce/struct.Sum.html) gives it, and gives blocks. What workers do depends on nothing but
//! what the server sent, so all of them keep the same weights, bit for bit.
//!
//! The learning rate has to fall: what signs add is a part of the rate and does not vanish by itself, where Adam's steps do
//! (`tests/compressors/onebit.rs` prints both).
//!
//! Two things are not in the paper. Moments have the bias correction of Adam (arXiv 1412.6980), so that a short warm-up does
//! not leave a variance that is too small. And an element whose frozen variance is zero, one that had no gradient in all of
//! the warm-up, does not move: its sign would be plus or minus the scale of its neighbours, divided by epsilon.

use super::state::{self, MOMENTUM, VARIANCE};
use crate::block::Block;
use crate::compress::source::checked_f32s;
use crate::compress::{Codec, Feedback, Input, Options, Share, compress};
use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::TensorBuf;

/// What workers and server have alike.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// Steps of the warm-up, at least 1: until the variance is stable; the paper takes 15 to 25 % of all. Default: 1000.
    pub warm_up: u64,
    /// Decay of the momentum, b1: at least 0, less than 1. Default: 0.9.
    pub momentum: f32,
    /// Decay of the variance, b2: at least 0, less than 1. Default: 0.999.
    pub variance: f32,
    /// Added to the square root of the variance: more than 0. Default: 1e-8.
    pub epsilon: f32,
    /// Which elements share a scale. Default: those of a tensor.
    pub group: Share,
}

impl Default for Settings {
    fn default() -> Self {
        Self { warm_up: 1000, momentum: 0.9, variance: 0.999, epsilon: 1e-8, group: Share::Tensor }
    }
}

impl Settings {
    /// Sets [`Settings::warm_up`].
    #[must_use]
    pub fn with_warm_up(mut self, steps: u64) -> Self {
        self.warm_up = steps;
        self
    }

    /// Sets [`Settings::momentum`].
    #[must_use]
    pub fn with_momentum(mut self, momentum: f32) -> Self {
        self.momentum = momentum;
        self
    }

    /// Sets [`Settings::variance`].
    #[must_use]
    pub fn with_variance(mut self, variance: f32) -> Self {
        self.variance = variance;
        self
    }

    /// Sets [`Settings::epsilon`].
    #[must_use]
    pub fn with_epsilon(mut self, epsilon: f32) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// Sets [`Settings::group`].
    #[must_use]
    pub fn with_group(mut self, group: Share) -> Self {
        self.group = group;
        self
    }

    fn check(&self) -> Result<()> {
        let decays = [self.momentum, self.variance].iter().all(|b| (0.0..1.0).contains(b));
        let fits = decays && self.warm_up > 0 && self.epsilon > 0.0 && self.epsilon.is_finite();
        if !fits {
            return Err(Error::bad_option("settings of 1-bit Adam"));
        }
        Codec::Sign { group: self.group }.check()
    }

    /// The codec of the messages of a step, in both directions.
    pub fn codec(&self, step: u64) -> Codec {
        match step < self.warm_up {
            true => Codec::Raw,
            false => Codec::Sign { group: self.group },
        }
    }

    /// The blocks of `values`, one row for each input. Residuals are taken up and left as the codec of the step does.
    fn blocks(
        &self,
        step: u64,
        inputs: &[Input<'_>],
        values: &[Vec<f32>],
        options: &Options,
        residuals: &mut Feedback,
    ) -> Result<Vec<Block>> {
        let tensors = inputs.iter().zip(values);
        let tensors = tensors
            .map(|(input, values)| TensorBuf::from_f32(input.view.shape().to_vec(), values))
            .collect::<Result<Vec<_>>>()?;
        let inputs: Vec<Input<'_>> =
            inputs.iter().zip(&tensors).map(|(input, t)| Input { view: t.view(), ..*input }).collect();
        compress(&inputs, &vec![self.codec(step); inputs.len()], options, Some(residuals))
    }
}

/// One worker's state.
///
/// A step is [`Self::message`] and then [`Self::apply`]. Nothing changes for good before `apply`: a step whose answer never
/// came is begun again by another `message`. Between steps [`Self::save`] is the whole state, beside the settings and
/// [`Self::steps`].
///
/// Memory: 8 bytes for each element in the warm-up, then 12, and 16 inside a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    settings: Settings,
    step: u64,
    momenta: Feedback,
    /// Without bias from the last step of the warm-up on.
    variances: Feedback,
    residuals: Feedback,
    /// The residuals after the step that is open.
    open: Option<Feedback>,
}

impl Worker {
    /// A worker at step 0.
    ///
    /// # Errors
    /// [`Error::Input`] if a setting is out of its range.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        let (momenta, variances, residuals) = (Feedback::new(), Feedback::new(), Feedback::new());
        Ok(Self { settings, step: 0, momenta, variances, residuals, open: None })
    }

    /// Begins a step: what the server is to get for these gradients.
    ///
    /// # Errors
    /// [`Error::Input`]: tensors of another type than f32, NaN or infinity, a shape that changed, and those of [`compress`].
    /// The state is then as it was before.
    pub fn message(&mut self, gradients: &[Input<'_>], options: &Options) -> Result<Vec<Block>> {
        let mut rows = checked(gradients, options)?;
        if self.step >= self.settings.warm_up {
            let b1 = self.settings.momentum;
            for (input, row) in gradients.iter().zip(&mut rows) {
                let momentum = state::of(&self.momenta, input)?;
                for (i, x) in row.iter_mut().enumerate() {
                    *x = b1 * momentum.map_or(0.0, |m| m[i]) + (1.0 - b1) * *x;
                }
            }
        }
        let mut residuals = self.residuals.clone();
        let blocks = self.settings.blocks(self.step, gradients, &rows, options, &mut residuals)?;
        self.open = Some(residuals);
        Ok(blocks)
    }

    /// Ends a step with what the server sent, decoded: mean gradients in the warm-up, then momenta.
    ///
    /// Returns a row for each tensor of `received`; times the learning rate, it is to be taken from the weights.
    ///
    /// # Errors
    /// [`Error::Input`]: no step is open; tensors of another type than f32, NaN or infinity, or a square that is not finite,
    /// a shape that changed. The state is then as it was before.
    pub fn apply(&mut self, received: &[Input<'_>]) -> Result<Vec<Vec<f32>>> {
        if self.open.is_none() {
            return Err(state::out_of_turn("1-bit Adam has no open step"));
        }
        let Settings { warm_up, momentum: b1, variance: b2, epsilon, .. } = self.settings;
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

    /// The steps that were made.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// What the messages left over, by tensor.
    pub fn residuals(&self) -> &Feedback {
        &self.residuals
    }

    /// The momenta, by tensor: equal on all workers.
    pub fn momenta(&self) -> &Feedback {
        &self.momenta
    }

    /// The state as tensors for a checkpoint, beside [`Self::steps`] and the settings; a step that is open is not in it.
    pub fn save(&self) -> Vec<(String, TensorBuf)> {
        state::save(&self.residuals, [(MOMENTUM, &self.momenta), (VARIANCE, &self.variances)])
    }

    /// The state that [`Self::save`] gave after `steps` steps.
    ///
    /// # Errors
    /// As [`Self::new`]; [`Error::Input`] if a tensor is not of floats.
    pub fn load(
        settings: Settings,
        steps: u64,
        tensors: impl IntoIterator<Item = (String, TensorBuf)>,
    ) -> Result<Self> {
        let (residuals, [momenta, variances]) = state::load([MOMENTUM, VARIANCE], tensors)?;
        Ok(Self { step: steps, momenta, variances, residuals, ..Self::new(settings)? })
    }
}

/// The server's state. Memory: 4 bytes for each element after the warm-up.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    settings: Settings,
    step: u64,
    residuals: Feedback,
}

impl Server {
    /// A server at step 0.
    ///
    /// # Errors
    /// [`Error::Input`] if a setting is out of its range.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        Ok(Self { settings, step: 0, residuals: Feedback::new() })
    }

    /// One step: what all workers are to get for the means of what they sent.
    ///
    /// # Errors
    /// As [`Worker::message`]. The state is then as it was before.
    pub fn message(&mut self, means: &[Input<'_>], options: &Options) -> Result<Vec<Block>> {
        let rows = checked(means, options)?;
        let blocks = self.settings.blocks(self.step, means, &rows, options, &mut self.residuals)?;
        self.step += 1;
        Ok(blocks)
    }

    /// The steps that were made.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// What the messages left over, by tensor.
    pub fn residuals(&self) -> &Feedback {
        &self.residuals
    }

    /// The state as tensors for a checkpoint, beside [`Self::steps`] and the settings.
    pub fn save(&self) -> Vec<(String, TensorBuf)> {
        state::save(&self.residuals, [])
    }

    /// The state that [`Self::save`] gave after `steps` steps.
    ///
    /// # Errors
    /// As [`Self::new`]; [`Error::Input`] if a tensor is not of floats.
    pub fn load(
        settings: Settings,
        steps: u64,
        tensors: impl IntoIterator<Item = (String, TensorBuf)>,
    ) -> Result<Self> {
        let (residuals, []) = state::load([], tensors)?;
        Ok(Self { step: steps, residuals, ..Self::new(settings)? })
    }
}

fn checked(inputs: &[Input<'_>], options: &Options) -> Result<Vec<Vec<f32>>> {
    inputs.iter().map(|input| checked_f32s(input, options, "1-bit Adam")).collect()
}
