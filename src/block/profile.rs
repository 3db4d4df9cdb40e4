//! The core profile (spec, core.md): whether a block is of it, and the writing of blocks in its kinds.

use crate::bits::Cursor;
use crate::block::part::WrittenBlock;
use crate::block::space::Surroundings;
use crate::block::values::ValueSpace;
use crate::block::{
    Block, BlockOptions, Floats, Part, RawBlock, Sparse, Stored, Support, SupportId, Values, WireBlock,
};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, InputErrorKind, Result};
use crate::limits::{Budget, Limits};

/// A block whose values are added.
const ADDED: &str = "an added block";

/// The error for what the core profile leaves out.
pub(crate) fn refused(what: &'static str) -> Error {
    Error::input(InputErrorKind::BeyondCore { what })
}

impl RawBlock<'_> {
    /// Returns what the core profile does not have: a kind, the flag `add`, or a coding of integers or signs.
    pub(crate) fn beyond_core(&self, decoder: &Decoder<'_>) -> Result<Option<&'static str>> {
        if self.add {
            return Ok(Some(ADDED));
        }
        if !self.support_id.is_core() {
            return Ok(self.support_id.name());
        }
        if !self.values_id.is_core() {
            return Ok(self.values_id.name());
        }
        let n = self.space.len();
        let count = match self.support_id {
            SupportId::ALL => n,
            SupportId::BITMAP => self.support.iter().map(|byte| u64::from(byte.count_ones())).sum(),
            // The number of positions is the first field of gaps.
            _ => Cursor::new(self.support, self.values_offset(), "support").varint()?,
        };
        let space = ValueSpace {
            count: count.min(n),
            is_all: self.support_id == SupportId::ALL,
            tensors: Some(self.scope.tensors()),
            dtype: self.space.dtype,
            row_lens: &[],
            group_counts: &[],
            elements: None,
        };
        let mut cursor = Cursor::new(self.values, self.values_offset(), "values");
        Values::beyond_core(&mut cursor, decoder, self.values_id, &space)
    }
}

/// Writes a checked block in kinds of the core profile, which give the same numbers.
///
/// # Errors
/// [`InputErrorKind::BeyondCore`] if the block has no such form; the errors of [`WireBlock::write`].
pub(super) fn write(
    block: &WireBlock<'_>,
    coder: &mut Coder<'_>,
    options: BlockOptions,
    around: &Surroundings<'_>,
    payload: Vec<u8>,
) -> Result<WrittenBlock> {
    if block.add {
        return Err(refused(ADDED));
    }
    let budget = Budget::new(&Limits::default().with_max_alloc_bytes(u64::MAX));
    if is_core(block, around, &budget)? {
        return block.write(coder, options, around, payload);
    }
    let block = block.decode_in(around, &budget)?;
    let values = match &block.values {
        Values::Planes(planes) => {
            Values::Floats(Floats { stored: Stored::Source, bytes: planes.bytes.clone() })
        }
        Values::Codebook(_) | Values::Minifloat(_) => {
            let numbers = block.numbers(around.space, around.sets, &budget)?;
            let bytes = numbers.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect();
            Values::Floats(Floats { stored: Stored::F32, bytes })
        }
        values if values.id().is_core() => values.clone(),
        values => return Err(refused(values.id().name().unwrap_or("values"))),
    };
    let support = match &block.support {
        Support::Based(_) => return Err(refused("classed")),
        support @ (Support::All | Support::Sparse(_)) => support.clone(),
        _ => Support::Sparse(Sparse { positions: block.positions(around.space, around.sets, &budget)? }),
    };
    WireBlock::from(Block { support, values, ..block }).write(coder, options, around, payload)
}

/// Whether the parts of a block are written in kinds and codings of the core profile.
fn is_core(block: &WireBlock<'_>, around: &Surroundings<'_>, budget: &Budget) -> Result<bool> {
    let count = match &block.support {
        Part::Decoded(support) => match **support {
            Support::All | Support::Sparse(_) => support.count(around)?,
            _ => return Ok(false),
        },
        Part::Written { id, bytes } if id.is_core() => {
            Support::validate(Cursor::new(bytes, 0, "support"), *id, around, budget)?.count
        }
        Part::Written { .. } => return Ok(false),
    };
    match &block.values {
        Part::Decoded(values) => Ok(values.id().is_core()),
        Part::Written { id, bytes } if id.is_core() => {
            let space = ValueSpace { elements: None, ..block.value_space(around.space, count) };
            let mut cursor = Cursor::new(bytes, 0, "values");
            let decoder = Decoder { tables: &[], budget };
            Ok(Values::beyond_core(&mut cursor, &decoder, *id, &space)?.is_none())
        }
        Part::Written { .. } => Ok(false),
    }
}
