//! TernGrad (Wen et al., arXiv 1705.07878): rounds to -1, 0 or 1 times the largest magnitude of a bucket.

use super::quantize::{self, GroupQuantizer, LevelOptions};
use crate::block::{Block, Norm, Spacing};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::settings::{BUCKET, Setting, Visitor};
use crate::error::Result;

const CLIP: Setting<f32> = Setting::number("clip", "at least 1, or inf", |c| c >= 1.0);

/// `terngrad`: rounds each element at random to zero or plus or minus its bucket's largest magnitude.
///
/// Magnitudes above `clip` root mean squares of the bucket are first limited to that value. The rounding is
/// unbiased; the limit is biased. The paper uses the standard deviation. The root mean square differs from it
/// by the mean, which is near zero in gradients. It limits nothing if all elements are equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TernGrad {
    /// `clip`: the limit in root mean squares, at least 1; `inf` for no limit. Default: 2.5.
    pub clip: f32,
    /// `bucket`: number of values that share a norm, at least 2. Default: 4096.
    pub bucket: u64,
    /// `seed`: the seed for rounding. Use a different one for every step. Default: 1.
    pub seed: u64,
}

impl Default for TernGrad {
    fn default() -> Self {
        Self { clip: 2.5, bucket: 4096, seed: 1 }
    }
}

impl TernGrad {
    /// Returns the quantiser of these settings.
    pub(in crate::compress) fn quantizer(&self) -> GroupQuantizer {
        let &Self { clip, bucket, seed } = self;
        GroupQuantizer::Levels(LevelOptions {
            spacing: Spacing::Uniform,
            max_level: 1,
            bucket,
            norm: Norm::Max,
            clip,
            seed,
        })
    }
}

impl Compressor for TernGrad {
    const NAME: &'static str = "terngrad";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.visit(&CLIP, &mut self.clip)?;
        visitor.visit(&BUCKET, &mut self.bucket)?;
        visitor.seed(&mut self.seed)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        quantize::blocks(run, self.quantizer())
    }
}
