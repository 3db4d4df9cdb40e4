//! Lossless differences from a base.

use std::fmt;

use crate::block::Positions;
use crate::compress::settings::{Keys, OutOfRange, SpecError, SpecWriter};

/// `delta`: sends the elements that differ from a base, without loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delta {
    /// `positions`: the encoding of positions. Default: `auto`.
    pub positions: Positions,
}

impl Default for Delta {
    fn default() -> Self {
        Self { positions: Positions::Auto }
    }
}

impl Delta {
    pub(in crate::compress) fn parse(keys: &mut Keys<'_>) -> Result<Self, SpecError> {
        Ok(Self { positions: keys.positions()? })
    }

    pub(in crate::compress) fn check(&self) -> Result<(), OutOfRange> {
        Ok(())
    }

    pub(in crate::compress) fn write(&self, out: &mut SpecWriter<'_, '_>) -> fmt::Result {
        out.positions(self.positions)
    }
}
