//! 8-bit integers with a scale for each group (8-bit approximations, arXiv 1511.04561).

use super::quantize::{self, GroupQuantizer};
use crate::block::Block;
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::settings::{Setting, Visitor};
use crate::error::Result;

const GROUP: Setting<u64> = Setting::number("group", "at least 2", |g| g >= 2);

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
    /// Returns the quantiser of these settings.
    pub(in crate::compress) fn quantizer(&self) -> GroupQuantizer {
        GroupQuantizer::Int8(self.group)
    }
}

impl Compressor for Int8 {
    const NAME: &'static str = "int8";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.visit(&GROUP, &mut self.group)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        quantize::blocks(run, self.quantizer())
    }
}
