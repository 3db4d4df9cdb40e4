//! Blocks whose support or values are in wire form already: made on a device, or taken as they are from another stream.

use std::borrow::Cow;

use crate::bits::{Cursor, Output, put_varint};
use crate::block::space::Surroundings;
use crate::block::values::{self, ValueSpace};
use crate::block::wire::needs_all;
use crate::block::{
    Block, BlockOptions, IndexSpace, Scope, SetId, Support, SupportId, Values, ValuesId, support,
};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, Result};
use crate::limits::Budget;

/// One of a block's two parts: what it says, or the bytes that say it.
#[derive(Debug, Clone, PartialEq)]
pub enum Part<'a, T: Clone, Id> {
    /// What it says; the encoder writes it.
    Decoded(Cow<'a, T>),
    /// Its bytes as they stand in a block, which the encoder takes as they are.
    Written {
        /// Its kind.
        id: Id,
        /// Its bytes, from its first field to its end.
        bytes: Cow<'a, [u8]>,
    },
}

/// A [`Block`] of whose parts one or both may be in wire form already (spec, section 5).
///
/// [`Encoder::update_wire`](crate::Encoder::update_wire) takes it. The frame is then byte for byte the one that it makes of the decoded
/// block, where the bytes are those that the block's options ask for: codes without frequency tables, such as gaps by Rice
/// and packed integers; what is coded by a table carries its own.
///
/// # What is checked
///
/// Whatever can be told without decoding a code: that both kinds are registered and go together, with `add` and with the
/// element type; the fields before the codes; that the number of elements fits the index space; all lengths but that of the
/// raw bits and signs behind entropy-coded integers; that frequency tables are the part's own, since a stream's shared tables
/// belong to one frame; that an index set is known. Not checked is what codes stand for: whether positions lie in the index
/// space, whether Rice runs hold as many gaps as they say, whether integers are in their range, whether entropy-coded
/// sections end as they must. Bytes that are wrong there make a frame that a reader refuses, or that says something else;
/// nothing worse. [`WireBlock::decode`] tells.
#[derive(Debug, Clone, PartialEq)]
pub struct WireBlock<'a> {
    /// As [`Block::scope`].
    pub scope: Scope,
    /// As [`Block::add`].
    pub add: bool,
    /// As [`Block::support`].
    pub support: Part<'a, Support, SupportId>,
    /// As [`Block::values`].
    pub values: Part<'a, Values, ValuesId>,
}

impl<T: Clone, Id> From<T> for Part<'_, T, Id> {
    fn from(contents: T) -> Self {
        Self::Decoded(Cow::Owned(contents))
    }
}

impl From<Block> for WireBlock<'_> {
    fn from(Block { scope, add, support, values }: Block) -> Self {
        Self { scope, add, support: support.into(), values: values.into() }
    }
}

impl<'a> From<&'a Block> for WireBlock<'a> {
    fn from(block: &'a Block) -> Self {
        Self {
            scope: block.scope,
            add: block.add,
            support: Part::Decoded(Cow::Borrowed(&block.support)),
            values: Part::Decoded(Cow::Borrowed(&block.values)),
        }
    }
}

/// A block's bytes, before they have found their place.
pub(crate) struct WrittenBlock {
    /// Everything before the support.
    head: Vec<u8>,
    /// Support and values.
    payload: Vec<u8>,
}

impl WrittenBlock {
    pub(crate) fn append_to(&self, out: &mut dyn Output) {
        out.append(&self.head);
        out.append(&self.payload);
    }
}

/// What can be told of a part without decoding its codes.
struct Known<Id> {
    id: Id,
    weight: u64,
}

impl WireBlock<'_> {
    /// The same block with nothing borrowed.
    pub fn into_owned(self) -> WireBlock<'static> {
        fn part<T: Clone, Id>(part: Part<'_, T, Id>) -> Part<'static, T, Id> {
            match part {
                Part::Decoded(contents) => Part::Decoded(Cow::Owned(contents.into_owned())),
                Part::Written { id, bytes } => Part::Written { id, bytes: Cow::Owned(bytes.into_owned()) },
            }
        }
        WireBlock { scope: self.scope, add: self.add, support: part(self.support), values: part(self.values) }
    }

    /// The kind of its values.
    pub(crate) fn values_id(&self) -> ValuesId {
        match &self.values {
            Part::Decoded(values) => values.id(),
            Part::Written { id, .. } => *id,
        }
    }

    /// The index set that it refers to.
    pub(crate) fn set(&self) -> Option<SetId> {
        match &self.support {
            Part::Decoded(support) => match **support {
                Support::Set(id) => Some(id),
                _ => None,
            },
            Part::Written { id: SupportId::SET, bytes } => bytes.as_ref().try_into().ok().map(SetId),
            Part::Written { .. } => None,
        }
    }

    /// Decodes the block as a reader would that knows no shared frequency tables. `space` is that of the block's scope,
    /// `manifest` the id of its manifest; offsets in errors are those in the part.
    pub(crate) fn decode_in(&self, around: &Surroundings<'_>, budget: &Budget) -> Result<Block> {
        let mut decoder = Decoder { tables: &[], budget };
        budget.reserve_elements(around.space.len(), 0)?;
        self.check(around)?;
        let (support, count) = match &self.support {
            Part::Decoded(decoded) => {
                (decoded.as_ref().clone(), support::count(decoded, around.space.len(), around)?)
            }
            Part::Written { id, bytes } => {
                support::read(Cursor::new(bytes, 0, "support"), &mut decoder, *id, around)?
            }
        };
        let space = value_space(self.scope, around.space, count);
        let values = match &self.values {
            Part::Decoded(decoded) => decoded.as_ref().clone(),
            Part::Written { id, bytes } => {
                values::read(Cursor::new(bytes, 0, "values"), &mut decoder, *id, &space)?
            }
        };
        Ok(Block { scope: self.scope, add: self.add, support, values })
    }

    /// Checks what can be told without decoding, and gives the block's weight.
    pub(crate) fn check(&self, around: &Surroundings<'_>) -> Result<u64> {
        self.check_at(around, 0, 0)
    }

    /// As [`Self::check`], of parts that stand at these offsets.
    pub(super) fn check_at(
        &self,
        around: &Surroundings<'_>,
        support_offset: u64,
        values_offset: u64,
    ) -> Result<u64> {
        let n = around.space.len();
        let (known, count) = match &self.support {
            Part::Decoded(decoded) => {
                support::check(decoded, n)?;
                let id = if **decoded == Support::All { SupportId::ALL } else { SupportId(0) };
                (Known { id, weight: of_support(decoded) }, support::count(decoded, n, around)?)
            }
            Part::Written { id, bytes } => {
                let cursor = Cursor::new(bytes, support_offset, "support");
                let skimmed = support::skim(cursor, *id, around)?;
                (Known { id: *id, weight: skimmed.weight }, skimmed.count)
            }
        };
        let (values, gives_bits) = match &self.values {
            Part::Decoded(values) => {
                (Known { id: values.id(), weight: of_values(values) }, values.gives_bits())
            }
            Part::Written { id, bytes } => {
                let space = value_space(self.scope, around.space, count);
                let cursor = Cursor::new(bytes, values_offset, "values");
                let skimmed = values::skim(cursor, *id, &space)?;
                (Known { id: *id, weight: skimmed.weight }, skimmed.gives_bits)
            }
        };
        if needs_all(values.id) && known.id != SupportId::ALL {
            return Err(Error::inconsistent("low-rank values and transforms need the support `all`"));
        }
        if self.add && gives_bits {
            return Err(Error::inconsistent("bits cannot be added"));
        }
        Ok(known.weight.saturating_add(values.weight))
    }

    /// Writes the block, which was checked.
    ///
    /// # Errors
    /// [`Error::Input`] if the block does not hold together or does not fit its space.
    pub(crate) fn write(
        &self,
        coder: &mut Coder<'_>,
        options: BlockOptions,
        around: &Surroundings<'_>,
    ) -> Result<WrittenBlock> {
        let n = around.space.len();
        let mut payload = Vec::new();
        let (support_id, count) = match &self.support {
            Part::Decoded(decoded) => {
                let count = support::count(decoded, n, around)?;
                (support::write(&mut payload, coder, decoded, n, options.positions)?, count)
            }
            Part::Written { id, bytes } => {
                payload.extend_from_slice(bytes);
                (*id, support::skim(Cursor::new(bytes, 0, "support"), *id, around)?.count)
            }
        };
        let mut fields = Vec::new();
        self.scope.write(&mut fields, self.add);
        put_varint(&mut fields, support_id.0);
        put_varint(&mut fields, self.values_id().0);
        put_varint(&mut fields, payload.len() as u64);
        match &self.values {
            Part::Decoded(decoded) => {
                let all = support_id == SupportId::ALL;
                let row_lens = if all { around.space.row_lens.as_slice() } else { &[] };
                let space = ValueSpace { row_lens, ..value_space(self.scope, around.space, count) };
                values::write(&mut payload, coder, decoded, &space)?;
            }
            Part::Written { bytes, .. } => payload.extend_from_slice(bytes),
        }
        let mut head = Vec::new();
        put_varint(&mut head, (fields.len() + payload.len()) as u64);
        head.extend_from_slice(&fields);
        Ok(WrittenBlock { head, payload })
    }
}

/// The space of a block's values, without the lengths of rows.
fn value_space(scope: Scope, space: &IndexSpace, count: u64) -> ValueSpace<'static> {
    ValueSpace { count, tensors: Some(scope.tensors()), dtype: space.dtype, row_lens: &[] }
}

/// How many values there are, about, for cutting updates into parts. What is in wire form weighs as much as decoded
/// ([`support::skim`], [`values::skim`]), so that parts do not depend on it.
fn of_values(values: &Values) -> u64 {
    match values {
        Values::Floats { bytes, .. } | Values::Planes { bytes } => bytes.len() as u64,
        Values::Constant { scales, .. } => scales.bytes.len() as u64,
        Values::Sign { negative, .. } => negative.len() / 8,
        Values::Pow2 { codes, .. } | Values::Affine { codes, .. } => codes.len() as u64,
        Values::Codebook { codes, .. } | Values::Minifloat { codes, .. } => codes.len() as u64,
        Values::Levels { levels, .. } => levels.len() as u64,
        Values::Ulp { diffs } => diffs.len() as u64,
        Values::Latent { codes, .. } => of_values(codes),
        Values::LowRank { left, right, .. } => of_values(left) + of_values(right),
        Values::Dct { support, coefficients, .. } => of_support(support) + of_values(coefficients),
    }
}

fn of_support(support: &Support) -> u64 {
    match support {
        Support::Sparse(positions) => 2 * positions.len() as u64,
        Support::Chunked { positions, .. } => 4 * positions.len() as u64,
        Support::Rows { rows, .. } => 2 * rows.len() as u64,
        _ => 0,
    }
}
