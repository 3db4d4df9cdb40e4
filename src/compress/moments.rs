//! Sums over magnitudes, in an order that vectors, threads and devices can all keep.
//! [`device`](super::device) has the order, and `adapters/cuda/kernels/fit.cu` keeps it too.

use super::source::{CHUNK, Chunk, Source};
use crate::arch::{self, Kernel};

/// Sums over magnitudes that reach a threshold, each less a location, which is the threshold or zero. Zeros never count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// How many there are.
    pub count: u64,
    /// Their sum; NaN or infinite if one of them is.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
    /// The product of their mantissas as a number from 1 to 2, if it was asked for; without the location.
    pub product: f64,
    /// The binary exponent to that: of the product of them all.
    pub exponent: i64,
    /// The largest magnitude, without the location.
    pub max: f32,
}

impl Default for Moments {
    fn default() -> Self {
        Self { count: 0, sum: 0.0, squares: 0.0, product: 1.0, exponent: 0, max: 0.0 }
    }
}

impl Moments {
    /// The moments of what both are of.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let product = self.product * other.product;
        Self {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            squares: self.squares + other.squares,
            product: mantissa(product),
            exponent: self.exponent + other.exponent + exponent(product),
            max: if other.max > self.max { other.max } else { self.max },
        }
    }

    /// Those of the values of a list.
    pub(super) fn of<const LOGS: bool>(values: &[f32], question: MomentQuery) -> Self {
        let chunks = values.chunks(CHUNK);
        chunks.map(|chunk| of_slice::<LOGS>(chunk, question)).fold(Self::default(), Self::and)
    }

    /// Those of the elements of a tensor, which is read once.
    pub(super) fn of_source(source: &mut Source<'_>, question: MomentQuery) -> Self {
        let of_chunks = source.scan(0..source.len, CHUNK, |chunk| match question.logs {
            true => of_chunk::<true>(chunk, question),
            false => of_chunk::<false>(chunk, question),
        });
        of_chunks.into_iter().fold(Self::default(), Self::and)
    }
}

/// Which [`Moments`] are asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MomentQuery {
    /// The smallest magnitude that counts, above 0.
    pub at: f32,
    /// What each is taken less of.
    pub location: f32,
    /// Whether the product is wanted.
    pub logs: bool,
}

impl MomentQuery {
    /// All magnitudes above zero, as they are.
    pub(super) fn all(logs: bool) -> Self {
        Self { at: f32::from_bits(1), location: 0.0, logs }
    }

    /// What reaches a threshold, less that.
    pub(super) fn exceeding(at: f32) -> Self {
        Self { at, location: at, logs: false }
    }
}

fn of_slice<const LOGS: bool>(chunk: &[f32], question: MomentQuery) -> Moments {
    arch::run(Measure::<_, _, LOGS> { chunk, value: |x: &f32| *x, question })
}

fn of_chunk<const LOGS: bool>(chunk: Chunk<'_, '_>, question: MomentQuery) -> Moments {
    if let Some(chunk) = chunk.plain() {
        let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        return arch::run(Measure::<_, _, LOGS> { chunk, value, question });
    }
    let mut runs = Runs::new();
    chunk.tiles(|_, tile| runs.push(of_slice::<LOGS>(tile, question)));
    runs.finish()
}

const COLUMNS: usize = 128;
const ROWS: usize = 8;
const RUN: usize = ROWS * COLUMNS;
/// Runs of a tile.
const TILE: usize = 8;
/// Tiles of a chunk.
const TILES: usize = 32;
/// Columns that a vector holds, and two or four of narrower ones.
const GROUP: usize = 16;

const _: () = assert!(TILES * TILE * RUN == CHUNK && RUN == super::source::TILE);

/// The runs of a chunk, one after the other.
struct Runs {
    tiles: [Moments; TILES],
    runs: usize,
}

impl Runs {
    #[inline(always)]
    fn new() -> Self {
        Self { tiles: [Moments::default(); TILES], runs: 0 }
    }

    #[inline(always)]
    fn push(&mut self, run: Moments) {
        let tile = &mut self.tiles[self.runs / TILE];
        *tile = tile.and(run);
        self.runs += 1;
    }

    #[inline(always)]
    fn finish(mut self) -> Moments {
        if self.runs <= TILE {
            return self.tiles[0];
        }
        for half in [16, 8, 4, 2, 1] {
            let (first, second) = self.tiles.split_at_mut(half);
            for (a, b) in first.iter_mut().zip(second) {
                *a = a.and(*b);
            }
        }
        self.tiles[0]
    }
}

/// The [`Moments`] of a chunk at most; with the product if `LOGS`.
struct Measure<'a, T, V, const LOGS: bool> {
    chunk: &'a [T],
    value: V,
    question: MomentQuery,
}

impl<T, V: Fn(&T) -> f32 + Copy, const LOGS: bool> Kernel for Measure<'_, T, V, LOGS> {
    type Output = Moments;

    #[inline(always)]
    fn call(self) -> Moments {
        let Self { chunk, value, question } = self;
        let (mut runs, mut run) = (Runs::new(), [0.0; RUN]);
        let (whole, rest) = chunk.as_chunks::<RUN>();
        // Copied in their order first: reading memory by columns keeps the processor from reading ahead.
        for elements in whole {
            run.iter_mut().zip(elements).for_each(|(x, element)| *x = value(element).abs());
            runs.push(of_run::<LOGS>(&run, RUN, question));
        }
        if !rest.is_empty() {
            run = [0.0; RUN];
            run.iter_mut().zip(rest).for_each(|(x, element)| *x = value(element).abs());
            runs.push(of_run::<LOGS>(&run, rest.len(), question));
        }
        runs.finish()
    }
}

/// Of a run of magnitudes of which the first `len` are there, and the others are zeros.
#[inline(always)]
fn of_run<const LOGS: bool>(run: &[f32; RUN], len: usize, question: MomentQuery) -> Moments {
    let (at, location) = (question.at, f64::from(question.location));
    let (mut counts, mut max, mut exponents) = ([0u32; GROUP], [0f32; GROUP], [0i64; GROUP]);
    let [mut sums, mut squares, mut products] =
        [[0f64; COLUMNS / 4], [0f64; COLUMNS / 4], [1f64; COLUMNS / 4]];
    for group in 0..COLUMNS / GROUP {
        let [mut sum, mut square, mut product] = [[0f64; GROUP], [0f64; GROUP], [1f64; GROUP]];
        for row in 0..ROWS {
            let first = row * COLUMNS + group * GROUP;
            if first >= len {
                break;
            }
            for i in 0..GROUP {
                let x = run[first + i];
                // NaN counts as no number, but reaches the sum.
                let y = if x < at { 0.0 } else { f64::from(x) - location };
                sum[i] += y;
                square[i] += y * y;
                counts[i] += u32::from(x >= at);
                max[i] = if x > max[i] { x } else { max[i] };
                if LOGS {
                    let factor = if x >= at { f64::from(x) } else { 1.0 };
                    exponents[i] += exponent(factor);
                    product[i] *= mantissa(factor);
                }
            }
        }
        for four in 0..GROUP / 4 {
            let (to, from) = (group * GROUP / 4 + four, 4 * four);
            sums[to] = (sum[from] + sum[from + 1]) + (sum[from + 2] + sum[from + 3]);
            squares[to] = (square[from] + square[from + 1]) + (square[from + 2] + square[from + 3]);
            if LOGS {
                products[to] = (product[from] * product[from + 1]) * (product[from + 2] * product[from + 3]);
            }
        }
    }
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[half + i];
            squares[i] += squares[half + i];
            if LOGS {
                products[i] *= products[half + i];
            }
        }
    }
    // 1024 mantissas of 24 bits are less than 2^1024 together, by more than their product is rounded.
    let product = if LOGS { products[0] } else { 1.0 };
    Moments {
        count: counts.iter().map(|&c| u64::from(c)).sum(),
        sum: sums[0],
        squares: squares[0],
        product: mantissa(product),
        exponent: exponents.iter().sum::<i64>() + exponent(product),
        max: max.iter().fold(0.0, |a, &b| if b > a { b } else { a }),
    }
}

const MANTISSA: u64 = (1 << 52) - 1;

/// Of a positive normal number, from 1 to 2; infinity and NaN become some such number.
#[inline(always)]
fn mantissa(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & MANTISSA | 1023 << 52)
}

#[inline(always)]
fn exponent(x: f64) -> i64 {
    (x.to_bits() >> 52) as i64 - 1023
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: &[f32], question: MomentQuery) -> Moments {
        Moments::of::<true>(values, question)
    }

    #[test]
    fn moments_are_sums() {
        let values: Vec<f32> = (0..600_000).map(|i| (i as f32 - 1000.0) * 0.37).collect();
        for n in [0, 1, 127, 128, 129, 1023, 1024, 1025, 8191, 8193, 40_000, CHUNK, CHUNK + 1, 600_000] {
            let (part, got) = (&values[..n], moments(&values[..n], MomentQuery::all(true)));
            let each = || part.iter().filter(|x| **x != 0.0).map(|x| f64::from(x.abs()));
            assert_eq!(got.count, each().count() as u64);
            assert_eq!(got.max, part.iter().fold(0.0, |m, x| x.abs().max(m)));
            for (got, expected) in [
                (got.sum, each().sum::<f64>()),
                (got.squares, each().map(|x| x * x).sum()),
                (got.product.ln() + got.exponent as f64 * 2f64.ln(), each().map(f64::ln).sum()),
            ] {
                assert!((got - expected).abs() <= 1e-10 * expected.abs(), "{n}: {got} {expected}");
            }
        }
        let shifted = moments(&[3.0, -4.0], MomentQuery { at: 2.0, location: 2.0, logs: true });
        assert_eq!((shifted.count, shifted.sum, shifted.squares), (2, 3.0, 5.0));
        let exceeding = moments(&[3.0, 0.0, -1.5, -4.0, 2.5, 3.5], MomentQuery::exceeding(2.5));
        assert_eq!((exceeding.count, exceeding.sum, exceeding.squares), (4, 3.0, 3.5));
        let all = MomentQuery::all(true);
        assert!(moments(&[1.0, f32::NAN], all).sum.is_nan());
        assert!(moments(&[f32::INFINITY], all).sum.is_infinite());
        // Subnormal numbers, and far more than the range of 32-bit squares.
        let wide = moments(&[1e-45, f32::MAX], all);
        let logs = wide.product.ln() + wide.exponent as f64 * 2f64.ln();
        assert!((logs - (f64::from(1e-45f32).ln() + f64::from(f32::MAX).ln())).abs() < 1e-12);
        assert!(wide.squares.is_finite());
    }

    /// The largest mantissa in every place: the product of a run is as large as it can be.
    #[test]
    fn products_stay_in_range() {
        let largest = f32::from_bits(0x3fff_ffff);
        let got = moments(&[largest; 5000], MomentQuery::all(true));
        let expected = 5000.0 * f64::from(largest).ln();
        assert!((got.product.ln() + got.exponent as f64 * 2f64.ln() - expected).abs() < 1e-9 * expected);
    }

    /// The order is what the table says, so that a device can keep it: numbers whose sums are rounded differently in others.
    #[test]
    fn the_order_is_the_documented_one() {
        let n = CHUNK + 70_003;
        let mut words = vec![0; n];
        crate::random::words(3, 0, 0, &mut words);
        let values: Vec<f32> = words.iter().map(|&w| f32::from_bits(w % 0x7f80_0000)).collect();
        let halves = |mut sums: Vec<f64>| {
            while sums.len() > 1 {
                let (first, second) = sums.split_at(sums.len() / 2);
                sums = first.iter().zip(second).map(|(a, b)| a + b).collect();
            }
            sums[0]
        };
        let at = |i: usize| values.get(i).map_or(0.0, |x| f64::from(*x));
        let of_run = |run: usize| {
            let column = |c: usize| (0..8).fold(0.0, |sum, row| sum + at(run + 128 * row + c));
            let four = |c: usize| (column(c) + column(c + 1)) + (column(c + 2) + column(c + 3));
            halves((0..32).map(|i| four(4 * i)).collect())
        };
        let of_tile = |tile: usize| (0..8).fold(0.0, |sum, run| sum + of_run(tile + 1024 * run));
        let of_chunk = |chunk: usize| halves((0..32).map(|i| of_tile(chunk + 8192 * i)).collect());
        let expected = (0..n).step_by(CHUNK).fold(0.0, |sum, chunk| sum + of_chunk(chunk));
        assert_eq!(moments(&values, MomentQuery::all(false)).sum.to_bits(), expected.to_bits());
        assert_eq!(super::super::sum::magnitudes(&values).to_bits(), expected.to_bits());
    }
}
