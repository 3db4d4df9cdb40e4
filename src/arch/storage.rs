//! Memory of tensors: large pages, which several tensors share if they are small.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::pages;
#[cfg(target_os = "linux")]
use shared::{Share, shares};

/// The bytes of a tensor.
pub(crate) struct Storage(Kind);

enum Kind {
    /// Memory of its own, from the allocator.
    Own(Vec<u8>),
    /// A part of large pages, which are to be had on Linux.
    #[cfg(target_os = "linux")]
    Share(Share),
}

impl Storage {
    /// Returns zeros of each of these lengths. Nothing but address space is taken before they are written.
    ///
    /// To take a page from the system costs more than to fill it, and most tensors of a model are too small
    /// for large pages of their own. Neighbours are written together and mostly dropped together: small ones
    /// share pages, unless they are few, whose memory the allocator keeps for those that come after them.
    pub(crate) fn zeros(lens: &[usize]) -> Vec<Self> {
        pages::keep_heap();
        let own = |&len: &usize| pages::zeros(len).into();
        #[cfg(target_os = "linux")]
        {
            let mut all = Vec::with_capacity(lens.len());
            for group in shared::groups(lens) {
                match shares(group) {
                    Some(shares) => all.extend(shares.map(|share| Self(Kind::Share(share)))),
                    None => all.extend(group.iter().map(own)),
                }
            }
            all
        }
        #[cfg(not(target_os = "linux"))]
        lens.iter().map(own).collect()
    }

    /// Returns the bytes as a vector, a copy if they share pages.
    pub(crate) fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Kind::Own(bytes) => bytes,
            #[cfg(target_os = "linux")]
            Kind::Share(share) => share.bytes().to_vec(),
        }
    }
}

impl From<Vec<u8>> for Storage {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Kind::Own(bytes))
    }
}

impl Deref for Storage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kind::Own(bytes) => bytes,
            #[cfg(target_os = "linux")]
            Kind::Share(share) => share.bytes(),
        }
    }
}

impl DerefMut for Storage {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Own(bytes) => bytes,
            #[cfg(target_os = "linux")]
            Kind::Share(share) => share.bytes_mut(),
        }
    }
}

impl Clone for Storage {
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

impl PartialEq for Storage {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Storage {}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(target_os = "linux")]
mod shared {
    //! Pages that several tensors share.

    use std::ops::Range;
    use std::ptr::NonNull;
    use std::sync::Arc;

    use memmap2::{Advice, MmapMut};

    /// Bytes of a large page on most processors.
    const PAGE: usize = 2 << 20;

    /// Tensors of fewer bytes share pages.
    const SHARED: usize = 4 << 20;

    /// Bytes from which pages take no further tensor. Whoever keeps one tensor keeps the pages of all.
    /// Several of fewer bytes share none: they are all of a small model, or the last ones of a large model.
    const TOGETHER: usize = 8 << 20;

    /// Tensors begin at multiples of this: a line of the cache, and more than any element or vector needs.
    const ALIGN: usize = 64;

    /// Bytes that no other share has.
    pub(super) struct Share {
        bytes: NonNull<[u8]>,
        /// Unmapped with the last share.
        pub(super) _pages: Arc<MmapMut>,
    }

    // SAFETY: a share is the only way to its bytes, as a `Vec<u8>` is.
    unsafe impl Send for Share {}
    // SAFETY: as above.
    unsafe impl Sync for Share {}

    impl Share {
        pub(super) fn bytes(&self) -> &[u8] {
            // SAFETY: the pages are mapped as long as the share lives, have zeros or what was written, and
            // the ranges of shares are disjoint: only this one leads to these bytes, and it is borrowed.
            unsafe { self.bytes.as_ref() }
        }

        pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
            // SAFETY: as above, and the share is borrowed mutably.
            unsafe { self.bytes.as_mut() }
        }
    }

    /// Cuts tensors into groups of neighbours that share pages.
    pub(super) fn groups(mut lens: &[usize]) -> impl Iterator<Item = &[usize]> {
        std::iter::from_fn(move || {
            let mut before = 0;
            let with_next = |&&len: &&usize| {
                let is_one = before == 0 || (len < SHARED && before < TOGETHER);
                before += len.max(1);
                is_one
            };
            let is_small = *lens.first()? < SHARED;
            lens.split_off(..if is_small { lens.iter().take_while(with_next).count() } else { 1 })
        })
    }

    /// Returns zeros of these lengths on the same pages; `None` where they are too short for that, or pages
    /// are not to be had.
    pub(super) fn shares(lens: &[usize]) -> Option<impl Iterator<Item = Share>> {
        let mut end = 0usize;
        let mut ranges: Vec<Range<usize>> = Vec::with_capacity(lens.len());
        for &len in lens {
            let start = end.checked_next_multiple_of(ALIGN)?;
            end = start.checked_add(len)?;
            ranges.push(start..end);
        }
        if end < if lens.len() == 1 { SHARED } else { TOGETHER } {
            return None;
        }
        let mut pages = MmapMut::map_anon(end.checked_add(PAGE)?).ok()?;
        let first = pages.as_ptr().align_offset(PAGE);
        // The last page is a large one if most of it is used.
        let _ = pages.advise_range(Advice::HugePage, first, (end + PAGE / 2) / PAGE * PAGE);
        let start = NonNull::new(pages.as_mut_ptr())?;
        let pages = Arc::new(pages);
        Some(ranges.into_iter().map(move |range| {
            // SAFETY: all ranges end at `end` or before, and the mapping has `PAGE` bytes more, of which
            // `align_offset` is at most all but one.
            let start = unsafe { start.add(first + range.start) };
            Share { bytes: NonNull::slice_from_raw_parts(start, range.len()), _pages: Arc::clone(&pages) }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Pages of each tensor, by the number of the first tensor that has them; `None` for memory of its own.
    #[cfg(target_os = "linux")]
    fn pages_of(all: &[Storage]) -> Vec<Option<usize>> {
        let pages = |storage: &Storage| match &storage.0 {
            Kind::Own(_) => None,
            Kind::Share(share) => Some(std::sync::Arc::as_ptr(&share._pages)),
        };
        let first = |of| all.iter().position(|other| pages(other) == Some(of));
        all.iter().map(|storage| pages(storage).and_then(first)).collect()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn neighbours_that_are_small_share_pages() {
        let pages_of = |lens: &[usize]| pages_of(&Storage::zeros(lens));
        assert_eq!(pages_of(&[]), []);
        // Too short, also alone between two that are large.
        assert_eq!(pages_of(&[0, MIB, 3 * MIB, 3 * MIB]), [None; 4]);
        assert_eq!(pages_of(&[4 * MIB, 3 * MIB, 4 * MIB]), [Some(0), None, Some(2)]);
        assert_eq!(pages_of(&[0, 3 * MIB, 3 * MIB, 2 * MIB, 7 * MIB]), [0, 0, 0, 0, 4].map(Some));
        assert_eq!(pages_of(&[3 * MIB; 7]), [Some(0), Some(0), Some(0), Some(3), Some(3), Some(3), None]);
    }

    #[test]
    fn each_tensor_has_its_own_bytes() {
        let lens = [5, 3 * MIB + 1, 0, 63, 64, 65, MIB, 2 * MIB, 4 * MIB, 1];
        let mut all = Storage::zeros(&lens);
        assert!(all.iter().zip(lens).all(|(storage, len)| storage.len() == len));
        assert!(all.iter().flat_map(|storage| storage.iter()).all(|&byte| byte == 0));
        for (storage, number) in all.iter_mut().zip(1..) {
            storage.fill(number);
        }
        // What is left keeps its pages, also in another thread.
        let left: Vec<Storage> = all.into_iter().skip(1).step_by(2).collect();
        let read = move || {
            for (storage, number) in left.iter().zip((2..).step_by(2)) {
                assert!(storage.iter().all(|&byte| byte == number));
                assert_eq!(storage, &storage.clone());
                assert_eq!(**storage, *storage.clone().into_vec());
            }
        };
        std::thread::spawn(read).join().unwrap();
    }

    #[test]
    fn a_vector_stays_where_it_is() {
        let bytes = vec![1, 2, 3];
        let place = bytes.as_ptr();
        let back = Storage::from(bytes).into_vec();
        assert_eq!((back.as_ptr(), &*back), (place, &[1, 2, 3][..]));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn lengths_that_no_memory_has_are_refused() {
        assert!(shares(&[usize::MAX - 1, 100]).is_none());
    }
}
