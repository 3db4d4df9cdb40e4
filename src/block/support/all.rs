//! All elements (spec, supports/all.md).

use crate::bits::Cursor;
use crate::block::Sets;
use crate::block::space::Surroundings;
use crate::block::support::{Facts, Kind, Positions, SupportId, Validated};
use crate::codes::{Coder, Decoder};
use crate::error::Result;

/// All elements of the index space. [`Support::All`](crate::block::Support::All) stands for it, as it has no
/// fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct All;

impl All {
    pub(super) const ID: SupportId = SupportId(1);
}

impl Kind for All {
    fn facts(&self) -> Facts {
        Facts { weight: 0, memory: 0 }
    }

    fn check(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn count(&self, around: &Surroundings<'_>) -> Result<u64> {
        Ok(around.space.len())
    }

    fn write(
        &self,
        _: &mut Vec<u8>,
        _: &mut Coder<'_>,
        _: &Surroundings<'_>,
        _: Positions,
    ) -> Result<SupportId> {
        Ok(Self::ID)
    }

    fn read(_: &mut Cursor<'_>, _: &mut Decoder<'_>, _: SupportId, _: &Surroundings<'_>) -> Result<Self> {
        Ok(Self)
    }

    fn validate(_: &mut Cursor<'_>, _: SupportId, around: &Surroundings<'_>) -> Result<Validated> {
        Ok(Validated::new(around.space.len(), 0))
    }

    fn for_each_run(&self, n: u64, _: &Sets, f: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        f(0, n)
    }
}
