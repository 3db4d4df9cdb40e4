//! Top-k: selects the elements of largest magnitude, as in Deep Gradient Compression (arXiv 1712.01887) and
//! others.

use std::fmt;

use super::sparse;
use crate::block::{Block, Positions};
use crate::compress::select::{self, Chosen};
use crate::compress::settings::{
    Amount, Choice, KEPT, Kept, Keys, OutOfRange, Selection, SpecError, SpecWriter,
};
use crate::compress::source::Source;
use crate::error;

const SCOPE: Choice<Selection> =
    Choice { key: "scope", names: &[("tensor", Selection::Tensor), ("global", Selection::Global)] };

/// `topk`: keeps the elements of largest magnitude. `stc`, sparse ternary compression (arXiv 1903.02891), is
/// `topk` with `values=sign`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopK {
    /// `density` or `k`: the number of elements to keep. Default: density 0.01.
    pub amount: Amount,
    /// `values`: the form in which kept elements are sent. Default: `f32`.
    pub values: Kept,
    /// `scope`: the range in which elements are compared. Default: each tensor.
    pub selection: Selection,
    /// `seed`: the seed for rounding to powers of two. Default: 1.
    pub seed: u64,
    /// `positions`: the encoding of positions. Default: `auto`.
    pub positions: Positions,
}

impl Default for TopK {
    fn default() -> Self {
        Self {
            amount: Amount::Density(0.01),
            values: Kept::F32,
            selection: Selection::Tensor,
            seed: 1,
            positions: Positions::Auto,
        }
    }
}

impl TopK {
    pub(in crate::compress) fn parse(keys: &mut Keys<'_>) -> Result<Self, SpecError> {
        let default = Self::default();
        Ok(Self {
            amount: keys.amount(default.amount)?,
            values: keys.choice(&KEPT, default.values)?,
            selection: keys.choice(&SCOPE, default.selection)?,
            seed: keys.seed()?,
            positions: keys.positions()?,
        })
    }

    pub(in crate::compress) fn check(&self) -> Result<(), OutOfRange> {
        self.amount.check()
    }

    pub(in crate::compress) fn write(&self, out: &mut SpecWriter<'_, '_>) -> fmt::Result {
        out.amount(self.amount)?;
        out.choice(&KEPT, self.values)?;
        if self.selection != Selection::Tensor {
            out.choice(&SCOPE, self.selection)?;
        }
        out.seed(self.seed)?;
        out.positions(self.positions)
    }

    /// Parses the keys of `stc`.
    pub(in crate::compress) fn parse_ternary(keys: &mut Keys<'_>) -> Result<Self, SpecError> {
        let default = Self { values: Kept::Sign, ..Self::default() };
        Ok(Self { amount: keys.amount(default.amount)?, positions: keys.positions()?, ..default })
    }

    /// Returns the block of a run of tensors. `global`: the elements already chosen if the selection is
    /// global.
    pub(in crate::compress) fn block(
        &self,
        tensors: &mut [Source<'_>],
        global: &mut [Chosen],
    ) -> error::Result<Block> {
        let chosen = match self.selection {
            Selection::Global => global.iter_mut().map(std::mem::take).collect(),
            Selection::Tensor => select::top_k_each(tensors, self.amount)?,
        };
        sparse::block(tensors, chosen, self.values, self.seed)
    }
}
