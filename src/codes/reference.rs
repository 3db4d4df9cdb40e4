//! Referenced symbols: each symbol relative to a reference of its row and one of its column (spec, section
//! 7.5).
//!
//! The exponents of a gradient matrix are close to the sum of a row part and a column part, because the
//! gradient is a sum of outer products. Sending both parts first leaves symbols with less entropy, and each
//! can be decoded independently.

use crate::arch::{self, Kernel};

/// Symbols as references and residuals.
pub(crate) struct Referenced {
    /// Symbols per row.
    pub(crate) row_len: usize,
    /// Whether symbol 0 is kept apart and stays 0.
    pub(crate) zero_apart: bool,
    /// Reference of each row.
    pub(crate) rows: Vec<u8>,
    /// Reference of each column; empty if columns have none.
    pub(crate) columns: Vec<u8>,
    /// Each symbol minus its references.
    pub(crate) residuals: Vec<u8>,
}

/// Centre of the residuals: the middle, so that neither side wraps.
const CENTRE: i32 = 128;

impl Referenced {
    /// Splits `symbols` into references and residuals; `row_len` >= 1.
    pub(crate) fn new(symbols: &[u8], row_len: usize, columns: bool) -> Self {
        arch::run(Split { symbols, row_len, columns })
    }

    #[inline(always)]
    fn split(symbols: &[u8], row_len: usize, columns: bool) -> Self {
        let zero_apart = symbols.contains(&0);
        // A loop, because `collect` would be compiled apart from the kernel around it.
        let mut means = Vec::with_capacity(symbols.len().div_ceil(row_len));
        for row in symbols.chunks(row_len) {
            means.push(row_mean(row));
        }
        let column_means = if columns { column_means(symbols, row_len, &means) } else { Vec::new() };
        let mut split = Self {
            row_len,
            zero_apart,
            rows: means.iter().map(|m| wrap(m - CENTRE, zero_apart)).collect(),
            columns: column_means.iter().map(|&m| wrap(m, zero_apart)).collect(),
            residuals: symbols.to_vec(),
        };
        let Self { rows, columns, residuals, .. } = &mut split;
        if zero_apart {
            each_row(residuals, 0, row_len, rows, columns, |symbol, reference| {
                // symbol - 1 and the reference are below 255 and 510.
                let difference = (u16::from(symbol).wrapping_sub(1)).wrapping_add(510 - reference);
                if symbol == 0 { 0 } else { (difference % 255) as u8 + 1 }
            });
        } else {
            each_row(residuals, 0, row_len, rows, columns, |symbol, reference| {
                symbol.wrapping_sub(reference as u8)
            });
        }
        split
    }
}

/// References of rows and columns, which turn residuals into symbols piece by piece.
pub(crate) struct References {
    row_len: usize,
    zero_apart: bool,
    rows: Vec<u8>,
    columns: Vec<u8>,
    /// Number of symbols that were restored.
    done: usize,
}

impl References {
    /// Takes the fields of [`Referenced`]; `row_len` >= 1, and there is a reference for each row.
    pub(crate) fn new(row_len: usize, zero_apart: bool, rows: Vec<u8>, columns: Vec<u8>) -> Self {
        Self { row_len, zero_apart, rows, columns, done: 0 }
    }

    /// Turns the next residuals into symbols.
    pub(crate) fn add_to(&mut self, residuals: &mut [u8]) {
        let len = residuals.len();
        arch::run(Join { references: self, residuals });
        self.done += len;
    }

    #[inline(always)]
    fn join(&self, residuals: &mut [u8]) {
        let Self { row_len, zero_apart, rows, columns, done } = self;
        if *zero_apart {
            each_row(residuals, *done, *row_len, rows, columns, |residual, reference| {
                let sum = u16::from(residual).wrapping_sub(1).wrapping_add(reference);
                if residual == 0 { 0 } else { (sum % 255) as u8 + 1 }
            });
        } else {
            each_row(residuals, *done, *row_len, rows, columns, |residual, reference| {
                residual.wrapping_add(reference as u8)
            });
        }
    }
}

/// Replaces each of `symbols`, the first at place `start`, by `f` of it and the sum of its references.
#[inline(always)]
fn each_row(
    mut symbols: &mut [u8],
    start: usize,
    row_len: usize,
    rows: &[u8],
    columns: &[u8],
    f: impl Fn(u8, u16) -> u8,
) {
    let mut column = start % row_len;
    for &reference in &rows[start / row_len..] {
        let (row, later) = symbols.split_at_mut(symbols.len().min(row_len - column));
        if columns.is_empty() {
            row.iter_mut().for_each(|s| *s = f(*s, reference.into()));
        } else {
            for (s, &of_column) in row.iter_mut().zip(&columns[column..]) {
                *s = f(*s, u16::from(reference) + u16::from(of_column));
            }
        }
        if later.is_empty() {
            break;
        }
        (symbols, column) = (later, 0);
    }
}

struct Split<'a> {
    symbols: &'a [u8],
    row_len: usize,
    columns: bool,
}

impl Kernel for Split<'_> {
    type Output = Referenced;

    #[inline(always)]
    fn call(self) -> Referenced {
        Referenced::split(self.symbols, self.row_len, self.columns)
    }
}

struct Join<'a> {
    references: &'a References,
    residuals: &'a mut [u8],
}

impl Kernel for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.references.join(self.residuals);
    }
}

/// Returns the rounded mean of the nonzero symbols of a row.
#[inline(always)]
fn row_mean(row: &[u8]) -> i32 {
    let (mut sum, mut present) = (0u64, 0u64);
    // The sum of 2^16 symbols fits 32 bits, which allows more lanes.
    for part in row.chunks(1 << 16) {
        let (mut few, mut few_present) = (0u32, 0u32);
        for &symbol in part {
            few += u32::from(symbol);
            few_present += u32::from(symbol != 0);
        }
        sum += u64::from(few);
        present += u64::from(few_present);
    }
    ((2 * sum + present) / (2 * present).max(1)) as i32
}

/// Number of rows for which sums of symbols fit 32 bits.
const FEW_ROWS: usize = 1 << 16;

/// Returns, for each column, the rounded mean by which its nonzero symbols exceed the mean of their row.
#[inline(always)]
fn column_means(symbols: &[u8], row_len: usize, row_means: &[i32]) -> Vec<i32> {
    let (mut sums, mut presents) = (vec![0i64; row_len], vec![0i64; row_len]);
    let (mut few_sums, mut few_presents) = (vec![0i32; row_len], vec![0i32; row_len]);
    for (symbols, row_means) in
        symbols.chunks(row_len.saturating_mul(FEW_ROWS)).zip(row_means.chunks(FEW_ROWS))
    {
        for (row, &mean) in symbols.chunks(row_len).zip(row_means) {
            for ((sum, present), &symbol) in few_sums.iter_mut().zip(&mut few_presents).zip(row) {
                let here = i32::from(symbol != 0);
                *sum += here * (i32::from(symbol) - mean);
                *present += here;
            }
        }
        for (all, few) in [(&mut sums, &mut few_sums), (&mut presents, &mut few_presents)] {
            all.iter_mut().zip(few).for_each(|(all, few)| *all += i64::from(std::mem::take(few)));
        }
    }
    let mean = |(sum, present): (i64, i64)| (2 * sum + present).div_euclid((2 * present).max(1)) as i32;
    sums.into_iter().zip(presents).map(mean).collect()
}

/// Returns a reference modulo 256, or modulo 255 if zero is kept apart.
fn wrap(reference: i32, zero_apart: bool) -> u8 {
    reference.rem_euclid(if zero_apart { 255 } else { 256 }) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Restores the symbols in pieces of this length.
    fn joined(split: Referenced, piece: usize) -> Vec<u8> {
        let Referenced { row_len, zero_apart, rows, columns, mut residuals } = split;
        let mut references = References::new(row_len, zero_apart, rows, columns);
        residuals.chunks_mut(piece).for_each(|piece| references.add_to(piece));
        residuals
    }

    #[test]
    fn a_sum_of_rows_and_columns_leaves_one_symbol() {
        let symbols: Vec<u8> = (0..64u8).flat_map(|r| (0..32u8).map(move |c| 40 + r % 9 + c % 5)).collect();
        let split = Referenced::new(&symbols, 32, true);
        let distinct = crate::codes::rans::count(&split.residuals).iter().filter(|&&c| c > 0).count();
        assert!(distinct <= 3, "{distinct}");
        assert_eq!(joined(split, 100), symbols);
    }

    /// Symbol 0 stays 0, and has no part in the means; the others are in the middle if all are equal.
    #[test]
    fn only_zero_is_kept_apart() {
        for (symbol, zeros) in [(1, true), (1, false), (9, true), (9, false)] {
            let is_zero = |i: usize| zeros && (i % 7 == 2 || i / 8 == 3);
            let symbols: Vec<u8> = (0..64).map(|i| if is_zero(i) { 0 } else { symbol }).collect();
            for columns in [false, true] {
                let split = Referenced::new(&symbols, 8, columns);
                assert_eq!(split.zero_apart, zeros);
                let expected: Vec<u8> = (0..64).map(|i| if is_zero(i) { 0 } else { 128 }).collect();
                assert_eq!(split.residuals, expected, "{symbol}, {zeros}, {columns}");
                assert_eq!(joined(split, 64), symbols);
            }
        }
    }

    /// It would take minutes if each piece visited all rows after its own.
    #[test]
    fn many_short_rows_come_back_in_small_pieces() {
        let len = 1 << 21;
        let rows: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let mut references = References::new(1, false, rows.clone(), Vec::new());
        let mut symbols = vec![0; len];
        symbols.chunks_mut(16).for_each(|piece| references.add_to(piece));
        assert!(symbols == rows);
    }

    proptest! {
        #[test]
        fn symbols_come_back(
            symbols in proptest::collection::vec(any::<u8>(), 1..400),
            row_len in 1usize..50,
            columns: bool,
            piece in 1usize..200,
        ) {
            prop_assert_eq!(joined(Referenced::new(&symbols, row_len, columns), piece), symbols);
        }
    }
}
