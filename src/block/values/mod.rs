//! Values on the wire (spec, values/).
//!
//! Each kind is a struct in a file of this folder and implements [`Kind`]. `kinds!` lists the kinds and is
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

use crate::arch::floats::floats_mut;
use crate::bits::Cursor;
pub(crate) use crate::block::space::{Elements, ValueSpace};
use crate::codes::{Coder, Decoder, PIECE};
use crate::error::{Error, Result};
use crate::limits::{Budget, in_memory};
use crate::tensor::{Dtype, element};

/// Makes [`Values`], the names of [`ValuesId`] and every choice between the kinds from one list of kinds.
macro_rules! kinds {
    ($($(#[$doc:meta])* $Kind:ident $ID:ident $name:literal)*) => {
        /// The values of a block, one for each element of its support (spec, values/). In the kinds, `m` is
        /// the number of values.
        ///
        /// [`Floats`] of [`Stored::Source`], [`Planes`] and [`Ulp`] give bits of the tensor's element type.
        /// All other kinds give a 32-bit float for each element, which is converted to the element type by
        /// rounding to nearest, ties to even.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum Values {
            $($(#[$doc])* $Kind($Kind),)*
        }

        impl ValuesId {
            $(
                #[doc = concat!("[`", stringify!($Kind), "`]: `values/", $name, ".md`")]
                pub const $ID: Self = $Kind::ID;
            )*

            /// Every registered kind with its name.
            pub const REGISTERED: [(Self, &'static str); [$($name),*].len()] = [$(($Kind::ID, $name)),*];

            /// Whether readers of the core profile know the kind (spec, core.md).
            pub fn is_core(self) -> bool {
                match self {
                    $($Kind::ID => $Kind::IS_CORE,)*
                    _ => false,
                }
            }
        }

        impl Values {
            /// The kind's number.
            pub fn id(&self) -> ValuesId {
                match self { $(Self::$Kind(_) => $Kind::ID,)* }
            }

            /// A short description for people: the kind and its main parameter, such as `levels s=7`.
            pub(crate) fn label(&self) -> String {
                match self { $(Self::$Kind(v) => v.label(),)* }
            }

            /// The properties that other layers need.
            pub(crate) fn facts(&self) -> Facts<'_> {
                match self { $(Self::$Kind(v) => v.facts(),)* }
            }

            fn write_kind(
                &self,
                out: &mut Vec<u8>,
                coder: &mut Coder<'_>,
                space: &ValueSpace<'_>,
            ) -> Result<()> {
                match self { $(Self::$Kind(v) => v.write(out, coder, space),)* }
            }

            fn read_kind(
                cursor: &mut Cursor<'_>,
                decoder: &mut Decoder<'_>,
                id: ValuesId,
                space: &ValueSpace<'_>,
            ) -> Result<Self> {
                match id {
                    $($Kind::ID => $Kind::read(cursor, decoder, space).map(Self::$Kind),)*
                    ValuesId(other) => Err(Error::unsupported("values", other, cursor.offset())),
                }
            }

            fn validate_kind(
                cursor: &mut Cursor<'_>,
                id: ValuesId,
                space: &ValueSpace<'_>,
            ) -> Result<Validated> {
                match id {
                    $($Kind::ID => $Kind::validate(cursor, space),)*
                    ValuesId(other) => Err(Error::unsupported("values", other, cursor.offset())),
                }
            }

            /// Returns the coding of values of kind `id` at the cursor that is not of the core profile.
            pub(crate) fn beyond_core(
                cursor: &mut Cursor<'_>,
                decoder: &Decoder<'_>,
                id: ValuesId,
                space: &ValueSpace<'_>,
            ) -> Result<Option<&'static str>> {
                match id {
                    $($Kind::ID => $Kind::beyond_core(cursor, decoder, space),)*
                    _ => Ok(None),
                }
            }

            /// Writes one number per value into `out` (spec, each kind's page).
            ///
            /// `tensor_counts` holds the number of values of each tensor of the scope; only values with
            /// [`Groups::Tensor`](crate::block::Groups::Tensor) need it.
            ///
            /// # Errors
            /// [`Error::Input`] for latent codes, which need their model, and for kinds that give bits.
            pub(
                crate) fn numbers(&self,
                tensor_counts: &[u64],
                budget: &Budget,
                out: &mut [f32],
            ) -> Result<()> {
                match self { $(Self::$Kind(v) => v.numbers(tensor_counts, budget, out),)* }
            }
        }
    };
}

kinds! {
    /// Plain numbers.
    Floats FLOATS "floats"
    /// Each element is its group's scale.
    Constant CONSTANT "constant"
    /// Each element is plus or minus its group's scale.
    Sign SIGN "sign"
    /// Each element is zero or a power of two.
    Pow2 POW2 "pow2"
    /// Each element is a level of a quantiser times its group's norm.
    Levels LEVELS "levels"
    /// Each element is an integer code less a zero point, times its group's scale; or a code times the scale,
    /// plus an offset.
    Affine AFFINE "affine"
    /// Each element is an entry of a table, times its group's scale, plus its group's shift.
    Codebook CODEBOOK "codebook"
    /// Each element is a small float times its group's scale.
    Minifloat MINIFLOAT "minifloat"
    /// The elements' own bits, byte plane by byte plane.
    Planes PLANES "planes"
    /// The difference to a base tensor in units of the last place.
    Ulp ULP "ulp"
    /// Codes from which a learned decoder makes the values.
    Latent LATENT "latent"
    /// A matrix as a product of two factors.
    LowRank LOW_RANK "low-rank"
    /// A matrix by the coefficients of a blockwise cosine transform.
    Dct DCT "dct"
}

impl Values {
    /// Whether the kind gives elements' bits rather than numbers.
    pub fn gives_bits(&self) -> bool {
        self.facts().content.is_bits()
    }

    /// The elements in little-endian bytes, for kinds that hold elements of the tensor's type.
    pub(crate) fn elements(&self) -> Option<&[u8]> {
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

    /// Whether values of kind `id` in `bytes` are the elements as they are.
    pub(crate) fn are_elements(id: ValuesId, bytes: &[u8]) -> bool {
        id == Floats::ID && bytes.first() == Some(&(Stored::Source as u8))
    }

    /// Returns the bytes of the elements of values that are elements ([`Self::are_elements`]).
    pub(crate) fn take_elements<'a>(mut cursor: Cursor<'a>, space: &ValueSpace<'_>) -> Result<&'a [u8]> {
        let (_, elements) = floats::take(&mut cursor, space)?;
        cursor.finish()?;
        Ok(elements)
    }

    /// Whether [`Self::read_into`] reads values of this kind.
    pub(crate) fn can_read_into(id: ValuesId, dtype: Dtype) -> bool {
        let numbers = [Sign::ID, Pow2::ID, Levels::ID, Affine::ID].contains(&id);
        dtype.bits() >= 8 && ([Planes::ID, Floats::ID].contains(&id) || numbers && dtype.is_float())
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
            Floats::ID => Floats::read_into(&mut cursor, space, out)?,
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
/// `numbers` gets the place of the first number of a piece, and memory for it that has any numbers: the
/// elements themselves where these are the numbers.
fn put_numbers(
    dtype: Dtype,
    out: &mut [u8],
    mut numbers: impl FnMut(usize, &mut [f32]) -> Result<()>,
) -> Result<()> {
    if dtype == Dtype::F32
        && let Some(out) = floats_mut(out.as_chunks_mut().0)
    {
        let mut pieces = (0..).step_by(PIECE).zip(out.chunks_mut(PIECE));
        return pieces.try_for_each(|(start, piece)| numbers(start, piece));
    }
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
#[inline(always)]
pub(crate) fn to_number(result: f64) -> f32 {
    if result.is_nan() { f32::from_bits(0x7fc0_0000) } else { result as f32 }
}

#[cfg(test)]
mod tests;
