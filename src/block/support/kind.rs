//! The interface between a support kind and the rest of the crate.

use crate::bits::Cursor;
use crate::block::Sets;
use crate::block::space::Surroundings;
use crate::block::support::{Positions, SupportId};
use crate::codes::{Coder, Decoder};
use crate::error::Result;

#[cfg(doc)]
use crate::error::Error;

/// A support kind. Its file in this folder implements this trait and holds all other code of the kind.
pub(super) trait Kind {
    /// The properties that other layers need.
    fn facts(&self) -> Facts;

    /// Checks that the support fits a space of `n` elements.
    ///
    /// # Errors
    /// [`Error::Input`] if it does not.
    fn check(&self, n: u64) -> Result<()>;

    /// The number of elements.
    fn count(&self, around: &Surroundings<'_>) -> Result<u64>;

    /// Appends the wire form of a checked support, and returns the kind that was chosen.
    fn write(
        &self,
        out: &mut Vec<u8>,
        coder: &mut Coder<'_>,
        around: &Surroundings<'_>,
        positions: Positions,
    ) -> Result<SupportId>;

    /// Reads the wire form and charges the decoder's budget before it allocates.
    fn read(
        cursor: &mut Cursor<'_>,
        decoder: &mut Decoder<'_>,
        id: SupportId,
        around: &Surroundings<'_>,
    ) -> Result<Self>
    where
        Self: Sized;

    /// Checks the wire form as far as that needs no decoding of codes.
    fn validate(cursor: &mut Cursor<'_>, id: SupportId, around: &Surroundings<'_>) -> Result<Validated>
    where
        Self: Sized;

    /// Calls `f` with every position, ascending, in runs: first position, number.
    fn for_each_run(&self, n: u64, sets: &Sets, f: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()>;
}

/// Properties of supports that other layers need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// The cost of the positions in comparison with values, as
    /// [`values::Facts::weight`](crate::block::values::Facts::weight). Equal to [`Validated::weight`] of the
    /// wire form.
    pub(crate) weight: u64,
    /// Bytes of the positions in memory.
    pub(crate) memory: u64,
}

/// Properties of a support in wire form that are known without decoding.
#[derive(Debug, Clone)]
pub(crate) struct Validated {
    /// Number of elements.
    pub(crate) count: u64,
    /// As [`Facts::weight`].
    pub(crate) weight: u64,
    /// As [`Support::group_counts`](super::Support::group_counts).
    pub(crate) group_counts: Vec<u64>,
}

impl Validated {
    /// A support without groups.
    pub(super) fn new(count: u64, weight: u64) -> Self {
        Self { count, weight, group_counts: Vec::new() }
    }
}
