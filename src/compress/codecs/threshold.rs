//! Selection of the elements that reach a given threshold.

use super::sparse;
use crate::block::{Block, Positions};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::select;
use crate::compress::settings::{KEPT, Kept, Setting, Visitor};
use crate::error::Result;

const AT: Setting<f32> = Setting::number("at", "a positive number", |at| at.is_finite() && at > 0.0);

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

impl Compressor for Threshold {
    const NAME: &'static str = "threshold";
    const SHARES_BLOCKS: bool = true;

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.visit(&AT, &mut self.at)?;
        visitor.visit(&KEPT, &mut self.values)?;
        visitor.seed(&mut self.seed)?;
        visitor.positions(&mut self.positions)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        let chosen = select::at_least(run.tensors, self.at)?;
        sparse::blocks(run.tensors, chosen, self.values, self.seed)
    }
}
