//! Integers with a scale, and a zero point or an offset, per group (spec, values/affine.md).

use crate::bits::Cursor;
use crate::block::values::{
    Content, Facts, Kind, Packed, Structure, Validated, ValueSpace, ValuesId, WireValues, to_number,
};
use crate::block::{Groups, Part, Scales, Values};
use crate::codes::{Coder, Decoder, Role, read_symbols, validate_ints, write_symbols};
use crate::error::{Error, Result};
use crate::limits::Budget;

/// Each element is an integer code of 1 to 8 bits times its group's scale, minus a zero point or plus an
/// offset.
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    /// Bits of a code: 1 to 8.
    pub bits: u8,
    /// Which values share a scale.
    pub groups: Groups,
    /// The scales.
    pub scales: Scales,
    /// The position of zero.
    pub zero: Zero,
    /// A code for each value, each < 2^bits.
    pub codes: Vec<u8>,
}

/// The position of the zero of an affine code.
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
    const NAME: &'static str = "affine";

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
        if codes.len() as u64 != space.count || codes.iter().any(|&c| c > max) {
            return Err(Error::inconsistent("affine codes"));
        }
        write_head(out, *bits, *groups, scales, zero, space)?;
        write_symbols(out, coder, Role::Codes, codes, &[]);
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

    fn numbers(&self, tensor_counts: &[u64], _: &Budget, out: &mut [f32]) -> Result<()> {
        let Self { bits, groups, scales, zero, codes } = self;
        groups.for_each(out.len(), tensor_counts, |g, range| {
            let scale = f64::from(scales.get(g));
            let number = |code: u8| match zero {
                Zero::Centre => scale * (f64::from(code) - f64::from(1u16 << (bits - 1))),
                Zero::Point(points) => scale * (f64::from(code) - f64::from(points[g])),
                Zero::Offset(offsets) => scale * f64::from(code) + f64::from(offsets.get(g)),
            };
            // There are at most 256 different numbers: longer groups look them up in a table.
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
}

impl Affine {
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
