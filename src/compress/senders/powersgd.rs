//! The worker's side of PowerSGD between many workers (arXiv 1905.13727, algorithms 1 and 2).

use std::sync::Arc;

use super::state::{self, out_of_turn};
use crate::block::{Block, Floats, Scope, Stored, Support, Values};
use crate::compress::codecs::powersgd::{
    basis, bytes, elements, last_factor, left_factor, matrix, numbers, product, store_factor, times,
    transposed_times,
};
use crate::compress::codecs::{matrix, sparse};
use crate::compress::source::Source;
use crate::compress::{Feedback, Input, Kept, Options};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{Manifest, TensorInfo};
use crate::limits::setters;
use crate::tensor::element::round_f32s;
use crate::tensor::{Dtype, TensorView};

/// The options that all workers of a group share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PowerSgdOptions {
    /// Columns of the factors, at least 1.
    pub rank: u64,
    /// Seed of the first Q. Default: 1.
    pub seed: u64,
}

impl PowerSgdOptions {
    /// Returns the defaults with this rank.
    pub fn new(rank: u64) -> Self {
        Self { rank, seed: 1 }
    }
}

setters! {
    PowerSgdOptions {
        with_seed(seed: u64)
    }
}

/// One worker's state for all tensors of a manifest.
///
/// A step is [`Self::begin`], [`Self::take_p`], [`Self::take_q`] and [`Self::finish`], in this order. A call
/// in another order is refused, and an error does not change the state. The first two return blocks of floats
/// on the support `all`, which [`reduce::add`](crate::reduce::add()) and [`reduce::Sum`](crate::reduce::Sum)
/// sum. Every worker must get the same mean over all workers, bit for bit; then all workers end with the same
/// update. Only [`Self::finish`] changes the memory. Between steps, [`Self::memory`] is the whole state, for
/// a checkpoint: the residual and the last Q of each tensor.
///
/// The residual is M - P Q^T with the mean of Q, as in the authors' code: all workers' residuals and the
/// updates that they applied add up to the sum of their gradients.
///
/// Memory: 4 bytes per element between steps, 8 inside one, plus the factors.
#[derive(Debug, Clone)]
pub struct PowerSgdWorker {
    manifest: Arc<Manifest>,
    p_manifest: Arc<Manifest>,
    q_manifest: Arc<Manifest>,
    options: PowerSgdOptions,
    memory: Feedback,
    round: Option<Round>,
}

#[derive(Debug, Clone)]
struct Round {
    /// Gradient plus residual of each tensor. From the mean of Q on: the new residual.
    sums: Vec<Vec<f32>>,
    stage: Stage,
}

#[derive(Debug, Clone)]
enum Stage {
    /// Waits for the mean of P.
    P,
    /// Waits for the mean of Q. Holds, for each tensor, the orthonormalised P or the mean of the elements.
    Q(Vec<Vec<f32>>),
    /// Waits for the end of the step. Holds the mean Q of each tensor that has one.
    Done(Vec<Option<Vec<f32>>>),
}

impl PowerSgdWorker {
    /// Returns a worker with an empty memory.
    ///
    /// # Errors
    /// [`Error::Input`] for a rank of 0, and for tensors that are not floats.
    pub fn new(manifest: &Arc<Manifest>, options: PowerSgdOptions) -> Result<Self> {
        if options.rank == 0 {
            return Err(Error::bad_option("rank"));
        }
        if let Some(at) = manifest.tensors().iter().position(|t| !t.dtype.is_float()) {
            let kind = InputErrorKind::WrongDtype { what: "PowerSGD" };
            return Err(Error::input(kind).in_tensor(at as u64));
        }
        let (mut p, mut q) = (Vec::new(), Vec::new());
        for info in manifest.tensors() {
            match matrix(&info.shape, info.dtype, options.rank) {
                Some((rows, cols)) => {
                    p.push(TensorInfo::new(&info.name, Dtype::F32, [rows as u64, options.rank]));
                    q.push(TensorInfo::new(&info.name, Dtype::F32, [cols as u64, options.rank]));
                }
                None => p.push(TensorInfo::new(&info.name, info.dtype, info.shape.clone())),
            }
        }
        Ok(Self {
            manifest: Arc::clone(manifest),
            p_manifest: Arc::new(Manifest::new(p)?),
            q_manifest: Arc::new(Manifest::new(q)?),
            options,
            memory: Feedback::new(),
            round: None,
        })
    }

    /// Returns the tensors of the first part: P of each matrix, and all other tensors unchanged.
    pub fn p_manifest(&self) -> &Arc<Manifest> {
        &self.p_manifest
    }

    /// Returns the tensors of the second part: Q of each matrix.
    pub fn q_manifest(&self) -> &Arc<Manifest> {
        &self.q_manifest
    }

    /// Returns the residuals and the last Q of each matrix.
    pub fn memory(&self) -> &Feedback {
        &self.memory
    }

    /// Restores the memory of a checkpoint. All workers must have the last Q of the same step.
    ///
    /// # Errors
    /// [`Error::Input`] inside a step.
    pub fn set_memory(&mut self, memory: Feedback) -> Result<()> {
        state::replace(&mut self.memory, memory, self.round.is_some())
    }

    /// Begins a step with this worker's gradients, one per tensor of the manifest. Returns its blocks for
    /// [`Self::p_manifest`].
    ///
    /// # Errors
    /// [`Error::Input`] if a step is open, a tensor does not fit the manifest, or an element or its sum with
    /// the residual is not finite.
    pub fn begin(&mut self, gradients: &[TensorView<'_>]) -> Result<Vec<Block>> {
        if self.round.is_some() {
            return Err(out_of_turn("a step begins before the last one is finished"));
        }
        check(self.manifest.tensors(), gradients)?;
        let PowerSgdOptions { rank, seed } = self.options;
        let (mut sums, mut blocks) = (Vec::new(), Vec::new());
        for (i, (info, &view)) in self.manifest.tensors().iter().zip(gradients).enumerate() {
            let tensor = i as u64;
            let in_tensor = |e: Error| e.in_tensor(tensor);
            let input = Input { tensor, name: &info.name, view, base: None };
            let mut source =
                Source::new(&input, true, &Options::default(), Some(&self.memory)).map_err(in_tensor)?;
            let all = elements(&mut source)?;
            let values = match matrix(&info.shape, info.dtype, rank) {
                Some((_, cols)) => {
                    let basis = basis(last_factor(&source.state, rank), cols, rank as usize, seed, tensor);
                    of_numbers(&numbers(&times(&all, cols, &basis)))
                }
                None => sparse::floats(info.dtype, Kept::F32, &all).map_err(in_tensor)?.0,
            };
            blocks.extend((!all.is_empty()).then(|| dense(tensor, values)));
            sums.push(all);
        }
        self.round = Some(Round { sums, stage: Stage::P });
        Ok(blocks)
    }

    /// Takes the mean of the first part, one tensor for each of [`Self::p_manifest`]. Returns the blocks for
    /// [`Self::q_manifest`].
    ///
    /// # Errors
    /// [`InputErrorKind::OutOfTurn`] in another phase of the step. Other [`Error::Input`] if a tensor does
    /// not fit the manifest or is not finite.
    pub fn take_p(&mut self, mean: &[TensorView<'_>]) -> Result<Vec<Block>> {
        let Some(Round { sums, stage: stage @ Stage::P }) = &mut self.round else {
            return Err(out_of_turn("a mean of P outside its place in a step"));
        };
        check(self.p_manifest.tensors(), mean)?;
        let rank = self.options.rank;
        let mut taken = finite(mean)?;
        let mut blocks = Vec::new();
        for ((info, sums), p) in self.manifest.tensors().iter().zip(sums).zip(&mut taken) {
            if let Some((_, cols)) = matrix(&info.shape, info.dtype, rank) {
                *p = left_factor(p.iter().map(|&x| f64::from(x)).collect(), rank as usize);
                let q = transposed_times(sums, cols, p, rank as usize);
                blocks.push(dense(blocks.len() as u64, of_numbers(&numbers(&q))));
            }
        }
        *stage = Stage::Q(taken);
        Ok(blocks)
    }

    /// Takes the mean of the second part, one tensor for each of [`Self::q_manifest`]. Returns the blocks of
    /// the mean update for the manifest itself, equal on all workers. Apply them like any update.
    ///
    /// # Errors
    /// The errors of [`Self::take_p`].
    pub fn take_q(&mut self, mean: &[TensorView<'_>]) -> Result<Vec<Block>> {
        let Some(Round { sums, stage: stage @ Stage::Q(_) }) = &mut self.round else {
            return Err(out_of_turn("a mean of Q outside its place in a step"));
        };
        let Stage::Q(taken) = &*stage else { return Err(out_of_turn("a mean of Q")) };
        check(self.q_manifest.tensors(), mean)?;
        let rank = self.options.rank;
        let mut means = finite(mean)?.into_iter();
        let (mut blocks, mut left, mut factors) = (Vec::new(), Vec::new(), Vec::new());
        for (i, ((info, sums), p)) in self.manifest.tensors().iter().zip(&*sums).zip(taken).enumerate() {
            let in_tensor = |e: Error| e.in_tensor(i as u64);
            let (values, sent, factor) = match matrix(&info.shape, info.dtype, rank) {
                Some(_) => {
                    let q = means.next().unwrap_or_default();
                    let (values, decoded) =
                        product(p.clone(), q.clone(), rank, info.dtype).map_err(in_tensor)?;
                    (values, decoded, Some(q))
                }
                // The residual of a tensor without factors is only this worker's own rounding.
                None => {
                    let (values, _) = sparse::floats(info.dtype, Kept::F32, p).map_err(in_tensor)?;
                    let (_, own) = sparse::floats(info.dtype, Kept::F32, sums).map_err(in_tensor)?;
                    let mut own = own.unwrap_or_else(|| sums.clone());
                    round_f32s(info.dtype, &mut own).map_err(in_tensor)?;
                    (values, own, None)
                }
            };
            left.push(sums.iter().zip(sent).map(|(x, d)| matrix::finite(x - d)).collect());
            factors.push(factor);
            blocks.extend((!sums.is_empty()).then(|| dense(i as u64, values)));
        }
        *sums = left;
        *stage = Stage::Done(factors);
        Ok(blocks)
    }

    /// Ends the step: stores the new residuals and the mean Q in the memory.
    ///
    /// # Errors
    /// [`InputErrorKind::OutOfTurn`] before [`Self::take_q`].
    pub fn finish(&mut self) -> Result<()> {
        match self.round.take() {
            Some(Round { sums, stage: Stage::Done(factors) }) => {
                for ((info, left), factor) in self.manifest.tensors().iter().zip(sums).zip(factors) {
                    self.memory.set(&info.name, &info.shape, left);
                    if let Some(values) = factor {
                        let mut state = self.memory.state(&info.name);
                        store_factor(&mut state, self.options.rank, values);
                        self.memory.set_state(&info.name, state);
                    }
                }
                Ok(())
            }
            open => {
                self.round = open;
                Err(out_of_turn("a step ends before the mean of Q was taken"))
            }
        }
    }

    /// Gives up the open step, if any. The memory is that before the step.
    pub fn abort(&mut self) {
        self.round = None;
    }
}

/// Checks that tensors fit a manifest.
fn check(infos: &[TensorInfo], views: &[TensorView<'_>]) -> Result<()> {
    if views.len() != infos.len() {
        return Err(Error::input(InputErrorKind::Mismatch { what: "numbers of tensors and manifest" }));
    }
    let other = infos.iter().zip(views).position(|(i, v)| i.dtype != v.dtype() || i.shape != v.shape());
    match other {
        Some(at) => {
            let kind = InputErrorKind::Mismatch { what: "tensor and manifest" };
            Err(Error::input(kind).in_tensor(at as u64))
        }
        None => Ok(()),
    }
}

/// Returns the elements of tensors, which must be finite.
fn finite(views: &[TensorView<'_>]) -> Result<Vec<Vec<f32>>> {
    let read = |(at, view): (usize, &TensorView<'_>)| {
        let numbers = view.to_f32()?;
        match numbers.iter().position(|x| !x.is_finite()) {
            Some(index) => {
                let kind = InputErrorKind::NonFinite { index: index as u64 };
                Err(Error::input(kind).in_tensor(at as u64))
            }
            None => Ok(numbers),
        }
    };
    views.iter().enumerate().map(read).collect()
}

fn of_numbers(numbers: &[f32]) -> Values {
    Values::Floats(Floats { stored: Stored::Source, bytes: bytes(numbers) })
}

fn dense(tensor: u64, values: Values) -> Block {
    Block { scope: Scope::Tensor(tensor), add: false, support: Support::All, values }
}
