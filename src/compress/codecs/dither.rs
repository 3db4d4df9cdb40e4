//! Natural dithering (Horvath et al., arXiv 1905.10988, section 5): unbiased rounding to levels that are
//! powers of two.

use super::quantize::{self, GroupQuantizer, LevelOptions};
use crate::block::{Block, Norm, Spacing};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::settings::{BUCKET, Setting, Visitor};
use crate::error::Result;

const LEVELS: Setting<u8> = Setting::number("levels", "1 to 255", |l| l >= 1);
const NORM: Setting<Norm> =
    Setting::one_of("norm", &[(Norm::L1, "l1"), (Norm::L2, "l2"), (Norm::Max, "max")]).unless(Norm::L2);

/// `dither`: rounds each element at random, without bias, to its bucket's norm times zero or a power of two
/// from 2^(1 - levels) to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dither {
    /// `levels`: the number of powers of two, 1 to 255. Default: 8.
    pub levels: u8,
    /// `bucket`: number of values that share a norm, at least 2. Default: 512.
    pub bucket: u64,
    /// `norm`: the norm of a bucket, `l1`, `l2` or `max`. Default: `l2`.
    pub norm: Norm,
    /// `seed`: the seed for rounding. Use a different one for every step. Default: 1.
    pub seed: u64,
}

impl Default for Dither {
    fn default() -> Self {
        Self { levels: 8, bucket: 512, norm: Norm::L2, seed: 1 }
    }
}

impl Dither {
    /// Returns the quantiser of these settings.
    pub(in crate::compress) fn quantizer(&self) -> GroupQuantizer {
        let &Self { levels, bucket, norm, seed } = self;
        let max_level = levels.into();
        GroupQuantizer::Levels(LevelOptions {
            spacing: Spacing::Natural,
            max_level,
            bucket,
            norm,
            clip: f32::INFINITY,
            seed,
        })
    }
}

impl Compressor for Dither {
    const NAME: &'static str = "dither";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.visit(&LEVELS, &mut self.levels)?;
        visitor.visit(&BUCKET, &mut self.bucket)?;
        visitor.visit(&NORM, &mut self.norm)?;
        visitor.seed(&mut self.seed)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        quantize::blocks(run, self.quantizer())
    }
}
