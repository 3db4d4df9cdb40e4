//! Entries of a table, times a scale, plus a shift (spec, values/codebook.md; SparseLoCo, arXiv 2508.15706).

use crate::bits::{Cursor, put_f32};
use crate::block::values::{ValueSpace, for_each_group, to_number};
use crate::block::{Groups, Scales, Values};
use crate::codes::{Coder, Decoder, Role, read_symbols, write_symbols};
use crate::error::{Error, Result};

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    space: &ValueSpace<'_>,
) -> Result<()> {
    let Values::Codebook { table, groups, scales, shifts, codes } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    if !(2..=256).contains(&table.len()) {
        return Err(Error::bad_option("codebook entries"));
    }
    if codes.len() as u64 != space.count || codes.iter().any(|&c| usize::from(c) >= table.len()) {
        return Err(Error::inconsistent("codebook codes"));
    }
    out.push((table.len() - 1) as u8);
    table.iter().for_each(|&entry| put_f32(out, entry));
    out.push(u8::from(scales.is_some()) | u8::from(shifts.is_some()) << 1);
    groups.write(out, space)?;
    for numbers in [scales, shifts].into_iter().flatten() {
        numbers.write(out, groups.count(space))?;
    }
    write_symbols(out, coder, Role::Codes, codes, &[]);
    Ok(())
}

/// The fields before the codes.
pub(super) struct Head {
    table: Vec<f32>,
    groups: Groups,
    scales: Option<Scales>,
    shifts: Option<Scales>,
}

pub(super) fn read_head(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Head> {
    let last = cursor.u8_in("codebook entries", 1, 255)?;
    let table = (0..=last).map(|_| Ok(f32::from_bits(cursor.u32()?))).collect::<Result<_>>()?;
    let flags = cursor.flags("codebook flags", 0b11)?;
    let groups = Groups::read(cursor, space)?;
    let count = groups.count(space);
    let mut numbers = |bit: u8| (flags & bit != 0).then(|| Scales::read(cursor, count)).transpose();
    let scales = numbers(1)?;
    let shifts = numbers(2)?;
    Ok(Head { table, groups, scales, shifts })
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let Head { table, groups, scales, shifts } = read_head(cursor, space)?;
    // At least 2 and at most 256 entries.
    let codes = read_symbols(cursor, decoder, space.count, (table.len() - 1) as u8)?;
    Ok(Values::Codebook { table, groups, scales, shifts, codes })
}

pub(super) fn numbers(values: &Values, tensor_counts: &[u64], out: &mut [f32]) -> Result<()> {
    let Values::Codebook { table, groups, scales, shifts, codes } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    for_each_group(*groups, out.len(), tensor_counts, |g, range| {
        for (value, &code) in out[range.clone()].iter_mut().zip(&codes[range]) {
            let mut number = f64::from(table[usize::from(code)]);
            if let Some(scales) = scales {
                number *= f64::from(scales.get(g));
            }
            if let Some(shifts) = shifts {
                number += f64::from(shifts.get(g));
            }
            *value = to_number(number);
        }
    });
    Ok(())
}
