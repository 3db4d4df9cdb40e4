//! Sparse Binary Compression (Sattler et al., arXiv 1805.08768): compares the `k` largest and the `k`
//! smallest elements of a tensor. The side with the larger mean magnitude is kept, and all of its elements
//! become that mean.
//!
//! Only positive elements count among the largest, and only negative ones among the smallest. If fewer than
//! `k` elements have a sign, the missing ones count as zeros in the choice of the side and are not sent. Sums
//! of magnitudes are computed in the order that [`device`](crate::compress::device) defines.

use rayon::prelude::*;

use super::sparse::{join, mean, outlines, tensor_groups};
use crate::arch::threads::in_order;
use crate::block::{Block, Constant, Positions, ScaleFormat, Scales, Values};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::options::Outline;
use crate::compress::select::{self, Chosen, Scratch};
use crate::compress::settings::{Amount, Visitor};
use crate::compress::sums::magnitudes;
use crate::error::Result;

/// `sbc`: Sparse Binary Compression, which sends one value for the largest elements of one sign of each
/// tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sbc {
    /// `density` or `k`: the number of elements to keep of each tensor. Default: density 0.001.
    pub amount: Amount,
    /// `positions`: the encoding of positions. Default: `auto`.
    pub positions: Positions,
}

impl Default for Sbc {
    fn default() -> Self {
        Self { amount: Amount::Density(0.001), positions: Positions::Auto }
    }
}

impl Compressor for Sbc {
    const NAME: &'static str = "sbc";
    const SHARES_BLOCKS: bool = true;

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.amount(&mut self.amount)?;
        visitor.positions(&mut self.positions)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        let chosen = in_order(run.tensors.par_iter_mut().map_init(Scratch::default, |scratch, tensor| {
            let sides = select::both_sides(tensor, self.amount.of(tensor.len as u64), scratch)?;
            let (side, mean) = larger_side(&sides);
            let [plus, minus] = sides;
            let chosen = if side == 0 { plus } else { minus };
            tensor.subtract(&chosen.positions, &vec![mean; chosen.positions.len()])?;
            Ok((chosen, mean))
        }))?;
        let (chosen, means): (Vec<_>, Vec<_>) = chosen.into_iter().unzip();
        Ok(vec![constant(&outlines(run.tensors), &chosen, &means)])
    }
}

/// Returns the side to send and its mean. Side 0 is the largest positive elements, side 1 the smallest
/// negative ones.
fn larger_side(sides: &[Chosen; 2]) -> (usize, f32) {
    let sums = sides.each_ref().map(|s| magnitudes(&s.values));
    larger_side_of(sums, sides.each_ref().map(|s| s.values.len() as u64))
}

/// Returns the side to send and its mean from the sums of magnitudes and the numbers of elements of both
/// sides.
pub(crate) fn larger_side_of([plus, minus]: [f64; 2], [positive, negative]: [u64; 2]) -> (usize, f32) {
    if plus >= minus { (0, mean(plus, positive)) } else { (1, -mean(minus, negative)) }
}

/// Returns the block of the elements sent of a run of tensors.
pub(crate) fn constant(tensors: &[Outline], chosen: &[Chosen], means: &[f32]) -> Block {
    let (scope, support) = join(tensors, chosen);
    let values = Values::Constant(Constant {
        groups: tensor_groups(tensors.len()),
        scales: Scales::from_f32s(ScaleFormat::F32, means),
    });
    Block { scope, add: false, support, values }
}
