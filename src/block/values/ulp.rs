//! Differences in units of the last place (spec, values/ulp.md).

use crate::arch::pages;
use crate::bits::{Cursor, unzigzag, zigzag};
use crate::block::values::{Content, Facts, Kind, Structure, Validated, ValueSpace, ValuesId};
use crate::codes::{
    Coder, Decoder, Role, read_grouped_ints, validate_grouped_ints, write_grouped_ints,
    write_small_grouped_ints,
};
use crate::error::{Error, Result};

/// The difference to a base tensor in units of the last place.
#[derive(Debug, Clone, PartialEq)]
pub struct Ulp {
    /// A difference for each value.
    pub diffs: Vec<i64>,
}

impl Kind for Ulp {
    const ID: ValuesId = ValuesId(10);
    const NAME: &'static str = "ulp";

    fn facts(&self) -> Facts<'_> {
        let len = self.diffs.len() as u64;
        Facts {
            content: Content::Ulps(&self.diffs),
            structure: Structure::Flat,
            weight: len,
            memory: 8 * len,
        }
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        // The bits of all codes: no code needs more bits than they do.
        let bits = self.diffs.iter().fold(0, |bits, &d| bits | zigzag(d));
        if self.diffs.len() as u64 != space.count || bits > max_zigzag(space.dtype.bits()) {
            return Err(Error::inconsistent("differences"));
        }
        if bits < 256 {
            let codes: Vec<u8> = self.diffs.iter().map(|&d| zigzag(d) as u8).collect();
            write_small_grouped_ints(out, coder, Role::Ulps, &codes, space.group_counts);
            return Ok(());
        }
        let mut codes = pages::with_room(self.diffs.len());
        codes.extend(self.diffs.iter().map(|&d| zigzag(d)));
        write_grouped_ints(out, coder, Role::Ulps, &codes, space.group_counts);
        Ok(())
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let max = max_zigzag(space.dtype.bits());
        let codes = read_grouped_ints(cursor, decoder, space.count, max, space.group_counts)?;
        Ok(Self { diffs: codes.into_iter().map(unzigzag).collect() })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        validate_grouped_ints(cursor, space.count, space.group_counts)?;
        Ok(Validated::bits(space.count))
    }
}

/// The largest zigzag code of a signed number of `bits` bits.
fn max_zigzag(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}
