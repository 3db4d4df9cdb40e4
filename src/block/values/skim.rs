//! What can be told of values in wire form without decoding their codes.

use crate::bits::Cursor;
use crate::block::values::{
    ValueSpace, ValuesId, affine, codebook, dct, floats, id_may_nest, levels, minifloat, planes, pow2,
};
use crate::block::{Groups, Scales};
use crate::codes::skim_ints;
use crate::error::{Error, FormatErrorKind, Result};
use crate::tensor::{Dtype, elements};

/// What was told.
pub(crate) struct Skimmed {
    /// Whether they give bits rather than numbers.
    pub(crate) gives_bits: bool,
    /// What they weigh decoded.
    pub(crate) weight: u64,
}

/// Checks what can be told of values of kind `id`, all of `cursor`, without decoding their codes.
///
/// # Errors
/// Those of [`read`](super::read) that can be told, and [`FormatErrorKind::UnknownReference`] if they refer to a shared
/// frequency table.
pub(crate) fn skim(mut cursor: Cursor<'_>, id: ValuesId, space: &ValueSpace<'_>) -> Result<Skimmed> {
    let offset = cursor.offset();
    let skimmed = skim_kind(&mut cursor, id, space)?;
    if !skimmed.gives_bits && !space.dtype.is_float() {
        return Err(Error::out_of_range("values kind for this element type", id.0, offset));
    }
    cursor.finish()?;
    Ok(skimmed)
}

fn skim_kind(cursor: &mut Cursor<'_>, id: ValuesId, space: &ValueSpace<'_>) -> Result<Skimmed> {
    let (offset, count) = (cursor.offset(), space.count);
    let scales = |cursor: &mut Cursor<'_>| {
        let groups = Groups::read(cursor, space)?;
        Ok::<_, Error>(Scales::read(cursor, groups.count(space))?.bytes.len() as u64)
    };
    let mut gives_bits = false;
    let weight = match id {
        ValuesId::FLOATS => {
            let (stored, bytes) = floats::take(cursor, space)?;
            gives_bits = stored == crate::block::Stored::Source;
            bytes.len() as u64
        }
        ValuesId::CONSTANT => scales(cursor)?,
        ValuesId::SIGN => {
            scales(cursor)?;
            signs(cursor, count)?;
            count / 8
        }
        ValuesId::POW2 => {
            pow2::read_head(cursor)?;
            skim_ints(cursor, count)?;
            // A bit for each code above 0.
            if cursor.take_rest().len() as u64 > count.div_ceil(8) {
                return Err(Error::format(FormatErrorKind::LengthMismatch { field: "signs" }, offset));
            }
            count
        }
        ValuesId::LEVELS => {
            levels::read_head(cursor, space)?;
            skim_ints(cursor, count)?;
            count
        }
        ValuesId::AFFINE => {
            affine::read_head(cursor, space)?;
            skim_ints(cursor, count)?;
            count
        }
        ValuesId::CODEBOOK => {
            codebook::read_head(cursor, space)?;
            skim_ints(cursor, count)?;
            count
        }
        ValuesId::MINIFLOAT => {
            minifloat::read_head(cursor, space)?;
            skim_ints(cursor, count)?;
            count
        }
        ValuesId::PLANES => {
            gives_bits = true;
            planes::skim(cursor, space)?
        }
        ValuesId::ULP => {
            gives_bits = true;
            skim_ints(cursor, count)?;
            count
        }
        ValuesId::LATENT => {
            cursor.take(32)?;
            let rank = cursor.varint_in("rank", 0, 32)?;
            let shape = (0..rank).map(|_| cursor.varint()).collect::<Result<Vec<_>>>()?;
            let count =
                elements(&shape).ok_or(Error::out_of_range("shape of latent codes", u64::MAX, offset))?;
            let id = ValuesId(cursor.varint()?);
            nested(cursor, cursor.remaining() as u64, id, ValuesId::POW2, count)?
        }
        ValuesId::LOW_RANK => {
            let (rows, cols) = (cursor.varint()?, cursor.varint()?);
            let rank = cursor.varint_in("rank", 1, u64::MAX)?;
            if rows.checked_mul(cols) != Some(count) {
                return Err(Error::format(
                    FormatErrorKind::CountMismatch { field: "rows and columns" },
                    offset,
                ));
            }
            let len = |dim: u64| dim.checked_mul(rank).ok_or(Error::out_of_range("rank", rank, offset));
            let id = ValuesId(cursor.varint()?);
            let bytes = cursor.varint()?;
            let left = nested(cursor, bytes, id, ValuesId::POW2, len(rows)?)?;
            let id = ValuesId(cursor.varint()?);
            let right = nested(cursor, cursor.remaining() as u64, id, ValuesId::POW2, len(cols)?)?;
            left.saturating_add(right)
        }
        ValuesId::DCT => {
            let support = dct::skim_support(cursor, space)?;
            let id = ValuesId(cursor.varint()?);
            let rest = cursor.remaining() as u64;
            let coefficients = nested(cursor, rest, id, ValuesId::CONSTANT, support.count)?;
            support.weight.saturating_add(coefficients)
        }
        ValuesId(other) => return Err(Error::unsupported("values", other, offset)),
    };
    Ok(Skimmed { gives_bits, weight })
}

/// A sign bit for each of `count` values.
fn signs(cursor: &mut Cursor<'_>, count: u64) -> Result<()> {
    let bytes = cursor.take(count.div_ceil(8))?;
    if !count.is_multiple_of(8) && bytes.last().is_some_and(|last| last >> (count % 8) != 0) {
        return Err(Error::format(FormatErrorKind::NonzeroPadding, cursor.offset() - 1));
    }
    Ok(())
}

/// Nested values in the next `len` bytes, if their kind may be nested from `least` on; what they weigh.
fn nested(cursor: &mut Cursor<'_>, len: u64, id: ValuesId, least: ValuesId, count: u64) -> Result<u64> {
    let offset = cursor.offset();
    let inner = cursor.sub(len, "nested values")?;
    if !id_may_nest(id, least) {
        return Err(Error::out_of_range("nested values", id.0, offset));
    }
    let skimmed = skim(inner, id, &ValueSpace { count, tensors: None, dtype: Dtype::F32, row_lens: &[] })?;
    match skimmed.gives_bits {
        true => Err(Error::out_of_range("nested values", id.0, offset)),
        false => Ok(skimmed.weight),
    }
}
