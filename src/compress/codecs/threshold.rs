//! Selection of the elements that reach a given threshold.

use std::fmt;

use super::sparse;
use crate::block::{Block, Positions};
use crate::compress::select;
use crate::compress::settings::{KEPT, Kept, Keys, Number, OutOfRange, SpecError, SpecWriter};
use crate::compress::source::Source;
use crate::error;

const AT: Number<f32> =
    Number { key: "at", allowed: "a positive number", fits: |at| at.is_finite() && at > 0.0 };

/// `threshold`: keeps the elements whose magnitude is at least `at`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// `at`: the threshold, positive and finite. Default: 0.001.
    pub at: f32,
    /// `values`: the form in which kept elements are sent. Default: `f32`.
    pub values: Kept,
    /// `seed`: the seed for rounding to powers of two. Default: 1.
    pub seed: u64,
    /// `positions`: the encoding of positions. Default: `auto`.
    pub positions: Positions,
}

impl Default for Threshold {
    fn default() -> Self {
        Self { at: 1e-3, values: Kept::F32, seed: 1, positions: Positions::Auto }
    }
}

impl Threshold {
    pub(in crate::compress) fn parse(keys: &mut Keys<'_>) -> Result<Self, SpecError> {
        let default = Self::default();
        Ok(Self {
            at: keys.number(&AT, default.at)?,
            values: keys.choice(&KEPT, default.values)?,
            seed: keys.seed()?,
            positions: keys.positions()?,
        })
    }

    pub(in crate::compress) fn check(&self) -> Result<(), OutOfRange> {
        AT.check(self.at)
    }

    pub(in crate::compress) fn write(&self, out: &mut SpecWriter<'_, '_>) -> fmt::Result {
        out.key(AT.key, self.at)?;
        out.choice(&KEPT, self.values)?;
        out.seed(self.seed)?;
        out.positions(self.positions)
    }

    /// Returns the block of a run of tensors.
    pub(in crate::compress) fn block(&self, tensors: &mut [Source<'_>]) -> error::Result<Block> {
        let chosen = select::at_least(tensors, self.at)?;
        sparse::block(tensors, chosen, self.values, self.seed)
    }
}
