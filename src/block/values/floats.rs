//! Plain numbers (spec, values/floats.md).

use crate::arch::pages;
use crate::bits::Cursor;
use crate::block::values::kind::not_numbers;
use crate::block::values::{
    Content, Facts, Kind, Structure, Validated, ValueSpace, ValuesId, check_dtype, put_numbers,
};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::Budget;
use crate::tensor::Dtype;
use crate::tensor::element;

/// Plain numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Floats {
    /// How the numbers are stored.
    pub stored: Stored,
    /// `m` numbers in little-endian bytes.
    pub bytes: Vec<u8>,
}

/// How [`Floats`] are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Stored {
    /// As the tensor's own element type: lossless.
    Source = 0,
    F32 = 2,
    F16 = 3,
    Bf16 = 4,
}

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

impl Kind for Floats {
    const ID: ValuesId = ValuesId(1);
    const IS_CORE: bool = true;

    fn facts(&self) -> Facts<'_> {
        let len = self.bytes.len() as u64;
        Facts {
            content: Content::Elements(self.stored, &self.bytes),
            structure: Structure::Flat,
            weight: len,
            memory: len,
        }
    }

    fn label(&self) -> String {
        match self.stored {
            Stored::Source => "raw",
            Stored::F32 => "f32",
            Stored::F16 => "f16",
            Stored::Bf16 => "bf16",
        }
        .to_owned()
    }

    fn write(&self, out: &mut Vec<u8>, _: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        write(out, self.stored, &self.bytes, space)
    }

    fn read(cursor: &mut Cursor<'_>, _: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let (stored, bytes) = take(cursor, space)?;
        Ok(Self { stored, bytes: pages::copy(bytes) })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        let (stored, bytes) = take(cursor, space)?;
        Ok(match stored {
            Stored::Source => Validated::bits(bytes.len() as u64),
            _ => Validated::numbers(bytes.len() as u64),
        })
    }

    fn numbers(&self, _: &[u64], _: &Budget, out: &mut [f32]) -> Result<()> {
        if self.stored == Stored::Source {
            return Err(not_numbers());
        }
        element::decode_f32s(self.stored.dtype(Dtype::F32), &self.bytes, 0, out)
    }
}

impl Floats {
    /// Reads the numbers straight into elements.
    pub(crate) fn read_into(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>, out: &mut [u8]) -> Result<()> {
        let offset = cursor.offset();
        let (stored, bytes) = take(cursor, space)?;
        let dtype = stored.dtype(space.dtype);
        check_dtype(stored == Stored::Source, Self::ID, space, offset)?;
        if stored == Stored::Source {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        // Also where the types are equal: a number is no signaling NaN.
        put_numbers(space.dtype, out, |start, numbers| {
            element::decode_f32s(dtype, bytes, start as u64, numbers)
        })
    }

    /// Appends the wire form of elements as they are.
    pub(crate) fn write_elements(elements: &[u8], out: &mut Vec<u8>, space: &ValueSpace<'_>) -> Result<()> {
        write(out, Stored::Source, elements, space)
    }
}

fn write(out: &mut Vec<u8>, stored: Stored, bytes: &[u8], space: &ValueSpace<'_>) -> Result<()> {
    let dtype = stored.dtype(space.dtype);
    if dtype.bytes_for(space.count) != Some(bytes.len() as u64) || has_padding(dtype, space.count, bytes) {
        return Err(Error::inconsistent("number of floats"));
    }
    out.push(stored as u8);
    pages::append(out, bytes);
    Ok(())
}

/// Takes all fields: how the numbers are stored, and their bytes.
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
    if has_padding(dtype, space.count, bytes) {
        return Err(Error::format(FormatErrorKind::NonzeroPadding, cursor.offset().saturating_sub(1)));
    }
    Ok((stored, bytes))
}

/// Whether the unused half of the last byte of `count` 4-bit elements is not zero.
pub(super) fn has_padding(dtype: Dtype, count: u64, bytes: &[u8]) -> bool {
    dtype.bits() == 4 && count % 2 == 1 && bytes.last().is_some_and(|b| b >> 4 != 0)
}
