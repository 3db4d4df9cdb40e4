//! Opaque handles. A call checks that a handle is of its type, that no other thread is inside of it, and that
//! no earlier call with it panicked.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::error::{Failure, Result};

/// Content of a handle.
pub(crate) trait Content: Sized + Send {
    /// The type in the header.
    type Opaque;
    /// First four bytes of such a handle.
    const TAG: u32;
    /// Word for such a handle in messages.
    const NAME: &'static str;
}

/// The beginning of every handle, whatever its type.
#[repr(C)]
struct HandleHead {
    tag: AtomicU32,
    state: AtomicU32,
}

#[repr(C)]
struct Handle<T> {
    head: HandleHead,
    content: UnsafeCell<T>,
}

const FREE: u32 = 0;
const BUSY: u32 = 1;
const POISONED: u32 = 2;

/// Returns a new handle, which the caller owns.
pub(crate) fn new<T: Content>(content: T) -> *mut T::Opaque {
    let head = HandleHead { tag: AtomicU32::new(T::TAG), state: AtomicU32::new(FREE) };
    Box::into_raw(Box::new(Handle { head, content: UnsafeCell::new(content) })).cast()
}

/// Frees or poisons the handle at the end of a call.
struct Release<'a>(&'a AtomicU32);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.store(if thread::panicking() { POISONED } else { FREE }, Ordering::Release);
    }
}

/// Checks a handle and its type.
///
/// # Safety
/// `handle` is null, or a live handle of any type.
unsafe fn head<'a, T: Content>(handle: *const T::Opaque) -> Result<&'a HandleHead> {
    let head = handle.cast::<HandleHead>();
    if head.is_null() {
        return Err(Failure::input(format!("the {} is NULL", T::NAME)));
    }
    if !handle.cast::<Handle<T>>().is_aligned() {
        return Err(Failure::input(format!("this is no {}", T::NAME)));
    }
    // SAFETY: every live handle begins with a head, which only atomic operations change.
    let head = unsafe { &*head };
    match head.tag.load(Ordering::Relaxed) == T::TAG {
        true => Ok(head),
        false => Err(Failure::input(format!("this is no {}", T::NAME))),
    }
}

/// Calls `run` with the content of a handle.
///
/// # Safety
/// `handle` is null, or a live handle of any type that nobody frees during the call.
pub(crate) unsafe fn with<T: Content, R>(
    handle: *const T::Opaque,
    run: impl FnOnce(&mut T) -> Result<R>,
) -> Result<R> {
    // SAFETY: the caller's promise.
    let head = unsafe { head::<T>(handle) }?;
    match head.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => {}
        Err(POISONED) => return Err(Failure::poisoned(T::NAME)),
        Err(_) => return Err(Failure::busy(T::NAME)),
    }
    let _release = Release(&head.state);
    #[cfg(test)]
    crate::fault::point();
    // SAFETY: the tag says that this is a `Handle<T>`, and its state says that this call alone is inside.
    run(unsafe { &mut *(*handle.cast::<Handle<T>>()).content.get() })
}

/// Frees a handle. Does nothing if it is null, of another type, or in use.
///
/// # Safety
/// `handle` is null, or a live handle of any type.
pub(crate) unsafe fn free<T: Content>(handle: *mut T::Opaque) {
    // SAFETY: the caller's promise.
    let Ok(head) = (unsafe { head::<T>(handle) }) else { return };
    if head.state.swap(BUSY, Ordering::Acquire) == BUSY {
        return;
    }
    head.tag.store(0, Ordering::Relaxed);
    let drop = || {
        // SAFETY: `new` made the box, its tag was that of `T` until now, and no call is inside.
        drop(unsafe { Box::from_raw(handle.cast::<Handle<T>>()) });
    };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(drop)) {
        std::mem::forget(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::gcodec_status;
    use crate::feedback::{Feedback, gcodec_feedback};

    #[test]
    fn a_handle_is_in_one_call_at_a_time() {
        let handle: *mut gcodec_feedback = new(Feedback::default());
        // SAFETY: the handle is live until the last line, because a handle in use is not freed.
        unsafe {
            let inside = with(handle, |_: &mut Feedback| {
                free::<Feedback>(handle);
                with(handle, |_: &mut Feedback| Ok(()))
            });
            assert_eq!(inside.map_err(|e| e.status), Err(gcodec_status::Busy));
            let panics = || with(handle, |_: &mut Feedback| -> Result<()> { panic!("injected") });
            assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
            let after = with(handle, |_: &mut Feedback| Ok(()));
            assert_eq!(after.map_err(|e| e.status), Err(gcodec_status::Panic));
            free::<Feedback>(handle);
        }
    }
}
