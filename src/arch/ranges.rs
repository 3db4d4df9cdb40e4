//! Masks of bytes inside a range, 64 at a time.

use super::Form;
#[cfg(target_arch = "x86_64")]
use super::Width;

/// Sets bit `i` of `masks[j]` where byte `i` of `rows[j]` is in `low ..= low + width`.
pub(crate) fn in_range(form: Form, rows: &[[u8; 64]], low: u8, width: u8, masks: &mut [u64]) {
    match form.0 {
        // SAFETY: the form exists only if the processor has all features that `avx512` enables.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::avx512(rows, low, width, masks) },
        // SAFETY: the form exists only if the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::avx2(rows, low, width, masks) },
        _ => plain(rows, low, width, masks),
    }
}

/// The form for every processor, and the twin that the others are tested against.
fn plain(rows: &[[u8; 64]], low: u8, width: u8, masks: &mut [u64]) {
    for (row, mask) in rows.iter().zip(masks) {
        let mut packed = [0; 8];
        for (eight, byte) in row.as_chunks::<8>().0.iter().zip(&mut packed) {
            let bits = u64::from_le_bytes(eight.map(|b| u8::from(b.wrapping_sub(low) <= width)));
            // The factor 2^(56 - 7j) moves bit 8j to bit 56 + j; no two products meet.
            *byte = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
        }
        *mask = u64::from_le_bytes(packed);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_set1_epi8,
        _mm256_sub_epi8, _mm512_cmple_epu8_mask, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_sub_epi8,
    };

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn avx512(rows: &[[u8; 64]], low: u8, width: u8, masks: &mut [u64]) {
        let (low, width) = (_mm512_set1_epi8(low.cast_signed()), _mm512_set1_epi8(width.cast_signed()));
        for (row, mask) in rows.iter().zip(masks) {
            // SAFETY: a row has 64 bytes; the load needs no alignment.
            let bytes = unsafe { _mm512_loadu_si512(row.as_ptr().cast()) };
            *mask = _mm512_cmple_epu8_mask(_mm512_sub_epi8(bytes, low), width);
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(rows: &[[u8; 64]], low: u8, width: u8, masks: &mut [u64]) {
        let (low, width) = (_mm256_set1_epi8(low.cast_signed()), _mm256_set1_epi8(width.cast_signed()));
        for (row, mask) in rows.iter().zip(masks) {
            let half = |at: usize| {
                // SAFETY: `at` is 0 or 32, and a row has 64 bytes; the load needs no alignment.
                let bytes = unsafe { _mm256_loadu_si256(row.as_ptr().add(at).cast()) };
                let distance = _mm256_sub_epi8(bytes, low);
                let inside = _mm256_cmpeq_epi8(_mm256_min_epu8(distance, width), distance);
                u64::from(_mm256_movemask_epi8(inside).cast_unsigned())
            };
            *mask = half(0) | half(32) << 32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_gives_the_same_masks() {
        let rows: Vec<[u8; 64]> = (0..40u64)
            .map(|r| std::array::from_fn(|i| (crate::random::word(3, r, i as u64) >> 7) as u8))
            .collect();
        for (low, width) in [(0, 255), (0, 0), (255, 0), (100, 3), (200, 55), (1, 254)] {
            let expected: Vec<u64> = rows
                .iter()
                .map(|row| (0..64).map(|i| u64::from((low..=low + width).contains(&row[i])) << i).sum())
                .collect();
            for form in crate::arch::forms() {
                let mut masks = vec![0; rows.len()];
                in_range(form, &rows, low, width, &mut masks);
                assert_eq!(masks, expected, "{form:?} {low} {width}");
            }
        }
    }
}
