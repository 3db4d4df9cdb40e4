//! The choice of classes by the base's elements.

use crate::block::{STEP, fill_keys};
use crate::codes::{count_symbols, log2};
use crate::compress::codecs::delta::pieces::{Changed, Piece, for_each_step};

/// Fewest changed elements for which classes are tried.
const FEW: u64 = 128;

/// The part of the bits that differences of all elements may take more than the smallest places.
const TOLERANCE: u64 = 64;

/// Classes of the base's elements.
pub(in crate::compress) struct Classes {
    pub(in crate::compress) bounds: Vec<u8>,
    /// About the number of changed elements in each class.
    pub(super) changed: Vec<u64>,
}

/// The elements of which a block has differences.
pub(in crate::compress) enum Places {
    /// All elements. The difference of one that does not change is zero.
    All,
    /// The changed elements, by gaps.
    Changed,
    /// The changed elements, by classes of the base.
    Classes(Classes),
}

/// Returns the places that should give the smallest positions and differences. If most elements change, all
/// of them are taken where that is about as small, because it is faster. `counts`: of each key; `forced`:
/// classes are wanted in any case.
pub(in crate::compress) fn choose(counts: &[KeyCounts], forced: bool) -> Places {
    let mut all = KeyCounts::default();
    counts.iter().for_each(|c| all.add(c));
    if !forced && all.changed < FEW {
        return Places::Changed;
    }
    let (bounds, cost) = best_bounds(counts);
    // Differences of all elements, of which some are zero, have the entropy of gaps and differences.
    if !forced && are_many(all.changed, all.elements) && all.cost() <= cost + cost / TOLERANCE {
        return Places::All;
    }
    if !forced && cost >= all.cost() {
        return Places::Changed;
    }
    let mut changed = vec![0; bounds.len() + 1];
    for (key, count) in counts.iter().enumerate() {
        // Bounds descend: an element's class is the number of those above its key.
        changed[bounds.partition_point(|&bound| usize::from(bound) > key)] += count.changed;
    }
    Places::Classes(Classes { bounds, changed })
}

/// Whether so many elements change that a delta which overwrites takes all of them: planes of all elements
/// are coded faster than positions.
pub(super) fn most_change(pieces: &[Piece<'_>]) -> bool {
    let n: u64 = pieces.iter().map(|piece| piece.len).sum();
    let mut room = Changed::new();
    let (mut elements, mut changed) = (0, 0);
    for_each_step(
        pieces,
        |step| in_sample(step, sample_every(n)),
        |step| {
            elements += step.len as u64;
            changed += step.changed(&mut room).len() as u64;
        },
    );
    are_many(changed, elements)
}

/// Whether that many changed elements are sent as all elements by a delta that overwrites, or that needs
/// about as many bits for them.
pub(in crate::compress) fn are_many(changed: u64, elements: u64) -> bool {
    changed > elements / MANY
}

/// From one changed element in this many on, a delta may take all elements.
const MANY: u64 = 4;

/// Number of elements from which on a sample is counted, and the part of the steps in it.
const SAMPLED: u64 = 1 << 21;
const SAMPLE: u64 = 16;

/// Returns how many steps of `n` elements one in the sample stands for.
pub(in crate::compress) fn sample_every(n: u64) -> u64 {
    if n < SAMPLED { 1 } else { SAMPLE }
}

/// Whether a step is in a sample of one in `every`.
fn in_sample(step: u64, every: u64) -> bool {
    // A hash, because tensors of a model repeat.
    (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(every)
}

/// Counts the keys in a sample of the steps.
pub(super) fn count_keys(pieces: &[Piece<'_>]) -> Vec<KeyCounts> {
    let mut counts = vec![KeyCounts::default(); 256];
    let dtype = pieces[0].dtype();
    let n: u64 = pieces.iter().map(|piece| piece.len).sum();
    let every = sample_every(n);
    let mut keys = [0; STEP];
    let (mut room, mut diffs) = (Changed::new(), Vec::new());
    for_each_step(
        pieces,
        |step| in_sample(step, every),
        |step| {
            let keys = &mut keys[..step.len];
            fill_keys(dtype, step.base, 0, keys);
            counts.iter_mut().zip(count_symbols(keys)).for_each(|(c, n)| c.elements += every * u64::from(n));
            let changed = step.changed(&mut room);
            diffs.clear();
            step.append_diffs_at(changed, &mut diffs);
            for (&at, diff) in changed.iter().zip(&diffs) {
                let of_key = &mut counts[usize::from(keys[usize::from(at)])];
                of_key.changed += every;
                let code = diff.unsigned_abs().saturating_mul(2).saturating_sub(u64::from(*diff < 0));
                of_key.codes[code.min(CODES as u64 - 1) as usize] += every;
            }
        },
    );
    counts
}

/// Values of zigzag codes that are told apart in the choice of classes.
pub(in crate::compress) const CODES: usize = 8;
/// About the bits of a class: its fields, its tables, and the ends of its segments.
const CLASS_BITS: u64 = 260;

/// Numbers of the elements with one key.
#[derive(Clone, Copy, Default)]
pub(in crate::compress) struct KeyCounts {
    pub(in crate::compress) elements: u64,
    pub(in crate::compress) changed: u64,
    pub(in crate::compress) codes: [u64; CODES],
}

impl KeyCounts {
    fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.changed += other.changed;
        self.codes.iter_mut().zip(&other.codes).for_each(|(sum, n)| *sum += n);
    }

    /// About the bits of the positions and differences of a class of these elements, in 1/65536.
    fn cost(&self) -> u64 {
        let unchanged = nats(self.elements - self.changed);
        let positions = nats(self.elements).saturating_sub(nats(self.changed)).saturating_sub(unchanged);
        positions + self.code_cost() + (CLASS_BITS << 16)
    }

    fn code_cost(&self) -> u64 {
        nats(self.changed).saturating_sub(self.codes.iter().map(|&n| nats(n)).sum())
    }
}

/// `n log2 n` in 1/65536 bit; counts of one block do not overflow it.
fn nats(n: u64) -> u64 {
    n.saturating_mul(log2(n.max(1)).into())
}

/// Returns the bounds of the cheapest classes, by dynamic programming over the keys that occur, from the
/// largest key down; and their cost in 1/65536 bit.
fn best_bounds(counts: &[KeyCounts]) -> (Vec<u8>, u64) {
    let used: Vec<usize> = (0..256).rev().filter(|&key| counts[key].elements > 0).collect();
    // For each number of keys: the cost, where the last class begins, and the number of classes.
    let mut best: Vec<(u64, usize, usize)> = vec![(0, 0, 0)];
    for end in 1..=used.len() {
        let mut sum = KeyCounts::default();
        let mut cheapest = (u64::MAX, 0, 0);
        for start in (0..end).rev() {
            sum.add(&counts[used[start]]);
            let (before, _, classes) = best[start];
            let cost = before.saturating_add(sum.cost());
            if classes < MAX_CLASSES && cost < cheapest.0 {
                cheapest = (cost, start, classes + 1);
            }
        }
        best.push(cheapest);
    }
    let mut bounds = Vec::new();
    let mut end = used.len();
    while best[end].1 > 0 {
        end = best[end].1;
        bounds.push(used[end - 1] as u8);
    }
    bounds.reverse();
    (bounds, best[used.len()].0)
}

/// Largest number of classes of a block.
pub(in crate::compress) const MAX_CLASSES: usize = 48;
