//! Sums of 64-bit floats in one fixed order, so that vectors, threads and devices all get the same bits.
//!
//! SIDCo's thresholds, the means of `sbc` and `sign` and the norms of quantisers depend on these sums.
//! Elements are counted from the first one of the sum:
//!
//! | part | how it is summed |
//! |---|---|
//! | a run: 1024 elements, as 8 rows of 128 columns | each column from its first row to its last; columns in fours, `(a + b) + (c + d)`; the resulting 32 sums by halves |
//! | a tile: 8 runs | one run after the other |
//! | a chunk: 32 tiles | by halves |
//! | the whole | one chunk after the other |
//!
//! By halves: the sums of the second half are added to those of the first half until one sum is left.
//! Elements beyond the end count as zeros. `adapters/cuda/kernels/fit.cu` and `dense.cu` follow the same
//! order.
//!
//! [`magnitudes`] and [`squares`] return one sum each. [`Moments`](super::moments::Moments) are several sums,
//! taken in one pass.

use crate::arch::{self, Kernel};

/// Elements of a run.
pub(super) const RUN: usize = 1024;
/// Columns of a run: four for each thread of a warp.
pub(super) const COLUMNS: usize = 128;
/// Sums of four columns of a run.
pub(super) const FOURS: usize = COLUMNS / 4;
const RUNS_PER_TILE: usize = 8;
const TILES_PER_CHUNK: usize = 32;
/// Elements of a chunk, which is also the work of one thread at a time.
pub(super) const CHUNK: usize = TILES_PER_CHUNK * RUNS_PER_TILE * RUN;

/// Returns the sum of the magnitudes of `values`.
pub(super) fn magnitudes(values: &[f32]) -> f64 {
    sum(values, f64::abs)
}

/// Returns the sum of the squares of `values`.
pub(super) fn squares(values: &[f32]) -> f64 {
    sum(values, |x| x * x)
}

fn sum(values: &[f32], term: impl Fn(f64) -> f64 + Copy) -> f64 {
    if values.len() <= RUN {
        return arch::run(RunSum { run: values, term });
    }
    values.chunks(CHUNK).fold(0.0, |sum, chunk| {
        let mut runs = Runs::new();
        chunk.chunks(RUN).for_each(|run| runs.push(arch::run(RunSum { run, term })));
        sum + runs.finish()
    })
}

/// One or several sums that are taken together.
pub(super) trait Sum: Copy {
    /// The sum of no elements. Adding it to another sum changes nothing.
    const ZERO: Self;

    /// Returns the sum of the elements of both.
    fn and(self, other: Self) -> Self;
}

impl Sum for f64 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self + other
    }
}

/// Sums the runs of one chunk, which are pushed one after the other.
pub(super) struct Runs<S> {
    tiles: [S; TILES_PER_CHUNK],
    runs: usize,
}

impl<S: Sum> Runs<S> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { tiles: [S::ZERO; TILES_PER_CHUNK], runs: 0 }
    }

    /// Adds the sum of the next run.
    #[inline(always)]
    pub(super) fn push(&mut self, run: S) {
        let tile = &mut self.tiles[self.runs / RUNS_PER_TILE];
        *tile = tile.and(run);
        self.runs += 1;
    }

    /// Returns the sum of the chunk.
    #[inline(always)]
    pub(super) fn finish(mut self) -> S {
        halve(&mut self.tiles, self.runs.div_ceil(RUNS_PER_TILE), S::and);
        self.tiles[0]
    }
}

impl Runs<f64> {
    /// Adds the magnitudes of the next run: 1024 elements, or fewer if it is the last one.
    pub(super) fn push_magnitudes(&mut self, run: &[f32]) {
        self.push(arch::run(RunSum { run, term: f64::abs }));
    }
}

/// Combines `columns` in fours into `fours`: `op(op(a, b), op(c, d))`.
#[inline(always)]
pub(super) fn combine_fours(columns: &[f64], fours: &mut [f64], op: impl Fn(f64, f64) -> f64) {
    for (four, &[a, b, c, d]) in fours.iter_mut().zip(columns.as_chunks().0) {
        *four = op(op(a, b), op(c, d));
    }
}

/// Combines `sums` by halves into `sums[0]`; entries from `used` on are neutral and are left out.
#[inline(always)]
pub(super) fn halve<S: Copy>(sums: &mut [S; 32], used: usize, op: impl Fn(S, S) -> S) {
    let mut half = used.next_power_of_two();
    while half > 1 {
        half /= 2;
        for i in 0..half {
            sums[i] = op(sums[i], sums[half + i]);
        }
    }
}

/// Sums `term` over the elements of one run.
struct RunSum<'a, T> {
    run: &'a [f32],
    term: T,
}

impl<T: Fn(f64) -> f64> Kernel for RunSum<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn call(self) -> f64 {
        let Self { run, term } = self;
        let add = |a: f64, b: f64| a + b;
        let mut fours = [0.0f64; FOURS];
        let used = run.len().min(COLUMNS).div_ceil(4);
        // A single row, such as a small group: its columns need no sums of their own.
        if run.len() <= COLUMNS {
            let (whole, rest) = run.as_chunks::<4>();
            for (four, columns) in fours.iter_mut().zip(whole) {
                let [a, b, c, d] = columns.map(|x| term(f64::from(x)));
                *four = (a + b) + (c + d);
            }
            let mut last = [0.0; 4];
            last.iter_mut().zip(rest).for_each(|(last, x)| *last = term(f64::from(*x)));
            if !rest.is_empty() {
                fours[whole.len()] = (last[0] + last[1]) + (last[2] + last[3]);
            }
            halve(&mut fours, used, add);
            return fours[0];
        }
        let mut columns = [0.0f64; COLUMNS];
        let (rows, rest) = run.as_chunks::<COLUMNS>();
        for row in rows {
            for (column, x) in columns.iter_mut().zip(row) {
                *column += term(f64::from(*x));
            }
        }
        for (column, x) in columns.iter_mut().zip(rest) {
            *column += term(f64::from(*x));
        }
        combine_fours(&columns, &mut fours[..used], add);
        halve(&mut fours, used, add);
        fours[0]
    }
}

/// The documented order, written plainly. Tests compare every implementation with it.
#[cfg(test)]
pub(super) fn in_documented_order(values: &[f32], term: fn(f64) -> f64) -> f64 {
    let at = |i: usize| values.get(i).map_or(0.0, |&x| term(f64::from(x)));
    let halves = |mut sums: Vec<f64>| {
        while sums.len() > 1 {
            let (first, second) = sums.split_at(sums.len() / 2);
            sums = first.iter().zip(second).map(|(a, b)| a + b).collect();
        }
        sums[0]
    };
    let of_run = |run: usize| {
        let column = |c: usize| (0..8).fold(0.0, |sum, row| sum + at(run + 128 * row + c));
        let four = |c: usize| (column(c) + column(c + 1)) + (column(c + 2) + column(c + 3));
        halves((0..32).map(|i| four(4 * i)).collect())
    };
    let of_tile = |tile: usize| (0..8).fold(0.0, |sum, run| sum + of_run(tile + 1024 * run));
    let of_chunk = |chunk: usize| halves((0..32).map(|i| of_tile(chunk + 8192 * i)).collect());
    (0..values.len()).step_by(1 << 18).fold(0.0, |sum, chunk| sum + of_chunk(chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_the_documented_order() {
        let values: Vec<f32> = (0..(2 << 18) + 3000u32)
            .map(|i| {
                let word = crate::random::word(1, 2, i.into());
                // Exponents differ, so any other order gives other bits.
                f32::from_bits((word & 0x807f_ffff) | (100 + word % 53) << 23)
            })
            .collect();
        let lens =
            [1, 2, 3, 4, 5, 17, 100, 127, 128, 129, 300, 1023, 1024, 1025, 8192, 8193, 70_000, 1 << 18];
        for len in lens.into_iter().chain([0, (1 << 18) + 1, values.len()]) {
            let values = &values[..len];
            let square = |x| x * x;
            assert_eq!(
                magnitudes(values).to_bits(),
                in_documented_order(values, f64::abs).to_bits(),
                "{len}"
            );
            assert_eq!(squares(values).to_bits(), in_documented_order(values, square).to_bits(), "{len}");
        }
        let mut runs = Runs::new();
        values[..70_000].chunks(1024).for_each(|run| runs.push_magnitudes(run));
        assert_eq!(runs.finish(), magnitudes(&values[..70_000]));
    }
}
