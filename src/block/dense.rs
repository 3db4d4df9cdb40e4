//! Applies blocks to dense tensors (spec, section 5, "Applying an update").

use std::ops::Range;

use crate::arch::threads::{SHARE, each};
use crate::block::space::Surroundings;
use crate::block::values::{Content, Structure, step_all, to_number};
use crate::block::{
    Based, Block, Groups, IndexSpace, Selector, Sets, Sparse, Stored, Support, Values, steps,
};
use crate::error::{Error, Result};
use crate::limits::{Budget, in_memory};
use crate::tensor::Dtype;
use crate::tensor::element::{self, Ranks};

/// The part of a tensor's buffer that a block's scope covers.
#[derive(Debug)]
pub struct Target<'a> {
    /// All of the tensor's bytes.
    pub data: &'a mut [u8],
    /// First element that the scope covers.
    pub start: u64,
    /// Number of elements that the scope covers.
    pub len: u64,
}

/// A run of consecutive elements of one tensor, and the values for them.
pub(crate) struct Run {
    pub(crate) target: usize,
    /// First element inside the tensor.
    pub(crate) element: u64,
    /// First value.
    pub(crate) value: usize,
    pub(crate) len: usize,
}

impl Run {
    /// Bytes of the elements in those of the tensor: those of two elements have both.
    fn bytes(&self, dtype: Dtype) -> Range<usize> {
        let (first, end) = (self.element, self.element + self.len as u64);
        let byte = |bits: u64| in_memory(bits / 8);
        let bits = u64::from(dtype.bits());
        byte(first * bits)..byte((end * bits).next_multiple_of(8))
    }

    /// Calls `f` with the number of each element that differs in these bytes ([`Self::bytes`]), and its bits.
    fn for_each_changed(&self, dtype: Dtype, old: &[u8], new: &[u8], mut f: impl FnMut(u64, u64, u64)) {
        match dtype.bits() {
            8 => changed::<1>(self.element, old, new, f),
            16 => changed::<2>(self.element, old, new, f),
            32 => changed::<4>(self.element, old, new, f),
            64 => changed::<8>(self.element, old, new, f),
            _ => {
                let all = (self.element..).take(self.len);
                for (at, inside) in all.zip(self.element % 2..) {
                    let [old, new] =
                        [old, new].map(|bytes| element::bits_at(dtype, bytes, inside).unwrap_or(0));
                    if old != new {
                        f(at, old, new);
                    }
                }
            }
        }
    }
}

/// Calls `f` with the number of each element of `SIZE` bytes that differs, from `first` on, and its bits.
fn changed<const SIZE: usize>(first: u64, old: &[u8], new: &[u8], mut f: impl FnMut(u64, u64, u64)) {
    let pairs = old.as_chunks::<SIZE>().0.iter().zip(new.as_chunks::<SIZE>().0);
    for (at, (old, new)) in (first..).zip(pairs) {
        if old != new {
            f(at, element::bits_of(old), element::bits_of(new));
        }
    }
}

/// Cuts the positions of a support into runs that lie in one tensor each.
pub(crate) fn for_each_run_in(
    support: &Support,
    space: &IndexSpace,
    sets: &Sets,
    starts: &[u64],
    mut f: impl FnMut(Run) -> Result<()>,
) -> Result<()> {
    let (mut target, mut value) = (0, 0);
    // Position of the target's first element in the index space.
    let mut base = 0;
    support.for_each_run(space.len(), sets, &mut |mut position, mut len| {
        while len > 0 {
            while position - base >= space.lens[target] {
                base += space.lens[target];
                target += 1;
            }
            let here = len.min(space.lens[target] - (position - base));
            f(Run { target, element: starts[target] + position - base, value, len: in_memory(here) })?;
            value += in_memory(here);
            position += here;
            len -= here;
        }
        Ok(())
    })
}

/// The number of values in each tensor of the scope.
fn tensor_counts(support: &Support, space: &IndexSpace, sets: &Sets) -> Result<Vec<u64>> {
    let mut counts = vec![0; space.lens.len()];
    let starts = vec![0; space.lens.len()];
    for_each_run_in(support, space, sets, &starts, |run| {
        counts[run.target] += run.len as u64;
        Ok(())
    })?;
    Ok(counts)
}

impl Block {
    /// The number of elements that have values, in an index space of `space.len()` elements.
    ///
    /// # Errors
    /// [`Error::Input`] for a set that is not known.
    pub fn count(&self, space: &IndexSpace, sets: &Sets) -> Result<u64> {
        self.support.count(&Surroundings { space, manifest: [0; 32], scope: self.scope, sets })
    }

    /// The numbers of elements that have values in each tensor of the scope; `None` if only the base of a
    /// delta tells (spec, supports/classed.md, rule 1, in a scope of several tensors).
    ///
    /// # Errors
    /// [`Error::Input`] for a set that is not known.
    pub(crate) fn tensor_counts(&self, space: &IndexSpace, sets: &Sets) -> Result<Option<Vec<u64>>> {
        match (&self.support, space.lens.len()) {
            (_, 1) => self.count(space, sets).map(|count| Some(vec![count])),
            (Support::Based(_), _) => Ok(None),
            (support, _) => tensor_counts(support, space, sets).map(Some),
        }
    }

    /// The binary32 numbers of the values, one for each element of the support, in order.
    ///
    /// # Errors
    /// [`Error::Input`] for kinds that give bits ([`Values::gives_bits`]), for latent codes, and for a set
    /// that is not known.
    ///
    /// # Panics
    /// As [`Block::apply`].
    pub fn numbers(&self, space: &IndexSpace, sets: &Sets, budget: &Budget) -> Result<Vec<f32>> {
        let mut count = 0u64;
        self.support.for_each_run(space.len(), sets, &mut |_, len| {
            count += len;
            Ok(())
        })?;
        let mut numbers = vec![0.0; budget.reserve_items::<f32>(count, 0)?];
        let counts = match self.values.facts().structure {
            Structure::Grouped(Groups::Tensor) => tensor_counts(&self.support, space, sets)?,
            _ => Vec::new(),
        };
        self.values.numbers(&counts, budget, &mut numbers)?;
        Ok(numbers)
    }

    /// The positions of the block's support in its index space, ascending.
    ///
    /// # Errors
    /// [`Error::Input`] for a set that is not known, [`Error::Limit`] if the positions need too much memory.
    pub fn positions(&self, space: &IndexSpace, sets: &Sets, budget: &Budget) -> Result<Vec<u64>> {
        let mut positions = Vec::new();
        self.support.for_each_run(space.len(), sets, &mut |start, len| {
            budget.reserve_bytes(len.saturating_mul(8), 0)?;
            positions.extend(start..start + len);
            Ok(())
        })?;
        Ok(positions)
    }

    /// Writes the values into `targets`, one for each tensor of the scope, or adds them to the elements there
    /// if [`Block::add`] is set.
    ///
    /// # Errors
    /// [`Error::Input`] for latent codes, for a set that is not known, and for targets that do not fit
    /// `space`. The targets are unchanged then. [`Error::Format`] if the base has too few elements of a class
    /// for a rank (CLS-4); the targets may have changed then, and are not the result.
    ///
    /// # Panics
    /// May panic for a hand-made block that an [`Encoder`](crate::stream::Encoder) refuses, such as one with
    /// fewer values than positions. Decoded blocks are consistent.
    pub fn apply(
        &self,
        space: &IndexSpace,
        sets: &Sets,
        budget: &Budget,
        targets: &mut [Target<'_>],
    ) -> Result<()> {
        check_targets(space, targets)?;
        let starts: Vec<u64> = targets.iter().map(|t| t.start).collect();
        let dtype = space.dtype;
        let content = self.values.facts().content;
        if let Support::Based(based) = &self.support {
            return apply_based(based, content, dtype, targets, None, |_, _, _, _| ());
        }
        if let Support::Sparse(Sparse { positions }) = &self.support
            && !self.add
            && dtype.bits() >= 8
            && !matches!(content, Content::Ulps(_))
        {
            return self.apply_sparse(positions, space, sets, budget, targets);
        }
        if let Values::Pow2(pow2) = &self.values {
            // Each power of two depends on its own code only: no memory is needed for all numbers at once.
            let mut tile = [0.0; NUMBERS_IN_CACHE];
            return for_each_run_in(&self.support, space, sets, &starts, |run| {
                for at in (0..run.len).step_by(NUMBERS_IN_CACHE) {
                    let tile = &mut tile[..NUMBERS_IN_CACHE.min(run.len - at)];
                    pow2.numbers_from(run.value + at, tile);
                    let data = &mut *targets[run.target].data;
                    put_numbers(dtype, self.add, tile, run.element + at as u64, data)?;
                }
                Ok(())
            });
        }
        match content {
            Content::Elements(Stored::Source, bytes) => {
                for_each_run_in(&self.support, space, sets, &starts, |run| {
                    copy_elements(dtype, bytes, &run, &mut *targets[run.target].data);
                    Ok(())
                })
            }
            Content::Ulps(diffs) => for_each_run_in(&self.support, space, sets, &starts, |run| {
                let diffs = &diffs[run.value..run.value + run.len];
                step_all(dtype, targets[run.target].data, run.element, diffs);
                Ok(())
            }),
            Content::Elements(..) | Content::Numbers { .. } => {
                let numbers = self.numbers(space, sets, budget)?;
                for_each_run_in(&self.support, space, sets, &starts, |run| {
                    let numbers = &numbers[run.value..run.value + run.len];
                    put_numbers(dtype, self.add, numbers, run.element, &mut *targets[run.target].data)
                })
            }
        }
    }

    /// As [`Self::apply`], and calls `noted` for each element whose bits change, with the number of its
    /// target, its own number in the target's `data`, and its bits before and after. A receiver that changes
    /// its tensors where they are can so update their digests ([`SumChange`](crate::digest::SumChange)), and
    /// take the changes back.
    ///
    /// # Errors
    /// As [`Self::apply`]; [`Error::Limit`] if the old elements of the support need too much memory.
    /// Positions classed by the base need none.
    ///
    /// # Panics
    /// As [`Self::apply`].
    pub fn apply_noting(
        &self,
        space: &IndexSpace,
        sets: &Sets,
        budget: &Budget,
        targets: &mut [Target<'_>],
        mut noted: impl FnMut(usize, u64, u64, u64),
    ) -> Result<()> {
        check_targets(space, targets)?;
        if let Support::Based(based) = &self.support {
            let content = self.values.facts().content;
            return apply_based(based, content, space.dtype, targets, None, |target, at, old, new| {
                if old != new {
                    noted(target, at, old, new);
                }
            });
        }
        let starts: Vec<u64> = targets.iter().map(|t| t.start).collect();
        let mut kept = Vec::new();
        for_each_run_in(&self.support, space, sets, &starts, |run| {
            let bytes = run.bytes(space.dtype);
            budget.reserve_bytes(bytes.len() as u64, 0)?;
            kept.extend_from_slice(&targets[run.target].data[bytes]);
            Ok(())
        })?;
        self.apply(space, sets, budget, targets)?;
        let mut kept = kept.as_slice();
        for_each_run_in(&self.support, space, sets, &starts, |run| {
            let bytes = run.bytes(space.dtype);
            let (old, rest) = kept.split_at(bytes.len());
            kept = rest;
            let new = &targets[run.target].data[bytes];
            run.for_each_changed(space.dtype, old, new, |at, old, new| noted(run.target, at, old, new));
            Ok(())
        })
    }

    /// As [`Self::apply_noting`], to copies of the `bases` of the targets, which are elements of whole bytes:
    /// each piece is copied and changed while it is in the caches. Only for positions classed by the base.
    pub(crate) fn apply_to_copies(
        &self,
        space: &IndexSpace,
        bases: &[&[u8]],
        targets: &mut [Target<'_>],
        noted: impl FnMut(usize, u64, u64, u64),
    ) -> Result<()> {
        check_targets(space, targets)?;
        match &self.support {
            Support::Based(based) => {
                apply_based(based, self.values.facts().content, space.dtype, targets, Some(bases), noted)
            }
            _ => Err(Error::inconsistent("positions that are not classed by the base")),
        }
    }

    /// Writes values at sparse positions into elements of whole bytes.
    fn apply_sparse(
        &self,
        positions: &[u64],
        space: &IndexSpace,
        sets: &Sets,
        budget: &Budget,
        targets: &mut [Target<'_>],
    ) -> Result<()> {
        let dtype = space.dtype;
        let encoded;
        let bytes = match self.values.elements() {
            Some(bytes) => bytes,
            None => {
                let numbers = self.numbers(space, sets, budget)?;
                let bytes = dtype.bytes_for(numbers.len() as u64).unwrap_or(u64::MAX);
                let mut bytes = vec![0; budget.reserve_items::<u8>(bytes, 0)?];
                element::encode_f32s(dtype, &numbers, 0, &mut bytes)?;
                encoded = bytes;
                &encoded
            }
        };
        match dtype.bits() {
            8 => scatter::<1>(positions, bytes, targets),
            16 => scatter::<2>(positions, bytes, targets),
            32 => scatter::<4>(positions, bytes, targets),
            _ => scatter::<8>(positions, bytes, targets),
        }
        Ok(())
    }
}

/// Changes elements at positions that depend on the elements before the block, step by step while they are in
/// the caches. With `bases`, of the same lengths as the targets' elements, copies them first. `noted`: called
/// for each changed element, as by [`Block::apply_noting`].
fn apply_based(
    based: &Based,
    content: Content<'_>,
    dtype: Dtype,
    targets: &mut [Target<'_>],
    bases: Option<&[&[u8]]>,
    mut noted: impl FnMut(usize, u64, u64, u64),
) -> Result<()> {
    if matches!(content, Content::Numbers { .. })
        || matches!(content, Content::Elements(stored, _) if stored != Stored::Source)
    {
        return Err(not_numbers_of_base());
    }
    let ranks = Ranks::new(dtype);
    let change = |old: u64, value: usize| match content {
        Content::Ulps(diffs) => ranks.step(old, diffs[value]),
        Content::Elements(_, bytes) => element::bits_at(dtype, bytes, value as u64).unwrap_or(0),
        Content::Numbers { .. } => old,
    };
    let mut selector = Selector::new(based, dtype);
    let width = in_memory(u64::from(dtype.bits())) / 8;
    for (number, target) in targets.iter_mut().enumerate() {
        for (start, len) in steps(target.len) {
            let first = target.start + start;
            if let Some(base) = bases.and_then(|bases| bases.get(number)) {
                let (from, to) = (in_memory(start) * width, in_memory(first) * width);
                target.data[to..to + len * width].copy_from_slice(&base[from..from + len * width]);
            }
            // All positions of a step are found before any of its elements changes class.
            selector.load(target.data, first, len);
            selector.find(|places, value| {
                // `change` takes an element, its bits, and the number of its value.
                let mut change = |at: u64, old: u64, value: usize| {
                    let new = change(old, value);
                    noted(number, at, old, new);
                    new
                };
                match dtype.bits() {
                    16 => change_sized::<2>(target.data, first, places, value, change),
                    32 => change_sized::<4>(target.data, first, places, value, change),
                    _ => {
                        for (&place, value) in places.iter().zip(value..) {
                            let at = first + u64::from(place);
                            let old = element::bits_at(dtype, target.data, at).unwrap_or(0);
                            element::set_bits_at(dtype, target.data, at, change(at, old, value));
                        }
                    }
                }
            });
        }
    }
    selector.finish()
}

/// Changes elements of `SIZE` bytes at places after element `first`. `change` takes the number of an element,
/// its bits, and the number of its value, from `value` on.
#[inline]
fn change_sized<const SIZE: usize>(
    data: &mut [u8],
    first: u64,
    places: &[u16],
    value: usize,
    mut change: impl FnMut(u64, u64, usize) -> u64,
) {
    let Some(elements) = data.as_chunks_mut::<SIZE>().0.get_mut(in_memory(first)..) else { return };
    for (&place, value) in places.iter().zip(value..) {
        if let Some(bytes) = elements.get_mut(usize::from(place)) {
            let mut old = [0; 8];
            old[..SIZE].copy_from_slice(bytes);
            let new = change(first + u64::from(place), u64::from_le_bytes(old), value);
            bytes.copy_from_slice(&new.to_le_bytes()[..SIZE]);
        }
    }
}

fn not_numbers_of_base() -> Error {
    Error::inconsistent("positions classed by the base need bits that replace elements")
}

/// Checks that `targets` are the parts of buffers that `space` spans.
fn check_targets(space: &IndexSpace, targets: &[Target<'_>]) -> Result<()> {
    let fits = targets.len() == space.lens.len()
        && targets.iter().zip(&space.lens).all(|(t, &len)| {
            let end = t.start.checked_add(t.len).and_then(|e| space.dtype.bytes_for(e));
            t.len == len && end.is_some_and(|e| e <= t.data.len() as u64)
        });
    if fits { Ok(()) } else { Err(Error::inconsistent("targets do not fit the block's scope")) }
}

/// Copies the elements of a run from `bytes`, the elements of all values, into a tensor.
#[inline]
fn copy_elements(dtype: Dtype, bytes: &[u8], run: &Run, data: &mut [u8]) {
    let size = in_memory((dtype.bits() / 8).into());
    if size > 0 && run.len > 1 {
        let at = in_memory(run.element) * size;
        let source = &bytes[run.value * size..][..run.len * size];
        data[at..at + run.len * size].copy_from_slice(source);
        return;
    }
    for i in 0..run.len {
        let bits = element::bits_at(dtype, bytes, (run.value + i) as u64).unwrap_or(0);
        element::set_bits_at(dtype, data, run.element + i as u64, bits);
    }
}

/// Writes elements of `SIZE` bytes at ascending positions of the joint index space of the targets.
fn scatter<const SIZE: usize>(mut positions: &[u64], elements: &[u8], targets: &mut [Target<'_>]) {
    let mut elements = elements.as_chunks::<SIZE>().0;
    let mut base = 0;
    for target in targets {
        let end = base + target.len;
        let (own, later) = positions.split_at(positions.partition_point(|&p| p < end));
        let (values, later_elements) = elements.split_at(own.len());
        let mut rest = &mut target.data.as_chunks_mut::<SIZE>().0[in_memory(target.start)..];
        let shares = own.chunks(SHARE).zip(values.chunks(SHARE)).map(|(own, values)| {
            let (first, last) = (base, own.last().map_or(base, |p| p + 1));
            base = last;
            (own, values, first, rest.split_off_mut(..in_memory(last - first)).unwrap_or_default())
        });
        each(shares, |(own, values, first, data)| {
            for (&position, value) in own.iter().zip(values) {
                data[in_memory(position - first)] = *value;
            }
        });
        (positions, elements, base) = (later, later_elements, end);
    }
}

/// Numbers that are computed and stored in one step, so that they stay in the first-level cache.
const NUMBERS_IN_CACHE: usize = 1024;

/// Stores numbers as the elements from `start` on, or adds them to these elements.
fn put_numbers(dtype: Dtype, add: bool, numbers: &[f32], start: u64, data: &mut [u8]) -> Result<()> {
    if !add {
        return element::encode_f32s(dtype, numbers, start, data);
    }
    let mut sums = [0.0; NUMBERS_IN_CACHE];
    for (numbers, start) in numbers.chunks(NUMBERS_IN_CACHE).zip((start..).step_by(NUMBERS_IN_CACHE)) {
        let sums = &mut sums[..numbers.len()];
        element::decode_f32s(dtype, data, start, sums)?;
        sums.iter_mut().zip(numbers).for_each(|(s, n)| *s = to_number(f64::from(*s + n)));
        element::encode_f32s(dtype, sums, start, data)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Constant, Floats, Rows, ScaleFormat, Scales, Scope, Ulp};
    use crate::limits::Limits;

    #[test]
    fn groups_by_tensor_apply_to_their_tensors() {
        let block = Block {
            scope: Scope::Tensors { first: 0, count: 3 },
            add: false,
            support: Support::Sparse(Sparse { positions: vec![1, 4, 5] }),
            values: Values::Constant(Constant {
                groups: Groups::Tensor,
                scales: Scales::from_f32s(ScaleFormat::F32, &[1.0, 2.0, -3.0]),
            }),
        };
        let space = IndexSpace {
            dtype: Dtype::F32,
            lens: vec![2, 2, 2].into(),
            row_lens: vec![],
            shapes: Default::default(),
        };
        let mut buffers = vec![vec![0u8; 8]; 3];
        let mut targets: Vec<_> = buffers.iter_mut().map(|b| Target { data: b, start: 0, len: 2 }).collect();
        block.apply(&space, &Sets::new(), &Budget::new(&Limits::default()), &mut targets).unwrap();
        let floats: Vec<f32> =
            buffers.concat().chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
        assert_eq!(floats, [0.0, 1.0, 0.0, 0.0, -3.0, -3.0]);
    }

    fn ones(scope: Scope, support: Support) -> Block {
        let scales = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
        Block {
            scope,
            add: false,
            support,
            values: Values::Constant(Constant { groups: Groups::Block, scales }),
        }
    }

    #[test]
    fn elements_that_are_kept_to_note_their_changes_are_charged() {
        let lens = vec![2, 3].into();
        let space = IndexSpace { dtype: Dtype::F32, lens, row_lens: vec![], shapes: Default::default() };
        let block = ones(Scope::Tensors { first: 0, count: 2 }, Support::All);
        let is_enough = |most, notes| {
            let mut buffers = [vec![0; 8], vec![0; 12]];
            let mut targets: Vec<_> = buffers
                .iter_mut()
                .map(|data| Target { start: 0, len: data.len() as u64 / 4, data })
                .collect();
            let (sets, budget) = (Sets::new(), Budget::new(&Limits::default().with_max_alloc_bytes(most)));
            let applied = match notes {
                true => block.apply_noting(&space, &sets, &budget, &mut targets, |_, _, _, _| ()),
                false => block.apply(&space, &sets, &budget, &mut targets),
            };
            applied.map_err(|e| assert_eq!(e.name(), "limit")).is_ok()
        };
        let [plain, noting] = [false, true].map(|notes| (0..99).find(|&most| is_enough(most, notes)));
        assert_eq!(noting, plain.map(|plain| plain + 8 + 12));
    }

    #[test]
    fn targets_that_do_not_fit_are_refused_and_unchanged() {
        let sets = Sets::new();
        let budget = Budget::new(&Limits::default());
        let space = IndexSpace {
            dtype: Dtype::F32,
            lens: vec![2, 3].into(),
            row_lens: vec![],
            shapes: Default::default(),
        };
        // For each target: its bytes, its first element, and its number of elements.
        let apply = |parts: &[(usize, u64, u64)]| {
            let mut buffers: Vec<_> = parts.iter().map(|(bytes, ..)| vec![7u8; *bytes]).collect();
            let mut targets: Vec<_> = buffers
                .iter_mut()
                .zip(parts)
                .map(|(data, &(_, start, len))| Target { data, start, len })
                .collect();
            let block = ones(Scope::Tensors { first: 0, count: 2 }, Support::All);
            let applied = block.apply(&space, &sets, &budget, &mut targets);
            let based = Block {
                support: Support::Based(Based { bounds: vec![], ranks: vec![vec![]] }),
                values: Values::Ulp(Ulp { diffs: vec![] }),
                ..block
            };
            let bases: [&[u8]; 2] = [&[7; 8], &[7; 12]];
            let copied = based.apply_to_copies(&space, &bases, &mut targets, |_, _, _, _| ());
            let noted = based.apply_noting(&space, &sets, &budget, &mut targets, |_, _, _, _| ());
            let [applied, copied, noted] =
                [applied, copied, noted].map(|result| result.map_err(|e| e.name()));
            assert_eq!((&applied, &applied), (&copied, &noted), "{parts:?}");
            (applied, buffers.concat())
        };
        assert_eq!(apply(&[(8, 0, 2), (16, 1, 3)]).0, Ok(()));
        let wrong: [&[_]; 6] = [
            &[(8, 0, 2)],
            &[(8, 0, 2), (12, 0, 3), (4, 0, 1)],
            &[(8, 0, 2), (12, 0, 2)],
            &[(8, 0, 2), (12, 1, 3)],
            &[(8, 0, 2), (11, 0, 3)],
            &[(8, 0, 2), (12, u64::MAX, 3)],
        ];
        for parts in wrong {
            let (applied, bytes) = apply(parts);
            assert_eq!(applied, Err("input"), "{parts:?}");
            assert!(bytes.iter().all(|&byte| byte == 7), "{parts:?}");
        }
    }

    #[test]
    fn memory_of_positions_is_limited() {
        let space = IndexSpace::flat(Dtype::F32, 100);
        let block = ones(Scope::Tensor(0), Support::All);
        let budget = |bytes| Budget::new(&Limits::default().with_max_alloc_bytes(bytes));
        assert_eq!(block.positions(&space, &Sets::new(), &budget(800)).unwrap(), Vec::from_iter(0..100));
        let refused = block.positions(&space, &Sets::new(), &budget(799)).unwrap_err();
        assert_eq!((refused.name(), refused.location().unwrap().offset), ("limit", 0));
        assert_eq!(block.numbers(&space, &Sets::new(), &budget(400)).unwrap(), [1.0; 100]);
        assert_eq!(block.numbers(&space, &Sets::new(), &budget(399)).unwrap_err().name(), "limit");
    }

    /// Applies a block to tensors of these lengths whose elements are all 2.
    fn applied(block: &Block, lens: &[u64]) -> Result<Vec<f32>> {
        let space = IndexSpace {
            dtype: Dtype::F32,
            lens: lens.to_vec().into(),
            row_lens: vec![],
            shapes: Default::default(),
        };
        let mut buffers: Vec<_> = lens.iter().map(|&len| 2f32.to_le_bytes().repeat(len as usize)).collect();
        let mut targets: Vec<_> =
            buffers.iter_mut().zip(lens).map(|(data, &len)| Target { data, start: 0, len }).collect();
        let applied = block.apply(&space, &Sets::new(), &Budget::new(&Limits::default()), &mut targets);
        let floats = |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        let elements: Vec<f32> = floats(buffers.concat());
        assert!(applied.is_ok() || elements.iter().all(|&x| x == 2.0), "{elements:?}");
        applied.map(|()| elements)
    }

    #[test]
    fn a_row_may_lie_in_two_tensors() {
        let scope = Scope::Tensors { first: 0, count: 2 };
        let block = ones(scope, Support::Rows(Rows { row_len: 4, rows: vec![1] }));
        let space = IndexSpace { lens: vec![6, 6].into(), ..IndexSpace::flat(Dtype::F32, 12) };
        assert_eq!(block.tensor_counts(&space, &Sets::new()).unwrap(), Some(vec![2, 2]));
        let expected = [[2.0; 4], [1.0; 4], [2.0; 4]].concat();
        assert_eq!(applied(&block, &[6, 6]).unwrap(), expected);
    }

    #[test]
    fn sparse_values_replace_elements_or_are_added_to_them() {
        let support = Support::Sparse(Sparse { positions: vec![1, 4] });
        let block = ones(Scope::Tensors { first: 0, count: 2 }, support);
        assert_eq!(applied(&block, &[3, 3]).unwrap(), [2.0, 1.0, 2.0, 2.0, 1.0, 2.0]);
        let added = Block { add: true, ..block };
        assert_eq!(applied(&added, &[3, 3]).unwrap(), [2.0, 3.0, 2.0, 2.0, 3.0, 2.0]);
    }

    #[test]
    fn numbers_do_not_replace_elements_that_are_classed_by_the_base() {
        let based = Support::Based(Based { bounds: vec![], ranks: vec![vec![1]] });
        let constant = ones(Scope::Tensor(0), based);
        let floats = |stored| Values::Floats(Floats { stored, bytes: 1f32.to_le_bytes().to_vec() });
        assert_eq!(applied(&constant, &[3]).unwrap_err().name(), "input");
        let block = |stored| Block { values: floats(stored), ..constant.clone() };
        assert_eq!(applied(&block(Stored::F32), &[3]).unwrap_err().name(), "input");
        assert_eq!(applied(&block(Stored::Source), &[3]).unwrap(), [2.0, 1.0, 2.0]);
    }
}
