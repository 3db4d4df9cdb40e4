//! Keys of narrow rows, in the forms that the kernel of columns needs, and the sums of such rows.

use std::ops::Range;
use std::sync::OnceLock;

use crate::arch::sums::columns::{self, Pair, READ, RowKeys, joined};
use crate::arch::{sums, widest};
use crate::digest::columns::{Prefixes, digits, expand};
use crate::digest::grid::Unit;
use crate::digest::keys::{LANES, Lanes, P, fold, lows};

/// Fewest rows for which a pass over the columns takes less time than one over the rows.
pub(super) const FEW: u64 = 32;

/// Units of a row from which on it is long enough for a sum of its own.
pub(super) const WIDE: usize = 256;

/// Keys of the low 16 bits of an index on the axis of rows.
pub(super) struct Rows {
    unit: Unit,
    plain: &'static [[u32; LANES]],
    prefixes: Prefixes,
    /// Limbs for words; of bytes and nibbles in `bytes`.
    words: Vec<Pair<3>>,
    bytes: Vec<Pair<2>>,
}

/// Rows of equal length at equal distances, which may be parts of longer ones.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) data: &'a [u8],
    /// First unit of the first row.
    pub(super) start: usize,
    pub(super) stride: usize,
    /// Units of a row.
    pub(super) len: usize,
}

impl Rows {
    /// Returns the keys of an axis, if there is a table of them.
    pub(super) fn of_axis(unit: Unit, axis: usize) -> Option<&'static Self> {
        static TABLES: [[OnceLock<Rows>; 3]; 2] = [const { [const { OnceLock::new() }; 3] }; 2];
        let tables = TABLES.get(axis.checked_sub(1)?)?;
        let table = match unit {
            Unit::Word => &tables[0],
            Unit::Byte => &tables[1],
            Unit::Nibble => &tables[2],
        };
        let plain = lows(axis)?;
        Some(table.get_or_init(|| {
            let (words, bytes) = match unit {
                Unit::Word => (pairs(plain, sums::BASE), Vec::new()),
                _ => (Vec::new(), pairs(plain, sums::BYTE_BASE)),
            };
            Self { unit, plain, prefixes: Prefixes::of(plain), words, bytes }
        }))
    }

    /// Returns the sum of the rows with the keys of `range`, whose units have the keys `columns`.
    pub(super) fn sum(&self, place: Place<'_>, range: Range<usize>, columns: &[[u32; LANES]]) -> Lanes {
        let bias = self.prefixes.bias(self.plain, range.clone());
        let each = self.columns(place, range).into_iter().zip(columns);
        let sums = each.fold([0; LANES], |sum: Lanes, (own, keys)| {
            std::array::from_fn(|lane| {
                // A sum has at most 2^62, so adding a multiple of the prime makes it positive.
                let own = fold((own[lane] as u64).wrapping_add(P << 32)) + bias[lane];
                let product = own * u64::from(keys[lane]);
                sum[lane] + (product & P) + (product >> 31)
            })
        });
        sums.map(fold)
    }

    /// Returns the sums of the columns, without what is added to each unit.
    fn columns(&self, place: Place<'_>, range: Range<usize>) -> Vec<[i64; LANES]> {
        let Place { data, start, stride, len } = place;
        let (width, mut sums, mut copy) = (self.width(), vec![[0; LANES]; len], Vec::new());
        let direct = self.direct(place, range.clone());
        if !direct.is_empty() {
            let start = width * (start + (direct.start - range.start) * stride);
            self.add(columns::Rows { data, start, stride: width * stride }, direct.clone(), &mut sums);
        }
        // All others are copied first, with rows of zeros to make pairs.
        for rows in [range.start..direct.start, direct.end..range.end].into_iter().flat_map(chunks) {
            let (pairs, wide) = (rows.start & !1..rows.end.next_multiple_of(2), len.max(READ));
            copy.resize(pairs.len() * wide * width, 0);
            for row in pairs.clone() {
                let to = &mut copy[(row - pairs.start) * wide * width..][..len * width];
                if !rows.contains(&row) {
                    to.fill(0);
                    continue;
                }
                let from = start + (row - range.start) * stride;
                match self.unit {
                    Unit::Nibble => expand(data, from, to),
                    _ => to.copy_from_slice(&data[from * width..][..len * width]),
                }
            }
            self.add(columns::Rows { data: &copy, start: 0, stride: wide * width }, pairs, &mut sums);
        }
        sums
    }

    /// Returns those rows, in pairs that begin with an even number, that the kernel reads where they are.
    fn direct(&self, Place { data, start, stride, len }: Place<'_>, range: Range<usize>) -> Range<usize> {
        let first = range.start.next_multiple_of(2).min(range.end);
        if self.unit == Unit::Nibble {
            return first..first;
        }
        let last = (data.len() / self.width()).checked_sub(start + len.max(READ));
        let readable = last.map_or(0, |last| last / stride.max(1) + 1);
        let end = (range.start + readable).min(range.end) & !1;
        first..end.max(first)
    }

    /// Adds the sums of the columns of whole pairs of rows.
    fn add(&self, rows: columns::Rows<'_>, range: Range<usize>, sums: &mut [[i64; LANES]]) {
        let (plain, pairs) = (&self.plain[range.clone()], range.start / 2..range.end / 2);
        match self.unit {
            Unit::Word => {
                let keys = RowKeys { plain, pairs: &self.words[pairs] };
                columns::add::<2, 3>(widest(), rows, keys, sums);
            }
            _ => {
                let keys = RowKeys { plain, pairs: &self.bytes[pairs] };
                columns::add::<1, 2>(widest(), rows, keys, sums);
            }
        }
    }

    /// Returns the bytes of a unit, as the kernel reads it.
    fn width(&self) -> usize {
        if self.unit == Unit::Word { 2 } else { 1 }
    }
}

/// Divides rows into those that are copied at once.
fn chunks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    /// An even number, the most that the kernel takes at a time.
    const ROWS: usize = 100;
    let end = range.end;
    let starts = range.step_by(ROWS);
    starts.map(move |start| start..end.min(start + ROWS))
}

/// Returns the limbs of the keys of pairs of rows.
fn pairs<const L: usize>(keys: &[[u32; LANES]], base: i64) -> Vec<Pair<L>> {
    let pair = |[first, second]: &[[u32; LANES]; 2]| -> Pair<L> {
        std::array::from_fn(|lane| {
            let (first, second) = (digits::<L>(first[lane], base), digits::<L>(second[lane], base));
            std::array::from_fn(|limb| joined([first[limb], second[limb]]))
        })
    };
    keys.as_chunks().0.iter().map(pair).collect()
}
