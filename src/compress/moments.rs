//! Sums over magnitudes, taken in one pass in the order of [`sums`](super::sums).
//! `adapters/cuda/kernels/fit.cu` takes the same sums on a device.

use super::source::{Chunk, Source};
use super::sums::{CHUNK, COLUMNS, FOURS, RUN, Runs, Sum, combine_fours, halve};
use crate::arch::{self, Kernel};

/// Sums over the magnitudes that reach a threshold. A location, the threshold or zero, is subtracted from
/// each magnitude first. Zeros never count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// The number of magnitudes.
    pub count: u64,
    /// The sum of the magnitudes; NaN or infinite if one of them is.
    pub sum: f64,
    /// The sum of the squares.
    pub squares: f64,
    /// The mantissa, from 1 to 2, of the product of the magnitudes if [`MomentQuery::logs`], else 1. The
    /// location is not subtracted here.
    pub product: f64,
    /// The binary exponent of that product.
    pub exponent: i64,
    /// The largest magnitude. The location is not subtracted here.
    pub max: f32,
}

impl Default for Moments {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Sum for Moments {
    const ZERO: Self = Self { count: 0, sum: 0.0, squares: 0.0, product: 1.0, exponent: 0, max: 0.0 };

    fn and(self, other: Self) -> Self {
        self.and(other)
    }
}

impl Moments {
    /// Returns the moments of the magnitudes of both.
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

    /// Returns the moments of a list of values.
    pub(super) fn of<const LOGS: bool>(values: &[f32], query: MomentQuery) -> Self {
        let chunks = values.chunks(CHUNK);
        chunks.map(|chunk| of_slice::<LOGS>(chunk, query)).fold(Self::default(), Self::and)
    }

    /// Returns the moments of the elements of a tensor, which is read once.
    pub(super) fn of_source(source: &mut Source<'_>, query: MomentQuery) -> Self {
        let of_chunks = source.scan(0..source.len, CHUNK, |chunk| match query.logs {
            true => of_chunk::<true>(chunk, query),
            false => of_chunk::<false>(chunk, query),
        });
        of_chunks.into_iter().fold(Self::default(), Self::and)
    }
}

/// Settings of [`Moments`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MomentQuery {
    /// The smallest magnitude that counts, above 0.
    pub at: f32,
    /// The location, which is subtracted from each magnitude.
    pub location: f32,
    /// Whether the product, from which the mean logarithm follows, is computed.
    pub logs: bool,
}

impl MomentQuery {
    /// Moments of all magnitudes above zero, with location 0.
    pub(super) fn all(logs: bool) -> Self {
        Self { at: f32::from_bits(1), location: 0.0, logs }
    }

    /// Moments of the magnitudes that reach `at`, with `at` subtracted.
    pub(super) fn exceeding(at: f32) -> Self {
        Self { at, location: at, logs: false }
    }
}

fn of_slice<const LOGS: bool>(chunk: &[f32], query: MomentQuery) -> Moments {
    let mut runs = Runs::new();
    chunk.chunks(RUN).for_each(|run| runs.push(arch::run(Measure::<LOGS> { run, query })));
    runs.finish()
}

fn of_chunk<const LOGS: bool>(chunk: Chunk<'_, '_>, query: MomentQuery) -> Moments {
    let mut runs = Runs::new();
    chunk.runs(|_, run| runs.push(arch::run(Measure::<LOGS> { run: &run, query })));
    runs.finish()
}

/// Columns whose sums are kept in registers at a time: one wide vector of magnitudes, two or four narrow
/// ones.
const GROUP: usize = 16;

/// Computes the [`Moments`] of one run, with the product if `LOGS`.
struct Measure<'a, const LOGS: bool> {
    run: &'a [f32],
    query: MomentQuery,
}

impl<const LOGS: bool> Kernel for Measure<'_, LOGS> {
    type Output = Moments;

    #[inline(always)]
    fn call(self) -> Moments {
        // Magnitudes are copied in order first: reading memory by columns defeats the processor's
        // prefetching.
        let mut magnitudes = [0.0; RUN];
        magnitudes.iter_mut().zip(self.run).for_each(|(magnitude, x)| *magnitude = x.abs());
        of_run::<LOGS>(&magnitudes, self.run.len(), self.query)
    }
}

/// Computes the moments of one run of magnitudes; those from `len` on are zeros.
#[inline(always)]
fn of_run<const LOGS: bool>(run: &[f32; RUN], len: usize, query: MomentQuery) -> Moments {
    let (at, location) = (query.at, f64::from(query.location));
    let (add, multiply) = (|a: f64, b: f64| a + b, |a: f64, b: f64| a * b);
    let (mut counts, mut max, mut exponents) = ([0u32; GROUP], [0f32; GROUP], [0i64; GROUP]);
    let [mut sums, mut squares, mut products] = [[0f64; FOURS], [0f64; FOURS], [1f64; FOURS]];
    for group in 0..COLUMNS / GROUP {
        let [mut sum, mut square, mut product] = [[0f64; GROUP], [0f64; GROUP], [1f64; GROUP]];
        for row in 0..RUN / COLUMNS {
            let first = row * COLUMNS + group * GROUP;
            if first >= len {
                break;
            }
            for i in 0..GROUP {
                let x = run[first + i];
                // NaN is not counted, but it reaches the sum.
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
        let fours = group * GROUP / 4..(group + 1) * GROUP / 4;
        combine_fours(&sum, &mut sums[fours.clone()], add);
        combine_fours(&square, &mut squares[fours.clone()], add);
        if LOGS {
            combine_fours(&product, &mut products[fours], multiply);
        }
    }
    halve(&mut sums, FOURS, add);
    halve(&mut squares, FOURS, add);
    if LOGS {
        halve(&mut products, FOURS, multiply);
    }
    // The product of 1024 mantissas of 24 bits stays below 2^1024 by more than its rounding error.
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

/// Returns the mantissa, from 1 to 2, of a positive normal number; infinity and NaN give any such number.
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

    fn moments(values: &[f32], query: MomentQuery) -> Moments {
        Moments::of::<true>(values, query)
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

    /// Every mantissa is the largest one, so the product of a run is as large as possible.
    #[test]
    fn products_stay_in_range() {
        let largest = f32::from_bits(0x3fff_ffff);
        let got = moments(&[largest; 5000], MomentQuery::all(true));
        let expected = 5000.0 * f64::from(largest).ln();
        assert!((got.product.ln() + got.exponent as f64 * 2f64.ln() - expected).abs() < 1e-9 * expected);
    }

    /// Numbers whose sums round differently in any other order.
    #[test]
    fn sums_follow_the_documented_order() {
        let mut words = vec![0; CHUNK + 70_003];
        crate::random::words(3, 0, 0, &mut words);
        let values: Vec<f32> = words.iter().map(|&w| f32::from_bits(w % 0x7f80_0000)).collect();
        let expected = super::super::sums::in_documented_order(&values, f64::abs);
        assert_eq!(moments(&values, MomentQuery::all(false)).sum.to_bits(), expected.to_bits());
    }
}
