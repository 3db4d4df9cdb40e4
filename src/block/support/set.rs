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
crate::bits::debug_as_hex!(SetId);

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{IndexSpace, Scope, Sparse};
    use crate::limits::{Budget, Limits};
    use crate::tensor::Dtype;

    #[test]
    fn a_set_of_another_scope_or_manifest_is_refused() {
        let set = Set { id: SetId([7; 32]) };
        let support = Support::Sparse(Sparse { positions: vec![1, 4] });
        let shared = SharedSet { manifest: [3; 32], scope: Scope::Tensor(5), support, count: 2 };
        let (space, sets) = (IndexSpace::flat(Dtype::F32, 12), Sets::from([(set.id, Arc::new(shared))]));
        let budget = Budget::new(&Limits::default());
        for (tensor, manifest, fits) in [(5, 3, true), (4, 3, false), (5, 2, false), (4, 2, false)] {
            let (manifest, scope) = ([manifest; 32], Scope::Tensor(tensor));
            let around = Surroundings { space: &space, manifest, scope, sets: &sets };
            let mut decoder = Decoder { tables: &[], budget: &budget };
            let cursor = || Cursor::new(&set.id.0, 0, "set");
            let validated = Set::validate(&mut cursor(), Set::ID, &around);
            let read = Set::read(&mut cursor(), &mut decoder, Set::ID, &around);
            if fits {
                assert_eq!((validated.unwrap().count, read.unwrap()), (2, set));
            } else {
                assert_eq!(validated.unwrap_err().name(), "unknown_reference", "{scope:?}");
                assert_eq!(read.unwrap_err().name(), "count_mismatch", "{scope:?}");
            }
        }
    }
}
