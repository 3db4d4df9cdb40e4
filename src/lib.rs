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
//! ```
//! use std::sync::Arc;
//! use gcodec::compress::{Input, Options, compress};
//! use gcodec::{Assembler, Body, EncodeOptions, Event, Limits, Manifest, Reader, TensorBuf, TensorInfo, UpdateHeader, Writer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gradient = TensorBuf::from_f32(vec![4], &[0.5, -2.0, 0.0, 0.25])?;
//! let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", gradient.dtype(), gradient.shape())])?);
//! let mut writer = Writer::new(Vec::new(), EncodeOptions::default());
//! for step in 0..2 {
//!     let inputs = [Input { tensor: 0, name: "w", view: gradient.view(), base: None }];
//!     let blocks = compress(&inputs, &["topk:k=1".parse()?], &Options::default(), None)?;
//!     writer.update(&UpdateHeader::default().with_step(step), &manifest, &blocks, Default::default())?;
//! }
//! let bytes = writer.finish()?; // any `Write`: a file, a socket
//!
//! let mut reader = Reader::new(bytes.as_slice(), Limits::default()); // any `Read`
//! let mut assembler = None;
//! while let Some(event) = reader.next_event()? {
//!     if let Event::Frame(_, Body::Update(part)) = event {
//!         if part.part == 0 {
//!             assembler = Some(Assembler::new(&part.manifest, &Limits::default(), |_name| true)?);
//!         }
//!         assembler.as_mut().ok_or("a first part")?.apply(&part)?;
//!     }
//! }
//! let tensors = assembler.ok_or("an update")?.finish()?;
//! assert_eq!(tensors[0].1.view().to_f32()?, [0.0, -2.0, 0.0, 0.0]);
//! # Ok(())
//! # }
//! ```
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
pub use stream::{
    Assembler, Body, Decoder, EncodeOptions, Encoder, Event, Output, Reader, SliceReader, Writer,
};
pub use tensor::{Dtype, TensorBuf, TensorView};

/// What a fuzzer sets: not there in any other build (`fuzz/README.md`).
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::arch::WIDEST;
    pub use crate::bits::CHECKSUMS;
}

/// The README's program is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
