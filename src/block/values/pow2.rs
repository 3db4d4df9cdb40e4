//! Powers of two (spec, values/pow2.md).

use crate::arch::{self, Kernel};
use crate::bits::{Cursor, PlaneReader, PlaneWriter, gather_bits, put_i16, scatter_bits};
use crate::block::values::{
    Content, Facts, Kind, Packed, Structure, Validated, ValueSpace, ValuesId, WireValues, put_numbers, signs,
};
use crate::block::{Bits, Part, Values};
use crate::codes::{
    Coder, Decoder, PIECE, SymbolReader, beyond_core, read_symbols, validate_ints, write_exponents,
};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::Budget;

/// Each element is zero or a power of two: code 0 is zero, code c is 2^(min_exponent + c - 1). Natural
/// Compression (arXiv 1905.10988).
#[derive(Debug, Clone, PartialEq)]
pub struct Pow2 {
    /// Exponent of code 1: -1074 to 1023.
    pub min_exponent: i16,
    /// How the sender treated magnitudes below the smallest power.
    pub underflow: Underflow,
    /// A code for each value.
    pub codes: Vec<u8>,
    /// A bit for each value: 1 for minus. Zeros have no sign, so their bit is 0.
    pub negative: Bits,
}

/// How the sender treated magnitudes between zero and the smallest power of two. Readers need not use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Underflow {
    /// Zero or the smallest power at random, without bias.
    Unbiased = 0,
    /// Zero.
    Zero = 1,
    /// The smallest power.
    Smallest = 2,
}

/// The range of the exponent of code 1.
const EXPONENTS: std::ops::RangeInclusive<i16> = -1074..=1023;

impl Kind for Pow2 {
    const ID: ValuesId = ValuesId(4);
    const IS_CORE: bool = true;

    fn facts(&self) -> Facts<'_> {
        Facts {
            content: Content::Numbers { no_sum: "the sum of two powers of two is not one" },
            structure: Structure::Flat,
            weight: self.codes.len() as u64,
            memory: (self.codes.len() + self.negative.as_bytes().len()) as u64,
        }
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        write_head(out, self.min_exponent, self.underflow)?;
        if self.codes.len() as u64 != space.count {
            return Err(Error::inconsistent("number of codes"));
        }
        write_exponents(out, coder, &self.codes, space.row_lens);
        let signs = gather_signs(&self.codes, &self.negative)?;
        signs::write(out, coder, &signs, space.elements, Some(&self.codes));
        Ok(())
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let (min_exponent, underflow) = read_head(cursor)?;
        let codes = read_symbols(cursor, decoder, space.count, 255)?;
        decoder.budget.reserve_items::<u8>(space.count.div_ceil(8), cursor.offset())?;
        let negative = read_signs(cursor, decoder, &codes, space)?;
        Ok(Self { min_exponent, underflow, codes, negative })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        let offset = cursor.offset();
        read_head(cursor)?;
        validate_ints(cursor, space.count)?;
        // Only the codes tell how many of them are above 0 and have a sign. Where raw bits of codes end is
        // not known either.
        let signs = cursor.take_rest();
        if signs.first() == Some(&signs::PLANE) && signs.len() as u64 > 1 + space.count.div_ceil(8) {
            return Err(Error::format(FormatErrorKind::LengthMismatch { field: "signs" }, offset));
        }
        Ok(Validated::numbers(space.count))
    }

    fn beyond_core(
        cursor: &mut Cursor<'_>,
        decoder: &Decoder<'_>,
        space: &ValueSpace<'_>,
    ) -> Result<Option<&'static str>> {
        read_head(cursor)?;
        if let Some(coding) = beyond_core(cursor, space.count)? {
            return Ok(Some(coding));
        }
        SymbolReader::new(cursor, decoder, space.count, 255)?;
        signs::beyond_core(cursor)
    }

    fn numbers(&self, _: &[u64], _: &Budget, out: &mut [f32]) -> Result<()> {
        self.numbers_from(0, out);
        Ok(())
    }
}

impl Pow2 {
    /// The numbers of the values from `start` on.
    pub(crate) fn numbers_from(&self, start: usize, out: &mut [f32]) {
        let Self { min_exponent, codes, negative, .. } = self;
        let signs = negative.as_bytes().get(start / 8..).unwrap_or_default();
        let codes = &codes[start..];
        arch::run(Numbers { min_exponent: *min_exponent, codes, signs, first: start % 8, out });
    }

    /// Reads the wire form, and stores the numbers as elements.
    pub(crate) fn read_into(
        cursor: &mut Cursor<'_>,
        decoder: &Decoder<'_>,
        space: &ValueSpace<'_>,
        out: &mut [u8],
    ) -> Result<()> {
        let (min_exponent, underflow) = read_head(cursor)?;
        let mut reader = SymbolReader::new(cursor, decoder, space.count, 255)?;
        if cursor.clone().u8()? != signs::PLANE {
            // Predictions need the codes of all values.
            let len = decoder.budget.reserve_items::<[u8; 2]>(space.count, cursor.offset())?;
            let mut codes = vec![0; len];
            codes.chunks_mut(PIECE).try_for_each(|piece| reader.fill(piece))?;
            let negative = read_signs(cursor, decoder, &codes, space)?;
            let values = Self { min_exponent, underflow, codes, negative };
            return put_numbers(space.dtype, out, |first, numbers| {
                values.numbers_from(first, numbers);
                Ok(())
            });
        }
        cursor.u8()?;
        let offset = cursor.offset();
        let mut plane = PlaneReader::new(cursor.take_rest(), offset);
        let (mut codes, mut signs) = ([0; PIECE], [0; PIECE / 8]);
        put_numbers(space.dtype, out, |_, numbers| {
            let codes = &mut codes[..numbers.len()];
            reader.fill(codes)?;
            let mut words = signs.as_chunks_mut::<8>().0.iter_mut();
            for_each_mask(codes, |mask| {
                let here = scatter_bits(plane.get(mask.count_ones()), mask);
                words.next().into_iter().for_each(|word| *word = here.to_le_bytes());
                Ok(())
            })?;
            arch::run(Numbers { min_exponent, codes, signs: &signs, first: 0, out: numbers });
            Ok(())
        })?;
        plane.finish("signs")
    }
}

/// Appends the fields before the codes.
fn write_head(out: &mut Vec<u8>, min_exponent: i16, underflow: Underflow) -> Result<()> {
    if !EXPONENTS.contains(&min_exponent) {
        return Err(Error::inconsistent("min_exponent"));
    }
    put_i16(out, min_exponent);
    out.push(underflow as u8);
    Ok(())
}

fn read_head(cursor: &mut Cursor<'_>) -> Result<(i16, Underflow)> {
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

impl WireValues {
    /// Writes [`Pow2`]: `signs` has a bit for each code above 0, in the order of the values; 1 for minus.
    ///
    /// # Errors
    /// As [`Self::sign`], and for a `min_exponent` out of range.
    pub fn pow2(
        self,
        min_exponent: i16,
        underflow: Underflow,
        codes: Packed<'_>,
        signs: &[u8],
    ) -> Result<Part<'static, Values, ValuesId>> {
        let mut bytes = Vec::new();
        write_head(&mut bytes, min_exponent, underflow)?;
        self.ints(&mut bytes, codes)?;
        if signs.len() as u64 > self.count.div_ceil(8) {
            return Err(Error::inconsistent("number of signs"));
        }
        bytes.push(signs::PLANE);
        bytes.extend_from_slice(signs);
        Ok(Part::Written { id: Pow2::ID, bytes: bytes.into() })
    }
}

/// Returns the bits of the codes above 0.
fn gather_signs(codes: &[u8], negative: &Bits) -> Result<Bits> {
    if negative.len() != codes.len() as u64 {
        return Err(Error::inconsistent("number of signs"));
    }
    let mut gathered = Vec::with_capacity(codes.len() / 8 + 8);
    let mut count = 0u64;
    let mut plane = PlaneWriter::new(&mut gathered);
    let mut signs = negative.as_bytes().chunks(8);
    for_each_mask(codes, |mask| {
        let signs = word(signs.next().unwrap_or_default());
        if signs & !mask != 0 {
            return Err(Error::inconsistent("sign of a zero"));
        }
        plane.put(gather_bits(signs, mask), mask.count_ones());
        count += u64::from(mask.count_ones());
        Ok(())
    })?;
    plane.finish();
    Bits::from_bytes(count, gathered).ok_or(Error::inconsistent("number of signs"))
}

/// Reads the signs of the codes above 0; the others have the bit 0.
fn read_signs(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    codes: &[u8],
    space: &ValueSpace<'_>,
) -> Result<Bits> {
    let mut count = 0;
    for_each_mask(codes, |mask| {
        count += u64::from(mask.count_ones());
        Ok(())
    })?;
    scatter_signs(codes, &signs::read(cursor, decoder, count, space.elements, Some(codes))?)
}

/// Inverts [`gather_signs`].
fn scatter_signs(codes: &[u8], signs: &Bits) -> Result<Bits> {
    let mut plane = PlaneReader::new(signs.as_bytes(), 0);
    let mut scattered = Vec::with_capacity(codes.len().next_multiple_of(64) / 8);
    for_each_mask(codes, |mask| {
        scattered.extend(scatter_bits(plane.get(mask.count_ones()), mask).to_le_bytes());
        Ok(())
    })?;
    scattered.truncate(codes.len().div_ceil(8));
    Bits::from_bytes(codes.len() as u64, scattered).ok_or(Error::inconsistent("number of signs"))
}

/// Calls `f` with a mask for each 64 codes: a bit is set where the code is above 0.
fn for_each_mask(codes: &[u8], mut f: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let mut masks = [0; PIECE / 64];
    for codes in codes.chunks(PIECE) {
        let masks = &mut masks[..codes.len().div_ceil(64)];
        arch::masks::nonzero(arch::widest(), codes, masks);
        masks.iter().try_for_each(|&mask| f(mask))?;
    }
    Ok(())
}

/// Up to eight bytes as a word.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().zip(0..).fold(0, |word, (&byte, i)| word | u64::from(byte) << (8 * i))
}

struct Numbers<'a> {
    min_exponent: i16,
    codes: &'a [u8],
    /// A bit for each value, from bit `first` of the first byte on.
    signs: &'a [u8],
    first: usize,
    out: &'a mut [f32],
}

impl Kernel for Numbers<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { min_exponent, codes, signs, first, out } = self;
        // Without subnormals, a magnitude has exponent bits only; exponent 255 is infinity.
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
        let (head, body) = out.split_at_mut(((8 - first) % 8).min(out.len()));
        let byte = signs.first().copied().unwrap_or(0);
        for (value, bit) in head.iter_mut().zip(first..) {
            signed(value, u32::from(byte) >> bit & 1);
        }
        let signs = signs.get((first + head.len()) / 8..).unwrap_or_default();
        let (eights, rest) = body.as_chunks_mut::<8>();
        for (eight, &signs) in eights.iter_mut().zip(signs) {
            // A loop without a closure is compiled for the instructions of the kernel around it.
            for (value, bit) in eight.iter_mut().zip(0..8) {
                *value = f32::from_bits(value.to_bits() | u32::from(signs) << (31 - bit) & 1 << 31);
            }
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
            let signs = gather_signs(&codes, &negative).unwrap();
            assert_eq!(signs.len(), codes.iter().filter(|&&code| code != 0).count() as u64);
            assert_eq!(scatter_signs(&codes, &signs).unwrap(), negative);
        }
        let of_a_zero: Bits = [false, true].into_iter().collect();
        assert!(gather_signs(&[1, 0], &of_a_zero).is_err());
        assert!(gather_signs(&[1], &of_a_zero).is_err());
        let two: Bits = [false; 2].into_iter().collect();
        assert!(gather_signs(&[1], &two).is_err() && gather_signs(&[1; 3], &two).is_err());
    }

    #[test]
    fn there_are_at_most_as_many_signs_as_values() {
        let values = WireValues { count: 9, tensors: 1 };
        let codes = Packed { width: 1, plane: &[0xff, 1] };
        let write = |signs: &[u8]| values.pow2(0, Underflow::Zero, codes, signs);
        assert!(write(&[0xff, 1]).is_ok() && write(&[]).is_ok());
        assert!(matches!(write(&[0xff, 1, 0]), Err(Error::Input(_))));
    }

    #[test]
    fn numbers_from_any_place_are_those_of_their_codes() {
        let codes: Vec<u8> = (0..=255).cycle().take(600).collect();
        let negative: Bits = (0..600).map(|i| i * i % 7 < 3).collect();
        for min_exponent in [-1074, -300, -149, -130, -126, -30, 0, 120, 1023] {
            let magnitudes = magnitudes(min_exponent);
            let (codes, negative) = (codes.clone(), negative.clone());
            let values = Pow2 { min_exponent, underflow: Underflow::Zero, codes, negative };
            for (start, len) in [(0, 600), (0, 5), (3, 2), (3, 100), (8, 64), (599, 1), (600, 0)] {
                let mut out = vec![0.0; len];
                values.numbers_from(start, &mut out);
                for (i, x) in (start..).zip(out) {
                    let sign = u32::from(values.negative.get(i)) << 31;
                    assert_eq!(
                        x.to_bits(),
                        magnitudes[usize::from(values.codes[i])] | sign,
                        "{min_exponent} {i}"
                    );
                }
            }
        }
    }
}
