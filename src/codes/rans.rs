//! One segment of entropy-coded symbols: interleaved rANS with 32-bit states, 16-bit words and 12-bit frequencies
//! (spec, section 7.3).

use crate::bits::{Cursor, put_u16, put_u32, put_varint};
use crate::codes::table::{Counts, FREQ_BITS, Table};
use crate::error::{Error, FormatErrorKind, Result};

/// The state in which an encoder begins and a decoder ends.
const INITIAL: u32 = 1 << 16;

/// Counts the symbols.
pub(crate) fn count(symbols: &[u8]) -> Counts {
    // Four tables, so that a run of one symbol does not wait for its own last increment.
    let mut tables = [[0u32; 256]; 4];
    let mut counts = [0u64; 256];
    for part in symbols.chunks(1 << 30) {
        let quads = part.chunks_exact(4);
        quads.remainder().iter().for_each(|&s| counts[s as usize] += 1);
        for quad in quads {
            for (table, &symbol) in tables.iter_mut().zip(quad) {
                table[symbol as usize] += 1;
            }
        }
        for table in &mut tables {
            for (sum, n) in counts.iter_mut().zip(table) {
                *sum += u64::from(std::mem::take(n));
            }
        }
    }
    counts
}

/// Binary logarithm of the number of lanes for a segment of `len` symbols: more lanes code faster and cost four bytes each.
pub(crate) fn lanes_log(len: usize) -> u8 {
    match len {
        0..256 => 0,
        256..0x2_0000 => 2,
        _ => 5,
    }
}

/// How the encoder codes one symbol.
#[derive(Clone, Copy, Default)]
struct Step {
    /// ceil-like reciprocal: for x < freq * 2^20, x / freq = x * reciprocal >> 44 exactly (error below x / 2^44 < 1 / freq).
    reciprocal: u64,
    freq: u32,
    start: u32,
}

/// Appends the lanes, words and states of `symbols`, all of which `table` must have.
pub(crate) fn write(out: &mut Vec<u8>, symbols: &[u8], table: &Table, lanes_log: u8) {
    let starts = table.starts();
    let mut steps = [Step::default(); 256];
    for (symbol, step) in steps.iter_mut().enumerate() {
        let freq = table.freq(symbol as u8);
        if freq > 0 {
            *step = Step { reciprocal: (1 << 44) / u64::from(freq) + 1, freq, start: starts[symbol].into() };
        }
    }
    match lanes_log {
        0 => write_lanes::<1>(out, symbols, &steps, lanes_log),
        2 => write_lanes::<4>(out, symbols, &steps, lanes_log),
        _ => write_lanes::<32>(out, symbols, &steps, 5),
    }
}

fn write_lanes<const L: usize>(out: &mut Vec<u8>, symbols: &[u8], steps: &[Step; 256], lanes_log: u8) {
    let mut states = [INITIAL; L];
    // Each symbol puts out at most one word; words are filled from the end because they are read in reverse.
    let mut words = vec![0u16; symbols.len()];
    let mut free = words.len();
    let mut put = |state: &mut u32, symbol: u8| {
        let Step { reciprocal, freq, start } = steps[symbol as usize];
        let mut x = *state;
        let overflows = x >> 20 >= freq;
        if let Some(word) = words.get_mut(free.wrapping_sub(1)) {
            *word = x as u16;
        }
        free -= usize::from(overflows);
        x >>= if overflows { 16 } else { 0 };
        let quotient = ((u64::from(x) * reciprocal) >> 44) as u32;
        *state = (quotient << FREQ_BITS) + start + (x - quotient * freq);
    };
    let whole = symbols.chunks_exact(L);
    for (state, &symbol) in states.iter_mut().zip(whole.remainder()).rev() {
        put(state, symbol);
    }
    for row in whole.rev() {
        for lane in (0..L).rev() {
            put(&mut states[lane], row[lane]);
        }
    }
    let words = &words[free..];
    out.push(lanes_log);
    put_varint(out, words.len() as u64);
    states.iter().for_each(|&s| put_u32(out, s));
    out.reserve(words.len() * 2);
    words.iter().for_each(|&w| put_u16(out, w));
}

/// A table made ready for decoding: for each slot the symbol (bits 0 to 7), its frequency less one (bits 8 to 19) and
/// the slot's distance from the symbol's first (bits 20 to 31).
pub(crate) struct Slots(Box<[u32; 1 << FREQ_BITS]>);

impl Slots {
    pub(crate) fn new(table: &Table) -> Self {
        let mut slots = Box::new([0; 1 << FREQ_BITS]);
        let mut next = slots.iter_mut();
        for symbol in 0..=255u8 {
            let freq = table.freq(symbol);
            for (distance, slot) in (0..freq).zip(&mut next) {
                *slot = u32::from(symbol) | (freq - 1) << 8 | distance << 20;
            }
        }
        Self(slots)
    }
}

/// Reads the lanes, words and states of `out.len()` symbols.
pub(crate) fn read(cursor: &mut Cursor<'_>, slots: &Slots, out: &mut [u8]) -> Result<()> {
    let offset = cursor.offset();
    match cursor.u8()? {
        0 => read_lanes::<1>(cursor, slots, out),
        2 => read_lanes::<4>(cursor, slots, out),
        5 => read_lanes::<32>(cursor, slots, out),
        other => Err(Error::out_of_range("lanes_log", other.into(), offset)),
    }
}

fn read_lanes<const L: usize>(cursor: &mut Cursor<'_>, slots: &Slots, out: &mut [u8]) -> Result<()> {
    let offset = cursor.offset();
    let bad = || Error::format(FormatErrorKind::BadCode, offset);
    let word_count = cursor.varint()?;
    let mut states = [0u32; L];
    for state in &mut states {
        *state = cursor.u32()?;
        if *state < INITIAL {
            return Err(bad());
        }
    }
    let words = cursor.take(word_count.saturating_mul(2))?;
    let mut taken = 0usize;
    // Past the end zeros are taken: `taken` then exceeds the number of words, which is reported below.
    let mut get = |state: &mut u32| {
        let slot = slots.0[(*state & ((1 << FREQ_BITS) - 1)) as usize];
        let x = ((slot >> 8 & 0xfff) + 1) * (*state >> FREQ_BITS) + (slot >> 20);
        let word = match words.get(taken..taken + 2) {
            Some(w) => u32::from(w[0]) | u32::from(w[1]) << 8,
            None => 0,
        };
        let needs = x < INITIAL;
        *state = if needs { x << 16 | word } else { x };
        taken += if needs { 2 } else { 0 };
        slot as u8
    };
    let mut rows = out.chunks_exact_mut(L);
    for row in &mut rows {
        for lane in 0..L {
            row[lane] = get(&mut states[lane]);
        }
    }
    for (symbol, state) in rows.into_remainder().iter_mut().zip(&mut states) {
        *symbol = get(state);
    }
    if taken != words.len() || states.iter().any(|&s| s != INITIAL) {
        return Err(bad());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(symbols: &[u8], lanes_log: u8) -> Vec<u8> {
        let table = Table::from_counts(&count(symbols)).unwrap();
        let mut bytes = Vec::new();
        write(&mut bytes, symbols, &table, lanes_log);
        let mut out = vec![0; symbols.len()];
        let mut cursor = Cursor::new(&bytes, 0, "segment");
        read(&mut cursor, &Slots::new(&table), &mut out).unwrap();
        cursor.finish().unwrap();
        assert_eq!(out, symbols);
        bytes
    }

    #[test]
    fn a_single_symbol_costs_no_words() {
        assert_eq!(round_trip(&[7; 1000], 0), [0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn size_is_close_to_the_entropy() {
        let symbols: Vec<u8> =
            (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20).leading_zeros() as u8).collect();
        let counts = count(&symbols);
        let n = symbols.len() as f64;
        let entropy: f64 =
            counts.iter().filter(|&&c| c > 0).map(|&c| -(c as f64) * (c as f64 / n).log2()).sum::<f64>()
                / 8.0;
        for lanes in [0, 2, 5] {
            let bytes = round_trip(&symbols, lanes).len() as f64;
            assert!(bytes < entropy * 1.01 + 140.0, "{bytes} bytes for an entropy of {entropy}");
        }
    }

    #[test]
    fn damage_is_noticed() {
        let symbols: Vec<u8> = (0..500u32).map(|i| (i * i % 7) as u8).collect();
        let table = Table::from_counts(&count(&symbols)).unwrap();
        let slots = Slots::new(&table);
        let mut bytes = Vec::new();
        write(&mut bytes, &symbols, &table, 0);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let mut cursor = Cursor::new(&damaged, 0, "segment");
            let mut out = vec![0; symbols.len()];
            let read = read(&mut cursor, &slots, &mut out).and_then(|()| cursor.finish());
            assert!(read.is_err() || out != symbols, "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn symbols_come_back(symbols in proptest::collection::vec(any::<u8>().prop_map(|b| b & b >> 3), 1..600), lanes in 0usize..3) {
            round_trip(&symbols, [0, 2, 5][lanes]);
        }
    }
}
