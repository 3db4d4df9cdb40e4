//! Integers with a scale and a zero point or an offset per group (spec, values/affine.md).

use crate::bits::Cursor;
use crate::block::values::{ValueSpace, for_each_group, to_number};
use crate::block::{Groups, Scales, Values, Zero};
use crate::codes::{Coder, Decoder, Role, read_symbols, write_symbols};
use crate::error::{Error, Result};

/// The largest code of `bits` bits, 1 to 8.
fn max_code(bits: u8) -> u8 {
    (0xffu16 >> (8 - u16::from(bits))) as u8
}

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    space: &ValueSpace<'_>,
) -> Result<()> {
    let Values::Affine { bits, groups, scales, zero, codes } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    check_bits(*bits)?;
    let max = max_code(*bits);
    if codes.len() as u64 != space.count || codes.iter().any(|&c| c > max) {
        return Err(Error::inconsistent("affine codes"));
    }
    write_head(out, *bits, *groups, scales, zero, space)?;
    write_symbols(out, coder, Role::Codes, codes, &[]);
    Ok(())
}

fn check_bits(bits: u8) -> Result<()> {
    if (1..=8).contains(&bits) { Ok(()) } else { Err(Error::bad_option("bits")) }
}

/// Appends the fields before the codes.
pub(super) fn write_head(
    out: &mut Vec<u8>,
    bits: u8,
    groups: Groups,
    scales: &Scales,
    zero: &Zero,
    space: &ValueSpace<'_>,
) -> Result<()> {
    check_bits(bits)?;
    let max = max_code(bits);
    let count = groups.count(space);
    let mode = match zero {
        Zero::Centre => 0,
        Zero::Point(_) => 1,
        Zero::Offset(_) => 2,
    };
    out.extend([bits, mode]);
    groups.write(out, space)?;
    scales.write(out, count)?;
    match zero {
        Zero::Centre => {}
        Zero::Point(points) if points.len() as u64 == count && points.iter().all(|&p| p <= max) => {
            out.extend_from_slice(points);
        }
        Zero::Point(_) => return Err(Error::inconsistent("zero points")),
        Zero::Offset(offsets) => offsets.write(out, count)?,
    }
    Ok(())
}

/// The fields before the codes.
pub(super) struct Head {
    bits: u8,
    groups: Groups,
    scales: Scales,
    zero: Zero,
}

pub(super) fn read_head(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Head> {
    let bits = cursor.u8_in("bits", 1, 8)?;
    let mode = cursor.u8_in("zero", 0, 2)?;
    let groups = Groups::read(cursor, space)?;
    let count = groups.count(space);
    let scales = Scales::read(cursor, count)?;
    let offset = cursor.offset();
    let zero = match mode {
        0 => Zero::Centre,
        1 => {
            let points = cursor.take(count)?;
            if let Some(&point) = points.iter().find(|&&p| p > max_code(bits)) {
                return Err(Error::out_of_range("zero point", point.into(), offset));
            }
            Zero::Point(points.to_vec())
        }
        _ => Zero::Offset(Scales::read(cursor, count)?),
    };
    Ok(Head { bits, groups, scales, zero })
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let Head { bits, groups, scales, zero } = read_head(cursor, space)?;
    let codes = read_symbols(cursor, decoder, space.count, max_code(bits))?;
    Ok(Values::Affine { bits, groups, scales, zero, codes })
}

pub(super) fn numbers(values: &Values, tensor_counts: &[u64], out: &mut [f32]) -> Result<()> {
    let Values::Affine { bits, groups, scales, zero, codes } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    for_each_group(*groups, out.len(), tensor_counts, |g, range| {
        let scale = f64::from(scales.get(g));
        let number = |code: u8| match zero {
            Zero::Centre => scale * (f64::from(code) - f64::from(1u16 << (bits - 1))),
            Zero::Point(points) => scale * (f64::from(code) - f64::from(points[g])),
            Zero::Offset(offsets) => scale * f64::from(code) + f64::from(offsets.get(g)),
        };
        // At most 256 different numbers: a table for groups that are longer.
        let (out, codes) = (&mut out[range.clone()], &codes[range]);
        if codes.len() >= 256 {
            let table: [f32; 256] = std::array::from_fn(|code| to_number(number(code as u8)));
            out.iter_mut().zip(codes).for_each(|(v, &c)| *v = table[usize::from(c)]);
        } else {
            out.iter_mut().zip(codes).for_each(|(v, &c)| *v = to_number(number(c)));
        }
    });
    Ok(())
}
