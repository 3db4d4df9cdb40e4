//! One file for each compressor.

pub(crate) mod chunked;
pub(crate) mod demo;
pub(crate) mod lossless;
pub(crate) mod natural;
pub(crate) mod powersgd;
pub(crate) mod quantize;
pub(crate) mod randk;
pub(crate) mod sbc;
pub(crate) mod sidco;
pub(crate) mod sign;
pub(crate) mod state;
