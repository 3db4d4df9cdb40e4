//! Digests of tensors: hashes, and sum digests, which add up over the shards of a tensor and change with its
//! elements (spec, sections 6 and 6.1).

mod change;
mod columns;
mod grid;
pub(crate) mod hash;
mod keys;
mod rows;
mod sum;

pub use change::SumChange;
pub use hash::{Digest, tensor_digest};
pub(crate) use hash::{digest_head, run_digest};
pub use sum::SumDigest;

/// Digests of a tensor, as far as they are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TensorDigests {
    /// The hash ([`tensor_digest`]).
    pub hash: Option<Digest>,
    /// The share in a sum over several tensors
    /// ([`TensorInfo::sum_digest`](crate::frame::TensorInfo::sum_digest)).
    pub sum: Option<SumDigest>,
}
