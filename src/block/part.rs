//! Blocks with support or values in wire form, made on a device or copied from another stream.

use std::borrow::Cow;

use crate::bits::{Cursor, Output, hasher_of, put_varint};
use crate::block::space::Surroundings;
use crate::block::values::{Elements, Structure, ValueSpace};
use crate::block::{
    Block, BlockOptions, IndexSpace, Positions, Scope, Set, SetId, Support, SupportId, Values, ValuesId,
};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, Result};
use crate::limits::{Budget, Limits};

/// The support or the values of a block, decoded or in wire form.
#[derive(Debug, Clone, PartialEq)]
pub enum Part<'a, T: Clone, Id> {
    /// Decoded: the encoder writes its wire form.
    Decoded(Cow<'a, T>),
    /// In wire form: the encoder copies the bytes.
    Written {
        /// The kind.
        id: Id,
        /// The bytes, from the first field to the end.
        bytes: Cow<'a, [u8]>,
    },
}

/// A [`Block`] whose support, values or both may be in wire form (spec, section 5).
///
/// [`Encoder::update`](crate::stream::Encoder::update) takes it. The frame equals the frame of the
/// decoded block if the bytes are those that the block's options ask for. This holds for codes without
/// frequency tables, such as gaps by Rice and packed integers. Codes with a frequency table carry their own
/// table.
///
/// # Checks
///
/// Everything is checked that needs no decoding of codes:
/// - Both kinds are registered, and they agree with each other, with `add` and with the element type.
/// - The fields before the codes are valid, and the number of elements fits the index space.
/// - All lengths are right, except those of raw bits and signs behind entropy-coded integers.
/// - Frequency tables are in the part itself, since the shared tables of a stream belong to one frame.
/// - Index sets are known.
///
/// The decoded contents of codes are not checked: positions may lie outside the index space, Rice runs may
/// hold another number of gaps, integers may be out of range, and entropy-coded sections may not end as they
/// must. A frame with such bytes is refused by readers or decodes to other values; it does no other harm.
/// [`WireBlock::decode`] checks the contents, too.
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

impl<T: Clone, Id: Copy> Part<'_, T, Id> {
    fn borrowed(&self) -> Part<'_, T, Id> {
        match self {
            Self::Decoded(contents) => Part::Decoded(Cow::Borrowed(contents)),
            Self::Written { id, bytes } => Part::Written { id: *id, bytes: Cow::Borrowed(bytes) },
        }
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

impl<'a> From<&&'a Block> for WireBlock<'a> {
    fn from(block: &&'a Block) -> Self {
        (*block).into()
    }
}

impl<'a> From<&'a WireBlock<'_>> for WireBlock<'a> {
    fn from(block: &'a WireBlock<'_>) -> Self {
        Self {
            scope: block.scope,
            add: block.add,
            support: block.support.borrowed(),
            values: block.values.borrowed(),
        }
    }
}

/// The bytes of a block that is not yet part of a stream.
pub(crate) struct WrittenBlock {
    /// Everything before the support.
    head: Vec<u8>,
    /// Support and values.
    payload: Vec<u8>,
}

impl WrittenBlock {
    /// Puts the length before the `fields` that precede support and values.
    pub(super) fn new(fields: &[u8], payload: Vec<u8>) -> Self {
        let mut head = Vec::new();
        put_varint(&mut head, (fields.len() + payload.len()) as u64);
        head.extend_from_slice(fields);
        Self { head, payload }
    }

    /// Returns a hasher that has seen the bytes of the block.
    pub(crate) fn hasher(&self) -> crc32fast::Hasher {
        let mut hasher = hasher_of(&self.head);
        hasher.combine(&hasher_of(&self.payload));
        hasher
    }

    pub(crate) fn append_to(&self, out: &mut dyn Output) {
        out.append(&self.head);
        out.append(&self.payload);
    }

    /// Returns the memory of support and values, for another block.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        self.payload
    }
}

impl WireBlock<'_> {
    /// Copies everything that the block borrows.
    pub fn into_owned(self) -> WireBlock<'static> {
        fn part<T: Clone, Id>(part: Part<'_, T, Id>) -> Part<'static, T, Id> {
            match part {
                Part::Decoded(contents) => Part::Decoded(Cow::Owned(contents.into_owned())),
                Part::Written { id, bytes } => Part::Written { id, bytes: Cow::Owned(bytes.into_owned()) },
            }
        }
        WireBlock { scope: self.scope, add: self.add, support: part(self.support), values: part(self.values) }
    }

    /// The kind of the values.
    pub(crate) fn values_id(&self) -> ValuesId {
        match &self.values {
            Part::Decoded(values) => values.id(),
            Part::Written { id, .. } => *id,
        }
    }

    /// The index set that the support refers to.
    pub(crate) fn set(&self) -> Option<SetId> {
        match &self.support {
            Part::Decoded(support) => match **support {
                Support::Set(Set { id }) => Some(id),
                _ => None,
            },
            Part::Written { id: SupportId::SET, bytes } => {
                Set::take(&mut Cursor::new(bytes, 0, "support")).ok().map(|set| set.id)
            }
            Part::Written { .. } => None,
        }
    }

    /// Decodes the block without shared frequency tables. Offsets in errors count from the start of the
    /// support or of the values.
    pub(crate) fn decode_in(&self, around: &Surroundings<'_>, budget: &Budget) -> Result<Block> {
        let mut decoder = Decoder { tables: &[], budget };
        budget.reserve_elements(around.space.len(), 0)?;
        self.check(around)?;
        let (support, count) = match &self.support {
            Part::Decoded(decoded) => (decoded.as_ref().clone(), decoded.count(around)?),
            Part::Written { id, bytes } => {
                Support::read(Cursor::new(bytes, 0, "support"), &mut decoder, *id, around)?
            }
        };
        let group_counts = support.group_counts();
        let values = match &self.values {
            Part::Decoded(decoded) => decoded.as_ref().clone(),
            Part::Written { id, bytes } => {
                let space = ValueSpace {
                    group_counts: &group_counts,
                    elements: Some(Elements { support: &support, space: around.space }),
                    ..self.value_space(around.space, count)
                };
                Values::read(Cursor::new(bytes, 0, "values"), &mut decoder, *id, &space)?
            }
        };
        Ok(Block { scope: self.scope, add: self.add, support, values })
    }

    /// Checks everything that needs no decoding of codes, and returns the block's weight.
    pub(crate) fn check(&self, around: &Surroundings<'_>) -> Result<u64> {
        self.check_at(around, 0, 0, &Budget::new(&Limits::default()))
    }

    /// As [`Self::check`], with the offsets of support and values in the stream, and within `budget`.
    pub(super) fn check_at(
        &self,
        around: &Surroundings<'_>,
        support_offset: u64,
        values_offset: u64,
        budget: &Budget,
    ) -> Result<u64> {
        let (count, support_weight, group_counts) = match &self.support {
            Part::Decoded(support) => {
                support.check(around.space.len())?;
                (support.count(around)?, support.facts().weight, support.group_counts())
            }
            Part::Written { id, bytes } => {
                let cursor = Cursor::new(bytes, support_offset, "support");
                let validated = Support::validate(cursor, *id, around, budget)?;
                (validated.count, validated.weight, validated.group_counts)
            }
        };
        let (is_bits, is_matrix, values_weight) = match &self.values {
            Part::Decoded(values) => {
                let facts = values.facts();
                (facts.content.is_bits(), facts.structure == Structure::Matrix, facts.weight)
            }
            Part::Written { id, bytes } => {
                let space =
                    ValueSpace { group_counts: &group_counts, ..self.value_space(around.space, count) };
                let cursor = Cursor::new(bytes, values_offset, "values");
                let validated = Values::validate(cursor, *id, &space)?;
                (validated.is_bits, validated.is_matrix, validated.weight)
            }
        };
        if is_matrix && !self.has_all() {
            return Err(Error::inconsistent("a matrix needs the support `all`"));
        }
        if self.add && is_bits {
            return Err(Error::inconsistent("bits cannot be added"));
        }
        if self.is_based() && (self.add || !is_bits) {
            return Err(Error::inconsistent("positions classed by the base need bits that replace elements"));
        }
        Ok(support_weight.saturating_add(values_weight))
    }

    /// Whether the positions are classed by the base.
    pub(crate) fn is_based(&self) -> bool {
        match &self.support {
            Part::Decoded(support) => matches!(**support, Support::Based(_)),
            Part::Written { id, bytes } => Support::needs_base(*id, bytes),
        }
    }

    /// Whether the support is all elements.
    fn has_all(&self) -> bool {
        match &self.support {
            Part::Decoded(support) => **support == Support::All,
            Part::Written { id, .. } => *id == SupportId::ALL,
        }
    }

    /// The space of the block's values, without the lengths of rows.
    pub(super) fn value_space<'a>(&self, space: &IndexSpace, count: u64) -> ValueSpace<'a> {
        ValueSpace {
            count,
            is_all: self.has_all(),
            tensors: Some(self.scope.tensors()),
            dtype: space.dtype,
            row_lens: &[],
            group_counts: &[],
            elements: None,
        }
    }

    /// Writes a checked block. `payload`: memory to use again.
    ///
    /// # Errors
    /// [`Error::Input`] if the fields of the block disagree with each other or with the index space.
    pub(crate) fn write(
        &self,
        coder: &mut Coder<'_>,
        options: BlockOptions,
        around: &Surroundings<'_>,
        mut payload: Vec<u8>,
    ) -> Result<WrittenBlock> {
        payload.clear();
        let (support_id, count) = match &self.support {
            Part::Decoded(decoded) => {
                let count = decoded.count(around)?;
                (decoded.write(&mut payload, coder, around, options.positions)?, count)
            }
            Part::Written { id, bytes } => {
                payload.extend_from_slice(bytes);
                let budget = Budget::new(&Limits::default());
                let cursor = Cursor::new(bytes, 0, "support");
                (*id, Support::validate(cursor, *id, around, &budget)?.count)
            }
        };
        let mut fields = Vec::new();
        self.scope.write(&mut fields, self.add);
        put_varint(&mut fields, support_id.0);
        put_varint(&mut fields, self.values_id().0);
        put_varint(&mut fields, payload.len() as u64);
        match &self.values {
            Part::Decoded(decoded) => {
                let row_lens = if self.has_all() { around.space.row_lens.as_slice() } else { &[] };
                let support = match &self.support {
                    Part::Decoded(support) => Some(&**support),
                    Part::Written { id: SupportId::ALL, .. } => Some(&Support::All),
                    Part::Written { .. } => None,
                };
                let group_counts = support.map_or_else(Vec::new, Support::group_counts);
                // Blocks from devices have Rice codes and plain signs; the host writes the same bytes.
                let predicts = matches!(options.positions, Positions::Auto | Positions::Classed);
                let elements = support.filter(|_| predicts);
                let space = ValueSpace {
                    row_lens,
                    group_counts: &group_counts,
                    elements: elements.map(|support| Elements { support, space: around.space }),
                    ..self.value_space(around.space, count)
                };
                decoded.write(&mut payload, coder, &space)?;
            }
            Part::Written { bytes, .. } => payload.extend_from_slice(bytes),
        }
        Ok(WrittenBlock::new(&fields, payload))
    }
}
