//! Top-k: selects the elements of largest magnitude, as in Deep Gradient Compression (arXiv 1712.01887) and
//! others.

use super::sparse;
use crate::block::{Block, Positions};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::select;
use crate::compress::settings::{Amount, KEPT, Kept, Selection, Setting, Visitor};
use crate::error::Result;

const SCOPE: Setting<Selection> =
    Setting::one_of("scope", &[(Selection::Tensor, "tensor"), (Selection::Global, "global")])
        .unless(Selection::Tensor);

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

impl Compressor for TopK {
    const NAME: &'static str = "topk";
    const SHARES_BLOCKS: bool = true;

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.amount(&mut self.amount)?;
        visitor.visit(&KEPT, &mut self.values)?;
        visitor.visit(&SCOPE, &mut self.selection)?;
        visitor.seed(&mut self.seed)?;
        visitor.positions(&mut self.positions)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        let chosen = match self.selection {
            Selection::Global => run.chosen.iter_mut().map(std::mem::take).collect(),
            Selection::Tensor => select::top_k_each(run.tensors, self.amount)?,
        };
        sparse::blocks(run.tensors, chosen, self.values, self.seed)
    }
}

impl TopK {
    /// Visits the settings of `stc`.
    pub(in crate::compress) fn ternary<V: Visitor>(visitor: &mut V) -> Result<Self, V::Error> {
        let mut ternary = Self { values: Kept::Sign, ..Self::default() };
        visitor.amount(&mut ternary.amount)?;
        visitor.positions(&mut ternary.positions)?;
        Ok(ternary)
    }
}
