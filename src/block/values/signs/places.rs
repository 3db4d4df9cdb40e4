//! Values with signs and their elements, in pieces: rows and columns that have signs, and what these predict.

use crate::arch;
use crate::bits::{PlaneReader, PlaneWriter, gather_bits, scatter_bits};
use crate::block::values::Elements;
use crate::block::values::signs::matrix::Signed;
use crate::block::views::Grid;
use crate::block::{Bits, Sets};
use crate::codes::PIECE;
use crate::error::Result;
use crate::limits::in_memory;

/// A bit for each row and each column of a tensor; nothing for those without a flag in the view.
#[derive(Default)]
pub(super) struct Lists {
    pub(super) rows: Vec<bool>,
    pub(super) columns: Vec<bool>,
}

impl Lists {
    /// Lists of the same lengths without ones.
    pub(super) fn cleared(&self) -> Self {
        Self { rows: vec![false; self.rows.len()], columns: vec![false; self.columns.len()] }
    }

    /// The bits of rows, then those of columns.
    pub(super) fn bits(&self) -> impl Iterator<Item = &bool> {
        self.rows.iter().chain(&self.columns)
    }
}

/// The values of a block whose signs are predicted.
#[derive(Clone, Copy)]
pub(super) struct Values<'a> {
    pub(super) elements: Elements<'a>,
    /// For each value, zero if it has no sign; all have one without it.
    pub(super) present: Option<&'a [u8]>,
}

/// Consecutive values whose elements follow each other in a tensor. It does not reach over a multiple of
/// [`PIECE`] values.
struct Run {
    tensor: usize,
    /// First element.
    element: u64,
    /// First value.
    value: usize,
    len: usize,
}

impl Values<'_> {
    fn for_each_run(&self, mut f: impl FnMut(Run)) -> Result<()> {
        let (mut tensor, mut base, mut value) = (0, 0u64, 0);
        let space = self.elements.space;
        self.elements.support.for_each_run(space.len(), &Sets::new(), &mut |start, len| {
            let (mut at, end) = (start, start + len);
            while at < end {
                while at - base >= space.lens[tensor] {
                    base += space.lens[tensor];
                    tensor += 1;
                }
                let len = in_memory(end.min(base + space.lens[tensor]) - at).min(PIECE - value % PIECE);
                f(Run { tensor, element: at - base, value, len });
                at += len as u64;
                value += len;
            }
            Ok(())
        })
    }

    /// Which of up to 64 values from `first` on have a sign.
    fn mask(&self, first: usize, len: usize) -> u64 {
        let Some(codes) = self.present else { return u64::MAX >> (64 - len) };
        let mut mask = [0];
        let codes = codes.get(first..first + len).unwrap_or_default();
        arch::masks::nonzero(arch::widest(), codes, &mut mask[..codes.len().min(1)]);
        mask[0]
    }

    /// Sets the bits of rows and columns that have a sign.
    pub(super) fn mark(&self, grids: &[Grid], lists: &mut [Lists]) -> Result<()> {
        let mut walks = vec![Walk::default(); grids.len()];
        self.for_each_run(|run| {
            let Lists { rows, columns } = &mut lists[run.tensor];
            if rows.is_empty() && columns.is_empty() {
                return;
            }
            let codes =
                self.present.map(|codes| codes.get(run.value..run.value + run.len).unwrap_or_default());
            walks[run.tensor].for_each_row(&grids[run.tensor], run.element, run.len, |part| {
                let codes = codes.map(|codes| codes.get(part.at..part.at + part.len).unwrap_or_default());
                if let Some(row) = rows.get_mut(part.row) {
                    *row |= codes.is_none_or(|codes| codes.iter().any(|&code| code != 0));
                }
                if columns.is_empty() {
                    return;
                }
                part.for_each_cells(|first, cells, at| match codes {
                    None => columns[first..first + cells].fill(true),
                    Some(codes) if part.cell == 1 => {
                        let columns = &mut columns[first..];
                        columns.iter_mut().zip(codes).for_each(|(column, &code)| *column |= code != 0);
                    }
                    Some(codes) => columns[first] |= codes[at.clone()].iter().any(|&code| code != 0),
                });
            });
        })
    }

    /// Returns the predicted signs as a plane of bits.
    pub(super) fn plane(&self, grids: &[Grid], lists: &[Lists]) -> Result<Vec<u8>> {
        let mut walks = vec![Walk::default(); grids.len()];
        let mut bytes = Vec::new();
        let mut plane = PlaneWriter::new(&mut bytes);
        let mut piece = [0; PIECE];
        let mut first = 0;
        let mut put = |first: usize, predicted: &[u8]| {
            let mut masks = [0; PIECE / 64];
            let masks = &mut masks[..predicted.len().div_ceil(64)];
            arch::masks::nonzero(arch::widest(), predicted, masks);
            for (mask, (at, part)) in masks.iter().zip((first..).step_by(64).zip(predicted.chunks(64))) {
                let has = self.mask(at, part.len());
                plane.put(gather_bits(*mask, has), has.count_ones());
            }
        };
        let mut filled = 0;
        self.for_each_run(|run| {
            let Lists { rows, columns } = &lists[run.tensor];
            let predicted = &mut piece[filled..filled + run.len];
            if rows.is_empty() && columns.is_empty() {
                predicted.fill(0);
            } else {
                walks[run.tensor].for_each_row(&grids[run.tensor], run.element, run.len, |part| {
                    let of_row = rows.get(part.row).copied().unwrap_or(false);
                    let predicted = &mut predicted[part.at..part.at + part.len];
                    if columns.is_empty() {
                        predicted.fill(of_row.into());
                        return;
                    }
                    part.for_each_cells(|first, cells, at| {
                        if part.cell == 1 {
                            let columns = &columns[first..first + cells];
                            let both = predicted.iter_mut().zip(columns);
                            both.for_each(|(sign, &of_column)| *sign = u8::from(of_row ^ of_column));
                        } else {
                            predicted[at].fill(u8::from(of_row ^ columns[first]));
                        }
                    });
                });
            }
            filled += run.len;
            if filled == PIECE {
                put(first, &piece);
                (first, filled) = (first + PIECE, 0);
            }
        })?;
        put(first, &piece[..filled]);
        plane.finish();
        Ok(bytes)
    }

    /// Returns the signs of each tensor; `None` if their number differs from that of the values. The first
    /// with many signs takes `memory`.
    pub(super) fn signed(&self, signs: &Bits, memory: &mut Vec<i8>) -> Option<Vec<Signed>> {
        let lens = &self.elements.space.lens;
        let mut counts = vec![0u64; lens.len()];
        self.for_each_run(|run| counts[run.tensor] += run.len as u64).ok()?;
        let new = |(&n, &len)| Signed::new(n, len, memory);
        let mut own: Vec<Signed> = counts.iter().zip(lens).map(new).collect();
        let mut plane = PlaneReader::new(signs.as_bytes(), 0);
        let mut taken = 0;
        self.for_each_run(|run| {
            for start in (0..run.len).step_by(64) {
                let len = (run.len - start).min(64);
                let has = self.mask(run.value + start, len);
                taken += u64::from(has.count_ones());
                if taken <= signs.len() {
                    let negative = scatter_bits(plane.get(has.count_ones()), has);
                    own[run.tensor].put(run.element + start as u64, len, has, negative);
                }
            }
        })
        .ok()?;
        (taken == signs.len()).then_some(own)
    }
}

/// The row of the last element of a tensor: most elements are in the row of the one before, which saves a
/// division.
#[derive(Clone, Copy, Default)]
struct Walk {
    row: u64,
    /// First element of the row.
    start: u64,
}

/// Elements of a run in one row.
struct RowPart {
    row: usize,
    /// First element, from the start of the row.
    inside: usize,
    /// Number of elements of the run before these.
    at: usize,
    len: usize,
    /// Elements of a cell.
    cell: usize,
}

impl Walk {
    fn for_each_row(&mut self, grid: &Grid, first: u64, len: usize, mut f: impl FnMut(RowPart)) {
        let row_len = grid.row_len();
        let mut at = 0;
        while at < len {
            let element = first + at as u64;
            if element - self.start >= row_len {
                self.row = element / row_len;
                self.start = self.row * row_len;
            }
            let inside = element - self.start;
            let here = in_memory(row_len - inside).min(len - at);
            let (row, inside, cell) = (in_memory(self.row), in_memory(inside), in_memory(grid.cell));
            f(RowPart { row, inside, at, len: here, cell });
            at += here;
        }
    }
}

impl RowPart {
    /// Calls `f` with the first column, the number of columns, and their elements in this part: once where a
    /// cell has one element, else once for each cell.
    fn for_each_cells(&self, mut f: impl FnMut(usize, usize, std::ops::Range<usize>)) {
        if self.cell == 1 {
            return f(self.inside, self.len, 0..self.len);
        }
        let mut at = 0;
        while at < self.len {
            let (column, inner) = ((self.inside + at) / self.cell, (self.inside + at) % self.cell);
            let here = (self.cell - inner).min(self.len - at);
            f(column, 1, at..at + here);
            at += here;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::support::{Rows, Support};
    use crate::block::views::View;
    use crate::block::{IndexSpace, Scope};
    use crate::frame::{Manifest, TensorInfo};
    use crate::random::word;
    use crate::tensor::Dtype;

    fn space(shapes: [&[u64]; 2]) -> IndexSpace {
        let infos = [0, 1].map(|i| TensorInfo::new(i.to_string(), Dtype::F32, shapes[i]));
        Manifest::new(infos.into()).unwrap().space(Scope::Tensors { first: 0, count: 2 }, 0).unwrap()
    }

    /// A vector without a view, and three matrices with cells of one and of four elements.
    #[test]
    fn an_element_has_the_sign_of_its_row_times_that_of_its_column() {
        let space = space([&[12], &[3, 8, 4]]);
        // Runs begin and end inside rows and cells.
        let rows = vec![1, 2, 4, 5, 7, 8, 9, 11];
        let in_rows = rows.iter().flat_map(|row| 9 * row..9 * row + 9).collect();
        let supports =
            [(Support::All, Vec::from_iter(0..108)), (Support::Rows(Rows { row_len: 9, rows }), in_rows)];
        let candidates = Grid::candidates(&space, 1);
        assert_eq!(Vec::from_iter(candidates.iter().map(|g| g.cell)), [1, 1, 4]);
        for grid in candidates {
            let grids = [Grid::new(&space, 0, View::NONE, 0).unwrap(), grid];
            for (has_rows, has_columns) in [(true, true), (true, false), (false, true)] {
                let list = |has, seed, len| {
                    let bits = (0..len).map(|i| word(1, seed, i) % 2 == 1);
                    if has { bits.collect() } else { Vec::new() }
                };
                let lists =
                    Lists { rows: list(has_rows, 0, grid.rows), columns: list(has_columns, 1, grid.columns) };
                let predicted = [Lists::default(), lists];
                for (support, positions) in &supports {
                    let codes =
                        Vec::from_iter(positions.iter().map(|&p| u8::from(word(1, 2, p).is_multiple_of(8))));
                    for present in [None, Some(&codes[..])] {
                        let values = Values { elements: Elements { support, space: &space }, present };
                        let mut expected = [Lists::default(), predicted[1].cleared()];
                        let mut signs = Vec::new();
                        for (i, &p) in positions.iter().enumerate() {
                            if present.is_some_and(|codes| codes[i] == 0) {
                                continue;
                            }
                            let Some(element) = p.checked_sub(12) else {
                                signs.push(false);
                                continue;
                            };
                            let row = (element / grid.row_len()) as usize;
                            let column = (element % grid.row_len() / grid.cell) as usize;
                            expected[1].rows.get_mut(row).into_iter().for_each(|has| *has = true);
                            expected[1].columns.get_mut(column).into_iter().for_each(|has| *has = true);
                            let of = |list: &[bool], i| list.get(i).copied().unwrap_or(false);
                            signs.push(of(&predicted[1].rows, row) ^ of(&predicted[1].columns, column));
                        }
                        let case = format!("{grid:?} {has_rows} {has_columns} {support:?} {present:?}");
                        let mut marked = [Lists::default(), predicted[1].cleared()];
                        values.mark(&grids, &mut marked).unwrap();
                        assert!(marked[1].bits().eq(expected[1].bits()), "{case}");
                        let plane = values.plane(&grids, &predicted).unwrap();
                        assert_eq!(plane, signs.into_iter().collect::<Bits>().as_bytes(), "{case}");
                    }
                }
            }
        }
    }

    #[test]
    fn elements_of_a_tensor_without_a_view_are_predicted_positive() {
        let space = space([&[2, PIECE as u64 / 2], &[64]]);
        let view = View(1 | 2 << 3).with_flags(true, false);
        let grids = [(0, view), (1, View::NONE)].map(|(i, view)| Grid::new(&space, i, view, 0).unwrap());
        let lists = [Lists { rows: vec![true; 2], columns: Vec::new() }, Lists::default()];
        let values = Values { elements: Elements { support: &Support::All, space: &space }, present: None };
        let plane = values.plane(&grids, &lists).unwrap();
        assert_eq!(plane, [vec![0xff; PIECE / 8], vec![0; 8]].concat());
    }

    #[test]
    fn the_largest_tensors_have_rows_too() {
        // The sum of the first elements of two rows exceeds 64 bits by less than a row.
        let (start, row) = ((1 << 63) - 1, ((1 << 63) - 1) / 7);
        let grid = Grid { view: View::NONE, rows: row + 2, columns: 7, cell: 1 };
        let mut parts = Vec::new();
        let put = |part: RowPart| parts.push((part.row, part.inside, part.len));
        Walk::default().for_each_row(&grid, start + 3, 8, put);
        assert_eq!(parts, [(in_memory(row), 3, 4), (in_memory(row + 1), 0, 4)]);
    }
}
