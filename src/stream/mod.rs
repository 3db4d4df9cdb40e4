//! Streams: a push decoder and an encoder without IO, and thin adapters for slices, readers and writers
//! (spec, section 3).

mod assembler;
mod bases;
mod buffers;
mod byte_queue;
mod decoder;
mod encoder;
mod parser;
mod reader;
mod salvage;
mod writer;

pub use crate::bits::Output;
pub use assembler::Assembler;
pub(crate) use buffers::{copy, span};
pub use decoder::Decoder;
pub use encoder::{EncodeOptions, Encoder, Parts};
pub use parser::{Body, Event, FrameInfo};
pub(crate) use parser::{Definitions, OpenUpdate, Parser, Progress};
pub use reader::{Reader, SliceReader};
pub(crate) use salvage::salvage_frames;
pub use salvage::{DamagedFrame, Fault, Finding, salvage};
pub use writer::Writer;
