//! Natural dithering (Horvath et al., arXiv 1905.10988, section 5): unbiased rounding to levels that are
//! powers of two.

use std::fmt;

use crate::block::{Norm, Spacing};
use crate::compress::settings::{BUCKET, Choice, Keys, Number, OutOfRange, SpecError, SpecWriter};

use super::quantize::{LevelSettings, Quantizer};

const LEVELS: Number<u8> = Number { key: "levels", allowed: "1 to 255", fits: |l| l >= 1 };
const NORM: Choice<Norm> =
    Choice { key: "norm", names: &[("l1", Norm::L1), ("l2", Norm::L2), ("max", Norm::Max)] };

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
    pub(in crate::compress) fn parse(keys: &mut Keys<'_>) -> Result<Self, SpecError> {
        let default = Self::default();
        Ok(Self {
            levels: keys.number(&LEVELS, default.levels)?,
            bucket: keys.number(&BUCKET, default.bucket)?,
            norm: keys.choice(&NORM, default.norm)?,
            seed: keys.seed()?,
        })
    }

    pub(in crate::compress) fn check(&self) -> Result<(), OutOfRange> {
        LEVELS.check(self.levels)?;
        BUCKET.check(self.bucket)
    }

    pub(in crate::compress) fn write(&self, out: &mut SpecWriter<'_, '_>) -> fmt::Result {
        out.key(LEVELS.key, self.levels)?;
        out.key(BUCKET.key, self.bucket)?;
        if self.norm != Norm::L2 {
            out.choice(&NORM, self.norm)?;
        }
        out.seed(self.seed)
    }

    /// Returns the quantiser of these settings.
    pub(in crate::compress) fn quantizer(&self) -> Quantizer {
        Quantizer::Levels(self.levels())
    }

    /// Returns the levels of these settings.
    pub(in crate::compress) fn levels(&self) -> LevelSettings {
        let &Self { levels, bucket, norm, seed } = self;
        let max_level = levels.into();
        LevelSettings { spacing: Spacing::Natural, max_level, bucket, norm, clip: f32::INFINITY, seed }
    }
}
