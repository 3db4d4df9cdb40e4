//! Exact selection by magnitude that reads a tensor once.
//!
//! ```text
//! t = a threshold, estimated slightly too low from a small sample
//! candidates = all elements with magnitude >= t            one pass, 64 elements at a comparison
//! if at least k of them: the k largest of them           only candidates are touched
//! else: the exact threshold by two histograms, then collect   rare: three more passes
//! ```
//!
//! Tensors of at most one chunk have a way of their own ([`small`]).
//!
//! Among equal magnitudes the lowest index is kept. Zeros are never kept.

mod small;

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::settings::Amount;
use super::source::{CHUNK, Chunk, Source};
use crate::arch::threads::in_order;
use crate::arch::{self, Kernel, pages};
use crate::bits::pack_bits;
use crate::error::Result;
pub(super) use small::Scratch;

/// The kept elements of one tensor.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chosen {
    /// Positions in the tensor, strictly ascending.
    pub positions: Vec<u64>,
    /// Values, one for each position.
    pub values: Vec<f32>,
}

/// Returns the largest elements of each tensor.
pub(super) fn top_k_each(sources: &mut [Source<'_>], amount: Amount) -> Result<Vec<Chosen>> {
    in_order(sources.par_iter_mut().map_init(Scratch::default, |scratch, source| {
        let k = amount.of(source.len as u64);
        top_k_of(source, k, scratch)
    }))
}

/// Returns the `k` largest elements of a tensor.
pub(super) fn top_k_of(source: &mut Source<'_>, k: u64, scratch: &mut Scratch) -> Result<Chosen> {
    match scratch.top_k(source, k) {
        Some(chosen) => chosen,
        None => Ok(top_k(&mut [source], k)?.pop().unwrap_or_default()),
    }
}

/// Returns all elements whose magnitude is at least `at`, which is positive.
pub(super) fn at_least(sources: &mut [Source<'_>], at: f32) -> Result<Vec<Chosen>> {
    let (least, mut group) = (at.to_bits(), sources.iter_mut().collect::<Vec<_>>());
    let found = collect(&mut group, |x| reaches(x.abs(), at), usize::MAX);
    finish(&group, Side::Both, &found.unwrap_or_default(), Cut { least, ties: u64::MAX })
}

/// Returns the `k` largest positive and the `k` smallest negative elements of a tensor. If a sign has fewer
/// than `k` elements, returns all of them.
pub(super) fn both_sides(source: &mut Source<'_>, k: u64, scratch: &mut Scratch) -> Result<[Chosen; 2]> {
    if let Some(chosen) = scratch.both_sides(source, k) {
        return chosen;
    }
    let group: &mut [&mut Source<'_>] = &mut [source];
    let sides = [Side::Plus, Side::Minus];
    let least = guess(group, k, sides);
    let [plus, minus] = least.map(f32::from_bits);
    let found = collect(group, |x| reaches(x, plus) | reaches(-x, minus), limit(k));
    let mut chosen = [Chosen::default(), Chosen::default()];
    for i in 0..2 {
        chosen[i] = among(group, sides[i], found.as_deref(), least[i], k)?.pop().unwrap_or_default();
    }
    Ok(chosen)
}

pub(super) fn top_k(group: &mut [&mut Source<'_>], k: u64) -> Result<Vec<Chosen>> {
    let [least] = guess(group, k, [Side::Both]);
    let at = f32::from_bits(least);
    let found = collect(group, |x| reaches(x.abs(), at), limit(k));
    among(group, Side::Both, found.as_deref(), least, k)
}

/// Returns the `k` largest of all elements, by counting. Reads the elements three times.
pub(super) fn exactly(group: &mut [&mut Source<'_>], k: u64) -> Result<Vec<Chosen>> {
    among(group, Side::Both, None, LOWEST, k)
}

/// Returns the `k` largest elements of a side. `candidates` has all elements that are at least `least`. It is
/// `None` if there were too many to collect. If `candidates` is `None` or has too few elements, all elements
/// of the group are read.
fn among(
    group: &mut [&mut Source<'_>],
    side: Side,
    candidates: Option<&[Vec<Found>]>,
    least: u32,
    k: u64,
) -> Result<Vec<Chosen>> {
    if let Some(candidates) = candidates {
        if let Some(cut) = cut_near(side, candidates, k) {
            return finish(group, side, candidates, cut);
        }
        let mut keys = pages::with_room(candidates.iter().flatten().map(Found::len).sum());
        for found in candidates.iter().flatten() {
            keys.extend(found.keys(side).filter(|&key| key > 0));
        }
        if least == LOWEST || keys.len() as u64 >= k {
            return finish(group, side, candidates, cut_of(&mut keys, k));
        }
    }
    let count = |shift: u32, digits: u32, prefix: u32| {
        let mut counts = vec![0u64; 1 << digits];
        for source in group.iter_mut() {
            let of_chunks = source.scan(0..source.len, 16 * CHUNK, |chunk| {
                let mut counts = vec![0u32; 1 << digits];
                chunk.runs(|_, values| {
                    for key in values.iter().map(|x| side.key(x.to_bits())) {
                        if key > 0 && key >> shift >> digits == prefix {
                            counts[(key >> shift) as usize & ((1 << digits) - 1)] += 1;
                        }
                    }
                });
                counts
            });
            for (sum, count) in of_chunks.iter().flat_map(|counts| counts.iter().enumerate()) {
                counts[sum] += u64::from(*count);
            }
        }
        counts
    };
    // A key has 31 bits. The first pass counts the upper 16, in 2^16 counters. The second counts the lower 15
    // of the keys whose upper ones are those of the k-th largest: for k = 3 and keys with the upper digits 9,
    // 7, 7, 7, 2, the cut is at the second largest key with a 7.
    let cut = cut(&[(15, 16), (0, 15)], k, count);
    let found: Vec<Vec<Found>> = group
        .iter_mut()
        .map(|source| {
            source.scan(0..source.len, CHUNK, |chunk| {
                let (mut found, mut ties) = (Found { start: chunk.start, elements: Vec::new() }, cut.ties);
                chunk.runs(|start, values| {
                    for (i, x) in values.iter().enumerate() {
                        let key = side.key(x.to_bits());
                        if key > cut.least || key == cut.least && ties > 0 {
                            ties -= u64::from(key == cut.least);
                            found.elements.push(element(start - found.start + i, x.to_bits()));
                        }
                    }
                });
                found
            })
        })
        .collect();
    finish(group, side, &found, cut)
}

const SIGN: u32 = 1 << 31;
pub(super) const MAGNITUDE: u32 = SIGN - 1;
const INFINITY: u32 = 0x7f80_0000;
/// Key of the smallest magnitude above zero.
pub(super) const LOWEST: u32 = 1;
/// Number of elements of a sample, at most.
const SAMPLE: u64 = 1 << 15;
/// The sample for the largest elements takes one of this number of elements. Of small tensors, a larger share
/// costs more than the candidates that it saves.
const SHARE: u64 = 16;

#[derive(Clone, Copy)]
pub(super) enum Side {
    Both,
    Plus,
    Minus,
}

impl Side {
    /// Returns a key that orders the floats of this side by magnitude. The key is 0 for floats that are never
    /// kept.
    pub(super) fn key(self, bits: u32) -> u32 {
        match self {
            Self::Both => bits & MAGNITUDE,
            Self::Plus => (bits as i32).max(0) as u32,
            Self::Minus => ((bits ^ SIGN) as i32).max(0) as u32,
        }
    }
}

/// Whether `x` is at least `least`, or NaN.
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN has to be found")]
#[inline(always)]
pub(super) fn reaches(x: f32, least: f32) -> bool {
    !(x < least)
}

/// Returns the largest number of candidates that is worth collecting.
pub(super) fn limit(k: u64) -> usize {
    usize::try_from(k.saturating_mul(4).saturating_add(1 << 16)).unwrap_or(usize::MAX)
}

/// Returns for each side a key that about `k` keys of the group reach, or a few more.
fn guess<const N: usize>(group: &[&mut Source<'_>], k: u64, sides: [Side; N]) -> [u32; N] {
    let n = group.iter().map(|source| source.len as u64).sum::<u64>();
    let Some(Sample { bits, rank }) = sample_of(group, k, (n / SHARE).min(SAMPLE)) else {
        return [LOWEST; N];
    };
    sides.map(|side| {
        let mut keys: Vec<u32> = bits.iter().map(|&bits| side.key(bits)).collect();
        let (_, key, _) = keys.select_nth_unstable_by(rank, |a, b| b.cmp(a));
        (*key).clamp(LOWEST, INFINITY)
    })
}

/// A sample of the elements of a group. Every call takes the same elements.
pub(super) struct Sample {
    /// Bit patterns of the elements.
    pub(super) bits: Vec<u32>,
    /// Rank in the sample. If at least this number of sample elements exceed a threshold, then at least `k`
    /// elements of the group do, by a margin of four standard deviations.
    pub(super) rank: usize,
}

/// Returns `None` for a group that is no larger than its sample, or if the rank is not within the sample.
pub(super) fn sample(group: &[&mut Source<'_>], k: u64) -> Option<Sample> {
    sample_of(group, k, SAMPLE)
}

/// Elements of a sample that one thread reads.
const TOGETHER: usize = 1 << 12;

/// Returns a sample of `size` elements. Returns `None` as [`sample`] does.
fn sample_of(group: &[&mut Source<'_>], k: u64, size: u64) -> Option<Sample> {
    let ends: Vec<u64> = group
        .iter()
        .scan(0, |end, source| {
            *end += source.len as u64;
            Some(*end)
        })
        .collect();
    let n = ends.last().copied().unwrap_or(0);
    let rank = rank_of(k, n, size)? as usize;
    let strides = Strides::new(n, size);
    let mut bits = vec![0; size as usize];
    bits.par_chunks_mut(TOGETHER).enumerate().for_each(|(chunk, bits)| {
        let mut places = strides.places((chunk * TOGETHER) as u64).zip(bits).peekable();
        // Places ascend, and so do the tensors that they are in.
        for (source, &end) in group.iter().zip(&ends) {
            let (start, element) = (end - source.len as u64, source.elements());
            while let Some((at, bits)) = places.next_if(|(at, _)| *at < end) {
                *bits = element((at - start) as usize).to_bits();
            }
        }
    });
    Some(Sample { bits, rank })
}

/// Strides of about equal length, for a sample of an element of each.
struct Strides {
    len: u64,
    /// Elements that are left: some strides are longer by one.
    rest: u64,
    count: u64,
}

impl Strides {
    fn new(elements: u64, count: u64) -> Self {
        Self { len: elements / count, rest: elements % count, count }
    }

    /// Returns the sampled elements from that of stride `first` on. They ascend.
    ///
    /// Their places in the strides vary: constant ones could all be in a single column of a matrix.
    fn places(&self, first: u64) -> impl Iterator<Item = u64> {
        let &Self { len, rest, count } = self;
        // Elements of `rest` before a stride, as a fraction: divisions would take most of the time.
        let (mut before, mut part) = (first * rest / count, first * rest % count);
        let inverse = (u64::MAX / len).wrapping_add(1);
        (first..).map(move |i| {
            // A number below 2^32, modulo the length (Lemire, Kaser and Kurz, "Faster remainder by direct
            // computation", 2019).
            let hash = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let modulo = ((u128::from(inverse.wrapping_mul(hash)) * u128::from(len)) >> 64) as u64;
            let place = i * len + before + if len >> 32 == 0 { modulo } else { hash };
            part += rest;
            if part >= count {
                (before, part) = (before + 1, part - count);
            }
            place
        })
    }
}

/// Returns the [`Sample::rank`] for `k` of `n` elements, or `None` if no sample is taken.
pub(super) fn rank(k: u64, n: u64) -> Option<u64> {
    rank_of(k, n, SAMPLE)
}

fn rank_of(k: u64, n: u64, size: u64) -> Option<u64> {
    // The expected count in the sample, plus four of its standard deviations: a threshold that is too high
    // costs three more passes. For k = n / 100 and a sample of 32,768, the count is 328 and the rank 404, so
    // about 1.23 % of the elements are candidates.
    let expected = k as f64 * size as f64 / n as f64;
    let rank = (expected + 4.0 * expected.sqrt() + 4.0) as u64;
    (n > size && rank < size).then_some(rank)
}

/// Elements found in a chunk that starts at `start`. Each has its index in the chunk in the high 32 bits and
/// its bit pattern in the low 32 bits.
pub(super) struct Found {
    start: usize,
    elements: Vec<u64>,
}

impl Found {
    pub(super) fn len(&self) -> usize {
        self.elements.len()
    }

    fn keys(&self, side: Side) -> impl Iterator<Item = u32> {
        self.elements.iter().map(move |&e| side.key(e as u32))
    }

    /// Returns the values of the elements.
    pub(super) fn values(&self) -> impl Iterator<Item = f32> {
        self.elements.iter().map(|&e| f32::from_bits(e as u32))
    }
}

fn element(index: usize, bits: u32) -> u64 {
    (index as u64) << 32 | u64::from(bits)
}

/// Returns all elements that `hit` accepts, by source and chunk. Returns `None` if there are more than
/// `limit`.
pub(super) fn collect(
    group: &mut [&mut Source<'_>],
    hit: impl Fn(f32) -> bool + Copy + Sync,
    limit: usize,
) -> Option<Vec<Vec<Found>>> {
    let total = AtomicUsize::new(0);
    let found = group
        .par_iter_mut()
        .map(|source| {
            source.scan(0..source.len, CHUNK, |chunk| {
                let room = limit.saturating_sub(total.load(Ordering::Relaxed));
                let found = collect_chunk(chunk, hit, room);
                total.fetch_add(found.elements.len(), Ordering::Relaxed);
                found
            })
        })
        .collect();
    (total.into_inner() <= limit).then_some(found)
}

/// Collects from one chunk, and stops once there are more than `room` elements.
fn collect_chunk(chunk: Chunk<'_, '_>, hit: impl Fn(f32) -> bool + Copy, room: usize) -> Found {
    let (first, mut elements) = (chunk.start, Vec::new());
    chunk.parts(|start, values| {
        let (at, elements) = (start - first, &mut elements);
        arch::run(Collect { values: &values, at, hit, room, elements });
    });
    Found { start: first, elements }
}

/// Appends the elements of `values` that `hit` accepts. `at` is the index of the first of `values`.
pub(super) struct Collect<'a, H> {
    pub(super) values: &'a [f32],
    pub(super) at: usize,
    pub(super) hit: H,
    pub(super) room: usize,
    pub(super) elements: &'a mut Vec<u64>,
}

impl<H: Fn(f32) -> bool + Copy> Kernel for Collect<'_, H> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { values, mut at, hit, room, elements } = self;
        let (rows, rest) = values.as_chunks::<ROW>();
        // The last elements found: to append each on its own takes longer.
        let (mut last, mut len) = ([0; 8 * ROW], 0);
        for (done, row) in rows.iter().enumerate() {
            let any = row.iter().fold(0u32, |any, x| any | u32::from(hit(*x)));
            if any != 0 && elements.len() + len <= room {
                let mut hits = pack_bits(&std::array::from_fn(|i| u8::from(hit(row[i]))));
                if len > last.len() - ROW {
                    if elements.capacity() == 0 {
                        // The rest has about as many, but hardly many times as many.
                        let expected = (len * rows.len()).div_ceil(done.max(1)) / 16 * 17;
                        elements.reserve_exact(expected.min(32 * len));
                    }
                    elements.extend_from_slice(&last[..len]);
                    len = 0;
                }
                let count = hits.count_ones() as usize;
                // Eight at a time, some of which may be none: processors guess the end of a loop by its hits.
                for eight in last[len..len + ROW].as_chunks_mut::<8>().0 {
                    for slot in eight {
                        let i = hits.trailing_zeros() as usize % ROW;
                        *slot = element(at + i, row[i].to_bits());
                        hits &= hits.wrapping_sub(1);
                    }
                    if hits == 0 {
                        break;
                    }
                }
                len += count;
            }
            at += ROW;
        }
        elements.extend_from_slice(&last[..len]);
        let rest = rest.iter().copied().enumerate().filter(|(_, x)| hit(*x));
        elements.extend(rest.map(|(i, x)| element(at + i, x.to_bits())));
    }
}

/// Number of elements that one comparison rejects in the common case that `hit` accepts none of them.
pub(super) const ROW: usize = 64;

/// The end of the kept keys: all keys above `least`, and the first `ties` keys that equal it.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub(super) least: u32,
    pub(super) ties: u64,
}

impl Cut {
    /// Returns the number of elements that are kept, and the number of ties among them.
    fn count(self, side: Side, elements: &[u64]) -> (usize, u64) {
        let keys = elements.iter().map(|&e| side.key(e as u32));
        let (above, at) = keys.fold((0, 0), |(above, at), key| {
            (above + usize::from(key > self.least), at + u64::from(key == self.least))
        });
        let ties = self.ties.min(at);
        (above + ties as usize, ties)
    }

    /// Writes positions and values of the elements that are kept, which begin at position `start`, and
    /// returns their number; `None` if one of them is not finite. Non-finite magnitudes are the largest, so
    /// if a tensor has one, at least one is kept. `positions` and `values` have room for those that are kept.
    pub(super) fn take(
        mut self,
        side: Side,
        start: u64,
        elements: &[u64],
        mut positions: &mut [u64],
        mut values: &mut [f32],
    ) -> Option<usize> {
        let (mut finite, mut kept) = (true, 0);
        for row in elements.chunks(ROW) {
            // Those that are not kept are overwritten: a processor cannot guess which are kept.
            let (mut row_positions, mut row_values, mut len) = ([0; ROW], [0.0; ROW], 0);
            for &e in row {
                let key = side.key(e as u32);
                let tie = key == self.least && self.ties > 0;
                row_positions[len] = start + (e >> 32);
                row_values[len] = f32::from_bits(e as u32);
                self.ties -= u64::from(tie);
                len += usize::from(key > self.least || tie);
            }
            finite &= row_values[..len].iter().fold(true, |finite, x| finite & x.is_finite());
            let (here, rest) = positions.split_at_mut(len);
            here.copy_from_slice(&row_positions[..len]);
            positions = rest;
            let (here, rest) = values.split_at_mut(len);
            here.copy_from_slice(&row_values[..len]);
            values = rest;
            kept += len;
        }
        finite.then_some(kept)
    }
}

/// Returns the cut after the `k` largest of these keys.
pub(super) fn cut_of(keys: &mut [u32], k: u64) -> Cut {
    let last = match usize::try_from(k) {
        Ok(k) if k < keys.len() => k,
        _ => return Cut { least: LOWEST, ties: u64::MAX },
    };
    let Some(last) = last.checked_sub(1) else { return Cut { least: u32::MAX, ties: 0 } };
    let (above, &mut least, _) = keys.select_nth_unstable_by(last, |a, b| b.cmp(a));
    Cut { least, ties: k - above.iter().filter(|&&key| key > least).count() as u64 }
}

/// Returns the cut after the `k` largest of many candidates, of which only those near it are compared.
/// Returns `None` if there are few candidates, fewer than `k`, or if a sample of them misjudges the rest.
fn cut_near(side: Side, candidates: &[Vec<Found>], k: u64) -> Option<Cut> {
    const STEP: usize = 64;
    const SAMPLED: usize = 1 << 10;
    let chunks: Vec<&Found> = candidates.iter().flatten().collect();
    let all: usize = chunks.iter().map(|found| found.len()).sum();
    if all < STEP * SAMPLED {
        return None;
    }
    let mut sample: Vec<u32> =
        chunks.par_iter().flat_map_iter(|found| found.keys(side).step_by(STEP)).collect();
    sample.sort_unstable_by(|a, b| b.cmp(a));
    // The rank in the sample, with a margin of four standard deviations to either side.
    let (middle, deviation) = {
        let (k, all, sampled) = (k as f64, all as f64, sample.len() as f64);
        let expected = k / all * sampled;
        (expected, (expected * (1.0 - k / all)).max(0.0).sqrt())
    };
    let margin = 4.0 * deviation + 4.0;
    let most = sample.get((middle - margin).max(0.0) as usize)?;
    let least = sample.get((middle + margin) as usize).map_or(LOWEST, |&key| key.max(LOWEST));
    let above = chunks.par_iter().map(|found| found.keys(side).filter(|key| key > most).count() as u64);
    let k = k.checked_sub(above.sum())?;
    let near = chunks.par_iter().flat_map_iter(|found| {
        let keys = found.keys(side);
        keys.filter(|key| (least..=*most).contains(key))
    });
    let mut near: Vec<u32> = near.collect();
    // A cut takes all keys if there are no more.
    (0 < k && k < near.len() as u64).then(|| cut_of(&mut near, k))
}

/// Returns the cut after the `k` largest keys, found digit by digit. `digits` has the place and the width of
/// each digit, in bits. `count(place, width, prefix)` returns how often each digit follows this prefix in the
/// keys above 0.
fn cut(digits: &[(u32, u32)], k: u64, mut count: impl FnMut(u32, u32, u32) -> Vec<u64>) -> Cut {
    let (mut least, mut ties) = (0, k);
    for &(place, width) in digits {
        let counts = count(place, width, least);
        let digit = counts.iter().rposition(|&c| {
            let here = c >= ties;
            ties -= if here { 0 } else { c };
            here
        });
        match digit {
            Some(digit) => least = least << width | digit as u32,
            None => return Cut { least: LOWEST, ties: u64::MAX },
        }
    }
    Cut { least, ties }
}

/// Returns the elements of each tensor of a group that a cut keeps.
pub(super) fn finish(
    group: &[&mut Source<'_>],
    side: Side,
    found: &[Vec<Found>],
    Cut { least, mut ties }: Cut,
) -> Result<Vec<Chosen>> {
    let mut all = Vec::with_capacity(group.len());
    for (source, chunks) in group.iter().zip(found) {
        // As if each chunk were the first: of equal keys, the first ones are kept.
        let cut = Cut { least, ties };
        let counts: Vec<_> = chunks.par_iter().map(|chunk| cut.count(side, &chunk.elements)).collect();
        let kept = counts.into_iter().map(|(len, at)| {
            let cut = Cut { least, ties: at.min(ties) };
            ties -= cut.ties;
            (cut, len - (at - cut.ties) as usize)
        });
        let kept: Vec<(Cut, usize)> = kept.collect();
        let len = kept.iter().map(|(_, len)| len).sum();
        let mut chosen = Chosen { positions: pages::zeros(len), values: pages::zeros(len) };
        let (mut positions, mut values) = (&mut *chosen.positions, &mut *chosen.values);
        let mut parts = Vec::with_capacity(chunks.len());
        for (chunk, (cut, len)) in chunks.iter().zip(kept) {
            let (here, later) = positions.split_at_mut(len);
            let (values_here, later_values) = values.split_at_mut(len);
            parts.push((chunk, cut, here, values_here));
            (positions, values) = (later, later_values);
        }
        let are_finite = parts.into_par_iter().all(|(chunk, cut, positions, values)| {
            cut.take(side, chunk.start as u64, &chunk.elements, positions, values).is_some()
        });
        if !are_finite {
            return Err(source.non_finite());
        }
        all.push(chosen);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_an_element_of_each_stride() {
        for (elements, count) in
            [(10u64, 3u64), (7, 7), (40_000, 32_768), (3 << 36, 1 << 15), ((1 << 50) + 77, 1 << 14)]
        {
            let strides = Strides::new(elements, count);
            let all: Vec<u64> = strides.places(0).take(count as usize).collect();
            for (i, &place) in (0..).zip(&all) {
                let start = i * (elements / count) + i * (elements % count) / count;
                let jitter = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (elements / count);
                assert_eq!(place, start + jitter, "{elements} {count}");
            }
            assert!(all.is_sorted_by(|a, b| a < b) && all.last() < Some(&elements));
            let first = count / 2;
            assert!(strides.places(first).zip(&all[first as usize..]).all(|(a, b)| a == *b));
        }
    }
}
