//! Levels of a quantiser times a norm per group (spec, values/levels.md; QSGD, TernGrad, natural dithering).

use crate::bits::{Cursor, put_varint, unzigzag, zigzag};
use crate::block::values::{ValueSpace, for_each_group, to_number};
use crate::block::{Groups, Norm, Scales, Spacing, Values};
use crate::codes::{Coder, Decoder, Role, read_ints, write_ints};
use crate::error::{Error, Result};

fn max_level_of(spacing: Spacing) -> u32 {
    match spacing {
        Spacing::Uniform => 65_535,
        Spacing::Natural => 255,
    }
}

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    space: &ValueSpace<'_>,
) -> Result<()> {
    let Values::Levels { spacing, max_level, norm, groups, norms, levels } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    if levels.len() as u64 != space.count || levels.iter().any(|l| l.unsigned_abs() > *max_level) {
        return Err(Error::inconsistent("levels"));
    }
    write_head(out, *spacing, *max_level, *norm, *groups, norms, space)?;
    let codes: Vec<u64> = levels.iter().map(|&l| zigzag(l.into())).collect();
    write_ints(out, coder, Role::Levels, &codes);
    Ok(())
}

/// Appends the fields before the levels.
pub(super) fn write_head(
    out: &mut Vec<u8>,
    spacing: Spacing,
    max_level: u32,
    norm: Norm,
    groups: Groups,
    norms: &Scales,
    space: &ValueSpace<'_>,
) -> Result<()> {
    if !(1..=max_level_of(spacing)).contains(&max_level) {
        return Err(Error::bad_option("max_level"));
    }
    out.push(spacing as u8);
    put_varint(out, max_level.into());
    out.push(norm as u8);
    groups.write(out, space)?;
    norms.write(out, groups.count(space))
}

/// The fields before the levels.
pub(super) struct Head {
    spacing: Spacing,
    max_level: u32,
    norm: Norm,
    groups: Groups,
    norms: Scales,
}

pub(super) fn read_head(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Head> {
    let spacing = match cursor.u8_in("spacing", 0, 1)? {
        0 => Spacing::Uniform,
        _ => Spacing::Natural,
    };
    // At most 65,535.
    let max_level = cursor.varint_in("max_level", 1, max_level_of(spacing).into())? as u32;
    let offset = cursor.offset();
    let norm = match cursor.u8()? {
        1 => Norm::L1,
        2 => Norm::L2,
        255 => Norm::Max,
        other => return Err(Error::out_of_range("norm", other.into(), offset)),
    };
    let groups = Groups::read(cursor, space)?;
    let norms = Scales::read(cursor, groups.count(space))?;
    Ok(Head { spacing, max_level, norm, groups, norms })
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let Head { spacing, max_level, norm, groups, norms } = read_head(cursor, space)?;
    let codes = read_ints(cursor, decoder, space.count, u64::from(max_level) * 2)?;
    // Beside the codes, from which they are made.
    decoder.budget.reserve_items::<i32>(space.count, cursor.offset())?;
    let levels = codes.into_iter().map(|c| unzigzag(c) as i32).collect();
    Ok(Values::Levels { spacing, max_level, norm, groups, norms, levels })
}

pub(super) fn numbers(values: &Values, tensor_counts: &[u64], out: &mut [f32]) -> Result<()> {
    let Values::Levels { spacing, max_level, groups, norms, levels, .. } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    let s = f64::from(*max_level);
    for_each_group(*groups, out.len(), tensor_counts, |g, range| {
        let norm = f64::from(norms.get(g));
        for (value, &level) in out[range.clone()].iter_mut().zip(&levels[range]) {
            let number = match (spacing, level) {
                (Spacing::Uniform, l) => norm * f64::from(l) / s,
                (Spacing::Natural, 0) => 0.0,
                // At least 2^-254: a normal binary64 number.
                (Spacing::Natural, l) => {
                    let exponent = i64::from(l.unsigned_abs()) - i64::from(*max_level);
                    f64::from(l.signum()) * norm * f64::from_bits(((exponent + 1023) as u64) << 52)
                }
            };
            *value = to_number(number);
        }
    });
    Ok(())
}
