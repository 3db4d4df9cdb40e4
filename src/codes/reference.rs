//! Referenced symbols: each symbol relative to a reference of its row and one of its column (spec, section
//! 7.5).
//!
//! The exponents of a gradient matrix are close to the sum of a row part and a column part, because the
//! gradient is a sum of outer products. Sending both parts first leaves symbols with less entropy, and each
//! can be decoded independently.

use crate::arch::{self, Kernel};

/// References of symbols, without the residuals.
pub(crate) struct Referenced {
    /// Symbols per row.
    pub(crate) row_len: usize,
    /// Whether symbol 0 is kept apart and stays 0.
    pub(crate) zero_apart: bool,
    /// Reference of each row.
    pub(crate) rows: Vec<u8>,
    /// Reference of each column; empty if columns have none.
    pub(crate) columns: Vec<u8>,
}

/// Centre of the residuals: the middle, so that neither side wraps.
const CENTRE: i32 = 128;

impl Referenced {
    /// Splits `symbols` into references, which it returns, and residuals, each symbol minus its references,
    /// of which there are as many. `row_len` >= 1.
    pub(crate) fn split(symbols: &[u8], row_len: usize, columns: bool, residuals: &mut [u8]) -> Self {
        arch::run(Split { symbols, row_len, columns, residuals })
    }

    #[inline(always)]
    fn split_here(symbols: &[u8], row_len: usize, columns: bool, residuals: &mut [u8]) -> Self {
        let zero_apart = symbols.contains(&0);
        // A loop, because `collect` would be compiled apart from the kernel around it.
        let mut means = Vec::with_capacity(symbols.len().div_ceil(row_len));
        for row in symbols.chunks(row_len) {
            means.push(if zero_apart { row_mean(row) } else { full_row_mean(row) });
        }
        let column_means = match columns {
            true => column_means(symbols, row_len, &means, zero_apart),
            false => Vec::new(),
        };
        let split = Self {
            row_len,
            zero_apart,
            rows: means.iter().map(|m| wrap(i32::from(*m) - CENTRE, zero_apart)).collect(),
            columns: column_means.iter().map(|&m| wrap(m, zero_apart)).collect(),
        };
        residuals.copy_from_slice(symbols);
        let Self { rows, columns, .. } = &split;
        match zero_apart {
            true => each_row(residuals, 0, row_len, rows, columns, minus_apart, plus_255),
            false => each_row(residuals, 0, row_len, rows, columns, u8::wrapping_sub, u8::wrapping_add),
        }
        split
    }
}

/// The sum of two references below 255, modulo 255.
#[inline(always)]
fn plus_255(a: u8, b: u8) -> u8 {
    let sum = a.wrapping_add(b);
    // A carry is worth 256, which is 1 more than nothing.
    let sum = sum.wrapping_add(u8::from(sum < a));
    if sum == 255 { 0 } else { sum }
}

/// A symbol minus a reference below 255, where 0 is kept apart: the symbols from 1 on are modulo 255.
#[inline(always)]
fn minus_apart(symbol: u8, reference: u8) -> u8 {
    let from_0 = symbol.wrapping_sub(1);
    let difference = from_0.wrapping_sub(reference).wrapping_sub(u8::from(from_0 < reference));
    if symbol == 0 { 0 } else { difference.wrapping_add(1) }
}

/// Inverts [`minus_apart`].
#[inline(always)]
fn plus_apart(residual: u8, reference: u8) -> u8 {
    let sum = plus_255(residual.wrapping_sub(1), reference);
    if residual == 0 { 0 } else { sum + 1 }
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
        match zero_apart {
            true => each_row(residuals, *done, *row_len, rows, columns, plus_apart, plus_255),
            false => each_row(residuals, *done, *row_len, rows, columns, u8::wrapping_add, u8::wrapping_add),
        }
    }
}

/// Replaces each of `symbols`, the first at place `start`, by `f` of it and the `sum` of its references.
#[inline(always)]
fn each_row(
    mut symbols: &mut [u8],
    start: usize,
    row_len: usize,
    rows: &[u8],
    columns: &[u8],
    f: impl Fn(u8, u8) -> u8,
    sum: impl Fn(u8, u8) -> u8,
) {
    let mut column = start % row_len;
    for &reference in &rows[start / row_len..] {
        let (row, later) = symbols.split_at_mut(symbols.len().min(row_len - column));
        if columns.is_empty() {
            row.iter_mut().for_each(|s| *s = f(*s, reference));
        } else {
            for (s, &of_column) in row.iter_mut().zip(&columns[column..]) {
                *s = f(*s, sum(reference, of_column));
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
    residuals: &'a mut [u8],
}

impl Kernel for Split<'_> {
    type Output = Referenced;

    #[inline(always)]
    fn call(self) -> Referenced {
        Referenced::split_here(self.symbols, self.row_len, self.columns, self.residuals)
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
fn row_mean(row: &[u8]) -> u8 {
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
    rounded_mean(sum, present)
}

/// Returns the rounded mean of the symbols of a row without 0.
#[inline(always)]
fn full_row_mean(row: &[u8]) -> u8 {
    let mut sum = 0u64;
    for part in row.chunks(1 << 16) {
        let mut few = 0u32;
        for &symbol in part {
            few += u32::from(symbol);
        }
        sum += u64::from(few);
    }
    rounded_mean(sum, row.len() as u64)
}

#[inline(always)]
fn rounded_mean(sum: u64, count: u64) -> u8 {
    ((2 * sum + count) / (2 * count).max(1)) as u8
}

/// Number of rows for which sums of differences of symbols fit 16 bits.
const FEW_ROWS: usize = 128;

/// Returns, for each column, the rounded mean by which its nonzero symbols exceed the mean of their row.
#[inline(always)]
fn column_means(symbols: &[u8], row_len: usize, row_means: &[u8], has_zeros: bool) -> Vec<i32> {
    let (mut sums, mut presents) = (vec![0i64; row_len], vec![0i64; row_len]);
    let (mut few_sums, mut few_presents) = (vec![0i16; row_len], vec![0i16; row_len]);
    for (symbols, row_means) in
        symbols.chunks(row_len.saturating_mul(FEW_ROWS)).zip(row_means.chunks(FEW_ROWS))
    {
        for (row, &mean) in symbols.chunks(row_len).zip(row_means) {
            let mean = i16::from(mean);
            if has_zeros {
                for ((sum, present), &symbol) in few_sums.iter_mut().zip(&mut few_presents).zip(row) {
                    let here = i16::from(symbol != 0);
                    *sum += if symbol == 0 { 0 } else { i16::from(symbol) - mean };
                    *present += here;
                }
            } else {
                few_sums.iter_mut().zip(row).for_each(|(sum, &symbol)| *sum += i16::from(symbol) - mean);
                // The last row may be shorter.
                few_presents[..row.len()].iter_mut().for_each(|present| *present += 1);
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

    fn split(symbols: &[u8], row_len: usize, columns: bool) -> (Referenced, Vec<u8>) {
        let mut residuals = vec![0; symbols.len()];
        (Referenced::split(symbols, row_len, columns, &mut residuals), residuals)
    }

    /// Restores the symbols in pieces of this length.
    fn joined((split, mut residuals): (Referenced, Vec<u8>), piece: usize) -> Vec<u8> {
        let Referenced { row_len, zero_apart, rows, columns } = split;
        let mut references = References::new(row_len, zero_apart, rows, columns);
        residuals.chunks_mut(piece).for_each(|piece| references.add_to(piece));
        residuals
    }

    #[test]
    fn a_sum_of_rows_and_columns_leaves_one_symbol() {
        let symbols: Vec<u8> = (0..64u8).flat_map(|r| (0..32u8).map(move |c| 40 + r % 9 + c % 5)).collect();
        let split = split(&symbols, 32, true);
        let distinct = crate::codes::count(&split.1).iter().filter(|&&c| c > 0).count();
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
                let split = split(&symbols, 8, columns);
                assert_eq!(split.0.zero_apart, zeros);
                let expected: Vec<u8> = (0..64).map(|i| if is_zero(i) { 0 } else { 128 }).collect();
                assert_eq!(split.1, expected, "{symbol}, {zeros}, {columns}");
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

    /// Modulo 255, as the spec has it, for all symbols and references.
    #[test]
    fn steps_in_bytes_are_those_of_the_spec() {
        for a in 0..255u8 {
            for b in 0..255u8 {
                assert_eq!(u16::from(plus_255(a, b)), (u16::from(a) + u16::from(b)) % 255, "{a} {b}");
                let residual = 1 + (u16::from(a) + 255 - u16::from(b)) % 255;
                assert_eq!(u16::from(minus_apart(a + 1, b)), residual, "{a} {b}");
                assert_eq!(plus_apart(residual as u8, b), a + 1, "{a} {b}");
            }
            assert_eq!((minus_apart(0, a), plus_apart(0, a)), (0, 0));
        }
    }

    /// Sums of 16 bits hold for so many rows only.
    #[test]
    fn columns_of_many_rows_have_the_same_references_as_of_few() {
        for zeros in [false, true] {
            let symbol = |i: usize| match i % 5 {
                0 if zeros => 0,
                column => {
                    if (i / 5).is_multiple_of(9) {
                        255
                    } else {
                        1 + 60 * (column % 2) as u8
                    }
                }
            };
            let symbols = |rows: usize| Vec::from_iter((0..5 * rows).map(symbol));
            let columns = |rows| split(&symbols(rows), 5, true).0.columns;
            assert_eq!(columns(9), columns(9 * 500), "{zeros}");
        }
    }

    proptest! {
        #[test]
        fn symbols_come_back(
            symbols in proptest::collection::vec(any::<u8>(), 1..400),
            row_len in 1usize..50,
            columns: bool,
            piece in 1usize..200,
        ) {
            prop_assert_eq!(joined(split(&symbols, row_len, columns), piece), symbols);
        }
    }
}
