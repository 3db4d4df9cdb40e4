//! Shared sets: one worker in turn chooses the positions of a step, and every worker sends its own values
//! there.
//!
//! The sets are those of ScaleCom ([`super::scalecom`]) and of Learned Gradient Compression (arXiv
//! 2103.08870), without sums in the compressed domain and without an autoencoder: the values may have any
//! form, by default powers of two. A receiver adds the workers' updates with
//! [`reduce::Sum`](../../reduce/struct.Sum.html).
//!
//! ```text
//! u <- momentum u + g,  v <- v + u            every worker; momentum correction (arXiv 1712.01887)
//! I = the k largest of |v| of the leader      worker t mod world in step t
//! send v on I, rounded;  v <- v - sent,  u <- 0 on I
//! ```
//!
//! Only the leader sends positions, so the bytes of a step are those of one worker's positions and of all
//! workers' values. `docs/latent.md` compares this with top-k and with the learned codec.

use std::sync::Arc;

pub use super::scalecom::{Choice, Role};

use super::scalecom;
use super::state::{self, MOMENTUM};
use crate::block::{Block, Scope, SetId};
use crate::compress::{Feedback, Kept};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{IndexSet, Manifest};
use crate::limits::setters;
use crate::tensor::{TensorBuf, TensorView};

/// The options that all workers of a group share.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct SharedSetOptions {
    /// The leader's rule of selection.
    pub choice: Choice,
    /// Form of the values. Random rounding differs between steps and workers. Default: powers of two.
    pub values: Kept,
    /// Momentum correction, 0 to less than 1: the workers accumulate velocities instead of gradients, and
    /// the mean is applied without momentum. Default: 0, none.
    pub momentum: f32,
}

impl SharedSetOptions {
    /// Returns the defaults with this choice.
    pub fn new(choice: Choice) -> Self {
        Self { choice, values: Kept::Pow2, momentum: 0.0 }
    }
}

setters! {
    SharedSetOptions {
        with_values(values: Kept)
        with_momentum(momentum: f32)
    }
}

/// One worker's state for one index space: whole tensors of one float type, f32 with momentum.
///
/// A step is [`Self::begin`], [`Self::take_set`], [`Self::values`] and [`Self::finish`], in this order. A
/// call in another order is refused, and an error does not change the state. Only [`Self::finish`] changes
/// it: call it when all workers' updates have arrived, or [`Self::abort`] if they have not.
///
/// Memory: 4 bytes per element between steps and 8 inside one; with momentum 8 and 16.
#[derive(Debug, Clone)]
pub struct SharedSetWorker {
    inner: scalecom::ScaleComWorker,
    momentum: f32,
    velocities: Feedback,
    /// Velocities of the open step, by tensor of the scope; nothing for one that takes no part.
    moved: Vec<Option<Vec<f32>>>,
}

impl SharedSetWorker {
    /// Returns worker `rank` of `world` without residual. `scope`: one or more whole tensors.
    ///
    /// # Errors
    /// [`Error::Input`] for a scope that is not in the manifest, is a part of a tensor, has no elements or no
    /// float type (with momentum: not f32), for a rank that is not below `world`, and for options out of
    /// range.
    pub fn new(
        manifest: &Arc<Manifest>,
        scope: Scope,
        rank: u64,
        world: u64,
        options: SharedSetOptions,
    ) -> Result<Self> {
        let SharedSetOptions { choice, values, momentum } = options;
        if !(0.0..1.0).contains(&momentum) {
            return Err(Error::bad_option("momentum of a shared set"));
        }
        let options = scalecom::ScaleComOptions::new(choice).with_values(values);
        let inner = scalecom::ScaleComWorker::of_any_values(manifest, scope, rank, world, options)?;
        if momentum > 0.0 && inner.infos().iter().any(|info| info.dtype != crate::tensor::Dtype::F32) {
            return Err(Error::input(InputErrorKind::WrongDtype { what: "a shared set with momentum" }));
        }
        Ok(Self { inner, momentum, velocities: Feedback::new(), moved: Vec::new() })
    }

    /// Returns the leader of a step: step mod world.
    pub fn leader(&self, step: u64) -> u64 {
        self.inner.leader(step)
    }

    /// Returns the residuals, by tensor name. They are never transmitted.
    pub fn residuals(&self) -> &Feedback {
        self.inner.memory()
    }

    /// Returns residuals and velocities as tensors for a checkpoint.
    pub fn save(&self) -> Vec<(String, TensorBuf)> {
        state::save(self.inner.memory(), [(MOMENTUM, &self.velocities)])
    }

    /// Restores the state that [`Self::save`] returned.
    ///
    /// # Errors
    /// [`InputErrorKind::OutOfTurn`] inside a step; the errors of [`Feedback::load`].
    pub fn load(&mut self, tensors: impl IntoIterator<Item = (String, TensorBuf)>) -> Result<()> {
        let (residuals, [velocities]) = state::load([MOMENTUM], tensors)?;
        self.inner.set_memory(residuals)?;
        self.velocities = velocities;
        Ok(())
    }

    /// Begins a step with this worker's gradients, one per tensor of the scope.
    ///
    /// # Errors
    /// [`Error::Input`] if a step is open, a tensor does not fit the manifest, or an element or its sum with
    /// the residual is not finite.
    pub fn begin(&mut self, step: u64, gradients: &[TensorView<'_>]) -> Result<Role> {
        self.begin_used(step, gradients, &vec![true; gradients.len()])
    }

    /// Begins a step like [`Self::begin`], without the tensors for which `used` is false: this worker neither
    /// chooses nor sends anything of them, and their residuals and velocities stay.
    ///
    /// # Errors
    /// The errors of [`Self::begin`].
    pub fn begin_used(&mut self, step: u64, gradients: &[TensorView<'_>], used: &[bool]) -> Result<Role> {
        if self.momentum == 0.0 {
            return self.inner.begin_used(step, gradients, used);
        }
        let infos = self.inner.infos();
        if gradients.len() != infos.len() || used.len() != infos.len() {
            return Err(Error::input(InputErrorKind::Mismatch { what: "numbers of gradients and tensors" }));
        }
        let (mut moved, mut tensors) = (Vec::new(), Vec::new());
        for ((info, gradient), &used) in infos.iter().zip(gradients).zip(used) {
            if info.dtype != gradient.dtype() {
                return Err(Error::input(InputErrorKind::Mismatch { what: "gradient and manifest" }));
            }
            let mut row = gradient.to_f32()?;
            if let Some(before) = self.velocities.of(&info.name, gradient.shape())? {
                row.iter_mut().zip(before).for_each(|(x, u)| *x += self.momentum * u);
            }
            tensors.push(TensorBuf::from_f32(gradient.shape().to_vec(), &row)?);
            moved.push(used.then_some(row));
        }
        let views: Vec<TensorView<'_>> = tensors.iter().map(TensorBuf::view).collect();
        let role = self.inner.begin_used(step, &views, used)?;
        self.moved = moved;
        Ok(role)
    }

    /// Takes the leader's set and its id. Followers get both from the decoder, the leader gets the id from
    /// [`Encoder::index_set`](crate::stream::Encoder::index_set).
    ///
    /// # Errors
    /// The errors of [`scalecom::ScaleComWorker::take_set`].
    pub fn take_set(&mut self, set: &IndexSet, id: SetId) -> Result<()> {
        self.inner.take_set(set, id)
    }

    /// Returns the block of this worker's update: its values on the set.
    ///
    /// # Errors
    /// [`InputErrorKind::OutOfTurn`] before [`Self::take_set`].
    pub fn values(&self) -> Result<Block> {
        self.inner.values()
    }

    /// Ends the step: subtracts what was sent from the residuals, and clears the velocities on the set.
    ///
    /// # Errors
    /// [`InputErrorKind::OutOfTurn`] before [`Self::take_set`].
    pub fn finish(&mut self) -> Result<()> {
        let positions = self.inner.positions()?;
        self.inner.finish()?;
        let moved = std::mem::take(&mut self.moved);
        for ((info, velocity), positions) in self.inner.infos().iter().zip(moved).zip(positions) {
            let Some(mut velocity) = velocity else { continue };
            positions.iter().for_each(|&p| velocity[p as usize] = 0.0);
            self.velocities.set(&info.name, &info.shape, velocity);
        }
        Ok(())
    }

    /// Gives up the open step, if any. The state is that before the step. The caller may add the step's
    /// gradient to the next one.
    pub fn abort(&mut self) {
        self.inner.abort();
        self.moved.clear();
    }
}
