//! Sum digests (spec, section 6.1).

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

use crate::digest::grid::{Grid, Unit};
use crate::digest::keys::{self, LANES, LEVEL, Lanes, P, high, key, lows, mul, signed};
use crate::error::{Error, InputErrorKind, Result};
use crate::limits::in_memory;
use crate::tensor::{Dtype, TensorView};

/// A digest that adds up: the digests of the shards of a tensor have the tensor's digest as their sum, and a
/// change of some elements adds what these elements alone determine. Displayed as 32 hexadecimal digits.
///
/// It detects accidental changes, as CRCs and hashes do: a change is missed with a probability of about
/// 2^-120 (spec, section 6.1). It is no protection against anyone who wants two tensors with the same digest.
///
/// ```
/// use gcodec::TensorBuf;
/// use gcodec::digest::SumDigest;
///
/// # fn main() -> gcodec::Result<()> {
/// let whole = TensorBuf::from_f32(vec![2, 2], &[1.0, 2.0, 3.0, 4.0])?;
/// let rows = [[1.0, 2.0], [3.0, 4.0]].map(|row| TensorBuf::from_f32(vec![1, 2], &row));
/// let [first, second] = rows;
/// let sum = SumDigest::of_shard(first?.view(), &[0, 0])? + SumDigest::of_shard(second?.view(), &[1, 0])?;
/// assert_eq!(sum, SumDigest::of(whole.view()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SumDigest([u32; LANES]);

impl SumDigest {
    /// Digest of nothing, and of a tensor without elements.
    pub const ZERO: Self = Self([0; LANES]);

    /// Returns the digest of a tensor.
    pub fn of(tensor: TensorView<'_>) -> Self {
        let zeros = vec![0; tensor.shape().len()];
        Self::of_shard(tensor, &zeros).unwrap_or_default()
    }

    /// Returns the digest of a shard whose first element has the indices `offsets` in its tensor.
    ///
    /// # Errors
    /// [`Error::Input`] if `offsets` has another number of dimensions than the shard.
    pub fn of_shard(shard: TensorView<'_>, offsets: &[u64]) -> Result<Self> {
        let zeros = vec![0; shard.shape().len()];
        Ok(Self::from_lanes(Grid::new(shard, shard.shape(), &zeros, offsets)?.sum()))
    }

    /// Returns the share of a part of `whole`: of the elements of this `shape` that begin at `offsets`. They
    /// are read where they are, also if their rows do not follow each other.
    ///
    /// # Errors
    /// [`Error::Input`] if the part is not inside, or has another number of dimensions.
    pub fn of_part(whole: TensorView<'_>, shape: &[u64], offsets: &[u64]) -> Result<Self> {
        let zeros = vec![0; whole.shape().len()];
        Ok(Self::from_lanes(Grid::new(whole, shape, offsets, &zeros)?.sum()))
    }

    /// Returns the digest's share in the sum of several tensors: multiplied by the weight of the tensor of
    /// this name, type and shape. For a shard, these are the whole tensor's.
    #[must_use]
    pub fn weighted(self, name: &str, dtype: Dtype, shape: &[u64]) -> Self {
        Self::from_lanes(mul(self.lanes(), keys::weight(name, dtype, shape)))
    }

    /// Returns the bytes on the wire.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes.as_chunks_mut::<4>().0.iter_mut().zip(self.0).for_each(|(b, lane)| *b = lane.to_le_bytes());
        bytes
    }

    /// Returns the digest with these bytes; `None` if one of its four numbers is 2^31 - 1 or more.
    pub fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        let words = bytes.as_chunks::<4>().0;
        let lanes: [u32; LANES] = std::array::from_fn(|lane| u32::from_le_bytes(words[lane]));
        lanes.iter().all(|&lane| u64::from(lane) < P).then_some(Self(lanes))
    }

    fn from_lanes(lanes: Lanes) -> Self {
        Self(lanes.map(|lane| lane as u32))
    }

    fn lanes(self) -> Lanes {
        self.0.map(u64::from)
    }
}

impl Add for SumDigest {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::from_lanes(keys::add(self.lanes(), other.lanes()))
    }
}

impl AddAssign for SumDigest {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for SumDigest {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self::from_lanes(keys::add(self.lanes(), other.lanes().map(|lane| P - lane)))
    }
}

impl Sum for SumDigest {
    fn sum<I: Iterator<Item = Self>>(digests: I) -> Self {
        digests.fold(Self::ZERO, Self::add)
    }
}

impl fmt::Display for SumDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SumDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What changes of elements add to the digest of their tensor or shard.
#[derive(Debug, Clone)]
pub struct SumChange {
    dtype: Dtype,
    /// Length and first index of each axis, the last axis first. The last axis is counted in units.
    axes: Vec<(u64, u64)>,
    /// Number of elements.
    elements: u64,
    /// First element of the current row, and the product of its keys on all axes but the last.
    row: (u64, Lanes),
    /// Number of the current piece, in which all units have one factor of the second level, and this factor.
    piece: (u64, Lanes),
    /// Sum of the changes in the current piece, below 2^63.
    inner: [i64; LANES],
    /// Changes that `inner` can still take.
    room: u32,
    sum: Lanes,
}

/// Changes in a piece before they are reduced: each is below 2^48.
const ROOM: u32 = 1 << 14;

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
            axes,
            elements: elements.ok_or_else(bad)?,
            row: (u64::MAX, [0; LANES]),
            piece: (u64::MAX, [0; LANES]),
            inner: [0; LANES],
            room: ROOM,
            sum: [0; LANES],
        })
    }

    /// Adds the change of an element from the bits `old` to the bits `new`. Fastest in ascending order.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no such element.
    pub fn add(&mut self, element: u64, old: u64, new: u64) -> Result<()> {
        if element >= self.elements {
            return Err(Error::out_of_bounds("element", in_memory(element), in_memory(self.elements)));
        }
        let per_element = Unit::per_element(self.dtype);
        let row_len = self.axes[0].0 / per_element;
        if element < self.row.0 || element - self.row.0 >= row_len {
            self.flush();
            self.row = self.row_of(element / row_len, row_len);
            self.piece.0 = u64::MAX;
        }
        let first = (element - self.row.0) * per_element;
        for part in 0..per_element {
            let shift = |bits: u64| bits >> (16 * part);
            let change = match self.dtype.bits() {
                4 => (new & 15) as i64 - (old & 15) as i64,
                8 => i64::from(new as i8) - i64::from(old as i8),
                _ => i64::from(shift(new) as i16) - i64::from(shift(old) as i16),
            };
            if change != 0 {
                self.add_unit(self.axes[0].1.wrapping_add(first + part), change);
            }
        }
        Ok(())
    }

    /// Adds the change of a unit of the current row.
    #[inline]
    fn add_unit(&mut self, index: u64, change: i64) {
        if index / LEVEL != self.piece.0 || self.room == 0 {
            self.flush();
            self.piece = (index / LEVEL, high(0, index / LEVEL));
        }
        self.room -= 1;
        let keys = lows()[in_memory(index % LEVEL)];
        (0..LANES).for_each(|lane| self.inner[lane] += change * i64::from(keys[lane]));
    }

    fn row_of(&self, row: u64, row_len: u64) -> (u64, Lanes) {
        let (mut keys, mut rest) = ([1; LANES], row);
        for (number, &(len, first)) in self.axes.iter().enumerate().skip(1) {
            keys = mul(keys, key(number, first.wrapping_add(rest % len)));
            rest /= len;
        }
        (row * row_len, keys)
    }

    fn flush(&mut self) {
        let inner = std::mem::take(&mut self.inner).map(signed);
        self.sum = keys::add(self.sum, mul(mul(inner, self.piece.1), self.row.1));
        self.room = ROOM;
    }

    /// Returns the digest of the new elements less that of the old ones.
    pub fn finish(mut self) -> SumDigest {
        self.flush();
        SumDigest::from_lanes(self.sum)
    }
}

#[cfg(test)]
mod tests;
