//! Positions drawn from a seed (spec, supports/seeded.md).

use crate::bits::{Cursor, put_u64, put_varint};
use crate::block::Sets;
use crate::block::space::Surroundings;
use crate::block::support::{Facts, Kind, Positions, SupportId, Validated};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, Result};
use crate::random::sample;

/// Positions that the spec's generator draws from a seed, without replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeded {
    /// Number of positions, at most n.
    pub count: u64,
    /// The generator's key.
    pub seed: u64,
}

impl Seeded {
    pub(super) const ID: SupportId = SupportId(7);

    /// Reads all fields.
    fn take(cursor: &mut Cursor<'_>, n: u64) -> Result<Self> {
        let offset = cursor.offset();
        let count = cursor.varint()?;
        if count > n {
            let kind = FormatErrorKind::CountMismatch { field: "number of positions" };
            return Err(Error::format(kind, offset));
        }
        Ok(Self { count, seed: cursor.u64()? })
    }

    /// Charges the budget for drawing the positions.
    pub(super) fn reserve(&self, decoder: &Decoder<'_>, offset: u64) -> Result<()> {
        decoder.budget.reserve_items::<[u64; 2]>(self.count, offset).map(drop)
    }
}

impl Kind for Seeded {
    fn facts(&self) -> Facts {
        Facts { weight: 0, memory: 0 }
    }

    fn check(&self, n: u64) -> Result<()> {
        match self.count <= n {
            true => Ok(()),
            false => Err(Error::inconsistent("more positions than elements")),
        }
    }

    fn count(&self, _: &Surroundings<'_>) -> Result<u64> {
        Ok(self.count)
    }

    fn write(
        &self,
        out: &mut Vec<u8>,
        _: &mut Coder<'_>,
        around: &Surroundings<'_>,
        _: Positions,
    ) -> Result<SupportId> {
        debug_assert!(self.count <= around.space.len());
        put_varint(out, self.count);
        put_u64(out, self.seed);
        Ok(Self::ID)
    }

    fn read(
        cursor: &mut Cursor<'_>,
        decoder: &mut Decoder<'_>,
        _: SupportId,
        around: &Surroundings<'_>,
    ) -> Result<Self> {
        let offset = cursor.offset();
        let seeded = Self::take(cursor, around.space.len())?;
        seeded.reserve(decoder, offset)?;
        Ok(seeded)
    }

    fn validate(cursor: &mut Cursor<'_>, _: SupportId, around: &Surroundings<'_>) -> Result<Validated> {
        Ok(Validated::new(Self::take(cursor, around.space.len())?.count, 0))
    }

    fn for_each_run(&self, n: u64, _: &Sets, f: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        sample(n, self.count, self.seed).into_iter().try_for_each(|p| f(p, 1))
    }
}
