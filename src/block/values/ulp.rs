//! Differences in units of the last place (spec, values/ulp.md).

use crate::bits::{Cursor, unzigzag, zigzag};
use crate::block::Values;
use crate::block::values::ValueSpace;
use crate::codes::{Coder, Decoder, Role, read_ints, write_ints};
use crate::error::{Error, Result};

/// The largest zigzag of a signed number of `bits` bits.
fn max_zigzag(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    diffs: &[i64],
    space: &ValueSpace<'_>,
) -> Result<()> {
    let max = max_zigzag(space.dtype.bits());
    if diffs.len() as u64 != space.count || diffs.iter().any(|&d| zigzag(d) > max) {
        return Err(Error::inconsistent("differences"));
    }
    let codes: Vec<u64> = diffs.iter().map(|&d| zigzag(d)).collect();
    write_ints(out, coder, Role::Ulps, &codes);
    Ok(())
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let codes = read_ints(cursor, decoder, space.count, max_zigzag(space.dtype.bits()))?;
    Ok(Values::Ulp { diffs: codes.into_iter().map(unzigzag).collect() })
}
