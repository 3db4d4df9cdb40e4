//! The elements' own bits by byte planes (spec, values/planes.md).

use crate::bits::Cursor;
use crate::block::Stored;
use crate::block::values::floats::has_padding;
use crate::block::values::{Content, Facts, Kind, Structure, Validated, ValueSpace, ValuesId};
use crate::codes::{Coder, Decoder, Role, SymbolPlan, read_symbols, validate_ints};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;
use crate::tensor::Dtype;

/// The elements' own bits, byte plane by byte plane, entropy coded.
#[derive(Debug, Clone, PartialEq)]
pub struct Planes {
    /// `m` elements of the tensor's type in little-endian bytes.
    pub bytes: Vec<u8>,
}

impl Kind for Planes {
    const ID: ValuesId = ValuesId(9);
    const NAME: &'static str = "planes";

    fn facts(&self) -> Facts<'_> {
        let (content, len) = (Content::Elements(Stored::Source, &self.bytes), self.bytes.len() as u64);
        Facts { content, structure: Structure::Flat, weight: len, memory: len }
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        let bytes = &self.bytes;
        if space.dtype.bytes_for(space.count) != Some(bytes.len() as u64)
            || has_padding(space.dtype, space.count, bytes)
        {
            return Err(Error::inconsistent("bytes of planes"));
        }
        let planes = element_bytes(space.dtype);
        for plane in 0..planes {
            let symbols = plane_of(bytes, space.dtype, plane);
            // Elements of a row have similar exponents: only the top plane gains from a reference per row.
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

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let offset = cursor.offset();
        let Sizes { planes, plane_len, total } = Sizes::new(space, offset)?;
        let len = decoder.budget.reserve_items::<u8>(total, offset)?;
        let mut bytes = vec![0u8; len];
        for plane in 0..planes {
            let decoded;
            let symbols = match take_plain(cursor, plane_len)? {
                Some(symbols) => symbols,
                None => {
                    decoded = read_symbols(cursor, decoder, plane_len, 255)?;
                    decoded.as_slice()
                }
            };
            put_plane(&mut bytes, space.dtype, plane, symbols);
        }
        if has_padding(space.dtype, space.count, &bytes) {
            return Err(Error::format(FormatErrorKind::NonzeroPadding, offset));
        }
        Ok(Self { bytes })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        let Sizes { planes, plane_len, total } = Sizes::new(space, cursor.offset())?;
        for _ in 0..planes {
            if take_plain(cursor, plane_len)?.is_none() {
                validate_ints(cursor, plane_len)?;
            }
        }
        Ok(Validated::bits(total))
    }
}

/// Sizes of the planes of some elements.
struct Sizes {
    planes: usize,
    /// Bytes of a plane.
    plane_len: u64,
    /// Bytes of all elements.
    total: u64,
}

impl Sizes {
    fn new(space: &ValueSpace<'_>, offset: u64) -> Result<Self> {
        let planes = element_bytes(space.dtype);
        let too_long = || Error::format(FormatErrorKind::LengthMismatch { field: "planes" }, offset);
        let total = space.dtype.bytes_for(space.count).ok_or_else(too_long)?;
        Ok(Self { planes, plane_len: total / planes as u64, total })
    }
}

/// Takes the flag of a plane, and its bytes if they are stored without a code.
fn take_plain<'a>(cursor: &mut Cursor<'a>, plane_len: u64) -> Result<Option<&'a [u8]>> {
    match cursor.u8_in("coded", 0, 1)? {
        0 => Ok(Some(cursor.take(plane_len)?)),
        _ => Ok(None),
    }
}

/// Number of planes: the bytes of an element, or of a pair of 4-bit elements.
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
    // After a rotation to the left by one bit, a byte holds its own low seven bits shifted up, and below them
    // the top bit of the next lower byte. The lowest byte takes the sign, which is the top bit of the highest
    // byte.
    let below = (plane + size - 1) % size;
    bytes.chunks_exact(size).map(|e| e[plane] << 1 | e[below] >> 7).collect()
}

/// Inverse of [`plane_of`] for one plane of elements that begin as zeros.
fn put_plane(bytes: &mut [u8], dtype: Dtype, plane: usize, symbols: &[u8]) {
    let size = element_bytes(dtype);
    if rotates(dtype) {
        let below = (plane + size - 1) % size;
        for (element, &symbol) in bytes.chunks_exact_mut(size).zip(symbols) {
            element[plane] |= symbol >> 1;
            element[below] |= symbol << 7;
        }
    } else {
        bytes.iter_mut().skip(plane).step_by(size).zip(symbols).for_each(|(b, &s)| *b = s);
    }
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
