//! Numbers as they are (spec, values/floats.md).

use crate::bits::Cursor;
use crate::block::values::ValueSpace;
use crate::block::{Stored, Values};
use crate::element;
use crate::error::{Error, FormatErrorKind, Result};
use crate::tensor::Dtype;

impl Stored {
    /// The element type that numbers are stored as, for a tensor of type `source`.
    pub fn dtype(self, source: Dtype) -> Dtype {
        match self {
            Self::Source => source,
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::Bf16,
        }
    }
}

pub(super) fn write(out: &mut Vec<u8>, stored: Stored, bytes: &[u8], space: &ValueSpace<'_>) -> Result<()> {
    let dtype = stored.dtype(space.dtype);
    let padded = dtype.bits() == 4 && space.count % 2 == 1 && bytes.last().is_some_and(|b| b >> 4 != 0);
    if dtype.bytes_for(space.count) != Some(bytes.len() as u64) || padded {
        return Err(Error::inconsistent("number of floats"));
    }
    out.push(stored as u8);
    out.extend_from_slice(bytes);
    Ok(())
}

/// How the numbers are stored, and their bytes.
pub(super) fn take<'a>(cursor: &mut Cursor<'a>, space: &ValueSpace<'_>) -> Result<(Stored, &'a [u8])> {
    let offset = cursor.offset();
    let stored = match cursor.u8()? {
        0 => Stored::Source,
        2 => Stored::F32,
        3 => Stored::F16,
        4 => Stored::Bf16,
        other => return Err(Error::out_of_range("stored", other.into(), offset)),
    };
    let offset = cursor.offset();
    let dtype = stored.dtype(space.dtype);
    let len = dtype.bytes_for(space.count);
    let bytes = cursor
        .take(len.ok_or(Error::format(FormatErrorKind::LengthMismatch { field: "floats" }, offset))?)?;
    if dtype.bits() == 4 && space.count % 2 == 1 && bytes.last().is_some_and(|b| b >> 4 != 0) {
        return Err(Error::format(FormatErrorKind::NonzeroPadding, cursor.offset().saturating_sub(1)));
    }
    Ok((stored, bytes))
}

pub(super) fn read(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Values> {
    let (stored, bytes) = take(cursor, space)?;
    Ok(Values::Floats { stored, bytes: bytes.to_vec() })
}

pub(super) fn numbers(stored: Stored, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    if stored == Stored::Source {
        return Err(Error::inconsistent("values that give bits, not numbers"));
    }
    element::decode_f32s(stored.dtype(Dtype::F32), bytes, 0, out)
}
