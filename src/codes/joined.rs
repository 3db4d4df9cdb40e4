//! Integers of few bits, joined to symbols (spec, section 7.1): the coder takes about as long for a symbol of
//! two, four or eight integers as for one.

use super::ints::{Coder, SegmentKind};
use super::read::EntropyReader;
use super::{PIECE, Profile, cut::Cost, cut::Cut, cut::Tally};
use crate::bits::{Cursor, put_packed, unpack};
use crate::error::{Error, FormatErrorKind, Result};

/// Integers joined to symbols, which are in memory of the caller.
pub(crate) struct Joined {
    /// Number of integers in a symbol.
    pub(super) per: u8,
    pub(super) cut: Cut,
}

/// Fewest integers that are joined: of fewer, no other table than the smallest pays.
const FEWEST: usize = 1 << 12;

impl Joined {
    /// Joins integers of up to `width` bits into `symbols`, as many in a symbol as it can hold. Returns the
    /// counts of the integers, too, which follow from those of the symbols.
    pub(super) fn new(
        coder: &mut Coder<'_>,
        values: &[u8],
        width: u32,
        symbols: &mut Vec<u8>,
    ) -> Option<(Self, Tally)> {
        let per = match width {
            _ if values.len() < FEWEST || coder.profile == Profile::Core => return None,
            1 => 8,
            2 => 4,
            3 | 4 => 2,
            _ => return None,
        };
        Some(Self::with(per, coder, values, symbols))
    }

    fn with(per: u8, coder: &mut Coder<'_>, values: &[u8], symbols: &mut Vec<u8>) -> (Self, Tally) {
        symbols.clear();
        put_packed(symbols, values, 8 / u32::from(per));
        let (joined, each) = Tally::joined(symbols, per, values.len());
        let cut = coder.of_joined(per, |coder| Cut::cheapest(coder, joined));
        (Self { per, cut }, each)
    }

    /// Returns the form with the most integers in a symbol that costs at most 0.3 % more than `cost`, which
    /// its speed is worth. `values` and `symbols` are those of [`Self::new`].
    pub(super) fn worth(
        mut self,
        cost: Cost,
        coder: &mut Coder<'_>,
        values: &[u8],
        symbols: &mut Vec<u8>,
    ) -> Option<Self> {
        let most = cost.saturating_add(cost / 1000 * 3);
        while self.cut.cost > most {
            if self.per == 2 {
                return None;
            }
            // Fewer combinations have a smaller table, and frequencies that fit better.
            (self, _) = Self::with(self.per / 2, coder, values, symbols);
        }
        Some(self)
    }
}

/// Joined integers that are decoded piece by piece.
pub(super) struct JoinedReader<'a> {
    per: usize,
    symbols: EntropyReader<'a>,
    offset: u64,
}

impl<'a> JoinedReader<'a> {
    /// Begins after the coding of `n` integers, and moves the cursor to their end.
    pub(super) fn new<'c: 'a>(cursor: &mut Cursor<'c>, tables: &'a [super::Table], n: u64) -> Result<Self> {
        let per = read_per(cursor)?;
        let offset = cursor.offset();
        let symbols = EntropyReader::new(cursor, SegmentKind::Rans, tables, n.div_ceil(per.into()))?;
        Ok(Self { per: per.into(), symbols, offset })
    }

    /// Decodes the next integers: a multiple of [`PIECE`], or the last ones.
    pub(super) fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        let mut symbols = [0; PIECE / 2];
        let (per, width) = (self.per, 8 / self.per);
        for out in out.chunks_mut(PIECE) {
            let symbols = &mut symbols[..out.len().div_ceil(per)];
            self.symbols.fill(symbols)?;
            unpack(symbols, width as u32, out);
            let used = out.len() % per * width;
            if used != 0 && symbols.last().is_some_and(|last| last >> used != 0) {
                return Err(Error::format(FormatErrorKind::NonzeroPadding, self.offset));
            }
        }
        Ok(())
    }
}

/// Reads the number of integers in a symbol.
pub(super) fn read_per(cursor: &mut Cursor<'_>) -> Result<u8> {
    let offset = cursor.offset();
    match cursor.u8()? {
        per @ (2 | 4 | 8) => Ok(per),
        other => Err(Error::out_of_range("integers in a symbol", other.into(), offset)),
    }
}
