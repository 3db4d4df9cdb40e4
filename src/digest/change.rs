//! Changes of sum digests.

use rayon::prelude::*;

use crate::arch::{masks, widest};
use crate::digest::SumDigest;
use crate::digest::grid::Unit;
use crate::digest::keys::{LANES, LEVEL, Lanes, add, high, key, low, lows, mul, signed};
use crate::error::{Error, InputErrorKind, Result};
use crate::limits::in_memory;
use crate::tensor::{Dtype, TensorView};

/// The sum that changes of elements add to the digest of their tensor or shard.
#[derive(Debug, Clone)]
pub struct SumChange {
    dtype: Dtype,
    unit: Unit,
    per_element: u64,
    /// Length and first index of each axis, the last axis first. The last axis is counted in units.
    axes: Vec<(u64, u64)>,
    /// Number of elements.
    elements: u64,
    /// First unit of the current row.
    row: u64,
    /// Factors of its keys on all axes but the last.
    row_keys: Lanes,
    /// Common factors of the rows around the current one, and the number of these rows: indices of the third
    /// axis and beyond, and index of the second without its low 16 bits.
    rows: ((u64, u64), Lanes),
    /// Number of the current piece, in which all units have one factor of the second level, and this factor.
    piece: (u64, Lanes),
    /// Sum of the changes in the current piece, below 2^63.
    inner: [i64; LANES],
    /// Changes that `inner` can still take.
    room: u32,
    sum: Lanes,
}

/// Changes in a piece before they are reduced: each is below 2^47.
pub(super) const ROOM: u32 = 1 << 15;

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
        Ok(Self {
            dtype,
            unit: Unit::of(dtype),
            per_element,
            axes,
            elements: elements.ok_or_else(bad)?,
            row: NONE,
            row_keys: [0; LANES],
            rows: ((NONE, NONE), [0; LANES]),
            piece: (NONE, [0; LANES]),
            inner: [0; LANES],
            room: ROOM,
            sum: [0; LANES],
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
        match self.unit {
            Unit::Nibble => self.add_unit(element, (new & 15) as i64 - (old & 15) as i64),
            Unit::Byte => self.add_unit(element, i64::from(new as i8) - i64::from(old as i8)),
            Unit::Word => {
                for part in 0..self.per_element {
                    let word = |bits: u64| i64::from((bits >> (16 * part)) as i16);
                    if word(new) != word(old) {
                        self.add_unit(element * self.per_element + part, word(new) - word(old));
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds all differences between two tensors or shards.
    ///
    /// # Errors
    /// [`Error::Input`] if the type or the shape of one is another.
    pub fn add_difference(&mut self, old: TensorView<'_>, new: TensorView<'_>) -> Result<()> {
        let is_own = |view: &TensorView<'_>| {
            let dims = view.shape().iter().rev().zip(&self.axes).enumerate();
            let mut same = dims.map(|(axis, (dim, own))| match axis {
                0 => dim.saturating_mul(self.per_element) == own.0,
                _ => *dim == own.0,
            });
            let is_ranked = view.shape().len().max(1) == self.axes.len();
            is_ranked && view.dtype() == self.dtype && same.all(|same| same)
        };
        if !is_own(&old) || !is_own(&new) {
            let what = "shapes or element types of two tensors";
            return Err(Error::input(InputErrorKind::Mismatch { what }));
        }
        let (old, new) = (old.data(), new.data());
        let bytes = match self.unit {
            Unit::Word => 2 * TASK,
            _ => TASK,
        };
        let of_task = |(number, (old, new)): (usize, (&[u8], &[u8]))| {
            let mut change = Self { sum: [0; LANES], ..self.clone() };
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
        self.sum = add(self.sum, total);
        Ok(())
    }

    /// Adds the differences of units; `first` is the first unit, or byte of nibbles.
    fn compare(&mut self, first: usize, old: &[u8], new: &[u8]) {
        match self.unit {
            Unit::Word => {
                let (old, new) = (old.as_chunks::<2>().0, new.as_chunks::<2>().0);
                let mut masks = [0; 64];
                for (number, (old, new)) in old.chunks(4096).zip(new.chunks(4096)).enumerate() {
                    if old == new {
                        continue;
                    }
                    let masks = &mut masks[..old.len().div_ceil(64)];
                    masks::unequal(widest(), old, new, masks);
                    for (row, mask) in masks.iter_mut().enumerate() {
                        while *mask != 0 {
                            let at = 64 * row + in_memory(mask.trailing_zeros().into());
                            *mask &= *mask - 1;
                            let [old, new] =
                                [old[at], new[at]].map(|word| i64::from(i16::from_le_bytes(word)));
                            self.add_unit((first + 4096 * number + at) as u64, new - old);
                        }
                    }
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
        if unit.wrapping_sub(self.row) >= self.axes[0].0 {
            self.begin_row(unit);
        }
        let index = self.axes[0].1.wrapping_add(unit - self.row);
        if index / LEVEL != self.piece.0 || self.room == 0 {
            self.flush();
            self.piece = (index / LEVEL, high(0, index / LEVEL));
        }
        self.room -= 1;
        let keys = &lows()[in_memory(index % LEVEL)];
        (0..LANES).for_each(|lane| self.inner[lane] += change * i64::from(keys[lane]));
    }

    /// Makes the row of a unit the current one.
    #[inline(never)]
    fn begin_row(&mut self, unit: u64) {
        self.flush();
        let len = self.axes[0].0;
        let row = unit / len;
        self.row = row * len;
        let Some(&(len, first)) = self.axes.get(1) else {
            self.row_keys = [1; LANES];
            return;
        };
        let index = first.wrapping_add(row % len);
        let around = (row / len, index / LEVEL);
        if self.rows.0 != around {
            let (mut keys, mut rest) = (high(1, around.1), around.0);
            for (number, &(len, first)) in self.axes.iter().enumerate().skip(2) {
                keys = mul(keys, key(number, first.wrapping_add(rest % len)));
                rest /= len;
            }
            self.rows = (around, keys);
        }
        self.row_keys = mul(self.rows.1, low(1, index % LEVEL));
    }

    fn flush(&mut self) {
        if self.room < ROOM {
            let inner = std::mem::take(&mut self.inner).map(signed);
            self.sum = add(self.sum, mul(mul(inner, self.piece.1), self.row_keys));
            self.room = ROOM;
        }
    }

    fn total(mut self) -> Lanes {
        self.flush();
        self.sum
    }

    /// Returns the digest of the new elements less that of the old ones.
    pub fn finish(self) -> SumDigest {
        SumDigest::from_lanes(self.total())
    }
}
