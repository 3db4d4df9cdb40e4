//! The caller's pointers as slices, texts and places for results, with every check that an address allows.

use std::ffi::{CStr, c_char};
use std::slice;

use crate::error::{Failure, Result};

/// Borrows `count` items.
///
/// # Safety
/// `items` is null, or points to `count` items that stay in place and unchanged for `'a`.
pub(crate) unsafe fn items<'a, T>(items: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(items, count, what)?;
    // SAFETY: the pointer is not null, is aligned, and the length in bytes is at most `isize::MAX`; the rest
    // is the caller's promise.
    Ok(unsafe { slice::from_raw_parts(items, count) })
}

/// Borrows a buffer of the caller for writing.
///
/// # Safety
/// `items` is null, or points to `count` bytes that nobody else uses for `'a`.
pub(crate) unsafe fn buffer<'a>(items: *mut u8, count: usize) -> Result<&'a mut [u8]> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(items, count, "the buffer")?;
    // SAFETY: as in `items`. The caller's bytes may be uninitialised: they are only written, by
    // `copy_from_slice`.
    Ok(unsafe { slice::from_raw_parts_mut(items, count) })
}

fn check<T>(items: *const T, count: usize, what: &str) -> Result<()> {
    if items.is_null() {
        return Err(Failure::input(format!("{what}: NULL with a count of {count}")));
    }
    if !items.is_aligned() {
        return Err(Failure::input(format!("{what}: the address is not aligned")));
    }
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        _ => Err(Failure::input(format!("{what}: a count of {count} is too large"))),
    }
}

/// Borrows a text of `len` bytes, or, if `len` is 0, up to its zero byte.
///
/// # Safety
/// `text` is null, or points to that many bytes, which stay unchanged for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, len: usize, what: &str) -> Result<&'a str> {
    let bytes = match len {
        0 if text.is_null() => return Err(Failure::input(format!("{what} is NULL"))),
        // SAFETY: the caller's promise: a zero byte ends the text.
        0 => unsafe { CStr::from_ptr(text) }.to_bytes(),
        // SAFETY: the caller's promise.
        _ => unsafe { items(text.cast::<u8>(), len, what) }?,
    };
    std::str::from_utf8(bytes).map_err(|_| Failure::input(format!("{what} is not UTF-8")))
}

/// Borrows one structure, or `None` if the pointer is null.
///
/// # Safety
/// `item` is null, or points to a valid `T` that stays unchanged for `'a`.
pub(crate) unsafe fn optional<'a, T>(item: *const T, what: &str) -> Result<Option<&'a T>> {
    match item.is_null() {
        true => Ok(None),
        // SAFETY: the caller's promise.
        false => Ok(unsafe { items(item, 1, what) }?.first()),
    }
}

/// Checks that a place for a result is not null and aligned.
pub(crate) fn place<T>(out: *mut T) -> Result<Out<T>> {
    match out.is_null() || !out.is_aligned() {
        true => Err(Failure::input("the place for the result is NULL or not aligned")),
        false => Ok(Out(out)),
    }
}

/// A place for a result.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result.
    ///
    /// # Safety
    /// The place that [`place`] was given is the caller's memory for a `T`.
    pub(crate) unsafe fn set(self, value: T) {
        // SAFETY: not null and aligned, as `place` checked; the rest is the caller's promise.
        unsafe { self.0.write(value) };
    }
}
