//! Statistics of tensors: of their elements, or of the blocks of an update without expanding them.
//!
//! [`Stats`] of an update's blocks, merged and completed with [`Stats::with_elements`], equal those of the
//! dense tensors that the update decodes to, if no block is added to another. Sums are made in a fixed order,
//! so that any number of threads and any instruction set gives the same bits.
//!
//! # Memory
//! About 200 bytes for each tensor, and 16 bytes for each exponent that occurs; with a [`Grid`], 8 bytes for
//! each of its cells. While a tensor is read, a few KiB for each thread.

mod block;
mod chunk;
pub(crate) mod dense;
mod exponents;
mod grid;

pub use exponents::Exponents;
pub use grid::Grid;

use crate::limits::setters;
use chunk::Moments;

/// StatsOptions of the statistics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsOptions {
    /// Whether to count the elements by row and column. Default: false.
    pub grid: bool,
}

setters! {
    StatsOptions {
        with_grid(grid: bool)
    }
}

/// Statistics of the elements of a tensor.
///
/// Sums, extremes and exponents are those of the finite elements. Elements without a value in an update are
/// zero.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Elements.
    pub elements: u64,
    /// Elements with a stored value. For a dense tensor, all.
    pub kept: u64,
    /// Elements of which only the base of a delta tells whether they have a value. They are unread too.
    pub unplaced: u64,
    /// Values that give numbers only with another tensor or a model: differences to a base in units of the
    /// last place, and codes of a learned decoder.
    pub unread: u64,
    /// Elements equal to zero.
    pub zeros: u64,
    /// Elements that are NaN.
    pub nan: u64,
    /// Index of the first NaN in the tensor.
    pub first_nan: Option<u64>,
    /// Elements that are infinite.
    pub infinite: u64,
    /// Index of the first infinite element in the tensor.
    pub first_infinite: Option<u64>,
    /// Smallest finite element.
    pub min: Option<f64>,
    /// Largest finite element.
    pub max: Option<f64>,
    /// Exponents of the finite elements that are not zero.
    pub exponents: Exponents,
    /// Elements that are not zero, by row and column; `None` if not asked for.
    pub grid: Option<Grid>,
    moments: Moments,
}

impl Stats {
    /// Returns the number of finite elements.
    pub fn finite(&self) -> u64 {
        self.moments.count
    }

    /// Returns the elements that are neither zero nor unread.
    pub fn nonzero(&self) -> u64 {
        self.elements.saturating_sub(self.zeros + self.unread)
    }

    /// Returns the L2 norm of the finite elements.
    pub fn norm(&self) -> f64 {
        self.moments.squares.sqrt()
    }

    /// Returns the sum of the squares of the finite elements.
    pub fn squares(&self) -> f64 {
        self.moments.squares
    }

    /// Returns the mean of the finite elements; 0 if there are none.
    pub fn mean(&self) -> f64 {
        self.moments.mean
    }

    /// Returns the standard deviation of the finite elements around their mean, divided by their number.
    pub fn std(&self) -> f64 {
        match self.moments.count {
            0 => 0.0,
            count => (self.moments.deviations / count as f64).sqrt(),
        }
    }

    /// Adds the statistics of other elements. The first indices become the smaller of both, so they have a
    /// meaning only for parts of one tensor. Grids of different shapes cannot be added: the result has none.
    pub fn merge(&mut self, other: &Self) {
        if other.elements == 0 {
            return;
        }
        if self.elements == 0 {
            *self = other.clone();
            return;
        }
        self.elements += other.elements;
        self.kept += other.kept;
        self.unplaced += other.unplaced;
        self.unread += other.unread;
        self.zeros += other.zeros;
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.first_nan = smaller(self.first_nan, other.first_nan);
        self.first_infinite = smaller(self.first_infinite, other.first_infinite);
        self.min = self.min.into_iter().chain(other.min).reduce(f64::min);
        self.max = self.max.into_iter().chain(other.max).reduce(f64::max);
        self.exponents.merge(&other.exponents);
        self.grid = match (self.grid.take(), &other.grid) {
            (Some(mut grid), Some(more)) => grid.merge(more).then_some(grid),
            _ => None,
        };
        self.moments.merge(&other.moments);
    }

    /// Returns the statistics of a tensor of `elements` elements in which those that have no value are zero.
    #[must_use]
    pub fn with_elements(mut self, elements: u64) -> Self {
        let implied = elements.saturating_sub(self.elements);
        if implied == 0 {
            return self;
        }
        self.elements += implied;
        self.zeros += implied;
        self.min = Some(self.min.map_or(0.0, |min| min.min(0.0)));
        self.max = Some(self.max.map_or(0.0, |max| max.max(0.0)));
        self.moments.merge(&Moments { count: implied, ..Moments::default() });
        self
    }
}

fn smaller(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(values: &[f64]) -> Option<Grid> {
        let mut grid = Grid::new(&[2, 2]);
        grid.add(0, values);
        Some(grid)
    }

    #[test]
    fn merged_statistics_are_those_of_all_elements() {
        let a = Stats {
            elements: 10,
            kept: 9,
            unplaced: 1,
            unread: 2,
            zeros: 3,
            nan: 1,
            first_nan: Some(7),
            infinite: 1,
            first_infinite: None,
            min: Some(-2.0),
            max: Some(3.0),
            grid: grid(&[1.0, 0.0, 1.0, 0.0]),
            ..Stats::default()
        };
        let b = Stats {
            elements: 5,
            kept: 4,
            unplaced: 2,
            unread: 1,
            zeros: 1,
            nan: 2,
            first_nan: Some(3),
            infinite: 4,
            first_infinite: Some(9),
            min: Some(-5.0),
            max: Some(1.0),
            grid: grid(&[1.0, 1.0, 0.0, 0.0]),
            ..Stats::default()
        };
        let all = Stats {
            elements: 15,
            kept: 13,
            unplaced: 3,
            unread: 3,
            zeros: 4,
            nan: 3,
            first_nan: Some(3),
            infinite: 5,
            first_infinite: Some(9),
            min: Some(-5.0),
            max: Some(3.0),
            ..Stats::default()
        };
        let nothing = Stats::default();
        for (mut sum, more) in [(a.clone(), &b), (b.clone(), &a)] {
            sum.merge(more);
            let cells = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(r, c)| sum.grid.as_ref().unwrap().cell(r, c));
            assert_eq!(cells.map(|cell| cell.unwrap().0), [2, 1, 1, 0]);
            assert_eq!(sum.nonzero(), 15 - 4 - 3);
            assert_eq!(Stats { grid: None, ..sum.clone() }, all);
            let before = sum.clone();
            sum.merge(&nothing);
            assert_eq!(sum, before);
        }
    }

    #[test]
    fn elements_without_a_value_are_zero() {
        let kept = Stats { elements: 2, kept: 2, min: Some(2.0), max: Some(3.0), ..Stats::default() };
        assert_eq!(kept.clone().with_elements(2), kept);
        let whole = kept.with_elements(3);
        assert_eq!((whole.elements, whole.kept, whole.zeros), (3, 2, 1));
        assert_eq!((whole.min, whole.max, whole.finite()), (Some(0.0), Some(3.0), 1));
    }
}
