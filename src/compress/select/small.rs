//! Exact selection from a tensor of at most one chunk, without a sample.
//!
//! ```text
//! groups = the elements, dealt into about three times k groups      one pass: a maximum for each group
//! t = the k-th largest of the groups' maxima, so at least k elements reach it
//! candidates = all elements with magnitude >= t                     another pass, in the cache by now
//! the k largest of them
//! ```
//!
//! To sample such a tensor takes longer than to read it, and its threshold must be lower: four standard
//! deviations of a small sample are several times k.

use super::{Chosen, Collect, LOWEST, MAGNITUDE, ROW, SIGN, Side, cut_of, reaches};
use crate::arch::{self, Kernel};
use crate::compress::source::{CHUNK, Source};
use crate::error::Result;

/// Groups for each element to select. With three, the candidates are about 1.2 times as many as are selected.
const GROUPS: usize = 3;
/// Fewest elements in a group. Smaller ones reject too few elements to be worth a pass.
const LEAST_ROWS: usize = 4;

/// Buffers that one thread uses for many tensors.
#[derive(Default)]
pub(in crate::compress) struct Scratch {
    values: Vec<f32>,
    maxima: Vec<u32>,
    elements: Vec<u64>,
}

impl Scratch {
    /// Returns the `k` largest elements; `None` if this is not the way to find them, because the tensor is
    /// large or most of it is selected.
    pub(super) fn top_k(&mut self, source: &mut Source<'_>, k: u64) -> Option<Result<Chosen>> {
        let rows = rows(source.len, k)?;
        let Self { values, maxima, elements } = self;
        elements.clear();
        let values = source.read_all(values);
        let at = least(values, |x| (x.to_bits() & MAGNITUDE) as i32, (rows, k), maxima);
        let hit = |x: f32| reaches(x.abs(), at);
        arch::run(Collect { values, at: 0, hit, room: usize::MAX, elements });
        Some(largest(source, Side::Both, k, maxima, elements))
    }

    /// Returns the `k` largest positive and the `k` smallest negative elements; `None` as [`Self::top_k`].
    pub(super) fn both_sides(&mut self, source: &mut Source<'_>, k: u64) -> Option<Result<[Chosen; 2]>> {
        let rows = rows(source.len, k)?;
        let Self { values, maxima, elements } = self;
        elements.clear();
        let values = source.read_all(values);
        let plus = least(values, |x| x.to_bits() as i32, (rows, k), maxima);
        let minus = least(values, |x| (x.to_bits() ^ SIGN) as i32, (rows, k), maxima);
        let hit = |x: f32| reaches(x, plus) | reaches(-x, minus);
        arch::run(Collect { values, at: 0, hit, room: usize::MAX, elements });
        let mut of = |side| largest(source, side, k, maxima, elements);
        Some(of(Side::Plus).and_then(|plus| Ok([plus, of(Side::Minus)?])))
    }
}

/// Returns the number of elements in a group, if a tensor of this length is divided into groups.
fn rows(len: usize, k: u64) -> Option<usize> {
    let segments = usize::try_from(k).ok()?.checked_mul(GROUPS)?.div_ceil(ROW);
    let rows = (len / ROW).checked_div(segments)?;
    (len <= CHUNK && rows >= LEAST_ROWS).then_some(rows)
}

/// Returns the `k`-th largest of the groups' maxima. `key` orders the elements by magnitude; those below zero
/// are none.
fn least(
    values: &[f32],
    key: impl Fn(f32) -> i32 + Copy,
    (rows, k): (usize, u64),
    maxima: &mut Vec<u32>,
) -> f32 {
    maxima.clear();
    arch::run(Maxima { values, key, rows, maxima });
    let (_, least, _) = maxima.select_nth_unstable_by(k as usize - 1, |a, b| b.cmp(a));
    f32::from_bits((*least).clamp(LOWEST, f32::INFINITY.to_bits()))
}

/// Appends the largest key of each group. A segment of consecutive elements makes [`ROW`] groups: each
/// takes one element from every row.
struct Maxima<'a, K> {
    values: &'a [f32],
    key: K,
    rows: usize,
    maxima: &'a mut Vec<u32>,
}

impl<K: Fn(f32) -> i32 + Copy> Kernel for Maxima<'_, K> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for segment in self.values.chunks_exact(self.rows * ROW) {
            // Signed, because every instruction set compares signed integers.
            let mut maxima = [0i32; ROW];
            for row in segment.as_chunks::<ROW>().0 {
                maxima.iter_mut().zip(row).for_each(|(max, x)| *max = (*max).max((self.key)(*x)));
            }
            self.maxima.extend(maxima.map(|max| max as u32));
        }
    }
}

/// Returns the `k` largest of the candidates of a side.
fn largest(source: &Source<'_>, side: Side, k: u64, keys: &mut Vec<u32>, elements: &[u64]) -> Result<Chosen> {
    keys.clear();
    keys.extend(elements.iter().map(|&e| side.key(e as u32)).filter(|&key| key > 0));
    let cut = cut_of(keys, k);
    let most = keys.len().min(k as usize);
    let mut chosen = Chosen { positions: vec![0; most], values: vec![0.0; most] };
    match cut.take(side, 0, elements, &mut chosen.positions, &mut chosen.values) {
        Some(kept) => {
            chosen.positions.truncate(kept);
            chosen.values.truncate(kept);
            Ok(chosen)
        }
        None => Err(source.non_finite()),
    }
}
