//! A counting allocator, which compares an input's memory with its limits.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn count(bytes: usize) {
    let used = USED.fetch_add(bytes, Relaxed) + bytes;
    MOST.fetch_max(used, Relaxed);
}

// `realloc` is the trait's default: old and new bytes exist at once, which is the system's maximum.
// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the requirements, which are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the requirements, which are those of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the requirements, which are those of `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the result of `f`; panics if it ever held more than `allowed` bytes, including its result.
pub fn within<T>(allowed: usize, what: &str, f: impl FnOnce() -> T) -> T {
    let before = USED.load(Relaxed);
    MOST.store(before, Relaxed);
    let result = f();
    let most = MOST.load(Relaxed).saturating_sub(before);
    assert!(most <= allowed, "{what} took {most} bytes, {allowed} are allowed");
    result
}
