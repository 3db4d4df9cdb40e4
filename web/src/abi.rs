//! The functions of the module. JavaScript writes a request to memory of [`gcodec_alloc`], calls one
//! function, and reads the answer before the next call.
//!
//! If reading a file fails, JavaScript throws through the functions, and makes a new instance of the module.

#![allow(unsafe_code)]
#![allow(unreachable_pub, reason = "JavaScript reaches them")]

use crate::{files, session};
use std::cell::RefCell;

#[link(wasm_import_module = "gcodec")]
unsafe extern "C" {
    /// Fills `len` bytes from `out` on with those of a file from `offset` on. Returns only if it did.
    safe fn read_at(file: u32, offset: f64, out: usize, len: usize);
    /// Takes the message of a panic.
    safe fn panicked(text: usize, len: usize);
}

thread_local! {
    static REQUEST: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static ANSWER: RefCell<session::Answer> = const { RefCell::new(session::Answer::empty()) };
}

/// Returns room for a request of `len` bytes, until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn gcodec_alloc(len: usize) -> *mut u8 {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        panicked(text.as_ptr() as usize, text.len());
    }));
    REQUEST.with_borrow_mut(|request| {
        *request = vec![0; len];
        request.as_mut_ptr()
    })
}

/// Adds a file, whose path is the request: number `file` for [`read_at`], of `len` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn gcodec_add(file: u32, len: f64) {
    let path = String::from_utf8_lossy(&REQUEST.take()).into_owned();
    // Lengths of files are whole numbers below 2^53.
    files::add(&path, len as u64, move |offset, out| {
        read_at(file, offset as f64, out.as_mut_ptr() as usize, out.len());
    });
}

/// Answers the request. Returns the length of the answer's text, which is JSON.
#[unsafe(no_mangle)]
pub extern "C" fn gcodec_ask() -> usize {
    let request = REQUEST.take();
    let answer = session::answer(&request);
    ANSWER.replace(answer);
    ANSWER.with_borrow(|answer| answer.text.len())
}

/// Returns where the answer's text is.
#[unsafe(no_mangle)]
pub extern "C" fn gcodec_text() -> *const u8 {
    ANSWER.with_borrow(|answer| answer.text.as_ptr())
}

/// Returns where the answer's bytes are, which only some answers have.
#[unsafe(no_mangle)]
pub extern "C" fn gcodec_bytes() -> *const u8 {
    ANSWER.with_borrow(|answer| answer.bytes.as_ptr())
}

/// Returns the number of the answer's bytes.
#[unsafe(no_mangle)]
pub extern "C" fn gcodec_bytes_len() -> usize {
    ANSWER.with_borrow(|answer| answer.bytes.len())
}
