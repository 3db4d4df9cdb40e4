//! 8-bit integers with a scale for each group (8-bit approximations, arXiv 1511.04561).

use std::fmt;

use super::quantize::Quantizer;
use crate::compress::settings::{Keys, Number, OutOfRange, SpecError, SpecWriter};

const GROUP: Number<u64> = Number { key: "group", allowed: "at least 2", fits: |g| g >= 2 };

/// `int8`: rounds each element to a multiple of its group's largest magnitude / 127.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Int8 {
    /// `group`: number of values that share a scale, at least 2. Default: 256.
    pub group: u64,
}

impl Default for Int8 {
    fn default() -> Self {
        Self { group: 256 }
    }
}

impl Int8 {
    pub(in crate::compress) fn parse(keys: &mut Keys<'_>) -> Result<Self, SpecError> {
        let default = Self::default();
        Ok(Self { group: keys.number(&GROUP, default.group)? })
    }

    pub(in crate::compress) fn check(&self) -> Result<(), OutOfRange> {
        GROUP.check(self.group)
    }

    pub(in crate::compress) fn write(&self, out: &mut SpecWriter<'_, '_>) -> fmt::Result {
        out.key(GROUP.key, self.group)
    }

    /// Returns the quantiser of these settings.
    pub(in crate::compress) fn quantizer(&self) -> Quantizer {
        Quantizer::Int8(self.group)
    }
}
