//! Exact conversions of elements: bit patterns of every element type to and from `f32`, and the order that
//! defines differences in units in the last place (ULP).
//!
//! Every conversion rounds to nearest, ties to even. Overflow beyond the largest finite value depends on the
//! type: infinity in f16, bf16 and f8e5m2; NaN in f8e4m3fn and the two `fnuz` types; the largest value in
//! f4e2m1, which has neither.

mod halves;
pub(crate) mod small;
mod wide;

pub use wide::decode_f64s;

use half::{bf16, f16};

use crate::arch;
use crate::error::{Error, InputErrorKind, Result};
use crate::limits::in_memory;
use crate::tensor::element::halves::Each;
use crate::tensor::element::small::{F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, Overflow};
use crate::tensor::{Dtype, TensorView};

impl TensorView<'_> {
    /// Converts the elements to `f32`. The conversion is exact except from f64.
    ///
    /// # Errors
    /// [`Error::Input`] if the element type is not a float.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let mut out = vec![0.0; in_memory(self.elements())];
        decode_f32s(self.dtype(), self.data(), 0, &mut out)?;
        Ok(out)
    }
}

/// Converts the elements `start .. start + out.len()` of `data` to `f32`. The conversion is exact except from
/// f64.
///
/// # Errors
/// [`Error::Input`] if `dtype` is not a float, or if `data` is too short.
pub fn decode_f32s(dtype: Dtype, data: &[u8], start: u64, out: &mut [f32]) -> Result<()> {
    float_only(dtype)?;
    let bytes = data.get(byte_range(dtype, start, out.len(), data.len())?).unwrap_or_default();
    match dtype {
        Dtype::F32 => {
            for (x, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*b);
            }
        }
        Dtype::F64 => {
            for (x, b) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *x = f64::from_le_bytes(*b) as f32;
            }
        }
        Dtype::Bf16 => {
            arch::run(Each { from: bytes.as_chunks().0, to: out, convert: halves::from_bf16 });
        }
        Dtype::F16 => {
            arch::run(Each { from: bytes.as_chunks().0, to: out, convert: halves::from_f16 });
        }
        Dtype::F4E2M1 => {
            let odd = in_memory(start % 2);
            for (i, x) in out.iter_mut().enumerate() {
                let nibble = bytes[(i + odd) / 2] >> (4 * ((i + odd) % 2));
                *x = TABLES[4][usize::from(nibble & 15)];
            }
        }
        _ => {
            let table = &TABLES[usize::from(dtype.id() - Dtype::F8E4M3Fn.id())];
            for (x, &b) in out.iter_mut().zip(bytes) {
                *x = table[usize::from(b)];
            }
        }
    }
    Ok(())
}

/// Converts `values` into the elements `start .. start + values.len()` of `data`.
///
/// # Errors
/// [`Error::Input`] if `dtype` is not a float, or if `data` is too short.
pub fn encode_f32s(dtype: Dtype, values: &[f32], start: u64, data: &mut [u8]) -> Result<()> {
    float_only(dtype)?;
    let range = byte_range(dtype, start, values.len(), data.len())?;
    let bytes = data.get_mut(range).unwrap_or_default();
    match dtype {
        Dtype::F32 => {
            for (x, b) in values.iter().zip(bytes.as_chunks_mut::<4>().0) {
                *b = x.to_le_bytes();
            }
        }
        Dtype::F64 => {
            for (x, b) in values.iter().zip(bytes.as_chunks_mut::<8>().0) {
                *b = f64::from(*x).to_le_bytes();
            }
        }
        Dtype::Bf16 => {
            arch::run(Each { from: values, to: bytes.as_chunks_mut().0, convert: halves::to_bf16 });
        }
        Dtype::F16 => {
            arch::run(Each { from: values, to: bytes.as_chunks_mut().0, convert: halves::to_f16 });
        }
        Dtype::F4E2M1 => {
            let odd = in_memory(start % 2);
            for (i, x) in values.iter().enumerate() {
                let (byte, shift) = (&mut bytes[(i + odd) / 2], 4 * ((i + odd) % 2));
                *byte = *byte & !(15 << shift) | small::encode(F4E2M1, *x, Overflow::Saturate) << shift;
            }
        }
        _ => {
            let (float, overflow) = match dtype {
                Dtype::F8E4M3Fn => (F8E4M3FN, Overflow::NaN),
                Dtype::F8E5M2 => (F8E5M2, Overflow::Infinity),
                Dtype::F8E4M3Fnuz => (F8E4M3FNUZ, Overflow::NaN),
                _ => (F8E5M2FNUZ, Overflow::NaN),
            };
            for (x, b) in values.iter().zip(bytes) {
                *b = small::encode(float, *x, overflow);
            }
        }
    }
    Ok(())
}

/// Rounds `values` to what a tensor of this type can hold.
///
/// # Errors
/// [`Error::Input`] if `dtype` is not a float.
pub fn round_f32s(dtype: Dtype, values: &mut [f32]) -> Result<()> {
    if matches!(dtype, Dtype::F32 | Dtype::F64) {
        return Ok(());
    }
    let mut bytes = vec![0; in_memory(dtype.bytes_for(values.len() as u64).unwrap_or(0))];
    encode_f32s(dtype, values, 0, &mut bytes)?;
    decode_f32s(dtype, &bytes, 0, values)
}

/// Returns the largest finite `f32` that elements of this type can hold; for an integer type, that of f32.
pub fn max_finite(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F16 => f16::MAX.to_f32(),
        Dtype::Bf16 => bf16::MAX.to_f32(),
        Dtype::F8E4M3Fn => F8E4M3FN.decode(F8E4M3FN.max),
        Dtype::F8E5M2 => F8E5M2.decode(F8E5M2.max),
        Dtype::F8E4M3Fnuz => F8E4M3FNUZ.decode(F8E4M3FNUZ.max),
        Dtype::F8E5M2Fnuz => F8E5M2FNUZ.decode(F8E5M2FNUZ.max),
        Dtype::F4E2M1 => F4E2M1.decode(F4E2M1.max),
        _ => f32::MAX,
    }
}

/// Returns the bit pattern of element `index`; `None` past the end.
pub fn bits_at(dtype: Dtype, data: &[u8], index: u64) -> Option<u64> {
    if dtype.bits() == 4 {
        let byte = *data.get(usize::try_from(index / 2).ok()?)?;
        return Some(u64::from(byte >> (4 * (index % 2)) & 15));
    }
    let width = in_memory(dtype.bits().into()) / 8;
    let at = usize::try_from(index).ok()?.checked_mul(width)?;
    let mut word = [0; 8];
    word[..width].copy_from_slice(data.get(at..at.checked_add(width)?)?);
    Some(u64::from_le_bytes(word))
}

/// Returns the bit pattern of an element of `SIZE` bytes, at most 8.
#[inline(always)]
pub(crate) fn bits_of<const SIZE: usize>(element: &[u8; SIZE]) -> u64 {
    let mut bits = [0; 8];
    bits[..SIZE].copy_from_slice(element);
    u64::from_le_bytes(bits)
}

/// Sets the bit pattern of element `index` to the low bits of `bits`; `None` past the end.
pub fn set_bits_at(dtype: Dtype, data: &mut [u8], index: u64, bits: u64) -> Option<()> {
    if dtype.bits() == 4 {
        let (byte, shift) = (data.get_mut(usize::try_from(index / 2).ok()?)?, 4 * (index % 2));
        *byte = *byte & !(15 << shift) | (bits as u8 & 15) << shift;
        return Some(());
    }
    let width = in_memory(dtype.bits().into()) / 8;
    let at = usize::try_from(index).ok()?.checked_mul(width)?;
    data.get_mut(at..at.checked_add(width)?)?.copy_from_slice(&bits.to_le_bytes()[..width]);
    Some(())
}

/// The order of all bit patterns of a type ([`ordered`]).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranks {
    /// The bits of an element.
    mask: u64,
    /// The sign of a float; 0 for other types.
    sign: u64,
    /// Bits of 64 that an element does not have.
    spare: u32,
}

impl Ranks {
    pub(crate) fn new(dtype: Dtype) -> Self {
        let spare = 64 - dtype.bits();
        let sign = if dtype.is_float() { 1 << (dtype.bits() - 1) } else { 0 };
        Self { mask: u64::MAX >> spare, sign, spare }
    }

    #[inline(always)]
    fn of(self, bits: u64) -> u64 {
        (if bits & self.sign != 0 { !bits } else { bits | self.sign }) & self.mask
    }

    #[inline(always)]
    fn bits(self, rank: u64) -> u64 {
        let is_upper = self.sign == 0 || rank & self.sign != 0;
        (if is_upper { rank & !self.sign } else { !rank }) & self.mask
    }

    /// Returns the rank of `new` minus the rank of `old`, modulo the number of ranks.
    #[inline(always)]
    pub(crate) fn diff(self, old: u64, new: u64) -> i64 {
        (self.of(new).wrapping_sub(self.of(old)) << self.spare) as i64 >> self.spare
    }

    /// Returns the bit pattern whose rank is `diff` above that of `old`: the inverse of [`Ranks::diff`].
    #[inline(always)]
    pub(crate) fn step(self, old: u64, diff: i64) -> u64 {
        self.bits(self.of(old).wrapping_add(diff as u64) & self.mask)
    }
}

/// Returns the rank of a bit pattern among all patterns of its type, smallest value first. Neighbouring
/// floats have neighbouring ranks, and -0 comes directly before +0. Bit patterns of integers and of bool are
/// their own ranks.
pub fn ordered(dtype: Dtype, bits: u64) -> u64 {
    Ranks::new(dtype).of(bits)
}

/// Returns the rank of `new` minus the rank of `old`, modulo the number of ranks.
pub fn ulp_diff(dtype: Dtype, old: u64, new: u64) -> i64 {
    Ranks::new(dtype).diff(old, new)
}

/// Returns the bit pattern whose rank is `diff` above that of `old`: the inverse of [`ulp_diff`].
pub fn ulp_step(dtype: Dtype, old: u64, diff: i64) -> u64 {
    Ranks::new(dtype).step(old, diff)
}

/// Decoded bit patterns of the element types from [`Dtype::F8E4M3Fn`] to [`Dtype::F4E2M1`], in the order of
/// their ids.
static TABLES: [[f32; 256]; 5] =
    [F8E4M3FN.table(), F8E5M2.table(), F8E4M3FNUZ.table(), F8E5M2FNUZ.table(), F4E2M1.table()];

fn float_only(dtype: Dtype) -> Result<()> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(Error::input(InputErrorKind::WrongDtype { what: "a conversion from or to floats" }))
}

fn byte_range(dtype: Dtype, start: u64, len: usize, found: usize) -> Result<std::ops::Range<usize>> {
    let bounds = start.checked_add(len as u64).and_then(|end| {
        let first = dtype.bytes_for(start)? - if dtype.bits() == 4 { start % 2 } else { 0 };
        Some((usize::try_from(first).ok()?, usize::try_from(dtype.bytes_for(end)?).ok()?))
    });
    match bounds {
        Some((first, end)) if end <= found => Ok(first..end),
        _ => Err(Error::input(InputErrorKind::LengthMismatch {
            expected: bounds.map_or(u64::MAX, |(_, end)| end as u64),
            found: found as u64,
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(dtype: Dtype, x: f32) -> u64 {
        let mut bytes = [0; 8];
        encode_f32s(dtype, &[x], 0, &mut bytes).unwrap();
        bits_at(dtype, &bytes, 0).unwrap()
    }

    #[test]
    fn beyond_the_largest() {
        assert_eq!([464.0, 465.0, -1e9].map(|x| one(Dtype::F8E4M3Fn, x)), [0x7e, 0x7f, 0xff]);
        assert_eq!([61439.0, 61440.0, -1e9].map(|x| one(Dtype::F8E5M2, x)), [0x7b, 0x7c, 0xfc]);
        assert_eq!([247.0, 248.0, -1e9, -0.0].map(|x| one(Dtype::F8E4M3Fnuz, x)), [0x7f, 0x80, 0x80, 0]);
        assert_eq!([1e9, -1e9, f32::NAN].map(|x| one(Dtype::F4E2M1, x)), [7, 15, 7]);
        assert_eq!(one(Dtype::F8E5M2, f32::NAN) & 0x7f, 0x7e);
        assert_eq!((one(Dtype::F16, 65520.0), one(Dtype::Bf16, f32::MAX)), (0x7c00, 0x7f80));
    }

    #[test]
    fn every_small_pattern_comes_back() {
        for dtype in Dtype::ALL.into_iter().filter(|d| d.is_float() && d.bits() <= 16) {
            let patterns = 1u64 << dtype.bits();
            let mut data = vec![0; dtype.bytes_for(patterns).unwrap() as usize];
            (0..patterns).for_each(|i| set_bits_at(dtype, &mut data, i, i).unwrap());
            let mut values = vec![0.0; patterns as usize];
            decode_f32s(dtype, &data, 0, &mut values).unwrap();
            let mut back = vec![0xa5; data.len()];
            encode_f32s(dtype, &values, 0, &mut back).unwrap();
            for i in 0..patterns {
                let nan = values[i as usize].is_nan();
                assert!(nan || bits_at(dtype, &back, i) == Some(i), "{dtype} {i:#x}");
            }
        }
    }

    #[test]
    fn parts_of_tensors() {
        for dtype in Dtype::ALL.into_iter().filter(|d| d.is_float()) {
            let values: Vec<f32> = (0..37).map(|i| (i % 4) as f32 / 2.0).collect();
            let mut data = vec![0; dtype.bytes_for(37).unwrap() as usize];
            for (start, part) in [(0usize, 5usize), (5, 20), (25, 12)] {
                encode_f32s(dtype, &values[start..start + part], start as u64, &mut data).unwrap();
            }
            for start in 0..37 {
                let mut out = vec![9.0; 37 - start];
                decode_f32s(dtype, &data, start as u64, &mut out).unwrap();
                assert_eq!(out, values[start..], "{dtype}");
            }
            assert!(decode_f32s(dtype, &data, 30, &mut [0.0; 9]).is_err());
            assert!(decode_f32s(dtype, &data, u64::MAX, &mut [0.0; 9]).is_err());
        }
        assert!(decode_f32s(Dtype::I8, &[0], 0, &mut [0.0]).is_err());
    }

    #[test]
    fn places_are_ordered_and_differences_come_back() {
        assert_eq!(ulp_diff(Dtype::F32, u64::from(1f32.to_bits()), u64::from(1f32.next_up().to_bits())), 1);
        assert_eq!(ulp_diff(Dtype::F32, 0, 0x8000_0000), -1);
        assert_eq!(ulp_diff(Dtype::I8, 0x7f, 0x80), 1);
        for dtype in Dtype::ALL.into_iter().filter(|d| d.bits() <= 8) {
            for (old, new) in
                (0..1u64 << dtype.bits()).flat_map(|a| (0..1u64 << dtype.bits()).map(move |b| (a, b)))
            {
                assert_eq!(ulp_step(dtype, old, ulp_diff(dtype, old, new)), new);
                assert_eq!(Ranks::new(dtype).bits(ordered(dtype, old)), old);
            }
        }
        for dtype in [Dtype::F64, Dtype::U64, Dtype::F16] {
            let mask = u64::MAX >> (64 - dtype.bits());
            for (old, new) in [(0, mask), (mask, 0), (mask / 3, mask / 2 + 1), (1, mask / 2)] {
                assert_eq!(ulp_step(dtype, old, ulp_diff(dtype, old, new)), new);
            }
        }
        let floats = [f32::NEG_INFINITY, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, f32::INFINITY];
        assert!(floats.map(|x| ordered(Dtype::F32, u64::from(x.to_bits()))).is_sorted_by(|a, b| a < b));
    }
}
