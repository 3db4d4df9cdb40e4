//! Sums of the columns of narrow rows: each row has a key, and a sum goes down a column.

use crate::arch::Form;
#[cfg(target_arch = "x86_64")]
use crate::arch::Width;

/// Limbs of the keys of two consecutive rows, in four lanes, as of [`super::Limbs`]: that of the first row in
/// the low half of a number.
pub(crate) type Pair<const L: usize> = [[i32; L]; 4];

/// Keys of consecutive rows, in two forms.
#[derive(Clone, Copy)]
pub(crate) struct RowKeys<'a, const L: usize> {
    /// One entry for each row.
    pub(crate) plain: &'a [[u32; 4]],
    /// One entry for each two rows.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only wide instructions read it"))]
    pub(crate) pairs: &'a [Pair<L>],
}

/// Rows of integers of the same size, at equal distances.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a [u8],
    /// First byte of the first row.
    pub(crate) start: usize,
    /// Bytes from one row to the next.
    pub(crate) stride: usize,
}

/// Integers that are read from the beginning of each row, also of a shorter one.
pub(crate) const READ: usize = 16;

/// Adds to `out`, for each column and each lane, the sum over at most 2^16 rows of their signed integer of
/// `W` bytes times the key of the row. `L` is 3 for words, and 2 for bytes. The sums are equal modulo
/// 2^31 - 1 in every form, and at most 2^62. The number of rows is even; each has [`READ`] integers in the
/// data.
pub(crate) fn add<const W: usize, const L: usize>(
    form: Form,
    rows: Rows<'_>,
    keys: RowKeys<'_, L>,
    out: &mut [[i64; 4]],
) {
    if keys.pairs.is_empty() || out.is_empty() {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if rows.have(keys.plain.len(), W * out.len().max(READ)) && keys.plain.len() == 2 * keys.pairs.len() {
        match form.0 {
            // SAFETY: the form exists only if the processor has these instructions; the rows are in the data.
            Width::Avx512 => return unsafe { x86::avx512::<W, L>(rows, keys.pairs, out) },
            // SAFETY: as above.
            Width::Avx2 => return unsafe { x86::avx2::<W, L>(rows, keys.pairs, out) },
            Width::Plain => {}
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = form;
    plain::<W>(rows, keys.plain, out);
}

impl Rows<'_> {
    /// Whether `bytes` bytes of each of `count` rows are in the data.
    #[cfg(target_arch = "x86_64")]
    fn have(&self, count: usize, bytes: usize) -> bool {
        let last = count.saturating_sub(1).checked_mul(self.stride).and_then(|at| at.checked_add(self.start));
        last.and_then(|last| last.checked_add(bytes)).is_some_and(|end| end <= self.data.len())
    }
}

fn plain<const W: usize>(rows: Rows<'_>, keys: &[[u32; 4]], out: &mut [[i64; 4]]) {
    for (row, keys) in keys.iter().enumerate() {
        let row = &rows.data[rows.start + row * rows.stride..][..W * out.len()];
        for (integer, out) in row.as_chunks::<W>().0.iter().zip(&mut *out) {
            let value = match W {
                2 => i64::from(i16::from_le_bytes([integer[0], integer[W - 1]])),
                _ => i64::from(integer[0] as i8),
            };
            (0..4).for_each(|lane| out[lane] += value * i64::from(keys[lane]));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Pair, Rows};
    use crate::arch::sums::power;

    /// Pairs of rows whose products fit 32 bits: 2 x 50 x 2^15 x 645 and 2 x 200 x 2^7 x 2^15 are below 2^31.
    const fn tile<const L: usize>() -> usize {
        if L == 3 { 50 } else { 200 }
    }

    /// Pairs of rows in a tile of long rows, whose lines have few places in the first-level cache, and in one
    /// that is copied, which has at most 24 KiB.
    const SHORT: usize = 24;

    /// Pairs of rows in a tile of `len` columns.
    fn tile_of<const L: usize>(len: usize) -> usize {
        if len > 128 { SHORT } else { tile::<L>() }
    }

    /// Whether rows at this distance lie in one or two places of a first-level cache, as columns of rows do
    /// whose length is a power of two. Its ways hold a few of them, so that each pass of a kernel over a tile
    /// waits for them again: a copy of the tile pays from this distance on.
    fn collide(stride: usize) -> bool {
        stride.is_multiple_of(2048)
    }

    /// Sums of the columns of a block of `V`, in the order of [`column`].
    type Block<const V: usize> = [[i64; V]; 4];

    /// Column of the sum at `place`: two rows are interleaved in each 128 bits, low halves first.
    const fn column<const V: usize>(place: usize) -> usize {
        let half = V / 2;
        place / half * 4 + place % half / 4 * 8 + place % 4
    }

    /// First column of a block, the last of which may overlap the one before it.
    fn first<const V: usize>(block: usize, len: usize) -> usize {
        (V * block).min(len.saturating_sub(V))
    }

    fn put<const V: usize>(blocks: &[Block<V>], out: &mut [[i64; 4]]) {
        let len = out.len();
        for (number, sums) in blocks.iter().enumerate() {
            for (place, sums) in (0..V).map(|place| (place, sums.map(|lane| lane[place]))) {
                let column = first::<V>(number, len) + column::<V>(place);
                if column >= V * number && column < len {
                    out[column].iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
                }
            }
        }
    }

    /// Adds to `out`, 32 columns at a time.
    ///
    /// # Safety
    /// The data must have two rows for each pair of keys, each with the columns of `out` and at least 16.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn avx512<const W: usize, const L: usize>(
        rows: Rows<'_>,
        keys: &[Pair<L>],
        out: &mut [[i64; 4]],
    ) {
        if out.len() <= 16 {
            // SAFETY: as here.
            return unsafe { narrow_512::<W, L>(rows, keys, out) };
        }
        if out.len() < 32 {
            // SAFETY: as here.
            return unsafe { avx2::<W, L>(rows, keys, out) };
        }
        let mut blocks = vec![[[0; 32]; 4]; out.len().div_ceil(32)];
        let tile = tile_of::<L>(out.len());
        for (keys, number) in keys.chunks(tile).zip(0..) {
            let start = rows.start + number * 2 * tile * rows.stride;
            for (number, sums) in blocks.iter_mut().enumerate() {
                // SAFETY: all columns of the block are in the rows.
                unsafe {
                    let from = rows.data.as_ptr().add(start + W * first::<32>(number, out.len()));
                    tile_512::<W, L>(from, rows.stride, tile, keys, sums);
                }
            }
        }
        put(&blocks, out);
    }

    /// Requests the same columns of the row that the next tile has here.
    #[inline(always)]
    fn fetch(row: *const u8, ahead: usize) {
        let ahead = row.wrapping_add(ahead);
        // SAFETY: a hint about an address, which may be any, changes no memory and raises no fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
    }

    /// Adds the products of a tile of 32 columns to their sums.
    ///
    /// # Safety
    /// The data must have 32 integers of each row from `from` on.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn tile_512<const W: usize, const L: usize>(
        from: *const u8,
        stride: usize,
        tile: usize,
        keys: &[Pair<L>],
        sums: &mut Block<32>,
    ) {
        let mut acc = [[[_mm512_setzero_si512(); 2]; L]; 4];
        for (number, keys) in keys.iter().enumerate() {
            // SAFETY: a row has 32 integers here.
            let [first, second] = [0, 1].map(|row| unsafe {
                let at = from.add((2 * number + row) * stride);
                fetch(at, 2 * tile * stride);
                match W {
                    2 => _mm512_loadu_si512(at.cast()),
                    _ => _mm512_cvtepi8_epi16(_mm256_loadu_si256(at.cast())),
                }
            });
            let values = [_mm512_unpacklo_epi16(first, second), _mm512_unpackhi_epi16(first, second)];
            for (acc, keys) in acc.iter_mut().zip(keys) {
                for (acc, key) in acc.iter_mut().zip(keys) {
                    let key = _mm512_set1_epi32(*key);
                    for (acc, values) in acc.iter_mut().zip(values) {
                        *acc = _mm512_dpwssd_epi32(*acc, values, key);
                    }
                }
            }
        }
        for (acc, sums) in acc.iter().zip(sums) {
            for (half, sums) in sums.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                store_512::<L>(acc.map(|limb| limb[half]), sums);
            }
        }
    }

    /// Adds the sums of limbs to 16 sums.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    fn store_512<const L: usize>(limbs: [__m512i; L], sums: &mut [i64; 16]) {
        let mut parts = [_mm512_setzero_si512(); 2];
        for (limb, exponent) in limbs.into_iter().zip(0..) {
            let power = _mm512_set1_epi64(power::<L>(exponent));
            let low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(limb));
            let high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64::<1>(limb));
            for (part, limb) in parts.iter_mut().zip([low, high]) {
                *part = _mm512_add_epi64(*part, _mm512_mul_epi32(limb, power));
            }
        }
        for (part, sums) in parts.iter().zip(sums.as_chunks_mut::<8>().0) {
            // SAFETY: eight sums have 64 bytes.
            unsafe {
                let at = sums.as_mut_ptr().cast();
                _mm512_storeu_si512(at, _mm512_add_epi64(*part, _mm512_loadu_si512(at.cast_const())));
            }
        }
    }

    /// As [`avx512`], for at most 16 columns: both rows of a pair are in one vector.
    ///
    /// # Safety
    /// The data must have two rows for each pair of keys, each with 16 integers.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn narrow_512<const W: usize, const L: usize>(
        rows: Rows<'_>,
        keys: &[Pair<L>],
        out: &mut [[i64; 4]],
    ) {
        let order: [i16; 32] = std::array::from_fn(|at| (at / 2 + at % 2 * 16) as i16);
        // SAFETY: 32 numbers have 64 bytes.
        let order = unsafe { _mm512_loadu_si512(order.as_ptr().cast()) };
        let mut sums = [[0; 16]; 4];
        for (keys, from) in keys.chunks(const { tile::<L>() }).zip((0..).step_by(const { tile::<L>() })) {
            let mut acc = [[_mm512_setzero_si512(); L]; 4];
            for (number, keys) in keys.iter().enumerate() {
                // SAFETY: a row has 16 integers.
                let [first, second] = [0, 1].map(|row| unsafe {
                    let row = 2 * (from + number) + row;
                    let at = rows.data.as_ptr().add(rows.start + row * rows.stride);
                    fetch(at, 2 * const { tile::<L>() } * rows.stride);
                    match W {
                        2 => _mm256_loadu_si256(at.cast()),
                        _ => _mm256_cvtepi8_epi16(_mm_loadu_si128(at.cast())),
                    }
                });
                let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
                let values = _mm512_permutexvar_epi16(order, both);
                for (acc, keys) in acc.iter_mut().zip(keys) {
                    for (acc, key) in acc.iter_mut().zip(keys) {
                        *acc = _mm512_dpwssd_epi32(*acc, values, _mm512_set1_epi32(*key));
                    }
                }
            }
            for (acc, sums) in acc.iter().zip(&mut sums) {
                store_512::<L>(*acc, sums);
            }
        }
        for (column, out) in out.iter_mut().enumerate() {
            (0..4).for_each(|lane| out[lane] += sums[lane][column]);
        }
    }

    /// Adds to `out`, 16 columns at a time.
    ///
    /// # Safety
    /// As [`avx512`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2<const W: usize, const L: usize>(
        rows: Rows<'_>,
        keys: &[Pair<L>],
        out: &mut [[i64; 4]],
    ) {
        let mut blocks = vec![[[0; 16]; 4]; out.len().div_ceil(16)];
        let (is_copied, width) = (collide(rows.stride), W * 16 * blocks.len());
        let tile = if is_copied { SHORT } else { tile_of::<L>(out.len()) };
        let mut copy = vec![0; if is_copied { 2 * tile * width } else { 0 }];
        for (keys, number) in keys.chunks(tile).zip(0..) {
            let start = rows.start + number * 2 * tile * rows.stride;
            for (row, to) in (0..2 * keys.len()).zip(copy.chunks_exact_mut(width)) {
                for (block, to) in to.chunks_exact_mut(W * 16).enumerate() {
                    let from = start + row * rows.stride + W * first::<16>(block, out.len());
                    to.copy_from_slice(&rows.data[from..][..W * 16]);
                }
            }
            for (number, sums) in blocks.iter_mut().enumerate() {
                let at = start + W * first::<16>(number, out.len());
                let next = rows.data.as_ptr().wrapping_add(at + 2 * tile * rows.stride);
                // Sixteen registers hold the sums of two lanes.
                // SAFETY: all columns of the block are in the rows, and in their copies.
                unsafe {
                    let (from, stride) = match is_copied {
                        true => (copy.as_ptr().add(W * 16 * number), width),
                        false => (rows.data.as_ptr().add(at), rows.stride),
                    };
                    let next = Next { from: next, stride: rows.stride, is_second: number % 2 == 1 };
                    tile_256::<W, L, 0>(from, stride, next, keys, sums);
                    tile_256::<W, L, 2>(from, stride, next, keys, sums);
                }
            }
        }
        put(&blocks, out);
    }

    /// The same columns of the next tile. Two blocks share a line of words, and two passes: each requests
    /// other rows, as all requests at once would have to wait.
    #[derive(Clone, Copy)]
    struct Next {
        from: *const u8,
        stride: usize,
        is_second: bool,
    }

    /// Adds to two lanes from `LANE` on.
    ///
    /// # Safety
    /// The data must have 16 integers of each row from `from` on.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn tile_256<const W: usize, const L: usize, const LANE: usize>(
        from: *const u8,
        stride: usize,
        next: Next,
        keys: &[Pair<L>],
        sums: &mut Block<16>,
    ) {
        let mut acc = [[[_mm256_setzero_si256(); 2]; L]; 2];
        for (number, keys) in keys.iter().enumerate() {
            if number % 2 == LANE / 2 {
                fetch(next.from, (2 * number + usize::from(next.is_second)) * next.stride);
            }
            // SAFETY: a row has 16 integers here.
            let [first, second] = [0, 1].map(|row| unsafe {
                let at = from.add((2 * number + row) * stride);
                match W {
                    2 => _mm256_loadu_si256(at.cast()),
                    _ => _mm256_cvtepi8_epi16(_mm_loadu_si128(at.cast())),
                }
            });
            let values = [_mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second)];
            for (acc, keys) in acc.iter_mut().zip([&keys[LANE], &keys[LANE + 1]]) {
                for (acc, key) in acc.iter_mut().zip(keys) {
                    let key = _mm256_set1_epi32(*key);
                    for (acc, values) in acc.iter_mut().zip(values) {
                        *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(values, key));
                    }
                }
            }
        }
        for (acc, sums) in acc.iter().zip(&mut sums[LANE..]) {
            for half in 0..2 {
                let mut parts = [_mm256_setzero_si256(); 2];
                for (limb, acc) in acc.iter().enumerate() {
                    let power = _mm256_set1_epi64x(power::<L>(limb));
                    let low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(acc[half]));
                    let high = _mm256_cvtepi32_epi64(_mm256_extracti128_si256::<1>(acc[half]));
                    for (part, limbs) in parts.iter_mut().zip([low, high]) {
                        *part = _mm256_add_epi64(*part, _mm256_mul_epi32(limbs, power));
                    }
                }
                for (part, sums) in parts.iter().zip(sums[8 * half..][..8].as_chunks_mut::<4>().0) {
                    // SAFETY: four sums have 32 bytes.
                    unsafe {
                        let at = sums.as_mut_ptr().cast();
                        _mm256_storeu_si256(at, _mm256_add_epi64(*part, _mm256_loadu_si256(at.cast_const())));
                    }
                }
            }
        }
    }
}

/// Returns the limbs of two keys as one number of a [`Pair`].
pub(crate) fn joined([first, second]: [i16; 2]) -> i32 {
    i32::from(first) & 0xffff | i32::from(second) << 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::forms;
    use crate::arch::sums::{BASE, BYTE_BASE};

    const P: i64 = (1 << 31) - 1;

    /// Balanced limbs of the keys of pairs of rows.
    fn pairs<const L: usize>(keys: &[[u32; 4]], base: i64) -> Vec<Pair<L>> {
        let mut out = vec![[[0; L]; 4]; keys.len() / 2];
        for (row, keys) in keys.iter().enumerate() {
            for lane in 0..4 {
                let key = i64::from(keys[lane]);
                let mut rest = if key > P / 2 { key - P } else { key };
                for limb in &mut out[row / 2][lane] {
                    let low = (rest + base / 2).rem_euclid(base) - base / 2;
                    rest = (rest - low) / base;
                    let low = i16::try_from(low).unwrap();
                    *limb |= joined(if row % 2 == 0 { [low, 0] } else { [0, low] });
                }
                assert_eq!(rest, 0);
            }
        }
        out
    }

    #[test]
    fn every_form_gives_the_same_columns() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as u32
        };
        let extremes = [1, P as u32 / 2, P as u32 / 2 + 1, P as u32 - 1];
        let contiguous = [(102, 16, 0), (402, 31, 0), (806, 64, 0)];
        let apart = [(2, 1, 40), (100, 3, 13), (400, 17, 3), (2, 100, 7)];
        // Rows whose lines share places in the cache.
        let colliding = [(2, 3, 2045), (98, 40, 2008), (146, 17, 2031)];
        for (rows, len, gap) in contiguous.into_iter().chain(apart).chain(colliding) {
            let keys: Vec<[u32; 4]> = (0..rows)
                .map(|row| {
                    std::array::from_fn(|lane| match row / 3 % 2 {
                        0 => next() % (P as u32 - 1) + 1,
                        _ => extremes[(row + lane) % 4],
                    })
                })
                .collect();
            let (three, two) = (pairs::<3>(&keys, BASE), pairs::<2>(&keys, BYTE_BASE));
            for start in [0, 5] {
                let bytes = start + 2 * (rows * (len + gap) + READ);
                let random: Vec<u8> = (0..bytes).map(|_| next() as u8).collect();
                // All integers are the most negative ones, as words or as bytes.
                let words: Vec<u8> = (0..bytes).map(|at| 0x80 * ((at + start + 1) % 2) as u8).collect();
                for data in [&random, &words, &vec![0x80; bytes]] {
                    let found = |form| {
                        let mut sums = vec![[7; 4]; 2 * len];
                        let (of_words, of_bytes) = sums.split_at_mut(len);
                        let stride = len + gap;
                        let words = Rows { data, start, stride: 2 * stride };
                        add::<2, 3>(form, words, RowKeys { plain: &keys, pairs: &three }, of_words);
                        let bytes = Rows { data, start, stride };
                        add::<1, 2>(form, bytes, RowKeys { plain: &keys, pairs: &two }, of_bytes);
                        assert!(sums.as_flattened().iter().all(|sum| sum.unsigned_abs() <= 1 << 62));
                        sums.iter().map(|lanes| lanes.map(|sum| sum.rem_euclid(P))).collect::<Vec<_>>()
                    };
                    let mut forms = forms().map(found);
                    let expected = forms.next().unwrap();
                    assert!(forms.all(|found| found == expected), "{rows} rows of {len}");
                }
            }
        }
    }
}
