//! The elements' own bits by byte planes (spec, values/planes.md).

use crate::bits::Cursor;
use crate::block::Values;
use crate::block::values::ValueSpace;
use crate::codes::{Coder, Decoder, Role, SymbolPlan, read_symbols, skim_ints};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;
use crate::tensor::Dtype;

/// Bytes of an element in a plane's view: 4-bit elements count by pairs.
fn element_bytes(dtype: Dtype) -> usize {
    in_memory((dtype.bits() / 8).max(1).into())
}

/// Whether the sign bit is moved to the low end.
fn rotates(dtype: Dtype) -> bool {
    dtype.is_float() && dtype.bits() >= 16
}

/// The bytes of significance `plane` of all elements.
fn plane_of(bytes: &[u8], dtype: Dtype, plane: usize) -> Vec<u8> {
    let size = element_bytes(dtype);
    if !rotates(dtype) {
        return bytes.iter().skip(plane).step_by(size).copied().collect();
    }
    // Rotated left by one bit, a byte holds the seven low bits of the one below its top bit's: itself shifted up, and the
    // top bit of the byte below; the lowest takes the sign, the top bit of the highest.
    let below = (plane + size - 1) % size;
    bytes.chunks_exact(size).map(|e| e[plane] << 1 | e[below] >> 7).collect()
}

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    bytes: &[u8],
    space: &ValueSpace<'_>,
) -> Result<()> {
    let padded = space.dtype.bits() == 4 && space.count % 2 == 1 && bytes.last().is_some_and(|b| b >> 4 != 0);
    if space.dtype.bytes_for(space.count) != Some(bytes.len() as u64) || padded {
        return Err(Error::inconsistent("bytes of planes"));
    }
    let planes = element_bytes(space.dtype);
    for plane in 0..planes {
        let symbols = plane_of(bytes, space.dtype, plane);
        // Rows share a scale, and scales are exponents: only the top plane has something to refer to.
        let row_lens = if plane + 1 == planes && space.dtype.is_float() { space.row_lens } else { &[] };
        match SymbolPlan::new(coder, &symbols, row_lens) {
            plan if symbols.is_empty() || matches!(plan, SymbolPlan::Packed(8)) => {
                out.push(0);
                out.extend_from_slice(&symbols);
            }
            plan => {
                out.push(1);
                plan.write(out, coder, Role::Plane((planes - 1 - plane) as u8), &symbols);
            }
        }
    }
    Ok(())
}

/// Goes over the planes without decoding them; how many bytes the elements have.
pub(super) fn skim(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<u64> {
    let (offset, size) = (cursor.offset(), element_bytes(space.dtype));
    let too_long = || Error::format(FormatErrorKind::LengthMismatch { field: "planes" }, offset);
    let total = space.dtype.bytes_for(space.count).ok_or_else(too_long)?;
    for _ in 0..size {
        match cursor.u8_in("coded", 0, 1)? {
            0 => _ = cursor.take(total / size as u64)?,
            _ => skim_ints(cursor, total / size as u64)?,
        }
    }
    Ok(total)
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let offset = cursor.offset();
    let size = element_bytes(space.dtype);
    let too_long = || Error::format(FormatErrorKind::LengthMismatch { field: "planes" }, offset);
    let total = space.dtype.bytes_for(space.count).ok_or_else(too_long)?;
    let symbols_len = total / size as u64;
    let len = decoder.budget.reserve_items::<u8>(total, offset)?;
    let mut bytes = vec![0u8; len];
    for plane in 0..size {
        let symbols;
        let symbols = match cursor.u8_in("coded", 0, 1)? {
            0 => cursor.take(symbols_len)?,
            _ => {
                symbols = read_symbols(cursor, decoder, symbols_len, 255)?;
                symbols.as_slice()
            }
        };
        if rotates(space.dtype) {
            let below = (plane + size - 1) % size;
            for (element, &symbol) in bytes.chunks_exact_mut(size).zip(symbols) {
                element[plane] |= symbol >> 1;
                element[below] |= symbol << 7;
            }
        } else {
            bytes.iter_mut().skip(plane).step_by(size).zip(symbols).for_each(|(b, &s)| *b = s);
        }
    }
    if space.dtype.bits() == 4 && space.count % 2 == 1 && bytes.last().is_some_and(|b| b >> 4 != 0) {
        return Err(Error::format(FormatErrorKind::NonzeroPadding, offset));
    }
    Ok(Values::Planes { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sign_goes_to_the_lowest_bit() {
        let x = (-1.5f32).to_le_bytes();
        let rotated = (-1.5f32).to_bits().rotate_left(1).to_le_bytes();
        for (plane, byte) in rotated.into_iter().enumerate() {
            assert_eq!(plane_of(&x, Dtype::F32, plane), [byte]);
        }
        assert_eq!(plane_of(&[1, 2, 3, 4], Dtype::U16, 1), [2, 4]);
    }
}
