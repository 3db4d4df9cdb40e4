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

/// Writes to `out`, which has a word for each 64 pairs, which of the 16-bit elements of `a` and `b` differ.
pub(crate) fn unequal(form: Form, a: &[[u8; 2]], b: &[[u8; 2]], out: &mut [u64]) {
    let ((a_rows, a_rest), (b_rows, b_rest)) = (a.as_chunks::<64>(), b.as_chunks::<64>());
    let whole = a_rows.len().min(b_rows.len());
    let (whole, last) = out.split_at_mut(whole);
    match form.0 {
        // SAFETY: the form exists only if the processor has AVX-512 with bytes and words.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::unequal_avx512(a_rows, b_rows, whole) },
        // SAFETY: the form exists only if the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::unequal_avx2(a_rows, b_rows, whole) },
        _ => a_rows.iter().zip(b_rows).zip(whole).for_each(|((a, b), out)| *out = unequal_word(a, b)),
    }
    last.iter_mut().for_each(|out| *out = unequal_word(a_rest, b_rest));
}

/// Writes 1 where `ones` has a bit, -1 where `minus_ones` has one, and 0 elsewhere. No bit is in both.
pub(crate) fn ternary(form: Form, ones: u64, minus_ones: u64, out: &mut [i8; 64]) {
    match form.0 {
        // SAFETY: the form exists only if the processor has AVX-512 with bytes and words.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::ternary_avx512(ones, minus_ones, out) },
        // SAFETY: the form exists only if the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::ternary_avx2(ones, minus_ones, out) },
        _ => {
            let bytes = ones.to_le_bytes().into_iter().zip(minus_ones.to_le_bytes());
            for (out, (ones, minus_ones)) in out.as_chunks_mut::<8>().0.iter_mut().zip(bytes) {
                // -1 is a byte of ones.
                let eight = (spread(ones) | (255 * spread(minus_ones))).to_le_bytes();
                out.iter_mut().zip(eight).for_each(|(out, byte)| *out = byte.cast_signed());
            }
        }
    }
}

/// The bits of a byte, each in the lowest bit of a byte.
fn spread(bits: u8) -> u64 {
    // Bit i stays in byte i; then all bytes but zero carry into their highest bit.
    let each = (u64::from(bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    (each + 0x7f7f_7f7f_7f7f_7f7f) >> 7 & 0x0101_0101_0101_0101
}

fn unequal_word(a: &[[u8; 2]], b: &[[u8; 2]]) -> u64 {
    a.iter().zip(b).zip(0..).fold(0, |word, ((a, b), place)| word | u64::from(a != b) << place)
}

/// Room for the numbers of all bits of 64 rows, and for the last store of a wide form.
pub(crate) type Ones = [u16; 64 * 64 + 32];

/// Writes the numbers of the ones in rows of 64 bits to `out`, in ascending order, and returns them.
pub(crate) fn ones<'o>(form: Form, rows: &[u64; 64], out: &'o mut Ones) -> &'o [u16] {
    let mut count = 0;
    match form.0 {
        // SAFETY: the form exists only if the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => count = unsafe { x86::ones(rows, out) },
        _ => {
            for (row, &mask) in rows.iter().enumerate() {
                let mut rest = mask;
                while rest != 0 {
                    out[count] = (64 * row) as u16 + rest.trailing_zeros() as u16;
                    count += 1;
                    rest &= rest - 1;
                }
            }
        }
    }
    &out[..count]
}

/// Rows of 64 bits with an order of all ones.
#[derive(Clone)]
pub(crate) struct Rows {
    pub(crate) masks: [u64; 64],
    /// Number of ones in the rows before each row.
    pub(crate) before: [u16; 64],
}

impl Rows {
    /// No ones.
    pub(crate) const EMPTY: Self = Self { masks: [0; 64], before: [0; 64] };
}

/// Writes the places of ones to `out`: for each of `ranks`, ascending from 0, the place of the one with as
/// many ones before it. Stops at a rank that is not below `end`, the number of ones, and at the end of `out`;
/// returns the number of places. `passed` is subtracted from each rank first.
pub(crate) fn select(
    form: Form,
    rows: &Rows,
    ranks: &[u64],
    passed: u64,
    end: u64,
    out: &mut [u16],
) -> usize {
    match form.0 {
        // SAFETY: these forms exist only if the processor has AVX2, BMI2 and POPCNT.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 | Width::Avx512 => unsafe { x86::select(rows, ranks, passed, end, out) },
        _ => select_with(ranks, passed, end, out, |inside| {
            let row = rows.before.iter().rposition(|&before| u64::from(before) <= inside).unwrap_or(0);
            let mut mask = rows.masks[row];
            for _ in u64::from(rows.before[row])..inside {
                mask &= mask.wrapping_sub(1);
            }
            (64 * row) as u16 + mask.trailing_zeros() as u16
        }),
    }
}

#[inline(always)]
fn select_with(ranks: &[u64], passed: u64, end: u64, out: &mut [u16], place: impl Fn(u64) -> u16) -> usize {
    let mut found = 0;
    for (out, rank) in out.iter_mut().zip(ranks) {
        let inside = rank.wrapping_sub(passed);
        if inside >= end {
            break;
        }
        *out = place(inside);
        found += 1;
    }
    found
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

    #[target_feature(enable = "avx2,bmi2,popcnt")]
    pub(super) fn select(rows: &super::Rows, ranks: &[u64], passed: u64, end: u64, out: &mut [u16]) -> usize {
        let before: [__m256i; 4] = std::array::from_fn(|i| {
            // SAFETY: the 64 numbers have room for four loads of 16.
            unsafe { _mm256_loadu_si256(rows.before.as_ptr().add(16 * i).cast()) }
        });
        super::select_with(ranks, passed, end, out, |inside| {
            // The last row that has at most `inside` ones before it; there are at most 4,096 ones.
            let inside = inside as i16;
            let [a, b, c, d] = before.map(|before| _mm256_cmpgt_epi16(before, _mm256_set1_epi16(inside)));
            let more = |a, b| _mm256_movemask_epi8(_mm256_packs_epi16(a, b)).count_ones();
            let row = (63 - more(a, b) - more(c, d)) as usize % 64;
            let rank = inside.cast_unsigned() - rows.before[row];
            (64 * row) as u16 + _pdep_u64(1 << (rank % 64), rows.masks[row]).trailing_zeros() as u16
        })
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn unequal_avx512(a: &[[[u8; 2]; 64]], b: &[[[u8; 2]; 64]], out: &mut [u64]) {
        for ((a, b), out) in a.iter().zip(b).zip(out) {
            let [low, high] = [0, 32].map(|half| {
                let load = |row: &[[u8; 2]; 64]| {
                    // SAFETY: the row covers the 64 bytes from either half.
                    unsafe { _mm512_loadu_si512(row.as_ptr().add(half).cast()) }
                };
                u64::from(_mm512_cmpneq_epi16_mask(load(a), load(b)))
            });
            *out = low | high << 32;
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn unequal_avx2(a: &[[[u8; 2]; 64]], b: &[[[u8; 2]; 64]], out: &mut [u64]) {
        for ((a, b), out) in a.iter().zip(b).zip(out) {
            let equal = |at: usize| {
                let load = |row: &[[u8; 2]; 64]| {
                    // SAFETY: `at` is at most 48, and the row covers the 32 bytes from there.
                    unsafe { _mm256_loadu_si256(row.as_ptr().add(at).cast()) }
                };
                _mm256_cmpeq_epi16(load(a), load(b))
            };
            let [low, high] = [0, 32].map(|half| {
                // Packing works in halves of the vectors: the permutation restores the order.
                let packed = _mm256_packs_epi16(equal(half), equal(half + 16));
                let equal = _mm256_movemask_epi8(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
                u64::from(!equal.cast_unsigned())
            });
            *out = low | high << 32;
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
    pub(super) fn ones(rows: &[u64; 64], out: &mut super::Ones) -> usize {
        let mut used = 0u64;
        for (eight, at) in rows.as_chunks::<8>().0.iter().zip((0..).step_by(8)) {
            // SAFETY: eight rows have 64 bytes.
            let eight = unsafe { _mm512_loadu_si512(eight.as_ptr().cast()) };
            used |= u64::from(_mm512_test_epi64_mask(eight, eight)) << at;
        }
        let numbers: [u16; 32] = std::array::from_fn(|number| number as u16);
        // SAFETY: 32 numbers have 64 bytes.
        let numbers = unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) };
        let mut count = 0;
        while used != 0 {
            let row = used.trailing_zeros() as usize % 64;
            used &= used - 1;
            for half in [0, 32] {
                let mask = (rows[row] >> half) as u32;
                let first = _mm512_set1_epi16((64 * row + half) as i16);
                let ones = _mm512_maskz_compress_epi16(mask, _mm512_add_epi16(numbers, first));
                let window = &mut out[count..count + 32];
                // SAFETY: the slice covers the 64 bytes that are written.
                unsafe { _mm512_storeu_si512(window.as_mut_ptr().cast(), ones) };
                count += mask.count_ones() as usize;
            }
        }
        count
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn ternary_avx512(ones: u64, minus_ones: u64, out: &mut [i8; 64]) {
        // A mask becomes bytes of -1.
        let signs = _mm512_sub_epi8(_mm512_movm_epi8(minus_ones), _mm512_movm_epi8(ones));
        // SAFETY: the reference covers the 64 bytes that are written.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), signs) };
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn ternary_avx2(ones: u64, minus_ones: u64, out: &mut [i8; 64]) {
        let byte_of =
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let bit_of = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
        let minus_where = |bits: u64, half: usize| {
            let bits = _mm256_set1_epi32((bits >> (32 * half)) as i32);
            let bits = _mm256_and_si256(_mm256_shuffle_epi8(bits, byte_of), bit_of);
            _mm256_cmpeq_epi8(bits, bit_of)
        };
        for (half, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let signs = _mm256_sub_epi8(minus_where(minus_ones, half), minus_where(ones, half));
            // SAFETY: the reference covers the 32 bytes that are written.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), signs) };
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
    fn every_form_selects_ones_by_rank() {
        for density in 1..40u64 {
            let mut rows = Rows::EMPTY;
            let is_one = |at: u64| u64::from(crate::random::word(1, density, at)).is_multiple_of(density);
            let (mut places, mut ones) = (Vec::new(), 0);
            for row in 0..64 {
                rows.before[row] = ones;
                for bit in (0..64u32).filter(|bit| density == 39 || is_one(64 * row as u64 + u64::from(*bit)))
                {
                    rows.masks[row] |= 1 << bit;
                    places.push((64 * row) as u16 + bit as u16);
                    ones += 1;
                }
            }
            let end = u64::from(ones);
            let ranks: Vec<u64> =
                (0..end + 2).filter(|r| r % 3 != 1 || *r >= end).map(|r| r + 1000).collect();
            let expected: Vec<u16> = (0..end).filter(|r| r % 3 != 1).map(|r| places[r as usize]).collect();
            for form in forms() {
                let mut out = vec![0; ranks.len()];
                let found = select(form, &rows, &ranks, 1000, end, &mut out);
                assert_eq!(out[..found], expected, "{form:?} {density}");
                assert_eq!(select(form, &rows, &ranks, 1000, end, &mut out[..1]), 1);
            }
        }
    }

    #[test]
    fn every_form_lists_ones() {
        for density in [0, 1, 2, 3, 30, 700] {
            let is_one =
                |at: u64| density > 0 && crate::random::word(2, density, at).is_multiple_of(density as u32);
            let rows = std::array::from_fn(|row| {
                (0..64).fold(0, |mask, bit| mask | u64::from(is_one(64 * row as u64 + bit)) << bit)
            });
            let expected: Vec<u16> = (0..4096u16).filter(|&at| is_one(at.into())).collect();
            for form in forms() {
                let mut out = [7; 64 * 64 + 32];
                assert_eq!(ones(form, &rows, &mut out), expected, "{form:?} {density}");
            }
        }
    }

    #[test]
    fn every_form_finds_unequal_elements() {
        for len in [0usize, 1, 63, 64, 65, 200, 256] {
            let a: Vec<[u8; 2]> = (0..len).map(|i| [(i % 7) as u8, (i % 5) as u8]).collect();
            let flip = |(i, [low, high]): (usize, &[u8; 2])| match crate::random::word(1, 1, i as u64) % 3 {
                0 => [*low, *high],
                1 => [low ^ 1, *high],
                _ => [*low, high ^ 128],
            };
            let b: Vec<[u8; 2]> = a.iter().enumerate().map(flip).collect();
            for form in forms() {
                let mut out = vec![9; len.div_ceil(64)];
                unequal(form, &a, &b, &mut out);
                for i in 0..64 * out.len() {
                    assert_eq!(out[i / 64] >> (i % 64) & 1 == 1, i < len && a[i] != b[i], "{form:?} {i}");
                }
            }
        }
    }

    #[test]
    fn every_form_writes_signs_of_bits() {
        for case in 0..40 {
            let draw = |stream| [0, 1].map(|i| u64::from(crate::random::word(1, stream, 2 * case + i)));
            let [negative, has] = [draw(0), draw(1)].map(|[low, high]| low | high << 32);
            let (ones, minus_ones) = (negative & has, !negative & has);
            let expected = std::array::from_fn(|i| match (ones >> i & 1, minus_ones >> i & 1) {
                (1, _) => 1,
                (_, 1) => -1,
                _ => 0,
            });
            for form in forms() {
                let mut out = [9; 64];
                ternary(form, ones, minus_ones, &mut out);
                assert_eq!(out, expected, "{form:?} {case}");
            }
        }
    }

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
