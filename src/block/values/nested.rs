//! Values inside other values.

use crate::bits::{Cursor, put_varint};
use crate::block::values::{Affine, Codebook, Constant, Floats, Levels, Minifloat, Pow2, Sign};
use crate::block::values::{Kind, ValueSpace, Values, ValuesId};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, Result};
use crate::tensor::Dtype;

/// Kinds with a code for each value (spec, LAT-1 and LRK-2).
pub(super) const CODED: &[ValuesId] =
    &[Floats::ID, Pow2::ID, Levels::ID, Affine::ID, Codebook::ID, Minifloat::ID];

/// Kinds that give numbers without nesting others (spec, DCT-4).
pub(super) const FLAT: &[ValuesId] =
    &[Floats::ID, Constant::ID, Sign::ID, Pow2::ID, Levels::ID, Affine::ID, Codebook::ID, Minifloat::ID];

/// Nested values in wire form: a kind that is allowed here, and its bytes.
pub(super) struct Nested<'a> {
    id: ValuesId,
    cursor: Cursor<'a>,
    space: ValueSpace<'static>,
}

impl<'a> Nested<'a> {
    /// Takes an id and `count` values up to the end of the cursor. `field` names them in errors.
    pub(super) fn take_rest(
        cursor: &mut Cursor<'a>,
        field: &'static str,
        allowed: &[ValuesId],
        count: u64,
    ) -> Result<Self> {
        let id = ValuesId(cursor.varint()?);
        let len = cursor.remaining() as u64;
        Self::new(id, cursor.sub(len, field)?, allowed, count)
    }

    /// Takes an id, a length in bytes, and `count` values.
    pub(super) fn take_sized(
        cursor: &mut Cursor<'a>,
        field: &'static str,
        allowed: &[ValuesId],
        count: u64,
    ) -> Result<Self> {
        let id = ValuesId(cursor.varint()?);
        let len = cursor.varint()?;
        Self::new(id, cursor.sub(len, field)?, allowed, count)
    }

    fn new(id: ValuesId, cursor: Cursor<'a>, allowed: &[ValuesId], count: u64) -> Result<Self> {
        if !allowed.contains(&id) {
            return Err(Error::out_of_range("nested values", id.0, cursor.offset()));
        }
        Ok(Self { id, cursor, space: space(count, &[]) })
    }

    /// Decodes the values.
    pub(super) fn read(self, decoder: &mut Decoder<'_>) -> Result<Box<Values>> {
        let offset = self.cursor.offset();
        let values = Values::read(self.cursor, decoder, self.id, &self.space)?;
        match values.gives_bits() {
            true => Err(Error::out_of_range("nested values", self.id.0, offset)),
            false => Ok(Box::new(values)),
        }
    }

    /// Checks the values without decoding their codes, and returns their weight.
    pub(super) fn validate(self) -> Result<u64> {
        let offset = self.cursor.offset();
        let validated = Values::validate(self.cursor, self.id, &self.space)?;
        match validated.is_bits {
            true => Err(Error::out_of_range("nested values", self.id.0, offset)),
            false => Ok(validated.weight),
        }
    }
}

/// Appends the id and the wire form of `count` nested values that extend to the end of the block.
pub(super) fn write_rest(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    allowed: &[ValuesId],
    count: u64,
    row_lens: &[u64],
) -> Result<()> {
    put_varint(out, values.id().0);
    write(out, coder, values, allowed, count, row_lens)
}

/// Appends the id, the length in bytes and the wire form of `count` nested values.
pub(super) fn write_sized(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    allowed: &[ValuesId],
    count: u64,
    row_lens: &[u64],
) -> Result<()> {
    let mut bytes = Vec::new();
    write(&mut bytes, coder, values, allowed, count, row_lens)?;
    put_varint(out, values.id().0);
    put_varint(out, bytes.len() as u64);
    out.append(&mut bytes);
    Ok(())
}

fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    allowed: &[ValuesId],
    count: u64,
    row_lens: &[u64],
) -> Result<()> {
    if !allowed.contains(&values.id()) || values.gives_bits() {
        return Err(Error::inconsistent("values of a kind that cannot be nested"));
    }
    values.write(out, coder, &space(count, row_lens))
}

/// Nested values are numbers, whatever the tensor's element type is; f32 stands for that.
fn space(count: u64, row_lens: &[u64]) -> ValueSpace<'_> {
    ValueSpace {
        count,
        is_all: true,
        tensors: None,
        dtype: Dtype::F32,
        row_lens,
        group_counts: &[],
        elements: None,
    }
}
