//! A bit for each number of a row: 64 to a word, the first in the lowest bit. Missing numbers give zeros.

use super::Form;
#[cfg(target_arch = "x86_64")]
use super::Width;

/// Writes the sign bit of each of `values` to `out`, which has a word for each 64 of them.
pub(crate) fn signs(form: Form, values: &[f32], out: &mut [u64]) {
    let (rows, rest) = values.as_chunks::<64>();
    let (whole, last) = out.split_at_mut(rows.len());
    match form.0 {
        // SAFETY: these forms exist only if the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 | Width::Avx512 => unsafe { x86::signs(rows, whole) },
        _ => rows.iter().zip(whole).for_each(|(row, out)| *out = word(row, |x| x.is_sign_negative())),
    }
    last.iter_mut().for_each(|out| *out = word(rest, |x| x.is_sign_negative()));
}

/// Writes to `out`, which has a word for each 64 of `bytes`, which of them are not zero.
pub(crate) fn nonzero(form: Form, bytes: &[u8], out: &mut [u64]) {
    let (rows, rest) = bytes.as_chunks::<64>();
    let (whole, last) = out.split_at_mut(rows.len());
    match form.0 {
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 | Width::Avx512 => unsafe { x86::nonzero(rows, whole) },
        _ => rows.iter().zip(whole).for_each(|(row, out)| *out = word(row, |byte| *byte != 0)),
    }
    last.iter_mut().for_each(|out| *out = word(rest, |byte| *byte != 0));
}

/// Packs a bit of each of up to 64 numbers.
fn word<T>(numbers: &[T], bit: impl Fn(&T) -> bool) -> u64 {
    let mut bytes = [0; 8];
    for (eight, byte) in numbers.chunks(8).zip(&mut bytes) {
        *byte = eight.iter().zip(0..).fold(0, |byte, (x, place)| byte | u8::from(bit(x)) << place);
    }
    u64::from_le_bytes(bytes)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    pub(super) fn signs(rows: &[[f32; 64]], out: &mut [u64]) {
        for (row, out) in rows.iter().zip(out) {
            let mut bytes = [0; 8];
            for (eight, byte) in row.as_chunks::<8>().0.iter().zip(&mut bytes) {
                // SAFETY: the reference covers the 32 bytes that are read.
                *byte = _mm256_movemask_ps(unsafe { _mm256_loadu_ps(eight.as_ptr()) }) as u8;
            }
            *out = u64::from_le_bytes(bytes);
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn nonzero(rows: &[[u8; 64]], out: &mut [u64]) {
        for (row, out) in rows.iter().zip(out) {
            let [low, high] = [0, 32].map(|half| {
                // SAFETY: the row covers the 32 bytes from either half.
                let half = unsafe { _mm256_loadu_si256(row.as_ptr().add(half).cast()) };
                let zero = _mm256_cmpeq_epi8(half, _mm256_setzero_si256());
                !_mm256_movemask_epi8(zero).cast_unsigned()
            });
            *out = u64::from(low) | u64::from(high) << 32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::forms;

    #[test]
    fn every_form_gives_a_bit_for_each_number() {
        for len in [0usize, 1, 63, 64, 65, 200, 256] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * i % 7 % 3) as u8).collect();
            let values: Vec<f32> = (0..len).map(|i| if i * i % 5 < 2 { -0.0 } else { i as f32 }).collect();
            for form in forms() {
                let (mut of_values, mut of_bytes) = (vec![9; len.div_ceil(64)], vec![9; len.div_ceil(64)]);
                signs(form, &values, &mut of_values);
                nonzero(form, &bytes, &mut of_bytes);
                for i in 0..64 * len.div_ceil(64) {
                    let bit = |words: &[u64]| words[i / 64] >> (i % 64) & 1 == 1;
                    assert_eq!(bit(&of_values), i < len && values[i].is_sign_negative(), "{form:?} {i}");
                    assert_eq!(bit(&of_bytes), i < len && bytes[i] != 0, "{form:?} {i}");
                }
            }
        }
    }
}
