//! Large pages behind large buffers.

use std::mem::MaybeUninit;

/// Bytes from which a buffer is large: a few large pages.
#[cfg(target_os = "linux")]
const LARGE: usize = 4 << 20;

/// Asks the system to put large pages behind the memory of `buffer` that is not in use yet. Does nothing to
/// small buffers, and nothing on other systems than Linux.
///
/// A new page costs a fault, whatever its size. With pages of 4 KiB, these faults take several times as long
/// as everything else that happens to the memory of a large buffer. Linux gives large pages to those that
/// ask. It may also refuse, which changes nothing but the speed.
pub(crate) fn prefer_large<T: Copy>(buffer: &mut Vec<T>) {
    let (start, room) = (buffer.as_mut_ptr(), buffer.capacity());
    // SAFETY: a vector's room is memory that it owns, and uninitialised items may be anything.
    prefer_large_for(unsafe { std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<T>>(), room) });
}

/// Asks the system to put large pages behind memory that is not in use yet. Does nothing to less than 4 MiB,
/// and nothing on other systems than Linux.
pub fn prefer_large_for<T>(memory: &mut [MaybeUninit<T>]) {
    #[cfg(target_os = "linux")]
    {
        let bytes = size_of_val(memory);
        if bytes < LARGE {
            return;
        }
        let start = memory.as_mut_ptr().cast::<u8>();
        // The advice is for all pages that the buffer touches. If the buffer has a mapping of its own, advice
        // for a part would split the mapping in two. Allocators grow such a buffer with `mremap`, which moves
        // one mapping only.
        let page = page_size();
        let before = start.addr() % page;
        let len = (before + bytes).next_multiple_of(page);
        // SAFETY: the pages are mapped, as the memory lies in all of them. The advice changes neither their
        // contents nor their protection, so it does not matter what else lies in the first and the last.
        let _ = unsafe { libc::madvise(start.wrapping_sub(before).cast(), len, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// Returns the number of bytes of a small page.
#[cfg(target_os = "linux")]
fn page_size() -> usize {
    static SIZE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: the call reads a constant of the system.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(1 << 16)
    })
}

/// Makes room for `len` items on large pages if they are many, and if the system has it. Returns whether it
/// did.
///
/// When a buffer of pages of its own grows, the system moves it, mostly to where they cannot be large. A
/// smaller one grows in memory that the allocator keeps from buffers before it.
pub(crate) fn reserve<T: Copy>(buffer: &mut Vec<T>, len: usize) -> bool {
    let makes = len.saturating_mul(size_of::<T>()) >= MAPPED && buffer.try_reserve_exact(len).is_ok();
    if makes {
        prefer_large(buffer);
    }
    makes
}

/// Lets glibc keep freed memory for the next buffers, from the first call on. Does nothing elsewhere.
///
/// glibc returns the top of its heap to the system at each free that leaves more than 128 KiB there, until a
/// program frees a mapping of its own: then twice the bytes of that mapping may stay. A program whose buffers
/// are all small never frees one, and takes new pages for each update, which costs several times as much as
/// to decode it.
pub(crate) fn keep_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// Bytes of the mapping. It is not written to, so it takes no memory.
        const MAPPING: usize = 8 << 20;
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: nothing accesses the memory, which is freed once; there may be none.
        ONCE.call_once(|| unsafe { libc::free(std::hint::black_box(libc::malloc(MAPPING))) });
    }
}

/// Bytes from which a buffer has pages of its own: the most that glibc ever decides on.
const MAPPED: usize = 32 << 20;

/// Returns an empty buffer with room for `len` items on large pages.
pub(crate) fn with_room<T: Copy>(len: usize) -> Vec<T> {
    let mut buffer = Vec::with_capacity(len);
    prefer_large(&mut buffer);
    buffer
}

/// Appends `items` to a buffer, which is on large pages if it grows.
pub(crate) fn append<T: Copy>(buffer: &mut Vec<T>, items: &[T]) {
    if buffer.capacity() - buffer.len() < items.len() {
        buffer.reserve(items.len());
        prefer_large(buffer);
    }
    buffer.extend_from_slice(items);
}

/// Returns a copy of `items` on large pages.
pub(crate) fn copy<T: Copy>(items: &[T]) -> Vec<T> {
    let mut buffer = with_room(items.len());
    buffer.extend_from_slice(items);
    buffer
}

/// Returns the first `len` items of a buffer that is used again, longer than before if necessary. They have
/// any values.
pub(crate) fn reused<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        // Nothing is copied, and new memory has zeros already.
        *buffer = Vec::new();
        *buffer = zeros(len);
    }
    &mut buffer[..len]
}

/// Returns a buffer of `len` items that have any values, in the memory of `used` if that is large enough.
pub(crate) fn of_len<T: Copy + Default>(mut used: Vec<T>, len: usize) -> Vec<T> {
    if used.capacity() < len {
        return zeros(len);
    }
    used.resize(len, T::default());
    used
}

/// Returns `len` zeros on large pages.
pub(crate) fn zeros<T: Copy + Default>(len: usize) -> Vec<T> {
    let mut buffer = vec![T::default(); len];
    prefer_large(&mut buffer);
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_are_used_again_only_grow() {
        let mut buffer = Vec::new();
        for (len, room) in [(0, 0), (10, 10), (5, 10), (11, 11), (11, 11)] {
            assert_eq!(reused::<u16>(&mut buffer, len).len(), len);
            assert_eq!(buffer.len(), room);
        }
        for len in [3, 11, 12] {
            buffer = of_len(buffer, len);
            assert_eq!(buffer.len(), len);
        }
    }

    #[test]
    fn room_is_made_for_many_items_that_the_system_has_room_for() {
        let mut buffer = vec![1u8];
        assert!(!reserve(&mut buffer, usize::MAX) && !reserve(&mut buffer, MAPPED - 1));
        assert_eq!((&*buffer, buffer.capacity()), (&[1][..], 1));
        assert!(reserve(&mut buffer, MAPPED));
        assert!(buffer == [1] && buffer.capacity() > MAPPED);
    }

    #[test]
    fn advice_changes_no_content() {
        for len in [0, 1, 4096, (2 << 20) - 1, 5 << 20, 9 << 20] {
            let mut zeros: Vec<u32> = zeros(len);
            assert!(zeros.len() == len && zeros.iter().all(|&x| x == 0));
            zeros.iter_mut().zip(0..).for_each(|(x, i)| *x = i);
            prefer_large(&mut zeros);
            assert!(zeros.iter().zip(0..).all(|(&x, i)| x == i));
        }
    }
}
