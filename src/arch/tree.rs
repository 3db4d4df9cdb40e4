//! Symbols at the nodes of a tree (spec, section 7.8): merged and divided by the bits of a node, of which the
//! first symbol's is the lowest one of the first byte. The plain loops are those of the wide forms where a
//! list ends.
//!
//! ```text
//! merge 64 symbols:  AVX-512: spread the next symbols of the left list over the bits that are 0, and those
//!                    of the right one over the others
//!                    AVX2: eight times, look eight symbols up in the next eight of both lists, by a table
//!                    for all values of a byte of bits
//! take 64 symbols:   the same in the other direction
//! ```

use super::Form;
#[cfg(target_arch = "x86_64")]
use super::Width;

/// Symbols that a wide form reads at a time: it processes all symbols if as many bytes follow each list.
pub(crate) const ROW: usize = 64;

/// The symbols of a child of a node.
#[derive(Clone, Copy)]
pub(crate) enum Child<'a> {
    /// All are this one.
    Leaf(u8),
    /// They begin this list.
    List(&'a [u8]),
}

/// Fills `out` with the symbols of a node: for a bit of 0 the next of the `left` child, for a bit of 1 that
/// of the `right` one. A list must have enough of them.
pub(crate) fn merge(form: Form, bits: &[u8], left: Child<'_>, right: Child<'_>, out: &mut [u8]) {
    let done = match form.0 {
        // SAFETY: a form exists only if the processor has all features that its functions enable.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::merge_avx512(bits, left, right, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::merge_avx2(bits, left, right, out) },
        _ => Merged::default(),
    };
    merge_rest(bits, left, right, out, done);
}

/// How far a node is merged: the number of its symbols, and of those of them that are the right child's.
#[derive(Default)]
struct Merged {
    len: usize,
    ones: usize,
}

fn merge_rest(bits: &[u8], left: Child<'_>, right: Child<'_>, out: &mut [u8], done: Merged) {
    /// The symbols of a child, and how far to go for each of them.
    fn of<'a>(child: &'a Child<'_>) -> (&'a [u8], usize) {
        match child {
            Child::Leaf(symbol) => (std::slice::from_ref(symbol), 0),
            Child::List(list) => (list, 1),
        }
    }
    let ((left, left_step), (right, right_step)) = (of(&left), of(&right));
    let Merged { len, ones } = done;
    let (mut l, mut r) = ((len - ones) * left_step, ones * right_step);
    for (i, out) in out.iter_mut().enumerate().skip(len) {
        let bit = bit(bits, i);
        *out = if bit { right[r] } else { left[l] };
        (l, r) = (l + usize::from(!bit) * left_step, r + usize::from(bit) * right_step);
    }
}

#[inline(always)]
fn bit(bits: &[u8], i: usize) -> bool {
    bits[i / 8] >> (i % 8) & 1 != 0
}

/// Writes to `bits`, which has a byte for each eight of `ranks`, which of them are at least `pivot`. Returns
/// their number.
pub(crate) fn divide(form: Form, ranks: &[u8], pivot: u8, bits: &mut [u8]) -> usize {
    match form.0 {
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::divide_avx512(ranks, pivot, bits) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::divide_avx2(ranks, pivot, bits) },
        _ => divide_plainly(ranks, pivot, bits),
    }
}

fn divide_plainly(ranks: &[u8], pivot: u8, bits: &mut [u8]) -> usize {
    let mut ones = 0;
    for (eight, bits) in ranks.chunks(8).zip(bits) {
        *bits = eight.iter().zip(0..).fold(0, |bits, (&rank, i)| bits | u8::from(rank >= pivot) << i);
        ones += bits.count_ones() as usize;
    }
    ones
}

/// Fills `out` with the ranks whose bit is `wanted`, of which there are as many.
pub(crate) fn take(form: Form, bits: &[u8], wanted: bool, ranks: &[u8], out: &mut [u8]) {
    match form.0 {
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::take_avx512(bits, wanted, ranks, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::take_avx2(bits, wanted, ranks, out) },
        _ => take_plainly(bits, wanted, ranks, out),
    }
}

fn take_plainly(bits: &[u8], wanted: bool, ranks: &[u8], out: &mut [u8]) {
    let mut len = 0;
    for (i, &rank) in ranks.iter().enumerate() {
        // The place after the last one is that of no rank.
        if let Some(out) = out.get_mut(len) {
            *out = rank;
        }
        len += usize::from(bit(bits, i) == wanted);
    }
}

/// Writes the entry of each of `symbols` to `out`, which is at least as long.
pub(crate) fn map(form: Form, table: &[u8; 256], symbols: &[u8], out: &mut [u8]) {
    match form.0 {
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::map_avx512(table, symbols, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::map_avx2(table, symbols, out) },
        _ => map_plainly(table, symbols, out),
    }
}

fn map_plainly(table: &[u8; 256], symbols: &[u8], out: &mut [u8]) {
    symbols.iter().zip(out).for_each(|(&symbol, out)| *out = table[usize::from(symbol)]);
}

/// Returns the number of bits that are 1.
pub(crate) fn count_ones(form: Form, bits: &[u8]) -> usize {
    super::run_as(form, CountOnes(bits))
}

struct CountOnes<'a>(&'a [u8]);

impl super::Kernel for CountOnes<'_> {
    type Output = usize;

    #[inline(always)]
    fn call(self) -> usize {
        let (words, rest) = self.0.as_chunks();
        let mut ones = 0;
        for word in words {
            ones += u64::from_le_bytes(*word).count_ones();
        }
        for byte in rest {
            ones += byte.count_ones();
        }
        ones as usize
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Child, Merged, ROW, divide_plainly, map_plainly, take_plainly};

    /// Returns up to 64 bits, with zeros for missing ones.
    #[inline(always)]
    fn word(bits: &[u8]) -> u64 {
        match bits.first_chunk() {
            Some(bits) => u64::from_le_bytes(*bits),
            None => bits.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
        }
    }

    /// Returns a word whose `len` lowest bits are 1.
    #[inline]
    #[target_feature(enable = "bmi2")]
    fn lowest(len: usize) -> u64 {
        _bzhi_u64(u64::MAX, len.min(ROW) as u32)
    }

    /// Returns up to 64 bytes, with zeros for missing ones.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,bmi2")]
    fn load(bytes: &[u8]) -> __m512i {
        // SAFETY: only as many bytes are read as the slice has.
        unsafe { _mm512_maskz_loadu_epi8(lowest(bytes.len()), bytes.as_ptr().cast()) }
    }

    /// Writes as many of the bytes as `out` has room for.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,bmi2")]
    fn store(out: &mut [u8], bytes: __m512i) {
        match out.first_chunk_mut::<ROW>() {
            // SAFETY: the reference covers the 64 bytes that are written. Some processors take several times
            // as long for a store with a mask.
            Some(row) => unsafe { _mm512_storeu_epi8(row.as_mut_ptr().cast(), bytes) },
            // SAFETY: only as many bytes are written as the slice has.
            None => unsafe {
                _mm512_mask_storeu_epi8(out.as_mut_ptr().cast(), lowest(out.len()), bytes);
            },
        }
    }

    /// Calls a function of this module for which of the children are lists; the symbols of a leaf are a row.
    macro_rules! with_children {
        ($f:ident, $bits:expr, $left:expr, $right:expr, $out:expr) => {
            match ($left, $right) {
                (Child::List(left), Child::List(right)) => $f::<true, true>($bits, left, right, $out),
                (Child::List(left), Child::Leaf(right)) => {
                    $f::<true, false>($bits, left, &[right; ROW], $out)
                }
                (Child::Leaf(left), Child::List(right)) => {
                    $f::<false, true>($bits, &[left; ROW], right, $out)
                }
                (Child::Leaf(left), Child::Leaf(right)) => {
                    $f::<false, false>($bits, &[left; ROW], &[right; ROW], $out)
                }
            }
        };
    }

    /// Calls `merge` with the bits of each row, the next symbols of both children, and the place of the row,
    /// until a list has no whole row left.
    #[inline(always)]
    fn each_row<const LEFT: bool, const RIGHT: bool>(
        bits: &[u8],
        left: &[u8],
        right: &[u8],
        out: &mut [u8],
        merge: impl Fn(u64, &[u8; ROW], &[u8; ROW], &mut [u8]),
    ) -> Merged {
        let mut done = Merged::default();
        for (bits, out) in bits.chunks(ROW / 8).zip(out.chunks_mut(ROW)) {
            let l = if LEFT { done.len - done.ones } else { 0 };
            let r = if RIGHT { done.ones } else { 0 };
            let (Some(lefts), Some(rights)) = (left[l..].first_chunk(), right[r..].first_chunk()) else {
                break;
            };
            let ones = word(bits);
            merge(ones, lefts, rights, out);
            done.len += out.len();
            done.ones += ones.count_ones() as usize;
        }
        done
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    pub(super) fn merge_avx512(bits: &[u8], left: Child<'_>, right: Child<'_>, out: &mut [u8]) -> Merged {
        with_children!(merge_rows_avx512, bits, left, right, out)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    fn merge_rows_avx512<const LEFT: bool, const RIGHT: bool>(
        bits: &[u8],
        left: &[u8],
        right: &[u8],
        out: &mut [u8],
    ) -> Merged {
        each_row::<LEFT, RIGHT>(bits, left, right, out, |ones, left, right, out| {
            // SAFETY: the references cover the 64 bytes that are read.
            let [left, right] = [left, right].map(|row| unsafe { _mm512_loadu_epi8(row.as_ptr().cast()) });
            let symbols = match (LEFT, RIGHT) {
                (true, true) => _mm512_mask_expand_epi8(_mm512_maskz_expand_epi8(!ones, left), ones, right),
                (true, false) => _mm512_mask_expand_epi8(right, !ones, left),
                (false, true) => _mm512_mask_expand_epi8(left, ones, right),
                (false, false) => _mm512_mask_blend_epi8(ones, left, right),
            };
            store(out, symbols);
        })
    }

    #[target_feature(enable = "avx2,bmi2,popcnt")]
    pub(super) fn merge_avx2(bits: &[u8], left: Child<'_>, right: Child<'_>, out: &mut [u8]) -> Merged {
        with_children!(merge_rows_avx2, bits, left, right, out)
    }

    #[inline]
    #[target_feature(enable = "avx2,bmi2,popcnt")]
    fn merge_rows_avx2<const LEFT: bool, const RIGHT: bool>(
        bits: &[u8],
        left: &[u8],
        right: &[u8],
        out: &mut [u8],
    ) -> Merged {
        each_row::<LEFT, RIGHT>(bits, left, right, out, |ones, left, right, out| match LEFT || RIGHT {
            true => in_row(out, |row| merge_row::<LEFT, RIGHT>(ones, left, right, row)),
            false => in_row(out, |row| choose_row(ones, left[0], right[0], row)),
        })
    }

    /// Calls `f` with a row, and keeps as much of it as `out` has room for.
    #[inline(always)]
    fn in_row(out: &mut [u8], f: impl Fn(&mut [u8; ROW])) {
        match out.first_chunk_mut() {
            Some(row) => f(row),
            None => {
                let mut row = [0; ROW];
                f(&mut row);
                out.copy_from_slice(&row[..out.len()]);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,bmi2,popcnt")]
    fn merge_row<const LEFT: bool, const RIGHT: bool>(
        ones: u64,
        left: &[u8; ROW],
        right: &[u8; ROW],
        out: &mut [u8; ROW],
    ) {
        let (mut l, mut r) = (0, 0);
        for (out, bits) in out.as_chunks_mut::<8>().0.iter_mut().zip(ones.to_le_bytes()) {
            // SAFETY: of eight times at most eight symbols, `l` and `r` are at most 56 here, and the
            // references cover 64 bytes; a row of the table and `out` have eight.
            unsafe {
                let symbols = _mm_unpacklo_epi64(
                    _mm_loadl_epi64(left.as_ptr().add(l).cast()),
                    _mm_loadl_epi64(right.as_ptr().add(r).cast()),
                );
                let places = _mm_loadl_epi64(MERGES[usize::from(bits)].as_ptr().cast());
                _mm_storel_epi64(out.as_mut_ptr().cast(), _mm_shuffle_epi8(symbols, places));
            }
            let ones = bits.count_ones() as usize;
            (l, r) = (l + usize::from(LEFT) * (8 - ones), r + usize::from(RIGHT) * ones);
        }
    }

    /// Writes `right` where there is a one, and `left` elsewhere.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn choose_row(ones: u64, left: u8, right: u8, out: &mut [u8; ROW]) {
        // Four bytes of bits, each eight times, and of each the bit of its place.
        let places =
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
        let [left, right] = [left, right].map(|symbol| _mm256_set1_epi8(symbol.cast_signed()));
        for (out, half) in out.as_chunks_mut::<32>().0.iter_mut().zip([ones as u32, (ones >> 32) as u32]) {
            let bits = _mm256_shuffle_epi8(_mm256_set1_epi32(half.cast_signed()), places);
            let is_one = _mm256_cmpeq_epi8(_mm256_and_si256(bits, each), each);
            // SAFETY: the reference covers the 32 bytes that are written.
            unsafe {
                _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_blendv_epi8(left, right, is_one));
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,bmi2,popcnt")]
    pub(super) fn divide_avx512(ranks: &[u8], pivot: u8, bits: &mut [u8]) -> usize {
        let (pivot, mut ones) = (_mm512_set1_epi8(pivot.cast_signed()), 0);
        for (ranks, bits) in ranks.chunks(ROW).zip(bits.chunks_mut(ROW / 8)) {
            let (present, ranks) = (lowest(ranks.len()), load(ranks));
            let word = _mm512_mask_cmpge_epu8_mask(present, ranks, pivot);
            bits.copy_from_slice(&word.to_le_bytes()[..bits.len()]);
            ones += word.count_ones();
        }
        ones as usize
    }

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn divide_avx2(ranks: &[u8], pivot: u8, bits: &mut [u8]) -> usize {
        let (rows, rest) = ranks.as_chunks::<32>();
        let (whole, last) = bits.split_at_mut(4 * rows.len());
        let (least, mut ones) = (_mm256_set1_epi8(pivot.cast_signed()), 0);
        for (row, bits) in rows.iter().zip(whole.as_chunks_mut().0) {
            // SAFETY: the reference covers the 32 bytes that are read.
            let ranks = unsafe { _mm256_loadu_si256(row.as_ptr().cast()) };
            let word = _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(ranks, least), ranks));
            *bits = word.to_le_bytes();
            ones += word.count_ones();
        }
        ones as usize + divide_plainly(rest, pivot, last)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    pub(super) fn take_avx512(bits: &[u8], wanted: bool, ranks: &[u8], out: &mut [u8]) {
        let (flip, mut rest) = (if wanted { 0 } else { u64::MAX }, out);
        for (bits, ranks) in bits.chunks(ROW / 8).zip(ranks.chunks(ROW)) {
            let (present, ranks) = (lowest(ranks.len()), load(ranks));
            let taken = (word(bits) ^ flip) & present;
            let len = (taken.count_ones() as usize).min(rest.len());
            let packed = _mm512_maskz_compress_epi8(taken, ranks);
            store(rest, packed);
            rest = &mut rest[len..];
        }
    }

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn take_avx2(bits: &[u8], wanted: bool, ranks: &[u8], out: &mut [u8]) {
        let (flip, mut rest) = (if wanted { 0 } else { u64::MAX }, out);
        let (rows, last) = ranks.as_chunks::<ROW>();
        for (row, bits) in rows.iter().zip(bits.chunks(ROW / 8)) {
            let taken = word(bits) ^ flip;
            let len = (taken.count_ones() as usize).min(rest.len());
            in_row(rest, |room| take_row(taken, row, room));
            rest = &mut rest[len..];
        }
        take_plainly(&bits[rows.len() * (ROW / 8)..], wanted, last, rest);
    }

    /// Moves the ranks whose bit is set to the front of `out`.
    #[inline]
    #[target_feature(enable = "avx2,popcnt")]
    fn take_row(taken: u64, row: &[u8; ROW], out: &mut [u8; ROW]) {
        let mut len = 0;
        for (eight, taken) in row.as_chunks::<8>().0.iter().zip(taken.to_le_bytes()) {
            // SAFETY: of eight times at most eight ranks, `len` is at most 56 here, and `out` has 64 bytes; a
            // row of the table and `eight` have eight.
            unsafe {
                let places = _mm_loadl_epi64(TAKES[usize::from(taken)].as_ptr().cast());
                let packed = _mm_shuffle_epi8(_mm_loadl_epi64(eight.as_ptr().cast()), places);
                _mm_storel_epi64(out.as_mut_ptr().add(len).cast(), packed);
            }
            len += taken.count_ones() as usize;
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn map_avx2(table: &[u8; 256], symbols: &[u8], out: &mut [u8]) {
        // Most tables have entries in a few of its rows.
        let mut rows = [(_mm256_setzero_si256(), _mm256_setzero_si256()); 16];
        let mut used = 0;
        for (row, number) in table.as_chunks::<16>().0.iter().zip(0..) {
            if *row != [0; 16] {
                // SAFETY: the reference covers the 16 bytes that are read.
                let entries = unsafe { _mm_loadu_si128(row.as_ptr().cast()) };
                rows[used] = (_mm256_set1_epi8(number), _mm256_broadcastsi128_si256(entries));
                used += 1;
            }
        }
        let low = _mm256_set1_epi8(15);
        let (whole, last) = symbols.as_chunks::<32>();
        for (symbols, out) in whole.iter().zip(out.as_chunks_mut::<32>().0) {
            // SAFETY: the reference covers the 32 bytes that are read.
            let symbols = unsafe { _mm256_loadu_si256(symbols.as_ptr().cast()) };
            let (column, number) =
                (_mm256_and_si256(symbols, low), _mm256_and_si256(_mm256_srli_epi16::<4>(symbols), low));
            let mapped = rows[..used].iter().fold(_mm256_setzero_si256(), |mapped, (row, entries)| {
                let is_here = _mm256_cmpeq_epi8(number, *row);
                let found = _mm256_and_si256(is_here, _mm256_shuffle_epi8(*entries, column));
                _mm256_or_si256(mapped, found)
            });
            // SAFETY: the reference covers the 32 bytes that are written.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), mapped) };
        }
        map_plainly(table, last, &mut out[32 * whole.len()..]);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,bmi2")]
    pub(super) fn map_avx512(table: &[u8; 256], symbols: &[u8], out: &mut [u8]) {
        // SAFETY: each quarter of the table has the 64 bytes that are read.
        let [a, b, c, d]: [__m512i; 4] = std::array::from_fn(|i| unsafe {
            _mm512_loadu_epi8(table[ROW * i..ROW * i + ROW].as_ptr().cast())
        });
        for (symbols, out) in symbols.chunks(ROW).zip(out.chunks_mut(ROW)) {
            let (len, symbols) = (symbols.len().min(out.len()), load(symbols));
            let low = _mm512_permutex2var_epi8(a, symbols, b);
            let high = _mm512_permutex2var_epi8(c, symbols, d);
            let mapped = _mm512_mask_blend_epi8(_mm512_movepi8_mask(symbols), low, high);
            store(&mut out[..len], mapped);
        }
    }

    /// For each byte of bits, where to find eight symbols of a node in the next eight of its left child and
    /// the next eight of its right one.
    static MERGES: [[u8; 8]; 256] = {
        let (mut all, mut bits) = ([[0; 8]; 256], 0);
        while bits < 256 {
            let (mut next, mut i) = ([0, 8], 0);
            while i < 8 {
                let child = bits >> i & 1;
                all[bits][i] = next[child];
                next[child] += 1;
                i += 1;
            }
            bits += 1;
        }
        all
    };

    /// For each byte of bits, the places of its ones.
    static TAKES: [[u8; 8]; 256] = {
        let (mut all, mut bits) = ([[0; 8]; 256], 0);
        while bits < 256 {
            let (mut len, mut i) = (0, 0);
            while i < 8 {
                all[bits][len] = i;
                len += bits >> i & 1;
                i += 1;
            }
            bits += 1;
        }
        all
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::forms;
    use crate::random;

    #[test]
    fn every_form_merges_and_takes_the_same() {
        for (len, share) in (0..200).flat_map(|len| [0, 3, 8, 16].map(|share| (len, share))) {
            let rank = |i: u64| (random::word(1, 0, i) >> 8) as u8;
            let ranks: Vec<u8> = (0..len).map(|i| rank(i) % 16).collect();
            let pivot = share;
            for form in forms() {
                let mut bits = vec![0; ranks.len().div_ceil(8)];
                let ones = divide(form, &ranks, pivot, &mut bits);
                let expected: Vec<bool> = ranks.iter().map(|&rank| rank >= pivot).collect();
                let found: Vec<bool> = (0..ranks.len()).map(|i| bit(&bits, i)).collect();
                assert_eq!(found, expected, "{form:?} {len} {pivot}");
                // Bits of no rank are 0.
                assert!(
                    ones == expected.iter().filter(|one| **one).count() && ones == count_ones(form, &bits)
                );
                let mut lists = [vec![0; ranks.len() - ones], vec![0; ones]];
                for (list, wanted) in lists.iter_mut().zip([false, true]) {
                    take(form, &bits, wanted, &ranks, list);
                    let of_ranks = ranks.iter().filter(|&&rank| (rank >= pivot) == wanted);
                    assert!(list.iter().eq(of_ranks), "{form:?} {len} {pivot} {wanted}");
                }
                for (slack, leaves) in [0, 7, ROW].into_iter().flat_map(|s| (0..4).map(move |l| (s, l))) {
                    let mut longer = lists.clone();
                    longer.iter_mut().for_each(|list| list.resize(list.len() + slack, 255));
                    let [left, right] = [0, 1].map(|child| match leaves >> child & 1 {
                        0 => Child::List(&longer[child]),
                        _ => Child::Leaf(100 + child as u8),
                    });
                    let mut out = vec![0; ranks.len()];
                    merge(form, &bits, left, right, &mut out);
                    for ((&out, &rank), &one) in out.iter().zip(&ranks).zip(&expected) {
                        let child = if one { right } else { left };
                        let expected = if let Child::Leaf(symbol) = child { symbol } else { rank };
                        assert_eq!(out, expected, "{form:?} {len} {pivot} {slack} {leaves}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_form_maps_the_same() {
        let table: [u8; 256] = std::array::from_fn(|i| random::word(2, 0, i as u64) as u8);
        let symbols: Vec<u8> = (0..300).map(|i| random::word(3, 0, i) as u8).collect();
        for (form, len) in forms().flat_map(|form| [0, 1, 63, 64, 65, 300].map(|len| (form, len))) {
            let mut out = vec![0; len];
            map(form, &table, &symbols[..len], &mut out);
            assert!(
                out.iter().zip(&symbols).all(|(&out, &s)| out == table[usize::from(s)]),
                "{form:?} {len}"
            );
        }
    }
}
