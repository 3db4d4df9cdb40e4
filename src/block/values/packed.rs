//! Values whose codes are bit planes already, as a device packs them.

use crate::bits::{packed_bytes, put_i16};
use crate::block::values::{ValueSpace, affine, levels, pow2, scaled};
use crate::block::{Groups, Norm, Part, Scales, Spacing, Underflow, Values, ValuesId, Zero};
use crate::codes::PACKED;
use crate::error::{Error, Result};
use crate::tensor::Dtype;

/// Integers of fixed width (spec, section 7.1): integer i in the bits `i * width` to `(i + 1) * width - 1` of `plane`, least
/// significant bit of each byte first, the last byte padded with zeros.
///
/// An encoder that is asked for packed integers takes the smallest width that holds the largest of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed<'a> {
    /// Bits of an integer: 0 to 64.
    pub width: u8,
    /// The bits.
    pub plane: &'a [u8],
}

/// Makes [`Part::Written`] of planes: the fields of a values kind (spec, values/), and the planes as they are.
///
/// Each method has the fields of the variant of [`Values`] that it is named for. Lengths are checked, what the planes hold is
/// not ([`WireBlock`](crate::block::WireBlock) says what follows from that).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireValues {
    /// How many values there are.
    pub count: u64,
    /// Tensors of the block's scope.
    pub tensors: u64,
}

impl WireValues {
    fn space(self) -> ValueSpace<'static> {
        // Of the kinds here none depends on the element type.
        ValueSpace { count: self.count, tensors: Some(self.tensors), dtype: Dtype::F32, row_lens: &[] }
    }

    /// Appends `ints(N)`.
    fn ints(self, out: &mut Vec<u8>, codes: Packed<'_>) -> Result<()> {
        let fits = packed_bytes(self.count, codes.width.into()) == Some(codes.plane.len() as u64);
        if codes.width > 64 || !fits {
            return Err(Error::inconsistent("length of packed integers"));
        }
        if self.count > 0 {
            out.extend([PACKED, codes.width]);
            out.extend_from_slice(codes.plane);
        }
        Ok(())
    }

    /// [`Values::Sign`]: `negative` has a bit for each value, 1 for minus.
    ///
    /// # Errors
    /// [`Error::Input`] for groups that there are not, and for lengths that do not fit.
    pub fn sign(
        self,
        groups: Groups,
        scales: &Scales,
        negative: &[u8],
    ) -> Result<Part<'static, Values, ValuesId>> {
        let mut bytes = Vec::new();
        scaled::write_constant(&mut bytes, groups, scales, &self.space())?;
        if negative.len() as u64 != self.count.div_ceil(8) {
            return Err(Error::inconsistent("number of signs"));
        }
        bytes.extend_from_slice(negative);
        Ok(Part::Written { id: ValuesId::SIGN, bytes: bytes.into() })
    }

    /// [`Values::Pow2`]: `signs` has a bit for each code above 0 and none for others, 1 for minus, in the order of the values.
    ///
    /// # Errors
    /// As [`Self::sign`], and for a `min_exponent` out of range.
    pub fn pow2(
        self,
        min_exponent: i16,
        underflow: Underflow,
        codes: Packed<'_>,
        signs: &[u8],
    ) -> Result<Part<'static, Values, ValuesId>> {
        if !pow2::EXPONENTS.contains(&min_exponent) {
            return Err(Error::bad_option("min_exponent"));
        }
        let mut bytes = Vec::new();
        put_i16(&mut bytes, min_exponent);
        bytes.push(underflow as u8);
        self.ints(&mut bytes, codes)?;
        if signs.len() as u64 > self.count.div_ceil(8) {
            return Err(Error::inconsistent("number of signs"));
        }
        bytes.extend_from_slice(signs);
        Ok(Part::Written { id: ValuesId::POW2, bytes: bytes.into() })
    }

    /// [`Values::Levels`]: `codes` are levels by zigzag: 2l for l >= 0, -2l - 1 for l < 0.
    ///
    /// # Errors
    /// As [`Self::sign`], and for a `max_level` out of range.
    pub fn levels(
        self,
        spacing: Spacing,
        max_level: u32,
        norm: Norm,
        groups: Groups,
        norms: &Scales,
        codes: Packed<'_>,
    ) -> Result<Part<'static, Values, ValuesId>> {
        let mut bytes = Vec::new();
        levels::write_head(&mut bytes, spacing, max_level, norm, groups, norms, &self.space())?;
        self.ints(&mut bytes, codes)?;
        Ok(Part::Written { id: ValuesId::LEVELS, bytes: bytes.into() })
    }

    /// [`Values::Affine`].
    ///
    /// # Errors
    /// As [`Self::sign`], and for `bits` out of range.
    pub fn affine(
        self,
        bits: u8,
        groups: Groups,
        scales: &Scales,
        zero: &Zero,
        codes: Packed<'_>,
    ) -> Result<Part<'static, Values, ValuesId>> {
        let mut bytes = Vec::new();
        affine::write_head(&mut bytes, bits, groups, scales, zero, &self.space())?;
        self.ints(&mut bytes, codes)?;
        Ok(Part::Written { id: ValuesId::AFFINE, bytes: bytes.into() })
    }
}
