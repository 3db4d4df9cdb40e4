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
/// bits.
pub(crate) type Limbs<const L: usize> = [[[i16; GROUP]; L]; 4];

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

/// Most rows that [`words`] and [`bytes`] take at a time: more would not share loads of keys.
pub(crate) const ROWS: usize = 6;

/// Adds to `out`, for each of at most [`ROWS`] rows and each lane, the sum of the row's signed 16-bit words
/// times their keys, at most 2^16 of them. The sums are equal modulo 2^31 - 1 in every form, and below 2^62.
pub(crate) fn words(form: Form, rows: &[&[[u8; 64]]], keys: Keys<'_, 3>, out: &mut [[i64; 4]]) {
    match form.0 {
        // SAFETY: the form exists only if the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::avx512::<64, 3>(rows, keys.limbs, out) },
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
        Width::Avx512 => unsafe { x86::avx512::<32, 2>(rows, keys.limbs, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::avx2::<32, 2>(rows, keys.limbs, out) },
        _ => plain(rows, keys.plain, |group: &[u8; 32], at| i64::from(group[at] as i8), out),
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

/// Combines the sums of limbs.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn combined<const L: usize>(sums: [i64; L]) -> i64 {
    let base = if L == 3 { BASE } else { BYTE_BASE };
    sums.iter().rev().fold(0, |sum, limb| sum * base + limb)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Limbs, ROWS, combined};

    /// Groups whose products fit 32 bits: 2 x 50 x 2^15 x 645 and 2 x 200 x 2^7 x 2^15 are below 2^31.
    const fn tile<const L: usize>() -> usize {
        if L == 3 { 50 } else { 200 }
    }

    /// Groups of `W` bytes with `L` limbs.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn avx512<const W: usize, const L: usize>(
        rows: &[&[[u8; W]]],
        keys: &[Limbs<L>],
        out: &mut [[i64; 4]],
    ) {
        match rows.len() {
            1 => of_rows_512::<W, L, 1>(rows, keys, out),
            2 => of_rows_512::<W, L, 2>(rows, keys, out),
            3 => of_rows_512::<W, L, 3>(rows, keys, out),
            4 => of_rows_512::<W, L, 4>(rows, keys, out),
            5 => of_rows_512::<W, L, 5>(rows, keys, out),
            _ => of_rows_512::<W, L, ROWS>(rows, keys, out),
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    fn of_rows_512<const W: usize, const L: usize, const R: usize>(
        rows: &[&[[u8; W]]],
        keys: &[Limbs<L>],
        out: &mut [[i64; 4]],
    ) {
        let Some(rows) = rows.first_chunk::<R>() else { return };
        let count = rows.iter().map(|row| row.len()).fold(keys.len(), usize::min);
        let mut sums = [[[0; L]; 4]; R];
        for start in (0..count).step_by(const { tile::<L>() }) {
            let range = start..count.min(start + tile::<L>());
            let (keys, rows) = (&keys[range.clone()], rows.map(|row| &row[range.clone()]));
            for lane in 0..4 {
                let mut acc = [[_mm512_setzero_si512(); L]; R];
                for (at, keys) in keys.iter().enumerate() {
                    // SAFETY: each limb has 64 bytes.
                    let limbs =
                        keys[lane].each_ref().map(|limb| unsafe { _mm512_loadu_si512(limb.as_ptr().cast()) });
                    for (row, acc) in rows.iter().zip(&mut acc) {
                        let group = row[at].as_ptr();
                        // SAFETY: a group has 64 bytes, or 32.
                        let values = unsafe {
                            match W {
                                64 => _mm512_loadu_si512(group.cast()),
                                _ => _mm512_cvtepi8_epi16(_mm256_loadu_si256(group.cast())),
                            }
                        };
                        for (acc, limb) in acc.iter_mut().zip(limbs) {
                            *acc = _mm512_dpwssd_epi32(*acc, values, limb);
                        }
                    }
                }
                for (sums, acc) in sums.iter_mut().zip(acc) {
                    for (sum, acc) in sums[lane].iter_mut().zip(acc) {
                        let low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(acc));
                        let high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64::<1>(acc));
                        *sum += _mm512_reduce_add_epi64(_mm512_add_epi64(low, high));
                    }
                }
            }
        }
        for (out, sums) in out.iter_mut().zip(sums) {
            (0..4).for_each(|lane| out[lane] += combined(sums[lane]));
        }
    }

    /// Groups of `W` bytes with `L` limbs.
    #[target_feature(enable = "avx2")]
    pub(super) fn avx2<const W: usize, const L: usize>(
        rows: &[&[[u8; W]]],
        keys: &[Limbs<L>],
        out: &mut [[i64; 4]],
    ) {
        // Sixteen registers hold the sums of three rows.
        for (rows, out) in rows.chunks(3).zip(out.chunks_mut(3)) {
            match rows.len() {
                1 => of_rows_256::<W, L, 1>(rows, keys, out),
                2 => of_rows_256::<W, L, 2>(rows, keys, out),
                _ => of_rows_256::<W, L, 3>(rows, keys, out),
            }
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn of_rows_256<const W: usize, const L: usize, const R: usize>(
        rows: &[&[[u8; W]]],
        keys: &[Limbs<L>],
        out: &mut [[i64; 4]],
    ) {
        let Some(rows) = rows.first_chunk::<R>() else { return };
        let count = rows.iter().map(|row| row.len()).fold(keys.len(), usize::min);
        let mut sums = [[[0; L]; 4]; R];
        // Two vectors to a group.
        for start in (0..count).step_by(const { tile::<L>() / 2 }) {
            let range = start..count.min(start + tile::<L>() / 2);
            let (keys, rows) = (&keys[range.clone()], rows.map(|row| &row[range.clone()]));
            for lane in 0..4 {
                let mut acc = [[_mm256_setzero_si256(); L]; R];
                for (at, keys) in keys.iter().enumerate() {
                    for half in 0..2 {
                        // SAFETY: each half of a limb has 32 bytes.
                        let limbs = keys[lane]
                            .each_ref()
                            .map(|limb| unsafe { _mm256_loadu_si256(limb.as_ptr().add(16 * half).cast()) });
                        for (row, acc) in rows.iter().zip(&mut acc) {
                            let group = row[at].as_ptr();
                            // SAFETY: a group has 64 bytes, or 32: each half has half as many.
                            let values = unsafe {
                                match W {
                                    64 => _mm256_loadu_si256(group.add(32 * half).cast()),
                                    _ => _mm256_cvtepi8_epi16(_mm_loadu_si128(group.add(16 * half).cast())),
                                }
                            };
                            for (acc, limb) in acc.iter_mut().zip(limbs) {
                                *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(values, limb));
                            }
                        }
                    }
                }
                for (sums, acc) in sums.iter_mut().zip(acc) {
                    for (sum, acc) in sums[lane].iter_mut().zip(acc) {
                        let low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(acc));
                        let high = _mm256_cvtepi32_epi64(_mm256_extracti128_si256::<1>(acc));
                        let all = _mm256_add_epi64(low, high);
                        let two =
                            _mm_add_epi64(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
                        *sum += _mm_cvtsi128_si64(two) + _mm_extract_epi64::<1>(two);
                    }
                }
            }
        }
        for (out, sums) in out.iter_mut().zip(sums) {
            (0..4).for_each(|lane| out[lane] += combined(sums[lane]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::forms;

    const P: i64 = (1 << 31) - 1;

    /// Limbs of keys, as the caller makes them: balanced.
    fn limbs<const L: usize>(keys: &[[u32; 4]], base: i64) -> Vec<Limbs<L>> {
        let mut out = vec![[[[0; GROUP]; L]; 4]; keys.len() / GROUP];
        for (at, keys) in keys.iter().enumerate() {
            for lane in 0..4 {
                let key = i64::from(keys[lane]);
                let mut rest = if key > P / 2 { key - P } else { key };
                for limb in &mut out[at / GROUP][lane] {
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
                let found = |form| {
                    let mut sums = [[0; 4]; 2 * ROWS];
                    let (of_words, of_bytes) = sums.split_at_mut(ROWS);
                    words(form, &words_of, Keys { plain: &keys, limbs: &three }, of_words);
                    bytes(form, &bytes_of, Keys { plain: &keys, limbs: &two }, of_bytes);
                    assert!(sums.as_flattened().iter().all(|sum| sum.unsigned_abs() <= 1 << 62));
                    sums.map(|lanes| lanes.map(|sum| sum.rem_euclid(P)))
                };
                let mut forms = forms().map(found);
                let expected = forms.next().unwrap();
                assert!(forms.all(|found| found == expected), "{groups} groups, {count} rows");
                assert_eq!(expected[count..ROWS], [[0; 4]; ROWS][count..]);
            }
        }
    }
}
