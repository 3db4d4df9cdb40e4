//! The positions of an index set (spec, supports/set.md).

use std::sync::Arc;

use crate::bits::Cursor;
use crate::block::space::Surroundings;
use crate::block::support::{Facts, Kind, Positions, SupportId, Validated};
use crate::block::{Sets, SharedSet, Support};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, InputErrorKind, Result};

/// The positions of an index set that was sent as a frame of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set {
    /// The set's id.
    pub id: SetId,
}

/// The hash that names an index set: BLAKE3 of its frame's body.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(pub [u8; 32]);
crate::block::debug_as_hex!(SetId);

impl Set {
    pub(super) const ID: SupportId = SupportId(8);

    /// Reads all fields.
    pub(crate) fn take(cursor: &mut Cursor<'_>) -> Result<Self> {
        Ok(Self { id: SetId(cursor.array()?) })
    }

    fn find<'a>(&self, sets: &'a Sets) -> Result<&'a Arc<SharedSet>> {
        sets.get(&self.id).ok_or_else(|| self.missing())
    }

    /// The error for a set that is not known.
    fn missing(&self) -> Error {
        Error::input(InputErrorKind::MissingIndexSet { id: std::array::from_fn(|i| self.id.0[i]) })
    }
}

impl Kind for Set {
    fn facts(&self) -> Facts {
        Facts { weight: 0, memory: 0 }
    }

    fn check(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn count(&self, around: &Surroundings<'_>) -> Result<u64> {
        Ok(self.find(around.sets)?.count)
    }

    fn write(
        &self,
        out: &mut Vec<u8>,
        _: &mut Coder<'_>,
        _: &Surroundings<'_>,
        _: Positions,
    ) -> Result<SupportId> {
        out.extend_from_slice(&self.id.0);
        Ok(Self::ID)
    }

    fn read(
        cursor: &mut Cursor<'_>,
        decoder: &mut Decoder<'_>,
        _: SupportId,
        around: &Surroundings<'_>,
    ) -> Result<Self> {
        let offset = cursor.offset();
        let set = Self::take(cursor)?;
        let shared = around.sets.get(&set.id);
        let shared =
            shared.ok_or(Error::format(FormatErrorKind::UnknownReference { field: "index set" }, offset))?;
        if shared.scope != around.scope || shared.manifest != around.manifest {
            return Err(Error::format(FormatErrorKind::CountMismatch { field: "index set" }, offset));
        }
        if let Support::Seeded(seeded) = &shared.support {
            // Each block that refers to the set draws the positions again.
            seeded.reserve(decoder, offset)?;
        }
        Ok(set)
    }

    fn validate(cursor: &mut Cursor<'_>, _: SupportId, around: &Surroundings<'_>) -> Result<Validated> {
        let set = Self::take(cursor)?;
        let shared = set.find(around.sets)?;
        match shared.scope == around.scope && shared.manifest == around.manifest {
            true => Ok(Validated::new(shared.count, 0)),
            false => Err(set.missing()),
        }
    }

    fn for_each_run(&self, n: u64, sets: &Sets, f: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        self.find(sets)?.support.for_each_run(n, sets, f)
    }
}
