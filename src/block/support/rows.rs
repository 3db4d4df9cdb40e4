//! Whole rows (spec, supports/rows.md).

use crate::bits::{Cursor, put_varint};
use crate::block::Sets;
use crate::block::space::Surroundings;
use crate::block::support::{Facts, Kind, Positions, SupportId, Validated, is_ascending, sparse};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, Result};

/// Whole rows of `row_len` elements; `row_len` divides n.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    /// Elements in a row, at least 1.
    pub row_len: u64,
    /// The rows, strictly ascending.
    pub rows: Vec<u64>,
}

impl Rows {
    pub(super) const ID: SupportId = SupportId(6);
}

impl Kind for Rows {
    fn facts(&self) -> Facts {
        Facts { weight: 2 * self.rows.len() as u64, memory: size_of_val(self.rows.as_slice()) as u64 }
    }

    fn check(&self, n: u64) -> Result<()> {
        match n.checked_rem(self.row_len) {
            Some(0) if is_ascending(&self.rows, n / self.row_len) => Ok(()),
            _ => Err(Error::inconsistent("rows do not fit the index space")),
        }
    }

    fn count(&self, _: &Surroundings<'_>) -> Result<u64> {
        let count = (self.rows.len() as u64).checked_mul(self.row_len);
        count.ok_or(Error::inconsistent("more rows than the space has"))
    }

    fn write(
        &self,
        out: &mut Vec<u8>,
        coder: &mut Coder<'_>,
        around: &Surroundings<'_>,
        positions: Positions,
    ) -> Result<SupportId> {
        let mut inner = Vec::new();
        let id = sparse::write(&mut inner, coder, &self.rows, around.space.len() / self.row_len, positions)?;
        put_varint(out, self.row_len);
        put_varint(out, id.0);
        out.append(&mut inner);
        Ok(Self::ID)
    }

    fn read(
        cursor: &mut Cursor<'_>,
        decoder: &mut Decoder<'_>,
        _: SupportId,
        around: &Surroundings<'_>,
    ) -> Result<Self> {
        let n = around.space.len();
        let (row_len, inner) = read_head(cursor, n)?;
        Ok(Self { row_len, rows: sparse::read(cursor, decoder, inner, n / row_len)? })
    }

    fn validate(cursor: &mut Cursor<'_>, _: SupportId, around: &Surroundings<'_>) -> Result<Validated> {
        let n = around.space.len();
        let (row_len, inner) = read_head(cursor, n)?;
        let rows = sparse::validate(cursor, inner, n / row_len)?;
        Ok(Validated::new(row_len.saturating_mul(rows), rows.saturating_mul(2)))
    }

    fn for_each_run(&self, _: u64, _: &Sets, f: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        self.rows.iter().try_for_each(|&r| f(r * self.row_len, self.row_len))
    }
}

/// Reads the fields before the positions of the rows: the length of a row, and the kind of the positions.
fn read_head(cursor: &mut Cursor<'_>, n: u64) -> Result<(u64, SupportId)> {
    let offset = cursor.offset();
    let row_len = cursor.varint_in("row_len", 1, u64::MAX)?;
    if !n.is_multiple_of(row_len) {
        return Err(Error::out_of_range("row_len", row_len, offset));
    }
    let inner = cursor.varint_in("inner support", SupportId::GAPS_RICE.0, SupportId::BITMAP.0)?;
    Ok((row_len, SupportId(inner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fit_their_space() {
        let check = |row_len, rows: &[u64], n| Rows { row_len, rows: rows.to_vec() }.check(n).is_ok();
        assert!(check(4, &[0, 2], 12) && check(12, &[0], 12) && check(1, &[11], 12) && check(4, &[], 0));
        let wrong: [(u64, &[u64], u64); 6] =
            [(0, &[], 12), (0, &[], 0), (5, &[0], 12), (4, &[3], 12), (4, &[1, 1], 12), (4, &[2, 0], 12)];
        for (row_len, rows, n) in wrong {
            assert!(!check(row_len, rows, n), "{row_len} {rows:?} {n}");
        }
    }

    #[test]
    fn rows_have_elements_also_in_an_empty_space() {
        for n in [0, 12] {
            let head = |row_len| read_head(&mut Cursor::new(&[row_len, 2], 0, "rows"), n);
            assert_eq!(head(0).unwrap_err().name(), "out_of_range");
            assert_eq!(head(1).unwrap(), (1, SupportId::GAPS_RICE));
        }
    }
}
