//! Classes by rows and columns (spec, supports/classed.md, rule 2).

use crate::bits::Cursor;
use crate::block::IndexSpace;
use crate::block::views::{Grid, read_views};
use crate::codes::{Coder, Decoder, Role, read_ints, read_lists, write_ints, write_lists};
use crate::error::{Error, Result};
use crate::limits::{MEMORY, check, in_memory};

use super::gaps::MAX_CLASSES;

/// Rows and columns of one tensor, and what they add to an element's class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Levels {
    pub(super) grid: Grid,
    pub(super) level: u8,
    /// A symbol for each row; none without the flag.
    pub(super) rows: Vec<u8>,
    /// A symbol for each column; none without the flag.
    pub(super) columns: Vec<u8>,
}

/// Numbers of a tensor's columns by symbol, and its columns in this order.
struct Columns {
    /// Number of elements of one row in columns with each symbol.
    elements: Vec<u64>,
    /// For each symbol, the first of its columns in `sorted`.
    starts: Vec<usize>,
    /// The columns by symbol, then ascending.
    sorted: Vec<u32>,
}

impl Levels {
    /// The class of the elements in a cell.
    #[inline]
    fn class(&self, row: u64, column: u64) -> usize {
        let of = |list: &[u8], at: u64| list.get(in_memory(at)).copied().unwrap_or(0);
        usize::from(self.level) + usize::from(of(&self.rows, row)) + usize::from(of(&self.columns, column))
    }

    /// Numbers of elements by class.
    fn elements(&self) -> Vec<u64> {
        let of = |list: &[u8], len: u64| {
            let mut counts = vec![0u64; 256];
            list.iter().for_each(|&s| counts[usize::from(s)] += 1);
            if list.is_empty() {
                counts[0] = len;
            }
            counts
        };
        let (rows, columns) = (of(&self.rows, self.grid.rows), of(&self.columns, self.grid.columns));
        let mut elements = vec![0; usize::from(MAX_CLASSES)];
        for (r, &rows) in rows.iter().enumerate().filter(|(_, n)| **n > 0) {
            for (c, &columns) in columns.iter().enumerate().filter(|(_, n)| **n > 0) {
                if let Some(sum) = elements.get_mut(usize::from(self.level) + r + c) {
                    *sum += rows * columns * self.grid.cell;
                }
            }
        }
        elements
    }

    fn columns(&self) -> Columns {
        let Grid { columns, cell, .. } = self.grid;
        if self.columns.is_empty() {
            return Columns { elements: vec![columns * cell], starts: vec![0], sorted: Vec::new() };
        }
        let symbols = usize::from(self.columns.iter().copied().max().unwrap_or(0)) + 1;
        let mut counts = vec![0; symbols];
        self.columns.iter().for_each(|&s| counts[usize::from(s)] += 1);
        let starts: Vec<usize> =
            counts.iter().scan(0, |sum, n| Some(std::mem::replace(sum, *sum + n))).collect();
        let mut next = starts.clone();
        let mut sorted = vec![0; self.columns.len()];
        for (column, &symbol) in self.columns.iter().enumerate() {
            sorted[next[usize::from(symbol)]] = column as u32;
            next[usize::from(symbol)] += 1;
        }
        let elements = counts.iter().map(|&n| n as u64 * cell).collect();
        Columns { elements, starts, sorted }
    }
}

/// Classes of all elements of an index space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Matrix {
    /// Number of classes.
    pub(super) classes: u8,
    pub(super) tensors: Vec<Levels>,
}

impl Matrix {
    /// Number of elements by class.
    pub(super) fn elements(&self) -> Vec<u64> {
        let mut sum = vec![0u64; self.classes.into()];
        for levels in &self.tensors {
            sum.iter_mut().zip(levels.elements()).for_each(|(s, n)| *s += n);
        }
        sum
    }

    /// The ranks of ascending positions inside their classes.
    pub(super) fn ranks(&self, positions: &[u64], space: &IndexSpace) -> Vec<Vec<u64>> {
        let mut ranks = vec![Vec::new(); self.classes.into()];
        let mut before = vec![0u64; self.classes.into()];
        let (mut start, mut rest) = (0u64, positions);
        for (levels, &len) in self.tensors.iter().zip(&space.lens) {
            let (own, after) = rest.split_at(rest.partition_point(|&p| p < start + len));
            levels.add_ranks(own.iter().map(|p| p - start), &before, &mut ranks);
            before.iter_mut().zip(levels.elements()).for_each(|(b, n)| *b += n);
            (start, rest) = (start + len, after);
        }
        ranks
    }

    /// The positions of ranks inside classes, ascending. The ranks are below the numbers of elements.
    pub(super) fn positions(&self, ranks: &[Vec<u64>], space: &IndexSpace) -> Vec<u64> {
        let mut positions = Vec::with_capacity(ranks.iter().map(Vec::len).sum());
        let mut before = vec![0u64; self.classes.into()];
        let mut rest: Vec<&[u64]> = ranks.iter().map(Vec::as_slice).collect();
        let (mut start, mut sorter) = (0u64, Sorter::default());
        for (levels, &len) in self.tensors.iter().zip(&space.lens) {
            let columns = levels.columns();
            if levels.rows.is_empty() {
                let elements = levels.elements();
                let from = positions.len();
                for (class, rest) in rest.iter_mut().enumerate() {
                    let end = before[class] + elements[class];
                    let (own, after) = rest.split_at(rest.partition_point(|&r| r < end));
                    levels.add_positions(class, own, before[class], start, &columns, &mut positions);
                    (*rest, before[class]) = (after, end);
                }
                sorter.sort(&mut positions[from..], start, len);
            } else {
                levels.add_rows(&mut rest, &mut before, start, &columns, &mut positions, &mut sorter);
            }
            start += len;
        }
        positions
    }
}

impl Levels {
    /// Appends the ranks of ascending elements of this tensor. `before` are the numbers of elements of each
    /// class in the tensors before it.
    fn add_ranks(&self, elements: impl Iterator<Item = u64> + Clone, before: &[u64], ranks: &mut [Vec<u64>]) {
        let Grid { cell, .. } = self.grid;
        let columns = self.columns();
        // Index of each column among those of its symbol.
        let mut order = vec![0u64; columns.sorted.len()];
        for (at, &column) in columns.sorted.iter().enumerate() {
            let symbol = usize::from(self.columns[in_memory(column.into())]);
            order[in_memory(column.into())] = (at - columns.starts[symbol]) as u64;
        }
        // Elements of each class before the current row.
        let mut passed = before.to_vec();
        let mut at = 0u64;
        let places = self.grid.places(elements.clone());
        for (element, (row, column)) in elements.zip(places) {
            while at < row {
                let symbol = self.rows.get(in_memory(at)).copied().unwrap_or(0);
                // Without row symbols, all rows have the same classes.
                let rows = if self.rows.is_empty() { row - at } else { 1 };
                let first = usize::from(self.level) + usize::from(symbol);
                let sums = passed[first.min(before.len())..].iter_mut();
                sums.zip(&columns.elements).for_each(|(sum, n)| *sum += n * rows);
                at += rows;
            }
            let class = self.class(row, column);
            let inside = match order.get(in_memory(column)) {
                Some(order) => order * cell + element % cell,
                None => element - row * self.grid.row_len(),
            };
            ranks[class].push(passed[class] + inside);
        }
    }

    /// Appends the positions of a class's ranks in this tensor, whose rows are alike, and which begins at
    /// position `start`. `before`: number of elements of the class in the tensors before.
    fn add_positions(
        &self,
        class: usize,
        ranks: &[u64],
        before: u64,
        start: u64,
        columns: &Columns,
        positions: &mut Vec<u64>,
    ) {
        let Some(symbol) = class.checked_sub(self.level.into()) else { return };
        let Some(&per_row) = columns.elements.get(symbol).filter(|&&n| n > 0) else { return };
        let row_len = self.grid.row_len();
        positions.extend(ranks.iter().map(|rank| {
            let (row, inside) = ((rank - before) / per_row, (rank - before) % per_row);
            start + row * row_len + columns.in_row(symbol, inside, self.grid.cell)
        }));
    }

    /// Appends the positions of ranks in this tensor, which begins at position `start`, row after row. Takes
    /// the ranks away. `passed`: numbers of elements of each class in the tensors before, and then up to the
    /// end of this one.
    ///
    /// In a row, each symbol of the columns has one class. So a row visits as many classes as columns have
    /// symbols, and only those that have a rank there look for columns:
    ///
    /// ```text
    /// columns 0 1 0 0, rows 2 0: the first row has one element of class 3 and three of class 2,
    ///                            the second one of class 1 and three of class 0
    /// ```
    fn add_rows(
        &self,
        ranks: &mut [&[u64]],
        passed: &mut [u64],
        start: u64,
        columns: &Columns,
        positions: &mut Vec<u64>,
        sorter: &mut Sorter,
    ) {
        let row_len = self.grid.row_len();
        let mut next: Vec<u64> = ranks.iter().map(|ranks| first_of(ranks)).collect();
        let mut next_row = start;
        for &symbol in &self.rows {
            let row = next_row;
            next_row += row_len;
            let first = usize::from(self.level) + usize::from(symbol);
            let (from, mut runs) = (positions.len(), 0);
            let ends = passed[first..].iter_mut().zip(&columns.elements).zip(&next[first..]);
            let mut found = 0u64;
            for (symbol, ((end, n), next)) in ends.enumerate() {
                *end += n;
                found |= u64::from(next < end) << symbol;
            }
            while found != 0 {
                let symbol = in_memory(found.trailing_zeros().into());
                found &= found - 1;
                let (class, end) = (first + symbol, passed[first + symbol]);
                let begin = end - columns.elements[symbol];
                let len = ranks[class].iter().take_while(|rank| **rank < end).count();
                let (own, after) = ranks[class].split_at(len);
                columns.add_row(symbol, own, begin, row, self.grid.cell, positions);
                (ranks[class], next[class]) = (after, first_of(after));
                runs += 1;
            }
            if runs > 1 {
                sorter.sort(&mut positions[from..], row, row_len);
            }
        }
    }
}

/// Returns the first of ascending ranks, or a number above all if there is none.
fn first_of(ranks: &[u64]) -> u64 {
    ranks.first().copied().unwrap_or(u64::MAX)
}

impl Columns {
    /// Returns the element of a row that is number `inside` among those in columns with a symbol.
    fn in_row(&self, symbol: usize, inside: u64, cell: u64) -> u64 {
        match self.sorted.get(self.starts[symbol] + in_memory(inside / cell)) {
            Some(&column) => u64::from(column) * cell + inside % cell,
            None => inside,
        }
    }

    /// Appends the positions of ranks of elements in columns with a symbol, in a row that begins at position
    /// `row`, and before which the class has `begin` elements.
    fn add_row(
        &self,
        symbol: usize,
        ranks: &[u64],
        begin: u64,
        row: u64,
        cell: u64,
        positions: &mut Vec<u64>,
    ) {
        let sorted = &self.sorted[self.starts[symbol]..];
        match cell {
            // Most tensors are matrices, and a division takes longer than all the rest.
            1 if !sorted.is_empty() => {
                positions.extend(ranks.iter().map(|rank| row + u64::from(sorted[in_memory(rank - begin)])))
            }
            _ => positions.extend(ranks.iter().map(|rank| row + self.in_row(symbol, rank - begin, cell))),
        }
    }
}

/// Sorts positions, in memory that is used again.
#[derive(Default)]
struct Sorter {
    /// A bit for each element, all of them 0.
    bits: Vec<u64>,
}

impl Sorter {
    /// Positions from which bits are faster.
    const MANY: usize = 20;

    /// Sorts different positions among `len` elements from position `start` on.
    fn sort(&mut self, positions: &mut [u64], start: u64, len: u64) {
        // A bit for each element takes no more memory than the positions.
        if positions.len() <= Self::MANY || len / 64 > positions.len() as u64 {
            return positions.sort_unstable();
        }
        let words = in_memory(len.div_ceil(64));
        if self.bits.len() < words {
            self.bits.resize(words, 0);
        }
        for position in &*positions {
            let at = position - start;
            self.bits[in_memory(at / 64)] |= 1 << (at % 64);
        }
        let mut out = positions.iter_mut();
        for (word, row) in self.bits[..words].iter_mut().zip((start..).step_by(64)) {
            let mut rest = std::mem::take(word);
            while rest != 0
                && let Some(position) = out.next()
            {
                *position = row + u64::from(rest.trailing_zeros());
                rest &= rest - 1;
            }
        }
    }
}

/// Appends the fields of the rule.
pub(super) fn write(out: &mut Vec<u8>, coder: &mut Coder<'_>, matrix: &Matrix) {
    let views: Vec<u64> = matrix.tensors.iter().map(|t| t.grid.view.0.into()).collect();
    let levels: Vec<u64> = matrix.tensors.iter().map(|t| t.level.into()).collect();
    write_ints(out, coder, Role::Views, &views);
    write_ints(out, coder, Role::Views, &levels);
    let lists = matrix.tensors.iter().flat_map(|t| [t.rows.as_slice(), &t.columns]);
    let lists: Vec<&[u8]> = lists.filter(|list| !list.is_empty()).collect();
    write_lists(out, coder, &lists);
}

/// Reads the fields of the rule.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    classes: u8,
    space: &IndexSpace,
) -> Result<Matrix> {
    let grids = read_views(cursor, decoder, space)?;
    let offset = cursor.offset();
    let levels = read_ints(cursor, decoder, grids.len() as u64, u64::from(MAX_CLASSES) - 1)?;
    let mut lens = Vec::new();
    for grid in &grids {
        let sizes = [(grid.view.has_rows(), grid.rows), (grid.view.has_columns(), grid.columns)];
        for (_, len) in sizes.into_iter().filter(|(has, _)| *has) {
            // Each symbol is decoded for itself, and each row is visited for each class.
            decoder.budget.reserve_elements(len.saturating_mul(4), offset)?;
            // Columns are stored in 32 bits.
            check(MEMORY, len, u32::MAX.into(), offset)?;
            lens.push(decoder.budget.reserve_items::<[u8; 6]>(len, offset)?);
        }
    }
    let offset = cursor.offset();
    let mut lists = read_lists(cursor, decoder, &lens)?.into_iter();
    let mut tensors = Vec::with_capacity(grids.len());
    for (grid, level) in grids.into_iter().zip(levels) {
        let mut list = |has: bool| has.then(|| lists.next()).flatten().unwrap_or_default();
        let (rows, columns) = (list(grid.view.has_rows()), list(grid.view.has_columns()));
        let largest = |list: &[u8]| u64::from(list.iter().copied().max().unwrap_or(0));
        let class = level + largest(&rows) + largest(&columns);
        if class >= classes.into() {
            return Err(Error::out_of_range("class", class, offset));
        }
        tensors.push(Levels { grid, level: level as u8, rows, columns });
    }
    Ok(Matrix { classes, tensors })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Scope;
    use crate::codes::Entropy;
    use crate::error::LimitError;
    use crate::frame::{Manifest, TensorInfo};
    use crate::limits::{Budget, Limits};
    use crate::tensor::Dtype;

    #[test]
    fn positions_are_sorted_in_spaces_of_any_size() {
        let mut sorter = Sorter::default();
        let many: Vec<u64> = (0..60).map(|i| i * 37 % 61 * 3).chain([190, 64, 127, 63 + 128]).collect();
        for (start, len) in [(0, 200), (1000, 200), (7, 4000), (7, 5000), (7, 1 << 60), (3, 192)] {
            for given in [&many[..], &many[..7], &[]] {
                let mut positions: Vec<u64> = given.iter().map(|position| start + position).collect();
                let mut expected = positions.clone();
                expected.sort_unstable();
                sorter.sort(&mut positions, start, len);
                assert_eq!(positions, expected, "{len}");
            }
        }
    }

    #[test]
    fn rows_and_columns_beyond_32_bits_are_refused() {
        let limits = Limits::default().with_max_elements(u64::MAX).with_max_alloc_bytes(u64::MAX);
        for (shape, view) in [([1 << 33, 2], 1 << 6), ([2, 1 << 33], 1 << 7)] {
            let info = TensorInfo::new("w", Dtype::F32, shape);
            let space = Manifest::new(vec![info]).unwrap().space(Scope::Tensor(0), 0).unwrap();
            let mut bytes = Vec::new();
            let mut coder = Coder::new(Entropy::Auto, &[], None);
            write_ints(&mut bytes, &mut coder, Role::Views, &[view | 2 << 3 | 1]);
            write_ints(&mut bytes, &mut coder, Role::Views, &[0]);
            let budget = Budget::new(&limits);
            let decoder = Decoder { tables: &[], budget: &budget };
            match read(&mut Cursor::new(&bytes, 0, "matrix"), &decoder, 1, &space) {
                Err(Error::Limit(LimitError { asked, allowed, .. })) => {
                    assert_eq!((asked, allowed), (1 << 33, u32::MAX.into()));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
