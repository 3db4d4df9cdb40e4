//! Values on the wire (spec, values/).
//!
//! Each kind is a struct in a file of this folder and implements [`Kind`]. This file lists the kinds and is
//! the only place that chooses between them.

mod affine;
mod codebook;
mod constant;
pub(crate) mod dct;
mod floats;
mod kind;
mod latent;
mod levels;
mod low_rank;
mod minifloat;
mod minifloat_format;
mod nested;
mod planes;
mod pow2;
mod sign;
mod signs;
mod ulp;
mod wire;

pub use affine::{Affine, Zero};
pub use codebook::Codebook;
pub use constant::Constant;
pub use dct::Dct;
pub use floats::{Floats, Stored};
pub use latent::{Latent, ModelId};
pub use levels::{LevelList, Levels, Norm, Spacing};
pub(crate) use levels::{code_of, level_of, number_of};
pub use low_rank::LowRank;
pub use minifloat::Minifloat;
pub use minifloat_format::MinifloatFormat;
pub use planes::Planes;
pub use pow2::{Pow2, Underflow};
pub use sign::Sign;
pub use ulp::Ulp;
pub(in crate::block) use ulp::step_all;
pub use wire::{Packed, WireValues};

use kind::Kind;
pub(crate) use kind::{Content, Facts, Structure, Validated};

use crate::bits::Cursor;
pub(crate) use crate::block::space::{Elements, ValueSpace};
use crate::codes::{Coder, Decoder, PIECE};
use crate::error::{Error, Result};
use crate::limits::{Budget, in_memory};
use crate::tensor::{Dtype, element};

/// The values of a block, one for each element of its support (spec, values/). In the kinds, `m` is the
/// number of values.
///
/// [`Floats`] of [`Stored::Source`], [`Planes`] and [`Ulp`] give bits of the tensor's element type. All other
/// kinds give a 32-bit float for each element, which is converted to the element type by rounding to nearest,
/// ties to even.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Values {
    /// Plain numbers.
    Floats(Floats),
    /// Each element is its group's scale.
    Constant(Constant),
    /// Each element is plus or minus its group's scale.
    Sign(Sign),
    /// Each element is zero or a power of two.
    Pow2(Pow2),
    /// Each element is a level of a quantiser times its group's norm.
    Levels(Levels),
    /// Each element is an integer code less a zero point, times its group's scale; or a code times the scale,
    /// plus an offset.
    Affine(Affine),
    /// Each element is an entry of a table, times its group's scale, plus its group's shift.
    Codebook(Codebook),
    /// Each element is a small float times its group's scale.
    Minifloat(Minifloat),
    /// The elements' own bits, byte plane by byte plane.
    Planes(Planes),
    /// The difference to a base tensor in units of the last place.
    Ulp(Ulp),
    /// Codes from which a learned decoder makes the values.
    Latent(Latent),
    /// A matrix as a product of two factors.
    LowRank(LowRank),
    /// A matrix by the coefficients of a blockwise cosine transform.
    Dct(Dct),
}

impl ValuesId {
    /// [`Floats`]: `values/floats.md`
    pub const FLOATS: Self = Floats::ID;
    /// [`Constant`]: `values/constant.md`
    pub const CONSTANT: Self = Constant::ID;
    /// [`Sign`]: `values/sign.md`
    pub const SIGN: Self = Sign::ID;
    /// [`Pow2`]: `values/pow2.md`
    pub const POW2: Self = Pow2::ID;
    /// [`Levels`]: `values/levels.md`
    pub const LEVELS: Self = Levels::ID;
    /// [`Affine`]: `values/affine.md`
    pub const AFFINE: Self = Affine::ID;
    /// [`Codebook`]: `values/codebook.md`
    pub const CODEBOOK: Self = Codebook::ID;
    /// [`Minifloat`]: `values/minifloat.md`
    pub const MINIFLOAT: Self = Minifloat::ID;
    /// [`Planes`]: `values/planes.md`
    pub const PLANES: Self = Planes::ID;
    /// [`Ulp`]: `values/ulp.md`
    pub const ULP: Self = Ulp::ID;
    /// [`Latent`]: `values/latent.md`
    pub const LATENT: Self = Latent::ID;
    /// [`LowRank`]: `values/low-rank.md`
    pub const LOW_RANK: Self = LowRank::ID;
    /// [`Dct`]: `values/dct.md`
    pub const DCT: Self = Dct::ID;

    /// Every registered kind with its name.
    pub const REGISTERED: [(Self, &'static str); 13] = [
        (Floats::ID, Floats::NAME),
        (Constant::ID, Constant::NAME),
        (Sign::ID, Sign::NAME),
        (Pow2::ID, Pow2::NAME),
        (Levels::ID, Levels::NAME),
        (Affine::ID, Affine::NAME),
        (Codebook::ID, Codebook::NAME),
        (Minifloat::ID, Minifloat::NAME),
        (Planes::ID, Planes::NAME),
        (Ulp::ID, Ulp::NAME),
        (Latent::ID, Latent::NAME),
        (LowRank::ID, LowRank::NAME),
        (Dct::ID, Dct::NAME),
    ];
}

impl Values {
    /// The kind's number.
    pub fn id(&self) -> ValuesId {
        match self {
            Self::Floats(_) => Floats::ID,
            Self::Constant(_) => Constant::ID,
            Self::Sign(_) => Sign::ID,
            Self::Pow2(_) => Pow2::ID,
            Self::Levels(_) => Levels::ID,
            Self::Affine(_) => Affine::ID,
            Self::Codebook(_) => Codebook::ID,
            Self::Minifloat(_) => Minifloat::ID,
            Self::Planes(_) => Planes::ID,
            Self::Ulp(_) => Ulp::ID,
            Self::Latent(_) => Latent::ID,
            Self::LowRank(_) => LowRank::ID,
            Self::Dct(_) => Dct::ID,
        }
    }

    /// A short description for people: the kind and its main parameter, such as `levels s=7`.
    pub fn label(&self) -> String {
        match self {
            Self::Floats(v) => v.label(),
            Self::Constant(v) => v.label(),
            Self::Sign(v) => v.label(),
            Self::Pow2(v) => v.label(),
            Self::Levels(v) => v.label(),
            Self::Affine(v) => v.label(),
            Self::Codebook(v) => v.label(),
            Self::Minifloat(v) => v.label(),
            Self::Planes(v) => v.label(),
            Self::Ulp(v) => v.label(),
            Self::Latent(v) => v.label(),
            Self::LowRank(v) => v.label(),
            Self::Dct(v) => v.label(),
        }
    }

    /// The properties that other layers need.
    pub(crate) fn facts(&self) -> Facts<'_> {
        match self {
            Self::Floats(v) => v.facts(),
            Self::Constant(v) => v.facts(),
            Self::Sign(v) => v.facts(),
            Self::Pow2(v) => v.facts(),
            Self::Levels(v) => v.facts(),
            Self::Affine(v) => v.facts(),
            Self::Codebook(v) => v.facts(),
            Self::Minifloat(v) => v.facts(),
            Self::Planes(v) => v.facts(),
            Self::Ulp(v) => v.facts(),
            Self::Latent(v) => v.facts(),
            Self::LowRank(v) => v.facts(),
            Self::Dct(v) => v.facts(),
        }
    }

    fn write_kind(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        match self {
            Self::Floats(v) => v.write(out, coder, space),
            Self::Constant(v) => v.write(out, coder, space),
            Self::Sign(v) => v.write(out, coder, space),
            Self::Pow2(v) => v.write(out, coder, space),
            Self::Levels(v) => v.write(out, coder, space),
            Self::Affine(v) => v.write(out, coder, space),
            Self::Codebook(v) => v.write(out, coder, space),
            Self::Minifloat(v) => v.write(out, coder, space),
            Self::Planes(v) => v.write(out, coder, space),
            Self::Ulp(v) => v.write(out, coder, space),
            Self::Latent(v) => v.write(out, coder, space),
            Self::LowRank(v) => v.write(out, coder, space),
            Self::Dct(v) => v.write(out, coder, space),
        }
    }

    fn read_kind(
        cursor: &mut Cursor<'_>,
        decoder: &mut Decoder<'_>,
        id: ValuesId,
        space: &ValueSpace<'_>,
    ) -> Result<Self> {
        Ok(match id {
            Floats::ID => Self::Floats(Floats::read(cursor, decoder, space)?),
            Constant::ID => Self::Constant(Constant::read(cursor, decoder, space)?),
            Sign::ID => Self::Sign(Sign::read(cursor, decoder, space)?),
            Pow2::ID => Self::Pow2(Pow2::read(cursor, decoder, space)?),
            Levels::ID => Self::Levels(Levels::read(cursor, decoder, space)?),
            Affine::ID => Self::Affine(Affine::read(cursor, decoder, space)?),
            Codebook::ID => Self::Codebook(Codebook::read(cursor, decoder, space)?),
            Minifloat::ID => Self::Minifloat(Minifloat::read(cursor, decoder, space)?),
            Planes::ID => Self::Planes(Planes::read(cursor, decoder, space)?),
            Ulp::ID => Self::Ulp(Ulp::read(cursor, decoder, space)?),
            Latent::ID => Self::Latent(Latent::read(cursor, decoder, space)?),
            LowRank::ID => Self::LowRank(LowRank::read(cursor, decoder, space)?),
            Dct::ID => Self::Dct(Dct::read(cursor, decoder, space)?),
            ValuesId(other) => return Err(Error::unsupported("values", other, cursor.offset())),
        })
    }

    fn validate_kind(cursor: &mut Cursor<'_>, id: ValuesId, space: &ValueSpace<'_>) -> Result<Validated> {
        match id {
            Floats::ID => Floats::validate(cursor, space),
            Constant::ID => Constant::validate(cursor, space),
            Sign::ID => Sign::validate(cursor, space),
            Pow2::ID => Pow2::validate(cursor, space),
            Levels::ID => Levels::validate(cursor, space),
            Affine::ID => Affine::validate(cursor, space),
            Codebook::ID => Codebook::validate(cursor, space),
            Minifloat::ID => Minifloat::validate(cursor, space),
            Planes::ID => Planes::validate(cursor, space),
            Ulp::ID => Ulp::validate(cursor, space),
            Latent::ID => Latent::validate(cursor, space),
            LowRank::ID => LowRank::validate(cursor, space),
            Dct::ID => Dct::validate(cursor, space),
            ValuesId(other) => Err(Error::unsupported("values", other, cursor.offset())),
        }
    }

    /// Writes one number per value into `out` (spec, each kind's page).
    ///
    /// `tensor_counts` holds the number of values of each tensor of the scope; only values with
    /// [`Groups::Tensor`](crate::block::Groups::Tensor) need it.
    ///
    /// # Errors
    /// [`Error::Input`] for latent codes, which need their model, and for kinds that give bits.
    pub(crate) fn numbers(&self, tensor_counts: &[u64], budget: &Budget, out: &mut [f32]) -> Result<()> {
        match self {
            Self::Floats(v) => v.numbers(tensor_counts, budget, out),
            Self::Constant(v) => v.numbers(tensor_counts, budget, out),
            Self::Sign(v) => v.numbers(tensor_counts, budget, out),
            Self::Pow2(v) => v.numbers(tensor_counts, budget, out),
            Self::Levels(v) => v.numbers(tensor_counts, budget, out),
            Self::Affine(v) => v.numbers(tensor_counts, budget, out),
            Self::Codebook(v) => v.numbers(tensor_counts, budget, out),
            Self::Minifloat(v) => v.numbers(tensor_counts, budget, out),
            Self::Planes(v) => v.numbers(tensor_counts, budget, out),
            Self::Ulp(v) => v.numbers(tensor_counts, budget, out),
            Self::Latent(v) => v.numbers(tensor_counts, budget, out),
            Self::LowRank(v) => v.numbers(tensor_counts, budget, out),
            Self::Dct(v) => v.numbers(tensor_counts, budget, out),
        }
    }
}

impl Values {
    /// Whether the kind gives elements' bits rather than numbers.
    pub fn gives_bits(&self) -> bool {
        self.facts().content.is_bits()
    }

    /// The elements in little-endian bytes, for kinds that hold elements of the tensor's type.
    pub fn elements(&self) -> Option<&[u8]> {
        match self.facts().content {
            Content::Elements(Stored::Source, bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Appends the wire form.
    ///
    /// # Errors
    /// [`Error::Input`] if fields disagree with each other or with `space`.
    pub(crate) fn write(
        &self,
        out: &mut Vec<u8>,
        coder: &mut Coder<'_>,
        space: &ValueSpace<'_>,
    ) -> Result<()> {
        if !self.gives_bits() && !space.dtype.is_float() {
            return Err(Error::inconsistent("numbers for elements that are not floats"));
        }
        self.write_kind(out, coder, space)
    }

    /// Reads values of kind `id` from all bytes of `cursor`.
    pub(crate) fn read(
        mut cursor: Cursor<'_>,
        decoder: &mut Decoder<'_>,
        id: ValuesId,
        space: &ValueSpace<'_>,
    ) -> Result<Self> {
        let offset = cursor.offset();
        let values = Self::read_kind(&mut cursor, decoder, id, space)?;
        check_dtype(values.gives_bits(), id, space, offset)?;
        cursor.finish()?;
        Ok(values)
    }

    /// Whether [`Self::read_into`] reads values of this kind.
    pub(crate) fn can_read_into(id: ValuesId, dtype: Dtype) -> bool {
        let numbers = [Sign::ID, Pow2::ID, Levels::ID, Affine::ID].contains(&id);
        dtype.bits() >= 8 && (id == Planes::ID || numbers && dtype.is_float())
    }

    /// Reads values of kind `id` from all bytes of `cursor` straight into `out`, which are all elements of a
    /// part of one tensor. This takes no memory for decoded values. After an error the elements are
    /// arbitrary.
    ///
    /// # Errors
    /// As [`Self::read`]; [`Error::Unsupported`] for a kind that [`Self::can_read_into`] excludes.
    pub(crate) fn read_into(
        mut cursor: Cursor<'_>,
        decoder: &Decoder<'_>,
        id: ValuesId,
        space: &ValueSpace<'_>,
        out: &mut [u8],
    ) -> Result<()> {
        match id {
            Planes::ID => Planes::read_into(&mut cursor, decoder, space, out)?,
            Pow2::ID => Pow2::read_into(&mut cursor, decoder, space, out)?,
            Levels::ID => Levels::read_into(&mut cursor, decoder, space, out)?,
            Affine::ID => Affine::read_into(&mut cursor, decoder, space, out)?,
            Sign::ID => Sign::read_into(&mut cursor, decoder, space, out)?,
            ValuesId(other) => return Err(Error::unsupported("values", other, cursor.offset())),
        }
        cursor.finish()
    }

    /// Checks values of kind `id` in all bytes of `cursor` without decoding their codes.
    ///
    /// # Errors
    /// The errors of [`Self::read`] that show without decoding, and
    /// [`FormatErrorKind::UnknownReference`](crate::error::FormatErrorKind::UnknownReference) for codes that
    /// refer to a shared frequency table.
    pub(crate) fn validate(
        mut cursor: Cursor<'_>,
        id: ValuesId,
        space: &ValueSpace<'_>,
    ) -> Result<Validated> {
        let offset = cursor.offset();
        let validated = Self::validate_kind(&mut cursor, id, space)?;
        check_dtype(validated.is_bits, id, space, offset)?;
        cursor.finish()?;
        Ok(validated)
    }
}

/// Refuses numbers for elements that are not floats.
fn check_dtype(is_bits: bool, id: ValuesId, space: &ValueSpace<'_>, offset: u64) -> Result<()> {
    match is_bits || space.dtype.is_float() {
        true => Ok(()),
        false => Err(Error::out_of_range("values kind for this element type", id.0, offset)),
    }
}

/// A values kind's number in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValuesId(pub u64);

impl ValuesId {
    /// The kind's name in the registry.
    pub fn name(self) -> Option<&'static str> {
        Self::REGISTERED.iter().find(|(id, _)| *id == self).map(|(_, name)| *name)
    }
}

impl std::fmt::Display for ValuesId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "values {:#x}", self.0),
        }
    }
}

/// Computes numbers piece by piece, and stores them as the elements `out`, which have at least 8 bits.
/// `numbers` gets the place of the first number of a piece.
fn put_numbers(
    dtype: Dtype,
    out: &mut [u8],
    mut numbers: impl FnMut(usize, &mut [f32]) -> Result<()>,
) -> Result<()> {
    let mut piece = [0.0; PIECE];
    let size = in_memory((dtype.bits() / 8).into());
    for (start, out) in (0..).step_by(PIECE).zip(out.chunks_mut(PIECE * size)) {
        let piece = &mut piece[..out.len() / size];
        numbers(start, piece)?;
        element::encode_f32s(dtype, piece, 0, out)?;
    }
    Ok(())
}

/// Rounds the result of arithmetic to a number. Any NaN becomes the spec's one NaN, as processors choose
/// different ones.
pub(crate) fn to_number(result: f64) -> f32 {
    if result.is_nan() { f32::from_bits(0x7fc0_0000) } else { result as f32 }
}

#[cfg(test)]
mod tests;
