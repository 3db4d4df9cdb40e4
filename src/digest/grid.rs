//! Units of a box of a tensor, by row.

use crate::digest::keys::{BIAS, LANES, LEVEL, Lanes, add, fold, high, key, lows, mul};
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
        let is_empty = axes.iter().any(|axis| axis.len == 0);
        let rows = if is_empty { 0 } else { elements(&shape[..rank.saturating_sub(1)]).unwrap_or(0) };
        Ok(Self { data: whole.data(), unit: Unit::of(whole.dtype()), axes, start, rows })
    }

    /// Returns the first unit of a row in the buffer, and the product of the keys of its axes but the last.
    fn row(&self, row: u64) -> (u64, Lanes) {
        let (mut start, mut keys, mut rest) = (self.start, [1; LANES], row);
        for (number, axis) in self.axes.iter().enumerate().skip(1) {
            let index = rest % axis.len;
            rest /= axis.len;
            start += index * axis.stride;
            keys = mul(keys, key(number, axis.first.wrapping_add(index)));
        }
        (start, keys)
    }

    /// Returns the sum of all units with the keys of their places.
    pub(super) fn sum(&self) -> Lanes {
        (0..self.rows)
            .map(|row| self.row(row))
            .fold([0; LANES], |sum, (start, keys)| add(sum, mul(keys, self.row_sum(start))))
    }

    /// Returns the sum of a row that begins at `start`, with the keys of the last axis.
    fn row_sum(&self, start: u64) -> Lanes {
        let Axis { len, first, .. } = self.axes[0];
        let (mut sum, mut at) = ([0; LANES], 0);
        while at < len {
            // Up to the next index with another factor of the second level.
            let index = first.wrapping_add(at);
            let piece = (LEVEL - index % LEVEL).min(len - at);
            let low = &lows()[in_memory(index % LEVEL)..][..in_memory(piece)];
            sum = add(sum, mul(high(0, index / LEVEL), self.dot(in_memory(start + at), low)));
            at += piece;
        }
        sum
    }

    /// Returns the sum of consecutive units, each with its keys.
    fn dot(&self, start: usize, keys: &[[u32; LANES]]) -> Lanes {
        let mut sum = [0; LANES];
        for (at, keys) in (start..).zip(keys) {
            let value = (self.unit.value(self.data, at) + BIAS as i64) as u64;
            (0..LANES).for_each(|lane| sum[lane] += u64::from(keys[lane]) * value);
        }
        // At most 2^16 products below 2^48.
        sum.map(fold)
    }
}
