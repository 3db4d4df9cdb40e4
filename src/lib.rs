//! Library for gcodec, a wire format for compressed model updates: gradients, pseudo-gradients and weight
//! deltas. It encodes and decodes streams in bounded memory, also those of untrusted peers.
//!
//! A compressed update stores positions and values separately, so that any compressor fits: a
//! [`block::Block`] has a [`block::Support`] (the elements it contains) and [`block::Values`] (their values).
//! A compressor ([`compress::compress()`]) makes blocks and may lose information; the wire format never does.
//! The folder `spec/` of the repository specifies the format.
//!
//! # Where things are
//!
//! | Task | Path |
//! |---|---|
//! | Encode or decode named tensors in one call | [`encode`], [`decode`], [`decode_with`] for other [`Limits`] |
//! | Choose a codec, set its options | [`Codec`], [`compress`] |
//! | Keep residuals or sender state between steps | [`compress::Feedback`], [`compress::senders`] |
//! | Write a stream to a file or socket | [`Writer`], [`stream::EncodeOptions`] |
//! | Read a stream from a file or socket | [`Reader`], [`stream::Event`], [`stream::Body`] |
//! | Read a stream in memory without copying | [`stream::SliceReader`] |
//! | Encode and decode without IO | [`stream::Encoder`], [`stream::Decoder`] |
//! | Turn updates into dense tensors | [`stream::Assembler`] |
//! | Read one tensor of a finished file | [`file::File`] |
//! | Read a corrupt stream, fault by fault | [`stream::salvage`] |
//! | Report on a stream: frames, updates, tensors, blocks | [`file::report`] |
//! | Map, append to, recover or replace a file | [`mod@file`] |
//! | Describe tensors; headers, metadata, models | [`frame`] |
//! | Build or examine blocks | [`block`] |
//! | Compare tensors without moving them | [`digest`] |
//! | Sum the updates of many workers | [`reduce`] |
//! | Statistics of tensors and of updates | [`reduce::stats`] |
//! | Element types, conversions to and from `f32` | [`Dtype`], [`tensor`] |
//! | Draw the same random numbers everywhere | [`compress::random`] |
//! | Handle errors by kind and place | [`Error`], [`error`] |
//!
//! # One call
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
//! # Streaming
//!
//! ```
//! use std::sync::Arc;
//! use gcodec::compress::{Input, Options, compress};
//! use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
//! use gcodec::stream::{Assembler, Body, EncodeOptions, Event};
//! use gcodec::{Limits, Reader, TensorBuf, Writer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gradient = TensorBuf::from_f32(vec![4], &[0.5, -2.0, 0.0, 0.25])?;
//! let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", gradient.dtype(), gradient.shape())])?);
//! let mut writer = Writer::new(Vec::new(), EncodeOptions::default());
//! for step in 0..2 {
//!     let inputs = [Input { tensor: 0, name: "w", view: gradient.view(), base: None }];
//!     let codec = "sbc:k=1,positions=rice-one".parse()?;
//!     let blocks = compress(&inputs, &[codec], &Options::default(), None)?;
//!     writer.update(&UpdateHeader::default().with_step(step), &manifest, &blocks)?;
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
//! Corrupt, truncated or hostile input returns a typed [`Error`] with its kind, its byte offset and the party
//! at fault. [`Limits`] bound memory and time. Memory grows with the bytes that arrived, not with the lengths
//! that they declare.

mod arch;
mod bits;
pub mod block;
mod codes;
pub mod compress;
pub mod digest;
pub mod error;
pub mod file;
pub mod frame;
#[doc(hidden)]
pub mod internal;
mod limits;
mod oneshot;
mod random;
pub mod reduce;
pub mod stream;
pub mod tensor;

// At most 20 public names (tests/properties/root.rs): everything else is found in its module.
pub use compress::Codec;
pub use error::{Error, Result};
pub use limits::Limits;
pub use oneshot::{decode, decode_with, encode};
pub use stream::{Reader, Writer};
pub use tensor::{Dtype, TensorBuf, TensorView};

/// Switches of the fuzz targets (`fuzz/README.md`); no other build has them.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::arch::WIDEST;
    pub use crate::bits::CHECKSUMS;
}

/// Compiles and runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
