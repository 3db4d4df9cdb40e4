//! Statistics of a run of numbers: the inner loop.

use crate::arch::{self, Kernel};
use crate::reduce::stats::exponents::Counter;
use crate::reduce::stats::{Grid, Stats};

/// Numbers that are examined in one step, so that they stay in the first-level cache.
pub(super) const CHUNK: usize = 1024;
/// Sums that are made side by side. The result depends on it, not on the instruction set.
const LANES: usize = 16;

/// Count, mean and sums of squares of some numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Moments {
    pub(super) count: u64,
    pub(super) mean: f64,
    /// Sum of the squared differences to the mean.
    pub(super) deviations: f64,
    /// Sum of the squares.
    pub(super) squares: f64,
}

impl Moments {
    /// Adds the moments of other numbers, by the rule of Chan, Golub and LeVeque.
    pub(super) fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *other;
            return;
        }
        let count = self.count + other.count;
        let (difference, share) = (other.mean - self.mean, other.count as f64 / count as f64);
        self.deviations += other.deviations + difference * difference * self.count as f64 * share;
        self.mean += difference * share;
        self.squares += other.squares;
        self.count = count;
    }
}

/// Sums and counts of one chunk.
struct Sums {
    moments: Moments,
    min: f64,
    max: f64,
    zeros: u64,
    nan: u64,
}

/// Computes [`Sums`] of at most [`CHUNK`] numbers.
struct Sum<'a>(&'a [f64]);

impl Kernel for Sum<'_> {
    type Output = Sums;

    // A loop for each result: each is a loop of wide instructions over the first-level cache.
    #[inline(always)]
    fn call(self) -> Sums {
        let Self(values) = self;
        let len = values.len() as u64;
        let (zeros, nan) = (count(values, |x| x == 0.0), count(values, f64::is_nan));
        let finite = count(values, |x| x.abs() < f64::INFINITY);
        if finite == len {
            let mean = sum(values, |x| x) / len.max(1) as f64;
            let moments = Moments {
                count: len,
                mean,
                deviations: sum(values, |x| (x - mean) * (x - mean)),
                squares: sum(values, |x| x * x),
            };
            return Sums { moments, min: least(values, |x| x), max: -least(values, |x| -x), zeros, nan };
        }
        // As above, without the numbers that are not finite.
        let or = |x: f64, other: f64| if x.abs() < f64::INFINITY { x } else { other };
        let mean = sum(values, |x| or(x, 0.0)) / finite.max(1) as f64;
        let moments = Moments {
            count: finite,
            mean,
            deviations: sum(values, |x| (or(x, mean) - mean) * (or(x, mean) - mean)),
            squares: sum(values, |x| or(x, 0.0) * or(x, 0.0)),
        };
        let min = least(values, |x| or(x, f64::INFINITY));
        Sums { moments, min, max: -least(values, |x| -or(x, f64::NEG_INFINITY)), zeros, nan }
    }
}

/// Returns the sum of the terms of all values, in [`LANES`] sums side by side.
#[inline(always)]
fn sum(values: &[f64], term: impl Fn(f64) -> f64) -> f64 {
    fold(values, 0.0, |sum, x| sum + term(x)).iter().sum()
}

/// Returns the least term of all values, or infinity.
#[inline(always)]
fn least(values: &[f64], term: impl Fn(f64) -> f64) -> f64 {
    let smaller = |a: f64, b: f64| if b < a { b } else { a };
    fold(values, f64::INFINITY, |least, x| smaller(least, term(x))).into_iter().fold(f64::INFINITY, smaller)
}

/// Folds every [`LANES`]-th value into one of as many results.
#[inline(always)]
fn fold(values: &[f64], start: f64, f: impl Fn(f64, f64) -> f64) -> [f64; LANES] {
    let mut lanes = [start; LANES];
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        lanes.iter_mut().zip(row).for_each(|(lane, x)| *lane = f(*lane, *x));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, x)| *lane = f(*lane, *x));
    lanes
}

/// Returns the number of values that have a property.
#[inline(always)]
fn count(values: &[f64], has: impl Fn(f64) -> bool) -> u64 {
    values.iter().fold(0u64, |count, x| count.wrapping_add(has(*x).into()))
}

/// Collects the statistics of numbers that come in order.
pub(super) struct Collector {
    stats: Stats,
    exponents: Counter,
    /// Numbers of the first NaN and of the first infinity among the values of a block.
    specials: [Option<u64>; 2],
}

impl Collector {
    pub(super) fn new(grid: Option<Grid>) -> Self {
        Self { stats: Stats { grid, ..Stats::default() }, exponents: Counter::new(), specials: [None; 2] }
    }

    /// Adds at most [`CHUNK`] numbers; the first has this index. Does not count them in the grid.
    pub(super) fn add(&mut self, first: u64, values: &[f64]) {
        if values.is_empty() {
            return;
        }
        let sums = arch::run(Sum(values));
        let len = values.len() as u64;
        let infinite = len - sums.moments.count - sums.nan;
        let stats = &mut self.stats;
        let index = |is: fn(f64) -> bool| {
            let at = values.iter().position(|v| is(*v));
            at.map(|at| first + at as u64)
        };
        if sums.nan > 0 {
            stats.first_nan = stats.first_nan.or_else(|| index(f64::is_nan));
        }
        if infinite > 0 {
            stats.first_infinite = stats.first_infinite.or_else(|| index(f64::is_infinite));
        }
        if sums.moments.count > 0 {
            stats.min = Some(stats.min.map_or(sums.min, |min| min.min(sums.min)));
            stats.max = Some(stats.max.map_or(sums.max, |max| max.max(sums.max)));
        }
        stats.elements += len;
        stats.kept += len;
        stats.zeros += sums.zeros;
        stats.nan += sums.nan;
        stats.infinite += infinite;
        stats.moments.merge(&sums.moments);
        self.exponents.add(values);
    }

    /// Counts numbers in the grid, if there is one; the first is element `start` of the tensor.
    pub(super) fn place(&mut self, start: u64, values: &[f64]) {
        if let Some(grid) = &mut self.stats.grid {
            grid.add(start, values);
        }
    }

    pub(super) fn has_grid(&self) -> bool {
        self.stats.grid.is_some()
    }

    /// Takes the first indices for numbers of values, whose elements [`Self::place_specials`] finds. Returns
    /// whether there are any.
    pub(super) fn take_specials(&mut self) -> bool {
        self.specials = [self.stats.first_nan.take(), self.stats.first_infinite.take()];
        self.specials != [None; 2]
    }

    /// Sets the first indices if they are among `len` values from number `value` on, whose elements begin at
    /// `element`.
    pub(super) fn place_specials(&mut self, value: u64, len: u64, element: u64) {
        let indices = [&mut self.stats.first_nan, &mut self.stats.first_infinite];
        for (number, index) in self.specials.into_iter().zip(indices) {
            if let Some(number) = number.filter(|n| (value..value + len).contains(n)) {
                *index = Some(element + (number - value));
            }
        }
    }

    /// Counts values that are no numbers without another tensor or a model.
    pub(super) fn add_unread(&mut self, count: u64) {
        self.stats.elements += count;
        self.stats.kept += count;
        self.stats.unread += count;
    }

    /// Counts elements that may or may not have a value.
    pub(super) fn add_unplaced(&mut self, count: u64) {
        self.stats.elements += count;
        self.stats.unplaced += count;
        self.stats.unread += count;
    }

    pub(super) fn finish(self) -> Stats {
        Stats { exponents: self.exponents.finish(), ..self.stats }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_merge_as_if_they_were_one() {
        let values: Vec<f64> = (0..1000).map(|i| 1e6 + f64::from(i * i % 97)).collect();
        let whole = Sum(&values).call().moments;
        let mut merged = Moments::default();
        values.chunks(61).for_each(|part| merged.merge(&Sum(part).call().moments));
        let mean = values.iter().sum::<f64>() / 1000.0;
        let deviations: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        for found in [whole, merged] {
            assert_eq!(found.count, 1000);
            assert!((found.mean - mean).abs() < 1e-9);
            assert!((found.deviations / deviations - 1.0).abs() < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn only_finite_numbers_have_moments() {
        let values = [1.0, f64::NAN, 3.0, f64::INFINITY, f64::NEG_INFINITY, 8.0];
        let sums = Sum(&values).call();
        assert_eq!(sums.moments, Moments { count: 3, mean: 4.0, deviations: 26.0, squares: 74.0 });
        assert_eq!((sums.min, sums.max, sums.nan, sums.zeros), (1.0, 8.0, 1, 0));
        let mut large = Sum(&[1e200, 1e200]).call().moments;
        let before = large;
        for none in [&[][..], &[f64::NAN, f64::INFINITY]] {
            let nothing = Sum(none).call().moments;
            assert_eq!(nothing, Moments::default());
            large.merge(&nothing);
            assert_eq!(large, before);
        }
    }

    #[test]
    fn small_deviations_from_a_large_mean_are_exact() {
        // The mean is no binary64 number: the difference of large squares would be wrong by hundreds.
        let values = [1e9, 1e9 + 1.0, 1e9, f64::NAN];
        for values in [&values[..3], &values] {
            let found = Sum(values).call().moments;
            assert!((found.deviations - 2.0 / 3.0).abs() < 1e-6, "{found:?}");
        }
    }
}
