//! A scale per group, alone or with a sign per value (spec, values/constant.md and values/sign.md).

use crate::bits::Cursor;
use crate::block::values::ValueSpace;
use crate::block::{Bits, Groups, Scales, Values};
use crate::error::{Error, FormatErrorKind, Result};

pub(super) fn write_constant(
    out: &mut Vec<u8>,
    groups: Groups,
    scales: &Scales,
    space: &ValueSpace<'_>,
) -> Result<()> {
    groups.write(out, space)?;
    scales.write(out, groups.count(space))
}

pub(super) fn read_constant(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Values> {
    let groups = Groups::read(cursor, space)?;
    Ok(Values::Constant { groups, scales: Scales::read(cursor, groups.count(space))? })
}

pub(super) fn write_sign(
    out: &mut Vec<u8>,
    groups: Groups,
    scales: &Scales,
    negative: &Bits,
    space: &ValueSpace<'_>,
) -> Result<()> {
    groups.write(out, space)?;
    scales.write(out, groups.count(space))?;
    write_signs(out, negative, space.count)
}

pub(super) fn read_sign(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Values> {
    let groups = Groups::read(cursor, space)?;
    let scales = Scales::read(cursor, groups.count(space))?;
    Ok(Values::Sign { groups, scales, negative: read_signs(cursor, space.count)? })
}

/// Appends a sign bit for each of `count` values.
fn write_signs(out: &mut Vec<u8>, negative: &Bits, count: u64) -> Result<()> {
    if negative.len() != count {
        return Err(Error::inconsistent("number of signs"));
    }
    out.extend_from_slice(negative.as_bytes());
    Ok(())
}

/// Reads a sign bit for each of `count` values.
fn read_signs(cursor: &mut Cursor<'_>, count: u64) -> Result<Bits> {
    let bytes = cursor.take(count.div_ceil(8))?;
    let end = cursor.offset();
    Bits::from_bytes(count, bytes.to_vec())
        .ok_or(Error::format(FormatErrorKind::NonzeroPadding, end.saturating_sub(1)))
}
