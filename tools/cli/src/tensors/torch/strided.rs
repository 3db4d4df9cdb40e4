//! Views of storages.

use crate::fail::{Failure, Result};
use std::cmp::Reverse;
use std::ops::Range;

/// A view of a storage by strides in elements.
pub(super) struct Strided<'a> {
    /// Bytes of an element.
    pub(super) element: usize,
    pub(super) offset: u64,
    pub(super) shape: &'a [u64],
    pub(super) strides: &'a [u64],
}

/// Place of a view's elements in the bytes of its storage.
pub(super) enum Place {
    Contiguous(Range<u64>),
    /// The bytes of a copy.
    Scattered(u64),
}

impl Strided<'_> {
    /// Checks that all elements lie in a storage of `len` bytes. A view may repeat elements.
    pub(super) fn find(&self, len: u64) -> Result<Place> {
        let outside =
            || Failure::invalid(format_args!("its elements lie outside of its storage of {len} bytes"));
        if self.shape.len() != self.strides.len() {
            return Err(Failure::invalid("as many strides as dimensions are needed"));
        }
        let elements = gcodec::internal::elements(self.shape).ok_or_else(outside)?;
        let available = len / self.element as u64;
        let start = self.offset;
        if elements == 0 {
            return Ok(Place::Contiguous(0..0));
        }
        let reach = self
            .shape
            .iter()
            .zip(self.strides)
            .try_fold(start, |sum, (&dim, &stride)| sum.checked_add((dim - 1).checked_mul(stride)?));
        if reach.is_none_or(|last| last >= available) {
            return Err(outside());
        }
        let mut expected = 1u64;
        let contiguous = self.shape.iter().zip(self.strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == expected;
            // At most the number of elements.
            expected *= dim;
            fits
        });
        let bytes = |elements: u64| elements * self.element as u64;
        Ok(match contiguous {
            true => Place::Contiguous(bytes(start)..bytes(start + elements)),
            false => Place::Scattered(elements.saturating_mul(self.element as u64)),
        })
    }

    /// Returns the dimensions, that of the longest steps first, and the range of the elements, if these fill
    /// one of the storage, in which they were found to lie.
    pub(super) fn permuted(&self) -> Option<(Vec<usize>, Range<u64>)> {
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        order.sort_by_key(|&dim| Reverse(self.strides[dim]));
        let (mut shape, mut strides) = (Vec::new(), Vec::new());
        for &dim in &order {
            shape.push(self.shape[dim]);
            strides.push(self.strides[dim]);
        }
        let ordered =
            Strided { element: self.element, offset: self.offset, shape: &shape, strides: &strides };
        match ordered.find(u64::MAX) {
            Ok(Place::Contiguous(range)) => Some((order, range)),
            _ => None,
        }
    }

    /// Copies the elements, which were found to lie in `storage`, in the order of the shape.
    pub(super) fn gather(&self, storage: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        // Each of the others doubles the elements, so these are few.
        let (mut shape, mut strides): (Vec<u64>, Vec<u64>) =
            self.shape.iter().zip(self.strides).filter(|(dim, _)| **dim > 1).unzip();
        // Elements that follow one another in both are copied at once.
        let mut run = 1u64;
        while strides.last() == Some(&run) {
            strides.pop();
            run *= shape.pop().unwrap_or(1);
        }
        let run = run as usize * self.element;
        let mut index = vec![0u64; shape.len()];
        loop {
            let at = self.offset + index.iter().zip(&strides).map(|(i, stride)| i * stride).sum::<u64>();
            let at = at as usize * self.element;
            out.extend_from_slice(&storage[at..at + run]);
            // Moves on like an odometer: the last dimension runs fastest.
            let Some(turned) = (0..index.len()).rev().find(|&d| index[d] + 1 < shape[d]) else {
                return out;
            };
            index[turned] += 1;
            index[turned + 1..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_gathered_in_the_order_of_their_shape() {
        let gather = |offset, shape: &[u64], strides: &[u64]| {
            Strided { element: 2, offset, shape, strides }.gather(b"a.b.c.d.e.f.")
        };
        assert_eq!(gather(0, &[3, 2], &[1, 3]), b"a.d.b.e.c.f.");
        assert_eq!(gather(1, &[2, 1, 2], &[3, 9, 1]), b"b.c.e.f.");
        assert_eq!(gather(1, &[2, 2, 2], &[0, 2, 1]), b"b.c.d.e.b.c.d.e.");
        assert_eq!(gather(5, &[3], &[0]), b"f.f.f.");
        assert_eq!(gather(2, &[1, 1], &[7, 7]), b"c.");
    }

    #[test]
    fn views_of_all_elements_have_an_order() {
        let permuted =
            |shape: &[u64], strides: &[u64]| Strided { element: 2, offset: 1, shape, strides }.permuted();
        assert_eq!(permuted(&[3, 2], &[1, 3]), Some((vec![1, 0], 2..14)));
        // As channels_last has them, with a dimension of 1.
        assert_eq!(permuted(&[2, 3, 1, 4], &[12, 1, 12, 3]), Some((vec![0, 2, 3, 1], 2..50)));
        assert_eq!(permuted(&[3, 2], &[1, 4]), None);
        assert_eq!(permuted(&[3, 2], &[1, 1]), None);
        assert_eq!(permuted(&[3, 2], &[0, 1]), None);
    }

    #[test]
    fn views_stay_in_their_storage() {
        let find = |offset, shape: &[u64], strides: &[u64], len| {
            Strided { element: 4, offset, shape, strides }.find(len)
        };
        assert!(matches!(find(1, &[2, 3], &[3, 1], 28), Ok(Place::Contiguous(r)) if r == (4..28)));
        assert!(matches!(find(0, &[3, 2], &[1, 3], 24), Ok(Place::Scattered(24))));
        assert!(find(2, &[2, 3], &[3, 1], 28).is_err());
        assert!(matches!(find(0, &[1 << 40], &[0], 4), Ok(Place::Scattered(bytes)) if bytes == 4 << 40));
        assert!(matches!(find(0, &[1 << 62], &[0], 4), Ok(Place::Scattered(u64::MAX))));
        assert!(find(0, &[2], &[u64::MAX], 8).is_err());
        assert!(find(u64::MAX, &[1], &[1], 8).is_err());
        assert!(find(0, &[2, 2], &[1], 8).is_err());
        assert!(matches!(find(9, &[0, 3], &[3, 1], 0), Ok(Place::Contiguous(r)) if r == (0..0)));
    }
}
