//! Signs of a tensor seen as a matrix, and the majorities of its rows and columns, from which predictions are
//! chosen.

use crate::arch::{self, Kernel};
use crate::block::views::Grid;
use crate::limits::in_memory;

/// Most times that the signs of rows are chosen anew from those of columns, and back.
const ROUNDS: usize = 6;
/// Rounds after which most predictions that pay do so.
const FIRST_ROUNDS: usize = 2;
/// Rows of a matrix for each of its part, which is in the middle.
const PART: usize = 8;
/// Fewest rows of a part.
const FEWEST_ROWS: usize = 64;

/// Signs of one tensor and their elements.
pub(super) enum Signed {
    /// Few signs: for each, twice the element, plus one for minus; ascending.
    Few(Vec<u64>),
    /// Signs of many elements: 1 for minus, -1 for plus and 0 for none, for all elements in their order.
    Many(Vec<i8>),
}

impl Signed {
    /// No signs yet of up to `count` of `elements` elements, perhaps in `memory`.
    pub(super) fn new(count: u64, elements: u64, memory: &mut Vec<i8>) -> Self {
        // An element of a row of bytes costs far less than one of a list.
        match count >= elements / 4 {
            true => {
                let mut signs = std::mem::take(memory);
                signs.clear();
                signs.resize(in_memory(elements), 0);
                Self::Many(signs)
            }
            false => Self::Few(Vec::new()),
        }
    }

    /// Adds the signs of up to 64 elements from `first` on: of those with a bit in `has`.
    pub(super) fn put(&mut self, first: u64, len: usize, has: u64, negative: u64) {
        match self {
            Self::Few(list) => {
                let mut left = has;
                while left != 0 {
                    let at = left.trailing_zeros();
                    list.push((first + u64::from(at)) << 1 | (negative >> at & 1));
                    left &= left - 1;
                }
            }
            Self::Many(signs) => {
                let signs = &mut signs[in_memory(first)..][..len];
                let (ones, minus_ones) = (negative & has, !negative & has);
                if let Some(signs) = signs.as_mut_array() {
                    return arch::masks::ternary(arch::widest(), ones, minus_ones, signs);
                }
                let mut all = [0; 64];
                arch::masks::ternary(arch::widest(), ones, minus_ones, &mut all);
                signs.copy_from_slice(&all[..len]);
            }
        }
    }

    /// Number of signs.
    pub(super) fn count(&self) -> u64 {
        match self {
            Self::Few(list) => list.len() as u64,
            Self::Many(signs) => arch::run(Count(signs)),
        }
    }
}

/// Signs of one tensor in rows and columns.
pub(super) struct Matrix<'a> {
    rows: usize,
    columns: usize,
    /// Elements of a cell: of a row and a column.
    cell: usize,
    /// Number of signs.
    count: u64,
    signs: Signs<'a>,
}

enum Signs<'a> {
    /// Signs of few elements, one by one.
    Few(Vec<Placed>),
    /// Signs of all elements, as [`Signed::Many`] has them, and the number of signs in each row.
    Many(&'a [i8], Vec<u32>),
}

/// A sign and where its element stands.
#[derive(Clone, Copy)]
struct Placed {
    row: u32,
    column: u32,
    negative: bool,
}

impl Placed {
    fn row(&self) -> usize {
        in_memory(self.row.into())
    }

    fn column(&self) -> usize {
        in_memory(self.column.into())
    }
}

impl<'a> Matrix<'a> {
    /// Returns the matrix of these signs; `None` if rows or columns exceed 32 bits.
    pub(super) fn new(grid: &Grid, own: &'a Signed) -> Option<Self> {
        u32::try_from(grid.rows.max(grid.columns)).ok()?;
        let signs = match own {
            Signed::Few(own) => {
                let places = grid.places(own.iter().map(|signed| signed >> 1));
                let placed = own.iter().zip(places).map(|(signed, (row, column))| Placed {
                    row: row as u32,
                    column: column as u32,
                    negative: signed & 1 == 1,
                });
                Signs::Few(placed.collect())
            }
            Signed::Many(signs) => {
                let mut counts = vec![0; in_memory(grid.rows)];
                arch::run(RowCounts { signs, row_len: in_memory(grid.row_len()), counts: &mut counts });
                Signs::Many(signs, counts)
            }
        };
        Some(Self {
            rows: in_memory(grid.rows),
            columns: in_memory(grid.columns),
            cell: in_memory(grid.cell),
            count: match &signs {
                Signs::Few(placed) => placed.len() as u64,
                Signs::Many(_, counts) => counts.iter().map(|&count| u64::from(count)).sum(),
            },
            signs,
        })
    }

    /// Number of signs.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns an eighth of many rows, if it has its share of the signs.
    pub(super) fn part(&self) -> Option<Self> {
        let Signs::Many(signs, counts) = &self.signs else { return None };
        let (len, row_len) = (self.rows / PART, self.columns * self.cell);
        if len < FEWEST_ROWS {
            return None;
        }
        let rows = (self.rows - len) / 2..(self.rows - len) / 2 + len;
        let counts = counts[rows.clone()].to_vec();
        let count = counts.iter().map(|&count| u64::from(count)).sum();
        let signs = Signs::Many(&signs[rows.start * row_len..rows.end * row_len], counts);
        let part = Self { rows: len, columns: self.columns, cell: self.cell, count, signs };
        (count >= self.count / (2 * PART as u64)).then_some(part)
    }

    /// Numbers of rows and of columns with a sign.
    pub(super) fn active(&self) -> (u64, u64) {
        if self.count == self.rows as u64 * self.columns as u64 * self.cell as u64 {
            return (self.rows as u64, self.columns as u64);
        }
        let (mut rows, mut columns) = (vec![false; self.rows], vec![false; self.columns]);
        match &self.signs {
            Signs::Few(placed) => {
                for p in placed {
                    (rows[p.row()], columns[p.column()]) = (true, true);
                }
            }
            Signs::Many(signs, counts) => {
                rows.iter_mut().zip(counts).for_each(|(row, &count)| *row = count > 0);
                let mut seen = vec![0u8; self.columns * self.cell];
                for row in signs.chunks_exact(seen.len()) {
                    seen.iter_mut().zip(row).for_each(|(seen, sign)| *seen |= sign.cast_unsigned());
                }
                let cells = seen.chunks_exact(self.cell).map(|cell| cell.iter().any(|&seen| seen != 0));
                columns.iter_mut().zip(cells).for_each(|(column, seen)| *column = seen);
            }
        }
        let count = |list: Vec<bool>| list.into_iter().filter(|&seen| seen).count() as u64;
        (count(rows), count(columns))
    }

    /// Chooses signs of rows and columns whose products agree with most signs, one after the other. Goes on
    /// after the first rounds if so many wrong predictions may `pay`, or if the signs are few: a round of
    /// these is cheap, and their predictions improve for longer.
    pub(super) fn both(&self, pay: impl Fn(u64) -> bool) -> Prediction {
        let mut chosen = Prediction { rows: Vec::new(), columns: self.first_columns(), wrong: self.count };
        for round in 1..=ROUNDS {
            chosen.rows = majorities(&self.sums_of_rows(&chosen.columns));
            let sums = self.sums_of_columns(&chosen.rows);
            chosen.wrong = self.wrong(&sums);
            let before = std::mem::replace(&mut chosen.columns, majorities(&sums));
            // The same columns choose the same rows again.
            let is_hopeless = || matches!(self.signs, Signs::Many(..)) && !pay(chosen.wrong);
            if chosen.columns == before || (round == FIRST_ROUNDS && is_hopeless()) {
                break;
            }
        }
        chosen
    }

    /// Chooses the sign of each row.
    pub(super) fn rows_alone(&self) -> Prediction {
        let sums = self.sums_of_rows(&[]);
        Prediction { rows: majorities(&sums), columns: Vec::new(), wrong: self.wrong(&sums) }
    }

    /// Chooses the sign of each column.
    pub(super) fn columns_alone(&self) -> Prediction {
        let sums = self.sums_of_columns(&[]);
        Prediction { rows: Vec::new(), columns: majorities(&sums), wrong: self.wrong(&sums) }
    }

    /// Number of signs that differ from the majority in their row or column, whose sums these are.
    fn wrong(&self, sums: &[i32]) -> u64 {
        let more: u64 = sums.iter().map(|sum| u64::from(sum.unsigned_abs())).sum();
        (self.count - more) / 2
    }

    /// Signs of the row that has the most; of a cell, the last.
    fn first_columns(&self) -> Vec<bool> {
        let mut columns = vec![false; self.columns];
        match &self.signs {
            Signs::Few(placed) => {
                let mut counts = vec![0u32; self.rows];
                placed.iter().for_each(|p| counts[p.row()] += 1);
                let first = longest(&counts);
                for p in placed.iter().filter(|p| p.row() == first) {
                    columns[p.column()] = p.negative;
                }
            }
            Signs::Many(signs, counts) => {
                let row_len = self.columns * self.cell;
                let row = &signs[longest(counts) * row_len..][..row_len];
                for (column, cell) in columns.iter_mut().zip(row.chunks_exact(self.cell)) {
                    *column = cell.iter().rev().find(|&&sign| sign != 0) == Some(&1);
                }
            }
        }
        columns
    }

    /// For each row, how many more signs are negative than positive, after correction by those of columns. An
    /// empty list corrects nothing.
    fn sums_of_rows(&self, columns: &[bool]) -> Vec<i32> {
        let mut sums = vec![0; self.rows];
        match &self.signs {
            Signs::Few(placed) => {
                for p in placed {
                    sums[p.row()] += vote(p.negative ^ bit(columns, p.column()));
                }
            }
            Signs::Many(signs, _) => {
                let flips: Vec<i8> = (0..self.columns)
                    .flat_map(|column| std::iter::repeat_n(flip(bit(columns, column)), self.cell))
                    .collect();
                arch::run(RowSums { signs, flips: &flips, sums: &mut sums });
            }
        }
        sums
    }

    /// For each column, as [`Self::sums_of_rows`].
    fn sums_of_columns(&self, rows: &[bool]) -> Vec<i32> {
        let mut sums = vec![0; self.columns];
        match &self.signs {
            Signs::Few(placed) => {
                for p in placed {
                    sums[p.column()] += vote(p.negative ^ bit(rows, p.row()));
                }
            }
            Signs::Many(signs, _) => {
                let flips: Vec<i8> = (0..self.rows).map(|row| flip(bit(rows, row))).collect();
                let mut places = vec![0; self.columns * self.cell];
                arch::run(ColumnSums { signs, flips: &flips, sums: &mut places });
                let cells = places.chunks_exact(self.cell).map(|cell| cell.iter().sum::<i32>());
                sums.iter_mut().zip(cells).for_each(|(sum, cell)| *sum = cell);
            }
        }
        sums
    }
}

/// Signs of rows and columns, of which an empty list is all plus, and the number of signs that differ from
/// the product of those of their row and column.
pub(super) struct Prediction {
    pub(super) rows: Vec<bool>,
    pub(super) columns: Vec<bool>,
    pub(super) wrong: u64,
}

/// Whether more signs are negative.
fn majorities(sums: &[i32]) -> Vec<bool> {
    sums.iter().map(|&sum| sum > 0).collect()
}

/// The last of the rows with the most signs.
fn longest(counts: &[u32]) -> usize {
    counts.iter().enumerate().max_by_key(|(_, count)| **count).map_or(0, |(row, _)| row)
}

fn bit(list: &[bool], at: usize) -> bool {
    list.get(at).copied().unwrap_or(false)
}

fn vote(negative: bool) -> i32 {
    if negative { 1 } else { -1 }
}

/// Mask that negates a number in two's complement: `(number ^ mask) - mask`.
fn flip(negative: bool) -> i8 {
    if negative { -1 } else { 0 }
}

/// Counts signs.
struct Count<'a>(&'a [i8]);

impl Kernel for Count<'_> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        count(self.0)
    }
}

/// Counts the signs of each row.
struct RowCounts<'a> {
    signs: &'a [i8],
    row_len: usize,
    counts: &'a mut [u32],
}

impl Kernel for RowCounts<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { signs, row_len, counts } = self;
        for (row, number) in signs.chunks_exact(row_len).zip(counts) {
            *number = count(row) as u32;
        }
    }
}

#[inline(always)]
fn count(signs: &[i8]) -> u64 {
    /// Signs whose number fits 8 bits, which allows more lanes.
    const FEW: usize = 255;
    let mut all = 0;
    for signs in signs.chunks(FEW) {
        let mut few = 0u8;
        for &sign in signs {
            few += u8::from(sign != 0);
        }
        all += u64::from(few);
    }
    all
}

/// Sums of rows, after flips of columns.
struct RowSums<'a> {
    signs: &'a [i8],
    flips: &'a [i8],
    sums: &'a mut [i32],
}

impl Kernel for RowSums<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        /// Signs whose sum fits 16 bits.
        const FEW: usize = 1 << 14;
        let Self { signs, flips, sums } = self;
        for (row, sum) in signs.chunks_exact(flips.len()).zip(sums) {
            for (signs, flips) in row.chunks(FEW).zip(flips.chunks(FEW)) {
                let mut few = 0i16;
                for (&sign, &flip) in signs.iter().zip(flips) {
                    few += i16::from((sign ^ flip) - flip);
                }
                *sum += i32::from(few);
            }
        }
    }
}

/// Sums of columns, after flips of rows.
struct ColumnSums<'a> {
    signs: &'a [i8],
    flips: &'a [i8],
    sums: &'a mut [i32],
}

impl Kernel for ColumnSums<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        /// Rows whose sums fit 8 bits, which allows more lanes.
        const FEW: usize = 127;
        let Self { signs, flips, sums } = self;
        let mut few = vec![0i8; sums.len()];
        for (rows, flips) in signs.chunks(sums.len() * FEW).zip(flips.chunks(FEW)) {
            for (row, &flip) in rows.chunks_exact(sums.len()).zip(flips) {
                for (few, &sign) in few.iter_mut().zip(row) {
                    *few += (sign ^ flip) - flip;
                }
            }
            for (sum, few) in sums.iter_mut().zip(&mut few) {
                *sum += i32::from(std::mem::take(few));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Scope;
    use crate::block::views::View;
    use crate::frame::{Manifest, TensorInfo};
    use crate::tensor::Dtype;
    use proptest::prelude::*;

    /// Everything that predictions are chosen from.
    type Found = ((u64, u64), [(Vec<bool>, Vec<bool>, u64); 3]);

    /// `own`: the signs of the matrix, as [`Signed::Few`] has them.
    fn found(matrix: &Matrix<'_>, grid: &Grid, own: &[u64]) -> Found {
        let predictions = [matrix.both(|_| true), matrix.rows_alone(), matrix.columns_alone()];
        for Prediction { rows, columns, wrong } in &predictions {
            let places = grid.places(own.iter().map(|sign| sign >> 1)).zip(own);
            let differ = places.filter(|((row, column), sign)| {
                bit(rows, *row as usize) ^ bit(columns, *column as usize) ^ (*sign & 1 == 1)
            });
            assert_eq!(*wrong, differ.count() as u64);
        }
        (matrix.active(), predictions.map(|Prediction { rows, columns, wrong }| (rows, columns, wrong)))
    }

    proptest! {
        #[test]
        fn few_and_many_signs_agree(
            shape in (2u64..20, 2u64..20, 1u64..4),
            signs in proptest::collection::vec(0u8..3, 1600),
        ) {
            let dims = [shape.0, shape.1, shape.2];
            let manifest = Manifest::new(vec![TensorInfo::new("w", Dtype::F32, dims)]).unwrap();
            let space = manifest.space(Scope::Tensor(0), 0).unwrap();
            let elements = dims.iter().product::<u64>();
            let own: Vec<u64> = (0..elements)
                .zip(&signs)
                .filter(|(_, sign)| **sign > 0)
                .map(|(element, sign)| element << 1 | u64::from(*sign == 2))
                .collect();
            let [mut few, mut many] = [Signed::Few(Vec::new()), Signed::Many(vec![0; elements as usize])];
            for &sign in &own {
                let (element, negative) = (sign >> 1, sign & 1);
                [&mut few, &mut many].into_iter().for_each(|signed| signed.put(element, 1, 1, negative));
            }
            prop_assert_eq!(few.count(), many.count());
            for grid in Grid::candidates(&space, 0) {
                let [few, many] = [&few, &many].map(|signed| found(&Matrix::new(&grid, signed).unwrap(), &grid, &own));
                prop_assert_eq!(few, many);
            }
        }
    }

    #[test]
    fn few_signs_take_no_memory_for_each_element() {
        let mut memory = vec![1; 100];
        assert!(matches!(Signed::new(1000, 1 << 40, &mut memory), Signed::Few(_)));
        assert_eq!(memory.len(), 100);
        assert!(matches!(Signed::new(1000, 1000, &mut memory), Signed::Many(signs) if signs == [0; 1000]));
    }

    #[test]
    fn signs_of_up_to_64_elements_are_put_at_once() {
        let (has, negative) = (0b111, 0b101);
        let [mut few, mut many] = [Signed::Few(Vec::new()), Signed::Many(vec![0; 200])];
        [&mut few, &mut many].into_iter().for_each(|signed| signed.put(100, 64, has, negative));
        assert!(matches!(&few, Signed::Few(list) if *list == [100 << 1 | 1, 101 << 1, 102 << 1 | 1]));
        assert!(matches!(&many, Signed::Many(signs) if signs[99..104] == [0, 1, -1, 1, 0]));
    }

    #[test]
    fn rows_and_columns_beyond_32_bits_are_refused() {
        for (rows, columns, fits) in [(1 << 32, 2, false), (2, 1 << 32, false), (2, (1 << 32) - 1, true)] {
            let grid = Grid { view: View::NONE, rows, columns, cell: 1 };
            assert_eq!(Matrix::new(&grid, &Signed::Few(Vec::new())).is_some(), fits, "{rows} {columns}");
        }
    }

    #[test]
    fn more_negative_signs_than_others_make_a_row_or_column_negative() {
        let grid = Grid { view: View::NONE, rows: 4, columns: 4, cell: 1 };
        let signs = [1, 1, -1, 0, -1, -1, -1, 1, 1, -1, 0, 0, 0, 0, 0, -1];
        let few =
            (0..).zip(signs).filter(|(_, sign)| *sign != 0).map(|(i, sign)| i << 1 | u64::from(sign > 0));
        for own in [Signed::Few(few.collect()), Signed::Many(signs.to_vec())] {
            let matrix = Matrix::new(&grid, &own).unwrap();
            assert_eq!(matrix.rows_alone().rows, [true, false, false, false]);
            assert_eq!(matrix.columns_alone().columns, [true, false, false, false]);
        }
        assert_eq!(longest(&[1, 3, 3, 2]), 2);
    }

    #[test]
    fn long_rows_are_summed_whole() {
        let row = vec![1i8; 100_000];
        let mut sums = [0];
        arch::run(RowSums { signs: &row, flips: &vec![0; row.len()], sums: &mut sums });
        assert_eq!(sums, [100_000]);
        arch::run(RowSums { signs: &row, flips: &vec![-1; row.len()], sums: &mut sums });
        assert_eq!(sums, [0]);
    }
}
