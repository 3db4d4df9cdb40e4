//! A scale per group and a sign per value (spec, values/sign.md).

use crate::arch::{self, Kernel};
use crate::bits::Cursor;
use crate::block::values::{
    Content, Facts, Kind, Structure, Validated, ValueSpace, ValuesId, WireValues, put_numbers, signs,
};
use crate::block::{Bits, Groups, Part, Scales, Values};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, Result};
use crate::limits::Budget;

/// Each element is plus or minus its group's scale: signSGD, 1-bit Adam, sparse ternary compression.
#[derive(Debug, Clone, PartialEq)]
pub struct Sign {
    /// Which values share a scale.
    pub groups: Groups,
    /// The scales.
    pub scales: Scales,
    /// A bit for each value: 1 for minus.
    pub negative: Bits,
}

impl Kind for Sign {
    const ID: ValuesId = ValuesId(3);
    const IS_CORE: bool = true;

    fn facts(&self) -> Facts<'_> {
        Facts {
            content: Content::Numbers {
                no_sum: "each sender has its own scale, and the sum has more than two values",
            },
            structure: Structure::Grouped(self.groups),
            weight: self.negative.len() / 8,
            memory: (self.scales.bytes.len() + self.negative.as_bytes().len()) as u64,
        }
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        write_head(out, self.groups, &self.scales, space)?;
        if self.negative.len() != space.count {
            return Err(Error::inconsistent("number of signs"));
        }
        signs::write(out, coder, &self.negative, space.elements, None);
        Ok(())
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let (groups, scales) = read_head(cursor, space)?;
        let negative = signs::read(cursor, decoder, space.count, space.elements, None)?;
        Ok(Self { groups, scales, negative })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        read_head(cursor, space)?;
        signs::validate(cursor, space.count)?;
        Ok(Validated::numbers(space.count / 8))
    }

    fn beyond_core(
        cursor: &mut Cursor<'_>,
        _: &Decoder<'_>,
        space: &ValueSpace<'_>,
    ) -> Result<Option<&'static str>> {
        read_head(cursor, space)?;
        signs::beyond_core(cursor)
    }

    fn numbers(&self, tensor_counts: &[u64], _: &Budget, out: &mut [f32]) -> Result<()> {
        let Self { groups, scales, negative } = self;
        groups.for_each(out.len(), tensor_counts, |g, range| {
            let (bits, start) = (negative.as_bytes(), range.start);
            arch::run(Signed { scale: scales.get(g), bits, start, out: &mut out[range] });
        });
        Ok(())
    }
}

impl Sign {
    /// Reads the wire form of values of one tensor, and stores them as its elements.
    pub(crate) fn read_into(
        cursor: &mut Cursor<'_>,
        decoder: &Decoder<'_>,
        space: &ValueSpace<'_>,
        out: &mut [u8],
    ) -> Result<()> {
        let (groups, scales) = read_head(cursor, space)?;
        let negative = signs::read(cursor, decoder, space.count, space.elements, None)?;
        let bits = negative.as_bytes();
        let mut groups = groups.visit(space.lens());
        put_numbers(space.dtype, out, |first, numbers| {
            groups.up_to(first + numbers.len(), |g, range| {
                let (start, out) = (range.start, &mut numbers[range.start - first..range.end - first]);
                arch::run(Signed { scale: scales.get(g), bits, start, out });
            });
            Ok(())
        })
    }
}

/// Computes plus or minus a scale for the bits from `start` on.
struct Signed<'a> {
    scale: f32,
    bits: &'a [u8],
    start: usize,
    out: &'a mut [f32],
}

impl Kernel for Signed<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { scale, bits, start, out } = self;
        let signed =
            |byte: u8, bit: usize| f32::from_bits(scale.to_bits() ^ u32::from(byte >> bit & 1) << 31);
        let (head, body) = out.split_at_mut((start.wrapping_neg() % 8).min(out.len()));
        for (i, value) in (start..).zip(head.iter_mut()) {
            *value = signed(bits[i / 8], i % 8);
        }
        let bits = &bits[(start + head.len()) / 8..];
        let (eights, rest) = body.as_chunks_mut::<8>();
        for (eight, &byte) in eights.iter_mut().zip(bits) {
            let word = u32::from(byte) << 24;
            for (value, bit) in eight.iter_mut().zip(0..8) {
                *value = f32::from_bits(scale.to_bits() ^ word << (7 - bit) & 1 << 31);
            }
        }
        let byte = bits.get(eights.len()).copied().unwrap_or(0);
        rest.iter_mut().enumerate().for_each(|(bit, value)| *value = signed(byte, bit));
    }
}

/// Appends the fields before the signs.
fn write_head(out: &mut Vec<u8>, groups: Groups, scales: &Scales, space: &ValueSpace<'_>) -> Result<()> {
    groups.write(out, space)?;
    scales.write(out, groups.count(space))
}

fn read_head(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<(Groups, Scales)> {
    let groups = Groups::read(cursor, space)?;
    Ok((groups, Scales::read(cursor, groups.count(space))?))
}

impl WireValues {
    /// Writes [`Sign`]: `negative` has a bit for each value, 1 for minus.
    ///
    /// # Errors
    /// [`Error::Input`] for groups that are out of range, and for lengths that do not fit the number of
    /// values.
    pub fn sign(
        self,
        groups: Groups,
        scales: &Scales,
        negative: &[u8],
    ) -> Result<Part<'static, Values, ValuesId>> {
        let mut bytes = Vec::new();
        write_head(&mut bytes, groups, scales, &self.space())?;
        if negative.len() as u64 != self.count.div_ceil(8) {
            return Err(Error::inconsistent("number of signs"));
        }
        bytes.push(signs::PLANE);
        bytes.extend_from_slice(negative);
        Ok(Part::Written { id: Sign::ID, bytes: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_gives_the_sign_of_each_bit() {
        let bits: Vec<u8> = (0..40).map(|i: u8| i.wrapping_mul(77) ^ i).collect();
        for form in arch::forms() {
            for (scale, start, len) in [
                (1.5f32, 0, 320),
                (-0.0, 3, 2),
                (f32::NAN, 3, 100),
                (2.0, 319, 1),
                (1.0, 8, 0),
                (-2.5, 0, 64),
            ] {
                let mut out = vec![0.0; len];
                arch::run_as(form, Signed { scale, bits: &bits, start, out: &mut out });
                for (i, x) in (start..).zip(out) {
                    let expected = if bits[i / 8] >> (i % 8) & 1 == 1 { -scale } else { scale };
                    assert_eq!(x.to_bits(), expected.to_bits(), "{form:?} {scale} {i}");
                }
            }
        }
    }
}
