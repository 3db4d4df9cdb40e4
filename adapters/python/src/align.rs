//! An allocator whose large blocks begin at a multiple of 64 bytes.
//!
//! The library's tensors are `Vec<u8>`, and zeros come from the system lazily. JAX copies what does not begin at a multiple
//! of 64 bytes, and the system's allocator puts large blocks 16 bytes behind a page's beginning. So each large block is
//! asked for with room to spare, and its beginning is moved; how far stands in the byte before it.

use std::alloc::{GlobalAlloc, Layout, System};

const ALIGN: usize = 64;
/// Blocks of at least so many bytes are aligned.
const LARGE: usize = 1024;

pub(crate) struct Aligned;

/// The layout of the block that holds one of `layout`; `None` if that is small, or aligned otherwise.
fn outer(layout: Layout) -> Option<Layout> {
    let fits = layout.size() >= LARGE && layout.align() <= ALIGN;
    let size = layout.size().checked_add(ALIGN).filter(|_| fits)?;
    Layout::from_size_align(size, layout.align()).ok()
}

/// Moves the beginning of a block; null stays null.
///
/// # Safety
/// `raw` is null or the beginning of a block of at least [`ALIGN`] bytes.
unsafe fn shift(raw: *mut u8) -> *mut u8 {
    if raw.is_null() {
        return raw;
    }
    // 1 to 64: there is always a byte before the new beginning.
    let by = ALIGN - raw.addr() % ALIGN;
    // SAFETY: the block has 64 bytes beside those of the inner one.
    unsafe {
        let inner = raw.add(by);
        inner.sub(1).write(by as u8);
        inner
    }
}

/// The beginning of the block that [`shift`] was given.
///
/// # Safety
/// `inner` came from [`shift`] and is not null.
unsafe fn unshift(inner: *mut u8) -> *mut u8 {
    // SAFETY: the byte before it was written by `shift`, and lies in the same block.
    unsafe { inner.sub(usize::from(inner.sub(1).read())) }
}

// SAFETY: every block comes from `System`, with a layout that is a function of the caller's alone; what is handed out lies
// inside it, at the caller's alignment or at 64, which is a multiple of it.
unsafe impl GlobalAlloc for Aligned {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match outer(layout) {
            // SAFETY: the size is not zero.
            Some(outer) => unsafe { shift(System.alloc(outer)) },
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match outer(layout) {
            // SAFETY: the size is not zero. The byte that `shift` writes lies before the inner block.
            Some(outer) => unsafe { shift(System.alloc_zeroed(outer)) },
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match outer(layout) {
            // SAFETY: `block` came from `alloc` with this layout, so `shift` moved it.
            Some(outer) => unsafe { System.dealloc(unshift(block), outer) },
            // SAFETY: the caller's promise.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `realloc`'s caller promises that the size rounded up to the alignment fits.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (outer(layout), outer(new)) {
            // SAFETY: the caller's promise.
            (None, None) => unsafe { System.realloc(block, layout, size) },
            (Some(old_outer), Some(new_outer)) => {
                // SAFETY: as in `dealloc`; the bytes behind the old shift are those of the inner block, of which the
                // smaller number is kept, and both places lie inside the new block.
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
            // SAFETY: a new block, the smaller number of bytes, the old block: each with its own layout.
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
