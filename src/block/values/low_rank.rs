//! A matrix as two factors (spec, values/low-rank.md; PowerSGD, arXiv 1905.13727).

use crate::arch::{self, Kernel};
use crate::bits::{Cursor, put_varint};
use crate::block::values::nested::{self, Nested};
use crate::block::values::{
    Content, Facts, Kind, Structure, Validated, ValueSpace, Values, ValuesId, to_number,
};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::{Budget, in_memory};

/// A matrix as the product `left * right^T`; the support is all, rows * cols = n.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRank {
    /// Rows of the matrix.
    pub rows: u64,
    /// Columns of the matrix.
    pub cols: u64,
    /// The rank, at least 1.
    pub rank: u64,
    /// rows x rank numbers, row-major, of a kind that has a code for each value.
    pub left: Box<Values>,
    /// cols x rank numbers, row-major, of a kind that has a code for each value.
    pub right: Box<Values>,
}

impl Kind for LowRank {
    const ID: ValuesId = ValuesId(12);

    fn facts(&self) -> Facts<'_> {
        let (left, right) = (self.left.facts(), self.right.facts());
        Facts {
            content: Content::Numbers {
                no_sum: "the sum of two products of factors is not one of their rank",
            },
            structure: Structure::Matrix,
            weight: left.weight + right.weight,
            memory: left.memory.saturating_add(right.memory),
        }
    }

    fn label(&self) -> String {
        format!("low-rank {}", self.rank)
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        let Self { rows, cols, rank, left, right } = self;
        let left_len = rows.checked_mul(*rank).filter(|_| *rank > 0);
        let (Some(left_len), Some(right_len)) = (left_len, cols.checked_mul(*rank)) else {
            return Err(Error::inconsistent("rank"));
        };
        if rows.checked_mul(*cols) != Some(space.count) {
            return Err(Error::inconsistent("rows and columns of a low-rank matrix"));
        }
        for dim in [rows, cols, rank] {
            put_varint(out, *dim);
        }
        nested::write_sized(out, coder, left, nested::CODED, left_len, &[*rank])?;
        nested::write_rest(out, coder, right, nested::CODED, right_len, &[*rank])
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let offset = cursor.offset();
        space.check_is_all(offset)?;
        let LowRankHead { rows, cols, rank, left_len, right_len } = LowRankHead::read(cursor, space)?;
        decoder.budget.reserve_elements(left_len.saturating_add(right_len), offset)?;
        // The product takes `rank` steps for each element. They are charged like elements, to bound the time.
        decoder.budget.reserve_elements(space.count.saturating_mul(rank), offset)?;
        let left = take_left(cursor, left_len)?.read(decoder)?;
        let right = take_right(cursor, right_len)?.read(decoder)?;
        Ok(Self { rows, cols, rank, left, right })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        let LowRankHead { left_len, right_len, .. } = LowRankHead::read(cursor, space)?;
        let left = take_left(cursor, left_len)?.validate()?;
        let right = take_right(cursor, right_len)?.validate()?;
        Ok(Validated::matrix(left.saturating_add(right)))
    }

    fn numbers(&self, _: &[u64], budget: &Budget, out: &mut [f32]) -> Result<()> {
        let Self { rows, cols, rank, left, right } = self;
        let factor = |values: &Values, len: u64| -> Result<Vec<f32>> {
            let mut numbers = vec![0.0; budget.reserve_items::<f32>(len * rank, 0)?];
            values.numbers(&[], budget, &mut numbers)?;
            Ok(numbers)
        };
        if out.is_empty() {
            return Ok(());
        }
        let (p, q) = (factor(left, *rows)?, factor(right, *cols)?);
        let (rank, cols) = (in_memory(*rank), in_memory(*cols));
        let whole = if rank <= MOST { cols / STRIP * STRIP } else { 0 };
        for first in (0..whole).step_by(STRIP) {
            arch::run(Strip { left: &p, right: &q[first * rank..][..STRIP * rank], rank, out, cols, first });
        }
        for (row, p) in out.chunks_mut(cols).zip(p.chunks(rank)) {
            for (value, q) in row[whole..].iter_mut().zip(q[whole * rank..].chunks(rank)) {
                let sum = p.iter().zip(q).fold(0.0, |sum, (&p, &q)| sum + f64::from(p) * f64::from(q));
                *value = to_number(sum);
            }
        }
        Ok(())
    }
}

/// Columns that are multiplied at once: some vectors of sums.
const STRIP: usize = 32;
/// Largest rank of which the numbers of a strip, in binary64, stay in the first cache.
const MOST: usize = 32;

/// The product in a strip of columns. Each sum is in the order of the factors' columns, as one alone would
/// be.
struct Strip<'a> {
    left: &'a [f32],
    /// Rows of the right factor.
    right: &'a [f32],
    rank: usize,
    out: &'a mut [f32],
    cols: usize,
    first: usize,
}

impl Kernel for Strip<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let mut factors = [[0f64; STRIP]; MOST];
        for (column, numbers) in self.right.chunks_exact(self.rank).enumerate() {
            numbers.iter().zip(&mut factors).for_each(|(q, factor)| factor[column] = f64::from(*q));
        }
        for (row, p) in self.out.chunks_exact_mut(self.cols).zip(self.left.chunks_exact(self.rank)) {
            let mut sums = [0f64; STRIP];
            for (p, factor) in p.iter().zip(&factors) {
                sums.iter_mut().zip(factor).for_each(|(sum, q)| *sum += f64::from(*p) * q);
            }
            let values = row[self.first..][..STRIP].iter_mut();
            values.zip(sums).for_each(|(value, sum)| *value = to_number(sum));
        }
    }
}

/// The fields before the factors, and the lengths that follow from them.
struct LowRankHead {
    rows: u64,
    cols: u64,
    rank: u64,
    left_len: u64,
    right_len: u64,
}

impl LowRankHead {
    fn read(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let offset = cursor.offset();
        let rows = cursor.varint()?;
        let cols = cursor.varint()?;
        let rank = cursor.varint_in("rank", 1, u64::MAX)?;
        if rows.checked_mul(cols) != Some(space.count) {
            return Err(Error::format(FormatErrorKind::CountMismatch { field: "rows and columns" }, offset));
        }
        let (Some(left_len), Some(right_len)) = (rows.checked_mul(rank), cols.checked_mul(rank)) else {
            return Err(Error::out_of_range("rank", rank, offset));
        };
        Ok(Self { rows, cols, rank, left_len, right_len })
    }
}

fn take_left<'a>(cursor: &mut Cursor<'a>, len: u64) -> Result<Nested<'a>> {
    Nested::take_sized(cursor, "left factor", nested::CODED, len)
}

fn take_right<'a>(cursor: &mut Cursor<'a>, len: u64) -> Result<Nested<'a>> {
    Nested::take_rest(cursor, "right factor", nested::CODED, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::values::tests::budget;
    use crate::block::{Floats, Stored};

    #[test]
    fn strips_and_single_columns_give_the_same_bits() {
        let number = |i: u64| f32::from_bits(crate::random::word(5, 1, i) & 0x7fff_ffff | (i as u32) << 31);
        for (rows, cols, rank) in [(3u64, 32u64, 4u64), (5, 100, 1), (2, 70, 33), (1, 31, 2), (4, 64, 32)] {
            let numbers = |first: u64, len: u64| (first..first + len).map(number).collect::<Vec<f32>>();
            let (p, q) = (numbers(0, rows * rank), numbers(1000, cols * rank));
            let factor = |numbers: &[f32]| {
                let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                Box::new(Values::Floats(Floats { stored: Stored::F32, bytes }))
            };
            let matrix = LowRank { rows, cols, rank, left: factor(&p), right: factor(&q) };
            let mut out = vec![0.0; in_memory(rows * cols)];
            matrix.numbers(&[], &budget(u64::MAX), &mut out).unwrap();
            for (at, value) in out.iter().enumerate() {
                let (row, col) = (at / in_memory(cols), at % in_memory(cols));
                let mut sum = 0.0;
                for t in 0..in_memory(rank) {
                    let (p, q) = (p[row * in_memory(rank) + t], q[col * in_memory(rank) + t]);
                    sum += f64::from(p) * f64::from(q);
                }
                assert_eq!(value.to_bits(), to_number(sum).to_bits(), "{rows} x {cols}, rank {rank}: {at}");
            }
        }
    }

    #[test]
    fn a_matrix_without_rows_or_columns_has_no_numbers() {
        let factor = |len| {
            let bytes = vec![0; 4 * in_memory(len)];
            Box::new(Values::Floats(Floats { stored: Stored::F32, bytes }))
        };
        for (rows, cols) in [(3u64, 0u64), (0, 3), (0, 0)] {
            let (left, right) = (factor(rows), factor(cols));
            let empty = LowRank { rows, cols, rank: 1, left, right };
            empty.numbers(&[], &budget(u64::MAX), &mut []).unwrap();
        }
    }
}
