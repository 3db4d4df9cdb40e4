//! Values on the wire (spec, values/): each kind's two directions side by side, and what a decoder makes of them.

mod affine;
mod basis;
mod codebook;
pub(crate) mod dct;
mod floats;
mod latent;
mod levels;
mod low_rank;
mod minifloat;
mod packed;
mod planes;
pub(crate) mod pow2;
mod scaled;
mod scales;
mod skim;
mod ulp;

use crate::bits::Cursor;
use crate::block::Values;
use crate::codes::{Coder, Decoder};
use crate::error::{Error, Result};
use crate::limits::{Budget, in_memory};
use crate::tensor::Dtype;

pub use packed::{Packed, WireValues};
pub(crate) use skim::skim;

/// A values kind's number in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValuesId(pub u64);

impl ValuesId {
    /// `values/floats.md`
    pub const FLOATS: Self = Self(1);
    /// `values/constant.md`
    pub const CONSTANT: Self = Self(2);
    /// `values/sign.md`
    pub const SIGN: Self = Self(3);
    /// `values/pow2.md`
    pub const POW2: Self = Self(4);
    /// `values/levels.md`
    pub const LEVELS: Self = Self(5);
    /// `values/affine.md`
    pub const AFFINE: Self = Self(6);
    /// `values/codebook.md`
    pub const CODEBOOK: Self = Self(7);
    /// `values/minifloat.md`
    pub const MINIFLOAT: Self = Self(8);
    /// `values/planes.md`
    pub const PLANES: Self = Self(9);
    /// `values/ulp.md`
    pub const ULP: Self = Self(10);
    /// `values/latent.md`
    pub const LATENT: Self = Self(11);
    /// `values/low-rank.md`
    pub const LOW_RANK: Self = Self(12);
    /// `values/dct.md`
    pub const DCT: Self = Self(13);

    /// Every registered kind with its name.
    pub const REGISTERED: [(Self, &'static str); 13] = [
        (Self::FLOATS, "floats"),
        (Self::CONSTANT, "constant"),
        (Self::SIGN, "sign"),
        (Self::POW2, "pow2"),
        (Self::LEVELS, "levels"),
        (Self::AFFINE, "affine"),
        (Self::CODEBOOK, "codebook"),
        (Self::MINIFLOAT, "minifloat"),
        (Self::PLANES, "planes"),
        (Self::ULP, "ulp"),
        (Self::LATENT, "latent"),
        (Self::LOW_RANK, "low-rank"),
        (Self::DCT, "dct"),
    ];

    /// Its name in the registry.
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

/// What the wire form of values depends on beside their own bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValueSpace<'a> {
    /// How many values there are.
    pub(crate) count: u64,
    /// Tensors of the scope; `None` for nested values, which have no scope.
    pub(crate) tensors: Option<u64>,
    /// The tensors' element type.
    pub(crate) dtype: Dtype,
    /// Lengths of rows that the values may be seen as a matrix of.
    pub(crate) row_lens: &'a [u64],
}

impl Values {
    /// The kind's number.
    pub fn id(&self) -> ValuesId {
        match self {
            Self::Floats { .. } => ValuesId::FLOATS,
            Self::Constant { .. } => ValuesId::CONSTANT,
            Self::Sign { .. } => ValuesId::SIGN,
            Self::Pow2 { .. } => ValuesId::POW2,
            Self::Levels { .. } => ValuesId::LEVELS,
            Self::Affine { .. } => ValuesId::AFFINE,
            Self::Codebook { .. } => ValuesId::CODEBOOK,
            Self::Minifloat { .. } => ValuesId::MINIFLOAT,
            Self::Planes { .. } => ValuesId::PLANES,
            Self::Ulp { .. } => ValuesId::ULP,
            Self::Latent { .. } => ValuesId::LATENT,
            Self::LowRank { .. } => ValuesId::LOW_RANK,
            Self::Dct { .. } => ValuesId::DCT,
        }
    }

    /// Whether the kind gives elements' bits rather than numbers.
    pub fn gives_bits(&self) -> bool {
        match self {
            Self::Floats { stored, .. } => *stored == crate::block::Stored::Source,
            Self::Planes { .. } | Self::Ulp { .. } => true,
            _ => false,
        }
    }

    /// Whether the kind may be nested in values whose nested kinds begin at `least`.
    fn may_nest(&self, least: ValuesId) -> bool {
        id_may_nest(self.id(), least) && !self.gives_bits()
    }
}

/// Whether values of this kind, if they are numbers, may be nested: floats, or from `least` to small floats.
fn id_may_nest(id: ValuesId, least: ValuesId) -> bool {
    id == ValuesId::FLOATS || (least..=ValuesId::MINIFLOAT).contains(&id)
}

/// Appends values of any kind.
///
/// # Errors
/// [`Error::Input`] if they do not hold together or do not fit `space`.
pub(crate) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    space: &ValueSpace<'_>,
) -> Result<()> {
    if !values.gives_bits() && !space.dtype.is_float() {
        return Err(Error::inconsistent("numbers for elements that are not floats"));
    }
    match values {
        Values::Floats { stored, bytes } => floats::write(out, *stored, bytes, space),
        Values::Constant { groups, scales } => scaled::write_constant(out, *groups, scales, space),
        Values::Sign { groups, scales, negative } => {
            scaled::write_sign(out, *groups, scales, negative, space)
        }
        Values::Pow2 { min_exponent, underflow, codes, negative } => {
            pow2::write(out, coder, *min_exponent, *underflow, codes, negative, space)
        }
        Values::Levels { .. } => levels::write(out, coder, values, space),
        Values::Affine { .. } => affine::write(out, coder, values, space),
        Values::Codebook { .. } => codebook::write(out, coder, values, space),
        Values::Minifloat { .. } => minifloat::write(out, coder, values, space),
        Values::Planes { bytes } => planes::write(out, coder, bytes, space),
        Values::Ulp { diffs } => ulp::write(out, coder, diffs, space),
        Values::Latent { model, shape, codes } => latent::write(out, coder, model, shape, codes, space),
        Values::LowRank { .. } => low_rank::write(out, coder, values, space),
        Values::Dct { .. } => dct::write(out, coder, values, space),
    }
}

/// Reads values of kind `id`, all of `cursor`.
pub(crate) fn read(
    mut cursor: Cursor<'_>,
    decoder: &mut Decoder<'_>,
    id: ValuesId,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let offset = cursor.offset();
    let cursor = &mut cursor;
    let values = match id {
        ValuesId::FLOATS => floats::read(cursor, space)?,
        ValuesId::CONSTANT => scaled::read_constant(cursor, space)?,
        ValuesId::SIGN => scaled::read_sign(cursor, space)?,
        ValuesId::POW2 => pow2::read(cursor, decoder, space)?,
        ValuesId::LEVELS => levels::read(cursor, decoder, space)?,
        ValuesId::AFFINE => affine::read(cursor, decoder, space)?,
        ValuesId::CODEBOOK => codebook::read(cursor, decoder, space)?,
        ValuesId::MINIFLOAT => minifloat::read(cursor, decoder, space)?,
        ValuesId::PLANES => planes::read(cursor, decoder, space)?,
        ValuesId::ULP => ulp::read(cursor, decoder, space)?,
        ValuesId::LATENT => latent::read(cursor, decoder, space)?,
        ValuesId::LOW_RANK => low_rank::read(cursor, decoder, space)?,
        ValuesId::DCT => dct::read(cursor, decoder, space)?,
        ValuesId(other) => return Err(Error::unsupported("values", other, offset)),
    };
    if !values.gives_bits() && !space.dtype.is_float() {
        return Err(Error::out_of_range("values kind for this element type", id.0, offset));
    }
    cursor.finish()?;
    Ok(values)
}

/// Reads nested values, all of `cursor`, if their kind may be nested from `least` on.
fn read_nested(
    cursor: Cursor<'_>,
    decoder: &mut Decoder<'_>,
    id: ValuesId,
    least: ValuesId,
    count: u64,
    row_lens: &[u64],
) -> Result<Box<Values>> {
    let offset = cursor.offset();
    if !id_may_nest(id, least) {
        return Err(Error::out_of_range("nested values", id.0, offset));
    }
    // Nested numbers are numbers whatever the tensor's element type; f32 stands for that.
    let space = ValueSpace { count, tensors: None, dtype: Dtype::F32, row_lens };
    let values = read(cursor, decoder, id, &space)?;
    if !values.may_nest(least) {
        return Err(Error::out_of_range("nested values", id.0, offset));
    }
    Ok(Box::new(values))
}

/// Appends nested values after their id.
fn write_nested(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    least: ValuesId,
    count: u64,
    row_lens: &[u64],
) -> Result<()> {
    if !values.may_nest(least) {
        return Err(Error::inconsistent("values of a kind that cannot be nested"));
    }
    write(out, coder, values, &ValueSpace { count, tensors: None, dtype: Dtype::F32, row_lens })
}

/// The result of arithmetic as a number: rounded, and any NaN the one NaN of the spec, so that no processor's choice shows.
pub(crate) fn to_number(result: f64) -> f32 {
    if result.is_nan() { f32::from_bits(0x7fc0_0000) } else { result as f32 }
}

/// Which group each value belongs to: calls `f` with each group's number and its range of values, in order.
///
/// `tensor_counts` are the numbers of values of each tensor of the scope, needed for [`Groups::Tensor`] only.
pub(crate) fn for_each_group(
    groups: crate::block::Groups,
    count: usize,
    tensor_counts: &[u64],
    mut f: impl FnMut(usize, std::ops::Range<usize>),
) {
    use crate::block::Groups;
    match groups {
        Groups::Block => f(0, 0..count),
        Groups::Len(len) => {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            for (group, start) in (0..count).step_by(len).enumerate() {
                f(group, start..start.saturating_add(len).min(count));
            }
        }
        Groups::Tensor => {
            let mut start = 0;
            for (group, &n) in tensor_counts.iter().enumerate() {
                let end = start + in_memory(n);
                f(group, start..end.min(count));
                start = end;
            }
        }
    }
}

/// Writes the numbers that `values` give into `out`, one for each value (spec, each kind's page).
///
/// # Errors
/// [`Error::Input`] for latent codes, which need their model, and for kinds that give bits.
pub(crate) fn numbers(
    values: &Values,
    tensor_counts: &[u64],
    budget: &Budget,
    out: &mut [f32],
) -> Result<()> {
    match values {
        Values::Floats { stored, bytes } => floats::numbers(*stored, bytes, out),
        Values::Constant { groups, scales } => {
            for_each_group(*groups, out.len(), tensor_counts, |g, range| out[range].fill(scales.get(g)));
            Ok(())
        }
        Values::Sign { groups, scales, negative } => {
            for_each_group(*groups, out.len(), tensor_counts, |g, range| {
                let scale = scales.get(g);
                range.for_each(|i| out[i] = if negative.get(i) { -scale } else { scale });
            });
            Ok(())
        }
        Values::Pow2 { min_exponent, codes, negative, .. } => {
            pow2::numbers(*min_exponent, codes, negative, 0, out);
            Ok(())
        }
        Values::Levels { .. } => levels::numbers(values, tensor_counts, out),
        Values::Affine { .. } => affine::numbers(values, tensor_counts, out),
        Values::Codebook { .. } => codebook::numbers(values, tensor_counts, out),
        Values::Minifloat { .. } => minifloat::numbers(values, tensor_counts, out),
        Values::Latent { model, .. } => Err(latent::missing(model)),
        Values::LowRank { .. } => low_rank::numbers(values, budget, out),
        Values::Dct { .. } => dct::numbers(values, budget, out),
        Values::Planes { .. } | Values::Ulp { .. } => {
            Err(Error::inconsistent("values that give bits, not numbers"))
        }
    }
}
