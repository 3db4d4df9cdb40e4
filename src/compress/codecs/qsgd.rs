//! QSGD (Alistarh et al., arXiv 1610.02132): unbiased rounding to uniform levels.

use std::fmt;

use crate::block::{Norm, Spacing};
use crate::compress::settings::{BUCKET, Choice, Keys, Number, OutOfRange, SpecError, SpecWriter};

use super::quantize::{LevelSettings, Quantizer};

const BITS: Number<u8> = Number { key: "bits", allowed: "2 to 16", fits: |b| (2..=16).contains(&b) };
const NORM: Choice<Norm> = Choice { key: "norm", names: &[("l2", Norm::L2), ("max", Norm::Max)] };

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
    pub(in crate::compress) fn parse(keys: &mut Keys<'_>) -> Result<Self, SpecError> {
        let default = Self::default();
        Ok(Self {
            bits: keys.number(&BITS, default.bits)?,
            bucket: keys.number(&BUCKET, default.bucket)?,
            norm: keys.choice(&NORM, default.norm)?,
            seed: keys.seed()?,
        })
    }

    pub(in crate::compress) fn check(&self) -> Result<(), OutOfRange> {
        BITS.check(self.bits)?;
        BUCKET.check(self.bucket)?;
        NORM.check(self.norm)
    }

    pub(in crate::compress) fn write(&self, out: &mut SpecWriter<'_, '_>) -> fmt::Result {
        out.key(BITS.key, self.bits)?;
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
        let &Self { bits, bucket, norm, seed } = self;
        let max_level = (1 << (bits - 1)) - 1;
        LevelSettings { spacing: Spacing::Uniform, max_level, bucket, norm, clip: f32::INFINITY, seed }
    }
}
