//! The blockwise orthonormal DCT-II and its inverse (spec, values/dct.md).

use super::basis::basis;
use crate::arch::{self, Kernel};
use crate::block::values::to_number;
use crate::limits::in_memory;

#[cfg(doc)]
use super::MAX_SIDE;

/// A row-major matrix in chunks, and their transform.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    cols: usize,
    chunk_rows: usize,
    chunk_cols: usize,
}

impl Layout {
    /// Lays a matrix of `cols` columns, at least 1, out in chunks. `chunk_rows` and `chunk_cols` are 1 to
    /// [`MAX_SIDE`] and divide the rows and columns of the matrix.
    pub(crate) fn new(cols: u64, chunk_rows: u64, chunk_cols: u64) -> Self {
        Self { cols: in_memory(cols), chunk_rows: in_memory(chunk_rows), chunk_cols: in_memory(chunk_cols) }
    }

    /// Number of elements of a chunk.
    pub(crate) fn area(&self) -> usize {
        self.chunk_rows * self.chunk_cols
    }

    /// The ranges of the matrix that hold the rows of chunk `number`.
    fn rows(&self, number: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let across = self.cols / self.chunk_cols;
        let first = number / across * self.chunk_rows * self.cols + number % across * self.chunk_cols;
        let (cols, len) = (self.cols, self.chunk_cols);
        (0..self.chunk_rows).map(move |row| first + row * cols..first + row * cols + len)
    }

    /// Transforms the coefficients of chunk `number` and stores its elements in the matrix.
    pub(super) fn put(&self, number: usize, coefficients: &[f32], matrix: &mut [f32]) {
        let elements = arch::run(Inverse { layout: *self, coefficients });
        for (row, elements) in self.rows(number).zip(elements.chunks_exact(self.chunk_cols)) {
            matrix[row].iter_mut().zip(elements).for_each(|(x, e)| *x = to_number(*e));
        }
    }

    /// Returns the coefficients of chunk `number` of a matrix.
    pub(crate) fn coefficients(&self, number: usize, matrix: &[f32]) -> Vec<f32> {
        let elements: Vec<f32> = self.rows(number).flat_map(|row| &matrix[row]).copied().collect();
        arch::run(Forward { layout: *self, elements: &elements })
    }
}

/// Coefficients to elements: the sums and products of the spec's page, in its order.
struct Inverse<'a> {
    layout: Layout,
    coefficients: &'a [f32],
}

impl Kernel for Inverse<'_> {
    type Output = Vec<f64>;

    #[inline(always)]
    fn call(self) -> Vec<f64> {
        let (a, b) = (self.layout.chunk_rows, self.layout.chunk_cols);
        let (tall, wide) = (basis(a), basis(b));
        let (mut elements, mut sums) = (vec![0.0; a * b], vec![0.0; b]);
        for (coefficients, tall) in self.coefficients.chunks_exact(b).zip(tall.chunks_exact(a)) {
            // A coefficient of zero adds zeros, which change no sum that begins as +0.
            if coefficients.iter().all(|x| *x == 0.0) {
                continue;
            }
            sums.fill(0.0);
            for (&x, wide) in coefficients.iter().zip(wide.chunks_exact(b)).filter(|(x, _)| **x != 0.0) {
                let x = f64::from(x);
                sums.iter_mut().zip(wide).for_each(|(s, c)| *s += x * c);
            }
            for (row, c) in elements.chunks_exact_mut(b).zip(tall) {
                row.iter_mut().zip(&sums).for_each(|(e, s)| *e += c * s);
            }
        }
        elements
    }
}

/// Elements to coefficients, which only senders need.
struct Forward<'a> {
    layout: Layout,
    elements: &'a [f32],
}

impl Kernel for Forward<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn call(self) -> Vec<f32> {
        let (a, b) = (self.layout.chunk_rows, self.layout.chunk_cols);
        let (tall, wide) = (basis(a), basis(b));
        // Columns first: row u of the sums adds the elements' rows i, each times c(u, i).
        let mut out = Vec::with_capacity(a * b);
        let mut sums = vec![0.0; b];
        for tall in tall.chunks_exact(a) {
            sums.fill(0.0);
            for (row, c) in self.elements.chunks_exact(b).zip(tall) {
                sums.iter_mut().zip(row).for_each(|(s, x)| *s += c * f64::from(*x));
            }
            out.extend(wide.chunks_exact(b).map(|wide| {
                // Eight partial sums, for vectors; their order is fixed.
                let (mut lanes, whole) = ([0.0; 8], b / 8 * 8);
                for (s, c) in sums[..whole].as_chunks::<8>().0.iter().zip(wide.as_chunks::<8>().0) {
                    (0..8).for_each(|i| lanes[i] += s[i] * c[i]);
                }
                let rest = sums[whole..].iter().zip(&wide[whole..]).map(|(s, c)| s * c);
                to_number(lanes.into_iter().chain(rest).sum())
            }));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other orders would round other sums: 1 is lost beside 2^100.
    #[test]
    fn sums_of_a_row_are_taken_in_eight_lanes() {
        let large = 2f32.powi(100);
        for (at, opposite, first) in [(0, 8, 0.25), (1, 9, 0.25), (0, 7, 0.0)] {
            let mut row = [0.0; 16];
            (row[at], row[opposite], row[2]) = (large, -large, 1.0);
            let coefficients = Layout::new(16, 1, 16).coefficients(0, &row);
            assert_eq!(coefficients[0], first, "{at} {opposite}");
        }
    }
}
