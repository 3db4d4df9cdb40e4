//! Bytes inside a range, 64 at a time.

use super::Form;
#[cfg(target_arch = "x86_64")]
use super::Width;
use super::masks::Rows;

/// Sets bit `i` of row `j` where byte `i` of `bytes[j]` is in `low ..= low + width`, counts the ones before
/// each row, and returns the number of ones.
pub(crate) fn in_range(form: Form, bytes: &[[u8; 64]; 64], low: u8, width: u8, rows: &mut Rows) -> u64 {
    match form.0 {
        // SAFETY: the form exists only if the processor has all features that `avx512` enables.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::avx512(bytes, low, width, rows) },
        // SAFETY: the form exists only if the processor has all features that `avx2` enables.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::avx2(bytes, low, width, rows) },
        _ => fill(bytes, rows, |row| {
            let mut packed = [0; 8];
            for (eight, byte) in row.as_chunks::<8>().0.iter().zip(&mut packed) {
                let bits = u64::from_le_bytes(eight.map(|b| u8::from(b.wrapping_sub(low) <= width)));
                // The factor 2^(56 - 7j) moves bit 8j to bit 56 + j; no two products meet.
                *byte = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
            }
            u64::from_le_bytes(packed)
        }),
    }
}

/// Fills rows with masks, and counts their ones.
#[inline(always)]
fn fill(bytes: &[[u8; 64]; 64], rows: &mut Rows, mask: impl Fn(&[u8; 64]) -> u64) -> u64 {
    let mut sum = 0;
    for ((row, out), before) in bytes.iter().zip(&mut rows.masks).zip(&mut rows.before) {
        let mask = mask(row);
        (*out, *before) = (mask, sum);
        sum += mask.count_ones() as u16;
    }
    sum.into()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_set1_epi8,
        _mm256_sub_epi8, _mm512_cmple_epu8_mask, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_sub_epi8,
    };

    use super::{Rows, fill};

    #[target_feature(enable = "avx512f,avx512bw,popcnt")]
    pub(super) fn avx512(bytes: &[[u8; 64]; 64], low: u8, width: u8, rows: &mut Rows) -> u64 {
        let (low, width) = (_mm512_set1_epi8(low.cast_signed()), _mm512_set1_epi8(width.cast_signed()));
        fill(bytes, rows, |row| {
            // SAFETY: a row has 64 bytes; the load needs no alignment.
            let bytes = unsafe { _mm512_loadu_si512(row.as_ptr().cast()) };
            _mm512_cmple_epu8_mask(_mm512_sub_epi8(bytes, low), width)
        })
    }

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn avx2(bytes: &[[u8; 64]; 64], low: u8, width: u8, rows: &mut Rows) -> u64 {
        let (low, width) = (_mm256_set1_epi8(low.cast_signed()), _mm256_set1_epi8(width.cast_signed()));
        fill(bytes, rows, |row| {
            let half = |at: usize| {
                // SAFETY: `at` is 0 or 32, and a row has 64 bytes; the load needs no alignment.
                let bytes = unsafe { _mm256_loadu_si256(row.as_ptr().add(at).cast()) };
                let distance = _mm256_sub_epi8(bytes, low);
                let inside = _mm256_cmpeq_epi8(_mm256_min_epu8(distance, width), distance);
                u64::from(_mm256_movemask_epi8(inside).cast_unsigned())
            };
            half(0) | half(32) << 32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_gives_the_same_rows() {
        let bytes: [[u8; 64]; 64] = std::array::from_fn(|r| {
            std::array::from_fn(|i| (crate::random::word(3, r as u64, i as u64) >> 7) as u8)
        });
        for (low, width) in [(0, 255), (0, 0), (255, 0), (100, 3), (200, 55), (1, 254)] {
            let one = |b: &u8| (low..=low + width).contains(b);
            for form in crate::arch::forms() {
                let mut rows = Rows::EMPTY;
                let sum = in_range(form, &bytes, low, width, &mut rows);
                assert_eq!(sum, bytes.as_flattened().iter().filter(|b| one(b)).count() as u64, "{form:?}");
                for (r, row) in bytes.iter().enumerate() {
                    let expected: u64 = (0..64).map(|i| u64::from(one(&row[i])) << i).sum();
                    assert_eq!(rows.masks[r], expected, "{form:?} {low} {width}");
                    let before = bytes[..r].as_flattened().iter().filter(|b| one(b)).count();
                    assert_eq!(usize::from(rows.before[r]), before, "{form:?} {low} {width}");
                }
            }
        }
    }
}
