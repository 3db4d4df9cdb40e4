//! Changes of sum digests.

use rayon::prelude::*;

use crate::arch::sums::changes::{self, Change, Grid};
use crate::arch::{masks, widest};
use crate::digest::SumDigest;
use crate::digest::grid::Unit;
use crate::digest::keys::{LANES, LEVEL, Lanes, add, high, key, lows, mul, signed};
use crate::error::{Error, InputErrorKind, Result};
use crate::limits::in_memory;
use crate::tensor::element::bits_at;
use crate::tensor::{Dtype, TensorView};

/// The sum that changes of elements add to the digest of their tensor or shard.
#[derive(Debug, Clone)]
pub struct SumChange {
    /// Whether each element is one unit of 16 bits.
    is_word: bool,
    /// Number of elements.
    elements: u64,
    /// First unit of the current run, and its number of units.
    start: u64,
    len: u64,
    /// Changes in the current run that are not in the sum yet.
    count: usize,
    // What is used for many changes at once is elsewhere, so that the numbers above stay in registers.
    rest: Box<Rest>,
}

#[derive(Debug, Clone)]
struct Rest {
    dtype: Dtype,
    unit: Unit,
    per_element: u64,
    /// Length and first index of each axis, the last axis first. The last axis is counted in units.
    axes: Vec<(u64, u64)>,
    /// The current run: whole rows, or a part of one, whose keys have common factors: all but those of the
    /// low 16 bits of the indices on the last two axes.
    grid: Grid,
    factors: Lanes,
    waiting: [Change; BATCH],
    sum: Lanes,
}

/// Changes that are summed at once.
pub(super) const BATCH: usize = 256;
const _: () = assert!(BATCH <= changes::MOST);

/// A number of which there is none: more than twice the number of units.
const NONE: u64 = 1 << 63;

/// Units of a task for one thread, when all units are compared. A multiple of 64.
const TASK: usize = 1 << 18;

impl SumChange {
    /// Returns no change of a shard of this type and shape, whose first element has the indices `offsets` in
    /// its tensor.
    ///
    /// # Errors
    /// [`Error::Input`] if the numbers of dimensions differ, or the shape is too large.
    pub fn new(dtype: Dtype, shape: &[u64], offsets: &[u64]) -> Result<Self> {
        let bad = || Error::input(InputErrorKind::Mismatch { what: "shard and tensor" });
        let elements = crate::tensor::elements(shape).filter(|_| shape.len() == offsets.len());
        let mut axes: Vec<(u64, u64)> =
            shape.iter().zip(offsets).rev().map(|(&len, &first)| (len, first)).collect();
        if axes.is_empty() {
            axes.push((1, 0));
        }
        let per_element = Unit::per_element(dtype);
        axes[0] = (axes[0].0.saturating_mul(per_element), axes[0].1.wrapping_mul(per_element));
        let unit = Unit::of(dtype);
        Ok(Self {
            is_word: unit == Unit::Word && per_element == 1,
            elements: elements.ok_or_else(bad)?,
            start: NONE,
            len: 0,
            count: 0,
            rest: Box::new(Rest {
                dtype,
                unit,
                per_element,
                axes,
                grid: Grid::row(0, 0),
                factors: [0; LANES],
                waiting: [Change::default(); BATCH],
                sum: [0; LANES],
            }),
        })
    }

    /// Adds the change of an element from the bits `old` to the bits `new`. Fastest in ascending order.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no such element.
    #[inline]
    pub fn add(&mut self, element: u64, old: u64, new: u64) -> Result<()> {
        if element >= self.elements {
            return Err(Error::out_of_bounds("element", in_memory(element), in_memory(self.elements)));
        }
        self.add_element(element, old, new);
        Ok(())
    }

    /// As [`Self::add`], for an element that there is.
    #[inline(always)]
    pub(crate) fn add_element(&mut self, element: u64, old: u64, new: u64) {
        if self.is_word {
            self.add_unit(element, i64::from(new as i16) - i64::from(old as i16));
        } else {
            self.add_parts(element, old, new);
        }
    }

    /// Adds the changes of the elements of these numbers, ascending and counted from `first` on, between
    /// `old` and `new`.
    pub(crate) fn add_elements(&mut self, first: u64, numbers: &[u16], old: &[u8], new: &[u8]) {
        if self.is_word {
            return self.add_words(first, numbers, old.as_chunks().0, new.as_chunks().0);
        }
        let dtype = self.rest.dtype;
        let bits = |data, at: u16| bits_at(dtype, data, at.into()).unwrap_or(0);
        numbers.iter().for_each(|&at| self.add_element(first + u64::from(at), bits(old, at), bits(new, at)));
    }

    /// Adds the changes of the units of 16 bits of these numbers, ascending and counted from `first` on.
    fn add_words(&mut self, first: u64, numbers: &[u16], old: &[[u8; 2]], new: &[[u8; 2]]) {
        let mut rest = numbers;
        while let Some(&at) = rest.first() {
            self.enter_run(first + u64::from(at));
            let is_inside = |at: &u16| (first + u64::from(*at)).wrapping_sub(self.start) < self.len;
            let inside = match rest.last().is_some_and(is_inside) {
                true => rest.len(),
                false => rest.partition_point(is_inside),
            };
            let taken = rest.split_off(..inside.min(BATCH - self.count)).unwrap_or_default();
            let (changes, start) = (&mut self.rest.waiting[self.count..], first.wrapping_sub(self.start));
            for (change, &at) in changes.iter_mut().zip(taken) {
                let [old, new] =
                    [old, new].map(|units| i32::from(i16::from_le_bytes(units[usize::from(at)])));
                *change = Change { at: start.wrapping_add(at.into()) as u32, by: new - old };
            }
            self.count_waiting(taken.len());
        }
    }

    /// As [`Self::add_element`], for every type.
    #[inline(never)]
    fn add_parts(&mut self, element: u64, old: u64, new: u64) {
        match self.rest.unit {
            Unit::Nibble => self.add_unit(element, (new & 15) as i64 - (old & 15) as i64),
            Unit::Byte => self.add_unit(element, i64::from(new as i8) - i64::from(old as i8)),
            Unit::Word => {
                let per_element = self.rest.per_element;
                for part in 0..per_element {
                    let word = |bits: u64| i64::from((bits >> (16 * part)) as i16);
                    self.add_unit(element * per_element + part, word(new) - word(old));
                }
            }
        }
    }

    /// Adds all differences between two tensors or shards.
    ///
    /// # Errors
    /// [`Error::Input`] if the type or the shape of one is another.
    pub fn add_difference(&mut self, old: TensorView<'_>, new: TensorView<'_>) -> Result<()> {
        let is_own = |view: &TensorView<'_>| {
            let dims = view.shape().iter().rev().zip(&self.rest.axes).enumerate();
            let mut same = dims.map(|(axis, (dim, own))| match axis {
                0 => dim.saturating_mul(self.rest.per_element) == own.0,
                _ => *dim == own.0,
            });
            let is_ranked = view.shape().len().max(1) == self.rest.axes.len();
            is_ranked && view.dtype() == self.rest.dtype && same.all(|same| same)
        };
        if !is_own(&old) || !is_own(&new) {
            let what = "shapes or element types of two tensors";
            return Err(Error::input(InputErrorKind::Mismatch { what }));
        }
        let (old, new) = (old.data(), new.data());
        let bytes = match self.rest.unit {
            Unit::Word => 2 * TASK,
            _ => TASK,
        };
        let of_task = |(number, (old, new)): (usize, (&[u8], &[u8]))| {
            let mut change = self.clone();
            (change.rest.sum, change.count) = ([0; LANES], 0);
            change.compare(number * TASK, old, new);
            change.total()
        };
        let total = match old.len() <= bytes {
            true => of_task((0, (old, new))),
            false => {
                let pairs = old.par_chunks(bytes).zip(new.par_chunks(bytes)).enumerate();
                pairs.map(of_task).reduce(|| [0; LANES], add)
            }
        };
        self.rest.sum = add(self.rest.sum, total);
        Ok(())
    }

    /// Adds the differences of units; `first` is the first unit, or byte of nibbles.
    fn compare(&mut self, first: usize, old: &[u8], new: &[u8]) {
        match self.rest.unit {
            Unit::Word => {
                let (old, new) = (old.as_chunks::<2>().0, new.as_chunks::<2>().0);
                let mut ones = [0; _];
                for (number, (old, new)) in old.chunks(4096).zip(new.chunks(4096)).enumerate() {
                    if old == new {
                        continue;
                    }
                    let mut rows = [0; 64];
                    masks::unequal(widest(), old, new, &mut rows[..old.len().div_ceil(64)]);
                    let changed = masks::ones(widest(), &rows, &mut ones);
                    self.add_words((first + 4096 * number) as u64, changed, old, new);
                }
            }
            unit => {
                for (number, (old, new)) in old.chunks(64).zip(new.chunks(64)).enumerate() {
                    if old == new {
                        continue;
                    }
                    for ((old, new), at) in old.iter().zip(new).zip(first + 64 * number..) {
                        let (at, [old, new]) = (at as u64, [*old, *new].map(i64::from));
                        if unit == Unit::Byte {
                            self.add_unit(at, i64::from(new as i8) - i64::from(old as i8));
                        } else {
                            self.add_unit(2 * at, (new & 15) - (old & 15));
                            self.add_unit(2 * at + 1, (new >> 4) - (old >> 4));
                        }
                    }
                }
            }
        }
    }

    /// Adds the change of a unit, counted from the first one. Without a change, there may be no such unit:
    /// a byte can have one nibble.
    #[inline(always)]
    fn add_unit(&mut self, unit: u64, change: i64) {
        if change == 0 {
            return;
        }
        self.enter_run(unit);
        self.rest.waiting[self.count % BATCH] = Change { at: (unit - self.start) as u32, by: change as i32 };
        self.count_waiting(1);
    }

    /// Makes the run of a unit the current one.
    #[inline(always)]
    fn enter_run(&mut self, unit: u64) {
        if unit.wrapping_sub(self.start) >= self.len {
            (self.start, self.len) = self.rest.begin_run(self.count, unit);
            self.count = 0;
        }
    }

    /// Counts changes that now wait: at most as many as there was room for.
    #[inline(always)]
    fn count_waiting(&mut self, added: usize) {
        self.count += added;
        if self.count == BATCH {
            self.rest.flush(BATCH);
            self.count = 0;
        }
    }

    fn total(mut self) -> Lanes {
        self.rest.flush(self.count);
        self.rest.sum
    }

    /// Returns the digest of the new elements less that of the old ones.
    pub fn finish(self) -> SumDigest {
        SumDigest::from_lanes(self.total())
    }
}

impl Rest {
    /// Adds `count` changes of the current run, and makes the run of a unit the current one. Returns its
    /// first unit, and its number of units.
    #[inline(never)]
    fn begin_run(&mut self, count: usize, unit: u64) -> (u64, u64) {
        self.flush(count);
        let (len, first) = self.axes[0];
        let (row, column) = (unit / len, unit % len);
        // The units of a row that have one factor of the second level.
        let index = first.wrapping_add(column);
        let before = column.min(index % LEVEL);
        let part = (before + LEVEL - index % LEVEL).min(len - column + before);
        let index = index - before;
        let (mut factors, mut grid) = (high(0, index / LEVEL), Grid::row(index as u16, 0));
        let (mut start, mut units) = (unit - before, part);
        if let Some(&(rows, first)) = self.axes.get(1) {
            let at = row % rows;
            let mut low = first.wrapping_add(at);
            factors = mul(factors, high(1, low / LEVEL));
            let mut rest = row / rows;
            for (number, &(len, first)) in self.axes.iter().enumerate().skip(2) {
                factors = mul(factors, key(number, first.wrapping_add(rest % len)));
                rest /= len;
            }
            grid = Grid::row(index as u16, low as u16);
            // Whole rows: from the last one whose index is a multiple of 2^16 up to the next such one.
            if part == len && len > 1 {
                let before = at.min(low % LEVEL);
                low = low.wrapping_sub(before);
                start = (row - before) * len;
                units = (LEVEL - low % LEVEL).min(rows - at + before) * len;
                grid = Grid::new(len, index as u16, low as u16);
            }
        }
        (self.grid, self.factors) = (grid, factors);
        (start, units)
    }

    /// Adds the first `count` waiting changes to the sum.
    #[inline(never)]
    fn flush(&mut self, count: usize) {
        let changes = &self.waiting[..count];
        if let (Some(columns), false) = (lows(0), changes.is_empty()) {
            let rows = if self.axes.len() > 1 { lows(1) } else { None };
            let own = changes::sum(widest(), changes, self.grid, columns, rows).map(signed);
            self.sum = add(self.sum, mul(own, self.factors));
        }
    }
}
