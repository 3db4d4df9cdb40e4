//! A matrix as two factors (spec, values/low-rank.md; PowerSGD, arXiv 1905.13727).

use crate::bits::{Cursor, put_varint};
use crate::block::Values;
use crate::block::values::{
    ValueSpace, ValuesId, numbers as any_numbers, read_nested, to_number, write_nested,
};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::{Budget, in_memory};

/// The first kind that factors may have beside floats.
const LEAST: ValuesId = ValuesId::POW2;

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    space: &ValueSpace<'_>,
) -> Result<()> {
    let Values::LowRank { rows, cols, rank, left, right } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    let left_len = rows.checked_mul(*rank).filter(|_| *rank > 0);
    let (Some(left_len), Some(right_len)) = (left_len, cols.checked_mul(*rank)) else {
        return Err(Error::bad_option("rank"));
    };
    if rows.checked_mul(*cols) != Some(space.count) {
        return Err(Error::inconsistent("rows and columns of a low-rank matrix"));
    }
    for dim in [rows, cols, rank] {
        put_varint(out, *dim);
    }
    let mut factor = Vec::new();
    write_nested(&mut factor, coder, left, LEAST, left_len, &[*rank])?;
    put_varint(out, left.id().0);
    put_varint(out, factor.len() as u64);
    out.append(&mut factor);
    put_varint(out, right.id().0);
    write_nested(out, coder, right, LEAST, right_len, &[*rank])
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let offset = cursor.offset();
    let rows = cursor.varint()?;
    let cols = cursor.varint()?;
    let rank = cursor.varint_in("rank", 1, u64::MAX)?;
    if rows.checked_mul(cols) != Some(space.count) {
        return Err(Error::format(FormatErrorKind::CountMismatch { field: "rows and columns" }, offset));
    }
    let (Some(left_len), Some(right_len)) = (rows.checked_mul(rank), cols.checked_mul(rank)) else {
        return Err(Error::out_of_range("rank", rank, offset));
    };
    decoder.budget.reserve_elements(left_len.saturating_add(right_len), offset)?;
    // Multiplying out takes rank steps for each element: charged like elements, so that time stays bounded.
    decoder.budget.reserve_elements(space.count.saturating_mul(rank), offset)?;
    let id = ValuesId(cursor.varint()?);
    let len = cursor.varint()?;
    let left = read_nested(cursor.sub(len, "left factor")?, decoder, id, LEAST, left_len, &[])?;
    let id = ValuesId(cursor.varint()?);
    let len = cursor.remaining() as u64;
    let right = read_nested(cursor.sub(len, "right factor")?, decoder, id, LEAST, right_len, &[])?;
    Ok(Values::LowRank { rows, cols, rank, left, right })
}

pub(super) fn numbers(values: &Values, budget: &Budget, out: &mut [f32]) -> Result<()> {
    let Values::LowRank { rows, cols, rank, left, right } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    let factor = |values: &Values, len: u64| -> Result<Vec<f32>> {
        let mut numbers = vec![0.0; budget.reserve_items::<f32>(len * rank, 0)?];
        any_numbers(values, &[], budget, &mut numbers)?;
        Ok(numbers)
    };
    if out.is_empty() {
        return Ok(());
    }
    let (p, q) = (factor(left, *rows)?, factor(right, *cols)?);
    let rank = in_memory(*rank);
    for (row, p) in out.chunks_mut(in_memory(*cols)).zip(p.chunks(rank)) {
        for (value, q) in row.iter_mut().zip(q.chunks(rank)) {
            let sum = p.iter().zip(q).fold(0.0, |sum, (&p, &q)| sum + f64::from(p) * f64::from(q));
            *value = to_number(sum);
        }
    }
    Ok(())
}
