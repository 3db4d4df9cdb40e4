//! QSGD (Alistarh et al., arXiv 1610.02132): unbiased rounding to uniform levels.

use super::quantize::{self, GroupQuantizer, LevelOptions};
use crate::block::{Block, Norm, Spacing};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::settings::{BUCKET, Setting, Visitor};
use crate::error::Result;

const BITS: Setting<u8> = Setting::number("bits", "2 to 16", |b| (2..=16).contains(&b));
const NORM: Setting<Norm> = Setting::one_of("norm", &[(Norm::L2, "l2"), (Norm::Max, "max")]).unless(Norm::L2);

/// `qsgd`: rounds each element at random, without bias. The result is a multiple of its bucket's norm /
/// (2^(bits-1) - 1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Qsgd {
    /// `bits`: bits per level, sign included, 2 to 16. Default: 4.
    pub bits: u8,
    /// `bucket`: number of values that share a norm, at least 2. Default: 512.
    pub bucket: u64,
    /// `norm`: the norm of a bucket, `l2` or `max`. Default: `l2`.
    pub norm: Norm,
    /// `seed`: the seed for rounding. Use a different one for every step. Default: 1.
    pub seed: u64,
}

impl Default for Qsgd {
    fn default() -> Self {
        Self { bits: 4, bucket: 512, norm: Norm::L2, seed: 1 }
    }
}

impl Qsgd {
    /// Returns the quantiser of these settings.
    pub(in crate::compress) fn quantizer(&self) -> GroupQuantizer {
        let &Self { bits, bucket, norm, seed } = self;
        let max_level = (1 << (bits - 1)) - 1;
        GroupQuantizer::Levels(LevelOptions {
            spacing: Spacing::Uniform,
            max_level,
            bucket,
            norm,
            clip: f32::INFINITY,
            seed,
        })
    }
}

impl Compressor for Qsgd {
    const NAME: &'static str = "qsgd";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.visit(&BITS, &mut self.bits)?;
        visitor.visit(&BUCKET, &mut self.bucket)?;
        visitor.visit(&NORM, &mut self.norm)?;
        visitor.seed(&mut self.seed)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        quantize::blocks(run, self.quantizer())
    }
}
