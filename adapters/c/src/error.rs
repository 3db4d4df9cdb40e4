//! Status codes and errors, and the boundary that no panic crosses.

use std::any::Any;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gcodec::Error;
use gcodec::compress::SpecError;
use gcodec::error::InputErrorKind;

use crate::GCODEC_UNKNOWN;

/// Result of a call: zero, or the party at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum gcodec_status {
    /// The call did what it should.
    Ok = 0,
    /// The bytes: the format does not allow them.
    Format = 1,
    /// The bytes may be well formed, but this library does not know a feature that they use.
    Unsupported = 2,
    /// The bytes ask for more than `gcodec_limits` allow.
    Limit = 3,
    /// The caller: an argument, a tensor, or a base that is missing or differs.
    Input = 4,
    /// The caller's buffer is too short; nothing was written to it.
    Short = 5,
    /// Another thread is inside of a call with the same handle.
    Busy = 6,
    /// A defect of the library. Every later call with the same handle returns this again; it can be freed.
    Panic = 7,
    /// The system: reading or writing failed.
    Io = 8,
}

/// Error of a call, in memory of the caller. A call that succeeds does not write to it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gcodec_error {
    /// The status that the call returned.
    pub status: gcodec_status,
    /// Kind of the error, as the spec's vectors write it ("truncated", "limit", ..); ends with a zero byte.
    pub kind: [c_char; 32],
    /// Offset in the stream, in bytes, or `GCODEC_UNKNOWN`.
    pub offset: u64,
    /// Number of the frame in the stream, or `GCODEC_UNKNOWN`.
    pub frame: u64,
    /// Number of the block in its update, or `GCODEC_UNKNOWN`.
    pub block: u64,
    /// Number of the tensor, or `GCODEC_UNKNOWN`.
    pub tensor: u64,
    /// Text for people, UTF-8; ends with a zero byte, and is cut where it is longer.
    pub message: [c_char; 512],
}

/// A failed call, before it is written into the caller's [`gcodec_error`].
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) status: gcodec_status,
    kind: &'static str,
    offset: Option<u64>,
    frame: Option<u64>,
    block: Option<u64>,
    tensor: Option<u64>,
    message: String,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(status: gcodec_status, kind: &'static str, message: String) -> Self {
        Self { status, kind, offset: None, frame: None, block: None, tensor: None, message }
    }

    /// Returns the failure for a mistake of the caller.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::new(gcodec_status::Input, "input", message.into())
    }

    /// Returns the failure for a buffer that is too short.
    pub(crate) fn short(capacity: usize, needed: usize) -> Self {
        let message = format!("the buffer has {capacity} bytes, {needed} are needed");
        Self::new(gcodec_status::Short, "short_buffer", message)
    }

    pub(crate) fn busy(what: &str) -> Self {
        Self::new(gcodec_status::Busy, "busy", format!("another thread uses this {what}"))
    }

    pub(crate) fn poisoned(what: &str) -> Self {
        let message = format!("an earlier call with this {what} panicked: free it");
        Self::new(gcodec_status::Panic, "panic", message)
    }

    fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let message = format!("defect in gcodec: {}", text.unwrap_or("a panic without a text"));
        Self::new(gcodec_status::Panic, "panic", message)
    }

    /// Adds the number of the tensor.
    pub(crate) fn of_tensor(mut self, number: usize) -> Self {
        self.tensor.get_or_insert(number as u64);
        self
    }

    /// Puts the tensor's name before the message, where `name` knows it.
    pub(crate) fn named<'a>(mut self, name: impl FnOnce(u64) -> Option<&'a str>) -> Self {
        if let Some(name) = self.tensor.and_then(name) {
            self.message = format!("tensor {name:?}: {}", self.message);
        }
        self
    }

    /// Whether the stream cannot be read on: a wrong base is a mistake that the next update may not have.
    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.status, gcodec_status::Format | gcodec_status::Unsupported | gcodec_status::Limit)
    }

    fn write(&self) -> gcodec_error {
        let number = |n: Option<u64>| n.unwrap_or(GCODEC_UNKNOWN);
        let mut error = gcodec_error {
            status: self.status,
            kind: [0; 32],
            offset: number(self.offset),
            frame: number(self.frame),
            block: number(self.block),
            tensor: number(self.tensor),
            message: [0; 512],
        };
        copy_text(self.kind, &mut error.kind);
        copy_text(&self.message, &mut error.message);
        error
    }
}

/// Copies the characters that fit, before the last byte, which stays zero.
fn copy_text(text: &str, out: &mut [c_char]) {
    let fits = text.char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|end| *end < out.len()).last();
    for (out, byte) in out.iter_mut().zip(&text.as_bytes()[..fits.unwrap_or(0)]) {
        *out = *byte as c_char;
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Io(_) => gcodec_status::Io,
            Error::Format(_) => gcodec_status::Format,
            Error::Unsupported(_) => gcodec_status::Unsupported,
            Error::Limit(_) => gcodec_status::Limit,
            _ => gcodec_status::Input,
        };
        let kind = match &error {
            Error::Input(e) if matches!(e.kind, InputErrorKind::NonFinite { .. }) => "non_finite",
            _ => error.name(),
        };
        let at = error.location();
        let tensor = match &error {
            Error::Input(e) => e.tensor,
            _ => at.and_then(|at| at.tensor),
        };
        Self {
            offset: at.map(|at| at.offset),
            frame: at.and_then(|at| at.frame),
            block: at.and_then(|at| at.block),
            tensor,
            ..Self::new(status, kind, error.to_string())
        }
    }
}

impl From<SpecError> for Failure {
    fn from(e: SpecError) -> Self {
        Self::input(e.to_string())
    }
}

/// Runs the body of a function of the ABI. Writes its error, or its panic, to `error`.
///
/// # Safety
/// `error` is null or points to memory for a [`gcodec_error`].
pub(crate) unsafe fn call(error: *mut gcodec_error, body: impl FnOnce() -> Result<()>) -> gcodec_status {
    let run = || {
        #[cfg(test)]
        crate::fault::point();
        body()
    };
    // After a panic nothing is used again: handles that were in use are poisoned.
    let failure = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return gcodec_status::Ok,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let failure = Failure::panicked(&*payload);
            // Dropping a payload can run foreign code, which can panic again.
            std::mem::forget(payload);
            failure
        }
    };
    if !error.is_null() && error.is_aligned() {
        // SAFETY: the caller lends memory for one error; it is aligned, and written as a whole.
        unsafe { error.write(failure.write()) };
    }
    failure.status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        let mut out = [1; 6];
        copy_text("aäöü", &mut out[..]);
        assert_eq!(out.map(|c| c as u8), [b'a', 0xc3, 0xa4, 0xc3, 0xb6, 1]);
        let mut out = [0; 5];
        copy_text("aäöü", &mut out[..]);
        assert_eq!(out.map(|c| c as u8), [b'a', 0xc3, 0xa4, 0, 0]);
        let mut none = [0; 1];
        copy_text("a", &mut none[..]);
        assert_eq!(none, [0]);
    }

    #[test]
    fn a_panic_becomes_a_status() {
        let mut error = Failure::input("").write();
        // SAFETY: the error is a local variable.
        let status = unsafe { call(&raw mut error, || panic!("what {}", 7)) };
        assert_eq!((status, error.status), (gcodec_status::Panic, gcodec_status::Panic));
        let text: Vec<u8> = error.message.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        assert_eq!(String::from_utf8(text).unwrap(), "defect in gcodec: what 7");
        // SAFETY: null is allowed.
        assert_eq!(unsafe { call(std::ptr::null_mut(), || panic!("what")) }, gcodec_status::Panic);
    }
}
