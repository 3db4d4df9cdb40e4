//! A scale per group and a sign per value (spec, values/sign.md).

use crate::bits::Cursor;
use crate::block::values::{Content, Facts, Kind, Structure, Validated, ValueSpace, ValuesId, WireValues};
use crate::block::{Bits, Groups, Part, Scales, Values};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, Result};
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
    const NAME: &'static str = "sign";

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

    fn write(&self, out: &mut Vec<u8>, _: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        write_head(out, self.groups, &self.scales, space)?;
        if self.negative.len() != space.count {
            return Err(Error::inconsistent("number of signs"));
        }
        out.extend_from_slice(self.negative.as_bytes());
        Ok(())
    }

    fn read(cursor: &mut Cursor<'_>, _: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let (groups, scales) = read_head(cursor, space)?;
        let bytes = cursor.take(space.count.div_ceil(8))?;
        let negative = Bits::from_bytes(space.count, bytes.to_vec()).ok_or_else(|| padding(cursor))?;
        Ok(Self { groups, scales, negative })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        read_head(cursor, space)?;
        let bytes = cursor.take(space.count.div_ceil(8))?;
        match Bits::is_valid(space.count, bytes) {
            true => Ok(Validated::numbers(space.count / 8)),
            false => Err(padding(cursor)),
        }
    }

    fn numbers(&self, tensor_counts: &[u64], _: &Budget, out: &mut [f32]) -> Result<()> {
        let Self { groups, scales, negative } = self;
        groups.for_each(out.len(), tensor_counts, |g, range| {
            let scale = scales.get(g);
            range.for_each(|i| out[i] = if negative.get(i) { -scale } else { scale });
        });
        Ok(())
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

/// The error for padding bits that are set in the byte before the cursor.
fn padding(cursor: &Cursor<'_>) -> Error {
    Error::format(FormatErrorKind::NonzeroPadding, cursor.offset().saturating_sub(1))
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
        bytes.extend_from_slice(negative);
        Ok(Part::Written { id: Sign::ID, bytes: bytes.into() })
    }
}
