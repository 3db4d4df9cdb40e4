//! Changes of tensors that are not in the host's memory, for example on a device.
//!
//! [`tasks`] lists the blocks. [`forms`] chooses the form of each, and [`blocks`] turns the changes that
//! were found into the same blocks that [`compress`](super::super::compress()) would have made. Digests of
//! the tensors are in [`Digests`].
//!
//! **Changed** is an element whose bit pattern differs from the base's. Its *difference* is its rank minus
//! that of the base's element, modulo the number of ranks ([`ordered`](crate::tensor::element::ordered)), as
//! a signed number of as many bits as the element has.
//!
//! The **key** of an element is the eight bits below its sign. The *class* of an element is the number of
//! bounds above the key of its base. Its *rank in the class* is the number of elements of the class before it
//! in the block.
//!
//! **Samples** consist of whole steps. A step is [`STEP_LEN`] elements of one span, or fewer at its end.
//! Steps are numbered from 0 in the order of the block's spans. If one step in `every` is wanted, those are
//! the steps whose number times 0x9e3779b97f4a7c15, modulo 2^64 and shifted right by 32 bits, is a multiple
//! of `every`.

use rayon::prelude::*;

use super::super::codecs::Delta;
use super::super::codecs::delta::classes::Places;
use super::super::codecs::delta::{classes, division, is_sent, scope};
use super::super::digests::Digests;
use super::{Outline, check_order};
use crate::arch::pages;
use crate::block::{
    Based, Block, BlockOptions, CodedBlock, Planes, STEP, Scope, Sparse, Support, Ulp, Values,
};
use crate::compress::Codec;
use crate::compress::codecs::Change;
use crate::compress::extents::alike;
use crate::digest::SumDigest;
use crate::error::{Error, InputErrorKind, Result};
use crate::frame;
use crate::frame::{DeltaRuns, Digest};
use crate::limits::in_memory;
use crate::tensor::Dtype;

pub use crate::compress::digests::{Digested, wanted};
pub use crate::compress::extents::Span;

/// Number of elements of a step.
pub const STEP_LEN: u64 = STEP as u64;
/// Number of keys.
pub const KEYS: usize = 256;
/// Number of zigzag codes of differences that are counted apart. The last one counts all larger ones too.
pub const CODES: usize = classes::CODES;
/// Largest number of classes of a block.
pub const MAX_CLASSES: usize = classes::MAX_CLASSES;

/// The changes for one block.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Scope of the block.
    pub scope: Scope,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Elements of the block, in this order, at most 2^24.
    pub spans: Vec<Span>,
    codec: Delta,
    options: BlockOptions,
}

/// Numbers of the elements with one key, in a sample.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyCount {
    /// Elements of the base with this key.
    pub elements: u32,
    /// Changed elements among them, by the zigzag code of their difference.
    pub codes: [u32; CODES],
}

/// The form of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// Ranks in classes with these bounds, which descend, and differences. The elements are in the order of
    /// their classes.
    Classes(Vec<u8>),
    /// Positions and differences.
    Differences,
    /// Differences of all elements. Positions and differences of the changed elements are looked for, as for
    /// [`Form::Differences`].
    AllDifferences,
    /// Positions and new elements.
    Elements,
    /// All new elements.
    All,
}

impl Form {
    /// Returns the bounds of the classes; none if the block has one class.
    pub fn bounds(&self) -> &[u8] {
        match self {
            Self::Classes(bounds) => bounds,
            _ => &[],
        }
    }
}

/// The changes found for one task. Numbers are little-endian, as on CUDA devices and on the wire.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// Number of changed elements of each class.
    pub counts: &'a [u64],
    /// Ranks in classes, or positions, in 32 bits each. Empty for [`Form::All`].
    pub ranks: &'a [u8],
    /// Differences or elements, as wide as an element each.
    pub values: &'a [u8],
}

/// Returns the changes to look for.
///
/// # Errors
/// Returns [`Error::Input`] if tensors are not in ascending order or not of 16-bit or 32-bit floats, or if a
/// codec is not [`Codec::Delta`].
pub fn tasks(tensors: &[Outline], codecs: &[Codec]) -> Result<Vec<Task>> {
    check_order(tensors, codecs)?;
    let mut tasks = Vec::new();
    for run in alike(codecs, |i| (tensors[i].tensor, tensors[i].dtype)) {
        let (of_run, options) = (&tensors[run.clone()], codecs[run.start].block_options());
        let Codec::Delta(codec) = codecs[run.start] else {
            return Err(Error::bad_option("codec: not `delta`"));
        };
        let Outline { tensor: first, dtype, .. } = of_run[0];
        if !matches!(dtype.bits(), 16 | 32) {
            let wrong = InputErrorKind::WrongDtype { what: "a delta outside of the host's memory" };
            return Err(Error::input(wrong).in_tensor(first));
        }
        let lens: Vec<u64> = of_run.iter().map(|tensor| tensor.len).collect();
        tasks.extend(division(dtype, &lens).into_iter().map(|mut spans| {
            let scope = scope(first, &lens, &spans);
            spans.iter_mut().for_each(|span| span.input += run.start);
            Task { scope, dtype, spans, codec, options }
        }));
    }
    Ok(tasks)
}

/// Returns the error for a tensor whose base has another shape or element type.
pub fn mismatch(tensor: u64) -> Error {
    let what = "shapes or element types of tensor and base";
    Error::input(InputErrorKind::Mismatch { what }).in_tensor(tensor)
}

impl Task {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.spans.iter().map(|span| span.len).sum()
    }

    /// Returns in how many steps one is counted for [`forms`]; `None` if the form does not depend on the
    /// elements.
    pub fn sample_every(&self) -> Option<u64> {
        let depends = self.codec.classes().is_some() || self.codec.values == Change::Overwrite;
        depends.then(|| classes::sample_every(self.elements()))
    }

    /// Chooses the form of the block.
    fn form(&self, counts: &[KeyCount; KEYS]) -> Form {
        let every = self.sample_every().unwrap_or(1);
        let counts: Vec<classes::KeyCounts> = counts.iter().map(|count| count.times(every)).collect();
        match (self.codec.values, self.codec.classes()) {
            (Change::Ulp, Some(forced)) => match classes::choose(&counts, forced) {
                Places::Classes(classes) => Form::Classes(classes.bounds),
                Places::Changed => Form::Differences,
                Places::All => Form::AllDifferences,
            },
            (Change::Ulp, None) => Form::Differences,
            (Change::Overwrite, _) => {
                let sum = |of: fn(&classes::KeyCounts) -> u64| counts.iter().map(of).sum::<u64>() / every;
                match classes::are_many(sum(|c| c.changed), sum(|c| c.elements)) {
                    true => Form::All,
                    false => Form::Elements,
                }
            }
        }
    }
}

/// Chooses the form of each block. `counts`: of each key in the sample of each task; all 0 without a sample.
///
/// # Errors
/// Returns [`Error::Input`] if the numbers of tasks and counts differ.
pub fn forms(tasks: &[Task], counts: &[[KeyCount; KEYS]]) -> Result<Vec<Form>> {
    if tasks.len() != counts.len() {
        return Err(Error::inconsistent("numbers of tasks and of what was counted"));
    }
    Ok(tasks.par_iter().zip(counts).map(|(task, counts)| task.form(counts)).collect())
}

impl KeyCount {
    fn times(&self, every: u64) -> classes::KeyCounts {
        let codes = self.codes.map(|n| every * u64::from(n));
        let elements = every * u64::from(self.elements);
        classes::KeyCounts { elements, changed: codes.iter().sum(), codes }
    }
}

/// Returns the blocks of these tasks, in ascending order of their scopes.
///
/// # Errors
/// Returns [`Error::Input`] if what was found does not fit its task.
pub fn blocks(tasks: &[Task], forms: &[Form], found: &[Found<'_>]) -> Result<Vec<CodedBlock>> {
    if tasks.len() != forms.len() || tasks.len() != found.len() {
        return Err(Error::inconsistent("numbers of tasks and of what was found"));
    }
    let block = |((task, form), found): ((&Task, &Form), &Found<'_>)| -> Result<CodedBlock> {
        Ok(CodedBlock { block: task.block(form, found)?, options: task.options })
    };
    // Results are collected in two steps, so that the first error is returned. In one step it could be any.
    let blocks: Vec<Result<CodedBlock>> = tasks.par_iter().zip(forms).zip(found).map(block).collect();
    let blocks: Vec<CodedBlock> = blocks.into_iter().collect::<Result<_>>()?;
    Ok(blocks.into_iter().filter(|coded| is_sent(&coded.block)).collect())
}

impl Task {
    fn block(&self, form: &Form, found: &Found<'_>) -> Result<Block> {
        let changed: u64 = found.counts.iter().sum();
        let width = u64::from(self.dtype.bits() / 8);
        let (ranks, values) = if *form == Form::All { (0, self.elements()) } else { (changed, changed) };
        if found.counts.len() != form.bounds().len() + 1
            || changed > self.elements()
            || found.ranks.len() as u64 != 4 * ranks
            || found.values.len() as u64 != width * values
        {
            return Err(Error::inconsistent("numbers of changes"));
        }
        let mut ranks = found.ranks.as_chunks().0.iter().map(|rank| u64::from(u32::from_le_bytes(*rank)));
        let diffs = || diffs(width, found.values);
        let elements = || Values::Planes(Planes { bytes: found.values.to_vec() });
        let (support, values) = match form {
            Form::Classes(bounds) => {
                let ranks = found.counts.iter().map(|&n| ranks.by_ref().take(in_memory(n)).collect());
                let based = Based { bounds: bounds.clone(), ranks: ranks.collect() };
                (Support::Based(based), Values::Ulp(Ulp { diffs: diffs() }))
            }
            Form::Differences => (sparse(ranks), Values::Ulp(Ulp { diffs: diffs() })),
            Form::AllDifferences => {
                let diffs = spread(self.elements(), ranks, &diffs())?;
                (Support::All, Values::Ulp(Ulp { diffs }))
            }
            Form::Elements => (sparse(ranks), elements()),
            Form::All => (Support::All, elements()),
        };
        Ok(Block { scope: self.scope, add: false, support, values })
    }
}

fn sparse(positions: impl Iterator<Item = u64>) -> Support {
    Support::Sparse(Sparse { positions: positions.collect() })
}

/// Returns a difference for each of `len` elements: these at their positions, and zeros.
fn spread(len: u64, positions: impl Iterator<Item = u64>, diffs: &[i64]) -> Result<Vec<i64>> {
    let mut all = pages::zeros(in_memory(len));
    for (position, &diff) in positions.zip(diffs) {
        *all.get_mut(in_memory(position)).ok_or(Error::inconsistent("positions of changes"))? = diff;
    }
    Ok(all)
}

fn diffs(width: u64, bytes: &[u8]) -> Vec<i64> {
    match width {
        2 => bytes.as_chunks().0.iter().map(|b| i16::from_le_bytes(*b).into()).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
    }
}

/// Returns the hashes of a base and of a new tensor, as far as they are kept.
pub fn known(digests: &Digests, tensor: u64) -> [Option<Digest>; 2] {
    digests.known(tensor)
}

/// Returns the sums of a base and of a new tensor, as far as they are kept.
pub fn known_sum(digests: &Digests, tensor: u64) -> [Option<SumDigest>; 2] {
    digests.known_sum(tensor)
}

/// Returns the runs that an update's header has for these tensors, which have blocks among `blocks`, and
/// keeps the digests of the results as those of the next bases. `hashed`, `summed`: in ascending order;
/// `None` if the update has no such digests.
pub fn deltas<B: AsRef<Block>>(
    digests: &mut Digests,
    hashed: Option<&[Digested]>,
    summed: Option<&[Digested<SumDigest>]>,
    blocks: &[B],
) -> DeltaRuns {
    digests.given(hashed, summed, blocks)
}

/// Returns the bytes that are hashed before a tensor's elements for its digest (spec, section 6).
pub fn digest_head(dtype: Dtype, shape: &[u64]) -> Vec<u8> {
    frame::digest_head(dtype, shape)
}
