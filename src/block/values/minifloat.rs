//! Small floats with a scale per group (spec, values/minifloat.md; OCP FP8 and Microscaling).

use crate::bits::Cursor;
use crate::block::values::{ValueSpace, for_each_group, to_number};
use crate::block::{Groups, Minifloat, Scales, Values};
use crate::codes::{Coder, Decoder, Role, read_symbols, write_symbols};
use crate::error::{Error, Result};

impl Minifloat {
    /// Every format with its name in the registry.
    pub const REGISTERED: [(Self, &'static str); 9] = [
        (Self::F8E4M3Fn, "f8e4m3fn"),
        (Self::F8E5M2, "f8e5m2"),
        (Self::F8E4M3Fnuz, "f8e4m3fnuz"),
        (Self::F8E5M2Fnuz, "f8e5m2fnuz"),
        (Self::F4E2M1, "f4e2m1"),
        (Self::F6E3M2, "f6e3m2"),
        (Self::F6E2M3, "f6e2m3"),
        (Self::F4E3M0, "f4e3m0"),
        (Self::Int8, "int8"),
    ];

    /// The largest bit pattern.
    fn max_code(self) -> u8 {
        (0xffu16 >> (8 - self.bits())) as u8
    }
}

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    space: &ValueSpace<'_>,
) -> Result<()> {
    let Values::Minifloat { format, groups, scales, codes } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    if codes.len() as u64 != space.count || codes.iter().any(|&c| c > format.max_code()) {
        return Err(Error::inconsistent("minifloat codes"));
    }
    out.push(*format as u8);
    groups.write(out, space)?;
    scales.write(out, groups.count(space))?;
    write_symbols(out, coder, Role::Codes, codes, &[]);
    Ok(())
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let offset = cursor.offset();
    let id = cursor.u8()?;
    let format = Minifloat::REGISTERED.iter().map(|(f, _)| *f).find(|f| *f as u8 == id);
    let format = format.ok_or(Error::unsupported("minifloat format", id.into(), offset))?;
    let groups = Groups::read(cursor, space)?;
    let scales = Scales::read(cursor, groups.count(space))?;
    Ok(Values::Minifloat {
        format,
        groups,
        scales,
        codes: read_symbols(cursor, decoder, space.count, format.max_code())?,
    })
}

pub(super) fn numbers(values: &Values, tensor_counts: &[u64], out: &mut [f32]) -> Result<()> {
    let Values::Minifloat { format, groups, scales, codes } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    let elements: [f64; 256] = std::array::from_fn(|code| match u8::try_from(code) {
        Ok(code) if code <= format.max_code() => f64::from(format.decode(code)),
        _ => 0.0,
    });
    for_each_group(*groups, out.len(), tensor_counts, |g, range| {
        let scale = f64::from(scales.get(g));
        for (value, &code) in out[range.clone()].iter_mut().zip(&codes[range]) {
            *value = to_number(elements[code as usize] * scale);
        }
    });
    Ok(())
}
