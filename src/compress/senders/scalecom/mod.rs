//! ScaleCom's CLT-k with low-pass filtered memory (arXiv 2104.11125, sections 2 and 3).
//!
//! In step t the worker t mod world leads. It chooses elements of its own gradient plus memory and sends their positions once,
//! as an index set; every worker sends its values on that set and nothing else. So all blocks speak of the same elements, and
//! [`reduce::add`](../../reduce/fn.add.html) sums them as they are: what travels does not grow with the number of workers.
//!
//! ```text
//! p = m + g                                     every worker
//! I = the k largest of |p| of the leader        exactly, or the largest of each chunk (section 3, "quasi-sort")
//! sent = p on I, 0 elsewhere
//! m' = (1 - beta) m + beta (p - sent)           beta = 1: plain error feedback
//! ```
//!
//! The paper has no rule for a leader that is lost: a round without a set is given up with [`Worker::abort`], and the memory
//! is then as it was. Nor are early steps compressed in it: send those as `raw`.

mod quasi;
mod worker;

pub use worker::{Role, Worker};

use crate::block::Positions;
use crate::compress::{Amount, Codec, Kept, Selection};
use crate::error::{Error, Result};

/// How the leader chooses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice {
    /// The elements of largest magnitude of the whole scope. Zeros are never kept.
    TopK(Amount),
    /// The elements of largest magnitude of each tensor of the scope. Zeros are never kept.
    TopKOfEach(Amount),
    /// The element of largest magnitude of each chunk of so many, 1 to 2^32, the first of equal ones. Chunks run through all
    /// tensors of the scope: where tensors differ in scale, give each a worker of its own. As one index space, 1 of 100 has
    /// 0.15 (transformer) to 0.26 (ResNet) of the energy of the exact choice of as many (`tests/compressors/scalecom.rs` prints it).
    PerChunk(u64),
}

/// What all workers of a group have alike.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// How the leader chooses.
    pub choice: Choice,
    /// What is sent of each element: [`Kept::F32`], [`Kept::F16`] or [`Kept::Bf16`], since other kinds have no sum.
    /// Default: f32.
    pub values: Kept,
    /// Weight of what is left over in the memory: more than 0, at most 1. The paper takes 0.1 for large batches. Default:
    /// 1, plain error feedback.
    pub beta: f32,
}

impl Settings {
    /// The defaults with this choice.
    pub fn new(choice: Choice) -> Self {
        Self { choice, values: Kept::F32, beta: 1.0 }
    }

    /// Sets [`Settings::values`].
    #[must_use]
    pub fn with_values(mut self, values: Kept) -> Self {
        self.values = values;
        self
    }

    /// Sets [`Settings::beta`].
    #[must_use]
    pub fn with_beta(mut self, beta: f32) -> Self {
        self.beta = beta;
        self
    }

    fn check(&self) -> Result<()> {
        if !(self.beta > 0.0 && self.beta <= 1.0) {
            return Err(Error::bad_option("beta"));
        }
        if !matches!(self.values, Kept::F32 | Kept::F16 | Kept::Bf16) {
            return Err(Error::bad_option("values: only floats can be summed"));
        }
        match self.choice {
            Choice::PerChunk(len) if len == 0 || len > 1 << 32 => Err(Error::bad_option("chunk length")),
            _ => self.codec().check(),
        }
    }

    /// The codec as which tensors are read.
    fn codec(&self) -> Codec {
        let amount = match self.choice {
            Choice::TopK(amount) | Choice::TopKOfEach(amount) => amount,
            Choice::PerChunk(_) => Amount::Count(1),
        };
        let positions = Positions::Auto;
        Codec::TopK { amount, values: self.values, selection: Selection::Tensor, seed: 0, positions }
    }
}
