//! The native module's allocator, as the allocator of this program: alignment, zeroing, and contents after
//! reallocation.

#[path = "../src/align.rs"]
#[allow(unreachable_pub, reason = "a module of another crate")]
mod align;

use std::alloc::{GlobalAlloc, Layout};

#[global_allocator]
static ALLOCATOR: align::Aligned = align::Aligned;

/// Returns a pseudo-random number for `i`: one step of splitmix64.
fn mixed(i: u64) -> u64 {
    let z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

#[test]
#[expect(unsafe_code, reason = "an allocator works on raw memory")]
fn blocks_grow_and_shrink_with_what_they_hold() {
    for round in 0..2000u64 {
        let align = 1usize << (mixed(round) % 9);
        let mut size = 1 + (mixed(round * 7 + 1) % 5000) as usize;
        // SAFETY: sizes are not zero, alignments are powers of two, and each block is used with its own
        // layout only.
        unsafe {
            let mut layout = Layout::from_size_align(size, align).unwrap();
            let mut block = ALLOCATOR.alloc_zeroed(layout);
            assert!((0..size).all(|i| *block.add(i) == 0));
            (0..size).for_each(|i| *block.add(i) = mixed(i as u64) as u8);
            for step in 0..6 {
                let least = if size >= 1024 { align.max(64) } else { align };
                assert_eq!(block.addr() % least, 0, "{size} bytes at {align}");
                // Sizes around the limit of alignment, and up to where the system moves whole pages.
                let new =
                    1 + (mixed(round * 11 + step) % [1100, 3000, 400_000][(step % 3) as usize]) as usize;
                block = ALLOCATOR.realloc(block, layout, new);
                assert!(
                    (0..size.min(new)).all(|i| *block.add(i) == mixed(i as u64) as u8),
                    "{size} to {new}"
                );
                (0..new).for_each(|i| *block.add(i) = mixed(i as u64) as u8);
                size = new;
                layout = Layout::from_size_align(size, align).unwrap();
            }
            ALLOCATOR.dealloc(block, layout);
        }
    }
}

#[test]
fn vectors_are_aligned() {
    for len in [1024, 1025, 70_000, 5 << 20] {
        let (zeroed, empty) = (vec![0u8; len], Vec::<u8>::with_capacity(len));
        assert_eq!((zeroed.as_ptr().addr() % 64, empty.as_ptr().addr() % 64), (0, 0));
    }
    let mut grown = Vec::new();
    (0..3_000_000u32).for_each(|i| grown.push(i));
    assert!(grown.iter().copied().eq(0..3_000_000));
}
