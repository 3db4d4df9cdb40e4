//! Whole blocks on the wire (spec, section 5).

use crate::bits::{Cursor, put_varint};
use crate::block::part::{Part, WireBlock};
use crate::block::space::Surroundings;
use crate::block::values::{Elements, ValueSpace};
use crate::block::{Block, IndexSpace, Positions, Scope, SetId, Sets, Support, SupportId, Values, ValuesId};
use crate::codes::{Decoder, Effort, Entropy};
use crate::error::{Error, Result};
use crate::limits::Budget;

/// Choices that the format leaves to the writer of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct BlockOptions {
    /// The form of sparse positions, which the support's kind tells the reader. Default: the smallest.
    pub positions: Positions,
    /// The coding of the integers of values. Default: the smallest.
    pub entropy: Entropy,
    /// The search for a smaller form of symbols.
    pub effort: Effort,
}

impl BlockOptions {
    /// Sets [`BlockOptions::positions`].
    #[must_use]
    pub fn with_positions(mut self, positions: Positions) -> Self {
        self.positions = positions;
        self
    }

    /// Sets [`BlockOptions::entropy`].
    #[must_use]
    pub fn with_entropy(mut self, entropy: Entropy) -> Self {
        self.entropy = entropy;
        self
    }

    /// Sets [`BlockOptions::effort`].
    #[must_use]
    pub fn with_effort(mut self, effort: Effort) -> Self {
        self.effort = effort;
        self
    }
}

const SCOPE_TENSORS: u8 = 1;
const SCOPE_RANGE: u8 = 2;
const FLAG_ADD: u8 = 1 << 2;

impl Scope {
    /// Number of the first tensor.
    pub fn first(&self) -> u64 {
        match *self {
            Self::Tensor(tensor) | Self::Range { tensor, .. } => tensor,
            Self::Tensors { first, .. } => first,
        }
    }

    /// Number of tensors that the scope covers or touches.
    pub fn tensors(&self) -> u64 {
        match *self {
            Self::Tensors { count, .. } => count,
            _ => 1,
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>, add: bool) {
        let add = if add { FLAG_ADD } else { 0 };
        let (kind, fields): (u8, &[u64]) = match self {
            Self::Tensor(tensor) => (0, &[*tensor]),
            Self::Tensors { first, count } => (SCOPE_TENSORS, &[*first, *count]),
            Self::Range { tensor, start, len } => (SCOPE_RANGE, &[*tensor, *start, *len]),
        };
        out.push(kind | add);
        fields.iter().for_each(|&f| put_varint(out, f));
    }

    /// Reads a scope and the flag `add`.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<(Self, bool)> {
        let offset = cursor.offset();
        let flags = cursor.flags("scope", 0b111)?;
        let tensor = cursor.varint()?;
        let scope = match flags & 0b11 {
            0 => Self::Tensor(tensor),
            SCOPE_TENSORS => {
                Self::Tensors { first: tensor, count: cursor.varint_in("tensor count", 2, u64::MAX)? }
            }
            SCOPE_RANGE => {
                let start = cursor.varint()?;
                Self::Range { tensor, start, len: cursor.varint_in("range", 1, u64::MAX)? }
            }
            _ => return Err(Error::out_of_range("scope", flags.into(), offset)),
        };
        Ok((scope, flags & FLAG_ADD != 0))
    }
}

/// A block's bytes, cut into support and values but not decoded.
#[derive(Debug, Clone)]
pub struct RawBlock<'a> {
    /// The tensors, or the part of one, that the block covers.
    pub scope: Scope,
    /// Whether the values are added, as [`Block::add`].
    pub add: bool,
    /// The elements of the scope.
    pub space: IndexSpace,
    /// The kind of the support.
    pub support_id: SupportId,
    /// The kind of the values.
    pub values_id: ValuesId,
    /// The bytes of the support.
    pub support: &'a [u8],
    /// The bytes of the values.
    pub values: &'a [u8],
    /// Offset of the first byte in the stream.
    pub offset: u64,
    /// Number of bytes, with all headers.
    pub len: u64,
}

impl<'a> RawBlock<'a> {
    /// Reads a block up to its end. `space_of` takes the scope and its offset, for errors, and returns the
    /// index space.
    pub(crate) fn read(
        cursor: &mut Cursor<'a>,
        space_of: impl FnOnce(Scope, u64) -> Result<IndexSpace>,
    ) -> Result<Self> {
        let offset = cursor.offset();
        let len = cursor.varint()?;
        let mut cursor = cursor.sub(len, "block")?;
        let scope_offset = cursor.offset();
        let (scope, add) = Scope::read(&mut cursor)?;
        let space = space_of(scope, scope_offset)?;
        let ids_offset = cursor.offset();
        let support_id = SupportId(cursor.varint()?);
        let values_id = ValuesId(cursor.varint()?);
        if support_id.name().is_none() {
            return Err(Error::unsupported("support", support_id.0, ids_offset));
        }
        if values_id.name().is_none() {
            return Err(Error::unsupported("values", values_id.0, ids_offset));
        }
        let support_len = cursor.varint()?;
        let support = cursor.take(support_len)?;
        let values = cursor.take_rest();
        Ok(Self {
            scope,
            add,
            space,
            support_id,
            values_id,
            support,
            values,
            offset,
            len: cursor.offset() - offset,
        })
    }

    /// Reads the scope and the flag `add` of the block in `bytes`.
    pub(crate) fn scope_of(bytes: &[u8], offset: u64) -> Result<(Scope, bool)> {
        let mut cursor = Cursor::new(bytes, offset, "block");
        let len = cursor.varint()?;
        Scope::read(&mut cursor.sub(len, "block")?)
    }

    /// Whether the positions are classed by the base.
    pub(crate) fn is_based(&self) -> bool {
        Support::needs_base(self.support_id, self.support)
    }

    /// Offset of the first byte of the values in the stream.
    pub(crate) fn values_offset(&self) -> u64 {
        self.offset + self.len - self.values.len() as u64
    }

    /// Number of bytes that are neither support nor values.
    pub(crate) fn header_len(&self) -> u64 {
        self.len - (self.support.len() + self.values.len()) as u64
    }

    /// The block with support and values in wire form.
    ///
    /// # Errors
    /// The errors of [`WireBlock::check`], such as for codes that refer to the shared frequency tables of the
    /// stream.
    pub(crate) fn to_wire(&self, manifest: [u8; 32], sets: &Sets, budget: &Budget) -> Result<WireBlock<'a>> {
        let around = Surroundings { space: &self.space, manifest, scope: self.scope, sets };
        let block = WireBlock {
            scope: self.scope,
            add: self.add,
            support: Part::Written { id: self.support_id, bytes: self.support.into() },
            values: Part::Written { id: self.values_id, bytes: self.values.into() },
        };
        let values_offset = self.values_offset();
        block.check_at(&around, values_offset - self.support.len() as u64, values_offset, budget)?;
        Ok(block)
    }

    /// Decodes the block.
    pub(crate) fn decode(&self, decoder: &mut Decoder<'_>, manifest: [u8; 32], sets: &Sets) -> Result<Block> {
        let values_offset = self.values_offset();
        let (support, count) = self.read_support(decoder, manifest, sets)?;
        let group_counts = support.group_counts();
        let space = self.value_space(&support, count, &group_counts);
        let values =
            Values::read(Cursor::new(self.values, values_offset, "values"), decoder, self.values_id, &space)?;
        if self.add && values.gives_bits() {
            return Err(Error::out_of_range(
                "values kind for an added block",
                self.values_id.0,
                values_offset,
            ));
        }
        if matches!(support, Support::Based(_)) && !values.gives_bits() {
            return Err(Error::out_of_range(
                "values kind for positions classed by the base",
                self.values_id.0,
                values_offset,
            ));
        }
        Ok(Block { scope: self.scope, add: self.add, support, values })
    }

    /// Decodes the positions of a sparse block whose values are elements as they are, which stay where they
    /// are. Returns `None` for other blocks.
    pub(crate) fn decode_in_place(
        &self,
        decoder: &mut Decoder<'_>,
        manifest: [u8; 32],
        sets: &Sets,
    ) -> Result<Option<(Vec<u64>, &'a [u8])>> {
        if !(self.is_sparse() && Values::are_elements(self.values_id, self.values)) {
            return Ok(None);
        }
        let (support, count) = self.read_support(decoder, manifest, sets)?;
        let space = self.value_space(&support, count, &[]);
        let values = Cursor::new(self.values, self.values_offset(), "values");
        let elements = Values::take_elements(values, &space)?;
        Ok(support.into_positions().map(|positions| (positions, elements)))
    }

    /// Takes the elements of the block from the budget, and reads its support and the number of its values.
    fn read_support(
        &self,
        decoder: &mut Decoder<'_>,
        manifest: [u8; 32],
        sets: &Sets,
    ) -> Result<(Support, u64)> {
        let around = Surroundings { space: &self.space, manifest, scope: self.scope, sets };
        decoder.budget.reserve_elements(self.space.len(), self.offset)?;
        let offset = self.values_offset() - self.support.len() as u64;
        let cursor = Cursor::new(self.support, offset, "support");
        let (support, count) = Support::read(cursor, decoder, self.support_id, &around)?;
        if self.add && matches!(support, Support::Based(_)) {
            return Err(Error::out_of_range("support of an added block", self.support_id.0, offset));
        }
        Ok((support, count))
    }

    /// Returns what `count` values at the positions of `support` depend on.
    fn value_space<'s>(
        &'s self,
        support: &'s Support,
        count: u64,
        group_counts: &'s [u64],
    ) -> ValueSpace<'s> {
        ValueSpace {
            count,
            is_all: *support == Support::All,
            tensors: Some(self.scope.tensors()),
            dtype: self.space.dtype,
            row_lens: &self.space.row_lens,
            group_counts,
            elements: Some(Elements { support, space: &self.space }),
        }
    }

    /// Returns the index set that the support refers to, if it is a [`Support::Set`] with an id.
    pub fn set(&self) -> Option<SetId> {
        // The bytes of this support are the id (spec, supports/set.md).
        let bytes = (self.support_id == SupportId::SET).then_some(self.support)?;
        bytes.try_into().ok().map(SetId)
    }

    /// Whether the support is a [`Support::Sparse`] once it is decoded.
    pub(crate) fn is_sparse(&self) -> bool {
        Support::is_sparse(self.support_id, self.support)
    }

    /// Whether the block only replaces all elements of its scope, so that [`Self::decode_into`] can decode
    /// it.
    pub(crate) fn is_dense(&self) -> bool {
        let all = self.support_id == SupportId::ALL && self.support.is_empty() && !self.add;
        all && Values::can_read_into(self.values_id, self.space.dtype)
    }

    /// Whether the block is dense, and its elements are of one tensor.
    pub(crate) fn is_dense_in_one(&self) -> bool {
        self.scope.tensors() == 1 && self.is_dense()
    }

    /// Decodes a dense block into `out`, the bytes of the elements of all its tensors. After an error these
    /// are arbitrary.
    pub(crate) fn decode_into(&self, decoder: &Decoder<'_>, out: &mut [u8]) -> Result<()> {
        decoder.budget.reserve_elements(self.space.len(), self.offset)?;
        let space = self.value_space(&Support::All, self.space.len(), &[]);
        let cursor = Cursor::new(self.values, self.values_offset(), "values");
        Values::read_into(cursor, decoder, self.values_id, &space, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::tensor::Dtype;

    /// The bytes of a block of tensor 0.
    fn block(add: bool, support: (SupportId, &[u8]), values: (ValuesId, &[u8])) -> Vec<u8> {
        let flags = if add { FLAG_ADD } else { 0 };
        let fields = [flags, 0, support.0.0 as u8, values.0.0 as u8, support.1.len() as u8];
        let body = [&fields[..], support.1, values.1].concat();
        [&[body.len() as u8], &body[..]].concat()
    }

    /// Cuts a block at byte 100 of a stream, whose tensor has two elements.
    fn raw(bytes: &[u8]) -> RawBlock<'_> {
        let space = |_, _| Ok(IndexSpace::flat(Dtype::F32, 2));
        RawBlock::read(&mut Cursor::new(bytes, 100, "update"), space).unwrap()
    }

    /// Two signs and the scale of their tensor.
    const SIGNS: (ValuesId, &[u8]) = (ValuesId::SIGN, &[1, 2, 0, 0, 0x80, 0x3f, 0, 0b10]);

    #[test]
    fn the_parts_of_a_block_make_its_length() {
        for support in [&[][..], &[1, 2, 3]] {
            let bytes = block(false, (SupportId::GAPS_RICE, support), SIGNS);
            let raw = raw(&bytes);
            assert_eq!(raw.len, bytes.len() as u64);
            assert_eq!((raw.header_len(), raw.support, raw.values), (6, support, SIGNS.1));
            assert_eq!(raw.values_offset(), 100 + 6 + support.len() as u64);
        }
    }

    #[test]
    fn only_whole_tensors_that_are_replaced_are_dense() {
        let is_dense = |add, support| raw(&block(add, support, SIGNS)).is_dense();
        assert!(is_dense(false, (SupportId::ALL, &[])));
        assert!(!is_dense(true, (SupportId::ALL, &[])));
        assert!(!is_dense(false, (SupportId::ALL, &[0])));
        assert!(!is_dense(false, (SupportId::BITMAP, &[])));
    }

    #[test]
    fn a_dense_block_is_decoded_into_its_elements_within_the_budget() {
        let bytes = block(false, (SupportId::ALL, &[]), SIGNS);
        let decode = |elements| {
            let budget = Budget::new(&Limits::default().with_max_elements(elements));
            let mut out = [0; 8];
            let decoded = raw(&bytes).decode_into(&Decoder { tables: &[], budget: &budget }, &mut out);
            decoded.map(|()| out).map_err(|e| (e.name(), e.location().unwrap().offset))
        };
        assert_eq!(decode(2).unwrap(), *[1f32, -1.0].map(f32::to_le_bytes).as_flattened());
        assert_eq!(decode(1).unwrap_err(), ("limit", 100));
    }

    #[test]
    fn errors_of_a_copied_block_have_their_offset_in_the_stream() {
        // Chunks of 128 gaps, where there are two.
        let bytes = block(false, (SupportId::GAPS_RICE, &[2, 7, 1, 0, 0]), SIGNS);
        let refused = raw(&bytes).to_wire([0; 32], &Sets::new(), &Budget::new(&Limits::default()));
        let e = refused.unwrap_err();
        assert_eq!((e.name(), e.location().unwrap().offset), ("not_canonical", 107));
    }
}
