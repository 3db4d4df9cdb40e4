//! Dense blocks whose values are made when they are written: the memory of a few blocks suffices for all.

use crate::bits::put_varint;
use crate::block::part::WrittenBlock;
use crate::block::space::Surroundings;
use crate::block::values::{Elements, Floats, Planes, ValueSpace};
use crate::block::{BlockOptions, CodedBlock, CodedWireBlock, Scope, Support, SupportId, Values, ValuesId};
use crate::codes::{Coder, Scratch};
use crate::error::{Error, Result};

/// A block of an update that is not yet written, as [`pending`](../compress/fn.pending.html) makes it and
/// [`Encoder::update_pending`](../stream/struct.Encoder.html#method.update_pending) takes it.
///
/// Blocks of all elements of a large tensor hold no values. Their values are made when the block is written,
/// in the thread that writes it.
#[derive(Debug)]
pub struct PendingBlock<'a>(pub(crate) Pending<'a>);

#[derive(Debug)]
pub(crate) enum Pending<'a> {
    Made(CodedWireBlock<'a>),
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
    pub(crate) options: BlockOptions,
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

impl<'a> From<CodedWireBlock<'a>> for PendingBlock<'a> {
    fn from(block: CodedWireBlock<'a>) -> Self {
        Self(Pending::Made(block))
    }
}

impl From<CodedBlock> for PendingBlock<'_> {
    fn from(block: CodedBlock) -> Self {
        CodedWireBlock::from(block).into()
    }
}

impl PendingBlock<'_> {
    /// The part of the tensors that the block covers.
    pub fn scope(&self) -> Scope {
        match &self.0 {
            Pending::Made((block, _)) => block.scope,
            Pending::Later(later) => later.scope,
        }
    }
}

impl Later<'_> {
    /// The kind of the values.
    pub(crate) fn values_id(&self) -> ValuesId {
        self.values.id()
    }

    /// Makes the values and writes the block. `payload`: memory to use again.
    ///
    /// # Errors
    /// [`Error::Input`] if the elements cannot have such values.
    pub(crate) fn write(
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
        match &self.values {
            LaterValues::Planes(elements) => Planes::write_elements(elements, &mut payload, coder, &space)?,
            LaterValues::Floats(elements) => Floats::write_elements(elements, &mut payload, &space)?,
            LaterValues::Made(id, make) => {
                let values = make(&mut coder.scratch)?;
                if values.id() != *id {
                    return Err(Error::inconsistent("kind of pending values"));
                }
                values.write(&mut payload, coder, &space)?;
                keep_memory(values, &mut coder.scratch);
            }
        }
        let mut fields = Vec::new();
        self.scope.write(&mut fields, false);
        put_varint(&mut fields, SupportId::ALL.0);
        put_varint(&mut fields, self.values_id().0);
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
                options: BlockOptions::default(),
            };
            let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
            let blocks = [PendingBlock(Pending::Later(later))];
            let written = encoder.update_pending(&mut out, &UpdateHeader::default(), &manifest, &blocks);
            assert_eq!(written.map_err(|e| e.name()), expected);
        }
    }
}
