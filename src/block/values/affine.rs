//! Integers with a scale, and a zero point or an offset, per group (spec, values/affine.md).

use crate::arch::{self, Kernel};
use crate::bits::Cursor;
use crate::block::values::{
    Content, Facts, Kind, Packed, Structure, Validated, ValueSpace, ValuesId, WireValues, put_numbers,
    to_number,
};
use crate::block::{Groups, Part, Scales, Values};
use crate::codes::{
    Coder, Decoder, PIECE, Role, SymbolReader, beyond_core, read_symbols, validate_ints, write_symbols,
};
use crate::error::{Error, Result};
use crate::limits::Budget;

/// Each element is an integer code of 1 to 8 bits: less a zero point, times its group's scale; or times the
/// scale, plus an offset.
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    /// Bits of a code: 1 to 8.
    pub bits: u8,
    /// Which values share a scale.
    pub groups: Groups,
    /// The scales.
    pub scales: Scales,
    /// How a code represents zero.
    pub zero: Zero,
    /// A code for each value, each < 2^bits.
    pub codes: Vec<u8>,
}

/// How an affine code represents zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Zero {
    /// Code 2^(bits-1) in all groups.
    Centre,
    /// This code, one for each group.
    Point(Vec<u8>),
    /// The value is `scale * code + offset`, with one offset for each group.
    Offset(Scales),
}

impl Kind for Affine {
    const ID: ValuesId = ValuesId(6);
    const IS_CORE: bool = true;

    fn facts(&self) -> Facts<'_> {
        Facts {
            content: Content::Numbers { no_sum: "each sender's codes are relative to its own scale" },
            structure: Structure::Grouped(self.groups),
            weight: self.codes.len() as u64,
            // Zero points or offsets count as much as the scales.
            memory: (self.codes.len() + 2 * self.scales.bytes.len()) as u64,
        }
    }

    fn label(&self) -> String {
        format!("affine {} bit", self.bits)
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        let Self { bits, groups, scales, zero, codes } = self;
        check_bits(*bits)?;
        let max = max_code(*bits);
        if codes.len() as u64 != space.count || codes.iter().fold(0, |most, &c| c.max(most)) > max {
            return Err(Error::inconsistent("affine codes"));
        }
        write_head(out, *bits, *groups, scales, zero, space)?;
        write_symbols(out, coder, Role::Codes, codes);
        Ok(())
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let head = Self::read_head(cursor, space)?;
        let codes = read_symbols(cursor, decoder, space.count, max_code(head.bits))?;
        Ok(Self { codes, ..head })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        Self::read_head(cursor, space)?;
        validate_ints(cursor, space.count)?;
        Ok(Validated::numbers(space.count))
    }

    fn beyond_core(
        cursor: &mut Cursor<'_>,
        _: &Decoder<'_>,
        space: &ValueSpace<'_>,
    ) -> Result<Option<&'static str>> {
        Self::read_head(cursor, space)?;
        beyond_core(cursor, space.count)
    }

    fn numbers(&self, tensor_counts: &[u64], _: &Budget, out: &mut [f32]) -> Result<()> {
        let Self { groups, codes, .. } = self;
        groups.for_each(out.len(), tensor_counts, |g, range| {
            self.group_numbers(g, &codes[range.clone()], &mut out[range]);
        });
        Ok(())
    }
}

impl Affine {
    /// Computes the numbers of some codes of group `g`.
    fn group_numbers(&self, g: usize, codes: &[u8], out: &mut [f32]) {
        let Self { bits, scales, zero, .. } = self;
        let scale = scales.get(g);
        let zero = match zero {
            Zero::Centre => 1 << (bits - 1),
            Zero::Point(points) => points[g].into(),
            Zero::Offset(offsets) => {
                let offset = f64::from(offsets.get(g));
                let number = |code: u8| to_number(f64::from(scale) * f64::from(code) + offset);
                return each_code(codes, out, number);
            }
        };
        if scale.is_finite() {
            return arch::run(Scaled { scale, zero, codes, out });
        }
        each_code(codes, out, |code| to_number(f64::from(scale) * f64::from(i32::from(code) - zero)));
    }

    /// Reads the wire form, and stores the numbers as elements.
    pub(crate) fn read_into(
        cursor: &mut Cursor<'_>,
        decoder: &Decoder<'_>,
        space: &ValueSpace<'_>,
        out: &mut [u8],
    ) -> Result<()> {
        let head = Self::read_head(cursor, space)?;
        let mut groups = head.groups.visit(space.lens());
        let mut reader = SymbolReader::new(cursor, decoder, space.count, max_code(head.bits))?;
        let mut codes = [0; PIECE];
        put_numbers(space.dtype, out, |start, numbers| {
            let codes = &mut codes[..numbers.len()];
            reader.fill(codes)?;
            groups.up_to(start + numbers.len(), |g, range| {
                let range = range.start - start..range.end - start;
                head.group_numbers(g, &codes[range.clone()], &mut numbers[range]);
            });
            Ok(())
        })
    }

    /// Reads the fields before the codes; `codes` stays empty.
    fn read_head(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Self> {
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
        Ok(Self { bits, groups, scales, zero, codes: Vec::new() })
    }
}

/// Computes a number for each code. There are at most 256 different numbers: longer groups look them up in a
/// table.
fn each_code(codes: &[u8], out: &mut [f32], number: impl Fn(u8) -> f32) {
    if codes.len() < 256 {
        return out.iter_mut().zip(codes).for_each(|(v, &c)| *v = number(c));
    }
    let table: [f32; 256] = std::array::from_fn(|code| number(code as u8));
    out.iter_mut().zip(codes).for_each(|(v, &c)| *v = table[usize::from(c)]);
}

/// Computes the products of codes and a finite scale.
///
/// The spec rounds the exact product, which has 33 bits at most, to a 32-bit float. So does a product of
/// 32-bit floats.
struct Scaled<'a> {
    scale: f32,
    zero: i32,
    codes: &'a [u8],
    out: &'a mut [f32],
}

impl Kernel for Scaled<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (value, &code) in self.out.iter_mut().zip(self.codes) {
            *value = self.scale * (i32::from(code) - self.zero) as f32;
        }
    }
}

/// Appends the fields before the codes.
fn write_head(
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

fn check_bits(bits: u8) -> Result<()> {
    if (1..=8).contains(&bits) { Ok(()) } else { Err(Error::inconsistent("bits")) }
}

/// The largest code of `bits` bits, 1 to 8.
fn max_code(bits: u8) -> u8 {
    (0xffu16 >> (8 - u16::from(bits))) as u8
}

impl WireValues {
    /// Writes [`Affine`].
    ///
    /// # Errors
    /// As [`Self::sign`], and for `bits` out of range.
    pub fn affine(
        self,
        bits: u8,
        groups: Groups,
        scales: &Scales,
        zero: &Zero,
        codes: Packed<'_>,
    ) -> Result<Part<'static, Values, ValuesId>> {
        let mut bytes = Vec::new();
        write_head(&mut bytes, bits, groups, scales, zero, &self.space())?;
        self.ints(&mut bytes, codes)?;
        Ok(Part::Written { id: Affine::ID, bytes: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::ScaleFormat;

    #[test]
    fn products_are_those_of_the_spec() {
        let codes: Vec<u8> = (0..=255).collect();
        let scales = [0.0, 1.0, 1e-45, 3.3e-41, 1.17e-38, 0.1, 2.6e36, 3.4e38, f32::INFINITY, f32::NAN, -1.5];
        for scale in scales {
            for (zero, of) in [(Zero::Centre, 128), (Zero::Point(vec![7]), 7)] {
                let scales = Scales::from_f32s(ScaleFormat::F32, &[scale]);
                let groups = Groups::Block;
                let values = Affine { bits: 8, groups, scales, zero, codes: codes.clone() };
                for len in [255, 256] {
                    let mut out = vec![0.0; len];
                    values.group_numbers(0, &codes[..len], &mut out);
                    for (number, &code) in out.iter().zip(&codes) {
                        let exact = f64::from(scale) * (f64::from(code) - f64::from(of));
                        assert_eq!(number.to_bits(), to_number(exact).to_bits(), "{scale} {code}");
                    }
                }
            }
        }
    }
}
