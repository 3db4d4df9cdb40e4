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

    /// Restores the symbols.
    pub(crate) fn into_symbols(self) -> Vec<u8> {
        arch::run(Join(self))
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
        split.each_row(|symbol, reference, zero_apart| {
            if !zero_apart {
                symbol.wrapping_sub(reference as u8)
            } else if symbol == 0 {
                0
            } else {
                // symbol - 1 and the reference are below 255 and 510.
                let difference = u16::from(symbol) - 1 + 510 - reference;
                (difference % 255) as u8 + 1
            }
        });
        split
    }

    #[inline(always)]
    fn join(mut self) -> Vec<u8> {
        self.each_row(|residual, reference, zero_apart| {
            if !zero_apart {
                residual.wrapping_add(reference as u8)
            } else if residual == 0 {
                0
            } else {
                ((u16::from(residual) - 1 + reference) % 255) as u8 + 1
            }
        });
        self.residuals
    }

    /// Replaces each residual by `f` of the residual, the sum of its references, and `zero_apart`.
    #[inline(always)]
    fn each_row(&mut self, f: impl Fn(u8, u16, bool) -> u8) {
        let zero_apart = self.zero_apart;
        for (row, &reference) in self.residuals.chunks_mut(self.row_len).zip(&self.rows) {
            if self.columns.is_empty() {
                row.iter_mut().for_each(|s| *s = f(*s, reference.into(), zero_apart));
            } else {
                for (s, &column) in row.iter_mut().zip(&self.columns) {
                    *s = f(*s, u16::from(reference) + u16::from(column), zero_apart);
                }
            }
        }
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

struct Join(Referenced);

impl Kernel for Join {
    type Output = Vec<u8>;

    #[inline(always)]
    fn call(self) -> Vec<u8> {
        self.0.join()
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

    #[test]
    fn a_sum_of_rows_and_columns_leaves_one_symbol() {
        let symbols: Vec<u8> = (0..64u8).flat_map(|r| (0..32u8).map(move |c| 40 + r % 9 + c % 5)).collect();
        let split = Referenced::new(&symbols, 32, true);
        let distinct = crate::codes::rans::count(&split.residuals).iter().filter(|&&c| c > 0).count();
        assert!(distinct <= 3, "{distinct}");
        assert_eq!(split.into_symbols(), symbols);
    }

    proptest! {
        #[test]
        fn symbols_come_back(symbols in proptest::collection::vec(any::<u8>(), 1..400), row_len in 1usize..50, columns: bool) {
            prop_assert_eq!(Referenced::new(&symbols, row_len, columns).into_symbols(), symbols);
        }
    }
}
