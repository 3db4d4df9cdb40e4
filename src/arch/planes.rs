//! Elements of two and four bytes to their byte planes and back, 32 at a time. In the plain form these
//! functions do nothing: loops over single elements, which give the same bytes, do the rest.

use super::Form;
#[cfg(target_arch = "x86_64")]
use super::Width;

/// Writes byte `i` of each element, rotated to the left by `turn` bits, to plane `i`. A plane is as long as
/// `elements`, or empty and left out. Returns the number of elements split, from the first on.
pub(crate) fn split<const SIZE: usize>(
    form: Form,
    turn: u32,
    elements: &[[u8; SIZE]],
    planes: &mut [&mut [u8]],
) -> usize {
    let whole = elements.len() / ROW * ROW;
    if planes.len() != SIZE || planes.iter().any(|plane| !plane.is_empty() && plane.len() < whole) {
        return 0;
    }
    match (form.0, SIZE) {
        // SAFETY: these forms exist only if the processor has AVX2. `SIZE` is that of the elements, and each
        // plane is empty or has room for the whole rows.
        #[cfg(target_arch = "x86_64")]
        (Width::Avx2 | Width::Avx512, 2) => unsafe { x86::split2(turn, elements.as_flattened(), planes) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Width::Avx2 | Width::Avx512, 4) => unsafe { x86::split4(turn, elements.as_flattened(), planes) },
        _ => {
            let _ = turn;
            return 0;
        }
    }
    #[cfg(target_arch = "x86_64")]
    whole
}

/// Inverts [`split`] for planes that are as long as `out`. Returns the number of elements joined, from the
/// first on.
pub(crate) fn join<const SIZE: usize>(
    form: Form,
    turn: u32,
    planes: &[&[u8]],
    out: &mut [[u8; SIZE]],
) -> usize {
    let whole = out.len() / ROW * ROW;
    if planes.len() != SIZE || planes.iter().any(|plane| plane.len() < whole) {
        return 0;
    }
    match (form.0, SIZE) {
        // SAFETY: these forms exist only if the processor has AVX2. `SIZE` is that of the elements, and each
        // plane has bytes for the whole rows.
        #[cfg(target_arch = "x86_64")]
        (Width::Avx2 | Width::Avx512, 2) => unsafe { x86::join2(turn, planes, out.as_flattened_mut()) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Width::Avx2 | Width::Avx512, 4) => unsafe { x86::join4(turn, planes, out.as_flattened_mut()) },
        _ => {
            let _ = turn;
            return 0;
        }
    }
    #[cfg(target_arch = "x86_64")]
    whole
}

/// Elements that are split or joined at a time.
const ROW: usize = 32;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::ROW;

    /// Counts for shifts that rotate elements of `bits` bits to the left by `turn` bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn counts(turn: u32, bits: u32) -> [__m128i; 2] {
        // A shift by all bits gives zero, so that a rotation by nothing changes nothing.
        [turn, bits - turn].map(|count| _mm_cvtsi32_si128(count.cast_signed()))
    }

    /// # Safety
    /// Each plane is empty or has a byte for each element of whole rows.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn split4(turn: u32, elements: &[u8], planes: &mut [&mut [u8]]) {
        let [left, right] = counts(turn, 32);
        // The bytes of four elements, by their significance.
        let by_significance =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        let in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        for (row, elements) in elements.as_chunks::<{ 4 * ROW }>().0.iter().enumerate() {
            let load = |eight: usize| {
                // SAFETY: `eight` is at most 3, and a row has 4 x 32 bytes.
                let x = unsafe { _mm256_loadu_si256(elements.as_ptr().add(32 * eight).cast()) };
                let x = _mm256_or_si256(_mm256_sll_epi32(x, left), _mm256_srl_epi32(x, right));
                _mm256_shuffle_epi8(x, by_significance)
            };
            let (a, b, c, d) = (load(0), load(1), load(2), load(3));
            let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let low = [_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd)];
            let (ab, cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            let high = [_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd)];
            for (plane, bytes) in planes.iter_mut().zip([low[0], low[1], high[0], high[1]]) {
                if !plane.is_empty() {
                    let bytes = _mm256_permutevar8x32_epi32(bytes, in_order);
                    // SAFETY: the caller's plane has 32 bytes for this row.
                    unsafe { _mm256_storeu_si256(plane.as_mut_ptr().add(ROW * row).cast(), bytes) };
                }
            }
        }
    }

    /// # Safety
    /// As [`split4`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn split2(turn: u32, elements: &[u8], planes: &mut [&mut [u8]]) {
        let [left, right] = counts(turn, 16);
        let low_bytes = _mm256_set1_epi16(0xff);
        for (row, elements) in elements.as_chunks::<{ 2 * ROW }>().0.iter().enumerate() {
            let load = |half: usize| {
                // SAFETY: `half` is at most 1, and a row has 2 x 32 bytes.
                let x = unsafe { _mm256_loadu_si256(elements.as_ptr().add(32 * half).cast()) };
                _mm256_or_si256(_mm256_sll_epi16(x, left), _mm256_srl_epi16(x, right))
            };
            let (a, b) = (load(0), load(1));
            let low = _mm256_packus_epi16(_mm256_and_si256(a, low_bytes), _mm256_and_si256(b, low_bytes));
            let high = _mm256_packus_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b));
            for (plane, bytes) in planes.iter_mut().zip([low, high]) {
                if !plane.is_empty() {
                    // Packing works in halves of the vectors: the permutation restores the order.
                    let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
                    // SAFETY: the caller's plane has 32 bytes for this row.
                    unsafe { _mm256_storeu_si256(plane.as_mut_ptr().add(ROW * row).cast(), bytes) };
                }
            }
        }
    }

    /// The bytes of a plane for a row, in the order in which unpacking leaves pairs of them side by side.
    ///
    /// # Safety
    /// The plane has 32 bytes for the row.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load_row(plane: &[u8], row: usize) -> __m256i {
        // SAFETY: as the caller says.
        let bytes = unsafe { _mm256_loadu_si256(plane.as_ptr().add(ROW * row).cast()) };
        _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes)
    }

    /// # Safety
    /// There are four planes, each with a byte for each element of whole rows.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn join4(turn: u32, planes: &[&[u8]], out: &mut [u8]) {
        let [left, right] = counts(turn, 32);
        for (row, out) in out.as_chunks_mut::<{ 4 * ROW }>().0.iter_mut().enumerate() {
            // SAFETY: the caller's planes have 32 bytes for this row.
            let [a, b, c, d] = [0, 1, 2, 3].map(|plane| unsafe { load_row(planes[plane], row) });
            let lows = [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)];
            let highs = [_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d)];
            for (half, (low, high)) in lows.into_iter().zip(highs).enumerate() {
                // Elements 0 to 3 and 8 to 11 of this half, then 4 to 7 and 12 to 15.
                let (x, y) = (_mm256_unpacklo_epi16(low, high), _mm256_unpackhi_epi16(low, high));
                let parts =
                    [_mm256_permute2x128_si256::<0x20>(x, y), _mm256_permute2x128_si256::<0x31>(x, y)];
                for (eight, x) in parts.into_iter().enumerate() {
                    let x = _mm256_or_si256(_mm256_srl_epi32(x, left), _mm256_sll_epi32(x, right));
                    let at = 64 * half + 32 * eight;
                    // SAFETY: `at` is at most 96, and a row of elements has 128 bytes.
                    unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at).cast(), x) };
                }
            }
        }
    }

    /// # Safety
    /// There are two planes, each with a byte for each element of whole rows.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn join2(turn: u32, planes: &[&[u8]], out: &mut [u8]) {
        let [left, right] = counts(turn, 16);
        for (row, out) in out.as_chunks_mut::<{ 2 * ROW }>().0.iter_mut().enumerate() {
            // SAFETY: the caller's planes have 32 bytes for this row.
            let [low, high] = [0, 1].map(|plane| unsafe { load_row(planes[plane], row) });
            let halves = [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)];
            for (half, x) in halves.into_iter().enumerate() {
                let x = _mm256_or_si256(_mm256_srl_epi16(x, left), _mm256_sll_epi16(x, right));
                // SAFETY: `half` is at most 1, and a row of elements has 64 bytes.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(32 * half).cast(), x) };
            }
        }
    }
}
