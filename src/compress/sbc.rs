//! Sparse Binary Compression (Sattler et al., arXiv 1805.08768): of the `k` largest and the `k` smallest elements of a
//! tensor those with the larger mean magnitude are kept, and all of them become that mean.
//!
//! Only positive elements count among the largest and only negative ones among the smallest. Where there are fewer than
//! `k` of a sign, the missing ones count as zeros in the choice of the side, and are not sent.

use rayon::prelude::*;

use super::source::Source;
use super::sparse::{join, mean_magnitude, tensor_groups};
use super::{Amount, select};
use crate::block::{Block, ScaleFormat, Scales, Values};
use crate::error::Result;

/// One block for a run of tensors.
pub(super) fn block(tensors: &mut [Source<'_>], amount: Amount) -> Result<Block> {
    let chosen = tensors
        .par_iter_mut()
        .map(|tensor| {
            let [plus, minus] = select::both_sides(tensor, amount.of(tensor.len as u64))?;
            let sum = |values: &[f32]| values.iter().map(|x| f64::from(x.abs())).sum::<f64>();
            let (chosen, sign) =
                if sum(&plus.values) >= sum(&minus.values) { (plus, 1.0) } else { (minus, -1.0) };
            let mean = mean_magnitude(&chosen.values) * sign;
            tensor.subtract(&chosen.positions, vec![mean; chosen.positions.len()])?;
            Ok((chosen, mean))
        })
        .collect::<Result<Vec<_>>>()?;
    let (chosen, means): (Vec<_>, Vec<_>) = chosen.into_iter().unzip();
    let (scope, support) = join(tensors, &chosen);
    let values = Values::Constant {
        groups: tensor_groups(tensors.len()),
        scales: Scales::from_f32s(ScaleFormat::F32, &means),
    };
    Ok(Block { scope, add: false, support, values })
}
