//! Codes of a learned decoder (spec, values/latent.md; LGC, arXiv 2103.08870).

use crate::bits::{Cursor, put_varint};
use crate::block::values::{ValueSpace, ValuesId, read_nested, write_nested};
use crate::block::{ModelId, Values};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::elements;

const MAX_RANK: u64 = 32;
/// The first kind that codes may have beside floats.
const LEAST: ValuesId = ValuesId::POW2;

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    model: &ModelId,
    shape: &[u64],
    codes: &Values,
    space: &ValueSpace<'_>,
) -> Result<()> {
    debug_assert!(space.dtype.is_float());
    let count = elements(shape).filter(|_| shape.len() as u64 <= MAX_RANK);
    let count = count.ok_or(Error::bad_option("shape of latent codes"))?;
    out.extend_from_slice(&model.0);
    put_varint(out, shape.len() as u64);
    shape.iter().for_each(|&d| put_varint(out, d));
    put_varint(out, codes.id().0);
    write_nested(out, coder, codes, LEAST, count, &shape[shape.len().saturating_sub(1)..])
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    debug_assert!(space.tensors.is_some());
    let model = ModelId(cursor.array()?);
    let offset = cursor.offset();
    let rank = cursor.varint_in("rank", 0, MAX_RANK)?;
    let shape = (0..rank).map(|_| cursor.varint()).collect::<Result<Vec<_>>>()?;
    let count = elements(&shape).ok_or(Error::out_of_range("shape of latent codes", u64::MAX, offset))?;
    decoder.budget.reserve_elements(count, offset)?;
    let id = ValuesId(cursor.varint()?);
    let rest = cursor.remaining() as u64;
    let codes = read_nested(cursor.sub(rest, "latent codes")?, decoder, id, LEAST, count, &[])?;
    Ok(Values::Latent { model, shape, codes })
}

/// The error of whoever asks for the numbers without the model (LAT-2).
pub(super) fn missing(model: &ModelId) -> Error {
    Error::input(InputErrorKind::MissingModel { id: std::array::from_fn(|i| model.0[i]) })
}
