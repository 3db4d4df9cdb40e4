//! Lossless differences from a base.

use std::collections::HashSet;
use std::fmt;

use rayon::prelude::*;

use crate::arch::{self, Kernel};
use crate::block::{
    BaseElements, Based, Block, Coded, Positions, Scope, Sparse, Support, Ulp, Values, for_each_keys,
};
use crate::codes::{count_symbols, log2, token_cost};
use crate::compress::settings::{Keys, OutOfRange, SpecError, SpecWriter};
use crate::compress::{Input, in_order, whole};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame;
use crate::frame::{Digest, run_digest, tensor_digest};
use crate::tensor::element::{bits_at, ulp_diff};
use crate::tensor::{Dtype, TensorView};

/// `delta`: sends the elements that differ from a base, without loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delta {
    /// `positions`: the encoding of positions. Default: `auto`.
    pub positions: Positions,
}

impl Default for Delta {
    fn default() -> Self {
        Self { positions: Positions::Auto }
    }
}

impl Delta {
    pub(in crate::compress) fn parse(keys: &mut Keys<'_>) -> Result<Self, SpecError> {
        Ok(Self { positions: keys.positions()? })
    }

    pub(in crate::compress) fn check(&self) -> Result<(), OutOfRange> {
        Ok(())
    }

    pub(in crate::compress) fn write(&self, out: &mut SpecWriter<'_, '_>) -> fmt::Result {
        out.positions(self.positions)
    }

    /// Appends blocks of the elements of a run of tensors that differ from their bases.
    pub(in crate::compress) fn blocks(&self, inputs: &[Input<'_>], blocks: &mut Vec<Block>) -> Result<()> {
        let differences = in_order(inputs.par_iter().map(|input| {
            let base = input.base.ok_or(Error::input(InputErrorKind::MissingBase));
            base.and_then(|base| differences(input.view, base)).map_err(|e| e.in_tensor(input.tensor))
        }))?;
        let mut rest = differences.as_slice();
        let mut inputs = inputs;
        while !inputs.is_empty() {
            let mut bytes = 0;
            let fits = inputs.iter().take_while(|input| {
                bytes += input.view.data().len();
                bytes <= RUN_BYTES
            });
            let count = fits.count().max(1);
            let (own, others) = inputs.split_at(count);
            let (changed, unread) = rest.split_at(count);
            blocks.push(self.block(own, changed));
            (inputs, rest) = (others, unread);
        }
        Ok(())
    }

    /// Makes a block of the differences of a run of tensors.
    fn block(&self, inputs: &[Input<'_>], differences: &[Differences]) -> Block {
        let total = differences.iter().map(|d| d.positions.len()).sum();
        let (mut positions, mut diffs) = (Vec::with_capacity(total), Vec::with_capacity(total));
        let mut start = 0;
        for (input, changed) in inputs.iter().zip(differences) {
            positions.extend(changed.positions.iter().map(|p| start + p));
            diffs.extend_from_slice(&changed.diffs);
            start += input.view.elements();
        }
        let scope = whole(inputs[0].tensor, inputs.len());
        let by_class = matches!(self.positions, Positions::Auto | Positions::Classed);
        let forced = self.positions == Positions::Classed;
        let classed = by_class.then(|| classed(inputs, &positions, &diffs, forced)).flatten();
        let (support, diffs) = match classed {
            Some((based, order)) => (Support::Based(based), order.into_iter().map(|i| diffs[i]).collect()),
            None => (Support::Sparse(Sparse { positions }), diffs),
        };
        Block { scope, add: false, support, values: Values::Ulp(Ulp { diffs }) }
    }
}

/// Most bytes of tensors that share a block and a digest, unless it is one tensor. Whoever reads one tensor
/// of them needs the base of all.
const RUN_BYTES: usize = 8 << 20;
/// Fewest changed elements for which classes are tried.
const FEW: usize = 128;

/// The elements of a tensor that differ from its base.
#[derive(Default)]
struct Differences {
    positions: Vec<u64>,
    /// Distances in units of the last place.
    diffs: Vec<i64>,
}

/// Number of bytes that a thread compares at a time. It holds whole elements of every type.
const STEP: usize = 1 << 18;

fn differences(new: TensorView<'_>, old: TensorView<'_>) -> Result<Differences> {
    if new.dtype() != old.dtype() || new.shape() != old.shape() {
        return Err(Error::input(InputErrorKind::Mismatch {
            what: "shapes or element types of tensor and base",
        }));
    }
    let (dtype, n) = (new.dtype(), new.elements());
    let steps = new.data().par_chunks(STEP).zip(old.data().par_chunks(STEP)).enumerate();
    let pieces: Vec<Differences> =
        steps.map(|(i, (new, old))| compare(dtype, new, old, (i * STEP) as u64, n)).collect();
    let total = pieces.iter().map(|piece| piece.positions.len()).sum();
    let mut all = Differences { positions: Vec::with_capacity(total), diffs: Vec::with_capacity(total) };
    for piece in pieces {
        all.positions.extend(piece.positions);
        all.diffs.extend(piece.diffs);
    }
    Ok(all)
}

/// Masks of 64 elements in one step of the comparison.
const ROWS: usize = 64;
/// Elements that are compared in one step.
const LANES: usize = 64 * ROWS;

/// Compares two pieces that begin at byte `start` of tensors of `n` elements.
fn compare(dtype: Dtype, new: &[u8], old: &[u8], start: u64, n: u64) -> Differences {
    let mut found = Differences::default();
    let first = start * 8 / u64::from(dtype.bits());
    let mut differ = |at: u64| {
        let (Some(new), Some(old)) = (bits_at(dtype, new, at), bits_at(dtype, old, at)) else { return };
        if new != old && first + at < n {
            found.positions.push(first + at);
            found.diffs.push(ulp_diff(dtype, old, new));
        }
    };
    match dtype.bits() {
        8 => for_each_changed::<1>(new, old, differ),
        16 => for_each_changed::<2>(new, old, differ),
        32 => for_each_changed::<4>(new, old, differ),
        64 => for_each_changed::<8>(new, old, differ),
        // Two elements in a byte.
        _ => for_each_changed::<1>(new, old, |byte| (2 * byte..2 * byte + 2).for_each(&mut differ)),
    }
    found
}

/// Calls `f` with the number of each changed element of W bytes.
fn for_each_changed<const W: usize>(new: &[u8], old: &[u8], mut f: impl FnMut(u64)) {
    let mut flags = [[0; 64]; ROWS];
    let mut masks = [0; ROWS];
    let steps = new.as_chunks::<W>().0.chunks(LANES).zip(old.as_chunks::<W>().0.chunks(LANES));
    for (step, (new, old)) in steps.enumerate() {
        if new == old {
            continue;
        }
        let (used, rest) = flags.as_flattened_mut().split_at_mut(new.len());
        rest.fill(0);
        arch::run(Differ { new, old, flags: used });
        arch::ranges::in_range(arch::widest(), &flags, 1, 0, &mut masks);
        for (row, &mask) in masks.iter().enumerate() {
            let mut mask = mask;
            while mask != 0 {
                f((step * LANES + 64 * row) as u64 + u64::from(mask.trailing_zeros()));
                mask &= mask - 1;
            }
        }
    }
}

/// Sets the flag of each element that differs.
struct Differ<'a, const W: usize> {
    new: &'a [[u8; W]],
    old: &'a [[u8; W]],
    flags: &'a mut [u8],
}

impl<const W: usize> Kernel for Differ<'_, W> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for ((flag, new), old) in self.flags.iter_mut().zip(self.new).zip(self.old) {
            *flag = u8::from(new != old);
        }
    }
}

/// Values of zigzag codes that are told apart in the choice of classes.
const CODES: usize = 8;
/// About the bits of a class: its fields, its tables, and the ends of its segments.
const CLASS_BITS: u64 = 260;

/// Numbers of the elements with one key.
#[derive(Clone, Copy, Default)]
struct KeyCounts {
    elements: u64,
    changed: u64,
    codes: [u64; CODES],
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

/// Returns the positions by classes of the base, and the numbers of the positions in their order, if that
/// should be smaller than gaps.
fn classed(
    inputs: &[Input<'_>],
    positions: &[u64],
    diffs: &[i64],
    forced: bool,
) -> Option<(Based, Vec<usize>)> {
    if positions.len() < FEW && !forced {
        return None;
    }
    let dtype = inputs[0].view.dtype();
    let base: Option<Vec<BaseElements<'_>>> = inputs
        .iter()
        .map(|i| i.base.map(|b| BaseElements { data: b.data(), start: 0, len: b.elements() }))
        .collect();
    let base = base?;
    let counts = count_keys(dtype, &base, positions, diffs);
    let mut all = KeyCounts::default();
    counts.iter().for_each(|c| all.add(c));
    let (bounds, cost) = best_bounds(&counts);
    let gaps = positions.iter().scan(0, |next, &p| Some(p - std::mem::replace(next, p + 1)));
    if !forced && cost >= token_cost(gaps).saturating_add(all.code_cost()) {
        return None;
    }
    Some(Based::classify(bounds, dtype, &base, positions))
}

/// Number of elements from which on the keys of a sample are counted, and the part of the steps in it.
const SAMPLED: u64 = 1 << 21;
const SAMPLE: u64 = 16;

fn count_keys(dtype: Dtype, base: &[BaseElements<'_>], positions: &[u64], diffs: &[i64]) -> Vec<KeyCounts> {
    let mut counts = vec![KeyCounts::default(); 256];
    let mut changed = positions.iter().zip(diffs).peekable();
    let n: u64 = base.iter().map(|b| b.len).sum();
    let (mut step, every) = (0u64, if n < SAMPLED { 1 } else { SAMPLE });
    for_each_keys(dtype, base, |start, keys| {
        // A hash, because tensors of a model repeat.
        if (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(every) {
            counts.iter_mut().zip(count_symbols(keys)).for_each(|(c, n)| c.elements += every * u64::from(n));
        }
        step += 1;
        let end = start + keys.len() as u64;
        while let Some((&position, &diff)) = changed.next_if(|(p, _)| **p < end) {
            let of_key = &mut counts[usize::from(keys[(position - start) as usize])];
            of_key.changed += 1;
            let code = diff.unsigned_abs().saturating_mul(2).saturating_sub(u64::from(diff < 0));
            of_key.codes[code.min(CODES as u64 - 1) as usize] += 1;
        }
    });
    counts.iter_mut().for_each(|c| c.elements = c.elements.max(c.changed));
    counts
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
const MAX_CLASSES: usize = 48;

/// Digests of a tensor before and after an update.
struct Digested {
    tensor: u64,
    bytes: usize,
    base: Digest,
    result: Digest,
}

/// Returns the entries that an update's header has for the tensors touched by these blocks, before and after
/// the update ([`UpdateHeader::delta`](crate::frame::UpdateHeader::delta)). Consecutive small tensors share
/// an entry, and so do the tensors of a block classed by the base. Only tensors of `inputs` with a base have
/// one.
pub fn deltas<B: Coded>(inputs: &[Input<'_>], blocks: &[B]) -> Vec<frame::Delta> {
    let scopes = || blocks.iter().map(|coded| coded.block().scope);
    let tensors = |scope: Scope| (scope.first()..).take(scope.tensors() as usize);
    let touched: HashSet<u64> = scopes().flat_map(tensors).collect();
    let based = blocks.iter().map(Coded::block).filter(|b| matches!(b.support, Support::Based(_)));
    let not_first: HashSet<u64> = based.flat_map(|block| tensors(block.scope).skip(1)).collect();
    let touched = inputs.par_iter().filter(|input| touched.contains(&input.tensor));
    let digested: Vec<Digested> = touched
        .filter_map(|input| {
            let (tensor, bytes) = (input.tensor, input.view.data().len());
            let (base, result) = (tensor_digest(input.base?), tensor_digest(input.view));
            Some(Digested { tensor, bytes, base, result })
        })
        .collect();
    let mut runs: Vec<Vec<&Digested>> = Vec::new();
    let mut run_bytes = 0;
    for together in digested.chunk_by(|_, next| not_first.contains(&next.tensor)) {
        let bytes: usize = together.iter().map(|d| d.bytes).sum();
        match runs.last_mut() {
            Some(run)
                if run[run.len() - 1].tensor + 1 == together[0].tensor && run_bytes + bytes <= RUN_BYTES =>
            {
                run.extend(together);
                run_bytes += bytes;
            }
            _ => {
                runs.push(together.iter().collect());
                run_bytes = bytes;
            }
        }
    }
    let entry = |run: &Vec<&Digested>| {
        let (bases, results): (Vec<Digest>, Vec<Digest>) = run.iter().map(|d| (d.base, d.result)).unzip();
        let more = run.len() as u64 - 1;
        frame::Delta { first: run[0].tensor, more, base: run_digest(&bases), result: run_digest(&results) }
    };
    runs.iter().map(entry).collect()
}
