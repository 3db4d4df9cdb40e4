//! Statistics of a run of numbers: the inner loop.

use crate::arch::{self, Kernel};
use crate::reduce::stats::exponents::Counter;
use crate::reduce::stats::{Grid, Stats};

/// Numbers that are examined in one step, so that they stay in the first-level cache.
pub(super) const CHUNK: usize = 1024;
/// Sums that are made side by side. The result depends on it, not on the instruction set.
const LANES: usize = 8;

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

    #[inline(always)]
    fn call(self) -> Sums {
        let (mut sums, mut squares) = ([0.0; LANES], [0.0; LANES]);
        let (mut low, mut high) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
        let (mut zeros, mut nan, mut finite) = ([0u64; LANES], [0u64; LANES], [0u64; LANES]);
        for_each_lane(self.0, |lane, x| {
            let is_finite = x.abs() < f64::INFINITY;
            let number = if is_finite { x } else { 0.0 };
            sums[lane] += number;
            squares[lane] += number * number;
            low[lane] = if is_finite && x < low[lane] { x } else { low[lane] };
            high[lane] = if is_finite && x > high[lane] { x } else { high[lane] };
            finite[lane] += u64::from(is_finite);
            zeros[lane] += u64::from(x == 0.0);
            nan[lane] += u64::from(x.is_nan());
        });
        let count = finite.iter().sum::<u64>();
        let mean = if count == 0 { 0.0 } else { add(&sums) / count as f64 };
        let mut deviations = [0.0; LANES];
        for_each_lane(self.0, |lane, x| {
            let difference = if x.abs() < f64::INFINITY { x - mean } else { 0.0 };
            deviations[lane] += difference * difference;
        });
        Sums {
            moments: Moments { count, mean, deviations: add(&deviations), squares: add(&squares) },
            min: low.into_iter().fold(f64::INFINITY, f64::min),
            max: high.into_iter().fold(f64::NEG_INFINITY, f64::max),
            zeros: zeros.iter().sum(),
            nan: nan.iter().sum(),
        }
    }
}

/// Calls `f` with the lane of each number and the number.
#[inline(always)]
fn for_each_lane(values: &[f64], mut f: impl FnMut(usize, f64)) {
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        for (lane, &x) in row.iter().enumerate() {
            f(lane, x);
        }
    }
    rest.iter().enumerate().for_each(|(lane, &x)| f(lane, x));
}

#[inline(always)]
fn add(lanes: &[f64; LANES]) -> f64 {
    lanes.iter().sum()
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
}
