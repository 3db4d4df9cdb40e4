//! Sum digests (spec, section 6.1).

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use crate::digest::grid::Grid;
use crate::digest::keys::{self, LANES, Lanes, P, mul};
use crate::error::{Error, Result};
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
    /// [`Error::Input`](crate::Error::Input) if `offsets` has another number of dimensions than the shard.
    pub fn of_shard(shard: TensorView<'_>, offsets: &[u64]) -> Result<Self> {
        let zeros = vec![0; shard.shape().len()];
        Ok(Self::from_lanes(Grid::new(shard, shard.shape(), &zeros, offsets)?.sum()))
    }

    /// Returns the share of a part of `whole`: of the elements of this `shape` that begin at `offsets`. They
    /// are read where they are, also if their rows do not follow each other.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if the part is not inside, or has another number of dimensions.
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

    pub(super) fn from_lanes(lanes: Lanes) -> Self {
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

impl FromStr for SumDigest {
    type Err = Error;

    /// Reads what [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    /// [`Error::Input`] if these are not 32 hexadecimal digits, or no digest has these bytes.
    fn from_str(text: &str) -> Result<Self> {
        let bad =
            || Error::bad_option("sum digest: not 32 hexadecimal digits of four numbers below 2^31 - 1");
        let digits = text.chars().map(|c| c.to_digit(16)).collect::<Option<Vec<u32>>>().ok_or_else(bad)?;
        let bytes = digits.as_chunks::<2>().0.iter().map(|[high, low]| (16 * high + low) as u8);
        let bytes: Vec<u8> = bytes.collect();
        let bytes = bytes.try_into().ok().filter(|_| digits.len() == 32).ok_or_else(bad)?;
        Self::from_bytes(bytes).ok_or_else(bad)
    }
}

impl fmt::Debug for SumDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
