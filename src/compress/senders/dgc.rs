//! Deep Gradient Compression (Lin et al., arXiv 1712.01887, section 3): the state of a sender on top of
//! top-k.
//!
//! ```text
//! g <- g min(1, clip / (sqrt(workers) |g|))    local gradient clipping, the norm over all tensors together
//! u <- momentum u + g,  v <- v + u            momentum correction
//! send the largest elements of v; where sent: v <- v - sent, u <- 0      momentum factor masking
//! ```
//!
//! The density falls from one warm-up stage to the next, down to its final value.

use super::momentum::mask_momenta;
use super::state::{self, MOMENTUM};
use crate::block::{CodedBlock, Positions};
use crate::compress::codecs::TopK;
use crate::compress::source::checked_f32s;
use crate::compress::{Amount, Codec, Feedback, Input, Kept, Options, Selection, compress};
use crate::error::{Error, Result};
use crate::tensor::TensorBuf;

/// The options of [`Dgc`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DgcOptions {
    /// Density after the warm-up, for each tensor: more than 0, at most 1. Default: 0.001.
    pub density: f64,
    /// Densities of the warm-up's stages. Default: 0.25, 0.063, 0.015, 0.004, as in the authors' code.
    pub warm_up: Vec<f64>,
    /// Steps per stage of the warm-up. The authors use the steps of an epoch. Default: 0, no warm-up.
    pub warm_up_steps: u64,
    /// Momentum: at least 0, less than 1. Default: 0.9.
    pub momentum: f32,
    /// Limit of the norm of the gradients of all workers together: more than 0. Default: no limit.
    pub clip: Option<f32>,
    /// Number of workers, at least 1, for clipping. Default: 1.
    pub workers: u64,
    /// Representation of an element that is sent. Default: its value.
    pub values: Kept,
    /// Coding of positions. Default: the smallest.
    pub positions: Positions,
}

impl Default for DgcOptions {
    fn default() -> Self {
        Self {
            density: 0.001,
            warm_up: vec![0.25, 0.063, 0.015, 0.004],
            warm_up_steps: 0,
            momentum: 0.9,
            clip: None,
            workers: 1,
            values: Kept::F32,
            positions: Positions::Auto,
        }
    }
}

/// The state of one sender.
#[derive(Debug, Clone, PartialEq)]
pub struct Dgc {
    options: DgcOptions,
    step: u64,
    /// u, by tensor.
    momenta: Feedback,
    /// v, by tensor.
    residuals: Feedback,
    /// The number of steps at [`Dgc::begin`].
    begun_at: Option<u64>,
}

impl Dgc {
    /// Returns a sender at step 0.
    ///
    /// # Errors
    /// [`Error::Input`] if an option is out of its range.
    pub fn new(options: DgcOptions) -> Result<Self> {
        let share = |d: f64| d > 0.0 && d <= 1.0;
        let fits = share(options.density)
            && options.warm_up.iter().all(|&d| share(d))
            && (0.0..1.0).contains(&options.momentum)
            && options.clip.is_none_or(|c| c > 0.0 && c.is_finite())
            && options.workers > 0;
        match fits {
            true => Ok(Self {
                options,
                step: 0,
                momenta: Feedback::new(),
                residuals: Feedback::new(),
                begun_at: None,
            }),
            false => Err(Error::bad_option("options of Deep Gradient Compression")),
        }
    }

    /// Returns the codec of the next step.
    pub fn codec(&self) -> Codec {
        let stage = self.step.checked_div(self.options.warm_up_steps).map(usize::try_from);
        let warm = stage.and_then(|s| self.options.warm_up.get(s.ok()?)).copied();
        Codec::TopK(TopK {
            amount: Amount::Density(warm.unwrap_or(self.options.density)),
            values: self.options.values,
            selection: Selection::Tensor,
            seed: self.step,
            positions: self.options.positions,
        })
    }

    /// Returns the blocks of one step. `inputs`: gradients, not multiplied by a learning rate.
    ///
    /// # Errors
    /// [`Error::Input`] for tensors of another type than f32, NaN or infinity, or a shape that changed. The
    /// state does not change then.
    pub fn step(&mut self, inputs: &[Input<'_>], options: &Options) -> Result<Vec<CodedBlock>> {
        let mut gradients = Vec::with_capacity(inputs.len());
        for input in inputs {
            gradients.push(checked_f32s(input, options, "Deep Gradient Compression")?);
        }
        let squares = gradients.iter().flatten().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        let scale = match self.options.clip {
            Some(clip) if squares > 0.0 => {
                (f64::from(clip) / (self.options.workers as f64 * squares).sqrt()).min(1.0) as f32
            }
            _ => 1.0,
        };
        for (input, gradient) in inputs.iter().zip(&mut gradients) {
            let momentum = state::of(&self.momenta, input)?;
            for (i, x) in gradient.iter_mut().enumerate() {
                *x = momentum.map_or(0.0, |u| self.options.momentum * u[i]) + scale * *x;
            }
        }
        let updates = inputs.iter().zip(&gradients);
        let updates = updates
            .map(|(i, u)| TensorBuf::from_f32(i.view.shape().to_vec(), u))
            .collect::<Result<Vec<_>>>()?;
        let new: Vec<Input<'_>> =
            inputs.iter().zip(&updates).map(|(i, u)| Input { view: u.view(), ..*i }).collect();
        let codecs = vec![self.codec(); inputs.len()];
        let blocks = compress(&new, &codecs, options, Some(&mut self.residuals))?;
        let numbers = inputs.iter().map(|input| input.tensor);
        let mut momenta: Vec<_> = numbers.zip(gradients.iter_mut().map(Vec::as_mut_slice)).collect();
        mask_momenta(&blocks, &mut momenta)?;
        for (input, momentum) in inputs.iter().zip(gradients) {
            self.momenta.set(input.name, input.view.shape(), momentum);
        }
        self.step += 1;
        Ok(blocks)
    }

    /// Keeps what later steps replace, until [`Self::commit`] or [`Self::undo`], as [`Feedback::begin`].
    pub fn begin(&mut self) {
        self.momenta.begin();
        self.residuals.begin();
        self.begun_at.get_or_insert(self.step);
    }

    /// Accepts the steps since [`Self::begin`].
    pub fn commit(&mut self) {
        self.momenta.commit();
        self.residuals.commit();
        self.begun_at = None;
    }

    /// Restores the state from before [`Self::begin`]. Without one it does nothing.
    pub fn undo(&mut self) {
        self.momenta.undo();
        self.residuals.undo();
        self.step = self.begun_at.take().unwrap_or(self.step);
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Returns the residuals, v.
    pub fn residuals(&self) -> &Feedback {
        &self.residuals
    }

    /// Returns the state as tensors for a checkpoint, which also needs [`Self::steps`] and the options.
    pub fn save(&self) -> Vec<(String, TensorBuf)> {
        state::save(&self.residuals, [(MOMENTUM, &self.momenta)])
    }

    /// Restores the state that [`Self::save`] returned after `steps` steps.
    ///
    /// # Errors
    /// The errors of [`Self::new`] and of [`Feedback::load`].
    pub fn load(
        options: DgcOptions,
        steps: u64,
        tensors: impl IntoIterator<Item = (String, TensorBuf)>,
    ) -> Result<Self> {
        let (residuals, [momenta]) = state::load([MOMENTUM], tensors)?;
        Ok(Self { step: steps, momenta, residuals, ..Self::new(options)? })
    }
}
