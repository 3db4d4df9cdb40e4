//! Integers of any size as a token and raw bits (spec, section 7.1).

use crate::arch::threads::{SHARE, each};
use crate::arch::{self, Kernel};
use crate::bits::PlaneReader;
use crate::codes::count::count_symbols;
use crate::codes::integers::Tokens;
use crate::codes::table::Counts;
use crate::limits::in_memory;

/// Number of tokens.
pub(crate) const TOKENS: u8 = 128;

/// Returns the token of a value.
#[inline]
pub(crate) fn token(value: u64) -> u8 {
    // Without a branch, because values are too random for one.
    let exponent = (value | 1).ilog2();
    (2 * exponent + (value >> exponent.saturating_sub(1) & 1) as u32) as u8
}

/// Returns the number of raw bits that follow a token below [`TOKENS`].
#[inline]
pub(crate) const fn raw_bits(token: u8) -> u32 {
    (token as u32 / 2).saturating_sub(1)
}

/// Returns a bit for each of up to 64 tokens, from the lowest on: whether it has raw bits. Few have, and
/// which of them is too random for branches.
pub(crate) fn with_raw(tokens: &[u8]) -> u64 {
    let (eights, rest) = tokens.as_chunks::<8>();
    let of_eight = |eight: [u8; 8]| {
        // The highest bit of each byte that is at least the first token with raw bits. No token has this bit.
        let high = (u64::from_le_bytes(eight) + ONES * u64::from(128 - FIRST_WITH_RAW)) >> 7 & ONES;
        // Moves bit 8 i to bit 56 + i.
        high.wrapping_mul(0x0102_0408_1020_4080) >> 56
    };
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let eights = eights.iter().copied().chain((!rest.is_empty()).then_some(last));
    eights.zip((0..).step_by(8)).fold(0, |all, (eight, at)| all | of_eight(eight) << at)
}

/// One in each byte.
const ONES: u64 = u64::MAX / 255;

/// The first token with raw bits.
const FIRST_WITH_RAW: u8 = 4;

/// Returns the raw bits of a value.
#[inline]
pub(crate) fn raw(value: u64, raw_bits: u32) -> u64 {
    value & ((1 << raw_bits) - 1)
}

/// Returns the value of a token below [`TOKENS`] and its raw bits.
#[inline]
pub(crate) fn value(token: u8, raw: u64) -> u64 {
    SMALLEST[usize::from(token % TOKENS)] | raw
}

/// The smallest value of each token. A table, because tokens are too random for branches.
static SMALLEST: [u64; 128] = {
    let mut values = [0; 128];
    values[1] = 1;
    let mut token = 2u8;
    while token < TOKENS {
        values[in_memory(token as u64)] = (2 | (token & 1) as u64) << raw_bits(token);
        token += 1;
    }
    values
};

/// Returns the number of raw bits of tokens below [`TOKENS`].
pub(crate) fn raw_len(tokens: &[u8]) -> u64 {
    // Their sum has 16 bits.
    let piece = |tokens: &[u8]| tokens.iter().map(|&token| raw_bits(token) as u16).sum::<u16>();
    tokens.chunks(1 << 10).map(|tokens| u64::from(piece(tokens))).sum()
}

/// Reads the values of tokens below [`TOKENS`] from a plane of their raw bits.
pub(crate) struct Read<'a, 'p> {
    pub(crate) tokens: &'a [u8],
    pub(crate) raw: &'a mut PlaneReader<'p>,
    pub(crate) values: &'a mut [u64],
}

impl Kernel for Read<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { tokens, raw, values } = self;
        let (eights, tokens) = tokens.as_chunks::<8>();
        let (of_eights, values) = values.as_chunks_mut::<8>();
        for (tokens, values) in eights.iter().zip(of_eights) {
            let bits = tokens.map(|token| raw_bits(token) as u8);
            // Byte i has the raw bits of the tokens up to i, if no token has many.
            let sums = u64::from_le_bytes(bits).wrapping_mul(ONES).to_le_bytes();
            let [four, eight] = [sums[3], sums[7]];
            let has_many = u64::from_le_bytes(bits) & (ONES * 0xe0) != 0;
            if has_many || four > 57 || eight - four > 57 {
                values.iter_mut().zip(tokens).for_each(|(v, &t)| *v = value(t, raw.get(raw_bits(t))));
                continue;
            }
            let words = [raw.ahead(0), raw.ahead(four.into())];
            for i in 0..8 {
                let start = u64::from(sums[i] - bits[i] - if i < 4 { 0 } else { four });
                let (token, bits) = (u64::from(tokens[i]), u64::from(bits[i]));
                let top = token & 1 | u64::from(token > 1) << 1;
                values[i] = top << bits | words[i / 4] >> start & !(u64::MAX << bits);
            }
            raw.skip(eight.into());
        }
        values.iter_mut().zip(tokens).for_each(|(v, &t)| *v = value(t, raw.get(raw_bits(t))));
    }
}

/// Returns the raw bits of all values whose tokens are counted, from the first token on.
pub(crate) fn raw_cost(counts: &[u64]) -> u64 {
    counts.iter().zip(0..=255u8).map(|(&count, token)| count * u64::from(raw_bits(token))).sum()
}

/// Returns the cost of `values` as tokens, table included, in 1/65536 bit, for choosing between codes.
pub(crate) fn token_cost(values: &[u64]) -> u64 {
    cost_of_counts(&count_tokens(values))
}

/// Returns the counts of the tokens of `values`.
pub(crate) fn count_tokens(values: &[u64]) -> Counts {
    let count = |values: &[u64]| {
        let (mut counts, mut tokens) = ([0; 256], [0; PIECE]);
        for values in values.chunks(PIECE) {
            let tokens = &mut tokens[..values.len()];
            arch::run(Tokens { values, out: tokens });
            counts.iter_mut().zip(count_symbols(tokens)).for_each(|(sum, n)| *sum += u64::from(n));
        }
        counts
    };
    let mut counts = [0; 256];
    each(values.chunks(SHARE), count)
        .iter()
        .for_each(|share| counts.iter_mut().zip(share).for_each(|(sum, n)| *sum += n));
    counts
}

/// Values whose tokens are counted at a time: they stay in the first-level cache.
const PIECE: usize = 1 << 13;

/// Returns the cost of values whose tokens have these counts, as [`token_cost`] does.
pub(crate) fn cost_of_counts(counts: &Counts) -> u64 {
    match crate::codes::Table::from_counts(counts) {
        Some(table) => ((table.bits() + raw_cost(counts) + 48) << 16)
            .saturating_add(table.cost(counts).unwrap_or(u64::MAX)),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::PlaneWriter;
    use crate::codes::{Coder, Entropy, Role, write_entropy_tokens};

    #[test]
    fn tokens_of_small_and_large_values() {
        let tokens = [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 3),
            (4, 4),
            (5, 4),
            (6, 5),
            (7, 5),
            (8, 6),
            (12, 7),
            (u64::MAX, 127),
        ];
        for (v, t) in tokens {
            assert_eq!(token(v), t);
            assert_eq!(value(t, raw(v, raw_bits(t))), v);
        }
        for v in 0..1 << 20 {
            let t = token(v);
            assert!(t < TOKENS && (v == 0 || token(v - 1) <= t));
            assert_eq!(value(t, raw(v, raw_bits(t))), v);
        }
        for shift in 0..64 {
            for v in [1u64 << shift, (1 << shift) - 1, (1 << shift) + 1] {
                let t = token(v);
                assert!(t < TOKENS);
                assert_eq!(value(t, raw(v, raw_bits(t))), v);
            }
        }
    }

    #[test]
    fn values_are_read_from_their_raw_bits_in_every_form() {
        let word =
            |i: u64| u64::from(crate::random::word(5, 0, i)) << 32 | u64::from(crate::random::word(6, 0, i));
        let check = |values: &[u64]| {
            let tokens: Vec<u8> = values.iter().map(|&v| token(v)).collect();
            let mut bytes = Vec::new();
            let mut writer = PlaneWriter::new(&mut bytes);
            for &v in values {
                let bits = raw_bits(token(v));
                writer.put(raw(v, bits), bits);
            }
            writer.finish();
            assert_eq!(raw_len(&tokens).div_ceil(8), bytes.len() as u64);
            for form in arch::forms() {
                let (mut plane, mut read) = (PlaneReader::new(&bytes, 0), vec![1; values.len()]);
                arch::run_as(form, Read { tokens: &tokens, raw: &mut plane, values: &mut read });
                assert!(read == values, "{form:?}: {} values from {:?} on", values.len(), values.first());
                plane.finish("raw bits").unwrap();
            }
        };
        // Shifts: few raw bits, more than a word of eight tokens, and so many that their sums overflow.
        for (least, spread) in [(58, 6), (50, 14), (44, 8), (30, 34), (0, 64), (0, 1)] {
            for len in [0, 1, 7, 8, 9, 64, 2001] {
                check(&Vec::from_iter((0..len).map(|i| word(i) >> (least + word(i + 5000) % spread))));
            }
        }
        // Halves of eight tokens with as many raw bits as a word holds from any bit on, one more and one
        // fewer, and so many in the second half that the sums of all eight overflow.
        let with = |bits: u64| 2 << bits | word(bits) & ((1 << bits) - 1);
        let halves =
            [[14, 14, 14, 14], [14, 14, 14, 15], [14, 14, 15, 15], [2, 3, 2, 3], [62; 4], [31, 26, 0, 0]];
        for (first, second) in
            halves.iter().flat_map(|first| halves.iter().map(move |second| (first, second)))
        {
            // They begin at each bit of a byte.
            for before in 0..8 {
                let bits = [before, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(*first).chain(*second);
                check(&Vec::from_iter(bits.map(with)));
            }
        }
    }

    #[test]
    fn tokens_with_raw_bits_are_found() {
        let tokens: Vec<u8> = (0..64).map(|i| (crate::random::word(3, 0, i) % 9) as u8).collect();
        let all: Vec<u8> = (0..TOKENS).collect();
        let pieces = (0..=64).map(|len| &tokens[..len]).chain(all.chunks(64));
        for tokens in pieces {
            let expected = tokens.iter().rev().fold(0, |all, &t| all << 1 | u64::from(raw_bits(t) > 0));
            assert_eq!(with_raw(tokens), expected, "{tokens:?}");
        }
    }

    /// The estimate ignores all lanes but one, and the lengths of varints.
    #[test]
    fn the_cost_of_tokens_is_close_to_their_bytes() {
        let word = |i: u64| u64::from(crate::random::word(1, 2, i));
        let few = (0..250).map(|i| word(i) >> 20).collect();
        let many = (0..20_000).map(|i| word(i) >> (word(i + 40_000) % 12 + 20)).collect();
        for values in [vec![5; 100], few, many] {
            let (mut coder, mut bytes) = (Coder::new(Entropy::Auto, &[], None), Vec::new());
            write_entropy_tokens(&mut bytes, &mut coder, Role::Gaps, &values);
            let cost = token_cost(&values) >> 19;
            let len = bytes.len() as u64;
            assert!(cost.abs_diff(len) < 4 + len / 100, "{cost}, {len}");
        }
        assert_eq!((token_cost(&[]), cost_of_counts(&[0; 256])), (0, 0));
    }
}
