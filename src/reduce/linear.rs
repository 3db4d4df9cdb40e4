//! Numbers that may be added, in types that hold their sums.

use crate::block::values::{Content, to_number};
use crate::block::{Floats, Stored, Values};
use crate::error::{Error, Result};
use crate::tensor::Dtype;
use crate::tensor::element::{bits_at, decode_f32s, encode_f32s, set_bits_at};

/// Numbers of a block or of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Linear {
    F32(Vec<f32>),
    F64(Vec<f64>),
    /// Integers of any type: a sum of 2^63 of them fits.
    Int(Vec<i128>),
}

/// Replaces every NaN by the one NaN of the spec: processors choose different ones.
pub(super) fn quiet(x: f64) -> f64 {
    if x.is_nan() { f64::from(f32::from_bits(0x7fc0_0000)) } else { x }
}

fn add_f32(a: f32, b: f32) -> f32 {
    to_number(f64::from(a + b))
}

fn is_int(dtype: Dtype) -> bool {
    !dtype.is_float() && dtype != Dtype::Bool
}

/// Returns element `index` of an integer type.
fn int_at(dtype: Dtype, bytes: &[u8], index: u64) -> i128 {
    let bits = bits_at(dtype, bytes, index).unwrap_or(0);
    let spare = 64 - dtype.bits();
    match dtype {
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => i128::from(bits),
        _ => i128::from((bits << spare) as i64 >> spare),
    }
}

impl Linear {
    /// Reads `count` elements of this type.
    pub(super) fn of_elements(dtype: Dtype, bytes: &[u8], count: usize) -> Result<Self> {
        match dtype {
            Dtype::F64 => {
                let elements = bytes.as_chunks::<8>().0.iter();
                Ok(Self::F64(elements.map(|b| f64::from_le_bytes(*b)).collect()))
            }
            _ if dtype.is_float() => {
                let mut numbers = vec![0.0; count];
                decode_f32s(dtype, bytes, 0, &mut numbers)?;
                Ok(Self::F32(numbers))
            }
            _ if is_int(dtype) => Ok(Self::Int((0..count as u64).map(|i| int_at(dtype, bytes, i)).collect())),
            _ => Err(Error::cannot_reduce("bool tensors have no sum")),
        }
    }

    /// Reads the `count` values of a block over elements of this type.
    pub(super) fn of_values(values: &Values, dtype: Dtype, count: u64) -> Result<Self> {
        let (stored, bytes) = match values.facts().content {
            Content::Elements(stored, bytes) => (stored, bytes),
            Content::Ulps(_) => {
                return Err(Error::cannot_reduce("differences in the last place depend on the base"));
            }
            Content::Numbers { no_sum } => return Err(Error::cannot_reduce(no_sum)),
        };
        if stored != Stored::Source && !dtype.is_float() {
            return Err(Error::inconsistent("numbers for elements that are not floats"));
        }
        let as_type = stored.dtype(dtype);
        if as_type.bytes_for(count) != Some(bytes.len() as u64) {
            return Err(Error::inconsistent("number of floats"));
        }
        Self::of_elements(as_type, bytes, usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Adds `other`, element by element; f32 and f64 give f64.
    pub(super) fn add(self, other: Self) -> Result<Self> {
        Ok(match (self, other) {
            (Self::F32(mut a), Self::F32(b)) => {
                a.iter_mut().zip(b).for_each(|(a, b)| *a = add_f32(*a, b));
                Self::F32(a)
            }
            (Self::Int(mut a), Self::Int(b)) => {
                a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
                Self::Int(a)
            }
            (Self::Int(_), _) | (_, Self::Int(_)) => {
                return Err(Error::inconsistent("integers and floats are mixed"));
            }
            (a, b) => {
                let (mut a, b) = (a.into_f64(), b.into_f64());
                a.iter_mut().zip(b).for_each(|(a, b)| *a = quiet(*a + b));
                Self::F64(a)
            }
        })
    }

    /// Appends `other`; f32 and f64 give f64.
    pub(super) fn concat(self, other: Self) -> Result<Self> {
        Ok(match (self, other) {
            (Self::F32(mut a), Self::F32(b)) => {
                a.extend(b);
                Self::F32(a)
            }
            (Self::Int(mut a), Self::Int(b)) => {
                a.extend(b);
                Self::Int(a)
            }
            (Self::Int(_), _) | (_, Self::Int(_)) => {
                return Err(Error::inconsistent("integers and floats are mixed"));
            }
            (a, b) => {
                let mut a = a.into_f64();
                a.extend(b.into_f64());
                Self::F64(a)
            }
        })
    }

    fn into_f64(self) -> Vec<f64> {
        match self {
            Self::F32(x) => x.into_iter().map(f64::from).collect(),
            Self::F64(x) => x,
            Self::Int(x) => x.into_iter().map(|x| x as f64).collect(),
        }
    }

    /// Converts to a block's values over elements of type `dtype`: in that type if that is exact, else as
    /// 32-bit floats.
    pub(super) fn into_values(self, dtype: Dtype) -> Result<Values> {
        match (&self, dtype) {
            (Self::F32(_), Dtype::F32) | (Self::F64(_), Dtype::F64) | (Self::Int(_), _) => {
                Ok(Values::Floats(Floats { stored: Stored::Source, bytes: self.to_elements(dtype)? }))
            }
            _ => Ok(Values::Floats(Floats { stored: Stored::F32, bytes: self.to_elements(Dtype::F32)? })),
        }
    }

    /// Converts to elements of this type, rounded to nearest, ties to even.
    pub(super) fn to_elements(&self, dtype: Dtype) -> Result<Vec<u8>> {
        let mut bytes = vec![0; dtype.bytes_for(self.len() as u64).unwrap_or(0) as usize];
        match (self, dtype) {
            (Self::F64(x), Dtype::F64) => {
                for (b, x) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(x) {
                    *b = x.to_le_bytes();
                }
            }
            (Self::F64(x), _) => {
                let rounded: Vec<f32> = x.iter().map(|x| to_number(*x)).collect();
                encode_f32s(dtype, &rounded, 0, &mut bytes)?;
            }
            (Self::F32(x), _) => encode_f32s(dtype, x, 0, &mut bytes)?,
            (Self::Int(x), _) => {
                for (i, &x) in x.iter().enumerate() {
                    set_bits_at(dtype, &mut bytes, i as u64, x as u64);
                    if int_at(dtype, &bytes, i as u64) != x {
                        return Err(Error::cannot_reduce("the sum does not fit the tensor's integer type"));
                    }
                }
            }
        }
        Ok(bytes)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::F64(x) => x.len(),
            Self::Int(x) => x.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Block, IndexSpace, Scope, Sets, Sparse, Support};
    use crate::error::InputErrorKind;
    use crate::reduce::{add, merge};

    /// Adds two values of two blocks. [`add`] and [`merge`] give the same.
    fn sum(dtype: Dtype, a: (Stored, Vec<u8>), b: (Stored, Vec<u8>)) -> Result<Values> {
        let space = IndexSpace::flat(dtype, 2);
        let [a, b] = [a, b].map(|(stored, bytes)| Block {
            scope: Scope::Tensor(0),
            add: false,
            support: Support::Sparse(Sparse { positions: vec![0, 1] }),
            values: Values::Floats(Floats { stored, bytes }),
        });
        let added = add(&a, &b, &space, &Sets::new())?;
        assert_eq!(merge(&[&a, &b], &space)?, added, "{dtype}");
        Ok(added.values)
    }

    fn f32s(values: [f32; 2]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn f64s(values: [f64; 2]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    #[test]
    fn integers_and_wide_floats_are_added_in_their_types() {
        let i32s = |values: [i32; 2]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let (source, narrow) = (Stored::Source, Stored::F32);
        // The one NaN of the spec replaces the NaN of a sender.
        let (nan, other_nan) = (f64::from_bits(0x7ff8 << 48), f64::from_bits(0xfff8 << 48 | 1));
        let (wide, mixed) = ([0.1, 1e300], [0.1 + 0.25, 3.0]);
        for (dtype, a, b, expected) in [
            (Dtype::I32, (source, i32s([7, -2])), (source, i32s([5, 100])), i32s([12, 98])),
            (Dtype::F64, (source, f64s(wide)), (source, f64s([0.2, other_nan])), f64s([0.1 + 0.2, nan])),
            (Dtype::F64, (source, f64s([0.1, 1.0])), (narrow, f32s([0.25, 2.0])), f64s(mixed)),
            (Dtype::F64, (narrow, f32s([0.25, 2.0])), (source, f64s([0.1, 1.0])), f64s(mixed)),
        ] {
            let expected = Values::Floats(Floats { stored: source, bytes: expected });
            assert_eq!(sum(dtype, a, b).unwrap(), expected, "{dtype}");
        }
    }

    #[test]
    fn values_without_a_sum_are_refused() {
        let kind = |dtype, stored, bytes: Vec<u8>| match sum(dtype, (stored, bytes.clone()), (stored, bytes))
            .unwrap_err()
        {
            Error::Input(e) => e.kind,
            e => panic!("{e}"),
        };
        let why = "bool tensors have no sum";
        let bools = kind(Dtype::Bool, Stored::Source, vec![1; 2]);
        assert_eq!(bools, InputErrorKind::CannotReduce { why, sender: None });
        let what = "numbers for elements that are not floats";
        let numbers = kind(Dtype::I32, Stored::F32, f32s([1.0; 2]));
        assert_eq!(numbers, InputErrorKind::InconsistentBlock { what });
    }
}
