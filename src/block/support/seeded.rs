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

pub(super) fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, n: u64) -> Result<Support> {
    let offset = cursor.offset();
    let count = cursor.varint()?;
    if count > n {
        return Err(Error::format(FormatErrorKind::CountMismatch { field: "number of positions" }, offset));
    }
    reserve(decoder, count, offset)?;
    Ok(Support::Seeded { count, seed: cursor.u64()? })
}

/// Takes the memory for drawing `count` positions from the allowance.
pub(super) fn reserve(decoder: &Decoder<'_>, count: u64, offset: u64) -> Result<()> {
    decoder.budget.reserve_items::<[u64; 2]>(count, offset).map(drop)
}
