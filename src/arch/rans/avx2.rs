//! The AVX2 form: 32 states in four registers. Table entries are loaded one by one, which is as fast as a
//! gather, and faster where gathers are microcode.

use std::arch::x86_64::*;

use super::{Encoded, LANES, NARROW, Narrow, Steps, sure_rows};

/// States in a register.
const GROUP: usize = 8;
const GROUPS: usize = LANES / GROUP;

/// For each mask of lanes: these lanes in ascending order, at the end.
static LAST: [[u8; GROUP]; 256] = {
    let mut lanes = [[0; GROUP]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut at) = (GROUP, GROUP);
        while lane > 0 {
            lane -= 1;
            if mask >> lane & 1 == 1 {
                at -= 1;
                lanes[mask][at] = lane as u8;
            }
        }
        mask += 1;
    }
    lanes
};

#[inline]
#[target_feature(enable = "avx2")]
fn load_states(states: &[u32; LANES]) -> [__m256i; GROUPS] {
    let (groups, _) = states.as_chunks::<GROUP>();
    // SAFETY: each group covers the 32 bytes that are read.
    std::array::from_fn(|g| unsafe { _mm256_loadu_si256(groups[g].as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_states(states: &mut [u32; LANES], from: [__m256i; GROUPS]) {
    let (groups, _) = states.as_chunks_mut::<GROUP>();
    for (group, from) in groups.iter_mut().zip(from) {
        // SAFETY: the group covers the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(group.as_mut_ptr().cast(), from) };
    }
}

/// Widens the entry of a table of lane numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes(entry: &[u8; GROUP]) -> __m256i {
    _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(*entry)))
}

/// The mask of the lanes whose highest bit is set.
#[inline]
#[target_feature(enable = "avx2")]
fn mask_of(lanes: __m256i) -> u8 {
    _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u8
}

/// Where `choose` has a highest bit `b`, else `a`.
#[inline]
#[target_feature(enable = "avx2")]
fn blend(a: __m256i, b: __m256i, choose: __m256i) -> __m256i {
    _mm256_blendv_epi8(a, b, choose)
}

#[target_feature(enable = "avx2,bmi2,popcnt")]
pub(in crate::arch) fn encode(
    symbols: &[[u8; LANES]],
    steps: &Steps,
    states: &mut [u32; LANES],
    words: &mut [[u8; 2]],
    mut free: usize,
) -> usize {
    let table: [i32; 256] =
        std::array::from_fn(|s| i32::from(steps.freqs[s]) << 16 | i32::from(steps.starts[s]));
    let low_half = _mm256_set1_epi32(0xffff);
    let mut x = load_states(states);
    for row in symbols.iter().rev() {
        for g in (0..GROUPS).rev() {
            let mut entries = [0; GROUP];
            for (entry, &symbol) in entries.iter_mut().zip(&row[g * GROUP..(g + 1) * GROUP]) {
                *entry = table[usize::from(symbol)];
            }
            let [a, b, c, d, e, f, g7, h] = entries;
            let entries = _mm256_setr_epi32(a, b, c, d, e, f, g7, h);
            let (f, s) = (_mm256_srli_epi32::<16>(entries), _mm256_and_si256(entries, low_half));
            let fits = _mm256_cmpgt_epi32(f, _mm256_srli_epi32::<20>(x[g]));
            let full = !mask_of(fits);
            let low = _mm256_and_si256(x[g], low_half);
            let packed = _mm256_permutevar8x32_epi32(low, lanes(&LAST[usize::from(full)]));
            let packed =
                _mm_packus_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256::<1>(packed));
            let window = &mut words[free - GROUP..free];
            // SAFETY: the slice covers the 16 bytes that are written.
            unsafe { _mm_storeu_si128(window.as_mut_ptr().cast(), packed) };
            free -= full.count_ones() as usize;
            x[g] = push(blend(_mm256_srli_epi32::<16>(x[g]), x[g], fits), f, s);
        }
    }
    store_states(states, x);
    free
}

/// For each mask of four lanes: the bytes of their low halves in ascending order, at the end of 8 bytes.
static LAST_HALVES: [[u8; 16]; 16] = {
    let mut bytes = [[0; 16]; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut lane, mut at) = (NARROW, 8);
        while lane > 0 {
            lane -= 1;
            if mask >> lane & 1 == 1 {
                at -= 2;
                bytes[mask][at] = 4 * lane as u8;
                bytes[mask][at + 1] = 4 * lane as u8 + 1;
            }
        }
        mask += 1;
    }
    bytes
};

#[target_feature(enable = "avx2,bmi2,popcnt")]
pub(in crate::arch) fn encode_narrow<const P: usize>(mut pairs: [&mut [&mut Narrow<'_, '_>; 2]; P]) -> usize {
    let count =
        pairs.iter().flat_map(|pair| pair.iter()).map(|segment| segment.rows.len()).min().unwrap_or(0);
    let mut x = [_mm256_setzero_si256(); P];
    for (x, [first, second]) in x.iter_mut().zip(&pairs) {
        *x = both(&first.states, &second.states);
    }
    for back in 1..=count {
        for (x, pair) in x.iter_mut().zip(&mut pairs) {
            let mut entries = [0; GROUP];
            for (entries, segment) in entries.as_chunks_mut::<NARROW>().0.iter_mut().zip(pair.iter()) {
                let row = &segment.rows[segment.rows.len() - back];
                for (entry, &symbol) in entries.iter_mut().zip(row) {
                    *entry = segment.steps[usize::from(symbol)].cast_signed();
                }
            }
            let [a, b, c, d, e, f, g, h] = entries;
            let entries = _mm256_setr_epi32(a, b, c, d, e, f, g, h);
            let f = _mm256_srli_epi32::<16>(entries);
            let s = _mm256_and_si256(entries, _mm256_set1_epi32(0xffff));
            let fits = _mm256_cmpgt_epi32(f, _mm256_srli_epi32::<20>(*x));
            let full = usize::from(!mask_of(fits));
            let masks = [full & 15, full >> 4];
            let [low, high] = masks.map(|mask| {
                // SAFETY: an entry has 16 bytes.
                unsafe { _mm_loadu_si128(LAST_HALVES[mask].as_ptr().cast()) }
            });
            let order = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
            let packed = _mm256_shuffle_epi8(*x, order);
            let packed = [_mm256_castsi256_si128(packed), _mm256_extracti128_si256::<1>(packed)];
            for ((segment, packed), mask) in pair.iter_mut().zip(packed).zip(masks) {
                let window = &mut segment.words[segment.free - NARROW..segment.free];
                // SAFETY: the slice covers the 8 bytes that are written.
                unsafe { _mm_storel_epi64(window.as_mut_ptr().cast(), packed) };
                segment.free -= mask.count_ones() as usize;
            }
            *x = push(blend(_mm256_srli_epi32::<16>(*x), *x, fits), f, s);
        }
    }
    for (x, pair) in x.into_iter().zip(pairs) {
        let states = [_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x)];
        for (segment, states) in pair.iter_mut().zip(states) {
            // SAFETY: four states have 16 bytes.
            unsafe { _mm_storeu_si128(segment.states.as_mut_ptr().cast(), states) };
            segment.rows = &segment.rows[..segment.rows.len() - count];
        }
    }
    count
}

/// The states of two segments.
#[inline]
#[target_feature(enable = "avx2")]
fn both(first: &[u32; NARROW], second: &[u32; NARROW]) -> __m256i {
    let load = |states: &[u32; NARROW]| {
        // SAFETY: four states have 16 bytes.
        unsafe { _mm_loadu_si128(states.as_ptr().cast()) }
    };
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load(first)), load(second))
}

/// Encodes a symbol into each state; x < f * 2^20.
#[inline]
#[target_feature(enable = "avx2")]
fn push(x: __m256i, f: __m256i, s: __m256i) -> __m256i {
    // Both halves are exact floats: their sum is x with one rounding.
    let high = _mm256_cvtepi32_ps(_mm256_srli_epi32::<16>(x));
    let low = _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xffff)));
    let float = _mm256_add_ps(_mm256_mul_ps(high, _mm256_set1_ps(65536.0)), low);
    // Four units in the last place make the divisor larger by 2^-22 to 2^-21 of it. This outweighs both
    // roundings, each at most 2^-24, so the ratio is never above x / f. It is below by less than 0.8, because
    // x / f < 2^20: the remainder of x is less than 2f.
    let divisor = _mm256_castps_si256(_mm256_cvtepi32_ps(f));
    let divisor = _mm256_castsi256_ps(_mm256_add_epi32(divisor, _mm256_set1_epi32(4)));
    let q = _mm256_cvttps_epi32(_mm256_div_ps(float, divisor));
    let rest = _mm256_sub_epi32(x, _mm256_mullo_epi32(q, f));
    let next = _mm256_add_epi32(_mm256_slli_epi32::<12>(q), _mm256_add_epi32(s, rest));
    let step = _mm256_sub_epi32(_mm256_set1_epi32(4096), f);
    _mm256_add_epi32(next, _mm256_andnot_si256(_mm256_cmpgt_epi32(f, rest), step))
}

/// The index of `_mm256_shuffle_epi8` that gives zero in place of a byte.
const ZERO: u8 = 0x80;

/// For each mask of lanes: which bytes of the words each of them reads; the others and all high halves become
/// zero.
static WORDS: [[u8; 4 * GROUP]; 256] = {
    let mut bytes = [[ZERO; 4 * GROUP]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut rank) = (0, 0);
        while lane < GROUP {
            if mask >> lane & 1 == 1 {
                bytes[mask][4 * lane] = 2 * rank;
                bytes[mask][4 * lane + 1] = 2 * rank + 1;
                rank += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    bytes
};

#[target_feature(enable = "avx2,bmi2,popcnt")]
pub(in crate::arch) fn decode<const N: usize>(
    segments: &mut [Encoded<'_>; N],
    outs: &mut [&mut [[u8; LANES]]; N],
) -> usize {
    let slots: [&[u32; 4096]; N] = std::array::from_fn(|n| &*segments[n].slots.all);
    let words: [&[u8]; N] = std::array::from_fn(|n| segments[n].words);
    let mut states: [_; N] = std::array::from_fn(|n| load_states(segments[n].states));
    let rows = outs.iter().map(|out| out.len()).min().unwrap_or(0);
    let (mut taken, mut done) = ([0; N], 0);
    loop {
        let sure = sure_rows::<LANES, N>(&words, &taken, rows - done);
        if sure == 0 {
            break;
        }
        for _ in 0..sure {
            for n in 0..N {
                let (symbols, bytes) = decode_row(slots[n], &mut states[n], &words[n][taken[n]..]);
                let out = &mut outs[n][done];
                // SAFETY: the reference covers the 32 bytes that are written.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), symbols) };
                taken[n] += bytes;
            }
            done += 1;
        }
    }
    for n in 0..N {
        store_states(segments[n].states, states[n]);
        segments[n].taken = taken[n];
    }
    done
}

/// Decodes a row. Returns its symbols, and the number of bytes that it takes from `words`, which has at least
/// 64.
#[inline]
#[target_feature(enable = "avx2,bmi2,popcnt")]
fn decode_row(slots: &[u32; 4096], states: &mut [__m256i; GROUPS], words: &[u8]) -> (__m256i, usize) {
    let words = &words[..2 * LANES];
    let (mut symbols, mut taken) = ([_mm256_setzero_si256(); GROUPS], 0);
    for (x, symbols) in states.iter_mut().zip(&mut symbols) {
        let slot = look_up([slots; 2], *x);
        let (y, needs) = pop(*x, slot);
        let mask = mask_of(needs);
        // SAFETY: the groups before took at most 8 words each, so that `taken` is at most 48, and 16 bytes
        // from there lie inside the 64 of `words`.
        let next = unsafe { _mm_loadu_si128(words.as_ptr().add(taken).cast()) };
        // SAFETY: an entry has 32 bytes.
        let order = unsafe { _mm256_loadu_si256(WORDS[usize::from(mask)].as_ptr().cast()) };
        *x = refill(y, needs, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(next), order));
        taken += 2 * mask.count_ones() as usize;
        *symbols = _mm256_and_si256(slot, _mm256_set1_epi32(255));
    }
    let [a, b, c, d] = symbols;
    // Packing works in halves of registers: the fours of lanes come out in the order 0, 2, 4, 6, 1, ..
    let packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    (_mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)), taken)
}

/// Decodes rows of pairs of segments: the lanes of a pair fill a register.
#[target_feature(enable = "avx2,bmi2,popcnt")]
pub(in crate::arch) fn decode_narrow<const N: usize>(
    segments: &mut [Encoded<'_>; N],
    outs: &mut [&mut [[u8; NARROW]]; N],
) -> usize {
    let slots: [&[u32; 4096]; N] = std::array::from_fn(|n| &*segments[n].slots.all);
    let words: [&[u8]; N] = std::array::from_fn(|n| segments[n].words);
    let rows = outs.iter().map(|out| out.len()).min().unwrap_or(0);
    let (mut taken, mut done) = ([0; N], 0);
    let mut x = [_mm256_setzero_si256(); N];
    for (x, pair) in x.iter_mut().zip(segments.as_chunks().0) {
        let [first, second]: &[Encoded<'_>; 2] = pair;
        *x = both(first_lanes(first.states), first_lanes(second.states));
    }
    let first_bytes = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    loop {
        let sure = sure_rows::<NARROW, N>(&words, &taken, rows - done);
        if sure == 0 {
            break;
        }
        for _ in 0..sure {
            for (pair, x) in x.iter_mut().take(N / 2).enumerate() {
                let numbers = [2 * pair, 2 * pair + 1];
                let slot = look_up(numbers.map(|n| slots[n]), *x);
                let (y, needs) = pop(*x, slot);
                let mask = usize::from(mask_of(needs));
                let masks = [mask & 15, mask >> 4];
                let [next, later] = numbers.map(|n| {
                    let next = &words[n][taken[n]..taken[n] + 2 * NARROW];
                    // SAFETY: the slice covers the 8 bytes that are read.
                    unsafe { _mm_loadl_epi64(next.as_ptr().cast()) }
                });
                let [order, later_order] = masks.map(|mask| {
                    // SAFETY: an entry has 32 bytes, the first 16 of them for the first four lanes.
                    unsafe { _mm_loadu_si128(WORDS[mask].as_ptr().cast()) }
                });
                let word = [_mm_shuffle_epi8(next, order), _mm_shuffle_epi8(later, later_order)];
                *x = refill(y, needs, _mm256_set_m128i(word[1], word[0]));
                let symbols = [_mm256_castsi256_si128(slot), _mm256_extracti128_si256::<1>(slot)];
                for (at, n) in numbers.into_iter().enumerate() {
                    let row = _mm_cvtsi128_si32(_mm_shuffle_epi8(symbols[at], first_bytes));
                    outs[n][done] = row.to_le_bytes();
                    taken[n] += 2 * masks[at].count_ones() as usize;
                }
            }
            done += 1;
        }
    }
    for (n, segment) in segments.iter_mut().enumerate() {
        let states = [_mm256_castsi256_si128(x[n / 2]), _mm256_extracti128_si256::<1>(x[n / 2])];
        // SAFETY: there are more than four states, which have 16 bytes.
        unsafe { _mm_storeu_si128(segment.states.as_mut_ptr().cast(), states[n % 2]) };
        segment.taken = taken[n];
    }
    done
}

/// The states of a narrow segment.
fn first_lanes(states: &[u32; LANES]) -> &[u32; NARROW] {
    states.first_chunk().unwrap_or(&[0; NARROW])
}

/// Takes the symbols of these slots out of their states. Returns the states, and which of them need a word.
#[inline]
#[target_feature(enable = "avx2")]
fn pop(x: __m256i, slot: __m256i) -> (__m256i, __m256i) {
    let f = _mm256_and_si256(_mm256_srli_epi32::<8>(slot), _mm256_set1_epi32(4095));
    let f = _mm256_add_epi32(f, _mm256_set1_epi32(1));
    let product = _mm256_mullo_epi32(f, _mm256_srli_epi32::<12>(x));
    let y = _mm256_add_epi32(product, _mm256_srli_epi32::<20>(slot));
    (y, _mm256_cmpeq_epi32(_mm256_srli_epi32::<16>(y), _mm256_setzero_si256()))
}

/// Appends a word to the states that need it; `words` are zero elsewhere.
#[inline]
#[target_feature(enable = "avx2")]
fn refill(y: __m256i, needs: __m256i, words: __m256i) -> __m256i {
    let shift = _mm256_and_si256(needs, _mm256_set1_epi32(16));
    _mm256_or_si256(_mm256_sllv_epi32(y, shift), words)
}

/// Looks up the slots of eight states, of four in each table.
#[inline]
#[target_feature(enable = "avx2")]
fn look_up(slots: [&[u32; 4096]; 2], x: __m256i) -> __m256i {
    let index = _mm256_and_si256(x, _mm256_set1_epi32(4095));
    let (low, high) = (_mm256_castsi256_si128(index), _mm256_extracti128_si256::<1>(index));
    let pairs = [
        _mm_cvtsi128_si64(low),
        _mm_extract_epi64::<1>(low),
        _mm_cvtsi128_si64(high),
        _mm_extract_epi64::<1>(high),
    ];
    let mut entries = [0; GROUP];
    let tables = [slots[0], slots[0], slots[1], slots[1]];
    for ((two, pair), slots) in entries.as_chunks_mut::<2>().0.iter_mut().zip(pairs).zip(tables) {
        // SAFETY: both indices are below 4096, the number of slots.
        *two = unsafe {
            [
                slots.get_unchecked((pair as u32) as usize).cast_signed(),
                slots.get_unchecked((pair as u64 >> 32) as usize).cast_signed(),
            ]
        };
    }
    let [a, b, c, d, e, f, g, h] = entries;
    _mm256_setr_epi32(a, b, c, d, e, f, g, h)
}
