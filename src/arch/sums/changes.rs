//! Sums of changes of integers, each times two keys.

use crate::arch::Form;
#[cfg(target_arch = "x86_64")]
use crate::arch::Width;

/// Keys of 2^16 numbers, in four lanes.
pub(crate) type Table = [[u32; 4]; 1 << 16];

/// A change of an integer in a grid.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Change {
    /// Number of the integer, row by row.
    pub(crate) at: u32,
    /// At most 2^16 either way.
    pub(crate) by: i32,
}

/// Rows of integers, and the numbers of their keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    /// Integers of a row.
    len: u64,
    /// 2^64 / `len`, rounded up; 0 for one row.
    reciprocal: u64,
    /// Numbers of the keys of the first column and of the first row, modulo 2^16.
    column: u16,
    row: u16,
}

impl Grid {
    /// Returns a grid of rows of `len` integers, from 2 to 2^32 - 1, the first of which has these keys.
    pub(crate) fn new(len: u64, column: u16, row: u16) -> Self {
        Self { len, reciprocal: u64::MAX / len + 1, column, row }
    }

    /// Returns a single row, the first integer of which has these keys.
    pub(crate) fn row(column: u16, row: u16) -> Self {
        Self { len: 0, reciprocal: 0, column, row }
    }

    /// Returns the number of a change's row.
    #[inline(always)]
    fn row_of(&self, change: &Change) -> u64 {
        // Exact, because the number and the length are below 2^32.
        ((u128::from(change.at) * u128::from(self.reciprocal)) >> 64) as u64
    }

    /// Returns the numbers of the keys of a change.
    #[inline(always)]
    fn keys(&self, change: &Change) -> (usize, usize) {
        let row = self.row_of(change);
        let column = self.column.wrapping_add((u64::from(change.at) - row * self.len) as u16);
        (column.into(), self.row.wrapping_add(row as u16).into())
    }

    /// Whether changes in ascending order are at least four in each row, on the average: it is then faster to
    /// multiply their sum with the row's key than each of them (by 4 % with eight, by a fifth with hundreds).
    #[cfg(target_arch = "x86_64")]
    fn is_full(&self, changes: &[Change]) -> bool {
        let [first, .., last] = changes else { return false };
        self.row_of(last).saturating_sub(self.row_of(first)) < changes.len() as u64 / 4
    }
}

/// Most changes at a time: each adds less than 2^47.
pub(crate) const MOST: usize = 1 << 15;

/// Returns, for each lane, the sum of at most [`MOST`] changes times the key of their column and that of
/// their row; of the column alone without `rows`. Keys are below 2^31 - 1. The sums are equal modulo 2^31 - 1
/// in every form, and at most 2^62.
pub(crate) fn sum(
    form: Form,
    changes: &[Change],
    grid: Grid,
    columns: &Table,
    rows: Option<&Table>,
) -> [i64; 4] {
    match (form.0, rows) {
        // SAFETY: both forms exist only if the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        (Width::Avx512 | Width::Avx2, rows) if grid.is_full(changes) => unsafe {
            x86::by_row(changes, grid, columns, rows)
        },
        // SAFETY: the form exists only if the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        (Width::Avx512, Some(rows)) => unsafe { x86::avx512::<true>(changes, grid, columns, rows) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Width::Avx512, None) => unsafe { x86::avx512::<false>(changes, grid, columns, columns) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Width::Avx2, Some(rows)) => unsafe { x86::avx2::<true>(changes, grid, columns, rows) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Width::Avx2, None) => unsafe { x86::avx2::<false>(changes, grid, columns, columns) },
        (_, rows) => plain(changes, grid, columns, rows),
    }
}

fn plain(changes: &[Change], grid: Grid, columns: &Table, rows: Option<&Table>) -> [i64; 4] {
    let mut sums = [0; 4];
    for change in changes {
        let (column, row) = grid.keys(change);
        let keys = columns[column].map(u64::from);
        let keys = match rows {
            Some(rows) => {
                let others = &rows[row];
                std::array::from_fn(|lane| folded(keys[lane] * u64::from(others[lane])))
            }
            None => keys,
        };
        (0..4).for_each(|lane| sums[lane] += keys[lane] as i64 * i64::from(change.by));
    }
    sums
}

/// Returns a number below 2^62, modulo 2^31 - 1, as a number of at most 2^31 - 1.
#[inline(always)]
fn folded(x: u64) -> u64 {
    const P: u64 = (1 << 31) - 1;
    let x = (x & P) + (x >> 31);
    (x & P) + (x >> 31)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Change, Grid, Table};

    /// Two changes at a time. Without `ROWS`, rows have no keys.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn avx512<const ROWS: bool>(
        changes: &[Change],
        grid: Grid,
        columns: &Table,
        rows: &Table,
    ) -> [i64; 4] {
        let (pairs, rest) = changes.as_chunks::<2>();
        let mut sum = _mm512_setzero_si512();
        for pair in pairs {
            let (first, second) = (grid.keys(&pair[0]), grid.keys(&pair[1]));
            let keys = of_two(columns, first.0, second.0);
            let keys = match ROWS {
                true => reduced_512(_mm512_mul_epu32(keys, of_two(rows, first.1, second.1))),
                false => keys,
            };
            let by = _mm512_mask_set1_epi32(_mm512_set1_epi32(pair[0].by), 0xff00, pair[1].by);
            sum = _mm512_add_epi64(sum, _mm512_mul_epi32(keys, by));
        }
        let mut lanes = avx2::<ROWS>(rest, grid, columns, rows);
        let mut both = [[0; 4]; 2];
        // SAFETY: eight sums have 64 bytes.
        unsafe { _mm512_storeu_si512(both.as_mut_ptr().cast(), sum) };
        (0..4).for_each(|lane| lanes[lane] += both[0][lane] + both[1][lane]);
        lanes
    }

    /// Returns the keys of two numbers, each in 64 bits.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    fn of_two(table: &Table, first: usize, second: usize) -> __m512i {
        // SAFETY: an entry of the table has 16 bytes.
        let first = unsafe { _mm_loadu_si128(table[first].as_ptr().cast()) };
        // SAFETY: as above.
        let second = unsafe { _mm_loadu_si128(table[second].as_ptr().cast()) };
        _mm512_cvtepu32_epi64(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(first), second))
    }

    /// As [`reduced`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    fn reduced_512(x: __m512i) -> __m512i {
        let prime = _mm512_set1_epi64((1 << 31) - 1);
        _mm512_sub_epi64(_mm512_srli_epi64::<31>(x), _mm512_andnot_si512(x, prime))
    }

    /// Without `ROWS`, rows have no keys.
    #[target_feature(enable = "avx2")]
    pub(super) fn avx2<const ROWS: bool>(
        changes: &[Change],
        grid: Grid,
        columns: &Table,
        rows: &Table,
    ) -> [i64; 4] {
        let mut sum = _mm256_setzero_si256();
        for change in changes {
            let (column, row) = grid.keys(change);
            let keys = of(columns, column);
            let keys = if ROWS { reduced(_mm256_mul_epu32(keys, of(rows, row))) } else { keys };
            sum = _mm256_add_epi64(sum, _mm256_mul_epi32(keys, _mm256_set1_epi32(change.by)));
        }
        let mut lanes = [0; 4];
        // SAFETY: four lanes have 32 bytes.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
        lanes
    }

    /// As [`avx2`], with the key of a row for all its changes that follow each other.
    #[target_feature(enable = "avx2")]
    pub(super) fn by_row(changes: &[Change], grid: Grid, columns: &Table, rows: Option<&Table>) -> [i64; 4] {
        let prime = _mm256_set1_epi64x((1 << 31) - 1);
        let (mut sum, mut left) = (_mm256_setzero_si256(), changes);
        while let Some(first) = left.first() {
            let row = grid.row_of(first);
            let start = (row * grid.len) as u32;
            // The row's last integer: a single row has any length.
            let last = (grid.len as u32).wrapping_sub(1);
            let before = grid.column.wrapping_sub(start as u16);
            let mut own = _mm256_setzero_si256();
            let mut count = 0;
            for change in left.iter().take_while(|change| change.at.wrapping_sub(start) <= last) {
                let keys = of(columns, before.wrapping_add(change.at as u16).into());
                own = _mm256_add_epi64(own, _mm256_mul_epi32(keys, _mm256_set1_epi32(change.by)));
                count += 1;
            }
            left = &left[count..];
            // Of at most 2^62 either way; a multiple of the prime makes it positive.
            own = _mm256_add_epi64(own, _mm256_slli_epi64::<32>(prime));
            for _ in 0..2 {
                own = _mm256_add_epi64(_mm256_and_si256(own, prime), _mm256_srli_epi64::<31>(own));
            }
            if let Some(rows) = rows {
                let key = of(rows, grid.row.wrapping_add(row as u16).into());
                own = reduced(_mm256_mul_epu32(own, key));
            }
            sum = _mm256_add_epi64(sum, own);
        }
        let mut lanes = [0; 4];
        // SAFETY: four lanes have 32 bytes.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
        lanes
    }

    /// Returns the keys of a number, each in 64 bits.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn of(table: &Table, number: usize) -> __m256i {
        // SAFETY: an entry of the table has 16 bytes.
        _mm256_cvtepu32_epi64(unsafe { _mm_loadu_si128(table[number].as_ptr().cast()) })
    }

    /// Returns numbers below 2^62, modulo the prime 2^31 - 1, as signed ones of 32 bits.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn reduced(x: __m256i) -> __m256i {
        // 2^31 is 1 modulo the prime, so the sum of the high and the low bits is the number, and is at most
        // twice the prime. Less the prime, it has a sign and 31 bits; the low bits less the prime are those
        // that are not set, negative.
        let prime = _mm256_set1_epi64x((1 << 31) - 1);
        _mm256_sub_epi64(_mm256_srli_epi64::<31>(x), _mm256_andnot_si256(x, prime))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::forms;

    #[test]
    fn every_form_gives_the_same_sums_of_changes() {
        const P: u32 = (1 << 31) - 1;
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as u32
        };
        let mut table = || -> Box<Table> {
            let keys: Vec<[u32; 4]> = (0..1 << 16)
                .map(|i| {
                    [1, P - 1, next() % (P - 1) + 1, if i % 5 == 0 { P - 1 } else { next() % (P - 1) + 1 }]
                })
                .collect();
            keys.into_boxed_slice().try_into().unwrap()
        };
        let (columns, rows) = (table(), table());
        let grids =
            [Grid::new(2, 0, 65_535), Grid::new(777, 65_000, 3), Grid::new(1 << 31, 1, 2), Grid::row(7, 9)];
        let counts = [0, 1, 2, 7, 1000, MOST].into_iter().flat_map(|n| [(n, false), (n, true)]);
        for ((count, ascends), grid) in counts.flat_map(|n| grids.map(|grid| (n, grid))) {
            let changes: Vec<Change> = (0..count)
                .map(|i| {
                    let by = if i % 2 == 0 { 1 << 16 } else { -((next() % (1 << 16)) as i32) - 1 };
                    let at = match ascends {
                        true => u32::MAX - 90 * (count - i) as u32 + next() % 91,
                        false if i % 7 == 0 => u32::MAX - next() % 5000,
                        false => next(),
                    };
                    Change { at, by: if count == MOST { 1 << 16 } else { by } }
                })
                .collect();
            for rows in [Some(&*rows), None] {
                let mut sums = forms().map(|form| {
                    let sums = sum(form, &changes, grid, &columns, rows);
                    assert!(sums.iter().all(|sum| sum.unsigned_abs() <= 1 << 62));
                    sums.map(|sum| sum.rem_euclid(P.into()))
                });
                let mut expected = [0; 4];
                for change in &changes {
                    let at = u64::from(change.at);
                    let row = at.checked_div(grid.len).unwrap_or(0);
                    let column = at - row * grid.len;
                    let column = grid.column.wrapping_add(column as u16);
                    let row = grid.row.wrapping_add(row as u16);
                    for lane in 0..4 {
                        let own = columns[usize::from(column)][lane];
                        let row = rows.map_or(1, |rows| rows[usize::from(row)][lane]);
                        let product = i128::from(own) * i128::from(row) * i128::from(change.by);
                        expected[lane] = (i128::from(expected[lane]) + product).rem_euclid(P.into()) as i64;
                    }
                }
                assert!(sums.all(|sums| sums == expected), "{count} changes in {grid:?}");
            }
        }
    }
}
