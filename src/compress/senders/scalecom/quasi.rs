//! The leader's selection by chunks: about three operations per element, no sorting (arXiv 2104.11125,
//! section 3).

use crate::block::{Chunked, Support};

/// Returns the element of largest magnitude of each chunk of `chunk_len` >= 1 elements, the first of equal
/// ones.
pub(super) fn choose(numbers: &[f32], chunk_len: u64) -> Support {
    let len = usize::try_from(chunk_len).unwrap_or(usize::MAX);
    let largest = |chunk: &[f32]| {
        let best = chunk
            .iter()
            .enumerate()
            .fold((0, 0.0), |best: (usize, f32), (i, x)| if x.abs() > best.1 { (i, x.abs()) } else { best });
        best.0 as u32
    };
    Support::Chunked(Chunked { chunk_len, kept: 1, positions: numbers.chunks(len).map(largest).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_largest_of_each_chunk() {
        let support = choose(&[1.0, -2.0, 2.0, 0.0, 0.0, 0.0, 0.5], 3);
        assert_eq!(support, Support::Chunked(Chunked { chunk_len: 3, kept: 1, positions: vec![1, 0, 0] }));
    }
}
