//! The interface between a values kind and the rest of the crate.

use crate::bits::Cursor;
use crate::block::space::ValueSpace;
use crate::block::values::ValuesId;
use crate::block::{Groups, Stored};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, Result};
use crate::limits::Budget;

/// A values kind. Its file in this folder implements this trait and holds all other code of the kind.
pub(crate) trait Kind: Sized {
    /// Number in the registry.
    const ID: ValuesId;
    /// Whether readers of the core profile know the kind (spec, core.md).
    const IS_CORE: bool = false;

    /// The properties that other layers need.
    fn facts(&self) -> Facts<'_>;

    /// A short description for people: the kind and its main parameter.
    fn label(&self) -> String {
        Self::ID.to_string()
    }

    /// Appends the wire form.
    ///
    /// # Errors
    /// [`Error::Input`] if fields disagree with each other or with `space`.
    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()>;

    /// Reads the wire form and charges the decoder's budget before it allocates.
    ///
    /// # Errors
    /// [`Error::Format`], [`Error::Unsupported`], and [`Error::Limit`] if the budget is too small.
    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self>;

    /// Checks the wire form as far as that needs no decoding of codes.
    ///
    /// # Errors
    /// As [`Self::read`]; also for codes that refer to a shared frequency table.
    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated>;

    /// Returns the coding in the wire form that is not of the core profile, for a kind that is.
    fn beyond_core(
        _cursor: &mut Cursor<'_>,
        _decoder: &Decoder<'_>,
        _space: &ValueSpace<'_>,
    ) -> Result<Option<&'static str>> {
        Ok(None)
    }

    /// Writes one number per value into `out`. Kinds that give elements' bits keep this default, which is an
    /// error.
    ///
    /// `tensor_counts` holds the number of values of each tensor of the scope; only [`Groups::Tensor`] needs
    /// it.
    fn numbers(&self, _tensor_counts: &[u64], _budget: &Budget, _out: &mut [f32]) -> Result<()> {
        Err(not_numbers())
    }
}

/// The error for a request of numbers from values that are elements' bits.
pub(super) fn not_numbers() -> Error {
    Error::inconsistent("these values are bits of elements, not numbers")
}

/// Properties of values that other layers need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    /// The meaning of the values.
    pub(crate) content: Content<'a>,
    /// The relation of the values to each other.
    pub(crate) structure: Structure,
    /// About the number of values: updates are cut into parts by it. Equal to [`Validated::weight`] of the
    /// wire form.
    pub(crate) weight: u64,
    /// About the number of bytes in memory.
    pub(crate) memory: u64,
}

/// The meaning of values.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content<'a> {
    /// Elements as they are stored.
    Elements(Stored, &'a [u8]),
    /// Differences to earlier elements in units of the last place.
    Ulps(&'a [i64]),
    /// Numbers that [`Kind::numbers`] computes.
    Numbers {
        /// The reason why two such values have no sum of the same kind.
        no_sum: &'static str,
    },
}

impl Content<'_> {
    /// Whether the values are elements' bits or depend on them, so that they are no numbers.
    pub(crate) fn is_bits(self) -> bool {
        matches!(self, Self::Elements(Stored::Source, _) | Self::Ulps(_))
    }
}

/// The relation of values to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Structure {
    /// Each value stands alone.
    Flat,
    /// Groups of values share a scale.
    Grouped(Groups),
    /// The values are a matrix of all elements: the support must be
    /// [`Support::All`](crate::block::Support::All).
    Matrix,
}

/// Properties of values in wire form that are known without decoding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validated {
    /// Whether the values are elements' bits, as [`Content::is_bits`] says of decoded values.
    pub(crate) is_bits: bool,
    /// Whether the values are a matrix of all elements, as [`Structure::Matrix`].
    pub(crate) is_matrix: bool,
    /// As [`Facts::weight`].
    pub(crate) weight: u64,
}

impl Validated {
    /// Values that are numbers.
    pub(super) fn numbers(weight: u64) -> Self {
        Self { is_bits: false, is_matrix: false, weight }
    }

    /// Numbers that are a matrix of all elements.
    pub(super) fn matrix(weight: u64) -> Self {
        Self { is_matrix: true, ..Self::numbers(weight) }
    }

    /// Values that are bits of elements.
    pub(super) fn bits(weight: u64) -> Self {
        Self { is_bits: true, ..Self::numbers(weight) }
    }
}
