//! The sum of one tensor, or of a part of it.

use rayon::prelude::*;

use super::linear::{Linear, quiet};
use super::sum::Precision;
use crate::arch::spare::Spare;
use crate::arch::{self, Kernel};
use crate::block::values::to_number;
use crate::block::{Floats, Stored, Values};
use crate::error::{Error, Result};
use crate::limits::in_memory;
use crate::tensor::Dtype;

/// A sum of elements.
#[derive(Debug, Clone)]
pub(super) enum Total {
    /// Elements of an f32 tensor; or as f32, of a tensor of narrower floats whose updates are all sparse.
    Elements(Vec<u8>),
    Numbers(Linear),
}

/// Elements that are summed in one step.
const STEP: usize = 1 << 16;

impl Total {
    /// Returns the bytes of an accumulator for each element.
    ///
    /// # Errors
    /// [`InputErrorKind::CannotReduce`](crate::error::InputErrorKind::CannotReduce) for a type without sums.
    pub(super) fn width(dtype: Dtype, precision: Precision, mean: bool) -> Result<u64> {
        match (dtype, precision) {
            (Dtype::Bool, _) => Err(Error::cannot_reduce("bool tensors have no sum")),
            _ if !dtype.is_float() && mean => {
                Err(Error::cannot_reduce("integers have no mean in their type"))
            }
            _ if !dtype.is_float() => Ok(16),
            (Dtype::F64, _) | (_, Precision::F64) => Ok(8),
            _ => Ok(4),
        }
    }

    /// Number of elements.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Elements(data) => data.len() as u64 / 4,
            Self::Numbers(sum) => sum.len() as u64,
        }
    }

    /// Returns `count` zeros, in the memory of `spare` if they are kept as elements.
    pub(super) fn zeros(dtype: Dtype, precision: Precision, count: usize, spare: &mut Spare) -> Self {
        match (dtype, precision) {
            (Dtype::F32, Precision::F32) => Self::Elements(spare.zeros(4 * count)),
            _ if !dtype.is_float() => Self::Numbers(Linear::Int(vec![0; count])),
            (Dtype::F64, _) | (_, Precision::F64) => Self::Numbers(Linear::F64(vec![0.0; count])),
            _ => Self::Numbers(Linear::F32(vec![0.0; count])),
        }
    }

    /// Adds `weight` times the elements of `update`.
    pub(super) fn add(&mut self, dtype: Dtype, update: &[u8], weight: f64) -> Result<()> {
        match self {
            Self::Elements(sum) => add_elements(sum, update, weight),
            Self::Numbers(sum) => {
                // A step at a time: the numbers of all elements would take as much memory as the sum.
                let step = dtype.bytes_for(STEP as u64).map_or(usize::MAX, in_memory);
                for (at, part) in (0..sum.len()).step_by(STEP).zip(update.chunks(step)) {
                    let count = STEP.min(sum.len() - at);
                    sum.accumulate(at, Linear::of_elements(dtype, part, count)?, weight);
                }
            }
        }
        Ok(())
    }

    pub(super) fn divide(&mut self, by: f64) {
        match self {
            Self::Elements(sum) => divide_elements(sum, by),
            Self::Numbers(sum) => sum.divide(by),
        }
    }

    /// Returns `len` of the elements from `start` on.
    pub(super) fn slice(&self, start: u64, len: u64) -> Self {
        let (start, end) = (in_memory(start), in_memory(start + len));
        match self {
            Self::Elements(data) => Self::Elements(data[4 * start..4 * end].to_vec()),
            Self::Numbers(Linear::F32(x)) => Self::Numbers(Linear::F32(x[start..end].to_vec())),
            Self::Numbers(Linear::F64(x)) => Self::Numbers(Linear::F64(x[start..end].to_vec())),
            Self::Numbers(Linear::Int(x)) => Self::Numbers(Linear::Int(x[start..end].to_vec())),
        }
    }

    /// Returns the elements, rounded to nearest, ties to even.
    pub(super) fn into_elements(self, dtype: Dtype) -> Result<Vec<u8>> {
        match self {
            Self::Elements(data) if dtype == Dtype::F32 => Ok(data),
            Self::Elements(data) => {
                Linear::of_elements(Dtype::F32, &data, data.len() / 4)?.to_elements(dtype)
            }
            Self::Numbers(sum) => sum.to_elements(dtype),
        }
    }

    /// Returns the values of a dense block. Narrow floats are stored as f32, so that such sums can be summed
    /// again.
    pub(super) fn into_values(self, dtype: Dtype) -> Result<Values> {
        match self {
            Self::Elements(bytes) => {
                let stored = if dtype == Dtype::F32 { Stored::Source } else { Stored::F32 };
                Ok(Values::Floats(Floats { stored, bytes }))
            }
            Self::Numbers(sum) => sum.into_values(dtype),
        }
    }
}

/// Adds `weight` times the f32 elements of `update`.
fn add_elements(sum: &mut [u8], update: &[u8], weight: f64) {
    sum.par_chunks_mut(4 * STEP)
        .zip(update.par_chunks(4 * STEP))
        .for_each(|(sum, update)| arch::run(Add { sum, update, weight }));
}

struct Add<'a> {
    sum: &'a mut [u8],
    update: &'a [u8],
    weight: f64,
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { sum, update, weight } = self;
        let pairs = sum.as_chunks_mut::<4>().0.iter_mut().zip(update.as_chunks::<4>().0);
        let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        let add = |a: &mut [u8; 4], b: f32| {
            *a = to_number(f64::from(f32::from_le_bytes(*a) + b)).to_le_bytes();
        };
        match weight {
            1.0 => pairs.for_each(|(a, b)| add(a, number(b))),
            _ => pairs.for_each(|(a, b)| add(a, (weight * f64::from(number(b))) as f32)),
        }
    }
}

/// Divides f32 elements.
fn divide_elements(sum: &mut [u8], by: f64) {
    sum.as_chunks_mut::<4>().0.par_chunks_mut(STEP).for_each(|sum| divide(sum, by));
}

/// Divides f32 elements, each as [`to_number`] rounds the quotient of binary64.
pub(super) fn divide(sum: &mut [[u8; 4]], by: f64) {
    let (narrow, inverse) = (by as f32, 1.0 / by as f32);
    let is_exact = f64::from(narrow) == by;
    // A quotient of numbers of 24 bits is never so near to the middle of two such numbers that binary64
    // rounds it to the middle: one division of binary32 gives the same. By a power of two, as the number of
    // senders often is, the product with its inverse is the same number in less time.
    match is_exact && inverse.is_normal() && by.to_bits() << 12 == 0 {
        true => arch::run(Map { sum, map: |x| to_number(f64::from(x * inverse)) }),
        false if is_exact => arch::run(Map { sum, map: |x| to_number(f64::from(x / narrow)) }),
        false => arch::run(Map { sum, map: |x| to_number(f64::from(x) / by) }),
    }
}

/// Replaces f32 elements by functions of them.
struct Map<'a, F> {
    sum: &'a mut [[u8; 4]],
    map: F,
}

impl<F: Fn(f32) -> f32> Kernel for Map<'_, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.sum.iter_mut().for_each(|x| *x = (self.map)(f32::from_le_bytes(*x)).to_le_bytes());
    }
}

impl Linear {
    /// Adds `weight` times `other` to the numbers from `at` on.
    fn accumulate(&mut self, at: usize, other: Self, weight: f64) {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) if weight == 1.0 => {
                a[at..].iter_mut().zip(b).for_each(|(a, b)| *a = to_number(f64::from(*a + b)));
            }
            (Self::F32(a), Self::F32(b)) => {
                let scaled = b.into_iter().map(|b| (weight * f64::from(b)) as f32);
                a[at..].iter_mut().zip(scaled).for_each(|(a, b)| *a = to_number(f64::from(*a + b)));
            }
            (Self::Int(a), Self::Int(b)) => a[at..].iter_mut().zip(b).for_each(|(a, b)| *a += b),
            (Self::F64(a), Self::F32(b)) => {
                a[at..].iter_mut().zip(b).for_each(|(a, b)| *a = quiet(*a + weight * f64::from(b)));
            }
            (Self::F64(a), Self::F64(b)) => {
                a[at..].iter_mut().zip(b).for_each(|(a, b)| *a = quiet(*a + weight * b));
            }
            (_, _) => debug_assert!(false, "an accumulator is of its tensor's kind"),
        }
    }

    fn divide(&mut self, by: f64) {
        match self {
            Self::F32(x) => x.iter_mut().for_each(|x| *x = to_number(f64::from(*x) / by)),
            Self::F64(x) => x.iter_mut().for_each(|x| *x = quiet(*x / by)),
            Self::Int(_) => debug_assert!(false, "integers have no mean"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn a_division_gives_the_quotient_rounded_once() {
        let numbers: Vec<u32> = (0..5000).map(|i| random::word(3, 0, i) << 1 | (i as u32 & 1)).collect();
        let powers =
            [1, 2, 10, -1, 127, 128, 140, -126, -130, -149, -150].map(|exponent| 2f64.powi(exponent));
        let exact =
            [3.0, 6.0, 6.5, 7.0, 4097.0, f64::from(f32::MAX), f64::from(0.1f32), 3.0 * 2f64.powi(-149)];
        for by in powers.into_iter().chain(exact).chain([0.1, 1e300, 1e-50, 1.0 + f64::EPSILON]) {
            let mut sum: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            divide_elements(&mut sum, by);
            for (x, got) in numbers.iter().zip(sum.as_chunks::<4>().0) {
                let quotient = to_number(f64::from(f32::from_bits(*x)) / by);
                assert_eq!(u32::from_le_bytes(*got), quotient.to_bits(), "{x:x} / {by}");
            }
        }
    }
}
