//! The AVX-512 form: 32 states in two registers, tables in registers or gathered.

use std::arch::x86_64::*;

use super::{Encoded, FEW, LANES, Slots, Steps, sure_rows};

const TRUNCATE: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

/// A table of `PAGES` * 64 numbers, looked up 32 at a time.
struct Lookup<const PAGES: usize>([[__m512i; 2]; PAGES]);

impl<const PAGES: usize> Lookup<PAGES> {
    /// Loads `table` from `first` on, with zeros past its end.
    #[target_feature(enable = "avx512f")]
    fn new(table: &[u16; 256], first: u8) -> Self {
        let mut padded = [0u16; 512];
        padded[..256].copy_from_slice(table);
        let from = &padded[first.into()..];
        Self(std::array::from_fn(|page| {
            std::array::from_fn(|half| load(from[page * 64 + half * 32..].first_chunk().unwrap_or(&[0; 32])))
        }))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn get(&self, index: __m512i) -> __m512i {
        let page = |i: usize| _mm512_permutex2var_epi16(self.0[i][0], index, self.0[i][1]);
        if PAGES == 1 {
            return page(0);
        }
        let upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
        let low = _mm512_mask_blend_epi16(upper, page(0), page(1));
        let high = _mm512_mask_blend_epi16(upper, page(2), page(3));
        _mm512_mask_blend_epi16(_mm512_test_epi16_mask(index, _mm512_set1_epi16(128)), low, high)
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(from: &[u16; 32]) -> __m512i {
    // SAFETY: the reference covers the 64 bytes that are read.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_states(states: &[u32; LANES]) -> [__m512i; 2] {
    // SAFETY: the reference covers the 128 bytes that are read.
    unsafe {
        [_mm512_loadu_si512(states.as_ptr().cast()), _mm512_loadu_si512(states.as_ptr().add(16).cast())]
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_states(states: &mut [u32; LANES], from: [__m512i; 2]) {
    // SAFETY: the reference covers the 128 bytes that are written.
    unsafe {
        _mm512_storeu_si512(states.as_mut_ptr().cast(), from[0]);
        _mm512_storeu_si512(states.as_mut_ptr().add(16).cast(), from[1]);
    }
}

/// Splits paired numbers of 16 bits, two of them in each lane: those of the first 16 states are the low
/// halves, those of the others the high halves.
#[inline]
#[target_feature(enable = "avx512f")]
fn unpair(x: __m512i) -> [__m512i; 2] {
    [_mm512_and_si512(x, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32::<16>(x)]
}

/// The state of each paired number.
static IN_PAIRS: [u16; LANES] = {
    let mut states = [0; LANES];
    let mut place = 0;
    while place < LANES {
        states[place] = (place / 2 + place % 2 * 16) as u16;
        place += 1;
    }
    states
};

/// The low half of each of 32 states in two registers.
static LOW_HALVES: [u16; LANES] = {
    let mut halves = [0; LANES];
    let mut state = 0;
    while state < LANES {
        halves[state] = 2 * state as u16;
        state += 1;
    }
    halves
};

/// Every other byte, from the first on.
const EVEN_BYTES: u64 = 0x5555_5555_5555_5555;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi2,popcnt")]
pub(in crate::arch) fn encode<const PAGES: usize>(
    symbols: &[[u8; LANES]],
    steps: &Steps,
    states: &mut [u32; LANES],
    words: &mut [[u8; 2]],
    mut free: usize,
) -> usize {
    let first = if PAGES == 1 { steps.first } else { 0 };
    let freqs = Lookup::<PAGES>::new(&steps.freqs, first);
    let starts = Lookup::<PAGES>::new(&steps.starts, first);
    let first = _mm512_set1_epi16(first.into());
    let ascending = load(&std::array::from_fn(|i| i as u16));
    let (in_pairs, low_halves) = (load(&IN_PAIRS), load(&LOW_HALVES));
    let mut x = load_states(states);
    for row in symbols.iter().rev() {
        // SAFETY: the reference covers the 32 bytes that are read.
        let row = unsafe { _mm256_loadu_si256(row.as_ptr().cast()) };
        let row = _mm512_maskz_permutexvar_epi8(EVEN_BYTES, in_pairs, _mm512_castsi256_si512(row));
        let index = _mm512_sub_epi16(row, first);
        let (f, s) = (unpair(freqs.get(index)), unpair(starts.get(index)));
        let low = _mm512_permutex2var_epi16(x[0], low_halves, x[1]);
        let full = [0, 1].map(|h| _mm512_cmpge_epu32_mask(_mm512_srli_epi32::<20>(x[h]), f[h]));
        for h in 0..2 {
            x[h] = push(x[h], full[h], f[h], s[h]);
        }
        let full = _mm512_kunpackw(full[1].into(), full[0].into());
        let count = full.count_ones();
        // The words come first. Rotated by their count they come last, and end where the later words
        // begin.
        let packed = _mm512_maskz_compress_epi16(full, low);
        let turn = _mm512_add_epi16(ascending, _mm512_set1_epi16(count as i16));
        let turned = _mm512_permutexvar_epi16(turn, packed);
        let window = &mut words[free - LANES..free];
        // SAFETY: the slice covers the 64 bytes that are written.
        unsafe { _mm512_storeu_si512(window.as_mut_ptr().cast(), turned) };
        free -= count as usize;
    }
    store_states(states, x);
    free
}

/// Renormalises the states that are `full` and encodes a symbol into each.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn push(x: __m512i, full: __mmask16, f: __m512i, s: __m512i) -> __m512i {
    let x = _mm512_mask_srli_epi32::<16>(x, full, x);
    // An approximation of 1 / f, off by at most 2^-14 of it, and a step of Newton's method, off by at most
    // 2^-28 + 2^-38 and a rounding down. One unit in the last place less is never above 1 / f.
    let divisor = _mm512_cvtepi32_ps(f);
    let near = _mm512_rcp14_ps(divisor);
    let error = _mm512_fnmadd_ps(divisor, near, _mm512_set1_ps(1.0));
    let near = _mm512_castps_si512(_mm512_fmadd_round_ps::<TRUNCATE>(near, error, near));
    let reciprocal = _mm512_castsi512_ps(_mm512_sub_epi32(near, _mm512_set1_epi32(1)));
    // x < f * 2^20, so the quotient has 20 bits. Four roundings down, each by less than 2^-23 of it, and the
    // step's error make it fall short of x / f by less than 0.51: the remainder of x is less than 2f.
    let ratio = _mm512_mul_round_ps::<TRUNCATE>(_mm512_cvt_roundepu32_ps::<TRUNCATE>(x), reciprocal);
    let q = _mm512_cvttps_epu32(ratio);
    let rest = _mm512_sub_epi32(x, _mm512_mullo_epi32(q, f));
    let next = _mm512_add_epi32(_mm512_slli_epi32::<12>(q), _mm512_add_epi32(s, rest));
    let short = _mm512_cmpge_epu32_mask(rest, f);
    _mm512_mask_add_epi32(next, short, next, _mm512_sub_epi32(_mm512_set1_epi32(4096), f))
}

/// Finds the symbols of slots: among few symbols by bisection of their first slots, in `STEPS` steps; with no
/// steps in the table of all slots.
struct Finder<'a, const STEPS: usize> {
    slots: &'a [u32; 4096],
    starts: [__m512i; 2],
    freqs: [__m512i; 2],
    symbols: [__m512i; 2],
    in_order: __m512i,
}

/// The symbols of a row, and for each state its symbol's frequency and its slot's distance from the symbol's
/// first slot.
type Found = (__m256i, [__m512i; 2], [__m512i; 2]);

impl<'a, const STEPS: usize> Finder<'a, STEPS> {
    #[target_feature(enable = "avx512f")]
    fn new(slots: &'a Slots) -> Self {
        let halves = |table: &[u16; FEW]| {
            let (halves, _) = table.as_chunks();
            [load(&halves[0]), load(&halves[1])]
        };
        let bytes: [u8; 64] = std::array::from_fn(|i| (4 * (i % 16) + 2 * (i / 16 % 2)) as u8);
        Self {
            slots: &slots.all,
            starts: halves(&slots.few.starts),
            freqs: halves(&slots.few.freqs),
            symbols: halves(&slots.few.symbols),
            // SAFETY: the array covers the 64 bytes that are read.
            in_order: unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) },
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn get(table: &[__m512i; 2], index: __m512i) -> __m512i {
        match STEPS {
            6 => _mm512_permutex2var_epi16(table[0], index, table[1]),
            _ => _mm512_permutexvar_epi16(index, table[0]),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn find(&self, x: [__m512i; 2]) -> Found {
        if STEPS == 0 {
            return self.gather(x);
        }
        // The slots of states 0 and 16 in one lane, and so on.
        let slot = _mm512_mask_blend_epi16(0xaaaa_aaaa, x[0], _mm512_slli_epi32::<16>(x[1]));
        let slot = _mm512_and_si512(slot, _mm512_set1_epi16(4095));
        let mut at = _mm512_setzero_si512();
        for step in (0..STEPS).rev() {
            let next = _mm512_or_si512(at, _mm512_set1_epi16(1 << step));
            let reached = _mm512_cmple_epu16_mask(Self::get(&self.starts, next), slot);
            at = _mm512_mask_mov_epi16(at, reached, next);
        }
        let distance = _mm512_sub_epi16(slot, Self::get(&self.starts, at));
        let symbols = _mm512_permutexvar_epi8(self.in_order, Self::get(&self.symbols, at));
        (_mm512_castsi512_si256(symbols), unpair(Self::get(&self.freqs, at)), unpair(distance))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn gather(&self, x: [__m512i; 2]) -> Found {
        let slot = x.map(|x| {
            let index = _mm512_and_si512(x, _mm512_set1_epi32(4095));
            // SAFETY: an index is below 4096, the number of slots.
            unsafe { _mm512_i32gather_epi32::<4>(index, self.slots.as_ptr().cast()) }
        });
        let symbols = _mm256_inserti128_si256::<1>(
            _mm256_castsi128_si256(_mm512_cvtepi32_epi8(slot[0])),
            _mm512_cvtepi32_epi8(slot[1]),
        );
        let freqs = slot.map(|slot| {
            let less_one = _mm512_and_si512(_mm512_srli_epi32::<8>(slot), _mm512_set1_epi32(4095));
            _mm512_add_epi32(less_one, _mm512_set1_epi32(1))
        });
        (symbols, freqs, slot.map(|slot| _mm512_srli_epi32::<20>(slot)))
    }
}

/// Decodes rows of several segments in turn, so that the processor works on all of them at once. Stops where
/// one of them has no full row of words left.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi2,popcnt")]
pub(in crate::arch) fn decode<const STEPS: usize, const N: usize>(
    segments: &mut [Encoded<'_>; N],
    outs: &mut [&mut [[u8; LANES]]; N],
) -> usize {
    let finders: [Finder<'_, STEPS>; N] = std::array::from_fn(|n| Finder::new(segments[n].slots));
    let mut states: [_; N] = std::array::from_fn(|n| load_states(segments[n].states));
    let mut taken = [0; N];
    let words: [&[u8]; N] = std::array::from_fn(|n| segments[n].words);
    let rows = outs.iter().map(|out| out.len()).min().unwrap_or(0);
    let in_pairs = load(&IN_PAIRS);
    let mut done = 0;
    loop {
        let sure = sure_rows::<LANES, N>(&words, &taken, rows - done);
        if sure == 0 {
            break;
        }
        for _ in 0..sure {
            for n in 0..N {
                let x = states[n];
                let (symbols, freqs, distances) = finders[n].find(x);
                let x = [0, 1].map(|h| {
                    let product = _mm512_mullo_epi32(freqs[h], _mm512_srli_epi32::<12>(x[h]));
                    _mm512_add_epi32(product, distances[h])
                });
                let needs = x.map(|x| _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(1 << 16)));
                let both = _mm512_kunpackw(needs[1].into(), needs[0].into());
                let next = &words[n][taken[n]..taken[n] + 2 * LANES];
                // SAFETY: the slice covers the 64 bytes that are read.
                let next = unsafe { _mm512_loadu_si512(next.as_ptr().cast()) };
                let word = _mm512_permutexvar_epi16(in_pairs, _mm512_maskz_expand_epi16(both, next));
                let low = _mm512_slli_epi32::<16>(word);
                states[n] = [
                    _mm512_mask_shldi_epi32::<16>(x[0], needs[0], x[0], low),
                    _mm512_mask_shldi_epi32::<16>(x[1], needs[1], x[1], word),
                ];
                taken[n] += 2 * both.count_ones() as usize;
                let out = &mut outs[n][done];
                // SAFETY: the reference covers the 32 bytes that are written.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), symbols) };
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
