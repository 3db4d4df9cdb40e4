//! Blocks on their way to the wire: decoded, in wire form, or with values that are made when they are
//! written.

use std::borrow::Cow;

use super::{
    Block, BlockOptions, CodedBlock, Part, Scope, SetId, Support, SupportId, Values, ValuesId, WireBlock,
    profile,
};
use crate::bits::put_varint;
use crate::block::part::WrittenBlock;
use crate::block::space::Surroundings;
use crate::block::values::{Elements, Floats, Planes, ValueSpace};
use crate::codes::{Coder, Profile, Scratch};
use crate::error::{Error, Result};

/// A block that is not yet written, as [`Encoder::update`](../stream/struct.Encoder.html#method.update) takes
/// it.
///
/// Every form of a block converts to it: a [`Block`] and a [`WireBlock`] with the default [`BlockOptions`], a
/// [`CodedBlock`], a pair of a block and its options, and references to these. A `Result` of a pending block
/// converts too, so that blocks may come from work that can fail.
///
/// The blocks that [`pending`](../compress/fn.pending.html) makes for large dense tensors hold no values:
/// these are made when the block is written, in the thread that writes it.
#[derive(Debug)]
pub struct PendingBlock<'a> {
    content: Content<'a>,
    options: BlockOptions,
}

#[derive(Debug)]
enum Content<'a> {
    Ready(WireBlock<'a>),
    Later(Later<'a>),
}

/// Values for all elements of a scope that are made when they are written.
#[derive(Debug)]
pub(crate) struct Later<'a> {
    /// A tensor, or a range of one.
    pub(crate) scope: Scope,
    pub(crate) values: LaterValues<'a>,
    /// As [`Facts::weight`](crate::block::values::Facts) of the values.
    pub(crate) weight: u64,
}

pub(crate) enum LaterValues<'a> {
    /// [`Planes`] of these elements.
    Planes(&'a [u8]),
    /// [`Floats`] that are these elements.
    Floats(&'a [u8]),
    /// Values of this kind. The function may take memory of earlier blocks.
    Made(ValuesId, Box<MakeValues<'a>>),
}

type MakeValues<'a> = dyn Fn(&mut Scratch) -> Result<Values> + Send + Sync + 'a;

impl std::fmt::Debug for LaterValues<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.id())
    }
}

impl LaterValues<'_> {
    fn id(&self) -> ValuesId {
        match self {
            Self::Planes(_) => ValuesId::PLANES,
            Self::Floats(_) => ValuesId::FLOATS,
            Self::Made(id, _) => *id,
        }
    }
}

impl From<Block> for PendingBlock<'_> {
    fn from(block: Block) -> Self {
        (block, BlockOptions::default()).into()
    }
}

impl<'a> From<&'a Block> for PendingBlock<'a> {
    fn from(block: &'a Block) -> Self {
        (block, BlockOptions::default()).into()
    }
}

impl From<CodedBlock> for PendingBlock<'_> {
    fn from(CodedBlock { block, options }: CodedBlock) -> Self {
        (block, options).into()
    }
}

impl<'a> From<&'a CodedBlock> for PendingBlock<'a> {
    fn from(coded: &'a CodedBlock) -> Self {
        (&coded.block, coded.options).into()
    }
}

impl<'a> From<WireBlock<'a>> for PendingBlock<'a> {
    fn from(block: WireBlock<'a>) -> Self {
        (block, BlockOptions::default()).into()
    }
}

impl<'a, B: Into<WireBlock<'a>>> From<(B, BlockOptions)> for PendingBlock<'a> {
    fn from((block, options): (B, BlockOptions)) -> Self {
        Self { content: Content::Ready(block.into()), options }
    }
}

impl<'a, B> From<&'a (B, BlockOptions)> for PendingBlock<'a>
where
    &'a B: Into<WireBlock<'a>>,
{
    fn from((block, options): &'a (B, BlockOptions)) -> Self {
        (block, *options).into()
    }
}

impl<'a> TryFrom<Result<PendingBlock<'a>>> for PendingBlock<'a> {
    type Error = Error;

    fn try_from(block: Result<PendingBlock<'a>>) -> Result<Self> {
        block
    }
}

impl<'a> PendingBlock<'a> {
    /// A block whose values are made when it is written.
    pub(crate) fn later(values: Later<'a>, options: BlockOptions) -> Self {
        Self { content: Content::Later(values), options }
    }

    /// The part of the tensors that the block covers.
    pub fn scope(&self) -> Scope {
        match &self.content {
            Content::Ready(block) => block.scope,
            Content::Later(later) => later.scope,
        }
    }

    /// The block, unless its values are still to make.
    pub fn block(&self) -> Option<&WireBlock<'a>> {
        match &self.content {
            Content::Ready(block) => Some(block),
            Content::Later(_) => None,
        }
    }

    /// Whether the block has its values in memory, which are freed with it.
    pub(crate) fn holds_values(&self) -> bool {
        self.block().is_some_and(|block| matches!(block.values, Part::Decoded(Cow::Owned(_))))
    }

    /// Whether the values are added to what is there.
    pub(crate) fn adds(&self) -> bool {
        self.block().is_some_and(|block| block.add)
    }

    /// The index set that the support refers to.
    pub(crate) fn set(&self) -> Option<SetId> {
        self.block().and_then(WireBlock::set)
    }

    /// Whether the positions are classed by the base.
    pub(crate) fn is_based(&self) -> bool {
        self.block().is_some_and(WireBlock::is_based)
    }

    /// Whether readers need the base to decode the block.
    pub(crate) fn needs_base(&self) -> bool {
        self.block().is_some_and(|block| block.values_id() == ValuesId::ULP || block.is_based())
    }

    /// Checks everything that needs no coding, and returns the block's weight. Values that are still to make
    /// are checked when they are written.
    pub(crate) fn check(&self, around: &Surroundings<'_>) -> Result<u64> {
        match &self.content {
            Content::Ready(block) => block.check(around),
            Content::Later(later) => Ok(later.weight),
        }
    }

    /// How to write the block.
    pub(crate) fn options(&self) -> BlockOptions {
        self.options
    }

    /// Writes a checked block. `payload`: memory to use again.
    ///
    /// # Errors
    /// [`Error::Input`] if the fields of the block disagree with each other or with the index space, or if
    /// the elements cannot have such values.
    pub(crate) fn write(
        &self,
        coder: &mut Coder<'_>,
        around: &Surroundings<'_>,
        payload: Vec<u8>,
    ) -> Result<WrittenBlock> {
        match &self.content {
            Content::Ready(block) if coder.profile == Profile::Core => {
                profile::write(block, coder, self.options, around, payload)
            }
            Content::Ready(block) => block.write(coder, self.options, around, payload),
            Content::Later(later) => later.write(coder, around, payload),
        }
    }
}

impl Later<'_> {
    /// Makes the values and writes the block. `payload`: memory to use again.
    ///
    /// # Errors
    /// [`Error::Input`] if the elements cannot have such values.
    fn write(
        &self,
        coder: &mut Coder<'_>,
        around: &Surroundings<'_>,
        mut payload: Vec<u8>,
    ) -> Result<WrittenBlock> {
        payload.clear();
        let space = ValueSpace {
            count: around.space.len(),
            is_all: true,
            tensors: Some(self.scope.tensors()),
            dtype: around.space.dtype,
            row_lens: &around.space.row_lens,
            group_counts: &[],
            elements: Some(Elements { support: &Support::All, space: around.space }),
        };
        let mut id = self.values.id();
        match &self.values {
            LaterValues::Planes(elements) if coder.profile == Profile::Core => {
                id = ValuesId::FLOATS;
                Floats::write_elements(elements, &mut payload, &space)?;
            }
            LaterValues::Planes(elements) => Planes::write_elements(elements, &mut payload, coder, &space)?,
            LaterValues::Floats(elements) => Floats::write_elements(elements, &mut payload, &space)?,
            LaterValues::Made(announced, make) => {
                let values = make(&mut coder.scratch)?;
                if coder.profile == Profile::Core && !announced.is_core() {
                    return Err(profile::refused(announced.name().unwrap_or("values")));
                }
                if values.id() != *announced {
                    return Err(Error::inconsistent("kind of pending values"));
                }
                values.write(&mut payload, coder, &space)?;
                keep_memory(values, &mut coder.scratch);
            }
        }
        let mut fields = Vec::new();
        self.scope.write(&mut fields, false);
        put_varint(&mut fields, SupportId::ALL.0);
        put_varint(&mut fields, id.0);
        put_varint(&mut fields, 0);
        Ok(WrittenBlock::new(&fields, payload))
    }
}

/// Keeps the memory of values for other values.
fn keep_memory(values: Values, scratch: &mut Scratch) {
    match values {
        Values::Pow2(pow2) => (scratch.codes, scratch.signs) = (pow2.codes, pow2.negative.into_bytes()),
        Values::Levels(levels) => scratch.codes = levels.levels.into_memory(),
        Values::Affine(affine) => scratch.codes = affine.codes,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Constant, Groups, ScaleFormat, Scales};
    use crate::frame::{Manifest, TensorInfo, UpdateHeader};
    use crate::stream::{EncodeOptions, Encoder};
    use crate::tensor::Dtype;

    #[test]
    fn pending_values_have_the_kind_that_was_announced() {
        let info = TensorInfo::new("w", Dtype::F32, [2]);
        let manifest = std::sync::Arc::new(Manifest::new(vec![info]).unwrap());
        let scales = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
        let values = Values::Constant(Constant { groups: Groups::Block, scales });
        for (id, expected) in [(ValuesId::CONSTANT, Ok(())), (ValuesId::FLOATS, Err("input"))] {
            let later = Later {
                scope: Scope::Tensor(0),
                values: LaterValues::Made(id, Box::new(|_| Ok(values.clone()))),
                weight: 1,
            };
            let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
            let blocks = [PendingBlock::later(later, BlockOptions::default())];
            let written = encoder.update(&mut out, &UpdateHeader::default(), &manifest, blocks);
            assert_eq!(written.map_err(|e| e.name()), expected);
        }
    }
}
