//! Units of a box of a tensor, by row.

use std::iter;
use std::ops::Range;

use rayon::prelude::*;

use crate::arch::sums::ROWS;
use crate::arch::sums::columns::READ;
use crate::digest::columns::Columns;
use crate::digest::keys::{LANES, LEVEL, Lanes, add, high, key, low, mul};
use crate::digest::rows::{self, Place, Rows};
use crate::error::{Error, InputErrorKind, Result};
use crate::limits::in_memory;
use crate::tensor::{Dtype, TensorView, elements};

/// Size of a unit, the part of an element that has a key of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Four bits, not signed.
    Nibble,
    /// A signed byte.
    Byte,
    /// A signed word of 16 bits.
    Word,
}

impl Unit {
    pub(super) fn of(dtype: Dtype) -> Self {
        match dtype.bits() {
            4 => Self::Nibble,
            8 => Self::Byte,
            _ => Self::Word,
        }
    }

    /// Returns the number of units of an element.
    pub(super) fn per_element(dtype: Dtype) -> u64 {
        u64::from(dtype.bits() / 16).max(1)
    }

    /// Returns the value of a unit.
    #[inline(always)]
    pub(super) fn value(self, data: &[u8], at: usize) -> i64 {
        match self {
            Self::Nibble => i64::from(data[at / 2] >> (at % 2 * 4) & 15),
            Self::Byte => i64::from(data[at] as i8),
            Self::Word => i64::from(i16::from_le_bytes([data[2 * at], data[2 * at + 1]])),
        }
    }
}

/// An axis of a box: its indices and their distance in the buffer, in units.
#[derive(Debug, Clone, Copy)]
struct Axis {
    len: u64,
    /// First index in the tensor that the keys are of, modulo 2^64.
    first: u64,
    stride: u64,
}

/// Units of a box, in a buffer that may hold more.
pub(super) struct Grid<'a> {
    data: &'a [u8],
    unit: Unit,
    /// Axes, the last first. At least one.
    axes: Vec<Axis>,
    /// Keys of the first axis here, if it is several axes of the tensor together, and their number.
    merged: Option<(Vec<[u32; LANES]>, usize)>,
    /// First unit in the buffer.
    start: u64,
    /// Number of rows: combinations of indices of all axes but the last. 0 if the box is empty.
    rows: u64,
}

impl<'a> Grid<'a> {
    /// The box of the shape `shape` at `offsets` in `whole`, whose own first element is at `origin` in the
    /// tensor that the keys are of.
    ///
    /// # Errors
    /// [`InputErrorKind::Mismatch`] if the box is not inside, or the numbers of dimensions differ.
    pub(super) fn new(whole: TensorView<'a>, shape: &[u64], offsets: &[u64], origin: &[u64]) -> Result<Self> {
        let dims = || whole.shape().iter().zip(shape).zip(offsets);
        let is_inside = |((whole, len), offset): ((&u64, &u64), &u64)| {
            offset.checked_add(*len).is_some_and(|end| end <= *whole)
        };
        let rank = whole.shape().len();
        if [shape.len(), offsets.len(), origin.len()] != [rank; 3] || !dims().all(is_inside) {
            return Err(Error::input(InputErrorKind::Mismatch { what: "shard and tensor" }));
        }
        let per_element = Unit::per_element(whole.dtype());
        let (mut axes, mut stride, mut start) = (Vec::with_capacity(rank.max(1)), per_element, 0u64);
        for (((&whole, &len), &offset), &origin) in dims().zip(origin).rev() {
            let first = origin.wrapping_add(offset);
            start = start.wrapping_add(offset.wrapping_mul(stride));
            axes.push(Axis { len, first, stride });
            stride = stride.wrapping_mul(whole);
        }
        if axes.is_empty() {
            axes.push(Axis { len: 1, first: 0, stride: per_element });
        }
        // The last axis is counted in units.
        let last = &mut axes[0];
        *last = Axis {
            len: last.len.saturating_mul(per_element),
            first: last.first.wrapping_mul(per_element),
            stride: 1,
        };
        let mut grid =
            Self { data: whole.data(), unit: Unit::of(whole.dtype()), axes, merged: None, start, rows: 0 };
        if !grid.axes.iter().any(|axis| axis.len == 0) {
            let units = elements(shape).unwrap_or(0).saturating_mul(per_element);
            grid.merge(units);
            grid.rows = units / grid.axes[0].len;
        }
        Ok(grid)
    }

    /// Makes rows that are short, and follow each other, into longer ones with a table of their own.
    fn merge(&mut self, units: u64) {
        let fits = |axes: &[Axis]| match axes {
            [own, next, ..] => {
                let len = own.len.saturating_mul(next.len);
                // A key of the table takes about as long as the sum of a row of its own.
                let is_faster = len.saturating_mul(own.len.max(8)) <= units;
                let has_columns = own.len >= READ as u64 && next.len >= rows::FEW;
                own.len == next.stride && own.len < SHORT && !has_columns && is_faster && len <= LEVEL
            }
            _ => false,
        };
        if !fits(&self.axes) {
            return;
        }
        let row = self.axes[0];
        let mut keys: Vec<Lanes> = (0..row.len).map(|at| key(0, row.first.wrapping_add(at))).collect();
        let mut count = 1;
        while fits(&self.axes) {
            let next = self.axes.remove(1);
            let outer = (0..next.len).map(|at| key(count, next.first.wrapping_add(at)));
            keys = outer.flat_map(|outer| keys.iter().map(move |inner| mul(outer, *inner))).collect();
            self.axes[0] = Axis { len: keys.len() as u64, first: 0, stride: 1 };
            count += 1;
        }
        let narrow = |lanes: Lanes| lanes.map(|lane| lane as u32);
        self.merged = Some((keys.into_iter().map(narrow).collect(), count));
    }

    /// Returns the sum of all units with the keys of their places.
    pub(super) fn sum(&self) -> Lanes {
        if self.rows == 0 {
            return [0; LANES];
        }
        if let Some((keys, _)) = &self.merged {
            let columns = Columns::of(self.unit, keys);
            return self.sum_of(self.axes[0].len, 1, |_| (0..self.axes[0].len, &columns, 0, [1; LANES]));
        }
        let (Axis { len, first, .. }, columns) = (self.axes[0], Columns::last_axis(self.unit));
        // Pieces of rows, in each of which the units have one factor of the second level: what is before the
        // first multiple of 2^16, whole pieces, and what is after the last.
        let before = (first.wrapping_neg() % LEVEL).min(len);
        let whole = (len - before) / LEVEL;
        let end = before + whole * LEVEL;
        // The whole pieces of a row go together, or those of several rows, if these are more.
        let long = if whole > self.rows { whole } else { 0 };
        let middle = (0..whole - long).map(|piece| before + piece * LEVEL..before + (piece + 1) * LEVEL);
        let ranges = iter::once(0..before).chain(middle).chain(iter::once(end..len));
        let piece = |range: Range<u64>| {
            let index = first.wrapping_add(range.start);
            (range, columns, index % LEVEL, high(0, index / LEVEL))
        };
        let pieces: Vec<_> = ranges.filter(|range| !range.is_empty()).map(piece).collect();
        let sum =
            self.sum_of(len.min(LEVEL), pieces.len() as u64, |number| pieces[in_memory(number)].clone());
        if long > 0 { add(sum, self.sum_of_long(before, long, columns)) } else { sum }
    }

    /// Returns the sum of `count` whole pieces of each row, which begin at unit `start`: their keys have the
    /// same factors of the first level, so that several are summed together as if they were rows.
    fn sum_of_long(&self, start: u64, count: u64, columns: &Columns<'_>) -> Lanes {
        let (all, batches) = (0..in_memory(LEVEL), count.div_ceil(ROWS as u64));
        let (bias, first) = (columns.bias(all.clone()), self.axes[0].first.wrapping_add(start) / LEVEL);
        let task = |number: u64| {
            let (row, piece) = (number / batches, number % batches * ROWS as u64);
            let run = self.run(row, row + 1);
            let starts: [usize; ROWS] =
                std::array::from_fn(|i| in_memory(run.start + start + (piece + i as u64) * LEVEL));
            let several = in_memory((count - piece).min(ROWS as u64));
            let sums = columns.sums(self.data, &starts[..several], all.clone(), &mut Vec::new());
            let with_keys = (first + piece..).zip(&sums[..several]);
            let sum = with_keys
                .fold([0; LANES], |sum, (index, own)| add(sum, mul(add(*own, bias), high(0, index % HIGH))));
            mul(sum, mul(run.factor(0), run.factors))
        };
        (0..self.rows * batches).into_par_iter().map(task).reduce(|| [0; LANES], add)
    }

    /// Returns the sum of all rows, in tasks for several threads. `piece`: for each piece of a row, its
    /// units, the table of its keys, the first of them there, and a factor of all its keys.
    fn sum_of<'c>(
        &self,
        units: u64,
        pieces: u64,
        piece: impl Fn(u64) -> (Range<u64>, &'c Columns<'c>, u64, Lanes) + Sync,
    ) -> Lanes {
        let together = (TASK / units).max(1).next_multiple_of(ROWS as u64);
        let task = |number: u64| {
            let (chunk, number) = (number / pieces, number % pieces);
            let (range, columns, low, factor) = piece(number);
            let rows = chunk * together..self.rows.min((chunk + 1) * together);
            mul(self.piece(rows, range, columns, in_memory(low)), factor)
        };
        match self.rows.div_ceil(together) * pieces {
            1 => task(0),
            tasks => (0..tasks).into_par_iter().map(task).reduce(|| [0; LANES], add),
        }
    }

    /// Returns the sum of a range of units of these rows, whose keys begin at `low` in a table.
    fn piece(&self, rows: Range<u64>, units: Range<u64>, columns: &Columns<'_>, low: usize) -> Lanes {
        let len = in_memory(units.end - units.start);
        let bias = columns.bias(low..low + len);
        let (mut sum, mut scratch, mut row) = ([0; LANES], Vec::new(), rows.start);
        while row < rows.end {
            let run = self.run(row, rows.end);
            let keys = run.axis.filter(|_| run.rows >= rows::FEW && len < rows::WIDE);
            if let Some(keys) = keys.and_then(|axis| Rows::of_axis(self.unit, axis)) {
                let (start, stride) = (in_memory(run.start + units.start), in_memory(run.stride));
                let place = Place { data: self.data, start, stride, len };
                let range = in_memory(run.low)..in_memory(run.low + run.rows);
                let own = keys.sum(place, range, columns.keys(low..low + len));
                sum = add(sum, mul(own, run.factors));
                row += run.rows;
                continue;
            }
            let mut own = [0; LANES];
            for at in (0..run.rows).step_by(ROWS) {
                let count = in_memory((run.rows - at).min(ROWS as u64));
                let start = |i| in_memory(run.start + (at + i as u64) * run.stride + units.start);
                let starts: [usize; ROWS] = std::array::from_fn(start);
                let sums = columns.sums(self.data, &starts[..count], low..low + len, &mut scratch);
                for (i, sums) in (0..).zip(&sums[..count]) {
                    own = add(own, mul(add(*sums, bias), run.factor(at + i)));
                }
            }
            sum = add(sum, mul(own, run.factors));
            row += run.rows;
        }
        sum
    }

    /// Returns the rows from `row` on, and before `end`, whose keys have the same factors except that of the
    /// low 16 bits of the index on the second axis.
    fn run(&self, row: u64, end: u64) -> Run {
        let number = self.merged.as_ref().map_or(1, |(_, count)| *count);
        let (mut start, mut factors, mut rest) = (self.start, [1; LANES], row);
        let mut run = Run { start, stride: 0, rows: 1, factors, axis: None, low: 0 };
        for (number, axis) in (number..).zip(&self.axes[1..]) {
            let at = rest % axis.len;
            rest /= axis.len;
            start += at * axis.stride;
            let index = axis.first.wrapping_add(at);
            if run.axis.is_none() {
                (run.axis, run.low, run.stride) = (Some(number), index % LEVEL, axis.stride);
                run.rows = (axis.len - at).min(LEVEL - run.low).min(end - row);
                factors = high(number, index / LEVEL);
            } else {
                factors = mul(factors, key(number, index));
            }
        }
        Run { start, factors, ..run }
    }
}

/// Rows whose keys have common factors.
struct Run {
    /// First unit in the buffer, and the distance of rows.
    start: u64,
    stride: u64,
    /// Number of rows.
    rows: u64,
    factors: Lanes,
    /// Axis of the rows, and the low 16 bits of the first index on it.
    axis: Option<usize>,
    low: u64,
}

impl Run {
    /// Returns the factor that only row `at` has.
    fn factor(&self, at: u64) -> Lanes {
        self.axis.map_or([1; LANES], |axis| low(axis, self.low + at))
    }
}

/// Units of a row that is long enough without others.
const SHORT: u64 = 1024;

/// Factors of the second level: indices have 64 bits.
const HIGH: u64 = 1 << 48;

/// Units of a task for one thread.
const TASK: u64 = 1 << 18;
