//! Signs times the mean magnitude: signSGD as error feedback makes it converge (Karimireddy et al., arXiv 1901.09847).
//!
//! The sign of a zero is its own: +0 becomes plus the scale, -0 minus the scale. Error feedback takes that back in the
//! next step; without it, exact zeros are better sent by another codec.

use crate::block::{Bits, Block, Groups, ScaleFormat, Scales, Scope, Sign, Support, Values};
use crate::compress::source::{CHUNK, Source};
use crate::compress::{Options, Part, parts, sum};
use crate::error::Result;

/// Which elements share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// Those of a tensor.
    Tensor,
    /// Each run of this many elements, at least 2; the last may be shorter.
    Len(u64),
}

/// Dense blocks of a run of tensors; the tensors are read twice, for the means and for the signs.
pub(crate) fn blocks(
    tensors: &mut [Source<'_>],
    share: Share,
    options: &Options,
    blocks: &mut Vec<Block>,
) -> Result<()> {
    let lens: Vec<u64> = tensors.iter().map(|t| t.len as u64).collect();
    let mut of_tensor = vec![None; tensors.len()];
    for part in parts(&lens, options.block_len, false) {
        let (i, range) = match part {
            Part::Whole(run) => (run.start, 0..lens[run.start]),
            Part::Slice(i, range) => (i, range),
        };
        let tensor = &mut tensors[i];
        let (start, len) = (range.start, range.end - range.start);
        let scope = match len == lens[i] {
            true => Scope::Tensor(tensor.tensor),
            false => Scope::Range { tensor: tensor.tensor, start, len },
        };
        let range = start as usize..range.end as usize;
        let (groups, scales) = match share {
            Share::Tensor => {
                let scale = match of_tensor[i] {
                    Some(scale) => scale,
                    None => mean_of_tensor(tensor)?,
                };
                of_tensor[i] = Some(scale);
                (Groups::Block, vec![scale])
            }
            Share::Len(group) => (Groups::Len(group), means(tensor, range.clone(), group)?),
        };
        let negative = signs(tensor, range, share, &scales)?;
        let scales = Scales::from_f32s(ScaleFormat::F32, &scales);
        blocks.push(Block {
            scope,
            add: false,
            support: Support::All,
            values: Values::Sign(Sign { groups, scales, negative }),
        });
    }
    Ok(())
}

fn mean_of_tensor(tensor: &mut Source<'_>) -> Result<f32> {
    let sums = tensor.scan(0..tensor.len, CHUNK, |chunk| {
        let mut runs = sum::Runs::default();
        chunk.tiles(|_, tile| runs.push_magnitudes(tile));
        runs.finish()
    });
    mean(tensor, sums.iter().fold(0.0, |all, x| all + x), tensor.len)
}

fn mean(tensor: &Source<'_>, sum: f64, len: usize) -> Result<f32> {
    match sum.is_finite() {
        true => Ok((sum / len.max(1) as f64) as f32),
        false => Err(tensor.non_finite()),
    }
}

fn means(tensor: &mut Source<'_>, range: std::ops::Range<usize>, group: u64) -> Result<Vec<f32>> {
    let group = usize::try_from(group).unwrap_or(usize::MAX);
    let step = group.saturating_mul((CHUNK / group).max(1));
    let sums = tensor.scan(range.clone(), step, |chunk| {
        chunk.whole(|_, values| {
            values.chunks(group).map(|g| (sum::magnitudes(g), g.len())).collect::<Vec<_>>()
        })
    });
    sums.into_iter().flatten().map(|(sum, len)| mean(tensor, sum, len)).collect()
}

/// The signs of a range, whose residual becomes what they leave.
fn signs(
    tensor: &mut Source<'_>,
    range: std::ops::Range<usize>,
    share: Share,
    scales: &[f32],
) -> Result<Bits> {
    let (start, dtype) = (range.start, tensor.dtype);
    let mut rounded = scales.to_vec();
    crate::tensor::element::round_f32s(dtype, &mut rounded)?;
    let mut bytes = vec![0; range.len().div_ceil(8)];
    let places = bytes.chunks_mut(CHUNK / 8).collect();
    tensor.scan_into(range.clone(), CHUNK, places, |chunk, bytes: &mut [u8]| {
        let (first, feedback) = (chunk.start, chunk.has_feedback());
        chunk.tiles(|at, tile| {
            let (in_chunk, in_range) = (at - first, at - start);
            for (i, x) in tile.iter_mut().enumerate() {
                let negative = x.is_sign_negative();
                bytes[(in_chunk + i) / 8] |= u8::from(negative) << ((in_chunk + i) % 8);
                if feedback {
                    let scale = match share {
                        Share::Tensor => rounded[0],
                        Share::Len(group) => rounded[((in_range + i) as u64 / group) as usize],
                    };
                    *x -= if negative { -scale } else { scale };
                }
            }
        });
    });
    Ok(Bits::from_bytes(range.len() as u64, bytes).unwrap_or_default())
}
