//! Keys of the units of a row, in the forms that the kernels need, and the sums of units with them.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use crate::arch::sums::{self, GROUP, Keys, Limbs, ROWS};
use crate::arch::widest;
use crate::digest::grid::Unit;
use crate::digest::keys::{BIAS, LANES, Lanes, P, fold, lows};

/// Keys of a row's units.
pub(super) struct Columns<'a> {
    unit: Unit,
    plain: &'a [[u32; LANES]],
    /// Limbs of whole groups of words; of bytes and nibbles in `bytes`.
    words: Cow<'a, [Limbs<3>]>,
    bytes: Cow<'a, [Limbs<2>]>,
    prefixes: Prefixes,
}

/// Sums of consecutive keys: of those before each group.
pub(super) struct Prefixes(Vec<Lanes>);

impl Prefixes {
    pub(super) fn of(keys: &[[u32; LANES]]) -> Self {
        let mut sum = [0; LANES];
        let before = keys.chunks(GROUP).map(|group| {
            let before = sum;
            sum = group.iter().fold(sum, |sum, keys| added(sum, *keys));
            before
        });
        Self(before.collect())
    }

    /// Returns the sum of a range of these `keys`, times the number that is added to each unit.
    pub(super) fn bias(&self, keys: &[[u32; LANES]], range: Range<usize>) -> Lanes {
        let before = |end: usize| {
            let group = (end / GROUP).min(self.0.len() - 1);
            keys[group * GROUP..end].iter().fold(self.0[group], |sum, keys| added(sum, *keys))
        };
        let (start, end) = (before(range.start), before(range.end));
        std::array::from_fn(|lane| fold(fold(end[lane] + P - start[lane]) * BIAS))
    }
}

impl<'a> Columns<'a> {
    /// Returns the factors of the low 16 bits of an index on the last axis.
    pub(super) fn last_axis(unit: Unit) -> &'static Self {
        static WORDS: OnceLock<Columns<'_>> = OnceLock::new();
        static BYTES: OnceLock<Columns<'_>> = OnceLock::new();
        static NIBBLES: OnceLock<Columns<'_>> = OnceLock::new();
        let table = match unit {
            Unit::Word => &WORDS,
            Unit::Byte => &BYTES,
            Unit::Nibble => &NIBBLES,
        };
        table.get_or_init(|| Self::of(unit, lows(0).map_or(&[], |table| table)))
    }

    /// Returns these keys. Each is less than 2^31 - 1.
    pub(super) fn of(unit: Unit, keys: &'a [[u32; LANES]]) -> Self {
        let (words, bytes) = match unit {
            Unit::Word => (limbs(keys, sums::BASE), Vec::new()),
            _ => (Vec::new(), limbs(keys, sums::BYTE_BASE)),
        };
        Self { unit, plain: keys, words: words.into(), bytes: bytes.into(), prefixes: Prefixes::of(keys) }
    }

    /// Returns the keys of a range.
    pub(super) fn keys(&self, range: Range<usize>) -> &[[u32; LANES]] {
        &self.plain[range]
    }

    /// Returns the sum of the keys of a range, times the number that is added to each unit.
    pub(super) fn bias(&self, range: Range<usize>) -> Lanes {
        self.prefixes.bias(self.plain, range)
    }

    /// Returns, for each of at most [`ROWS`] rows, the sum of its units times the keys of a range. `starts`:
    /// the first unit of each row in `data`.
    pub(super) fn sums(
        &self,
        data: &[u8],
        starts: &[usize],
        range: Range<usize>,
        scratch: &mut Vec<u8>,
    ) -> [Lanes; ROWS] {
        let mut sums = [[0i64; LANES]; ROWS];
        // Whole groups of keys, and what is before and after them.
        let first = range.start.next_multiple_of(GROUP).min(range.end);
        let groups = (range.end - first) / GROUP;
        let last = first + groups * GROUP;
        for (start, sums) in starts.iter().zip(&mut sums) {
            let ends = (range.start..first).chain(last..range.end);
            for at in ends {
                let value = self.unit.value(data, start + at - range.start);
                (0..LANES).for_each(|lane| sums[lane] += value * i64::from(self.plain[at][lane]));
            }
        }
        if groups > 0 {
            let starts = starts.iter().map(|start| start + first - range.start);
            let groups = first / GROUP..first / GROUP + groups;
            self.add_groups(data, starts, groups, scratch, &mut sums);
        }
        // Sums have at most 2^62, so adding a multiple of the prime makes them positive.
        sums.map(|lanes| lanes.map(|sum| fold((sum as u64).wrapping_add(P << 32))))
    }

    /// Adds the sums of whole groups, the first of which has the number `number` in the table.
    fn add_groups(
        &self,
        data: &[u8],
        starts: impl Iterator<Item = usize> + Clone,
        groups: Range<usize>,
        scratch: &mut Vec<u8>,
        sums: &mut [[i64; LANES]; ROWS],
    ) {
        let plain = &self.plain[groups.start * GROUP..groups.end * GROUP];
        let (form, len) = (widest(), groups.len() * GROUP);
        let count = starts.clone().count();
        match self.unit {
            Unit::Word => {
                let mut rows: [&[[u8; 2 * GROUP]]; ROWS] = [&[]; ROWS];
                rows.iter_mut()
                    .zip(starts)
                    .for_each(|(row, start)| *row = data[2 * start..][..2 * len].as_chunks().0);
                sums::words(form, &rows[..count], Keys { plain, limbs: &self.words[groups] }, sums);
            }
            Unit::Nibble if starts.clone().all(|start| start.is_multiple_of(2)) => {
                let mut rows: [&[[u8; GROUP / 2]]; ROWS] = [&[]; ROWS];
                rows.iter_mut()
                    .zip(starts)
                    .for_each(|(row, start)| *row = data[start / 2..][..len / 2].as_chunks().0);
                sums::nibbles(form, &rows[..count], Keys { plain, limbs: &self.bytes[groups] }, sums);
            }
            unit => {
                if unit == Unit::Nibble {
                    scratch.resize(count * len, 0);
                    let rows = scratch.chunks_exact_mut(len).zip(starts.clone());
                    rows.for_each(|(row, start)| expand(data, start, row));
                }
                let mut rows: [&[[u8; GROUP]]; ROWS] = [&[]; ROWS];
                for ((row, start), number) in rows.iter_mut().zip(starts).zip(0..) {
                    *row = match unit {
                        Unit::Nibble => scratch[number * len..][..len].as_chunks().0,
                        _ => data[start..][..len].as_chunks().0,
                    };
                }
                sums::bytes(form, &rows[..count], Keys { plain, limbs: &self.bytes[groups] }, sums);
            }
        }
    }
}

/// Writes nibbles from number `start` on to a byte each.
pub(super) fn expand(data: &[u8], start: usize, out: &mut [u8]) {
    if start.is_multiple_of(2) && out.len().is_multiple_of(2) {
        let pairs = out.as_chunks_mut::<2>().0.iter_mut();
        pairs.zip(&data[start / 2..]).for_each(|(pair, byte)| *pair = [byte & 15, byte >> 4]);
    } else {
        let places = out.iter_mut().zip(start..);
        places.for_each(|(out, at)| *out = Unit::Nibble.value(data, at) as u8);
    }
}

fn added(sum: Lanes, keys: [u32; LANES]) -> Lanes {
    std::array::from_fn(|lane| fold(sum[lane] + u64::from(keys[lane])))
}

/// Returns the limbs of whole groups of keys.
fn limbs<const L: usize>(keys: &[[u32; LANES]], base: i64) -> Vec<Limbs<L>> {
    let group = |keys: &[[u32; LANES]; GROUP]| {
        let mut limbs = [[[0; GROUP]; L]; LANES];
        for (at, keys) in keys.iter().enumerate() {
            for (limbs, key) in limbs.iter_mut().zip(keys) {
                limbs.iter_mut().zip(digits::<L>(*key, base)).for_each(|(limb, digit)| limb[at] = digit);
            }
        }
        Limbs(limbs)
    };
    keys.as_chunks().0.iter().map(group).collect()
}

/// Returns the limbs of a key, each of which is between -(base / 2) and base / 2.
#[inline(always)]
pub(super) fn digits<const L: usize>(key: u32, base: i64) -> [i16; L] {
    let key = i64::from(key);
    let mut rest = if key > P as i64 / 2 { key - P as i64 } else { key };
    std::array::from_fn(|_| {
        let low = (rest + base / 2).rem_euclid(base) - base / 2;
        rest = (rest - low) / base;
        low as i16
    })
}
