//! Index sets: named supports (spec, section 4.3).

use crate::bits::{Cursor, put_varint};
use crate::block::space::{IndexSpace, Surroundings};
use crate::block::{BlockOptions, Scope, SetId, Sets, SharedSet, Support, SupportId};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, InputErrorKind, Result};
use crate::frame::{Manifest, ManifestId};
use crate::limits::{Budget, Limits};

/// A support that is sent once, so that updates can refer to it by its hash (ScaleCom, arXiv 2104.11125).
#[derive(Debug, Clone, PartialEq)]
pub struct IndexSet {
    /// Manifest that the scope refers to.
    pub manifest: ManifestId,
    /// Step at which the set was chosen.
    pub step: u64,
    /// Sender that chose it.
    pub leader: u64,
    /// Number of senders, 0 if unknown. The choice of the leader depends on it.
    pub world: u64,
    /// Index space of the support.
    pub scope: Scope,
    /// Elements of the index space.
    pub support: Support,
}

impl IndexSet {
    /// Returns the set in the form that blocks need; `count` is its number of elements.
    pub(crate) fn shared(&self, count: u64) -> SharedSet {
        SharedSet { manifest: self.manifest.0, scope: self.scope, support: self.support.clone(), count }
    }

    /// Checks the set and returns it in the form that blocks need.
    ///
    /// # Errors
    /// [`Error::Input`] if the set does not fit `manifest`, or refers to another set.
    pub(crate) fn checked(&self, manifest: &Manifest) -> Result<SharedSet> {
        let space = self.space(manifest)?;
        let sets = Sets::new();
        let around =
            Surroundings { space: &space, manifest: self.manifest.0, scope: self.scope, sets: &sets };
        self.support.check(space.len())?;
        Ok(self.shared(self.support.count(&around)?))
    }

    fn space(&self, manifest: &Manifest) -> Result<IndexSpace> {
        if manifest.id() != self.manifest {
            return Err(Error::input(InputErrorKind::Mismatch { what: "manifests" }));
        }
        if matches!(self.support, Support::Set(_) | Support::Based(_)) {
            return Err(Error::inconsistent("an index set that depends on a set or a base"));
        }
        manifest.space(self.scope, 0).map_err(|_| Error::inconsistent("scope of an index set"))
    }

    /// Returns the body and its id.
    ///
    /// # Errors
    /// The errors of [`IndexSet::checked`].
    pub(crate) fn body(&self, manifest: &Manifest, options: BlockOptions) -> Result<(Vec<u8>, SetId)> {
        let space = self.space(manifest)?;
        self.support.check(space.len())?;
        let mut out = self.manifest.0.to_vec();
        [self.step, self.leader, self.world].iter().for_each(|&v| put_varint(&mut out, v));
        self.scope.write(&mut out, false);
        let mut coder = Coder::new(options.entropy, &[], None);
        let mut bytes = Vec::new();
        let sets = Sets::new();
        let around =
            Surroundings { space: &space, manifest: self.manifest.0, scope: self.scope, sets: &sets };
        let id = self.support.write(&mut bytes, &mut coder, &around, options.positions)?;
        put_varint(&mut out, id.0);
        out.append(&mut bytes);
        let id = SetId(*blake3::hash(&out).as_bytes());
        Ok((out, id))
    }

    /// Reads a body at `offset`. Returns the set, its id and the number of its elements.
    pub(crate) fn read<'m>(
        body: &[u8],
        offset: u64,
        limits: &Limits,
        manifest_of: impl FnOnce(ManifestId) -> Option<&'m Manifest>,
    ) -> Result<(Self, SetId, u64)> {
        let mut cursor = Cursor::new(body, offset, "index set");
        let manifest = ManifestId(cursor.array()?);
        let found = manifest_of(manifest);
        let found =
            found.ok_or(Error::format(FormatErrorKind::UnknownReference { field: "manifest" }, offset))?;
        let (step, leader, world) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
        let scope_offset = cursor.offset();
        let (scope, add) = Scope::read(&mut cursor)?;
        if add {
            return Err(Error::format(
                FormatErrorKind::ReservedBits { field: "scope of an index set" },
                scope_offset,
            ));
        }
        let space = found.space(scope, scope_offset)?;
        let budget = Budget::new(limits);
        budget.reserve_elements(space.len(), scope_offset)?;
        let id_offset = cursor.offset();
        let support_id = SupportId(cursor.varint()?);
        if support_id == SupportId::SET {
            return Err(Error::out_of_range("support of an index set", support_id.0, id_offset));
        }
        let sets = Sets::new();
        let around = Surroundings { space: &space, manifest: manifest.0, scope, sets: &sets };
        let mut decoder = Decoder { tables: &[], budget: &budget };
        let rest = cursor.remaining() as u64;
        let (support, count) =
            Support::read(cursor.sub(rest, "support")?, &mut decoder, support_id, &around)?;
        if matches!(support, Support::Based(_)) {
            return Err(Error::out_of_range("support of an index set", support_id.0, id_offset));
        }
        let id = SetId(*blake3::hash(body).as_bytes());
        Ok((Self { manifest, step, leader, world, scope, support }, id, count))
    }
}
