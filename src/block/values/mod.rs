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
pub(crate) use kind::{Content, Elements, Facts, Structure, Validated, ValueSpace};

use crate::bits::Cursor;
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
mod tests {
    use super::*;
    use crate::block::{Based, Bits, Groups, ScaleFormat, Scales, Sparse, Support};
    use crate::codes::Entropy;
    use crate::limits::Limits;

    /// The space of `count` elements that are all of two tensors.
    pub(super) fn space(dtype: Dtype, count: u64) -> ValueSpace<'static> {
        ValueSpace {
            count,
            is_all: true,
            tensors: Some(2),
            dtype,
            row_lens: &[],
            group_counts: &[],
            elements: None,
        }
    }

    pub(super) fn budget(memory: u64) -> Budget {
        Budget::new(&Limits::default().with_max_alloc_bytes(memory))
    }

    /// Writes values with packed codes.
    pub(super) fn write(values: &Values, space: &ValueSpace<'_>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        values.write(&mut out, &mut Coder::new(Entropy::Packed, &[], None), space)?;
        Ok(out)
    }

    /// Reads values with `memory` bytes of memory.
    pub(super) fn read(bytes: &[u8], id: ValuesId, space: &ValueSpace<'_>, memory: u64) -> Result<Values> {
        let (cursor, budget) = (Cursor::new(bytes, 0, "values"), budget(memory));
        Values::read(cursor, &mut Decoder { tables: &[], budget: &budget }, id, space)
    }

    /// Reads values as elements, with `memory` bytes of memory.
    pub(super) fn read_into(
        bytes: &[u8],
        id: ValuesId,
        space: &ValueSpace<'_>,
        memory: u64,
    ) -> Result<Vec<u8>> {
        let (cursor, budget) = (Cursor::new(bytes, 0, "values"), budget(memory));
        let mut out = vec![0; in_memory(space.dtype.bytes_for(space.count).unwrap())];
        Values::read_into(cursor, &Decoder { tables: &[], budget: &budget }, id, space, &mut out)?;
        Ok(out)
    }

    pub(super) fn scales(count: usize) -> Scales {
        Scales::from_f32s(ScaleFormat::F32, &vec![1.5; count])
    }

    fn floats(stored: Stored, len: usize) -> Values {
        Values::Floats(Floats { stored, bytes: vec![3; len] })
    }

    fn sign(groups: Groups, signs: usize) -> Values {
        let scales = scales(if groups == Groups::Block { 1 } else { 3 });
        Values::Sign(Sign { groups, scales, negative: (0..signs).map(|i| i % 3 == 0).collect() })
    }

    fn pow2(min_exponent: i16, codes: usize, signs: usize) -> Values {
        let negative: Bits = (0..signs).map(|i| i % 5 == 1).collect();
        Values::Pow2(Pow2 { min_exponent, underflow: Underflow::Zero, codes: vec![2; codes], negative })
    }

    fn levels(spacing: Spacing, max_level: u32, levels: Vec<i32>) -> Values {
        let (groups, norms) = (Groups::Block, scales(1));
        Values::Levels(Levels { spacing, max_level, norm: Norm::L2, groups, norms, levels: levels.into() })
    }

    fn affine(bits: u8, zero: Zero, codes: Vec<u8>) -> Values {
        Values::Affine(Affine { bits, groups: Groups::Tensor, scales: scales(2), zero, codes })
    }

    fn codebook(entries: usize, codes: Vec<u8>) -> Values {
        let (table, groups, scales) = (vec![0.5; entries], Groups::Tensor, Some(scales(2)));
        Values::Codebook(Codebook { table, groups, scales, shifts: None, codes })
    }

    fn minifloat(format: MinifloatFormat, codes: Vec<u8>) -> Values {
        Values::Minifloat(Minifloat { format, groups: Groups::Tensor, scales: scales(2), codes })
    }

    fn latent(shape: &[u64], codes: Values) -> Values {
        Values::Latent(Latent { model: ModelId([1; 32]), shape: shape.to_vec(), codes: Box::new(codes) })
    }

    fn low_rank(rows: u64, cols: u64, rank: u64, left: Values, right: Values) -> Values {
        Values::LowRank(LowRank { rows, cols, rank, left: Box::new(left), right: Box::new(right) })
    }

    fn dct(rows: u64, cols: u64, support: Support, coefficients: Values) -> Values {
        let coefficients = Box::new(coefficients);
        Values::Dct(Dct { rows, cols, chunk_rows: 2, chunk_cols: 1, support, coefficients })
    }

    /// 144 values of each kind, their label, their weight, and about their bytes in memory.
    fn each_kind() -> Vec<(Values, &'static str, u64, u64)> {
        let three = Support::Sparse(Sparse { positions: vec![1, 2, 77] });
        let constant = Constant { groups: Groups::Len(60), scales: scales(3) };
        vec![
            (floats(Stored::Source, 576), "raw", 576, 576),
            (floats(Stored::F32, 576), "f32", 576, 576),
            (floats(Stored::F16, 288), "f16", 288, 288),
            (floats(Stored::Bf16, 288), "bf16", 288, 288),
            (Values::Constant(constant), "constant", 12, 12),
            (sign(Groups::Len(60), 144), "sign", 18, 30),
            (pow2(-9, 144, 144), "pow2", 144, 162),
            (levels(Spacing::Uniform, 7, vec![-7; 144]), "levels s=7", 144, 148),
            (levels(Spacing::Natural, 9, vec![9; 144]), "natural levels s=9", 144, 148),
            (levels(Spacing::Uniform, 300, vec![-300; 144]), "levels s=300", 144, 580),
            (affine(4, Zero::Offset(scales(2)), vec![15; 144]), "affine 4 bit", 144, 160),
            (codebook(3, vec![2; 144]), "codebook 3", 144, 160),
            (minifloat(MinifloatFormat::F4E2M1, vec![15; 144]), "f4e2m1", 144, 160),
            (minifloat(MinifloatFormat::Int8, vec![200; 144]), "mxint8", 144, 160),
            (Values::Planes(Planes { bytes: vec![5; 576] }), "planes", 576, 576),
            (Values::Ulp(Ulp { diffs: vec![-2; 144] }), "ulp", 144, 1152),
            (latent(&[3, 4], floats(Stored::F16, 24)), "latent", 24, 24),
            (low_rank(12, 12, 1, floats(Stored::F16, 24), floats(Stored::F32, 48)), "low-rank 1", 72, 72),
            (dct(12, 12, three, floats(Stored::F16, 6)), "dct of f16", 12, 30),
        ]
    }

    #[test]
    fn each_kind_tells_its_label_weight_and_memory() {
        let space = space(Dtype::F32, 144);
        for (values, label, weight, memory) in each_kind() {
            let facts = values.facts();
            assert_eq!((values.label().as_str(), facts.weight, facts.memory), (label, weight, memory));
            // As do its bytes.
            let (bytes, id) = (write(&values, &space).unwrap(), values.id());
            let validated = Values::validate(Cursor::new(&bytes, 0, "values"), id, &space).unwrap();
            assert_eq!((validated.weight, validated.is_bits), (weight, facts.content.is_bits()), "{label}");
            assert_eq!(validated.is_matrix, facts.structure == Structure::Matrix, "{label}");
            assert_eq!(read(&bytes, id, &space, u64::MAX).unwrap(), values);
        }
    }

    #[test]
    fn values_whose_fields_disagree_are_refused() {
        use {MinifloatFormat::F4E2M1, Spacing::Natural, Spacing::Uniform};
        let space = space(Dtype::F32, 4);
        let half = |n: usize| floats(Stored::F16, 2 * n);
        let zero_points = |points: &[u8]| affine(2, Zero::Point(points.to_vec()), vec![3; 4]);
        let based = |ranks| Support::Based(Based { bounds: vec![], ranks: vec![ranks] });
        let right = [
            half(4),
            sign(Groups::Block, 4),
            pow2(-1074, 4, 4),
            pow2(1023, 4, 4),
            levels(Uniform, 1, vec![0, 1, -1, 0]),
            levels(Uniform, 65_535, vec![65_535, -65_535, 0, 0]),
            levels(Natural, 255, vec![255; 4]),
            affine(1, Zero::Centre, vec![1, 0, 0, 0]),
            affine(8, Zero::Centre, vec![255; 4]),
            zero_points(&[3, 0]),
            codebook(2, vec![1; 4]),
            codebook(256, vec![255; 4]),
            minifloat(F4E2M1, vec![15; 4]),
            Values::Planes(Planes { bytes: vec![0; 16] }),
            Values::Ulp(Ulp { diffs: vec![0; 4] }),
            latent(&[1; 32], half(1)),
            low_rank(2, 2, 1, half(2), half(2)),
            dct(2, 2, Support::All, half(4)),
        ];
        for values in right {
            write(&values, &space).unwrap();
        }
        let wrong = [
            half(3),
            sign(Groups::Block, 3),
            sign(Groups::Block, 5),
            pow2(-1075, 4, 4),
            pow2(1024, 4, 4),
            pow2(0, 3, 3),
            pow2(0, 4, 1),
            levels(Uniform, 0, vec![0; 4]),
            levels(Uniform, 65_536, vec![0; 4]),
            levels(Natural, 256, vec![0; 4]),
            levels(Uniform, 9, vec![10, 0, 0, 0]),
            affine(0, Zero::Centre, vec![0; 4]),
            affine(9, Zero::Centre, vec![0; 4]),
            affine(2, Zero::Centre, vec![0; 3]),
            affine(2, Zero::Centre, vec![0, 4, 0, 0]),
            affine(2, Zero::Offset(scales(1)), vec![0; 4]),
            zero_points(&[0]),
            zero_points(&[0, 4]),
            codebook(1, vec![0; 4]),
            codebook(257, vec![0; 4]),
            codebook(3, vec![0; 5]),
            codebook(3, vec![0, 3, 0, 0]),
            minifloat(F4E2M1, vec![0; 3]),
            minifloat(F4E2M1, vec![0, 16, 0, 0]),
            Values::Planes(Planes { bytes: vec![0; 15] }),
            Values::Ulp(Ulp { diffs: vec![0; 3] }),
            latent(&[1; 33], half(1)),
            latent(&[1 << 40, 1 << 40], half(1)),
            low_rank(2, 2, 0, half(0), half(0)),
            low_rank(2, 3, 1, half(2), half(3)),
            dct(2, 3, Support::All, half(4)),
            dct(2, 2, based(vec![0, 2]), half(2)),
        ];
        for values in wrong {
            let refused = write(&values, &space);
            assert!(matches!(refused, Err(Error::Input(_))), "{values:?}: {refused:?}");
        }
    }

    #[test]
    fn the_unused_half_of_a_byte_is_zero() {
        let space = space(Dtype::F4E2M1, 3);
        for (bytes, fits) in [(vec![0x11, 1], true), (vec![0x11, 0x11], false)] {
            let raw = Values::Floats(Floats { stored: Stored::Source, bytes: bytes.clone() });
            for values in [raw, Values::Planes(Planes { bytes })] {
                assert_eq!(write(&values, &space).is_ok(), fits, "{values:?}");
            }
        }
    }

    #[test]
    fn bits_of_elements_are_no_numbers() {
        for (values, label, ..) in each_kind().into_iter().filter(|(values, ..)| values.gives_bits()) {
            let refused = values.numbers(&[], &budget(u64::MAX), &mut [0.0; 144]);
            assert!(matches!(refused, Err(Error::Input(_))), "{label}: {refused:?}");
        }
    }

    /// Elements of 8 bits and more are read without memory for the values.
    #[test]
    fn elements_are_those_of_the_values_that_they_are_read_from() {
        let codes: Vec<u8> = (0..144).collect();
        let numbers = [
            sign(Groups::Len(60), 144),
            pow2(-9, 144, 144),
            levels(Spacing::Uniform, 127, (-17..127).collect()),
            affine(8, Zero::Centre, codes),
        ];
        for dtype in Dtype::ALL {
            let space = ValueSpace { tensors: Some(1), ..space(dtype, 144) };
            let bytes = vec![1; in_memory(dtype.bytes_for(144).unwrap())];
            let planes = Values::Planes(Planes { bytes: bytes.clone() });
            assert_eq!(Values::can_read_into(planes.id(), dtype), dtype != Dtype::F4E2M1, "{dtype}");
            if dtype != Dtype::F4E2M1 {
                let written = write(&planes, &space).unwrap();
                assert_eq!(read_into(&written, planes.id(), &space, 1 << 20).unwrap(), bytes, "{dtype}");
            }
            for values in &numbers {
                let values = match values.clone() {
                    Values::Affine(values) => Values::Affine(Affine { scales: scales(1), ..values }),
                    other => other,
                };
                let can = Values::can_read_into(values.id(), dtype);
                assert_eq!(can, dtype.is_float() && dtype != Dtype::F4E2M1, "{dtype} {}", values.label());
                if can {
                    let (mut exact, mut elements) = (vec![0.0; 144], bytes.clone());
                    values.numbers(&[144], &budget(0), &mut exact).unwrap();
                    element::encode_f32s(dtype, &exact, 0, &mut elements).unwrap();
                    let written = write(&values, &space).unwrap();
                    let found = read_into(&written, values.id(), &space, 0).unwrap();
                    assert_eq!(found, elements, "{dtype} {}", values.label());
                }
            }
            assert!(!Values::can_read_into(ValuesId::FLOATS, dtype));
        }
    }
}
