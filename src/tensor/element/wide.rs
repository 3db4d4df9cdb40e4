//! Conversions of every element type to `f64`.

use crate::error::{Error, InputErrorKind, Result};
use crate::limits::in_memory;
use crate::tensor::Dtype;
use crate::tensor::element::decode_f32s;

/// Converts the elements `start .. start + out.len()` of `data` to `f64`: floats exactly, 64-bit integers to
/// the nearest, bools to 0 and 1.
///
/// # Errors
/// [`Error::Input`] if `data` is too short.
pub fn decode_f64s(dtype: Dtype, data: &[u8], start: u64, out: &mut [f64]) -> Result<()> {
    match dtype {
        Dtype::F64 => each(data, start, out, f64::from_le_bytes),
        Dtype::F32 => each(data, start, out, |b| f32::from_le_bytes(b).into()),
        Dtype::I8 => each(data, start, out, |b| i8::from_le_bytes(b).into()),
        Dtype::I16 => each(data, start, out, |b| i16::from_le_bytes(b).into()),
        Dtype::I32 => each(data, start, out, |b| i32::from_le_bytes(b).into()),
        Dtype::I64 => each(data, start, out, |b| i64::from_le_bytes(b) as f64),
        Dtype::U8 | Dtype::Bool => each(data, start, out, |[b]| b.into()),
        Dtype::U16 => each(data, start, out, |b| u16::from_le_bytes(b).into()),
        Dtype::U32 => each(data, start, out, |b| u32::from_le_bytes(b).into()),
        Dtype::U64 => each(data, start, out, |b| u64::from_le_bytes(b) as f64),
        _ => {
            // Every float of 16 bits or fewer is exact as f32.
            let mut numbers = [0.0; 256];
            let mut at = start;
            for out in out.chunks_mut(numbers.len()) {
                let numbers = &mut numbers[..out.len()];
                decode_f32s(dtype, data, at, numbers)?;
                at = at.saturating_add(out.len() as u64);
                out.iter_mut().zip(numbers).for_each(|(out, number)| *out = (*number).into());
            }
            Ok(())
        }
    }
}

/// Converts elements of `N` bytes.
#[inline]
fn each<const N: usize>(
    data: &[u8],
    start: u64,
    out: &mut [f64],
    value: impl Fn([u8; N]) -> f64,
) -> Result<()> {
    let elements = data.as_chunks::<N>().0;
    let first = in_memory(start);
    let elements = first.checked_add(out.len()).and_then(|end| elements.get(first..end));
    let elements = elements.ok_or(Error::input(InputErrorKind::LengthMismatch {
        expected: start.saturating_add(out.len() as u64).saturating_mul(N as u64),
        found: data.len() as u64,
    }))?;
    out.iter_mut().zip(elements).for_each(|(out, bytes)| *out = value(*bytes));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::element::{encode_f32s, set_bits_at};

    #[test]
    fn every_type_and_every_part() {
        for dtype in Dtype::ALL {
            let mut data = vec![0; dtype.bytes_for(600).unwrap() as usize];
            let expected: Vec<f64> = (0..600).map(|i| f64::from(i % 2)).collect();
            for (i, value) in expected.iter().enumerate() {
                match dtype.is_float() {
                    true => encode_f32s(dtype, &[*value as f32], i as u64, &mut data).unwrap(),
                    false => set_bits_at(dtype, &mut data, i as u64, *value as u64).unwrap(),
                }
            }
            for (start, len) in [(0, 600), (1, 599), (300, 20), (600, 0)] {
                let mut out = vec![9.0; len];
                decode_f64s(dtype, &data, start as u64, &mut out).unwrap();
                assert_eq!(out, expected[start..start + len], "{dtype} {start}");
            }
            assert!(decode_f64s(dtype, &data, 599, &mut [0.0; 2]).is_err());
            assert!(decode_f64s(dtype, &data, u64::MAX, &mut [0.0; 2]).is_err());
        }
        let mut one = [0.0];
        decode_f64s(Dtype::I8, &[0x80], 0, &mut one).unwrap();
        assert_eq!(one, [-128.0]);
    }
}
