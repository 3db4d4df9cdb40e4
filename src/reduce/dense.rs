//! Sums of whole updates.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::headers;
use super::linear::{Linear, quiet};
use super::scatter;
use crate::arch::pages;
use crate::block::values::to_number;
use crate::block::{Block, Floats, Scope, Set, Sets, Stored, Support, Target, Values};
#[cfg(doc)]
use crate::error::InputErrorKind;
use crate::error::{Error, Result};
use crate::frame::{Manifest, Reduction, UpdateHeader, UpdatePart};
use crate::limits::{Budget, Limits, check, in_memory, setters};
use crate::tensor::{Dtype, TensorBuf};

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

/// Update of one sender, decoded but not expanded.
struct Contribution {
    header: UpdateHeader,
    weight: f64,
    blocks: Vec<Block>,
    sets: Sets,
    parts: u64,
    complete: bool,
}

/// Sum or mean of the updates of many senders.
///
/// Each update counts as a reader would decode it: blocks of any kind, and zero for elements without a block.
/// If all updates of an f32 tensor are sparse, they are added without expanding them, to the same bits. The
/// sum is taken in the order of the senders' numbers, independent of the order of arrival, so every node with
/// the same updates and options gets the same bits. It does not wait for missing senders: [`Reduced::header`]
/// has the number that took part.
///
/// # Memory
/// Until [`Sum::finish`]: the decoded, unexpanded blocks of every sender (12 bytes per element of a top-k
/// update, 9 bits per element of natural compression). During it: the accumulators (4 bytes per element, 8
/// with [`Precision::F64`] or f64 tensors, 16 for integers); and one expanded update, or 4 bytes per element
/// of all sparse updates.
pub struct Sum {
    manifest: Arc<Manifest>,
    options: SumOptions,
    waiting: BTreeMap<u64, Contribution>,
    held: u64,
}

impl Sum {
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
        let blocks = part.decode_all()?;
        let bytes = blocks.iter().map(held_bytes).fold(self.held, u64::saturating_add);
        check("max_alloc_bytes", bytes, self.options.limits.max_alloc_bytes, 0)?;
        for block in &blocks {
            if let Values::Latent(latent) = &block.values {
                return Err(latent.missing_model().in_tensor(block.scope.first()));
            }
        }
        self.held = bytes;
        let waiting = self.waiting.entry(part.header.sender).or_insert_with(|| Contribution {
            header: UpdateHeader { label: String::new(), ..part.header.clone() },
            weight,
            blocks: Vec::new(),
            sets: Sets::new(),
            parts: 0,
            complete: false,
        });
        for block in &blocks {
            if let Support::Set(Set { id }) = block.support
                && let Some(set) = part.sets().get(&id)
            {
                waiting.sets.insert(id, Arc::clone(set));
            }
        }
        waiting.blocks.extend(blocks);
        waiting.parts += 1;
        waiting.complete = part.last;
        Ok(())
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
    pub fn finish(self, mean: bool) -> Result<Reduced> {
        let header = self.header(mean)?;
        let divisor = mean.then(|| self.total_weight());
        let sparse = self.sparse(divisor);
        let mut sums = self.accumulators(mean, &sparse)?;
        let mut scratch = vec![Vec::new(); sums.len()];
        let mut decoded = Vec::new();
        for (sender, contribution) in &self.waiting {
            let of_sender = |e: Error| e.of_sender(*sender);
            let touched = self.expand(contribution, &sparse, &mut scratch).map_err(of_sender)?;
            for number in (0..touched.len()).filter(|&n| touched[n]) {
                let dtype = self.manifest.tensors()[number].dtype;
                match &mut sums[number] {
                    Total::Elements(sum) => add_elements(sum, &mut scratch[number], contribution.weight),
                    Total::Numbers(sum) => {
                        let numbers = Linear::of_elements(dtype, &scratch[number], sum.len())?;
                        sum.accumulate(numbers, contribution.weight);
                        scratch[number].fill(0);
                    }
                }
            }
            decoded.extend(self.decode_sparse(contribution, &sparse).map_err(of_sender)?);
        }
        let mut parts = vec![Vec::new(); sums.len()];
        decoded.iter().for_each(|block| block.for_each_part(|tensor, part| parts[tensor].push(part)));
        for (number, info) in self.manifest.tensors().iter().enumerate() {
            match (&mut sums[number], divisor) {
                (Total::Elements(sum), _) if sparse[number] => {
                    *sum = scatter::sum(in_memory(info.elements()), &parts[number], divisor);
                }
                (Total::Elements(sum), Some(divisor)) => divide_elements(sum, divisor),
                (Total::Numbers(sum), Some(divisor)) => sum.divide(divisor),
                (_, None) => {}
            }
        }
        Ok(Reduced { header, manifest: self.manifest, sums })
    }

    /// Returns the sum of the weights (for updates that are sums, of their contributors).
    fn total_weight(&self) -> f64 {
        let weights = self.waiting.values().map(|c| match c.header.reduction {
            Reduction::None => c.weight,
            _ => c.header.contributors as f64,
        });
        weights.sum()
    }

    /// Returns for each tensor whether all updates are added to it by their positions.
    fn sparse(&self, divisor: Option<f64>) -> Vec<bool> {
        let plain = self.options.precision == Precision::F32 && divisor.is_none_or(|d| d > 0.0);
        let tensors = self.manifest.tensors();
        let mut sparse: Vec<bool> = tensors.iter().map(|t| plain && t.dtype == Dtype::F32).collect();
        for contribution in self.waiting.values() {
            let mut touched = vec![false; sparse.len()];
            for block in &contribution.blocks {
                for tensor in tensors_of(block) {
                    sparse[tensor] &= scatter::takes(block) && !std::mem::replace(&mut touched[tensor], true);
                }
            }
        }
        // A block is added in one way to all of its tensors, so tensors that blocks join are treated alike.
        let mut joined = vec![false; sparse.len()];
        for block in self.waiting.values().flat_map(|c| &c.blocks) {
            tensors_of(block).skip(1).for_each(|tensor| joined[tensor] = true);
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

    /// Reads the blocks that are added by their positions.
    fn decode_sparse<'a>(
        &self,
        contribution: &'a Contribution,
        sparse: &[bool],
    ) -> Result<Vec<scatter::Decoded<'a>>> {
        let budget = Budget::new(&self.options.limits);
        let blocks = contribution.blocks.iter().filter(|block| sparse[tensors_of(block).start]);
        let (sets, weight) = (&contribution.sets, contribution.weight);
        blocks.map(|block| scatter::Decoded::new(block, &self.manifest, sets, &budget, weight)).collect()
    }

    fn header(&self, mean: bool) -> Result<UpdateHeader> {
        if let Some((sender, _)) = self.waiting.iter().find(|(_, c)| !c.complete) {
            return Err(Error::cannot_reduce("its last part is missing").of_sender(*sender));
        }
        headers::header(self.waiting.values().map(|c| &c.header), mean)
    }

    fn accumulators(&self, mean: bool, sparse: &[bool]) -> Result<Vec<Total>> {
        let kind = |dtype: Dtype| match (dtype, self.options.precision) {
            (Dtype::Bool, _) => Err(Error::cannot_reduce("bool tensors have no sum")),
            _ if !dtype.is_float() && mean => {
                Err(Error::cannot_reduce("integers have no mean in their type"))
            }
            _ if !dtype.is_float() => Ok((Linear::Int(Vec::new()), 16)),
            (Dtype::F64, _) | (_, Precision::F64) => Ok((Linear::F64(Vec::new()), 8)),
            _ => Ok((Linear::F32(Vec::new()), 4)),
        };
        let (mut sums, mut bytes) = (Vec::new(), 0u64);
        for (number, info) in self.manifest.tensors().iter().enumerate() {
            let (mut sum, each) = kind(info.dtype).map_err(|e| e.in_tensor(number as u64))?;
            let asked = info.elements().saturating_mul(each).saturating_add(info.bytes());
            bytes = bytes.saturating_add(asked);
            check("max_alloc_bytes", bytes, self.options.limits.max_alloc_bytes, 0)?;
            sums.push(match (info.dtype, self.options.precision) {
                _ if sparse[number] => Total::Elements(Vec::new()),
                (Dtype::F32, Precision::F32) => Total::Elements(pages::zeros(in_memory(info.bytes()))),
                _ => {
                    sum.zeros(in_memory(info.elements()));
                    Total::Numbers(sum)
                }
            });
        }
        Ok(sums)
    }

    /// Expands the blocks that are not `sparse` into `scratch`, which is zero or empty, as a reader would.
    /// Returns which tensors they touch.
    fn expand(
        &self,
        contribution: &Contribution,
        sparse: &[bool],
        scratch: &mut [Vec<u8>],
    ) -> Result<Vec<bool>> {
        let mut touched = vec![false; scratch.len()];
        for block in contribution.blocks.iter().filter(|block| !sparse[tensors_of(block).start]) {
            let space = self.manifest.space(block.scope, 0)?;
            let start = match block.scope {
                Scope::Range { start, .. } => start,
                _ => 0,
            };
            let tensors = tensors_of(block);
            touched[tensors.clone()].fill(true);
            for tensor in tensors.clone() {
                if scratch[tensor].is_empty() {
                    scratch[tensor] = pages::zeros(in_memory(self.manifest.tensors()[tensor].bytes()));
                }
            }
            let data = scratch[tensors].iter_mut().zip(&space.lens);
            let mut targets: Vec<_> = data.map(|(data, &len)| Target { data, start, len }).collect();
            let budget = Budget::new(&self.options.limits);
            block.apply(&space, &contribution.sets, &budget, &mut targets)?;
        }
        Ok(touched)
    }
}

/// Returns the numbers of the tensors of a decoded block.
fn tensors_of(block: &Block) -> Range<usize> {
    let first = block.scope.first() as usize;
    first..first + block.scope.tensors() as usize
}

/// The sum of one tensor.
#[derive(Debug, Clone)]
enum Total {
    /// Elements of an f32 tensor.
    Elements(Vec<u8>),
    Numbers(Linear),
}

/// Elements that are summed in one step.
const STEP: usize = 1 << 16;

/// Adds `weight` times the f32 elements of `update`, which become zero.
fn add_elements(sum: &mut [u8], update: &mut [u8], weight: f64) {
    sum.par_chunks_mut(4 * STEP).zip(update.par_chunks_mut(4 * STEP)).for_each(|(sum, update)| {
        let pairs = sum.as_chunks_mut::<4>().0.iter_mut().zip(update.as_chunks::<4>().0);
        let add = |a: &mut [u8; 4], b: f32| {
            *a = to_number(f64::from(f32::from_le_bytes(*a) + b)).to_le_bytes();
        };
        match weight {
            1.0 => pairs.for_each(|(a, b)| add(a, f32::from_le_bytes(*b))),
            _ => pairs.for_each(|(a, b)| add(a, (weight * f64::from(f32::from_le_bytes(*b))) as f32)),
        }
        update.fill(0);
    });
}

/// Divides f32 elements.
fn divide_elements(sum: &mut [u8], by: f64) {
    sum.par_chunks_mut(4 * STEP).for_each(|sum| {
        for x in sum.as_chunks_mut::<4>().0 {
            *x = to_number(f64::from(f32::from_le_bytes(*x)) / by).to_le_bytes();
        }
    });
}

impl Linear {
    fn zeros(&mut self, count: usize) {
        match self {
            Self::F32(x) => x.resize(count, 0.0),
            Self::F64(x) => x.resize(count, 0.0),
            Self::Int(x) => x.resize(count, 0),
        }
    }

    /// Adds `weight` times `other`.
    fn accumulate(&mut self, other: Self, weight: f64) {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) if weight == 1.0 => {
                a.iter_mut().zip(b).for_each(|(a, b)| *a = to_number(f64::from(*a + b)));
            }
            (Self::F32(a), Self::F32(b)) => {
                let scaled = b.into_iter().map(|b| (weight * f64::from(b)) as f32);
                a.iter_mut().zip(scaled).for_each(|(a, b)| *a = to_number(f64::from(*a + b)));
            }
            (Self::Int(a), Self::Int(b)) => a.iter_mut().zip(b).for_each(|(a, b)| *a += b),
            (Self::F64(a), Self::F32(b)) => {
                a.iter_mut().zip(b).for_each(|(a, b)| *a = quiet(*a + weight * f64::from(b)));
            }
            (Self::F64(a), Self::F64(b)) => {
                a.iter_mut().zip(b).for_each(|(a, b)| *a = quiet(*a + weight * b));
            }
            (_, _) => debug_assert!(false, "an accumulator is of its tensor's kind"),
        }
    }

    fn divide(&mut self, by: f64) {
        match self {
            Self::F32(x) => x.iter_mut().for_each(|x| *x = to_number(f64::from(*x) / by)),
            Self::F64(x) => x.iter_mut().for_each(|x| *x = quiet(*x / by)),
            Self::Int(_) => debug_assert!(false, "integers have no mean"),
        }
    }
}

/// Returns the approximate bytes of a decoded block.
fn held_bytes(block: &Block) -> u64 {
    let (support, values) = (block.support.facts().memory, block.values.facts().memory);
    values.saturating_add(support).saturating_add(size_of::<Block>() as u64)
}

/// Elements in one block of [`Reduced::blocks`]; larger tensors take several.
const BLOCK_LEN: u64 = 1 << 22;

/// A sum or mean.
#[derive(Debug, Clone)]
pub struct Reduced {
    /// Header for an update that carries the result: step and round, contributors, sum or mean. The sender is
    /// 0 until the caller sets it.
    pub header: UpdateHeader,
    manifest: Arc<Manifest>,
    sums: Vec<Total>,
}

impl Reduced {
    /// Returns the tensors in the order of the manifest, in their own types, rounded to nearest, ties to
    /// even.
    ///
    /// # Errors
    /// [`InputErrorKind::CannotReduce`] with the tensor if an integer does not fit its type.
    pub fn tensors(&self) -> Result<Vec<TensorBuf>> {
        self.clone().into_tensors()
    }

    /// Returns what [`Self::tensors`] returns, without a copy of sparse sums.
    ///
    /// # Errors
    /// The errors of [`Self::tensors`].
    pub fn into_tensors(self) -> Result<Vec<TensorBuf>> {
        let tensors = self.manifest.tensors().iter().zip(self.sums).enumerate();
        tensors
            .map(|(number, (info, sum))| {
                let data = match sum {
                    Total::Elements(data) => data,
                    Total::Numbers(sum) => {
                        sum.to_elements(info.dtype).map_err(|e| e.in_tensor(number as u64))?
                    }
                };
                TensorBuf::new(info.dtype, info.shape.clone(), data)
            })
            .collect()
    }

    /// Returns dense blocks of the tensors, for an update with [`Reduced::header`]. Tensors of f32, f64 and
    /// integers are stored in their own types; narrower floats as f32, which a reader rounds, so that such
    /// sums can be summed again.
    ///
    /// # Errors
    /// The errors of [`Self::tensors`].
    pub fn blocks(&self) -> Result<Vec<Block>> {
        let mut blocks = Vec::new();
        for (number, (info, sum)) in self.manifest.tensors().iter().zip(&self.sums).enumerate() {
            let (tensor, n) = (number as u64, info.elements());
            for start in (0..n).step_by(BLOCK_LEN as usize) {
                let len = BLOCK_LEN.min(n - start);
                let scope = match len == n {
                    true => Scope::Tensor(tensor),
                    false => Scope::Range { tensor, start, len },
                };
                let range = start as usize..(start + len) as usize;
                let values = match sum {
                    Total::Elements(data) => {
                        let bytes = data[4 * range.start..4 * range.end].to_vec();
                        Values::Floats(Floats { stored: Stored::Source, bytes })
                    }
                    Total::Numbers(sum) => {
                        sum.slice(range).into_values(info.dtype).map_err(|e| e.in_tensor(tensor))?
                    }
                };
                blocks.push(Block { scope, add: false, support: Support::All, values });
            }
        }
        Ok(blocks)
    }
}

impl Linear {
    fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::F32(x) => Self::F32(x[range].to_vec()),
            Self::F64(x) => Self::F64(x[range].to_vec()),
            Self::Int(x) => Self::Int(x[range].to_vec()),
        }
    }
}

#[cfg(test)]
mod tests;
