//! Sign compression: signs times the mean magnitude. This is signSGD in the form that converges with error
//! feedback (Karimireddy et al., arXiv 1901.09847).
//!
//! A zero keeps its own sign: +0 becomes plus the scale, -0 minus the scale. Error feedback corrects this in
//! the next step. Without error feedback, another codec suits exact zeros better.

use crate::arch;
use crate::block::{self, Bits, Block, Groups, ScaleFormat, Scales, Scope, Support, Values};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::extents::{Extent, Sharing, extents};
use crate::compress::settings::{Setting, Visitor};
use crate::compress::source::{CHUNK, RUN, Source};
use crate::compress::sums;
use crate::error::Result;

/// Range of elements that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// All elements of a tensor share a scale.
    Tensor,
    /// Each run of this many elements, at least 2, shares a scale. The last run may be shorter.
    Len(u64),
}

const GROUP: Setting<Share> = Setting {
    key: "group",
    allowed: "tensor, or at least 2",
    names: &[(Share::Tensor, "tensor")],
    parse: |text| text.parse().ok().map(Share::Len),
    fits: |share| matches!(share, Share::Len(2..)),
    text: |share| if let Share::Len(len) = share { len.to_string() } else { String::new() },
    unwritten: Some(Share::Tensor),
};

/// `sign`: sends the sign of each element and the mean magnitude. +0 counts as positive, -0 as negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sign {
    /// `group`: the elements that share a mean, `tensor` or a number of at least 2. Default: `tensor`.
    pub group: Share,
}

impl Default for Sign {
    fn default() -> Self {
        Self { group: Share::Tensor }
    }
}

impl Compressor for Sign {
    const NAME: &'static str = "sign";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.visit(&GROUP, &mut self.group)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        let share = self.group;
        let TensorRun { tensors, options, .. } = run;
        let mut blocks = Vec::new();
        let lens: Vec<u64> = tensors.iter().map(|t| t.len as u64).collect();
        let mut of_tensor = vec![None; tensors.len()];
        for extent in extents(&lens, options.block_len, Sharing::None) {
            let (i, range) = match extent {
                Extent::Whole(run) => (run.start, 0..lens[run.start]),
                Extent::Slice(i, range) => (i, range),
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
                values: Values::Sign(block::Sign { groups, scales, negative }),
            });
        }
        Ok(blocks)
    }
}

fn mean_of_tensor(tensor: &mut Source<'_>) -> Result<f32> {
    let sums = tensor.scan(0..tensor.len, CHUNK, |chunk| {
        let mut runs = sums::Runs::new();
        chunk.runs(|_, run| runs.push_magnitudes(&run));
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
            values.chunks(group).map(|g| (sums::magnitudes(g), g.len())).collect::<Vec<_>>()
        })
    });
    sums.into_iter().flatten().map(|(sum, len)| mean(tensor, sum, len)).collect()
}

/// Returns the signs of a range and updates its residual to the remaining error.
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
        let first = chunk.start;
        chunk.runs(|at, mut run| {
            // Runs begin at multiples of 8 elements of their chunk.
            let words = &mut [0; RUN / 64][..run.len().div_ceil(64)];
            arch::masks::signs(arch::widest(), &run, words);
            let negative = words.iter().flat_map(|word| word.to_le_bytes());
            bytes[(at - first) / 8..].iter_mut().zip(negative).for_each(|(byte, signs)| *byte = signs);
            if let Some(kept) = run.kept() {
                for (x, i) in kept.iter_mut().zip(at - start..) {
                    let scale = match share {
                        Share::Tensor => rounded[0],
                        Share::Len(group) => rounded[(i as u64 / group) as usize],
                    };
                    *x -= if x.is_sign_negative() { -scale } else { scale };
                }
            }
        });
    });
    Ok(Bits::from_bytes(range.len() as u64, bytes).unwrap_or_default())
}
