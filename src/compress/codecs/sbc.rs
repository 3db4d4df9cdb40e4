//! Sparse Binary Compression (Sattler et al., arXiv 1805.08768): of the `k` largest and the `k` smallest elements of a
//! tensor those with the larger mean magnitude are kept, and all of them become that mean.
//!
//! Only positive elements count among the largest and only negative ones among the smallest. Where there are fewer than
//! `k` of a sign, the missing ones count as zeros in the choice of the side, and are not sent. Sums of magnitudes are taken in the
//! order that [`device`](crate::compress::device) defines.

use rayon::prelude::*;

use crate::block::{Block, Constant, ScaleFormat, Scales, Values};
use crate::compress::device::Outline;
use crate::compress::select::Chosen;
use crate::compress::source::Source;
use crate::compress::sparse::{join, mean, outlines, tensor_groups};
use crate::compress::sum::magnitudes;
use crate::compress::{Amount, in_order, select};
use crate::error::Result;

/// One block for a run of tensors.
pub(crate) fn block(tensors: &mut [Source<'_>], amount: Amount) -> Result<Block> {
    let chosen = in_order(tensors.par_iter_mut().map(|tensor| {
        let sides = select::both_sides(tensor, amount.of(tensor.len as u64))?;
        let (side, mean) = larger(&sides);
        let [plus, minus] = sides;
        let chosen = if side == 0 { plus } else { minus };
        tensor.subtract(&chosen.positions, vec![mean; chosen.positions.len()])?;
        Ok((chosen, mean))
    }))?;
    let (chosen, means): (Vec<_>, Vec<_>) = chosen.into_iter().unzip();
    Ok(constant(&outlines(tensors), &chosen, &means))
}

/// Which of the largest positive and the smallest negative elements are sent, and their mean.
fn larger(sides: &[Chosen; 2]) -> (usize, f32) {
    let sums = sides.each_ref().map(|s| magnitudes(&s.values));
    larger_of(sums, sides.each_ref().map(|s| s.values.len() as u64))
}

/// The same by their sums of magnitudes and their numbers.
pub(crate) fn larger_of([plus, minus]: [f64; 2], [positive, negative]: [u64; 2]) -> (usize, f32) {
    if plus >= minus { (0, mean(plus, positive)) } else { (1, -mean(minus, negative)) }
}

/// The block of what is sent of a run of tensors.
pub(crate) fn constant(tensors: &[Outline], chosen: &[Chosen], means: &[f32]) -> Block {
    let (scope, support) = join(tensors, chosen);
    let values = Values::Constant(Constant {
        groups: tensor_groups(tensors.len()),
        scales: Scales::from_f32s(ScaleFormat::F32, means),
    });
    Block { scope, add: false, support, values }
}
