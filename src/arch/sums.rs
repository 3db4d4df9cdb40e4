//! Sums of small integers, each times a key of 31 bits in four lanes.

pub(crate) mod changes;
pub(crate) mod columns;

use super::Form;
#[cfg(target_arch = "x86_64")]
use super::Width;

/// Integers in a group.
pub(crate) const GROUP: usize = 32;

/// Keys of a group as `L` limbs in each lane: the sum of `limb * base^place` is the key modulo the prime.
/// Limbs of words are at most 645, with the base [`BASE`]: 50 groups then fit 32 bits. Limbs of bytes have 16
/// bits. A vector of them does not cross lines of the cache.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Limbs<const L: usize>(pub(crate) [[[i16; GROUP]; L]; 4]);

/// Base of the three limbs of words: 645 (1 + BASE + BASE^2) is more than 2^30.
pub(crate) const BASE: i64 = 1291;

/// Base of the two limbs of bytes.
pub(crate) const BYTE_BASE: i64 = 1 << 16;

/// Keys of consecutive integers, in two forms.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a, const L: usize> {
    /// One entry for each integer.
    pub(crate) plain: &'a [[u32; 4]],
    /// One entry for each group.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only wide instructions read it"))]
    pub(crate) limbs: &'a [Limbs<L>],
}

/// Most rows that [`words`], [`bytes`] and [`nibbles`] take at a time. All of them use a key while it is in
/// the first-level cache: with so many, keys from beyond it take a small part of the time.
pub(crate) const ROWS: usize = 24;

/// Adds to `out`, for each of at most [`ROWS`] rows and each lane, the sum of the row's signed 16-bit words
/// times their keys, at most 2^16 of them. The sums are equal modulo 2^31 - 1 in every form, and below 2^62.
pub(crate) fn words(form: Form, rows: &[&[[u8; 64]]], keys: Keys<'_, 3>, out: &mut [[i64; 4]]) {
    match form.0 {
        // SAFETY: the form exists only if the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::avx512::<64, 3, 2>(rows, keys.limbs, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::avx2::<64, 3>(rows, keys.limbs, out) },
        _ => {
            let value = |group: &[u8; 64], at: usize| {
                i64::from(i16::from_le_bytes([group[2 * at], group[2 * at + 1]]))
            };
            plain(rows, keys.plain, value, out);
        }
    }
}

/// As [`words`], for signed bytes.
pub(crate) fn bytes(form: Form, rows: &[&[[u8; 32]]], keys: Keys<'_, 2>, out: &mut [[i64; 4]]) {
    match form.0 {
        // SAFETY: the form exists only if the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::avx512::<32, 2, 3>(rows, keys.limbs, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::avx2::<32, 2>(rows, keys.limbs, out) },
        _ => plain(rows, keys.plain, |group: &[u8; 32], at| i64::from(group[at] as i8), out),
    }
}

/// As [`words`], for nibbles, not signed, the low one of a byte first.
pub(crate) fn nibbles(form: Form, rows: &[&[[u8; 16]]], keys: Keys<'_, 2>, out: &mut [[i64; 4]]) {
    match form.0 {
        // SAFETY: the form exists only if the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::avx512::<16, 2, 3>(rows, keys.limbs, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::avx2::<16, 2>(rows, keys.limbs, out) },
        _ => {
            let value = |group: &[u8; 16], at: usize| i64::from(group[at / 2] >> (at % 2 * 4) & 15);
            plain(rows, keys.plain, value, out);
        }
    }
}

/// The same without limbs and wide instructions.
fn plain<const W: usize>(
    rows: &[&[[u8; W]]],
    keys: &[[u32; 4]],
    value: impl Fn(&[u8; W], usize) -> i64,
    out: &mut [[i64; 4]],
) {
    for (row, out) in rows.iter().zip(out) {
        for (group, keys) in row.iter().zip(keys.as_chunks::<GROUP>().0) {
            for (at, keys) in keys.iter().enumerate() {
                let value = value(group, at);
                (0..4).for_each(|lane| out[lane] += value * i64::from(keys[lane]));
            }
        }
    }
}

/// Power `exponent` of the base of `L` limbs.
#[cfg(target_arch = "x86_64")]
const fn power<const L: usize>(exponent: usize) -> i64 {
    (if L == 3 { BASE } else { BYTE_BASE }).pow(exponent as u32)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Limbs, power};

    /// Groups of keys that stay in the first-level cache (24 KiB of 32) while all rows are multiplied with
    /// them. Their products fit 32 bits: 2 x 32 x 2^15 x 645 and 2 x 48 x 2^7 x 2^15 are below 2^31.
    const fn tile<const L: usize>() -> usize {
        if L == 3 { 32 } else { 48 }
    }

    /// Adds the sums of rows, groups of `W` bytes with `L` limbs, `R` of them at a time.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn avx512<const W: usize, const L: usize, const R: usize>(
        rows: &[&[[u8; W]]],
        keys: &[Limbs<L>],
        out: &mut [[i64; 4]],
    ) {
        let count = rows.iter().map(|row| row.len()).fold(keys.len(), usize::min);
        let (several, one) = rows.as_chunks::<R>();
        let (of_several, of_one) = out.split_at_mut(R * several.len());
        for start in (0..count).step_by(const { tile::<L>() }) {
            let range = start..count.min(start + tile::<L>());
            let keys = &keys[range.clone()];
            for (at, (rows, out)) in several.iter().zip(of_several.as_chunks_mut::<R>().0).enumerate() {
                let next = several.get(at + 1).unwrap_or(rows).map(|row| row[range.start..].as_ptr());
                tile_512(rows.map(|row| &row[range.clone()]), next, keys, out);
            }
            for (row, out) in one.iter().zip(of_one.as_chunks_mut::<1>().0) {
                let row = &row[range.clone()];
                tile_512([row], [row.as_ptr()], keys, out);
            }
        }
    }

    /// Adds the sums of a tile. `next`: the groups that are wanted after these.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    fn tile_512<const W: usize, const L: usize, const R: usize>(
        rows: [&[[u8; W]]; R],
        next: [*const [u8; W]; R],
        keys: &[Limbs<L>],
        out: &mut [[i64; 4]; R],
    ) {
        // All lanes at once: the data is read once.
        let mut acc = [[[_mm512_setzero_si512(); L]; 4]; R];
        for (at, Limbs(keys)) in keys.iter().enumerate() {
            let mut values = [_mm512_setzero_si512(); R];
            for ((values, row), next) in values.iter_mut().zip(rows).zip(next) {
                let group = row[at].as_ptr();
                // SAFETY: a group has `W` bytes; a prefetch of any address changes no memory and raises no
                // fault.
                *values = unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(at).cast());
                    match W {
                        64 => _mm512_loadu_si512(group.cast()),
                        32 => _mm512_cvtepi8_epi16(_mm256_loadu_si256(group.cast())),
                        _ => {
                            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(group.cast()));
                            let both = _mm512_or_si512(bytes, _mm512_slli_epi32::<12>(bytes));
                            _mm512_and_si512(both, _mm512_set1_epi16(15))
                        }
                    }
                };
            }
            for (lane, keys) in keys.iter().enumerate() {
                for (place, limb) in keys.iter().enumerate() {
                    // SAFETY: each limb has 64 bytes.
                    let limb = unsafe { _mm512_load_si512(limb.as_ptr().cast()) };
                    for (acc, values) in acc.iter_mut().zip(values) {
                        acc[lane][place] = _mm512_dpwssd_epi32(acc[lane][place], values, limb);
                    }
                }
            }
        }
        for (out, acc) in out.iter_mut().zip(acc) {
            let [a, b, c, d] = acc.map(|limbs| combined_512::<L>(limbs));
            // Each lane has a vector: two lanes in one, half as long, and again.
            let ab = _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
            let cd = _mm512_add_epi64(_mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d));
            let low = _mm512_shuffle_i64x2::<0b10_00_10_00>(ab, cd);
            let high = _mm512_shuffle_i64x2::<0b11_01_11_01>(ab, cd);
            let both = _mm512_add_epi64(low, high);
            add_across(out, _mm512_castsi512_si256(both), _mm512_extracti64x4_epi64::<1>(both));
        }
    }

    /// Returns the sums of limbs, those of two neighbours in one number.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    fn combined_512<const L: usize>(limbs: [__m512i; L]) -> __m512i {
        let mut sum = _mm512_setzero_si512();
        for (limb, exponent) in limbs.into_iter().zip(0..) {
            let power = _mm512_set1_epi64(power::<L>(exponent));
            let (even, odd) = (limb, _mm512_srli_epi64::<32>(limb));
            sum = _mm512_add_epi64(sum, _mm512_mul_epi32(even, power));
            sum = _mm512_add_epi64(sum, _mm512_mul_epi32(odd, power));
        }
        sum
    }

    /// Adds the sums of rows, groups of `W` bytes with `L` limbs.
    #[target_feature(enable = "avx2")]
    pub(super) fn avx2<const W: usize, const L: usize>(
        rows: &[&[[u8; W]]],
        keys: &[Limbs<L>],
        out: &mut [[i64; 4]],
    ) {
        let count = rows.iter().map(|row| row.len()).fold(keys.len(), usize::min);
        for start in (0..count).step_by(const { tile::<L>() }) {
            let range = start..count.min(start + tile::<L>());
            for (at, (row, out)) in rows.iter().zip(&mut *out).enumerate() {
                let next = rows.get(at + 1).unwrap_or(row)[range.start..].as_ptr();
                tile_256(&row[range.clone()], next, &keys[range.clone()], out);
            }
        }
    }

    /// As [`tile_512`]: sixteen registers hold the sums of one row.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn tile_256<const W: usize, const L: usize>(
        row: &[[u8; W]],
        next: *const [u8; W],
        keys: &[Limbs<L>],
        out: &mut [i64; 4],
    ) {
        let mut acc = [[_mm256_setzero_si256(); L]; 4];
        for (at, (group, Limbs(keys))) in row.iter().zip(keys).enumerate() {
            // SAFETY: a prefetch of any address changes no memory and raises no fault.
            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(at).cast());
            for half in 0..2 {
                // SAFETY: a group has `W` bytes, and each half has half as many.
                let values = unsafe {
                    let group = group.as_ptr().add(W / 2 * half);
                    match W {
                        64 => _mm256_loadu_si256(group.cast()),
                        32 => _mm256_cvtepi8_epi16(_mm_loadu_si128(group.cast())),
                        _ => {
                            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(group.cast()));
                            let both = _mm256_or_si256(bytes, _mm256_slli_epi32::<12>(bytes));
                            _mm256_and_si256(both, _mm256_set1_epi16(15))
                        }
                    }
                };
                for (acc, keys) in acc.iter_mut().zip(keys) {
                    for (acc, limb) in acc.iter_mut().zip(keys) {
                        // SAFETY: each half of a limb has 32 bytes.
                        let limb = unsafe { _mm256_load_si256(limb.as_ptr().add(16 * half).cast()) };
                        *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(values, limb));
                    }
                }
            }
        }
        let [a, b, c, d] = acc.map(|limbs| combined_256::<L>(limbs));
        let ab = _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        let cd = _mm256_add_epi64(_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
        add_across(out, ab, cd);
    }

    /// Adds to four lanes: two numbers of each of the first two, and of the last two.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn add_across(out: &mut [i64; 4], ab: __m256i, cd: __m256i) {
        let low = _mm256_permute2x128_si256::<0x20>(ab, cd);
        let high = _mm256_permute2x128_si256::<0x31>(ab, cd);
        let at = out.as_mut_ptr().cast::<__m256i>();
        // SAFETY: four numbers have 32 bytes.
        unsafe {
            let sum = _mm256_add_epi64(_mm256_loadu_si256(at), _mm256_add_epi64(low, high));
            _mm256_storeu_si256(at, sum);
        }
    }

    /// As [`combined_512`].
    #[target_feature(enable = "avx2")]
    #[inline]
    fn combined_256<const L: usize>(limbs: [__m256i; L]) -> __m256i {
        let mut sum = _mm256_setzero_si256();
        for (limb, exponent) in limbs.into_iter().zip(0..) {
            let power = _mm256_set1_epi64x(power::<L>(exponent));
            let (even, odd) = (limb, _mm256_srli_epi64::<32>(limb));
            sum = _mm256_add_epi64(sum, _mm256_mul_epi32(even, power));
            sum = _mm256_add_epi64(sum, _mm256_mul_epi32(odd, power));
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::forms;

    const P: i64 = (1 << 31) - 1;

    /// Limbs of keys, as the caller makes them: balanced.
    fn limbs<const L: usize>(keys: &[[u32; 4]], base: i64) -> Vec<Limbs<L>> {
        let mut out = vec![Limbs([[[0; GROUP]; L]; 4]); keys.len() / GROUP];
        for (at, keys) in keys.iter().enumerate() {
            for (lane, &key) in keys.iter().enumerate() {
                let key = i64::from(key);
                let mut rest = if key > P / 2 { key - P } else { key };
                for limb in &mut out[at / GROUP].0[lane] {
                    let low = (rest + base / 2).rem_euclid(base) - base / 2;
                    limb[at % GROUP] = i16::try_from(low).unwrap();
                    rest = (rest - low) / base;
                }
                assert_eq!(rest, 0);
            }
        }
        out
    }

    #[test]
    fn every_form_gives_the_same_sums() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as u32
        };
        for groups in [0, 1, 2, 24, 25, 26, 49, 50, 51, 101, 200, 201, 2048] {
            // Random keys and the extreme ones, with random and extreme integers.
            let extremes = [1, P as u32 / 2, P as u32 / 2 + 1, P as u32 - 1];
            let keys: Vec<[u32; 4]> = (0..groups * GROUP)
                .map(|i| {
                    std::array::from_fn(|_| {
                        if i % 3 == 0 { next() % (P as u32 - 1) + 1 } else { extremes[i / 4 % 4] }
                    })
                })
                .collect();
            let rows: Vec<Vec<u8>> = (0..ROWS)
                .map(|row| {
                    (0..groups * 64)
                        .map(|i| match row {
                            0 => 0x80 * (i % 2) as u8,
                            1 => 0x80,
                            _ => next() as u8,
                        })
                        .collect()
                })
                .collect();
            let (three, two) = (limbs::<3>(&keys, BASE), limbs::<2>(&keys, BYTE_BASE));
            for count in 1..=ROWS {
                let words_of: Vec<_> = rows[..count].iter().map(|row| row.as_chunks().0).collect();
                let bytes_of: Vec<_> = rows[..count].iter().map(|row| &row.as_chunks().0[..groups]).collect();
                let nibbles_of: Vec<_> =
                    rows[..count].iter().map(|row| &row.as_chunks().0[..groups]).collect();
                let found = |form| {
                    let mut sums = [[[0; 4]; ROWS]; 3];
                    let [of_words, of_bytes, of_nibbles] = &mut sums;
                    words(form, &words_of, Keys { plain: &keys, limbs: &three }, of_words);
                    bytes(form, &bytes_of, Keys { plain: &keys, limbs: &two }, of_bytes);
                    nibbles(form, &nibbles_of, Keys { plain: &keys, limbs: &two }, of_nibbles);
                    let all = sums.as_flattened().as_flattened();
                    assert!(all.iter().all(|sum| sum.unsigned_abs() <= 1 << 62));
                    sums.map(|rows| rows.map(|lanes| lanes.map(|sum| sum.rem_euclid(P))))
                };
                let mut forms = forms().map(found);
                let expected = forms.next().unwrap();
                assert!(forms.all(|found| found == expected), "{groups} groups, {count} rows");
                let after = expected.iter().flat_map(|rows| rows[count..].as_flattened());
                assert!(after.into_iter().all(|sum| *sum == 0));
            }
        }
    }
}
