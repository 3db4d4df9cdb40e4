//! Powers of two (spec, values/pow2.md; Natural Compression, arXiv 1905.10988).

use crate::bits::{Cursor, put_i16};
use crate::block::values::{ValueSpace, scaled};
use crate::block::{Bits, Underflow, Values};
use crate::codes::{Coder, Decoder, Role, read_symbols, write_symbols};
use crate::error::{Error, Result};

/// The range of the exponent of code 1.
const EXPONENTS: std::ops::RangeInclusive<i16> = -1074..=1023;

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    min_exponent: i16,
    underflow: Underflow,
    codes: &[u8],
    negative: &Bits,
    space: &ValueSpace<'_>,
) -> Result<()> {
    if !EXPONENTS.contains(&min_exponent) {
        return Err(Error::bad_option("min_exponent"));
    }
    if codes.len() as u64 != space.count {
        return Err(Error::inconsistent("number of codes"));
    }
    put_i16(out, min_exponent);
    out.push(underflow as u8);
    write_symbols(out, coder, Role::Exponents, codes, space.row_lens);
    scaled::write_signs(out, negative, space.count)
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let offset = cursor.offset();
    let min_exponent = cursor.i16()?;
    if !EXPONENTS.contains(&min_exponent) {
        return Err(Error::out_of_range("min_exponent", u64::from(min_exponent.cast_unsigned()), offset));
    }
    let underflow = match cursor.u8_in("underflow", 0, 2)? {
        0 => Underflow::Unbiased,
        1 => Underflow::Zero,
        _ => Underflow::Smallest,
    };
    let codes = read_symbols(cursor, decoder, space.count, 255)?;
    Ok(Values::Pow2 { min_exponent, underflow, codes, negative: scaled::read_signs(cursor, space.count)? })
}

pub(super) fn numbers(min_exponent: i16, codes: &[u8], negative: &Bits, out: &mut [f32]) {
    // The bits of the magnitude of each code.
    let magnitudes: [u32; 256] = std::array::from_fn(|code| match code as i32 {
        0 => 0,
        code => match i32::from(min_exponent) + code - 1 {
            128.. => f32::INFINITY.to_bits(),
            exponent @ -126..=127 => ((exponent + 127) as u32) << 23,
            exponent @ -149..=-127 => 1 << (exponent + 149),
            _ => 0,
        },
    });
    for (eight, &signs) in
        out.chunks_mut(8).zip(negative.as_bytes()).enumerate().map(|(i, (o, s))| ((i, o), s))
    {
        let (i, out) = eight;
        for (bit, (value, &code)) in out.iter_mut().zip(&codes[i * 8..]).enumerate() {
            *value = f32::from_bits(magnitudes[code as usize] | u32::from(signs >> bit & 1) << 31);
        }
    }
}
