//! A scale per group (spec, values/constant.md).

use crate::bits::Cursor;
use crate::block::values::{Content, Facts, Kind, Structure, Validated, ValueSpace, ValuesId};
use crate::block::{Groups, Scales};
use crate::codes::{Coder, Decoder};
use crate::error::Result;
use crate::limits::Budget;

/// Each element is its group's scale: Sparse Binary Compression (arXiv 1805.08768).
#[derive(Debug, Clone, PartialEq)]
pub struct Constant {
    /// Which values share a scale.
    pub groups: Groups,
    /// The scales, with their signs.
    pub scales: Scales,
}

impl Kind for Constant {
    const ID: ValuesId = ValuesId(2);
    const IS_CORE: bool = true;

    fn facts(&self) -> Facts<'_> {
        let len = self.scales.bytes.len() as u64;
        let content = Content::Numbers {
            no_sum: "each sender has its own scale, and the sum has more than two values",
        };
        Facts { content, structure: Structure::Grouped(self.groups), weight: len, memory: len }
    }

    fn write(&self, out: &mut Vec<u8>, _: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        self.groups.write(out, space)?;
        self.scales.write(out, self.groups.count(space))
    }

    fn read(cursor: &mut Cursor<'_>, _: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        Self::take(cursor, space)
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        Ok(Validated::numbers(Self::take(cursor, space)?.scales.bytes.len() as u64))
    }

    fn numbers(&self, tensor_counts: &[u64], _: &Budget, out: &mut [f32]) -> Result<()> {
        self.groups.for_each(out.len(), tensor_counts, |g, range| out[range].fill(self.scales.get(g)));
        Ok(())
    }
}

impl Constant {
    fn take(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let groups = Groups::read(cursor, space)?;
        Ok(Self { groups, scales: Scales::read(cursor, groups.count(space))? })
    }
}
