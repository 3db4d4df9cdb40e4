//! Sums of whole updates.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::headers;
use super::pieces::{Reduced, SumPieces};
use super::scatter::{self, Entries};
use super::total::Total;
use super::windows::{Window, Windows};
use crate::arch::pages;
use crate::arch::spare::Spare;
use crate::block::{Block, Scope, SetId, Sets, Support, Target, Values};
#[cfg(doc)]
use crate::error::InputErrorKind;
use crate::error::{Error, Result};
use crate::frame::{Manifest, Reduction, UpdateHeader, UpdatePart};
use crate::limits::{Budget, Limits, check, in_memory, setters};

/// Precision of sums of floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// 32 bits, rounded after each sender; tensors of f64 in 64 bits.
    #[default]
    F32,
    /// 64 bits, rounded once at the end.
    F64,
}

/// Options of a sum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SumOptions {
    /// Precision of sums of floats. Default: 32 bits.
    pub precision: Precision,
    /// Limits for reading the updates. [`Limits::max_alloc_bytes`] also applies to the accumulators and to
    /// the waiting updates, each.
    pub limits: Limits,
}

setters! {
    SumOptions {
        with_precision(precision: Precision)
        with_limits(limits: Limits)
    }
}

/// A block of a sender, which is expanded when it is added.
enum Held<'a> {
    Decoded(Box<Block>),
    /// A block that can be added by its positions.
    Sparse(Entries),
    /// A block that is also decoded only then.
    Located {
        part: Arc<UpdatePart<'a>>,
        number: usize,
    },
}

impl Held<'_> {
    fn scope(&self) -> Scope {
        match self {
            Self::Decoded(block) => block.scope,
            Self::Sparse(entries) => entries.scope,
            Self::Located { part, number } => part.blocks[*number].scope,
        }
    }

    /// Returns the numbers of its tensors.
    fn tensors(&self) -> Range<usize> {
        tensors_of(self.scope())
    }

    /// Returns its first tensor, and its first element in it.
    fn place(&self) -> (usize, u64) {
        (self.tensors().start, start_of(self.scope()))
    }

    /// Returns the index set that it refers to.
    fn set(&self) -> Option<SetId> {
        match self {
            Self::Decoded(block) => match &block.support {
                Support::Set(set) => Some(set.id),
                _ => None,
            },
            Self::Sparse(_) => None,
            Self::Located { part, number } => part.blocks[*number].set(),
        }
    }

    /// Approximate bytes that it takes.
    fn bytes(&self) -> u64 {
        match self {
            Self::Decoded(block) => held_bytes(block),
            Self::Sparse(entries) => entries.bytes(),
            Self::Located { .. } => 0,
        }
    }

    /// Whether it can be added by its positions.
    fn is_sparse(&self) -> bool {
        match self {
            Self::Decoded(_) => false,
            Self::Sparse(_) => true,
            Self::Located { part, number } => scatter::takes(&part.blocks[*number]),
        }
    }

    /// Returns the block, or its elements if it has all of a tensor or of a range. `memory` returns so many
    /// bytes, of any values.
    fn decode(&self, budget: &Budget, memory: impl FnOnce(usize) -> Vec<u8>) -> Result<Decoded<'_>> {
        match self {
            Self::Decoded(block) => Ok(Decoded::Block(Cow::Borrowed(block))),
            Self::Sparse(entries) => Ok(Decoded::Sparse(Cow::Borrowed(entries))),
            Self::Located { part, number } => {
                let raw = &part.blocks[*number];
                if raw.is_dense_in_one() {
                    let bytes = raw.space.dtype.bytes_for(raw.space.len()).unwrap_or(u64::MAX);
                    let len = budget.reserve_items::<u8>(bytes, raw.offset);
                    let mut elements = memory(len.map_err(|e| part.place(e, *number))?);
                    part.decode_into(*number, budget, &mut elements)?;
                    return Ok(Decoded::Elements(raw.scope, elements));
                }
                let sparse = |entries| Decoded::Sparse(Cow::Owned(entries));
                decode(part, *number, budget, sparse, |block| Decoded::Block(Cow::Owned(block)))
            }
        }
    }
}

/// A decoded block.
enum Decoded<'c> {
    Block(Cow<'c, Block>),
    Sparse(Cow<'c, Entries>),
    /// The elements of a block that has all of a tensor, or of a range of it.
    Elements(Scope, Vec<u8>),
}

impl Decoded<'_> {
    fn scope(&self) -> Scope {
        match self {
            Self::Block(block) => block.scope,
            Self::Sparse(entries) => entries.scope,
            Self::Elements(scope, _) => *scope,
        }
    }
}

/// Update of one sender.
struct Contribution<'a> {
    header: UpdateHeader,
    weight: f64,
    blocks: Vec<Held<'a>>,
    /// Numbers of the blocks that no window cuts, by their places.
    uncut: Vec<usize>,
    /// Numbers of the others, which are added by their positions: of whole tensors, each after those before.
    cut: Vec<usize>,
    sets: Sets,
    parts: u64,
    complete: bool,
}

impl<'a> Contribution<'a> {
    /// Divides the blocks into those that windows may cut and those that they may not.
    fn arrange(&mut self) {
        let mut order: Vec<usize> = (0..self.blocks.len()).collect();
        order.sort_by_key(|&number| self.blocks[number].place());
        let mut end = 0;
        (self.cut, self.uncut) = order.into_iter().partition(|&number| {
            let (block, tensors) = (&self.blocks[number], self.blocks[number].tensors());
            let is_cut = block.is_sparse() && tensors.start >= end;
            end = if is_cut { tensors.end } else { end };
            is_cut
        });
    }

    /// Returns the numbers of the blocks of whole tensors that have some in a window.
    fn cut(&self, window: &Window) -> &[usize] {
        let tensors = |number: &usize| self.blocks[*number].tensors();
        let from = self.cut.partition_point(|number| tensors(number).end <= window.tensors.start);
        let len = self.cut[from..].partition_point(|number| tensors(number).start < window.tensors.end);
        &self.cut[from..from + len]
    }

    /// Returns the numbers of the other blocks in a window, by their places.
    fn uncut(&self, window: &Window) -> &[usize] {
        let places = window.places();
        let before = |place| self.uncut.partition_point(|&number| self.blocks[number].place() < place);
        &self.uncut[before(places.start)..before(places.end)]
    }

    /// Returns the numbers of all blocks in a window, in the order of the update.
    fn numbers(&self, window: &Window) -> Vec<usize> {
        let mut numbers = [self.uncut(window), self.cut(window)].concat();
        numbers.sort_unstable();
        numbers
    }

    /// Decodes the blocks in a window that the windows after it have, too.
    fn hold(&mut self, window: &Window, manifest: &Manifest, limits: &Limits) -> Result<()> {
        let is_wanted = |&number: &usize| match &self.blocks[number] {
            block @ Held::Located { .. } => !window.ends(manifest, &block.tensors()),
            _ => false,
        };
        let wanted: Vec<usize> = self.cut(window).iter().copied().filter(is_wanted).collect();
        let entries = |&number: &usize, budget: &Budget| match &self.blocks[number] {
            Held::Located { part, number } => decode(part, *number, budget, Some, |_| None),
            _ => Ok(None),
        };
        let decoded = Budget::new(limits).decode_each(&wanted, entries);
        for (number, entries) in wanted.into_iter().zip(decoded) {
            if let Some(entries) = entries? {
                self.blocks[number] = Held::Sparse(entries);
            }
        }
        Ok(())
    }

    /// Gives back the memory of blocks that no window after this one has.
    fn release(&mut self, window: &Window, manifest: &Manifest) {
        for number in self.cut(window).to_vec() {
            match &mut self.blocks[number] {
                Held::Sparse(entries) if window.ends(manifest, &tensors_of(entries.scope)) => entries.clear(),
                _ => {}
            }
        }
    }

    /// Returns the blocks in a window.
    fn blocks(&self, window: &Window) -> impl Iterator<Item = &Held<'a>> {
        self.numbers(window).into_iter().map(|number| &self.blocks[number])
    }
}

/// Sum or mean of the updates of many senders.
///
/// Each update counts as a reader would decode it: blocks of any kind, and zero for elements without a block.
/// If all updates of a tensor of at most 32-bit floats are sparse, they are added without expanding them, to
/// the same bits. The sum is taken in the order of the senders' numbers, independent of the order of arrival,
/// so every node with the same updates and options gets the same bits. It does not wait for missing senders:
/// [`Reduced::header`] has the number that took part.
///
/// # Memory
/// Until the end: the decoded, unexpanded blocks of every sender (8 bytes per element of a top-k update, 9
/// bits per element of natural compression), or with [`Sum::add_later`] their places. At the end, the
/// accumulators (4 bytes per element, 8 with [`Precision::F64`] or f64 tensors, 16 for integers), of all
/// tensors with [`Sum::finish`], of those that are summed at a time with [`Sum::into_pieces`]; and of those
/// that are summed at a time one expanded update, or with [`Sum::add_later`] the sparse blocks of all.
pub struct Sum<'a> {
    manifest: Arc<Manifest>,
    options: SumOptions,
    waiting: BTreeMap<u64, Contribution<'a>>,
    held: u64,
}

impl<'a> Sum<'a> {
    /// Returns an empty sum of updates of the tensors of `manifest`.
    pub fn new(manifest: &Arc<Manifest>, options: SumOptions) -> Self {
        Self { manifest: Arc::clone(manifest), options, waiting: BTreeMap::new(), held: 0 }
    }

    /// Adds a part of a sender's update. Parts of one update come in order; parts of different senders may
    /// alternate.
    ///
    /// `weight` scales the update and is the same for all its parts: 1 for a plain sum, or for example a
    /// sender's number of samples. It must be positive and finite.
    ///
    /// # Errors
    /// [`InputErrorKind::CannotReduce`] with the sender and the reason if the update cannot be summed with
    /// those before it; [`InputErrorKind::MissingModel`] if it has latent codes; those of
    /// [`UpdatePart::decode`]; [`Error::Limit`] if the waiting updates exceed [`Limits::max_alloc_bytes`].
    /// After an error the sum is unchanged.
    pub fn add(&mut self, part: &UpdatePart<'_>, weight: f64) -> Result<()> {
        self.check(part, weight).map_err(|e| e.of_sender(part.header.sender))?;
        let numbers: Vec<usize> = (0..part.blocks.len()).collect();
        let decoded = |block| Held::Decoded(Box::new(block));
        let held = part
            .budget()
            .decode_each(&numbers, |&number, budget| decode(part, number, budget, Held::Sparse, decoded));
        let held = held.into_iter().collect::<Result<Vec<Held<'a>>>>()?;
        let bytes = held.iter().map(Held::bytes).fold(self.held, u64::saturating_add);
        check("max_alloc_bytes", bytes, self.options.limits.max_alloc_bytes, 0)?;
        self.held = bytes;
        self.hold(part, weight, held.into_iter());
        Ok(())
    }

    /// Adds a part of a sender's update as [`Self::add`], and decodes its blocks only when they are added:
    /// for bytes that stay where they are, such as those of a mapped file.
    ///
    /// # Errors
    /// As [`Self::add`], except those of its blocks, which [`Self::finish`] and [`SumPieces`] give.
    pub fn add_later(&mut self, part: UpdatePart<'a>, weight: f64) -> Result<()> {
        self.check(&part, weight).map_err(|e| e.of_sender(part.header.sender))?;
        let part = Arc::new(part);
        let located = |number| Held::Located { part: Arc::clone(&part), number };
        self.hold(&part, weight, (0..part.blocks.len()).map(located));
        Ok(())
    }

    fn hold(&mut self, part: &UpdatePart<'_>, weight: f64, blocks: impl Iterator<Item = Held<'a>>) {
        let waiting = self.waiting.entry(part.header.sender).or_insert_with(|| Contribution {
            header: UpdateHeader { label: String::new(), ..part.header.clone() },
            weight,
            blocks: Vec::new(),
            uncut: Vec::new(),
            cut: Vec::new(),
            sets: Sets::new(),
            parts: 0,
            complete: false,
        });
        let before = waiting.blocks.len();
        waiting.blocks.extend(blocks);
        // A stream can have thousands of index sets, of which an update needs a few.
        let ids = waiting.blocks[before..].iter().filter_map(Held::set);
        waiting.sets.extend(ids.filter_map(|id| Some((id, Arc::clone(part.sets().get(&id)?)))));
        waiting.parts += 1;
        waiting.complete = part.last;
        if part.last {
            waiting.arrange();
        }
    }

    fn check(&self, part: &UpdatePart<'_>, weight: f64) -> Result<()> {
        let (header, refuse) = (&part.header, |why| Err(Error::cannot_reduce(why)));
        if !(weight.is_finite() && weight > 0.0) {
            return Err(Error::bad_option("weight"));
        }
        if part.manifest.id() != self.manifest.id() {
            let names = |manifest: &Manifest| {
                let mut tensors = manifest.tensors().to_vec();
                tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
                tensors
            };
            return match names(&part.manifest) == names(&self.manifest) {
                true => refuse("it has another manifest, with the same tensors in another order"),
                false => refuse("it has another manifest"),
            };
        }
        headers::alone(header)?;
        match self.waiting.get(&header.sender) {
            Some(earlier) if earlier.complete => return Err(headers::twice()),
            Some(earlier) if !earlier.header.same_update(header) => {
                return refuse("its parts belong to different updates");
            }
            Some(earlier) if earlier.parts != part.part => return refuse("a part of it is missing"),
            Some(earlier) if earlier.weight != weight => return refuse("its parts have different weights"),
            Some(_) => return Ok(()),
            None if part.part != 0 => return refuse("its first part is missing"),
            None => {}
        }
        if header.reduction == Reduction::Sum && weight != 1.0 {
            return refuse("it is a sum, which contains its weights already");
        }
        let ints = |t: &crate::frame::TensorInfo| !t.dtype.is_float();
        if weight != 1.0 && self.manifest.tensors().iter().any(ints) {
            return refuse("a weight other than 1 has no meaning for integer tensors");
        }
        let Some(first) = self.waiting.values().next().map(|c| &c.header) else { return Ok(()) };
        headers::together(first, header)
    }

    /// Returns the senders whose updates are complete.
    pub fn senders(&self) -> impl Iterator<Item = u64> {
        self.waiting.iter().filter(|(_, c)| c.complete).map(|(sender, _)| *sender)
    }

    /// Returns the sum, or with `mean` the sum divided by the sum of the weights (for updates that are sums,
    /// of their contributors).
    ///
    /// # Errors
    /// [`InputErrorKind::CannotReduce`] if the sum is empty, an update is incomplete, contributors exceed the
    /// number of senders, a mean of integers is asked for, or a tensor is bool; [`Error::Limit`] if the
    /// accumulators need too much memory.
    pub fn finish(mut self, mean: bool) -> Result<Reduced> {
        let header = self.header(mean)?;
        let divisor = mean.then(|| self.total_weight());
        self.check_memory(&Window::all(&self.manifest), mean)?;
        // A few tensors at a time, so that the memory of decoded blocks is used again.
        let (mut windows, mut spare, mut sums) = (Windows::whole(&self), Spare::new(u64::MAX), Vec::new());
        while let Some(window) = windows.next(&self) {
            sums.extend(self.totals(&window, divisor, &mut spare).map_err(|(_, e)| e)?);
        }
        Ok(Reduced { header, manifest: self.manifest, sums })
    }

    /// Returns the sum or mean piece by piece, for tensors that need not be in memory together.
    ///
    /// # Errors
    /// The errors of [`Self::finish`] for the whole sum, and [`Error::Limit`] for a tensor of more elements
    /// than [`Limits::max_elements`]. Errors in the values of a tensor come with its pieces.
    pub fn into_pieces(self, mean: bool) -> Result<SumPieces<'a>> {
        for (number, info) in (0u64..).zip(self.manifest.tensors()) {
            check("max_elements", info.elements(), self.options.limits.max_elements, 0)
                .map_err(|e| e.in_tensor(number))?;
        }
        SumPieces::new(self, mean)
    }

    pub(super) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the tensors of each block that no window cuts.
    pub(super) fn scopes(&self) -> impl Iterator<Item = Range<usize>> {
        self.waiting.values().flat_map(|c| c.uncut.iter().map(|&number| c.blocks[number].tensors()))
    }

    /// Returns the elements of each of these blocks of a tensor that none joins to another.
    pub(super) fn scopes_of(&self, tensor: usize) -> impl Iterator<Item = Range<u64>> {
        let n = self.manifest.tensors()[tensor].elements();
        let elements = move |held: &Held<'_>| match held.scope() {
            Scope::Range { start, len, .. } => start..start + len,
            _ => 0..n,
        };
        let window = Window::of(tensor);
        let of_one = move |c: &Contribution<'_>| {
            c.uncut(&window).iter().map(|&number| elements(&c.blocks[number])).collect::<Vec<_>>()
        };
        self.waiting.values().flat_map(of_one)
    }

    /// Returns the sums of the tensors in the next window. An error has the sender of its block. `spare`:
    /// memory that is used again.
    pub(super) fn totals(
        &mut self,
        window: &Window,
        divisor: Option<f64>,
        spare: &mut Spare,
    ) -> Result<Vec<Total>, (Option<u64>, Error)> {
        for (&sender, contribution) in &mut self.waiting {
            let held = contribution.hold(window, &self.manifest, &self.options.limits);
            held.map_err(|e| (Some(sender), e.of_sender(sender)))?;
        }
        let sums = self.totals_of(window, divisor, spare)?;
        self.waiting.values_mut().for_each(|contribution| contribution.release(window, &self.manifest));
        Ok(sums)
    }

    fn totals_of(
        &self,
        window: &Window,
        divisor: Option<f64>,
        spare: &mut Spare,
    ) -> Result<Vec<Total>, (Option<u64>, Error)> {
        let sparse = self.sparse(window, divisor);
        let first = window.tensors.start;
        let sums = self.accumulators(window, divisor.is_some(), &sparse, spare);
        let mut sums = sums.map_err(|e| (None, e))?;
        let mut scratch = vec![Vec::new(); sums.len()];
        let mut blocks = Vec::new();
        for (sender, contribution) in &self.waiting {
            let mut add = || {
                let (by_position, others) = self.decode(contribution, window, &sparse, spare)?;
                let touched = self.expand(contribution, window, others, &mut scratch, spare)?;
                for number in (0..touched.len()).filter(|&n| touched[n]) {
                    let dtype = self.manifest.tensors()[first + number].dtype;
                    sums[number].add(dtype, &scratch[number], contribution.weight)?;
                    spare.give(mem::take(&mut scratch[number]));
                }
                blocks.push((contribution.weight, by_position));
                Ok(())
            };
            add().map_err(|e: Error| (Some(*sender), e.of_sender(*sender)))?;
        }
        let mut parts = vec![Vec::new(); sums.len()];
        for (weight, entries) in
            blocks.iter().flat_map(|(weight, blocks)| blocks.iter().map(|b| (*weight, b)))
        {
            entries.parts(weight, window).for_each(|(tensor, part)| parts[tensor - first].push(part));
        }
        for (number, sum) in sums.iter_mut().enumerate() {
            match divisor {
                _ if sparse[number] => {
                    let elements = in_memory(window.elements(&self.manifest, first + number));
                    *sum = Total::Elements(scatter::sum(spare.zeros(4 * elements), &parts[number], divisor));
                }
                Some(divisor) => sum.divide(divisor),
                None => {}
            }
        }
        Ok(sums)
    }

    /// Decodes the blocks in a window: those that are added by their positions, and the others.
    fn decode<'c>(
        &self,
        contribution: &'c Contribution<'a>,
        window: &Window,
        sparse: &[bool],
        spare: &mut Spare,
    ) -> Result<(Vec<Cow<'c, Entries>>, Vec<Decoded<'c>>)> {
        let spare = Mutex::new(spare);
        let memory = |len| spare.lock().map_or_else(|_| pages::zeros(len), |mut spare| spare.bytes(len));
        let decode = |&number: &usize, budget: &Budget| contribution.blocks[number].decode(budget, memory);
        let decoded = Budget::new(&self.options.limits).decode_each(&contribution.numbers(window), decode);
        let (mut by_position, mut others) = (Vec::new(), Vec::new());
        for decoded in decoded {
            match decoded? {
                Decoded::Sparse(entries)
                    if sparse[window.common(tensors_of(entries.scope)).start - window.tensors.start] =>
                {
                    by_position.push(entries);
                }
                decoded => others.push(decoded),
            }
        }
        Ok((by_position, others))
    }

    /// Returns the sum of the weights (for updates that are sums, of their contributors).
    pub(super) fn total_weight(&self) -> f64 {
        let weights = self.waiting.values().map(|c| match c.header.reduction {
            Reduction::None => c.weight,
            _ => c.header.contributors as f64,
        });
        weights.sum()
    }

    /// Returns for each tensor of a window whether all updates are added to it by their positions.
    fn sparse(&self, window: &Window, divisor: Option<f64>) -> Vec<bool> {
        let plain = self.options.precision == Precision::F32 && divisor.is_none_or(|d| d > 0.0);
        let first = window.tensors.start;
        let tensors = &self.manifest.tensors()[window.tensors.clone()];
        let mut sparse: Vec<bool> =
            tensors.iter().map(|t| plain && scatter::takes_elements(t.dtype)).collect();
        // A block is added in one way to all of its tensors, so tensors that blocks join are treated alike.
        let mut joined = vec![false; sparse.len()];
        for contribution in self.waiting.values() {
            let mut touched = vec![false; sparse.len()];
            for block in contribution.blocks(window) {
                let Range { start, end } = window.common(block.tensors());
                let tensors = start - first..end - first;
                for tensor in tensors.clone() {
                    sparse[tensor] &= block.is_sparse() && !mem::replace(&mut touched[tensor], true);
                }
                tensors.skip(1).for_each(|tensor| joined[tensor] = true);
            }
        }
        let mut start = 0;
        while start < sparse.len() {
            let more = joined[start + 1..].iter().take_while(|joined| **joined).count();
            let run = &mut sparse[start..=start + more];
            let all = !run.contains(&false);
            run.fill(all);
            start += more + 1;
        }
        sparse
    }

    pub(super) fn header(&self, mean: bool) -> Result<UpdateHeader> {
        if let Some((sender, _)) = self.waiting.iter().find(|(_, c)| !c.complete) {
            return Err(Error::cannot_reduce("its last part is missing").of_sender(*sender));
        }
        headers::header(self.waiting.values().map(|c| &c.header), mean)
    }

    /// Checks the memory of the accumulators and of one expanded update of a window.
    fn check_memory(&self, window: &Window, mean: bool) -> Result<()> {
        let mut bytes = 0u64;
        for number in window.tensors.clone() {
            let dtype = self.manifest.tensors()[number].dtype;
            let elements = window.elements(&self.manifest, number);
            let width = Total::width(dtype, self.options.precision, mean);
            let width = width.map_err(|e| e.in_tensor(number as u64))?;
            let expanded = dtype.bytes_for(elements).unwrap_or(u64::MAX);
            bytes = bytes.saturating_add(elements.saturating_mul(width).saturating_add(expanded));
            check("max_alloc_bytes", bytes, self.options.limits.max_alloc_bytes, 0)?;
        }
        Ok(())
    }

    /// Returns the zeros of a window; none for the `sparse` tensors.
    fn accumulators(
        &self,
        window: &Window,
        mean: bool,
        sparse: &[bool],
        spare: &mut Spare,
    ) -> Result<Vec<Total>> {
        self.check_memory(window, mean)?;
        let zeros = window.tensors.clone().zip(sparse).map(|(number, is_sparse)| {
            let elements = if *is_sparse { 0 } else { in_memory(window.elements(&self.manifest, number)) };
            Total::zeros(self.manifest.tensors()[number].dtype, self.options.precision, elements, spare)
        });
        Ok(zeros.collect())
    }

    /// Expands blocks into `scratch`, which is empty, as a reader would. Returns which tensors they touch.
    fn expand(
        &self,
        contribution: &Contribution<'_>,
        window: &Window,
        blocks: Vec<Decoded<'_>>,
        scratch: &mut [Vec<u8>],
        spare: &mut Spare,
    ) -> Result<Vec<bool>> {
        let mut touched = vec![false; scratch.len()];
        let budget = Budget::new(&self.options.limits);
        for decoded in blocks {
            let scope = decoded.scope();
            let space = self.manifest.space(scope, 0)?;
            let start = start_of(scope).saturating_sub(window.start());
            let first = window.tensors.start;
            let tensors = window.common(tensors_of(scope));
            let tensors = tensors.start - first..tensors.end - first;
            let is_first = !touched[tensors.start];
            touched[tensors.clone()].fill(true);
            let bytes = |elements| in_memory(space.dtype.bytes_for(elements).unwrap_or(0));
            let all = |tensor| bytes(window.elements(&self.manifest, first + tensor));
            let take = |expanded: &mut Vec<u8>, tensor, spare: &mut Spare| {
                if expanded.is_empty() {
                    *expanded = spare.zeros(all(tensor));
                }
            };
            match decoded {
                Decoded::Elements(_, elements) => {
                    let expanded = &mut scratch[tensors.start];
                    if is_first && elements.len() == all(tensors.start) {
                        *expanded = elements;
                    } else {
                        take(expanded, tensors.start, spare);
                        expanded[bytes(start)..][..elements.len()].copy_from_slice(&elements);
                        spare.give(elements);
                    }
                }
                Decoded::Sparse(entries) => {
                    for tensor in tensors.clone() {
                        take(&mut scratch[tensor], tensor, spare);
                    }
                    for (tensor, part) in entries.parts(1.0, window) {
                        part.write(space.dtype, &mut scratch[tensor - first])?;
                    }
                }
                Decoded::Block(block) => {
                    for tensor in tensors.clone() {
                        take(&mut scratch[tensor], tensor, spare);
                    }
                    let data = scratch[tensors].iter_mut().zip(&space.lens);
                    let mut targets: Vec<_> = data.map(|(data, &len)| Target { data, start, len }).collect();
                    block.apply(&space, &contribution.sets, &budget, &mut targets)?;
                }
            }
        }
        Ok(touched)
    }
}

/// Returns the numbers of the tensors of a scope.
fn tensors_of(scope: Scope) -> Range<usize> {
    let first = in_memory(scope.first());
    first..first + in_memory(scope.tensors())
}

/// Returns the first element of a scope in its first tensor.
fn start_of(scope: Scope) -> u64 {
    match scope {
        Scope::Range { start, .. } => start,
        _ => 0,
    }
}

/// Decodes a block for a sum: one that can be added by its positions, or another.
fn decode<T>(
    part: &UpdatePart<'_>,
    number: usize,
    budget: &Budget,
    sparse: impl FnOnce(Entries) -> T,
    other: impl FnOnce(Block) -> T,
) -> Result<T> {
    let raw = &part.blocks[number];
    let is_sparse = scatter::takes(raw);
    if is_sparse && let Some((positions, elements)) = part.decode_in_place(number, budget)? {
        return Entries::of_elements(raw, positions, elements).map(sparse);
    }
    let block = part.decode(number, budget)?;
    has_no_codes(&block)?;
    if !is_sparse {
        return Ok(other(block));
    }
    let entries = Entries::of_block(raw, block, part.sets(), budget);
    entries.map(sparse).map_err(|e| part.place(e, number))
}

/// Checks that a block does not need a model.
fn has_no_codes(block: &Block) -> Result<()> {
    match &block.values {
        Values::Latent(latent) => Err(latent.missing_model().in_tensor(block.scope.first())),
        _ => Ok(()),
    }
}

/// Returns the approximate bytes of a decoded block.
fn held_bytes(block: &Block) -> u64 {
    let (support, values) = (block.support.facts().memory, block.values.facts().memory);
    values.saturating_add(support).saturating_add(size_of::<Block>() as u64)
}

#[cfg(test)]
mod tests;
