//! Normative construction of frequency tables (spec, section 7.2), shared by both directions.

use crate::arch::{self, Kernel};
use crate::bits::{Cursor, PlaneReader, PlaneWriter};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

/// Binary logarithm of the sum of a table's frequencies.
pub(crate) const FREQ_BITS: u32 = 12;
/// Sum of a table's frequencies.
pub(crate) const TOTAL: u32 = 1 << FREQ_BITS;
/// Bits of a frequency's mantissa on the wire.
const MANTISSA_BITS: u32 = 3;

/// Number of occurrences of each symbol.
pub(crate) type Counts = [u64; 256];

/// Frequencies of symbols, with sum [`TOTAL`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    freq: [u16; 256],
    first: u8,
    last: u8,
    rest: u8,
}

impl Table {
    /// Returns the canonical table for `counts`; `None` if all counts are zero.
    pub(crate) fn from_counts(counts: &Counts) -> Option<Self> {
        let first = counts.iter().position(|&c| c > 0)?;
        let last = counts.iter().rposition(|&c| c > 0)?;
        // Most tables have a few neighbouring symbols.
        let range = first..last + 1;
        let counts = &counts[range.clone()];
        let Totals { sum: total, most, distinct } = arch::run(TotalsOf(counts));
        // The first of the most frequent symbols.
        let rest = counts.iter().position(|&c| c == most)?;
        let (mut exact, mut freq) = ([0; 256], [0; 256]);
        let exact = &mut exact[..range.len()];
        arch::run(Shares { counts, scale: u64::from(TOTAL) - distinct, total, exact });
        exact[rest] = 0;
        let freqs = &mut freq[range];
        let mut sum = arch::run(Rounded { exact, half: HALF, freq: freqs });
        if sum >= TOTAL {
            sum = arch::run(Rounded { exact, half: 0, freq: freqs });
        }
        freqs[rest] = TOTAL.saturating_sub(sum) as u16;
        let rest = first + rest;
        Some(Self { freq, first: first as u8, last: last as u8, rest: rest as u8 })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut plane = PlaneWriter::new(out);
        plane.put(self.first.into(), 8);
        plane.put((self.last - self.first).into(), 8);
        plane.put((self.rest - self.first).into(), 8);
        for symbol in (self.first..=self.last).filter(|&s| s != self.rest) {
            match self.freq(symbol) {
                0 => plane.put(0, 4),
                freq => {
                    let exponent = freq.ilog2();
                    let mantissa_bits = exponent.min(MANTISSA_BITS);
                    plane.put(u64::from(exponent) + 1, 4);
                    plane.put(u64::from((freq ^ 1 << exponent) >> (exponent - mantissa_bits)), mantissa_bits);
                }
            }
        }
        plane.finish();
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let offset = cursor.offset();
        let bad = || Error::format(FormatErrorKind::BadTable, offset);
        // The table's length is known only after reading it: read from all bytes left, then take the bytes
        // used. Zeros that the plane returns past its end have no meaning.
        let mut ahead = cursor.clone();
        let bytes = ahead.take_rest();
        let available = bytes.len() as u64 * 8;
        let within = |bits: u64| match bits <= available {
            true => Ok(()),
            false => Err(Error::format(FormatErrorKind::LengthMismatch { field: "frequency table" }, offset)),
        };
        let mut plane = PlaneReader::new(bytes, offset);
        let mut bits = 24u64;
        within(bits)?;
        let first = plane.get(8) as u8;
        let last = first.checked_add(plane.get(8) as u8).ok_or_else(bad)?;
        let rest = first.checked_add(plane.get(8) as u8).filter(|&r| r <= last).ok_or_else(bad)?;
        let mut freq = [0u16; 256];
        let mut sum = 0;
        for symbol in (first..=last).filter(|&s| s != rest) {
            bits += 4;
            within(bits)?;
            let exponent = match plane.get(4) {
                0 => continue,
                x @ 1..=12 => x as u32 - 1,
                _ => return Err(bad()),
            };
            let mantissa_bits = exponent.min(MANTISSA_BITS);
            bits += u64::from(mantissa_bits);
            within(bits)?;
            let coded = (1 << exponent) + ((plane.get(mantissa_bits) as u32) << (exponent - mantissa_bits));
            freq[usize::from(symbol)] = coded as u16;
            sum += coded;
        }
        if sum >= TOTAL {
            return Err(bad());
        }
        freq[usize::from(rest)] = (TOTAL - sum) as u16;
        if freq[usize::from(first)] == 0 || freq[usize::from(last)] == 0 {
            return Err(bad());
        }
        let offset = cursor.offset();
        let mut plane = PlaneReader::new(cursor.take(bits.div_ceil(8))?, offset);
        for step in std::iter::repeat_n(64, in_memory(bits / 64)).chain([(bits % 64) as u32]) {
            plane.get(step);
        }
        plane.finish("frequency table")?;
        Ok(Self { freq, first, last, rest })
    }

    /// Returns a symbol's frequency, 0 if the table does not contain it.
    pub(crate) fn freq(&self, symbol: u8) -> u32 {
        self.freq[usize::from(symbol)].into()
    }

    /// Whether the table has only one symbol.
    pub(crate) fn is_of_one(&self) -> bool {
        self.first == self.last
    }

    /// Returns, for each symbol, the sum of the frequencies of all smaller symbols.
    pub(crate) fn starts(&self) -> [u16; 256] {
        let mut sum = 0;
        self.freq.map(|f| {
            let start = sum;
            sum += f;
            start
        })
    }

    /// Returns the bits of the table on the wire.
    pub(crate) fn bits(&self) -> u64 {
        let each = |symbol| match self.freq(symbol) {
            0 => 4,
            freq => u64::from(4 + freq.ilog2().min(MANTISSA_BITS)),
        };
        24 + (self.first..=self.last).filter(|&s| s != self.rest).map(each).sum::<u64>()
    }

    /// Returns the cost of symbols with these `counts`, in 1/65536 bit; `None` if the table lacks one of
    /// them.
    pub(crate) fn cost(&self, counts: &Counts) -> Option<u64> {
        let range = usize::from(self.first)..=usize::from(self.last);
        let outside = counts[..*range.start()].iter().chain(&counts[*range.end() + 1..]);
        if outside.fold(0, |any, count| any | count) != 0 {
            return None;
        }
        let (mut cost, mut missing) = (0u64, false);
        for (&count, &freq) in counts[range.clone()].iter().zip(&self.freq[range]) {
            missing |= freq == 0 && count > 0;
            cost = cost.saturating_add(count.saturating_mul(LOG_COST[usize::from(freq)].into()));
        }
        if missing { None } else { Some(cost) }
    }

    /// Returns the same as [`Self::cost`] for a few symbols with their counts.
    pub(crate) fn cost_of(&self, symbols: &[(u8, u64)]) -> Option<u64> {
        let mut costs = symbols.iter().map(|&(symbol, count)| match self.freq[usize::from(symbol)] {
            0 => None,
            freq => Some(count.saturating_mul(LOG_COST[usize::from(freq)].into())),
        });
        costs.try_fold(0u64, |all, cost| Some(all.saturating_add(cost?)))
    }
}

/// The sum of counts, the largest of them, and how many are not 0.
struct Totals {
    sum: u64,
    most: u64,
    distinct: u64,
}

/// Finds the [`Totals`] of counts.
struct TotalsOf<'a>(&'a [u64]);

impl Kernel for TotalsOf<'_> {
    type Output = Totals;

    #[inline(always)]
    fn call(self) -> Totals {
        self.0.iter().fold(Totals { sum: 0, most: 0, distinct: 0 }, |all, &count| Totals {
            sum: all.sum + count,
            most: all.most.max(count),
            distinct: all.distinct + u64::from(count > 0),
        })
    }
}

/// Computes `max(1, count * scale / total)` of each symbol that occurs, and 0 of the others.
struct Shares<'a> {
    counts: &'a [u64],
    scale: u64,
    total: u64,
    exact: &'a mut [u32],
}

impl Kernel for Shares<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { counts, scale, total, exact } = self;
        if total >= 1 << 32 {
            for (exact, &count) in exact.iter_mut().zip(counts) {
                let share = u128::from(count) * u128::from(scale) / u128::from(total);
                *exact = if count > 0 { (share as u32).max(1) } else { 0 };
            }
            return;
        }
        // Divisions of floats have vector forms. The product is exact, and the quotient below 2^12: rounded,
        // it falls short of the next integer by 2^-32, or is one.
        let (scale, total) = (scale as f64, total as f64);
        for (exact, &count) in exact.iter_mut().zip(counts) {
            let share = (f64::from(count as u32) * scale / total) as i32 as u32;
            *exact = if count > 0 { share.max(1) } else { 0 };
        }
    }
}

/// Returns a cost that symbols with these counts have at least with any table, in 1/65536 bit: their entropy,
/// which is found much faster than the canonical table. Also returns the number of symbols that occur.
pub(crate) fn least_cost(counts: &Counts) -> (u64, u64) {
    let total = log2(counts.iter().sum::<u64>().max(1));
    let mut sums = (0u64, 0);
    for &count in counts.iter().filter(|&&count| count > 0) {
        // Logarithms are rounded down.
        let each = total.saturating_sub(log2(count) + 1);
        sums = (sums.0.saturating_add(count.saturating_mul(each.into())), sums.1 + 1);
    }
    sums
}

/// Half of the last place of a float's mantissa if that has [`MANTISSA_BITS`].
const HALF: u32 = 1 << (22 - MANTISSA_BITS);

/// Rounds each frequency to one that a table can represent, after adding `half` to its mantissa, and returns
/// the sum. A float of 32 bits holds a frequency exactly, with the mantissa in its highest bits.
struct Rounded<'a> {
    exact: &'a [u32],
    half: u32,
    freq: &'a mut [u16],
}

impl Kernel for Rounded<'_> {
    type Output = u32;

    #[inline(always)]
    fn call(self) -> u32 {
        let mut sum = 0;
        for (freq, &exact) in self.freq.iter_mut().zip(self.exact) {
            let bits = (exact as i32 as f32).to_bits() + self.half;
            let rounded = f32::from_bits(bits & !(2 * HALF - 1)) as i32 as u32;
            // Half of nothing is nothing.
            *freq = rounded as u16;
            sum += rounded;
        }
        sum
    }
}

/// `-log2(f / 4096)` in units of 1/65536 bit for each frequency f. An integer logarithm, so that every
/// machine makes the same choices.
static LOG_COST: [u32; in_memory(TOTAL as u64) + 1] = log_costs();

const fn log_costs() -> [u32; in_memory(TOTAL as u64) + 1] {
    let mut costs = [0; in_memory(TOTAL as u64) + 1];
    let mut f = 1;
    while f <= in_memory(TOTAL as u64) {
        costs[f] = (FREQ_BITS << 16) - log2_of(f as u64);
        f += 1;
    }
    costs
}

/// Returns the binary logarithm of `n` >= 1, rounded down, in units of 1/65536.
#[inline]
pub(crate) fn log2(n: u64) -> u32 {
    match LOG_COST.get(usize::try_from(n).unwrap_or(usize::MAX)) {
        Some(cost) => (FREQ_BITS << 16) - cost,
        None => log2_of(n),
    }
}

const fn log2_of(n: u64) -> u32 {
    let whole = n.ilog2();
    // Squaring x in [1, 2) doubles its logarithm: each time it passes 2 the next bit is a one.
    let mut x = (n << (63 - whole)) >> 32;
    let mut fraction = 0;
    let mut bit = 0;
    while bit < 16 {
        x = (x * x) >> 31;
        fraction <<= 1;
        if x >= 1 << 32 {
            x >>= 1;
            fraction |= 1;
        }
        bit += 1;
    }
    (whole << 16) + fraction
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts_of(pairs: &[(u8, u64)]) -> Counts {
        let mut counts = [0; 256];
        pairs.iter().for_each(|&(s, c)| counts[s as usize] += c);
        counts
    }

    fn read(bytes: &[u8]) -> Result<Table> {
        let mut cursor = Cursor::new(bytes, 0, "table");
        let table = Table::read(&mut cursor)?;
        cursor.finish()?;
        Ok(table)
    }

    #[test]
    fn logarithms() {
        assert_eq!((LOG_COST[4096], LOG_COST[2048], LOG_COST[1]), (0, 1 << 16, 12 << 16));
        let exact = -(3f64 / 4096.0).log2() * 65536.0;
        assert!((f64::from(LOG_COST[3]) - exact).abs() < 2.0);
    }

    proptest! {
        #[test]
        fn no_table_costs_less_than_the_entropy(
            counts in prop::collection::vec(prop_oneof![Just(0u64), 1..9u64, 1..5000u64, 1..1u64 << 40], 1..257),
        ) {
            let counts: Counts = std::array::from_fn(|symbol| counts.get(symbol).copied().unwrap_or(0));
            if let Some(table) = Table::from_counts(&counts) {
                let (least, distinct) = least_cost(&counts);
                let cost = table.cost(&counts);
                prop_assert!(least <= cost.unwrap());
                let pairs: Vec<(u8, u64)> = (0..=255).zip(counts).filter(|(_, count)| *count > 0).collect();
                prop_assert_eq!(table.cost_of(&pairs), cost);
                prop_assert!(24 + 4 * (distinct - 1) <= table.bits());
            }
        }
    }

    #[test]
    fn one_symbol_has_everything() {
        let table = Table::from_counts(&counts_of(&[(200, 5)])).unwrap();
        assert_eq!((table.freq(200), table.bits()), (TOTAL, 24));
        assert!(Table::from_counts(&[0; 256]).is_none());
    }

    #[test]
    fn symbols_that_a_table_lacks_have_no_cost() {
        let table = Table::from_counts(&counts_of(&[(10, 5), (12, 5)])).unwrap();
        for (symbol, is_present) in [(9, false), (10, true), (11, false), (12, true), (13, false)] {
            let cost = table.cost(&counts_of(&[(10, 1), (symbol, 1)]));
            assert_eq!(cost.is_some(), is_present, "{symbol}");
        }
    }

    #[test]
    fn malformed_tables_are_refused() {
        for bytes in [
            &[250u8, 10, 0][..],            // last > 255
            &[0, 1, 2],                     // rest > last
            &[0, 1, 0, 0b1101],             // x = 13
            &[0, 1, 0, 0],                  // last has frequency 0
            &[0, 2, 0, 0b1100_1100, 0b111], // x = 15
        ] {
            assert_eq!(read(bytes).unwrap_err().name(), "bad_table", "{bytes:?}");
        }
        assert_eq!(read(&[0, 1, 0, 0b1111_0001]).unwrap_err().name(), "nonzero_padding");
        assert!(read(&[0, 1]).is_err());
    }

    /// Packs fields, each of a value and a width.
    fn packed(fields: &[(u64, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut plane = PlaneWriter::new(&mut bytes);
        fields.iter().for_each(|&(value, width)| plane.put(value, width));
        plane.finish();
        bytes
    }

    /// TAB-2: `rest`, the symbol between two others, has a frequency.
    #[test]
    fn coded_frequencies_leave_some_for_the_rest() {
        for (x, y, expected) in
            [(11, 7, Ok(4096 - 2048 - 1920)), (12, 0, Err("bad_table")), (12, 1, Err("bad_table"))]
        {
            let bytes = packed(&[(0, 8), (2, 8), (1, 8), (12, 4), (0, 3), (x, 4), (y, 3)]);
            let rest = read(&bytes).map(|table| table.freq(1)).map_err(|e| e.name());
            assert_eq!(rest, expected, "{x}, {y}");
        }
    }

    /// A truncated table is reported as such, whatever zeros in place of its missing bits would mean.
    #[test]
    fn every_beginning_of_a_table_is_too_short() {
        let full: Vec<(u8, u64)> = (0..=255).map(|s| (s, 1 + u64::from(s) * u64::from(s))).collect();
        let sparse: Vec<(u8, u64)> = (0..32).map(|s| (8 * s, 1)).collect();
        let tables = [full, sparse, vec![(3, 1), (4, 1)]].map(|pairs| {
            let mut bytes = Vec::new();
            Table::from_counts(&counts_of(&pairs)).unwrap().write(&mut bytes);
            bytes
        });
        // Half a frequency, with which the sum would be too large.
        let half = packed(&[(0, 8), (3, 8), (0, 8), (12, 4), (0, 3), (2, 4), (0, 1), (12, 4), (0, 3)]);
        // A number of symbols that would end above 255.
        let above = vec![250, 10, 0];
        for bytes in tables.into_iter().chain([half, above]) {
            for len in 0..bytes.len() {
                assert_eq!(read(&bytes[..len]).unwrap_err().name(), "length_mismatch", "{len} of {bytes:?}");
            }
        }
    }

    /// Section 7.2, step 3: 68 is rounded to 72 at first, which makes the sum more than 4095.
    #[test]
    fn frequencies_are_rounded_down_if_their_sum_is_too_large() {
        let mut unequal = vec![(70, 64), (71, 166)];
        unequal.extend((0..56).map(|s| (s, 68)));
        for (pairs, rest) in [((0..59).map(|s| (s, 5)).collect(), 0), (unequal, 71)] {
            let counts = counts_of(&pairs);
            let table = Table::from_counts(&counts).unwrap();
            for (symbol, _) in pairs {
                let expected = if symbol == rest { TOTAL - (pairs_of(&counts) - 1) * 64 } else { 64 };
                assert_eq!(table.freq(symbol), expected, "{symbol}");
            }
            let mut bytes = Vec::new();
            table.write(&mut bytes);
            assert_eq!(read(&bytes).unwrap(), table);
        }
    }

    /// Number of symbols that occur.
    fn pairs_of(counts: &Counts) -> u32 {
        counts.iter().map(|&c| u32::from(c > 0)).sum()
    }

    /// The canonical table as section 7.2 defines it.
    fn by_definition(counts: &Counts) -> [u32; 256] {
        let round = |freq: u32, up: bool| {
            let spare = freq.ilog2().saturating_sub(MANTISSA_BITS);
            (freq + if up && spare > 0 { 1 << (spare - 1) } else { 0 }) >> spare << spare
        };
        let total: u128 = counts.iter().map(|&c| u128::from(c)).sum();
        let distinct = counts.iter().filter(|c| **c > 0).count() as u128;
        let most = counts.iter().max().unwrap();
        let rest = counts.iter().position(|c| c == most).unwrap();
        let coded = |up| {
            let each = |s: usize| match counts[s] {
                0 => 0,
                _ if s == rest => 0,
                c => round(((u128::from(c) * (4096 - distinct) / total) as u32).max(1), up),
            };
            std::array::from_fn(each)
        };
        let mut freqs: [u32; 256] = coded(true);
        if freqs.iter().sum::<u32>() > 4095 {
            freqs = coded(false);
        }
        freqs[rest] = 4096 - freqs.iter().sum::<u32>();
        freqs
    }

    #[test]
    fn tables_are_those_of_the_definition() {
        let word = |case: u64, i: u64| u64::from(crate::random::word(6, case, i));
        for case in 0..600 {
            let (kinds, shift) = (1 + word(case, 1000) % 256, word(case, 1001) % 32);
            let wide = if case % 7 == 0 { 20 } else { 0 };
            let mut counts = [0; 256];
            for i in 0..kinds {
                let count = (word(case, i) >> shift >> (word(case, 300 + i) % 20)).min((1 << 24) - 1);
                counts[(i * 77 % 256) as usize] = count << wide;
            }
            counts[word(case, 1002) as usize % 256] += 1 + (word(case, 1003) & 0xffff);
            let table = Table::from_counts(&counts).unwrap();
            assert_eq!(std::array::from_fn(|s| table.freq(s as u8)), by_definition(&counts), "{case}");
        }
    }

    #[test]
    fn only_the_proportions_of_counts_matter() {
        let pairs = [(3, 5), (4, 800), (90, 17), (91, 1)];
        let table = Table::from_counts(&counts_of(&pairs));
        for shift in [1, 40, 50, 53] {
            assert_eq!(
                Table::from_counts(&counts_of(&pairs.map(|(s, c)| (s, c << shift)))),
                table,
                "{shift}"
            );
        }
    }

    #[test]
    fn the_cost_of_symbols_by_hand() {
        let table = Table::from_counts(&counts_of(&[(1, 1), (2, 1)])).unwrap();
        for (pairs, cost) in
            [(&[][..], Some(0)), (&[(1, 3), (2, 5)], Some(8 << 16)), (&[(1, 3), (3, 1)], None)]
        {
            assert_eq!((table.cost(&counts_of(pairs)), table.cost_of(pairs)), (cost, cost));
        }
    }

    proptest! {
        #[test]
        fn tables_come_back(pairs in proptest::collection::vec((any::<u8>(), 1u64..1 << 40), 1..300)) {
            let counts = counts_of(&pairs);
            let table = Table::from_counts(&counts).unwrap();
            prop_assert_eq!((0..=255u8).map(|s| table.freq(s)).sum::<u32>(), TOTAL);
            prop_assert!((0..256).all(|s| (counts[s] > 0) == (table.freq(s as u8) > 0)));
            let mut bytes = Vec::new();
            table.write(&mut bytes);
            prop_assert_eq!(bytes.len() as u64, table.bits().div_ceil(8));
            prop_assert_eq!(read(&bytes).unwrap(), table);
        }
    }
}
