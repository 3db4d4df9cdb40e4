//! The lossy front end. A *compressor* chooses what an update says about a tensor and makes blocks of it. It
//! belongs to the sender; no module below depends on it. A [`Codec`] names a compressor and its settings,
//! [`compress()`] runs it.
//!
//! Compressors work on 32-bit floats: elements of narrower types are widened, f64 is rounded first. The
//! blocks do not depend on the number of threads: sums are taken in a fixed order, and random numbers belong
//! to their element ([`random`]).

mod codec;
pub mod codecs;
mod compressor;
pub(crate) mod device;
mod digests;
mod extents;
mod feedback;
mod moments;
mod options;
pub(crate) mod pending;
pub(crate) mod select;
pub mod senders;
mod settings;
mod source;
mod state;
mod sums;
mod update;

pub use codec::Codec;
pub use codecs::{Change, ChunkValues, DigestKind, Fit, Scaling, Share, Stages};
pub use digests::{Digests, deltas};
pub use feedback::Feedback;
pub use options::{Input, NonFinite, Options};
pub use pending::{Pending, pending};
pub use settings::{Amount, Kept, Selection, SpecError};
pub use update::compress;

/// Random numbers that depend only on a seed and a position (spec, section 8).
pub mod random {
    pub use crate::random::{key, sample, word, words};
}

#[cfg(test)]
mod tests;
