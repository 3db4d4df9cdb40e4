//! gcodec is a wire format for compressed model updates (gradients, pseudo-gradients, weight deltas), and this is its
//! library: it encodes and decodes them, streaming, in bounded memory, from peers that need not be trusted.
//!
//! A compressed update says two things: *which* elements it speaks of (its [`Support`]) and *what* it says of them (its
//! [`Values`]). A [`Block`] is both; a compressor ([`compress()`]) makes blocks and may lose information, the wire carries
//! them and never does. The format is specified in `spec/`.
//!
//! # Two ways
//!
//! In one go, tensors to bytes and back:
//!
//! ```
//! use gcodec::{Dtype, TensorBuf};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gradient = TensorBuf::from_f32(vec![2, 3], &[0.1, -3.0, 0.0, 0.2, 5.0, -0.1])?;
//! let bytes = gcodec::encode(&[("w", gradient.view())], &"topk:k=2".parse()?)?;
//! let tensors = gcodec::decode(&bytes)?;
//! assert_eq!(tensors[0].0, "w");
//! assert_eq!(tensors[0].1, TensorBuf::from_f32(vec![2, 3], &[0.0, -3.0, 0.0, 0.0, 5.0, 0.0])?);
//! # Ok(())
//! # }
//! ```
//!
//! Streaming: [`Encoder`] and [`Decoder`] do no IO; [`Writer`], [`Reader`] and [`SliceReader`] are thin adapters over them;
//! [`File`] reads one tensor of a finished file without reading the rest.
//!
//! # Trust
//!
//! Any bytes give a value or an [`Error`] that says what is wrong, at which byte, and whose fault it is. [`Limits`] bound
//! memory and time; nothing is allocated on a length that a stranger declared.

mod arch;
mod bits;
pub mod block;
mod codes;
pub mod compress;
pub mod element;
pub mod error;
pub mod file;
pub mod frame;
mod limits;
mod oneshot;
pub mod random;
pub mod reduce;
pub mod stream;
pub mod tensor;

pub use block::{Block, BlockOptions, Positions, Scope, Support, Values};
pub use codes::Entropy;
pub use compress::{Codec, Feedback, compress};
pub use error::{Error, Result};
pub use file::File;
pub use frame::{Manifest, TensorInfo, UpdateHeader};
pub use limits::{Budget, Limits};
pub use oneshot::{decode, decode_with, encode};
pub use stream::{Assembler, Body, Decoder, EncodeOptions, Encoder, Event, Reader, SliceReader, Writer};
pub use tensor::{Dtype, TensorBuf, TensorView};

/// The README's program is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
