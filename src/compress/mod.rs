//! The lossy front end. A *compressor* decides what an update says of a tensor and makes [`Block`]s of it; it belongs to
//! the sender, and nothing below knows of it. A [`Codec`] names a compressor and its settings, [`compress`] runs it.
//!
//! Compressors work on 32-bit floats: elements of narrower types are widened, f64 is rounded first. For any number of
//! threads the blocks are the same: sums are taken in a fixed order, and random numbers belong to their element
//! ([`random`]).

mod codecs;
#[doc(hidden)]
pub mod device;
mod feedback;
mod moments;
mod select;
pub mod senders;
mod source;
mod sparse;
mod spec;
mod sum;

use std::collections::HashSet;
use std::ops::Range;

pub use codecs::chunked::ChunkValues;
pub use codecs::lossless::deltas;
pub use codecs::randk::Scaling;
pub use codecs::sidco::{Fit, Stages};
pub use codecs::sign::Share;
pub use feedback::Feedback;
pub use select::Chosen;
pub use spec::SpecError;

/// Random numbers that depend only on a seed and a position (spec, section 8).
pub mod random {
    pub use crate::random::{key, sample, word, words};
}

use rayon::prelude::*;

use crate::block::{BlockOptions, CodedBlock, Norm, Positions, Scope, Spacing};
use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::{Dtype, TensorView};
use codecs::{chunked, demo, lossless, natural, powersgd, quantize, randk, sbc, sidco, sign};
use source::Source;

/// A compressor and its settings. [`str::parse`] reads it from `name[:key=value,...]`, [`ToString`] writes it back.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Codec {
    /// `raw`: the elements as they are.
    Raw,
    /// `lossless`: the elements' byte planes, entropy coded.
    Lossless,
    /// `topk`: the elements of largest magnitude. `stc`, sparse ternary compression (arXiv 1903.02891), is `topk` with
    /// `values=sign`.
    TopK {
        /// `density` or `k`: how many.
        amount: Amount,
        /// `values`: what is sent of them.
        values: Kept,
        /// `scope`: among which elements they are the largest.
        selection: Selection,
        /// `seed`: of the rounding to powers of two.
        seed: u64,
        /// `positions`: how their positions are written.
        positions: Positions,
    },
    /// `threshold`: the elements whose magnitude is at least `at`.
    Threshold {
        /// `at`: positive and finite.
        at: f32,
        /// `values`: what is sent of them.
        values: Kept,
        /// `seed`: of the rounding to powers of two.
        seed: u64,
        /// `positions`: how their positions are written.
        positions: Positions,
    },
    /// `sbc`: Sparse Binary Compression, one value for the largest elements of one sign of each tensor.
    Sbc {
        /// `density` or `k`: how many of each tensor.
        amount: Amount,
        /// `positions`: how their positions are written.
        positions: Positions,
    },
    /// `sidco`: about as many elements of largest magnitude as asked for, by a fitted threshold.
    Sidco {
        /// `density` or `k`: how many of each tensor, about.
        amount: Amount,
        /// `fit`: `exp`, `gamma-gp` or `gp`, what is fitted to the magnitudes.
        fit: Fit,
        /// `stages`: `guard`, `authors`, or a number from 1 to 64.
        stages: Stages,
        /// `values`: what is sent of them.
        values: Kept,
        /// `seed`: of the rounding to powers of two.
        seed: u64,
        /// `positions`: how their positions are written.
        positions: Positions,
    },
    /// `randk`: elements drawn at random from a seed that stands for their positions (arXiv 1809.07599).
    RandK {
        /// `density` or `k`: how many of each tensor.
        amount: Amount,
        /// `scale`: `n/k` or `1`, what they are multiplied by.
        scale: Scaling,
        /// `values`: how they are sent; only floats.
        values: Kept,
        /// `seed`: of the draw. Take another one for every step, and the same one on all senders whose updates are summed.
        seed: u64,
    },
    /// `chunked`: the elements of largest magnitude of each chunk, as many of each (SparseLoCo, arXiv 2508.15706).
    Chunked {
        /// `chunk`: consecutive elements of a chunk, 1 to 2^32.
        chunk: u64,
        /// `kept`: how many are kept of each, 1 to `chunk`; all of a last chunk that has no more.
        kept: u64,
        /// `values`: `sign` or `code2`, what is sent of them.
        values: ChunkValues,
    },
    /// `demo`: the largest coefficients of a cosine transform of each chunk (DeMo, arXiv 2411.19870): see
    /// [`senders::demo`].
    Demo {
        /// `chunk`: the longest side of a chunk, 1 to 128.
        chunk: u64,
        /// `kept`: coefficients of each chunk, at least 1; all of a chunk that has no more.
        kept: u64,
        /// `values`: `sign`, `f32`, `f16` or `bf16`, what is sent of them.
        values: Kept,
    },
    /// `powersgd`: each matrix as two factors of few columns (PowerSGD, arXiv 1905.13727): see
    /// [`senders::powersgd`].
    PowerSgd {
        /// `rank`: columns of a factor, at least 1.
        rank: u64,
        /// `seed`: of the columns that the first step begins with.
        seed: u64,
    },
    /// `natural`: natural compression, each element rounded at random to a power of two, without bias.
    Natural {
        /// `seed`: of the rounding. Take another one for every step.
        seed: u64,
    },
    /// `qsgd`: each element rounded at random, without bias, to a multiple of its bucket's norm / (2^(bits-1) - 1).
    Qsgd {
        /// `bits`: of a level with its sign, 2 to 16.
        bits: u8,
        /// `bucket`: values that share a norm, at least 2.
        bucket: u64,
        /// `norm`: `l2` or `max`.
        norm: Norm,
        /// `seed`: of the rounding. Take another one for every step.
        seed: u64,
    },
    /// `dither`: natural dithering, each element rounded at random, without bias, to its bucket's norm times zero or a power
    /// of two from 2^(1 - levels) to 1 (arXiv 1905.10988, section 5).
    Dither {
        /// `levels`: how many powers, 1 to 255.
        levels: u8,
        /// `bucket`: values that share a norm, at least 2.
        bucket: u64,
        /// `norm`: `l1`, `l2` or `max`.
        norm: Norm,
        /// `seed`: of the rounding. Take another one for every step.
        seed: u64,
    },
    /// `terngrad`: each element rounded at random to zero or plus or minus its bucket's largest magnitude, once magnitudes
    /// above `clip` root mean squares of the bucket are limited to that; without bias but for what was limited
    /// (arXiv 1705.07878). The paper takes the standard deviation; the root mean square differs from it by the mean, which
    /// is near zero in gradients, and limits nothing where all elements are equal.
    TernGrad {
        /// `clip`: at least 1; `inf` for no limit.
        clip: f32,
        /// `bucket`: values that share a norm, at least 2.
        bucket: u64,
        /// `seed`: of the rounding. Take another one for every step.
        seed: u64,
    },
    /// `sign`: the sign of each element and the mean magnitude (arXiv 1901.09847); +0 counts as positive, -0 as negative.
    Sign {
        /// `group`: `tensor`, or how many elements share a mean, at least 2.
        group: Share,
    },
    /// `int8`: each element rounded to a multiple of its group's largest magnitude / 127.
    Int8 {
        /// `group`: values that share a scale, at least 2.
        group: u64,
    },
    /// `delta`: the elements that differ from a base, losslessly.
    Delta {
        /// `positions`: how their positions are written.
        positions: Positions,
    },
}

/// How many elements a selector keeps. Zeros are never kept, so it may be fewer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// This part of them, rounded to a whole number, at least one: more than 0, at most 1.
    Density(f64),
    /// So many, at least 1.
    Count(u64),
}

impl Amount {
    /// The number of elements to keep of `n`.
    pub fn of(self, n: u64) -> u64 {
        match self {
            Self::Density(density) => ((density * n as f64).round() as u64).max(1).min(n),
            Self::Count(count) => count.min(n),
        }
    }
}

/// What is sent of an element that was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kept {
    /// Its value, or as much of it as the tensor's own type holds.
    F32,
    /// Its value in half precision.
    F16,
    /// Its value in bfloat16.
    Bf16,
    /// A power of two at random, without bias.
    Pow2,
    /// Its sign; the mean magnitude is sent once.
    Sign,
    /// A multiple, -7 to 7, of a scale that 256 kept elements share.
    Q4,
}

/// Among which elements those of largest magnitude are sought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Selection {
    /// Those of each tensor.
    Tensor,
    /// Those of all tensors of the update that have this codec.
    Global,
}

impl Codec {
    /// The wire option for the positions of the blocks that this codec makes.
    pub fn positions(&self) -> Positions {
        match *self {
            Self::TopK { positions, .. }
            | Self::Threshold { positions, .. }
            | Self::Sbc { positions, .. }
            | Self::Sidco { positions, .. }
            | Self::Delta { positions } => positions,
            _ => Positions::Auto,
        }
    }

    /// How the blocks that this codec makes are written.
    pub fn block_options(&self) -> BlockOptions {
        BlockOptions::default().with_positions(self.positions())
    }

    /// This codec as it is to be for an update `steps` later in a row: with a seed that is greater by so many, so that what is
    /// rounded or drawn at random differs from update to update. Codecs without a seed stay as they are.
    #[must_use]
    pub fn later(mut self, steps: u64) -> Self {
        match &mut self {
            Self::TopK { seed, .. }
            | Self::Threshold { seed, .. }
            | Self::Sidco { seed, .. }
            | Self::RandK { seed, .. }
            | Self::Natural { seed }
            | Self::Qsgd { seed, .. }
            | Self::Dither { seed, .. }
            | Self::TernGrad { seed, .. } => *seed = seed.wrapping_add(steps),
            Self::Raw
            | Self::Lossless
            | Self::Sbc { .. }
            | Self::Chunked { .. }
            | Self::Demo { .. }
            // Its seed is that of the first step of all.
            | Self::PowerSgd { .. }
            | Self::Sign { .. }
            | Self::Int8 { .. }
            | Self::Delta { .. } => {}
        }
        self
    }

    /// Whether the receiver may get other values than the sender had.
    pub fn is_lossy(&self) -> bool {
        !matches!(self, Self::Raw | Self::Lossless | Self::Delta { .. })
    }

    fn check(&self) -> Result<()> {
        let amount_fits = match *self {
            Self::TopK { amount, .. }
            | Self::Sbc { amount, .. }
            | Self::RandK { amount, .. }
            | Self::Sidco { amount, .. } => match amount {
                Amount::Density(d) => d > 0.0 && d <= 1.0,
                Amount::Count(k) => k > 0,
            },
            _ => true,
        };
        match *self {
            _ if !amount_fits => Err(Error::bad_option("density or k")),
            Self::Threshold { at, .. } if !(at > 0.0 && at.is_finite()) => Err(Error::bad_option("at")),
            Self::Sidco { stages: Stages::Fixed(0 | 65..), .. } => Err(Error::bad_option("stages")),
            Self::Qsgd { bits, .. } if !(2..=16).contains(&bits) => Err(Error::bad_option("bits")),
            Self::Qsgd { norm: Norm::L1, .. } => Err(Error::bad_option("norm")),
            Self::Sign { group: Share::Len(0 | 1) } => Err(Error::bad_option("group")),
            Self::RandK { values: Kept::Pow2 | Kept::Sign | Kept::Q4, .. } => {
                Err(Error::bad_option("values"))
            }
            Self::Chunked { chunk, kept, .. }
                if !(1..=1 << 32).contains(&chunk) || !(1..=chunk).contains(&kept) =>
            {
                Err(Error::bad_option("chunk or kept"))
            }
            Self::Demo { chunk, kept, values } => {
                let fits = (1..=demo::MAX_CHUNK).contains(&chunk) && kept > 0;
                match fits && !matches!(values, Kept::Pow2 | Kept::Q4) {
                    true => Ok(()),
                    false => Err(Error::bad_option("chunk, kept or values")),
                }
            }
            Self::PowerSgd { rank: 0, .. } => Err(Error::bad_option("rank")),
            Self::Dither { levels: 0, .. } => Err(Error::bad_option("levels")),
            Self::TernGrad { clip, .. } if clip.is_nan() || clip < 1.0 => Err(Error::bad_option("clip")),
            Self::Qsgd { bucket: len, .. }
            | Self::Dither { bucket: len, .. }
            | Self::TernGrad { bucket: len, .. }
            | Self::Int8 { group: len }
                if len < 2 =>
            {
                Err(Error::bad_option("bucket or group"))
            }
            _ => Ok(()),
        }
    }
}

/// A tensor to compress.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Its number in the manifest.
    pub tensor: u64,
    /// Its name in the manifest, by which [`Feedback`] knows it.
    pub name: &'a str,
    /// Its elements.
    pub view: TensorView<'a>,
    /// The elements of the tensor it replaces, for [`Codec::Delta`].
    pub base: Option<TensorView<'a>>,
}

/// What a lossy codec does with NaN and infinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NonFinite {
    /// It fails.
    #[default]
    Reject,
    /// It takes them for zero.
    Zero,
}

/// How to compress.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The most elements that one dense block of one tensor spans, at least 1; larger tensors take several.
    /// Default: 4,194,304. Not stored.
    pub block_len: u64,
    /// What a lossy codec does with NaN and infinity. Default: it fails. Not stored.
    pub non_finite: NonFinite,
}

impl Default for Options {
    fn default() -> Self {
        Self { block_len: 1 << 22, non_finite: NonFinite::default() }
    }
}

impl Options {
    /// Sets [`Options::block_len`].
    #[must_use]
    pub fn with_block_len(mut self, elements: u64) -> Self {
        self.block_len = elements;
        self
    }

    /// Sets [`Options::non_finite`].
    #[must_use]
    pub fn with_non_finite(mut self, non_finite: NonFinite) -> Self {
        self.non_finite = non_finite;
        self
    }
}

/// Compresses the tensors of one update: the blocks in ascending order of what they span.
///
/// `inputs`: in ascending order of their numbers; `codecs`: one for each. With `feedback`, lossy codecs compress the sum
/// of the tensor and of what earlier calls left over, and what this call leaves over is kept for the next.
///
/// # Memory
/// Beside what it returns and the residuals: for sparse codecs at most 1 MiB and, with the coding of
/// [`Encoder::update`](crate::stream::Encoder::update), 64 bytes for each element kept, as measured in
/// `tests/properties/memory.rs` at a density of 0.001; for dense ones a few tiles for each thread. What it returns is held at once: 12 bytes for each element kept,
/// 9 bits for each element of natural compression, a byte for each of `int8`, 4 for each of `qsgd`, `dither` and `terngrad`, and a copy of the
/// elements for `raw` and `lossless`. `demo` takes 12 bytes for each coefficient kept, and `powersgd` 4 bytes for each element of the
/// largest tensor; both 4 more for each element of a block to see what arrives. A sender that cannot hold that compresses some tensors at a time.
///
/// # Errors
/// [`Error::Input`] with the number of the tensor: an integer tensor or a value that is not finite for a lossy codec, a
/// missing or different base for [`Codec::Delta`], a residual of another shape; or without: an option out of its range.
/// `feedback` is then as it was before.
pub fn compress(
    inputs: &[Input<'_>],
    codecs: &[Codec],
    options: &Options,
    feedback: Option<&mut Feedback>,
) -> Result<Vec<CodedBlock>> {
    check(inputs, codecs, options, feedback.is_some())?;
    let mut sources = inputs
        .iter()
        .zip(codecs)
        .map(|(input, codec)| {
            Source::new(input, *codec, options, feedback.as_deref()).map_err(|e| e.in_tensor(input.tensor))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut chosen = select::global(&mut sources, codecs)?;
    let mut coded = Vec::new();
    for run in runs(codecs, |i| (inputs[i].tensor, inputs[i].view.dtype())) {
        let tensors = &mut sources[run.clone()];
        let options_of_run = codecs[run.start].block_options();
        let mut blocks = Vec::new();
        match codecs[run.start] {
            Codec::Raw => lossless::dense(&inputs[run], options, false, &mut blocks),
            Codec::Lossless => lossless::dense(&inputs[run], options, true, &mut blocks),
            Codec::Delta { .. } => lossless::delta(&inputs[run], &mut blocks)?,
            Codec::TopK { amount, values, selection, seed, .. } => {
                let chosen = match selection {
                    Selection::Global => chosen[run].iter_mut().map(std::mem::take).collect(),
                    Selection::Tensor => select::top_k_each(tensors, amount)?,
                };
                blocks.push(sparse::block(tensors, chosen, values, seed)?);
            }
            Codec::Threshold { at, values, seed, .. } => {
                let chosen = select::at_least(tensors, at)?;
                blocks.push(sparse::block(tensors, chosen, values, seed)?);
            }
            Codec::Sbc { amount, .. } => blocks.push(sbc::block(tensors, amount)?),
            Codec::Sidco { amount, fit, stages, values, seed, .. } => {
                blocks.push(sidco::block(tensors, sidco::Settings { amount, fit, stages, values, seed })?);
            }
            Codec::RandK { amount, scale, values, seed } => {
                randk::blocks(tensors, amount, scale, values, seed, &mut blocks)?;
            }
            Codec::Chunked { chunk, kept, values } => {
                chunked::blocks(tensors, chunk, kept, values, &mut blocks)?;
            }
            Codec::Demo { chunk, kept, values } => {
                let settings = demo::Settings { chunk, kept, values };
                demo::blocks(tensors, &inputs[run], settings, options, &mut blocks)?;
            }
            Codec::PowerSgd { rank, seed } => {
                powersgd::blocks(tensors, &inputs[run], rank, seed, options, &mut blocks)?;
            }
            Codec::Natural { seed } => natural::blocks(tensors, seed, options, &mut blocks)?,
            Codec::Qsgd { bits, bucket, norm, seed } => {
                let (spacing, max_level) = (Spacing::Uniform, (1 << (bits - 1)) - 1);
                let clip = f32::INFINITY;
                let levels = quantize::Levels { spacing, max_level, bucket, norm, clip, seed };
                quantize::levels(tensors, levels, options, &mut blocks)?;
            }
            Codec::Dither { levels, bucket, norm, seed } => {
                let (spacing, max_level, clip) = (Spacing::Natural, levels.into(), f32::INFINITY);
                let levels = quantize::Levels { spacing, max_level, bucket, norm, clip, seed };
                quantize::levels(tensors, levels, options, &mut blocks)?;
            }
            Codec::TernGrad { clip, bucket, seed } => {
                let (spacing, norm) = (Spacing::Uniform, Norm::Max);
                let levels = quantize::Levels { spacing, max_level: 1, bucket, norm, clip, seed };
                quantize::levels(tensors, levels, options, &mut blocks)?;
            }
            Codec::Sign { group } => sign::blocks(tensors, group, options, &mut blocks)?,
            Codec::Int8 { group } => quantize::int8(tensors, group, options, &mut blocks)?,
        }
        coded.extend(blocks.into_iter().map(|block| CodedBlock { block, options: options_of_run }));
    }
    let after: Vec<_> = sources.into_iter().map(|s| (s.residual_after, s.state)).collect();
    if let Some(feedback) = feedback {
        for (input, (residual, state)) in inputs.iter().zip(after) {
            if let Some(residual) = residual {
                feedback.set(input.name, input.view.shape(), residual);
                feedback.set_state(input.name, state);
            }
        }
    }
    Ok(coded)
}

fn check(inputs: &[Input<'_>], codecs: &[Codec], options: &Options, by_name: bool) -> Result<()> {
    if inputs.len() != codecs.len() {
        return Err(Error::input(InputErrorKind::Mismatch { what: "numbers of inputs and codecs" }));
    }
    if options.block_len == 0 {
        return Err(Error::bad_option("block_len"));
    }
    if !inputs.is_sorted_by(|a, b| a.tensor < b.tensor) {
        return Err(Error::not_ascending("tensors of the inputs"));
    }
    let mut names = HashSet::new();
    if by_name && !inputs.iter().all(|input| names.insert(input.name)) {
        return Err(Error::input(InputErrorKind::DuplicateName));
    }
    codecs.iter().try_for_each(Codec::check)
}

/// What all of them gave, or the first error in their order: collected as one result, any of several errors would be given.
fn in_order<T: Send>(results: impl ParallelIterator<Item = Result<T>>) -> Result<Vec<T>> {
    results.collect::<Vec<_>>().into_iter().collect()
}

/// Inputs that one block may hold together: consecutive in the manifest, of one element type, with one codec.
/// `of`: number and element type of each.
fn runs(codecs: &[Codec], of: impl Fn(usize) -> (u64, Dtype)) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for i in 0..codecs.len() {
        match runs.last_mut() {
            Some(run) if of(i) == (of(i - 1).0 + 1, of(i - 1).1) && codecs[i] == codecs[i - 1] => {
                run.end = i + 1;
            }
            _ => runs.push(i..i + 1),
        }
    }
    runs
}

/// The scope of `count` >= 1 whole tensors.
fn whole(first: u64, count: usize) -> Scope {
    match count {
        1 => Scope::Tensor(first),
        _ => Scope::Tensors { first, count: count as u64 },
    }
}

/// What one dense block spans.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Whole tensors of a run.
    Whole(Range<usize>),
    /// Elements of one tensor of a run.
    Slice(usize, Range<u64>),
}

/// A tensor with fewer elements than this is small: neighbours share a block.
const SMALL: u64 = 4096;
/// The most elements of small tensors in one block.
const SMALL_BLOCK: u64 = 1 << 16;

/// Divides a run of tensors of these lengths into dense blocks: small neighbours together if `merge`, large ones in
/// pieces of `block_len` elements.
fn parts(lens: &[u64], block_len: u64, merge: bool) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut merged = None;
    for (i, &len) in lens.iter().enumerate() {
        if len > block_len {
            parts.extend(
                (0..len)
                    .step_by(block_len as usize)
                    .map(|start| Part::Slice(i, start..len.min(start.saturating_add(block_len)))),
            );
            merged = None;
            continue;
        }
        let small = merge && len < SMALL.min(block_len);
        match (parts.last_mut(), &mut merged) {
            (Some(Part::Whole(range)), Some(total))
                if small && *total + len <= SMALL_BLOCK.min(block_len) =>
            {
                range.end = i + 1;
                *total += len;
            }
            _ => {
                parts.push(Part::Whole(i..i + 1));
                merged = small.then_some(len);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests;
