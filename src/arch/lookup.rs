//! Tables of 32 numbers, looked up for many codes.

use super::Form;
#[cfg(target_arch = "x86_64")]
use super::Width;

/// Number of numbers in a table.
pub(crate) const ENTRIES: usize = 32;

/// Writes the number of each of `codes`, which must be below [`ENTRIES`]: only their low bits count.
pub(crate) fn numbers(form: Form, table: &[f32; ENTRIES], codes: &[u8], out: &mut [f32]) {
    let (rows, rest) = codes.as_chunks::<16>();
    let (whole, last) = out.split_at_mut(out.len().min(16 * rows.len()));
    let outs = whole.as_chunks_mut::<16>().0;
    match form.0 {
        // SAFETY: a form exists only if the processor has all features that its functions enable.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::numbers_avx512(table, rows, outs) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::numbers_avx2(table, rows, outs) },
        _ => rows.iter().zip(outs).for_each(|(row, out)| plainly(table, row, out)),
    }
    plainly(table, rest, last);
}

fn plainly(table: &[f32; ENTRIES], codes: &[u8], out: &mut [f32]) {
    for (number, &code) in out.iter_mut().zip(codes) {
        *number = table[usize::from(code) % ENTRIES];
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::ENTRIES;

    #[target_feature(enable = "avx512f")]
    pub(super) fn numbers_avx512(table: &[f32; ENTRIES], codes: &[[u8; 16]], out: &mut [[f32; 16]]) {
        // SAFETY: the reference covers the 128 bytes that are read.
        let (low, high) =
            unsafe { (_mm512_loadu_ps(table.as_ptr()), _mm512_loadu_ps(table.as_ptr().add(16))) };
        for (codes, out) in codes.iter().zip(out) {
            // SAFETY: the reference covers the 16 bytes that are read.
            let codes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
            let numbers = _mm512_permutex2var_ps(low, _mm512_cvtepu8_epi32(codes), high);
            // SAFETY: the reference covers the 64 bytes that are written.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), numbers) };
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn numbers_avx2(table: &[f32; ENTRIES], codes: &[[u8; 16]], out: &mut [[f32; 16]]) {
        // SAFETY: each eighth part of the table has the 32 bytes that are read.
        let parts: [__m256; 4] =
            std::array::from_fn(|i| unsafe { _mm256_loadu_ps(table[8 * i..8 * i + 8].as_ptr()) });
        for (codes, out) in
            codes.as_flattened().as_chunks::<8>().0.iter().zip(out.as_flattened_mut().as_chunks_mut::<8>().0)
        {
            // SAFETY: the reference covers the 8 bytes that are read.
            let codes = unsafe { _mm_loadl_epi64(codes.as_ptr().cast()) };
            let index = _mm256_cvtepu8_epi32(codes);
            let [a, b, c, d] = parts.map(|part| _mm256_permutevar8x32_ps(part, index));
            // Bits 3 and 4 of a code, as signs, choose the part.
            let third = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
            let fourth = _mm256_castsi256_ps(_mm256_slli_epi32::<27>(index));
            let (low, high) = (_mm256_blendv_ps(a, b, third), _mm256_blendv_ps(c, d, third));
            let numbers = _mm256_blendv_ps(low, high, fourth);
            // SAFETY: the reference covers the 32 bytes that are written.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), numbers) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_finds_the_same_numbers() {
        let table: [f32; ENTRIES] = std::array::from_fn(|i| i as f32 - 7.5);
        for len in [0, 1, 15, 16, 17, 100, 512] {
            let codes: Vec<u8> = (0..len).map(|i| (crate::random::word(1, 0, i) % 32) as u8).collect();
            let expected: Vec<f32> = codes.iter().map(|&code| f32::from(code) - 7.5).collect();
            for form in crate::arch::forms() {
                let mut out = vec![0.0; codes.len()];
                numbers(form, &table, &codes, &mut out);
                assert_eq!(out, expected, "{form:?} {len}");
            }
        }
    }
}
