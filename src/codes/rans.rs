//! One segment of entropy-coded symbols: interleaved rANS with 32-bit states, 16-bit words and 12-bit
//! frequencies (spec, section 7.3).

use std::cmp::Reverse;
use std::slice;

use crate::arch::rans::{Encoded, FEW, Few, NARROW, Narrow, Slots};
use crate::arch::{self, Form, pages};
use crate::bits::{Cursor, put_u32, put_varint};
use crate::codes::table::{Counts, FREQ_BITS, Table};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

/// A word of the wire, in little-endian bytes.
pub(super) type Word = [u8; 2];

/// State in which an encoder begins and a decoder ends.
pub(super) const INITIAL: u32 = 1 << 16;

/// Number of symbols from which on a segment usually has 32 lanes: few enough bytes more than with 4.
pub(crate) const WIDE_FROM: usize = 1 << 17;

/// Returns the binary logarithm of the number of lanes for a segment of `len` symbols, which has 32 from
/// `wide_from` symbols on. More lanes are faster and cost four bytes each.
pub(crate) fn lanes_log(len: usize, wide_from: usize) -> u8 {
    match len {
        0..256 => 0,
        _ if len < wide_from => 2,
        _ => 5,
    }
}

/// Encoding step of one symbol.
#[derive(Clone, Copy, Default)]
pub(super) struct Step {
    /// Reciprocal, rounded up: for x < freq * 2^20, x / freq = x * reciprocal >> 44 exactly (error below x /
    /// 2^44 < 1 / freq).
    reciprocal: u64,
    freq: u32,
    start: u32,
}

pub(super) fn steps(table: &Table) -> [Step; 256] {
    entries(table).map(step)
}

/// Returns for each symbol its frequency times 2^16, and its start.
fn entries(table: &Table) -> [u32; 256] {
    let starts = table.starts();
    std::array::from_fn(|symbol| table.freq(symbol as u8) << 16 | u32::from(starts[symbol]))
}

/// Returns the step of an entry.
fn step(entry: u32) -> Step {
    let (freq, start) = (entry >> 16, entry & 0xffff);
    Step { reciprocal: reciprocal(freq), freq, start }
}

/// Returns the reciprocal of [`Step`]; 0 for a frequency of 0.
#[inline]
fn reciprocal(freq: u32) -> u64 {
    /// Reciprocals of all frequencies: a division takes longer than the step itself.
    static ALL: [u64; in_memory(1 << FREQ_BITS) + 1] = {
        let mut all = [0; in_memory(1 << FREQ_BITS) + 1];
        let mut freq = 1;
        while freq < all.len() {
            all[freq] = (1 << 44) / freq as u64 + 1;
            freq += 1;
        }
        all
    };
    ALL[in_memory(freq.into())]
}

/// A segment to write.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) symbols: &'a [u8],
    /// Counts of the symbols.
    pub(crate) counts: &'a Counts,
    /// Contains all of the symbols.
    pub(crate) table: &'a Table,
    pub(crate) lanes_log: u8,
}

impl Part<'_> {
    /// Whether [`encode_narrow`] takes it.
    pub(crate) fn is_narrow(&self) -> bool {
        1 << self.lanes_log == NARROW && !self.table.is_of_one()
    }
}

/// Appends the lanes, words and states of a segment. `memory` is used again.
pub(crate) fn write(out: &mut Vec<u8>, part: Part<'_>, memory: &mut Vec<Word>) {
    let Part { symbols, counts, table, lanes_log } = part;
    if table.is_of_one() {
        // Its only symbol changes no state.
        return finish(out, lanes_log, &[INITIAL; MAX_LANES][..1 << lanes_log], &[]);
    }
    if part.is_narrow() {
        let encoded = encode_narrow(&[part], slice::from_mut(memory));
        return encoded.iter().for_each(|segment| segment.write(out));
    }
    let (steps, words) = (steps(table), room(memory, counts, table, symbols.len()));
    match lanes_log {
        0 => write_lanes::<1>(out, symbols, &steps, words, lanes_log),
        _ => write_lanes::<MAX_LANES>(out, symbols, &steps, words, lanes_log),
    }
}

/// The most narrow segments that are encoded or decoded in turn.
pub(crate) const MOST: usize = 2 * arch::rans::PAIRS;

/// States and words of a narrow segment.
pub(crate) struct EncodedNarrow<'m> {
    states: [u32; NARROW],
    words: &'m [Word],
}

impl EncodedNarrow<'_> {
    /// Appends the lanes, words and states of the segment.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        finish(out, NARROW.ilog2() as u8, &self.states, self.words);
    }
}

/// Encodes narrow segments, at most [`MOST`] in turn. `memory`, one for each of them, is used again.
pub(crate) fn encode_narrow<'m>(parts: &[Part<'_>], memory: &'m mut [Vec<Word>]) -> Vec<EncodedNarrow<'m>> {
    let mut segments = Vec::with_capacity(parts.len());
    for (part, memory) in parts.iter().zip(memory) {
        let words = room(memory, part.counts, part.table, part.symbols.len());
        let (rows, rest) = part.symbols.as_chunks();
        let (mut states, mut free, steps) = ([INITIAL; NARROW], words.len(), entries(part.table));
        for (state, &symbol) in states.iter_mut().zip(rest).rev() {
            put(state, &step(steps[usize::from(symbol)]), words, &mut free);
        }
        segments.push(Narrow { rows, steps, states, words, free });
    }
    for segments in segments.chunks_mut(MOST) {
        let mut left: Vec<&mut Narrow<'_, '_>> = segments.iter_mut().collect();
        loop {
            // The longest ones come first: the shortest of them ends the turn, and one alone waits.
            left.retain(|segment| !segment.rows.is_empty());
            left.sort_by_key(|segment| Reverse(segment.rows.len()));
            if arch::rans::encode_narrow(arch::widest(), left.as_chunks_mut().0) == 0 {
                break;
            }
        }
    }
    let end = |Narrow { rows, steps, mut states, words, mut free }: Narrow<'_, 'm>| {
        if !rows.is_empty() {
            free = put_rows(rows, &steps.map(step), &mut states, words, free);
        }
        EncodedNarrow { states, words: &words[free..] }
    };
    segments.into_iter().map(end).collect()
}

/// Returns memory for the words of `len` symbols. They are filled from the end because they are read in
/// reverse. A row is always stored whole.
fn room<'m>(memory: &'m mut Vec<Word>, counts: &Counts, table: &Table, len: usize) -> &'m mut [Word] {
    pages::reused(memory, MAX_LANES + most_words(counts, table, len))
}

/// Appends lanes, words and states.
fn finish(out: &mut Vec<u8>, lanes_log: u8, states: &[u32], words: &[Word]) {
    out.push(lanes_log);
    put_varint(out, words.len() as u64);
    states.iter().for_each(|&state| put_u32(out, state));
    out.extend_from_slice(words.as_flattened());
}

/// Returns an upper bound on the words that `len` symbols emit.
///
/// A symbol of frequency f multiplies a state of at least 16 f (after its word was emitted) by at most (1 +
/// 1/16) * 4096 / f, which adds log2(4096 / f) + 0.0875 bits; a word removes 16 bits. A state ends no smaller
/// than it began.
fn most_words(counts: &Counts, table: &Table, len: usize) -> usize {
    let bits = table.cost(counts).map_or(usize::MAX, |cost| in_memory(cost >> 16) + 1);
    (bits / 16 + len / 128 + 2).min(len)
}

fn write_lanes<const L: usize>(
    out: &mut Vec<u8>,
    symbols: &[u8],
    steps: &[Step; 256],
    words: &mut [Word],
    lanes_log: u8,
) {
    let mut states = [INITIAL; L];
    let mut free = words.len();
    let (rows, rest) = symbols.as_chunks::<L>();
    for (state, &symbol) in states.iter_mut().zip(rest).rev() {
        put(state, &steps[usize::from(symbol)], words, &mut free);
    }
    free = match put_rows_wide(arch::widest(), rows, steps, &mut states, words, free) {
        Some(free) => free,
        None => put_rows(rows, steps, &mut states, words, free),
    };
    finish(out, lanes_log, &states, &words[free..]);
}

/// Encodes a symbol into a state. If the state would become too large, its word is first written before
/// `words[free..]`.
#[inline(always)]
fn put(state: &mut u32, step: &Step, words: &mut [Word], free: &mut usize) {
    let Step { reciprocal, freq, start } = *step;
    let mut x = *state;
    let overflows = x >> 20 >= freq;
    words[*free - 1] = (x as u16).to_le_bytes();
    *free -= usize::from(overflows);
    x >>= if overflows { 16 } else { 0 };
    let quotient = ((u64::from(x) * reciprocal) >> 44) as u32;
    *state = (quotient << FREQ_BITS) + start + (x - quotient * freq);
}

/// Encodes a symbol into a state, and appends its word if the state would become too large. Words are read in
/// reverse.
pub(super) fn put_one(state: &mut u32, step: &Step, words: &mut Vec<Word>) {
    let mut room = [Word::default(); 1];
    let mut free = 1;
    put(state, step, &mut room, &mut free);
    if free == 0 {
        words.push(room[0]);
    }
}

/// Encodes rows, the last row first; returns the new `free`.
fn put_rows<const L: usize>(
    rows: &[[u8; L]],
    steps: &[Step; 256],
    states: &mut [u32; L],
    words: &mut [Word],
    mut free: usize,
) -> usize {
    for row in rows.iter().rev() {
        for lane in (0..L).rev() {
            put(&mut states[lane], &steps[usize::from(row[lane])], words, &mut free);
        }
    }
    free
}

/// Encodes rows as [`put_rows`] does, with vector instructions if `form` has them and the lanes fill them.
fn put_rows_wide<const L: usize>(
    form: Form,
    rows: &[[u8; L]],
    steps: &[Step; 256],
    states: &mut [u32; L],
    words: &mut [Word],
    free: usize,
) -> Option<usize> {
    let states = states.as_mut_slice().try_into().ok()?;
    let present = |step: &Step| step.freq > 0;
    let wide = arch::rans::Steps {
        freqs: steps.map(|step| step.freq as u16),
        starts: steps.map(|step| step.start as u16),
        first: steps.iter().position(present)? as u8,
        last: steps.iter().rposition(present)? as u8,
    };
    arch::rans::encode_rows(form, rows.as_flattened().as_chunks().0, &wide, states, words, free)
}

/// Returns the decoding form of a table.
pub(crate) fn slots(table: &Table) -> Slots {
    let mut all = Box::new([0; 1 << FREQ_BITS]);
    let mut few = Few { count: 0, symbols: [0; FEW], freqs: [0; FEW], starts: [u16::MAX; FEW] };
    let mut start = 0;
    for symbol in (0..=255u8).filter(|&symbol| table.freq(symbol) > 0) {
        let freq = table.freq(symbol);
        for (distance, slot) in (0..freq).zip(&mut all[start..]) {
            *slot = u32::from(symbol) | (freq - 1) << 8 | distance << 20;
        }
        if few.count < FEW {
            few.symbols[few.count] = symbol.into();
            few.freqs[few.count] = freq as u16;
            few.starts[few.count] = start as u16;
        }
        few.count += 1;
        start += in_memory(freq.into());
    }
    Slots { all, few }
}

/// A segment that is decoded piece by piece.
pub(crate) struct Segment<'a> {
    slots: Slots,
    lanes_log: u8,
    /// A state for each lane; the others are not used.
    states: [u32; MAX_LANES],
    words: &'a [u8],
    /// Number of bytes of the words that were read.
    taken: usize,
    offset: u64,
}

/// The largest number of lanes.
pub(super) const MAX_LANES: usize = arch::rans::LANES;

impl<'a> Segment<'a> {
    /// Reads lanes, states and words; the symbols are decoded by [`Self::fill`].
    pub(crate) fn read(cursor: &mut Cursor<'a>, slots: Slots) -> Result<Self> {
        let lanes_log = read_lanes_log(cursor)?;
        let offset = cursor.offset();
        let word_count = cursor.varint()?;
        let mut states = [INITIAL; MAX_LANES];
        for state in &mut states[..1 << lanes_log] {
            *state = cursor.u32()?;
            if *state < INITIAL {
                return Err(Error::format(FormatErrorKind::BadCode, offset));
            }
        }
        let words = cursor.take(word_count.saturating_mul(2))?;
        Ok(Self { slots, lanes_log, states, words, taken: 0, offset })
    }

    /// Decodes the next symbols: a multiple of 32, or the last ones of the segment.
    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        if let Few { count: 1, symbols: [symbol, ..], .. } = self.slots.few {
            // It changes no state.
            return out.fill(symbol as u8);
        }
        match self.lanes_log {
            0 => self.fill_lanes::<1>(out, 0),
            2 => self.fill_lanes::<NARROW>(out, 0),
            _ => {
                let form = arch::widest();
                let done = decode_rows(form, [self], &mut [out.as_chunks_mut().0], arch::rans::decode_rows);
                self.fill_lanes::<MAX_LANES>(out, done);
            }
        }
    }

    /// Decodes the symbols after some rows.
    fn fill_lanes<const L: usize>(&mut self, out: &mut [u8], done: usize) {
        let Self { slots, words, taken, .. } = self;
        let Some(states) = self.states.first_chunk_mut::<L>() else { return };
        let (rows, rest) = out.as_chunks_mut::<L>();
        get_rows(&mut rows[done..], slots, states, words, taken);
        for (symbol, state) in rest.iter_mut().zip(states) {
            *symbol = get(state, slots, words, taken);
        }
    }

    /// Checks that the segment ends after the symbols decoded so far.
    pub(crate) fn finish(self) -> Result<()> {
        // The unused states are initial ones, too.
        match self.taken == self.words.len() && self.states == [INITIAL; MAX_LANES] {
            true => Ok(()),
            false => Err(Error::format(FormatErrorKind::BadCode, self.offset)),
        }
    }
}

/// Decodes whole segments, several of them in turn.
pub(crate) fn fill_all(segments: &mut [Segment<'_>], outs: &mut [&mut [u8]]) {
    let outs = outs.iter_mut().map(|out| &mut **out);
    let mut left: Vec<Left<'_, '_>> = segments.iter_mut().zip(outs).collect();
    left.sort_by_key(|(segment, _)| segment.lanes_log);
    while let Some((last, _)) = left.last() {
        let lanes_log = last.lanes_log;
        let alike = left.iter().rev().take_while(|(segment, _)| segment.lanes_log == lanes_log);
        let first = left.len() - alike.take(most_in_turn(lanes_log)).count();
        let together = &mut left[first..];
        fill_some(lanes_log, together);
        // One of them has hardly any rows left.
        let shortest = (0..together.len()).min_by_key(|&at| rows_left(&together[at])).unwrap_or(0);
        let (segment, out) = left.remove(first + shortest);
        segment.fill(out);
    }
}

/// A segment and the symbols of it that are left.
type Left<'l, 's> = (&'l mut Segment<'s>, &'l mut [u8]);

/// Number of segments that are decoded in turn: together they have enough lanes for the processor.
fn most_in_turn(lanes_log: u8) -> usize {
    if 1 << lanes_log == NARROW { MOST } else { 4 }
}

/// Number of rows whose words are sure to be there.
fn rows_left((segment, out): &Left<'_, '_>) -> usize {
    let words = segment.words.len().saturating_sub(segment.taken) / 2;
    words.min(out.len()) >> segment.lanes_log
}

/// Decodes rows of some of these segments in turn; they have as many lanes.
fn fill_some(lanes_log: u8, left: &mut [Left<'_, '_>]) {
    use arch::rans::{decode_narrow, decode_rows};
    match (1 << lanes_log, left) {
        (MAX_LANES, [a, b, c, d]) => fill_rows::<MAX_LANES, 4>([a, b, c, d], decode_rows),
        (MAX_LANES, [a, b, c]) => fill_rows::<MAX_LANES, 3>([a, b, c], decode_rows),
        (MAX_LANES, [a, b]) => fill_rows::<MAX_LANES, 2>([a, b], decode_rows),
        (NARROW, [a, b, c, d, e, f, g, h]) => fill_rows([a, b, c, d, e, f, g, h], decode_narrow),
        (NARROW, [a, b, c, d, e, f, ..]) => fill_rows([a, b, c, d, e, f], decode_narrow),
        (NARROW, [a, b, c, d, ..]) => fill_rows([a, b, c, d], decode_narrow),
        (NARROW, [a, b, ..]) => fill_rows([a, b], decode_narrow),
        _ => {}
    }
}

/// Decodes rows of `N` segments by `decode`, which returns their number.
fn fill_rows<const L: usize, const N: usize>(
    mut left: [&mut Left<'_, '_>; N],
    decode: impl FnOnce(Form, &mut [Encoded<'_>; N], &mut [&mut [[u8; L]]; N]) -> usize,
) {
    let mut outs = std::array::from_fn(|_| Default::default());
    let mut places = outs.iter_mut();
    let segments = left.each_mut().map(|(segment, out)| {
        if let Some(place) = places.next() {
            *place = out.as_chunks_mut().0;
        }
        &mut **segment
    });
    let done = L * decode_rows(arch::widest(), segments, &mut outs, decode);
    for (_, out) in left {
        *out = &mut std::mem::take(out)[done..];
    }
}

/// Decodes rows of `N` segments by `decode`, and returns their number.
fn decode_rows<const L: usize, const N: usize>(
    form: Form,
    mut segments: [&mut Segment<'_>; N],
    outs: &mut [&mut [[u8; L]]; N],
    decode: impl FnOnce(Form, &mut [Encoded<'_>; N], &mut [&mut [[u8; L]]; N]) -> usize,
) -> usize {
    let mut encoded = segments.each_mut().map(|segment| {
        let words = segment.words.get(segment.taken..).unwrap_or_default();
        Encoded { slots: &segment.slots, states: &mut segment.states, words, taken: 0 }
    });
    let done = decode(form, &mut encoded, outs);
    let taken = encoded.map(|encoded| encoded.taken);
    segments.iter_mut().zip(taken).for_each(|(segment, taken)| segment.taken += taken);
    done
}

fn read_lanes_log(cursor: &mut Cursor<'_>) -> Result<u8> {
    let offset = cursor.offset();
    match cursor.u8()? {
        lanes_log @ (0 | 2 | 5) => Ok(lanes_log),
        other => Err(Error::out_of_range("lanes_log", other.into(), offset)),
    }
}

/// Skips a segment's lanes and words without decoding them.
pub(crate) fn validate(cursor: &mut Cursor<'_>) -> Result<()> {
    let lanes_log = read_lanes_log(cursor)?;
    let word_count = cursor.varint()?;
    cursor.take(4 << lanes_log)?;
    cursor.take(word_count.saturating_mul(2)).map(drop)
}

/// Decodes a symbol from a state, then reads the word that the state needs from `words[taken..]`.
///
/// Past the end it reads zeros: `taken` then exceeds the number of bytes, which the caller reports.
#[inline(always)]
pub(super) fn get(state: &mut u32, slots: &Slots, words: &[u8], taken: &mut usize) -> u8 {
    let slot = slots.all[in_memory((*state & ((1 << FREQ_BITS) - 1)).into())];
    let x = ((slot >> 8 & 0xfff) + 1) * (*state >> FREQ_BITS) + (slot >> 20);
    let word = match words.get(*taken..*taken + 2) {
        Some(w) => u32::from(w[0]) | u32::from(w[1]) << 8,
        None => 0,
    };
    let needs = x < INITIAL;
    *state = if needs { x << 16 | word } else { x };
    *taken += if needs { 2 } else { 0 };
    slot as u8
}

fn get_rows<const L: usize>(
    rows: &mut [[u8; L]],
    slots: &Slots,
    states: &mut [u32; L],
    words: &[u8],
    taken: &mut usize,
) {
    // A local copy keeps the states in registers.
    let (mut local, mut at) = (*states, *taken);
    for row in rows {
        for lane in 0..L {
            row[lane] = get(&mut local[lane], slots, words, &mut at);
        }
    }
    (*states, *taken) = (local, at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::count;
    use proptest::prelude::*;

    /// Returns a table of symbols with frequencies in about these proportions, at least 1 each.
    fn table(weights: &[(u8, u64)]) -> Table {
        let mut counts = [0; 256];
        weights.iter().for_each(|&(symbol, weight)| counts[usize::from(symbol)] += weight);
        Table::from_counts(&counts).unwrap()
    }

    fn tables() -> [Table; 6] {
        [
            table(&[(9, 1)]),
            table(&[(0, 4000), (255, 1)]),
            table(&[(100, 1), (101, 4095), (163, 1)]),
            table(&(30..80).map(|s| (s, 1 << (s % 13))).collect::<Vec<_>>()),
            table(&(0..=255).map(|s| (s, u64::from(s) % 7 + 1)).collect::<Vec<_>>()),
            table(&(0..=220).map(|s| (s, u64::from(s) % 5 + 1)).collect::<Vec<_>>()),
        ]
    }

    #[test]
    fn every_form_gives_the_states_and_words_of_narrow_segments() {
        let word = |i: u64| crate::random::word(1, 3, i);
        let tables = tables();
        for (form, pairs) in arch::forms().flat_map(|form| (1..=arch::rans::PAIRS).map(move |n| (form, n))) {
            let rows: Vec<Vec<[u8; NARROW]>> = (0..2 * pairs)
                .map(|number| {
                    let table = &tables[(number + pairs) % tables.len()];
                    let present: Vec<u8> = (0..=255).filter(|&s| table.freq(s) > 0).collect();
                    let symbol = |i: u64| present[word(i) as usize % present.len()];
                    let len = 200 + word(number as u64) % 100;
                    (0..len.into())
                        .map(|row| std::array::from_fn(|lane| symbol(4 * row + lane as u64)))
                        .collect()
                })
                .collect();
            // States that an encoder can begin with, and a decoder ends with.
            let end = [INITIAL, u32::MAX, word(7).max(INITIAL), 1 << 20];
            let mut memory = vec![vec![[0; 2]; NARROW * 301]; 2 * pairs];
            let mut segments: Vec<Narrow<'_, '_>> = Vec::new();
            for ((number, rows), words) in rows.iter().enumerate().zip(&mut memory) {
                let steps = entries(&tables[(number + pairs) % tables.len()]);
                let free = words.len();
                segments.push(Narrow { rows, steps, states: end, words, free });
            }
            let alone: Vec<_> = segments
                .iter()
                .map(|segment| {
                    let (mut states, mut words) = (segment.states, segment.words.to_vec());
                    let steps = segment.steps.map(step);
                    let free = put_rows(segment.rows, &steps, &mut states, &mut words, segment.free);
                    (states, words[free..].to_vec())
                })
                .collect();
            let mut in_turn: Vec<&mut Narrow<'_, '_>> = segments.iter_mut().collect();
            let shortest = in_turn.iter().map(|segment| segment.rows.len()).min().unwrap_or(0);
            let count = arch::rans::encode_narrow(form, in_turn.as_chunks_mut().0);
            assert_eq!(count, if form.is_plain() { 0 } else { shortest }, "{form:?}");
            let is_wide = !form.is_plain();
            assert_eq!(segments.iter().any(|segment| segment.rows.is_empty()), is_wide, "{form:?}");
            for (segment, alone) in segments.into_iter().zip(&alone) {
                let Narrow { rows, steps, mut states, words, free } = segment;
                let free = put_rows(rows, &steps.map(step), &mut states, words, free);
                assert_eq!((states, &words[free..]), (alone.0, &alone.1[..]), "{pairs} pairs, {form:?}");
            }
            let table = |number| &tables[(number + pairs) % tables.len()];
            let encoded = alone.iter().enumerate().map(|(number, (states, words))| {
                let mut all = [INITIAL; MAX_LANES];
                all[..NARROW].copy_from_slice(states);
                let (slots, words) = (slots(table(number)), words.as_flattened());
                Segment { slots, lanes_log: 2, states: all, words, taken: 0, offset: 0 }
            });
            let encoded: Vec<_> = encoded.collect();
            match pairs {
                1 => decode_narrow_in_turn::<2>(form, encoded, &rows, end),
                2 => decode_narrow_in_turn::<4>(form, encoded, &rows, end),
                3 => decode_narrow_in_turn::<6>(form, encoded, &rows, end),
                _ => decode_narrow_in_turn::<8>(form, encoded, &rows, end),
            }
        }
    }

    /// Decodes these rows in turn as far as their words are sure, and the last ones alone.
    fn decode_narrow_in_turn<const N: usize>(
        form: Form,
        segments: Vec<Segment<'_>>,
        rows: &[Vec<[u8; NARROW]>],
        end: [u32; NARROW],
    ) {
        let mut segments: [Segment<'_>; N] = segments.try_into().map_err(|_| "N segments").unwrap();
        let mut backs: [_; N] = std::array::from_fn(|n| vec![[0; NARROW]; rows[n].len()]);
        let have_words = segments.iter().all(|segment| segment.words.len() >= 2 * NARROW);
        let mut outs = backs.each_mut().map(Vec::as_mut_slice);
        let done = decode_rows(form, segments.each_mut(), &mut outs, arch::rans::decode_narrow);
        assert_eq!(done > 0, !form.is_plain() && have_words, "{N}, {form:?}");
        for (n, (segment, mut back)) in segments.into_iter().zip(backs).enumerate() {
            let Segment { slots, states, words, mut taken, .. } = segment;
            let mut states = *states.first_chunk().unwrap();
            get_rows(&mut back[done..], &slots, &mut states, words, &mut taken);
            assert_eq!((taken, states), (words.len(), end), "{n} of {N}, {form:?}");
            assert_eq!(back, rows[n], "{n} of {N}, {form:?}");
        }
    }

    /// Decodes copies of a segment in turn, each of which is some rows ahead of the one before.
    fn decode_in_turn<const N: usize>(form: Form, begun: &Segment<'_>, rows: &[[u8; 32]], end: [u32; 32]) {
        let mut segments: [Segment<'_>; N] = std::array::from_fn(|_| Segment {
            slots: Slots { all: begun.slots.all.clone(), few: begun.slots.few },
            ..*begun
        });
        let mut backs: [_; N] = std::array::from_fn(|n| vec![[0; 32]; rows.len() - 7 * n]);
        let mut ahead = vec![[0; 32]; rows.len()];
        for (n, Segment { slots, states, words, taken, .. }) in segments.iter_mut().enumerate() {
            get_rows(&mut ahead[..7 * n], slots, states, words, taken);
        }
        let have_words = segments.iter().all(|segment| segment.words.len() >= segment.taken + 64);
        let mut outs = backs.each_mut().map(Vec::as_mut_slice);
        let done = decode_rows(form, segments.each_mut(), &mut outs, arch::rans::decode_rows);
        assert_eq!(done > 0, !form.is_plain() && have_words, "{form:?}");
        for (n, (segment, mut back)) in segments.into_iter().zip(backs).enumerate() {
            let Segment { slots, mut states, words, mut taken, .. } = segment;
            get_rows(&mut back[done..], &slots, &mut states, words, &mut taken);
            assert_eq!((taken, states), (words.len(), end), "{n} of {N}, {form:?}");
            assert_eq!(back, rows[7 * n..], "{n} of {N}, {form:?}");
        }
    }

    #[test]
    fn every_form_gives_the_same_states_and_words() {
        let word = |i: u64| crate::random::word(1, 2, i);
        for (case, table) in tables().iter().enumerate() {
            let steps = steps(table);
            let present: Vec<u8> = (0..=255).filter(|&s| table.freq(s) > 0).collect();
            let symbol = |i: usize| present[word(i as u64) as usize % present.len()];
            let rows: Vec<[u8; 32]> = (0..300).map(|r| std::array::from_fn(|l| symbol(32 * r + l))).collect();
            // All states that an encoder can have, including the extremes.
            let any = |i: usize| match i {
                0 => INITIAL,
                1 => u32::MAX,
                _ => word(9000 + i as u64).max(INITIAL),
            };
            let start: [u32; 32] = std::array::from_fn(any);
            let mut states = start;
            let mut words = vec![[0; 2]; 32 * 301 + 1];
            let all = words.len();
            let free = put_rows(&rows, &steps, &mut states, &mut words, all);
            let slots = slots(table);
            let bytes = words[free..].as_flattened().to_vec();
            let (mut back, mut first, mut taken) = (vec![[0; 32]; rows.len()], states, 0);
            get_rows(&mut back, &slots, &mut first, &bytes, &mut taken);
            assert_eq!((taken, first), (bytes.len(), start), "case {case}");
            assert_eq!(back, rows, "case {case}");

            for form in arch::forms() {
                let (mut wide_states, mut wide_words) = (start, vec![[0; 2]; all]);
                // The plain form leaves all rows to the loops above.
                if let Some(wide) = put_rows_wide(form, &rows, &steps, &mut wide_states, &mut wide_words, all)
                {
                    assert_eq!((wide, wide_states), (free, states), "case {case}, {form:?}");
                    assert_eq!(wide_words[free..], words[free..], "case {case}, {form:?}");
                }
                let begun = Segment {
                    slots: super::slots(table),
                    lanes_log: 5,
                    states,
                    words: &bytes,
                    taken: 0,
                    offset: 0,
                };
                decode_in_turn::<1>(form, &begun, &rows, start);
                decode_in_turn::<2>(form, &begun, &rows, start);
                decode_in_turn::<3>(form, &begun, &rows, start);
                decode_in_turn::<4>(form, &begun, &rows, start);
            }
        }
    }

    /// Decodes all symbols of a segment at once.
    fn read(cursor: &mut Cursor<'_>, slots: Slots, out: &mut [u8]) -> Result<()> {
        let mut segment = Segment::read(cursor, slots)?;
        segment.fill(out);
        segment.finish()
    }

    fn round_trip(symbols: &[u8], lanes_log: u8) -> Vec<u8> {
        let counts = count(symbols);
        let table = Table::from_counts(&counts).unwrap();
        let mut bytes = Vec::new();
        write(&mut bytes, Part { symbols, counts: &counts, table: &table, lanes_log }, &mut Vec::new());
        let mut out = vec![0; symbols.len()];
        let mut cursor = Cursor::new(&bytes, 0, "segment");
        read(&mut cursor, slots(&table), &mut out).unwrap();
        cursor.finish().unwrap();
        assert_eq!(out, symbols);
        bytes
    }

    /// Begins a written segment.
    fn begun((table, bytes): &(Table, Vec<u8>)) -> Segment<'_> {
        Segment::read(&mut Cursor::new(bytes, 0, "segment"), slots(table)).unwrap()
    }

    #[test]
    fn segments_side_by_side_are_as_alone() {
        // Numbers of symbols for each way of finding them, of different lengths, one too short for rows.
        for kinds in [3, 16, 17, 32, 33, 64, 65, 256] {
            let symbol = |n, i| ((crate::random::word(8, n, i) >> 16).pow(2) >> 16) % kinds;
            let symbols = |n| -> Vec<u8> {
                let lens = [5000, 5003, 4000, 6000, 300, 100, 5000, 5000, 4000, 4001, 400];
                (0..lens[n]).map(|i| symbol(n as u64, i) as u8).collect()
            };
            let all: Vec<Vec<u8>> = (0..11).map(symbols).collect();
            // Segments of 32 lanes, of 4, and of both.
            let lanes = [[5; 11], [2; 11], [5, 5, 2, 2, 5, 2, 2, 2, 5, 2, 2]];
            for (count, lanes) in (1..=all.len()).flat_map(|count| lanes.map(|lanes| (count, lanes))) {
                let written = all[..count].iter().zip(lanes).map(|(symbols, lanes_log)| {
                    let (counts, mut bytes) = (crate::codes::count(symbols), Vec::new());
                    let table = Table::from_counts(&counts).unwrap();
                    let lanes_log = if symbols.len() < 256 { 0 } else { lanes_log };
                    write(
                        &mut bytes,
                        Part { symbols, counts: &counts, table: &table, lanes_log },
                        &mut Vec::new(),
                    );
                    (table, bytes)
                });
                let written: Vec<_> = written.collect();
                let mut segments: Vec<Segment<'_>> = written.iter().map(begun).collect();
                let mut back: Vec<Vec<u8>> = all[..count].iter().map(|s| vec![0; s.len()]).collect();
                let mut outs: Vec<&mut [u8]> = back.iter_mut().map(Vec::as_mut_slice).collect();
                fill_all(&mut segments, &mut outs);
                segments.into_iter().for_each(|segment| segment.finish().unwrap());
                assert_eq!(back, all[..count], "{kinds} symbols, {count} segments of {lanes:?}");
            }
        }
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
    fn corruption_is_detected() {
        let symbols: Vec<u8> = (0..500u32).map(|i| (i * i % 7) as u8).collect();
        let counts = count(&symbols);
        let table = Table::from_counts(&counts).unwrap();
        let mut bytes = Vec::new();
        write(
            &mut bytes,
            Part { symbols: &symbols, counts: &counts, table: &table, lanes_log: 0 },
            &mut Vec::new(),
        );
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let mut cursor = Cursor::new(&damaged, 0, "segment");
            let mut out = vec![0; symbols.len()];
            let read = read(&mut cursor, slots(&table), &mut out).and_then(|()| cursor.finish());
            assert!(read.is_err() || out != symbols, "bit {bit}");
        }
    }

    /// ANS-1.
    #[test]
    fn a_state_below_the_initial_one_is_refused() {
        let table = table(&[(7, 1)]);
        for (state, words, expected) in [
            (INITIAL, &[][..], Ok(7)),
            // With this word, the state becomes the initial one.
            (1, &[0, 0], Err("bad_code")),
            (INITIAL - 1, &[], Err("bad_code")),
        ] {
            let count = [words.len() as u8 / 2];
            let bytes = [&[0], &count[..], &state.to_le_bytes(), words].concat();
            let mut out = [0];
            let read = read(&mut Cursor::new(&bytes, 0, "segment"), slots(&table), &mut out);
            assert_eq!(read.map(|()| out[0]).map_err(|e| e.name()), expected, "{state}");
        }
    }

    #[test]
    fn segments_have_1_4_or_32_lanes() {
        for (len, log) in [(1, 0), (255, 0), (256, 2), (WIDE_FROM - 1, 2), (WIDE_FROM, 5)] {
            assert_eq!(lanes_log(len, WIDE_FROM), log, "{len}");
        }
    }

    #[test]
    fn few_symbols_stand_side_by_side() {
        let three = table(&[(3, 1), (9, 2), (200, 1)]);
        let Few { count, symbols, freqs, starts } = slots(&three).few;
        let [low, middle, high] = [3, 9, 200].map(|symbol| three.freq(symbol) as u16);
        assert_eq!((count, &symbols[..3], &freqs[..3]), (3, &[3, 9, 200][..], &[low, middle, high][..]));
        assert_eq!(starts[..4], [0, low, low + middle, u16::MAX]);
        let many: Vec<(u8, u64)> = (0..100).map(|symbol| (symbol, 1)).collect();
        assert_eq!(slots(&table(&many)).few.count, 100);
    }

    proptest! {
        #[test]
        fn symbols_come_back(symbols in proptest::collection::vec(any::<u8>().prop_map(|b| b & b >> 3), 1..600), lanes in 0usize..3) {
            round_trip(&symbols, [0, 2, 5][lanes]);
        }
    }
}
