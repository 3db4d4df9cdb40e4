//! The AVX-512 form: 32 states in two registers, tables in registers or gathered.

use std::arch::x86_64::*;

use super::{LANES, Steps};

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

/// Widens 32 numbers of 16 bits to 32 bits, in two halves.
#[inline]
#[target_feature(enable = "avx512f")]
fn widen(x: __m512i) -> [__m512i; 2] {
    [
        _mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)),
        _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(x)),
    ]
}

/// Narrows 32 numbers of 32 bits to their low 16 bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn narrow(x: [__m512i; 2]) -> __m512i {
    let low = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(x[0]));
    _mm512_inserti64x4::<1>(low, _mm512_cvtepi32_epi16(x[1]))
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi2,popcnt")]
pub(in crate::arch) fn encode<const PAGES: usize>(
    symbols: &[[u8; LANES]],
    steps: &Steps,
    states: &mut [u32; LANES],
    words: &mut [u16],
    mut free: usize,
) -> usize {
    let first = if PAGES == 1 { steps.first } else { 0 };
    let freqs = Lookup::<PAGES>::new(&steps.freqs, first);
    let starts = Lookup::<PAGES>::new(&steps.starts, first);
    let first = _mm512_set1_epi16(first.into());
    let ascending = load(&std::array::from_fn(|i| i as u16));
    let mut x = load_states(states);
    for row in symbols.iter().rev() {
        // SAFETY: the reference covers the 32 bytes that are read.
        let row = unsafe { _mm256_loadu_si256(row.as_ptr().cast()) };
        let index = _mm512_sub_epi16(_mm512_cvtepu8_epi16(row), first);
        let (f, s) = (widen(freqs.get(index)), widen(starts.get(index)));
        let low = narrow(x);
        let full = [0, 1].map(|h| _mm512_cmpge_epu32_mask(_mm512_srli_epi32::<20>(x[h]), f[h]));
        for h in 0..2 {
            x[h] = push(x[h], full[h], f[h], s[h]);
        }
        let full = u32::from(full[0]) | u32::from(full[1]) << 16;
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
    // x < f * 2^20, so the quotient has 20 bits. Two operations on 24-bit floats that round towards zero
    // fall short of it by less than 2^20 * 2 / 2^23 = 1/4, so the remainder of x is less than 2f.
    let ratio = _mm512_div_round_ps::<TRUNCATE>(
        _mm512_cvt_roundepu32_ps::<TRUNCATE>(x),
        _mm512_cvt_roundepu32_ps::<TRUNCATE>(f),
    );
    let q = _mm512_cvttps_epu32(ratio);
    let rest = _mm512_sub_epi32(x, _mm512_mullo_epi32(q, f));
    let next = _mm512_add_epi32(_mm512_slli_epi32::<12>(q), _mm512_add_epi32(s, rest));
    let short = _mm512_cmpge_epu32_mask(rest, f);
    _mm512_mask_add_epi32(next, short, next, _mm512_sub_epi32(_mm512_set1_epi32(4096), f))
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi2,popcnt")]
pub(in crate::arch) fn decode(
    slots: &[u32; 4096],
    states: &mut [u32; LANES],
    words: &[u8],
    out: &mut [[u8; LANES]],
) -> (usize, usize) {
    let mut x = load_states(states);
    let (mut rows, mut taken) = (0, 0);
    for row in out {
        let Some(next) = words.get(taken..).and_then(|w| w.first_chunk::<{ 2 * LANES }>()) else { break };
        // SAFETY: the reference covers the 64 bytes that are read.
        let next = unsafe { _mm512_loadu_si512(next.as_ptr().cast()) };
        let slot = x.map(|x| {
            let index = _mm512_and_si512(x, _mm512_set1_epi32(4095));
            // SAFETY: an index is below 4096, the number of slots.
            unsafe { _mm512_i32gather_epi32::<4>(index, slots.as_ptr().cast()) }
        });
        let mut needs = [0; 2];
        for h in 0..2 {
            let f = _mm512_and_si512(_mm512_srli_epi32::<8>(slot[h]), _mm512_set1_epi32(4095));
            let f = _mm512_add_epi32(f, _mm512_set1_epi32(1));
            let product = _mm512_mullo_epi32(f, _mm512_srli_epi32::<12>(x[h]));
            x[h] = _mm512_add_epi32(product, _mm512_srli_epi32::<20>(slot[h]));
            needs[h] = _mm512_cmplt_epu32_mask(x[h], _mm512_set1_epi32(1 << 16));
        }
        let both = u32::from(needs[0]) | u32::from(needs[1]) << 16;
        let word = widen(_mm512_maskz_expand_epi16(both, next));
        for h in 0..2 {
            x[h] = _mm512_mask_or_epi32(x[h], needs[h], _mm512_slli_epi32::<16>(x[h]), word[h]);
        }
        let symbols = _mm256_inserti128_si256::<1>(
            _mm256_castsi128_si256(_mm512_cvtepi32_epi8(slot[0])),
            _mm512_cvtepi32_epi8(slot[1]),
        );
        // SAFETY: the reference covers the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(row.as_mut_ptr().cast(), symbols) };
        taken += 2 * both.count_ones() as usize;
        rows += 1;
    }
    store_states(states, x);
    (rows, taken)
}
