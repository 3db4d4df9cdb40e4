//! The C ABI of gcodec. `include/gcodec.h`, which cbindgen makes from this crate, is its reference; the
//! contract that all functions share is at the top of that header (`cbindgen.toml`).
//!
//! Every function checks its pointers, its handles and its numbers before it uses them. A panic becomes
//! [`gcodec_status::Panic`]: none crosses the boundary.

#![allow(unsafe_code, reason = "C gives addresses")]
#![allow(non_camel_case_types, reason = "the names of the header")]
#![allow(clippy::missing_safety_doc, reason = "cbindgen.toml states the contract of all functions")]

mod decoder;
mod encoder;
mod error;
#[cfg(test)]
mod fault;
mod feedback;
mod given;
mod handle;
mod options;
mod report;
mod tensor;
mod threads;

use std::ffi::c_char;

pub use decoder::*;
pub use encoder::*;
pub use error::{gcodec_error, gcodec_status};
pub use feedback::*;
pub use options::*;
pub use report::*;
pub use tensor::*;
pub use threads::gcodec_set_threads;

/// Version of this ABI: the major number in the upper 16 bits, the minor number in the lower 16. A program
/// that was compiled with one major number works with every library of the same major number and an equal or
/// greater minor number.
pub const GCODEC_ABI_VERSION: u32 = 0x0001_0000;

/// Value of a field of `gcodec_error` or `gcodec_block` that is not known.
pub const GCODEC_UNKNOWN: u64 = u64::MAX;

/// Returns the `GCODEC_ABI_VERSION` of the library. Any thread may call it at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gcodec_abi_version() -> u32 {
    GCODEC_ABI_VERSION
}

/// Returns the library's version, for people. The text is constant. Any thread may call it at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gcodec_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
