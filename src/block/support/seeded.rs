//! Positions drawn from a seed (spec, supports/seeded.md).

use crate::bits::{Cursor, put_u64, put_varint};
use crate::block::Support;
use crate::block::support::SupportId;
use crate::codes::Decoder;
use crate::error::{Error, FormatErrorKind, Result};

pub(super) fn write(out: &mut Vec<u8>, count: u64, seed: u64, n: u64) -> Result<SupportId> {
    debug_assert!(count <= n);
    put_varint(out, count);
    put_u64(out, seed);
    Ok(SupportId::SEEDED)
}

/// How many positions there are, and the seed.
fn read_fields(cursor: &mut Cursor<'_>, n: u64) -> Result<(u64, u64)> {
    let offset = cursor.offset();
    let count = cursor.varint()?;
    if count > n {
        return Err(Error::format(FormatErrorKind::CountMismatch { field: "number of positions" }, offset));
    }
    Ok((count, cursor.u64()?))
}

pub(super) fn skim(cursor: &mut Cursor<'_>, n: u64) -> Result<u64> {
    Ok(read_fields(cursor, n)?.0)
}

pub(super) fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, n: u64) -> Result<Support> {
    let offset = cursor.offset();
    let (count, seed) = read_fields(cursor, n)?;
    reserve(decoder, count, offset)?;
    Ok(Support::Seeded { count, seed })
}

/// Takes the memory for drawing `count` positions from the allowance.
pub(super) fn reserve(decoder: &Decoder<'_>, count: u64, offset: u64) -> Result<()> {
    decoder.budget.reserve_items::<[u64; 2]>(count, offset).map(drop)
}
