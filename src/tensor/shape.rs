//! Numbers of elements and of their bytes.

use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::Dtype;

/// Returns the number of elements of a shape: 1 for no dimensions, 0 if any dimension is 0, `None` if it
/// exceeds 64 bits.
pub fn elements(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))
}

/// Checks that so many bytes are those of a tensor.
///
/// # Errors
/// [`Error::Input`] if they are not, or if the shape is too large.
pub fn check_len(dtype: Dtype, shape: &[u64], found: u64) -> Result<()> {
    let expected = elements(shape)
        .and_then(|n| dtype.bytes_for(n))
        .ok_or(Error::too_large("a shape of 2^64 or more elements or bytes"))?;
    if expected != found {
        return Err(Error::input(InputErrorKind::LengthMismatch { expected, found }));
    }
    Ok(())
}
