//! A coarse picture of the places of elements.

use crate::arch::{self, Kernel};
use crate::limits::in_memory;

/// Most rows and columns of a [`Grid`].
const SIDE: u64 = 64;

/// Number of nonzero elements in each cell of a tensor's rows and columns.
///
/// The rows are the tensor's first dimension, the columns all others. A tensor with fewer rows or columns
/// than 64 has a cell for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    rows: u64,
    columns: u64,
    cells: Vec<u64>,
}

impl Grid {
    /// Returns the grid of a tensor of this shape, without elements. A tensor of one dimension is one row.
    pub(super) fn new(shape: &[u64]) -> Self {
        let (rows, columns) = match shape {
            [] => (1, 1),
            [columns] => (1, *columns),
            [rows, rest @ ..] => (*rows, crate::tensor::elements(rest).unwrap_or(0)),
        };
        let cells = rows.min(SIDE) * columns.min(SIDE);
        Self { rows, columns, cells: vec![0; in_memory(cells)] }
    }

    /// Returns the rows of the tensor.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the columns of the tensor.
    pub fn columns(&self) -> u64 {
        self.columns
    }

    /// Returns the height of the grid in cells.
    pub fn height(&self) -> u64 {
        self.rows.min(SIDE)
    }

    /// Returns the width of the grid in cells.
    pub fn width(&self) -> u64 {
        self.columns.min(SIDE)
    }

    /// Returns the nonzero elements in a cell, and all elements in it; `None` outside the grid.
    pub fn cell(&self, row: u64, column: u64) -> Option<(u64, u64)> {
        if row >= self.height() || column >= self.width() {
            return None;
        }
        let count = *self.cells.get(in_memory(row * self.width() + column))?;
        let rows = first(row + 1, self.rows) - first(row, self.rows);
        Some((count, rows * (first(column + 1, self.columns) - first(column, self.columns))))
    }

    /// Adds the counts of a grid of the same shape; returns false for another shape.
    pub(super) fn merge(&mut self, other: &Self) -> bool {
        let same = (self.rows, self.columns) == (other.rows, other.columns);
        if same {
            self.cells.iter_mut().zip(&other.cells).for_each(|(sum, more)| *sum += more);
        }
        same
    }

    /// Counts `values`, the elements from `start` on.
    pub(super) fn add(&mut self, start: u64, values: &[f64]) {
        let zeros = arch::run(Zeros(values));
        if self.cells.is_empty() || zeros == values.len() {
            return;
        }
        let (mut row, mut column) = (start / self.columns, start % self.columns);
        let (mut row_cell, mut cell) = (cell_of(row, self.rows), cell_of(column, self.columns));
        let (width, mut rest) = (self.width(), values);
        while !rest.is_empty() {
            // Up to the end of this cell in this row.
            let end = first(cell + 1, self.columns);
            let len = in_memory(end - column).min(rest.len());
            let (here, after) = rest.split_at(len);
            let count = if zeros == 0 { len } else { here.iter().filter(|v| **v != 0.0).count() };
            self.cells[in_memory(row_cell * width + cell)] += count as u64;
            (column, cell, rest) = (end, cell + 1, after);
            if column == self.columns {
                (row, column, cell) = (row + 1, 0, 0);
                row_cell = cell_of(row, self.rows);
            }
        }
    }
}

/// Returns the number of zeros.
struct Zeros<'a>(&'a [f64]);

impl Kernel for Zeros<'_> {
    type Output = usize;

    #[inline(always)]
    fn call(self) -> usize {
        self.0.iter().filter(|v| **v == 0.0).count()
    }
}

/// Returns the cell of a row or column among `len`.
fn cell_of(index: u64, len: u64) -> u64 {
    let cells = len.min(SIDE);
    match index.checked_mul(cells) {
        Some(product) => product / len,
        None => (u128::from(index) * u128::from(cells) / u128::from(len)) as u64,
    }
}

/// Returns the first row or column of a cell.
fn first(cell: u64, len: u64) -> u64 {
    let cells = len.min(SIDE);
    match cell.checked_mul(len) {
        Some(product) => product.div_ceil(cells),
        None => (u128::from(cell) * u128::from(len)).div_ceil(u128::from(cells)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_tile_rows_and_columns() {
        for len in [1u64, 2, 63, 64, 65, 100, 127, 1000, u64::MAX] {
            let cells = len.min(SIDE);
            assert_eq!((first(0, len), first(cells, len)), (0, len));
            for cell in 0..cells {
                let (begin, end) = (first(cell, len), first(cell + 1, len));
                assert!(begin < end, "{len} {cell}");
                assert_eq!([cell_of(begin, len), cell_of(end - 1, len)], [cell; 2], "{len}");
            }
        }
    }

    #[test]
    fn elements_are_counted_in_their_cells() {
        let (rows, columns) = (70u64, 90u64);
        let values: Vec<f64> = (0..rows * columns).map(|i| f64::from((i % 7) as u32)).collect();
        let mut expected = Grid::new(&[rows, 9, 10]);
        for (i, _) in values.iter().enumerate().filter(|(_, v)| **v != 0.0) {
            let (row, column) = (cell_of(i as u64 / columns, rows), cell_of(i as u64 % columns, columns));
            expected.cells[(row * SIDE + column) as usize] += 1;
        }
        for step in [1, 13, 999, values.len()] {
            let mut grid = Grid::new(&[rows, columns]);
            for (part, start) in values.chunks(step).zip((0u64..).step_by(step)) {
                grid.add(start, part);
            }
            assert_eq!(grid, expected);
        }
        let all = (0..64).flat_map(|row| (0..64).map(move |column| (row, column)));
        let sums = all.filter_map(|(row, column)| expected.cell(row, column));
        let (kept, of) = sums.fold((0, 0), |sum, cell| (sum.0 + cell.0, sum.1 + cell.1));
        assert_eq!((kept, of), (values.iter().filter(|v| **v != 0.0).count() as u64, rows * columns));
        assert!(!expected.clone().merge(&Grid::new(&[rows])));
        let empty = Grid::new(&[3, 0]);
        assert_eq!((empty.width(), empty.cell(0, 0)), (0, None));
    }

    #[test]
    fn a_grid_has_at_most_64_rows_and_columns() {
        for (shape, size, cells) in [
            (&[][..], (1, 1), (1, 1)),
            (&[5], (1, 5), (1, 5)),
            (&[100, 3], (100, 3), (64, 3)),
            (&[2, 5, 30], (2, 150), (2, 64)),
        ] {
            let grid = Grid::new(shape);
            assert_eq!((grid.rows(), grid.columns()), size, "{shape:?}");
            assert_eq!((grid.height(), grid.width()), cells, "{shape:?}");
            assert_eq!(grid.cells.len() as u64, cells.0 * cells.1, "{shape:?}");
            assert!(grid.cell(cells.0 - 1, cells.1 - 1).is_some(), "{shape:?}");
            assert_eq!([grid.cell(0, cells.1), grid.cell(cells.0, 0)], [None; 2], "{shape:?}");
        }
    }

    #[test]
    fn counts_of_grids_of_one_shape_are_added() {
        let of = |shape: &[u64], values: &[f64]| {
            let mut grid = Grid::new(shape);
            grid.add(0, values);
            grid
        };
        let mut sum = of(&[2, 2], &[1.0, 0.0, 1.0, 0.0]);
        assert!(sum.merge(&of(&[2, 2], &[1.0, 1.0, 0.0, 0.0])));
        assert_eq!(sum.cells, [2, 1, 1, 0]);
        assert!(!sum.merge(&of(&[4], &[1.0; 4])));
        assert_eq!(sum.cells, [2, 1, 1, 0]);
    }
}
