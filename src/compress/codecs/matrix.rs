//! Numbers of blocks that are a matrix: `demo` and `powersgd` decode their own blocks.

use crate::arch::pages;
use crate::block::Values;
use crate::error::Result;
use crate::limits::{Budget, Limits};

/// Clamps an infinite result of finite numbers to the largest finite number.
pub(crate) fn finite(x: f32) -> f32 {
    x.clamp(-f32::MAX, f32::MAX)
}

/// Returns the numbers that a receiver decodes from values that are a whole matrix of `n` elements.
pub(crate) fn numbers_of(values: &Values, n: u64) -> Result<Vec<f32>> {
    let mut decoded = pages::zeros(n as usize);
    let limits = Limits::default().with_max_alloc_bytes(u64::MAX);
    values.numbers(&[], &Budget::new(&limits), &mut decoded)?;
    Ok(decoded)
}
