//! An allocator whose large blocks begin at a multiple of 64 bytes.
//!
//! The library's tensors are `Vec<u8>`, which the system zeroes lazily. JAX copies a tensor unless it begins
//! at a multiple of 64 bytes, and the system's allocator puts large blocks 16 bytes after the beginning of a
//! page. So this allocator requests 64 bytes more for each large block and moves its beginning. The byte
//! before the new beginning holds the distance.

use std::alloc::{GlobalAlloc, Layout, System};

const ALIGN: usize = 64;
/// Blocks of at least this many bytes are aligned.
const LARGE: usize = 1024;

pub(crate) struct Aligned;

/// Returns the layout of the outer block for `layout`; `None` if that is small or has a larger alignment.
fn outer(layout: Layout) -> Option<Layout> {
    let fits = layout.size() >= LARGE && layout.align() <= ALIGN;
    let size = layout.size().checked_add(ALIGN).filter(|_| fits)?;
    Layout::from_size_align(size, layout.align()).ok()
}

/// Moves the beginning of an outer block. Null stays null.
///
/// # Safety
/// `raw` is null or the beginning of a block of at least [`ALIGN`] bytes.
#[expect(unsafe_code, reason = "an allocator works on raw memory")]
unsafe fn shift(raw: *mut u8) -> *mut u8 {
    if raw.is_null() {
        return raw;
    }
    // 1 to 64, so a byte is free before the new beginning.
    let by = ALIGN - raw.addr() % ALIGN;
    // SAFETY: the outer block has 64 bytes more than the inner one.
    unsafe {
        let inner = raw.add(by);
        inner.sub(1).write(by as u8);
        inner
    }
}

/// Returns the beginning of the outer block that [`shift`] got.
///
/// # Safety
/// `inner` came from [`shift`] and is not null.
#[expect(unsafe_code, reason = "as above")]
unsafe fn unshift(inner: *mut u8) -> *mut u8 {
    // SAFETY: `shift` wrote the byte before `inner`, which lies in the same block.
    unsafe { inner.sub(usize::from(inner.sub(1).read())) }
}

#[expect(unsafe_code, reason = "an allocator works on raw memory")]
// SAFETY: every block comes from `System`, with a layout that depends only on the caller's layout. The
// returned address lies inside that block, at the caller's alignment or at 64, which is a multiple of it.
unsafe impl GlobalAlloc for Aligned {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match outer(layout) {
            // SAFETY: the size is not zero.
            Some(outer) => unsafe { shift(System.alloc(outer)) },
            // SAFETY: the caller keeps the contract of this function, which is the system's.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match outer(layout) {
            // SAFETY: the size is not zero. `shift` writes one byte, before the inner block.
            Some(outer) => unsafe { shift(System.alloc_zeroed(outer)) },
            // SAFETY: the caller keeps the contract of this function, which is the system's.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match outer(layout) {
            // SAFETY: `block` came from `alloc` with this layout, so `shift` moved it.
            Some(outer) => unsafe { System.dealloc(unshift(block), outer) },
            // SAFETY: the caller keeps the contract of this function, which is the system's.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller of `realloc` says that the size, rounded up to the alignment, fits.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (outer(layout), outer(new)) {
            // SAFETY: the caller keeps the contract of this function, which is the system's.
            (None, None) => unsafe { System.realloc(block, layout, size) },
            (Some(old_outer), Some(new_outer)) => {
                // SAFETY: as in `dealloc`. The bytes after the old shift are those of the inner block. The
                // smaller of both sizes is kept, and both places lie inside the new block.
                unsafe {
                    let old_by = usize::from(block.sub(1).read());
                    let raw = System.realloc(unshift(block), old_outer, new_outer.size());
                    if raw.is_null() {
                        return raw;
                    }
                    let by = ALIGN - raw.addr() % ALIGN;
                    if by != old_by {
                        raw.add(old_by).copy_to(raw.add(by), layout.size().min(size));
                    }
                    shift(raw)
                }
            }
            // SAFETY: each block is used with its own layout, and the smaller of both sizes is copied.
            _ => unsafe {
                let to = self.alloc(new);
                if !to.is_null() {
                    block.copy_to_nonoverlapping(to, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                to
            },
        }
    }
}
