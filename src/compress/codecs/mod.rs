//! Compressors, one per file. Each file has the settings with their ranges, and the function that makes
//! blocks: it implements `Compressor`.

pub(super) mod chunked;
pub(super) mod delta;
pub(super) mod demo;
mod dither;
mod int8;
pub(super) mod lossless;
pub(super) mod matrix;
pub(super) mod natural;
pub(super) mod powersgd;
mod qsgd;
pub(super) mod quantize;
pub(super) mod randk;
pub(super) mod sbc;
pub(super) mod sidco;
pub(super) mod sign;
pub(super) mod sparse;
mod terngrad;
mod threshold;
mod topk;

pub use chunked::{ChunkValues, Chunked};
pub use delta::{Change, Delta, DigestKind};
pub use demo::Demo;
pub use dither::Dither;
pub use int8::Int8;
pub use lossless::Lossless;
pub use natural::Natural;
pub use powersgd::PowerSgd;
pub use qsgd::Qsgd;
pub use randk::{RandK, Scaling};
pub use sbc::Sbc;
pub use sidco::{Fit, Sidco, Stages};
pub use sign::{Share, Sign};
pub use terngrad::TernGrad;
pub use threshold::Threshold;
pub use topk::TopK;
