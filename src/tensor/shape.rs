//! Numbers of elements.

/// Returns the number of elements of a shape: 1 for no dimensions, 0 if any dimension is 0, `None` if it
/// exceeds 64 bits.
pub fn elements(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))
}
