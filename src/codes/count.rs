//! Counts of symbols.

use crate::arch::{self, Kernel};
use crate::codes::table::Counts;

/// Counts the symbols.
pub(crate) fn count(symbols: &[u8]) -> Counts {
    let mut counts = [0u64; 256];
    for part in symbols.chunks(1 << 30) {
        counts.iter_mut().zip(count_symbols(part)).for_each(|(sum, n)| *sum += u64::from(n));
    }
    counts
}

/// Counts fewer than 2^32 symbols.
pub(crate) fn count_symbols(symbols: &[u8]) -> [u32; 256] {
    // Clearing and adding many tables takes longer than counting few symbols.
    match symbols.len() {
        0..FEW => return count_in::<1>(symbols),
        FEW..SHORT => return count_in::<4>(symbols),
        _ => {}
    }
    let mut counts = [0; 256];
    for part in symbols.chunks(PART) {
        let of_part = match before(part) {
            Some(before) => count_pairs(part, before),
            None => count_in::<8>(part),
        };
        counts.iter_mut().zip(of_part).for_each(|(sum, n)| *sum += n);
    }
    counts
}

const FEW: usize = 1 << 8;
const SHORT: usize = 1 << 13;
/// Symbols of which the pairs are counted in 16 bits.
const PART: usize = 1 << 16;

/// Counts symbols in several tables, so that a run of one symbol does not wait for its last increment.
fn count_in<const TABLES: usize>(symbols: &[u8]) -> [u32; 256] {
    let mut tables = [[0u32; 256]; TABLES];
    let (rows, rest) = symbols.as_chunks::<TABLES>();
    for row in rows {
        for (table, &symbol) in tables.iter_mut().zip(row) {
            table[usize::from(symbol)] += 1;
        }
    }
    rest.iter().for_each(|&symbol| tables[0][usize::from(symbol)] += 1);
    let mut counts = tables[0];
    for table in &tables[1..] {
        counts.iter_mut().zip(table).for_each(|(sum, n)| *sum += n);
    }
    counts
}

/// Bits of a symbol of a pair.
const BITS: u32 = 6;
/// Number of pairs of such symbols.
const PAIRS: usize = 1 << (2 * BITS);

/// Returns the number before the smallest symbol above 0, if the symbols above 0 span fewer than 64 numbers.
fn before(symbols: &[u8]) -> Option<u8> {
    let (least, most) = arch::run(Span(symbols));
    (most - least < (1 << BITS) - 1).then(|| least.wrapping_sub(1))
}

/// Finds the smallest symbol above 0, and the largest; both are 0 if there is none.
struct Span<'a>(&'a [u8]);

impl Kernel for Span<'_> {
    type Output = (u8, u8);

    #[inline(always)]
    fn call(self) -> (u8, u8) {
        let (mut least, mut most) = (u8::MAX, 0);
        for &symbol in self.0 {
            least = symbol.wrapping_sub(1).min(least);
            most = symbol.max(most);
        }
        (least.wrapping_add(1), most)
    }
}

/// Counts up to [`PART`] symbols two at a time: an increment of memory takes longer than all the rest. The
/// symbols are 0, or above `before` by 1 to 63.
fn count_pairs(symbols: &[u8], before: u8) -> [u32; 256] {
    /// Pairs that are found before they are counted.
    const PIECE: usize = 1 << 10;
    // Two tables, so that a run of one pair does not wait for its last increment.
    let mut tables = [[0u16; PAIRS]; 2];
    let mut pairs = [0u16; PIECE];
    let (whole, last) = symbols.as_chunks::<2>();
    for symbols in whole.chunks(PIECE) {
        let pairs = &mut pairs[..symbols.len()];
        arch::run(Pairs { symbols: symbols.as_flattened(), before, pairs });
        let (twos, one) = pairs.as_chunks::<2>();
        for two in twos {
            for (table, &pair) in tables.iter_mut().zip(two) {
                table[usize::from(pair) % PAIRS] += 1;
            }
        }
        one.iter().for_each(|&pair| tables[0][usize::from(pair) % PAIRS] += 1);
    }
    let of_codes = arch::run(Halves(&tables));
    let mut counts = [0; 256];
    counts[0] = of_codes[0];
    for (code, &count) in (1..).zip(&of_codes[1..]).filter(|(_, count)| **count > 0) {
        counts[usize::from(before) + code] = count;
    }
    last.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
    counts
}

/// Finds pairs of symbols, after subtraction of `before` from those above 0.
struct Pairs<'a> {
    symbols: &'a [u8],
    before: u8,
    pairs: &'a mut [u16],
}

impl Kernel for Pairs<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { symbols, before, pairs } = self;
        for (pair, symbols) in pairs.iter_mut().zip(symbols.as_chunks::<2>().0) {
            let [low, high] = [symbols[0].saturating_sub(before), symbols[1].saturating_sub(before)];
            *pair = u16::from(low) | u16::from(high) << BITS;
        }
    }
}

/// Adds up the counts of pairs by either of their symbols. There are at most 2^15 pairs.
struct Halves<'a>(&'a [[u16; PAIRS]; 2]);

impl Kernel for Halves<'_> {
    type Output = [u32; 1 << BITS];

    #[inline(always)]
    fn call(self) -> [u32; 1 << BITS] {
        let [a, b] = self.0;
        let (mut lows, mut counts) = ([0u16; 1 << BITS], [0u32; 1 << BITS]);
        let rows = a.as_chunks::<{ 1 << BITS }>().0.iter().zip(b.as_chunks::<{ 1 << BITS }>().0);
        for ((a, b), high) in rows.zip(&mut counts) {
            let mut sum = 0u16;
            for ((low, a), b) in lows.iter_mut().zip(a).zip(b) {
                *low += a + b;
                sum += a + b;
            }
            *high = sum.into();
        }
        for (count, low) in counts.iter_mut().zip(lows) {
            *count += u32::from(low);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::word;

    fn one_by_one(symbols: &[u8]) -> [u32; 256] {
        let mut counts = [0; 256];
        symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
        counts
    }

    #[test]
    fn every_span_of_symbols_is_counted() {
        for len in [0, 1, 5, FEW - 1, FEW, SHORT - 1, SHORT, SHORT + 1, PART, PART + 3, 3 * PART + SHORT] {
            for (least, span) in [(0, 1), (0, 64), (0, 65), (1, 63), (1, 64), (193, 63), (192, 64), (0, 256)]
            {
                for zeros in [false, true] {
                    let symbol = |i: usize| match zeros && word(1, 1, i as u64).is_multiple_of(3) {
                        true => 0,
                        false => (least + word(1, 0, i as u64) % span) as u8,
                    };
                    let symbols: Vec<u8> = (0..len).map(symbol).collect();
                    assert_eq!(count_symbols(&symbols), one_by_one(&symbols), "{len} {least} {span} {zeros}");
                }
            }
        }
    }

    #[test]
    fn many_of_one_symbol_are_counted() {
        for symbol in [0, 1, 255] {
            let symbols = vec![symbol; 2 * PART];
            assert_eq!(count_symbols(&symbols), one_by_one(&symbols));
        }
    }
}
