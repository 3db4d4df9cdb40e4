//! ScaleCom's CLT-k with low-pass filtered memory (arXiv 2104.11125, sections 2 and 3).
//!
//! In step t the worker t mod world leads. It selects elements of its own gradient plus memory and sends
//! their positions once, as an index set. Every worker sends only its values on that set. All blocks then
//! have the same support, and [`reduce::add`](../../reduce/fn.add.html) sums them directly: the sum is no
//! larger for more workers.
//!
//! ```text
//! p = m + g                                     every worker
//! I = the k largest of |p| of the leader     exact, or the largest of each chunk (section 3, "quasi-sort")
//! sent = p on I, 0 elsewhere
//! m' = (1 - beta) m + beta (p - sent)           beta = 1: plain error feedback
//! ```
//!
//! The paper has no rule for a lost leader: [`ScaleComWorker::abort`] gives up a step without a set and keeps
//! the memory. The paper does not compress early steps: send those as `raw`.

mod quasi;
mod worker;

pub use worker::{Role, ScaleComWorker};

use crate::compress::{Amount, Kept};
use crate::error::{Error, Result};
use crate::limits::setters;

/// The leader's rule of selection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice {
    /// The elements of largest magnitude of the whole scope. Zeros are never kept.
    TopK(Amount),
    /// The elements of largest magnitude of each tensor of the scope. Zeros are never kept.
    TopKOfEach(Amount),
    /// The element of largest magnitude of each chunk of this many elements, 1 to 2^32; the first of equal
    /// ones. Chunks continue across the tensors of the scope: where tensors differ in scale, use one worker
    /// per tensor. With all tensors in one index space and chunks of 100, the selection has 0.15
    /// (transformer) to 0.26 (ResNet) of the energy of an exact selection of the same size
    /// (`tests/compressors/scalecom.rs` prints it).
    PerChunk(u64),
}

/// The options that all workers of a group share.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ScaleComOptions {
    /// The leader's rule of selection.
    pub choice: Choice,
    /// Representation of an element: [`Kept::F32`], [`Kept::F16`] or [`Kept::Bf16`], because other kinds have
    /// no sum. Default: f32.
    pub values: Kept,
    /// Weight of the new residual in the memory: more than 0, at most 1. The paper uses 0.1 for large
    /// batches. Default: 1, plain error feedback.
    pub beta: f32,
}

impl ScaleComOptions {
    /// Returns the defaults with this choice.
    pub fn new(choice: Choice) -> Self {
        Self { choice, values: Kept::F32, beta: 1.0 }
    }

    fn check_sums(&self) -> Result<()> {
        match self.values {
            Kept::F32 | Kept::F16 | Kept::Bf16 => Ok(()),
            _ => Err(Error::bad_option("values: only floats can be summed")),
        }
    }

    fn check(&self) -> Result<()> {
        if !(self.beta > 0.0 && self.beta <= 1.0) {
            return Err(Error::bad_option("beta"));
        }
        match self.choice {
            Choice::PerChunk(len) if len == 0 || len > 1 << 32 => Err(Error::bad_option("chunk length")),
            Choice::TopK(amount) | Choice::TopKOfEach(amount) => {
                amount.check().map_err(|e| Error::bad_option(e.key))
            }
            Choice::PerChunk(_) => Ok(()),
        }
    }
}

setters! {
    ScaleComOptions {
        with_values(values: Kept)
        with_beta(beta: f32)
    }
}
