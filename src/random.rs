//! The counter-based generator Philox4x32-10 and the numbers drawn with it (spec, section 8). Every word
//! depends only on its counter and key, so any order, any number of threads and any device draw the same.
//!
//! The key is a 64-bit seed, low half first. A compressor's word for element `i` of tensor `t` is word `i mod
//! 4` of the counter `[lo(i/4), hi(i/4), lo(t), hi(t)]`, where `t` is the tensor's number in the manifest.

use std::collections::HashSet;

use crate::arch::{self, Kernel};
use crate::limits::in_memory;

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: u32 = 10;

/// Returns the four words of one counter: Philox4x32 with ten rounds (Salmon et al., 2011).
#[inline]
pub(crate) fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut x0, mut x1, mut x2, mut x3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let p0 = u64::from(x0) * u64::from(MULTIPLIERS[0]);
        let p1 = u64::from(x2) * u64::from(MULTIPLIERS[1]);
        x0 = (p1 >> 32) as u32 ^ x1 ^ k0;
        x1 = p1 as u32;
        x2 = (p0 >> 32) as u32 ^ x3 ^ k1;
        x3 = p0 as u32;
        k0 = k0.wrapping_add(KEY_STEPS[0]);
        k1 = k1.wrapping_add(KEY_STEPS[1]);
    }
    [x0, x1, x2, x3]
}

/// Returns the key of a seed.
pub fn key(seed: u64) -> [u32; 2] {
    halves(seed)
}

/// Returns the word for element `index` of tensor `tensor`.
pub fn word(seed: u64, tensor: u64, index: u64) -> u32 {
    philox4x32_10(counter(index / 4, tensor), key(seed))[in_memory(index % 4)]
}

/// Fills `out` with the words for the elements of tensor `tensor` from `start` on.
pub fn words(seed: u64, tensor: u64, start: u64, out: &mut [u32]) {
    arch::run(Words { seed, tensor, start, out });
}

struct Words<'a> {
    seed: u64,
    tensor: u64,
    start: u64,
    out: &'a mut [u32],
}

impl Kernel for Words<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        fill_words(self.seed, self.tensor, self.start, self.out);
    }
}

/// Does the same as [`words`], for use inside a larger kernel.
#[inline(always)]
pub(crate) fn fill_words(seed: u64, tensor: u64, start: u64, out: &mut [u32]) {
    let head = out.len().min(in_memory(start.wrapping_neg() % 4));
    let (head, body) = out.split_at_mut(head);
    for (i, w) in (start..).zip(head.iter_mut()) {
        *w = word(seed, tensor, i);
    }
    let mut first = (start + head.len() as u64) / 4;
    let (batches, tail) = body.as_chunks_mut::<{ 4 * LANES }>();
    for batch in batches {
        *batch = philox_batch(first, tensor, key(seed));
        first += LANES as u64;
    }
    for quad in tail.chunks_mut(4) {
        let words = philox4x32_10(counter(first, tensor), key(seed));
        quad.copy_from_slice(&words[..quad.len()]);
        first += 1;
    }
}

/// Draws `count` of the numbers `0 .. n` without replacement, ascending: Floyd's algorithm, its draw `d` from
/// the counter `[lo(d), hi(d), 2^32 - 1, 2^32 - 1]`. Draws at most `n` numbers; memory is linear in `count`.
pub fn sample(n: u64, count: u64, seed: u64) -> Vec<u64> {
    let count = count.min(n);
    // A bitmap, if it takes at most 16 bytes per number.
    if n / 128 <= count {
        let mut taken = vec![0u64; in_memory(n.div_ceil(64))];
        floyd(n, count, seed, |x| {
            let (cell, bit) = (&mut taken[in_memory(x / 64)], 1 << (x % 64));
            let new = *cell & bit == 0;
            *cell |= bit;
            new
        });
        let mut numbers = Vec::with_capacity(in_memory(count));
        for (base, mut cell) in (0..).step_by(64).zip(taken) {
            while cell != 0 {
                numbers.push(base + u64::from(cell.trailing_zeros()));
                cell &= cell - 1;
            }
        }
        return numbers;
    }
    let mut taken = HashSet::with_capacity(in_memory(count));
    floyd(n, count, seed, |x| taken.insert(x));
    let mut numbers: Vec<u64> = taken.into_iter().collect();
    numbers.sort_unstable();
    numbers
}

/// Runs Floyd's algorithm; `insert` returns whether the number was new.
fn floyd(n: u64, count: u64, seed: u64, mut insert: impl FnMut(u64) -> bool) {
    for d in 0..count {
        let j = n - count + d;
        let [lo, hi] = halves(d);
        let words = philox4x32_10([lo, hi, u32::MAX, u32::MAX], key(seed));
        let u = u64::from(words[0]) | u64::from(words[1]) << 32;
        let x = ((u128::from(u) * (u128::from(j) + 1)) >> 64) as u64;
        if !insert(x) {
            insert(j);
        }
    }
}

/// Counters per batch.
const LANES: usize = 16;

/// Returns the words of `LANES` counters from `first` on.
///
/// Each 32-bit word lives in the low half of a 64-bit lane. A multiplication uses low halves only, so the
/// high halves are never cleared, and the loop is two multiplications, two shifts and four exclusive ors for
/// each pair of lanes even with 128-bit vectors.
#[inline(always)]
fn philox_batch(first: u64, tensor: u64, key: [u32; 2]) -> [u32; 4 * LANES] {
    const LOW: u64 = 0xffff_ffff;
    let [t0, t1] = halves(tensor).map(u64::from);
    let mut x0: [u64; LANES] = std::array::from_fn(|i| first.wrapping_add(i as u64) & LOW);
    let mut x1: [u64; LANES] = std::array::from_fn(|i| first.wrapping_add(i as u64) >> 32);
    let (mut x2, mut x3) = ([t0; LANES], [t1; LANES]);
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        for i in 0..LANES {
            let p0 = (x0[i] & LOW) * u64::from(MULTIPLIERS[0]);
            let p1 = (x2[i] & LOW) * u64::from(MULTIPLIERS[1]);
            x0[i] = (p1 >> 32) ^ x1[i] ^ u64::from(k0);
            x1[i] = p1;
            x2[i] = (p0 >> 32) ^ x3[i] ^ u64::from(k1);
            x3[i] = p0;
        }
        k0 = k0.wrapping_add(KEY_STEPS[0]);
        k1 = k1.wrapping_add(KEY_STEPS[1]);
    }
    let mut out = [0; 4 * LANES];
    for i in 0..LANES {
        out[4 * i] = x0[i] as u32;
        out[4 * i + 1] = x1[i] as u32;
        out[4 * i + 2] = x2[i] as u32;
        out[4 * i + 3] = x3[i] as u32;
    }
    out
}

fn counter(block: u64, tensor: u64) -> [u32; 4] {
    let ([b0, b1], [t0, t1]) = (halves(block), halves(tensor));
    [b0, b1, t0, t1]
}

fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // Test vectors of Random123.
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32_10([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn batches_equal_single_words() {
        for start in [0u64, 1, 2, 3, 4, 77, (1 << 34) - 9, u64::from(u32::MAX) - 3] {
            for len in [0, 1, 3, 4, 5, 31, 32, 33, 100] {
                let (seed, tensor) = (0x0123_4567_89ab_cdef, (7 << 32) + 5);
                let mut out = vec![0; len];
                words(seed, tensor, start, &mut out);
                let single: Vec<u32> = (start..).take(len).map(|i| word(seed, tensor, i)).collect();
                assert_eq!(out, single, "start {start}, len {len}");
            }
        }
    }

    #[test]
    fn samples_are_sets_of_the_right_size() {
        for (n, count) in [(0, 0), (1, 1), (10, 10), (10, 0), (1000, 7), (1 << 40, 500), (300, 299), (5, 9)] {
            let numbers = sample(n, count, 42);
            assert_eq!(numbers.len() as u64, count.min(n));
            assert!(numbers.is_sorted_by(|a, b| a < b) && numbers.iter().all(|&x| x < n));
        }
        assert_ne!(sample(1 << 20, 100, 1), sample(1 << 20, 100, 2));
    }

    #[test]
    fn both_ways_of_sampling_agree() {
        let (n, count, seed) = (100_000u64, 1000u64, 3);
        let mut set = HashSet::new();
        floyd(n, count, seed, |x| set.insert(x));
        let mut by_set: Vec<u64> = set.into_iter().collect();
        by_set.sort_unstable();
        assert_eq!(sample(n, count, seed), by_set);
    }

    #[test]
    fn samples_are_uniform() {
        let mut hits = [0u32; 20];
        for seed in 0..20_000 {
            sample(20, 5, seed).into_iter().for_each(|x| hits[x as usize] += 1);
        }
        // Each number is drawn with probability 1/4: 5,000 times, standard deviation 61.
        assert!(hits.iter().all(|&h| h.abs_diff(5000) < 310), "{hits:?}");
    }
}
