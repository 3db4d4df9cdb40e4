//! Powers of two (spec, values/pow2.md; Natural Compression, arXiv 1905.10988).

use crate::arch::{self, Kernel};
use crate::bits::{Cursor, PlaneReader, PlaneWriter, gather_bits, pack_bits, put_i16, scatter_bits};
use crate::block::values::ValueSpace;
use crate::block::{Bits, Underflow, Values};
use crate::codes::{Coder, Decoder, Role, read_symbols, write_symbols};
use crate::error::{Error, Result};

/// The range of the exponent of code 1.
pub(super) const EXPONENTS: std::ops::RangeInclusive<i16> = -1074..=1023;

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
    write_signs(out, codes, negative)
}

/// A bit for each code above 0.
fn write_signs(out: &mut Vec<u8>, codes: &[u8], negative: &Bits) -> Result<()> {
    if negative.len() != codes.len() as u64 {
        return Err(Error::inconsistent("number of signs"));
    }
    let mut plane = PlaneWriter::new(out);
    let mut signs = negative.as_bytes().chunks(8);
    for_each_mask(codes, |mask| {
        let signs = word(signs.next().unwrap_or_default());
        if signs & !mask != 0 {
            return Err(Error::inconsistent("sign of a zero"));
        }
        plane.put(gather_bits(signs, mask), mask.count_ones());
        Ok(())
    })?;
    plane.finish();
    Ok(())
}

fn read_signs(cursor: &mut Cursor<'_>, codes: &[u8]) -> Result<Bits> {
    let count: u64 = codes.iter().map(|&code| u64::from(code != 0)).sum();
    let offset = cursor.offset();
    let mut plane = PlaneReader::new(cursor.take(count.div_ceil(8))?, offset);
    let mut signs = Vec::with_capacity(codes.len().next_multiple_of(64) / 8);
    for_each_mask(codes, |mask| {
        signs.extend(scatter_bits(plane.get(mask.count_ones()), mask).to_le_bytes());
        Ok(())
    })?;
    plane.finish("signs")?;
    signs.truncate(codes.len().div_ceil(8));
    Bits::from_bytes(codes.len() as u64, signs).ok_or(Error::inconsistent("number of signs"))
}

/// Which of each 64 codes are above 0, a bit for each.
fn for_each_mask(codes: &[u8], mut f: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let (rows, rest) = codes.as_chunks::<64>();
    for row in rows {
        f(pack_bits(&row.map(|code| u8::from(code != 0))))?;
    }
    if rest.is_empty() {
        return Ok(());
    }
    f(rest.iter().zip(0..).fold(0, |mask, (&code, i)| mask | u64::from(code != 0) << i))
}

/// Up to eight bytes as a word.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().zip(0..).fold(0, |word, (&byte, i)| word | u64::from(byte) << (8 * i))
}

pub(super) fn read_head(cursor: &mut Cursor<'_>) -> Result<(i16, Underflow)> {
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
    Ok((min_exponent, underflow))
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let (min_exponent, underflow) = read_head(cursor)?;
    let codes = read_symbols(cursor, decoder, space.count, 255)?;
    decoder.budget.reserve_items::<u8>(space.count.div_ceil(8), cursor.offset())?;
    let negative = read_signs(cursor, &codes)?;
    Ok(Values::Pow2 { min_exponent, underflow, codes, negative })
}

/// The numbers of the values from `start` on.
pub(crate) fn numbers(min_exponent: i16, codes: &[u8], negative: &Bits, start: usize, out: &mut [f32]) {
    arch::run(Numbers { min_exponent, codes: &codes[start..], negative, start, out });
}

struct Numbers<'a> {
    min_exponent: i16,
    codes: &'a [u8],
    negative: &'a Bits,
    start: usize,
    out: &'a mut [f32],
}

impl Kernel for Numbers<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { min_exponent, codes, negative, start, out } = self;
        // Where no code gives a subnormal a magnitude's bits are its exponent's; 255 is infinity.
        if min_exponent >= -126 {
            let base = (i32::from(min_exponent) + 126) as u32;
            for (value, &code) in out.iter_mut().zip(codes) {
                let exponent = (u32::from(code) + base).min(255);
                *value = f32::from_bits(if code == 0 { 0 } else { exponent << 23 });
            }
        } else {
            let magnitudes = magnitudes(min_exponent);
            for (value, &code) in out.iter_mut().zip(codes) {
                *value = f32::from_bits(magnitudes[usize::from(code)]);
            }
        }
        let signed = |value: &mut f32, bit: u32| *value = f32::from_bits(value.to_bits() | bit << 31);
        let head = (start.wrapping_neg() % 8).min(out.len());
        let (head, body) = out.split_at_mut(head);
        for (i, value) in head.iter_mut().enumerate() {
            signed(value, negative.get(start + i).into());
        }
        let signs = negative.as_bytes().get((start + head.len()) / 8..).unwrap_or_default();
        let (eights, rest) = body.as_chunks_mut::<8>();
        for (eight, &signs) in eights.iter_mut().zip(signs) {
            eight.iter_mut().zip(0..).for_each(|(value, bit)| signed(value, u32::from(signs) >> bit & 1));
        }
        let signs = signs.get(eights.len()).copied().unwrap_or(0);
        rest.iter_mut().zip(0..).for_each(|(value, bit)| signed(value, u32::from(signs) >> bit & 1));
    }
}

/// The bits of the magnitude of each code.
fn magnitudes(min_exponent: i16) -> [u32; 256] {
    std::array::from_fn(|code| match code as i32 {
        0 => 0,
        code => match i32::from(min_exponent) + code - 1 {
            128.. => f32::INFINITY.to_bits(),
            exponent @ -126..=127 => ((exponent + 127) as u32) << 23,
            exponent @ -149..=-127 => 1 << (exponent + 149),
            _ => 0,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_of_codes_above_zero_only() {
        for len in [0, 1, 63, 64, 65, 128, 200] {
            let codes: Vec<u8> = (0..len).map(|i| (i * i % 5 % 3) as u8).collect();
            let negative: Bits = codes.iter().enumerate().map(|(i, &code)| code != 0 && i % 3 == 0).collect();
            let mut bytes = Vec::new();
            write_signs(&mut bytes, &codes, &negative).unwrap();
            assert_eq!(bytes.len(), codes.iter().filter(|&&code| code != 0).count().div_ceil(8));
            let mut cursor = Cursor::new(&bytes, 0, "signs");
            assert_eq!(read_signs(&mut cursor, &codes).unwrap(), negative);
            assert_eq!(cursor.remaining(), 0);
        }
        let of_a_zero: Bits = [false, true].into_iter().collect();
        assert!(write_signs(&mut Vec::new(), &[1, 0], &of_a_zero).is_err());
        assert!(write_signs(&mut Vec::new(), &[1], &of_a_zero).is_err());
    }

    #[test]
    fn numbers_from_any_place_are_those_of_their_codes() {
        let codes: Vec<u8> = (0..=255).cycle().take(600).collect();
        let negative: Bits = (0..600).map(|i| i * i % 7 < 3).collect();
        for min_exponent in [-1074, -300, -149, -130, -126, -30, 0, 120, 1023] {
            let magnitudes = magnitudes(min_exponent);
            for (start, len) in [(0, 600), (0, 5), (3, 2), (3, 100), (8, 64), (599, 1), (600, 0)] {
                let mut out = vec![0.0; len];
                numbers(min_exponent, &codes, &negative, start, &mut out);
                for (i, x) in (start..).zip(out) {
                    let sign = u32::from(negative.get(i)) << 31;
                    assert_eq!(x.to_bits(), magnitudes[usize::from(codes[i])] | sign, "{min_exponent} {i}");
                }
            }
        }
    }
}
