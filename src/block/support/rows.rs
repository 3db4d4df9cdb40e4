//! Whole rows (spec, supports/rows.md).

use crate::bits::{Cursor, put_varint};
use crate::block::Support;
use crate::block::support::{Positions, SupportId, sparse};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, Result};

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    row_len: u64,
    rows: &[u64],
    n: u64,
    positions: Positions,
) -> Result<SupportId> {
    let mut inner = Vec::new();
    let id = sparse::write(&mut inner, coder, rows, n / row_len, positions)?;
    put_varint(out, row_len);
    put_varint(out, id.0);
    out.append(&mut inner);
    Ok(SupportId::ROWS)
}

fn read_head(cursor: &mut Cursor<'_>, n: u64) -> Result<(u64, SupportId)> {
    let offset = cursor.offset();
    let row_len = cursor.varint_in("row_len", 1, u64::MAX)?;
    if !n.is_multiple_of(row_len) {
        return Err(Error::out_of_range("row_len", row_len, offset));
    }
    let inner = cursor.varint_in("inner support", SupportId::GAPS_RICE.0, SupportId::BITMAP.0)?;
    Ok((row_len, SupportId(inner)))
}

/// The length of a row, and how many rows there are.
pub(super) fn skim(cursor: &mut Cursor<'_>, n: u64) -> Result<(u64, u64)> {
    let (row_len, inner) = read_head(cursor, n)?;
    Ok((row_len, sparse::skim(cursor, inner, n / row_len)?))
}

pub(super) fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, n: u64) -> Result<Support> {
    let (row_len, inner) = read_head(cursor, n)?;
    Ok(Support::Rows { row_len, rows: sparse::read(cursor, decoder, inner, n / row_len)? })
}
