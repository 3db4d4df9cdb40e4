//! Groups and scales (spec, section 5.1).

use crate::bits::{Cursor, put_varint};
use crate::block::values::ValueSpace;
use crate::block::{Groups, ScaleFormat, Scales};
use crate::error::{Error, Result};

impl Groups {
    /// How many groups there are.
    pub(crate) fn count(self, space: &ValueSpace<'_>) -> u64 {
        match self {
            Self::Block => 1,
            Self::Tensor => space.tensors.unwrap_or(1),
            Self::Len(len) => space.count.div_ceil(len.max(1)),
        }
    }

    pub(super) fn write(self, out: &mut Vec<u8>, space: &ValueSpace<'_>) -> Result<()> {
        let number = match self {
            Self::Block => 0,
            Self::Tensor if space.tensors.is_some() => 1,
            Self::Len(len) if len >= 2 => len,
            _ => return Err(Error::bad_option("groups")),
        };
        put_varint(out, number);
        Ok(())
    }

    pub(super) fn read(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let offset = cursor.offset();
        match cursor.varint()? {
            0 => Ok(Self::Block),
            1 if space.tensors.is_none() => Err(Error::out_of_range("groups", 1, offset)),
            1 => Ok(Self::Tensor),
            len => Ok(Self::Len(len)),
        }
    }
}

impl ScaleFormat {
    /// Every format with its name in the registry.
    pub const REGISTERED: [(Self, &'static str); 4] =
        [(Self::F32, "f32"), (Self::F16, "f16"), (Self::Bf16, "bf16"), (Self::E8M0, "e8m0")];

    fn from_id(id: u8) -> Option<Self> {
        Self::REGISTERED.iter().map(|(f, _)| *f).find(|f| *f as u8 == id)
    }
}

impl Scales {
    /// Appends the format and the numbers, of which there must be `count`.
    pub(super) fn write(&self, out: &mut Vec<u8>, count: u64) -> Result<()> {
        if self.bytes.len() as u64 != count.saturating_mul(self.format.bytes() as u64) {
            return Err(Error::inconsistent("number of scales"));
        }
        out.push(self.format as u8);
        out.extend_from_slice(&self.bytes);
        Ok(())
    }

    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self> {
        let offset = cursor.offset();
        let id = cursor.u8()?;
        let format = ScaleFormat::from_id(id).ok_or(Error::unsupported("scale format", id.into(), offset))?;
        let bytes = cursor.take(count.saturating_mul(format.bytes() as u64))?.to_vec();
        Ok(Self { format, bytes })
    }
}
