//! A matrix as two factors (spec, values/low-rank.md; PowerSGD, arXiv 1905.13727).

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
        let rank = in_memory(*rank);
        for (row, p) in out.chunks_mut(in_memory(*cols)).zip(p.chunks(rank)) {
            for (value, q) in row.iter_mut().zip(q.chunks(rank)) {
                let sum = p.iter().zip(q).fold(0.0, |sum, (&p, &q)| sum + f64::from(p) * f64::from(q));
                *value = to_number(sum);
            }
        }
        Ok(())
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
