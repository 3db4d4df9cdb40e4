//! The interface between a codec and the rest of the crate.

use super::options::{Input, Options};
use super::select::Chosen;
use super::settings::{Check, OutOfRange, Visitor};
use super::source::Source;
use crate::block::Block;
use crate::error::Result;

/// A codec's settings, and how it makes blocks.
pub(super) trait Compressor: Default {
    /// Name in specifications.
    const NAME: &'static str;
    /// Whether the tensors of a run share one block, up to [`JOINED`](super::extents::JOINED) elements.
    /// Otherwise only small ones do, as [`extents`](super::extents::extents) divides them.
    const SHARES_BLOCKS: bool = false;

    /// Visits all settings.
    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error>;

    /// Checks that every setting is in its range.
    fn check(&mut self) -> Result<(), OutOfRange> {
        self.settings(&mut Check)
    }

    /// Returns the blocks of a run of tensors.
    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>>;
}

/// Consecutive tensors of one element type that have one codec.
pub(super) struct TensorRun<'r, 'a> {
    pub(super) inputs: &'r [Input<'a>],
    pub(super) tensors: &'r mut [Source<'a>],
    /// The elements already selected, for [`Selection::Global`](super::Selection::Global).
    pub(super) chosen: &'r mut [Chosen],
    pub(super) options: &'r Options,
}
