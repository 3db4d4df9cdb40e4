//! The lossy front end. A *compressor* chooses what an update says about a tensor and makes blocks of it. It
//! belongs to the sender; no module below depends on it. A [`Codec`] names a compressor and its settings,
//! [`compress()`] runs it.
//!
//! Compressors work on 32-bit floats: elements of narrower types are widened, f64 is rounded first. The
//! blocks do not depend on the number of threads: sums are taken in a fixed order, and random numbers belong
//! to their element ([`random`]).

pub mod codecs;
#[doc(hidden)]
pub mod device;
mod feedback;
mod moments;
mod options;
mod parts;
mod pending;
mod select;
pub mod senders;
mod settings;
mod small;
mod source;
mod sparse;
mod sums;

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use rayon::prelude::*;

pub use codecs::delta::{Digests, deltas};
pub use codecs::{Change, ChunkValues, Fit, Scaling, Share, Stages};
pub use feedback::Feedback;
pub use options::{Input, NonFinite, Options};
pub use pending::pending;
pub use select::Chosen;
pub use settings::{Amount, Kept, Selection, SpecError};

use crate::block::{Block, BlockOptions, CodedBlock, Positions};
use crate::error::{Error, InputErrorKind, Result};
use codecs::quantize::Quantizer;
use codecs::*;
use codecs::{demo, lossless, natural, powersgd, quantize, sign};
use parts::{Part, parts, runs, whole};
use settings::{Keys, OutOfRange, SpecWriter};
use source::Source;

/// Random numbers that depend only on a seed and a position (spec, section 8).
pub mod random {
    pub use crate::random::{key, sample, word, words};
}

/// A compressor and its settings. [`str::parse`] reads it from `name[:key=value,...]`, [`ToString`] writes it
/// back.
///
/// `docs/codecs.md` lists all names, keys, ranges and defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Codec {
    /// `raw`: the elements unchanged.
    Raw,
    /// `lossless`: the elements' byte planes, entropy coded.
    Lossless,
    /// `topk`: the elements of largest magnitude.
    TopK(TopK),
    /// `threshold`: the elements that reach a threshold.
    Threshold(Threshold),
    /// `sbc`: Sparse Binary Compression.
    Sbc(Sbc),
    /// `sidco`: the elements that reach a fitted threshold.
    Sidco(Sidco),
    /// `randk`: elements drawn at random.
    RandK(RandK),
    /// `chunked`: the largest elements of each chunk.
    Chunked(Chunked),
    /// `demo`: the largest coefficients of a cosine transform.
    Demo(Demo),
    /// `powersgd`: two factors of few columns.
    PowerSgd(PowerSgd),
    /// `natural`: powers of two.
    Natural(Natural),
    /// `qsgd`: uniform levels.
    Qsgd(Qsgd),
    /// `dither`: levels that are powers of two.
    Dither(Dither),
    /// `terngrad`: -1, 0 or 1 times a scale.
    TernGrad(TernGrad),
    /// `sign`: signs.
    Sign(Sign),
    /// `int8`: 8-bit integers.
    Int8(Int8),
    /// `delta`: the elements that differ from a base, without loss.
    Delta(Delta),
}

const NAMES: &str = "raw, lossless, topk, stc, threshold, sbc, sidco, randk, chunked, demo, powersgd, natural, qsgd, dither, terngrad, sign, int8, delta";

impl FromStr for Codec {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let (name, rest) = spec.split_once(':').unwrap_or((spec, ""));
        let keys = &mut Keys::parse(name, rest)?;
        let codec = match name {
            "raw" => Self::Raw,
            "lossless" => Self::Lossless,
            "stc" => Self::TopK(TopK::parse_ternary(keys)?),
            "topk" => Self::TopK(TopK::parse(keys)?),
            "threshold" => Self::Threshold(Threshold::parse(keys)?),
            "sbc" => Self::Sbc(Sbc::parse(keys)?),
            "sidco" => Self::Sidco(Sidco::parse(keys)?),
            "randk" => Self::RandK(RandK::parse(keys)?),
            "chunked" => Self::Chunked(Chunked::parse(keys)?),
            "demo" => Self::Demo(Demo::parse(keys)?),
            "powersgd" => Self::PowerSgd(PowerSgd::parse(keys)?),
            "natural" => Self::Natural(Natural::parse(keys)?),
            "qsgd" => Self::Qsgd(Qsgd::parse(keys)?),
            "dither" => Self::Dither(Dither::parse(keys)?),
            "terngrad" => Self::TernGrad(TernGrad::parse(keys)?),
            "sign" => Self::Sign(Sign::parse(keys)?),
            "int8" => Self::Int8(Int8::parse(keys)?),
            "delta" => Self::Delta(Delta::parse(keys)?),
            _ => return Err(SpecError(format!("unknown codec `{name}`: one of {NAMES}"))),
        };
        keys.finish()?;
        codec.range_check().map_err(|e| keys.out_of_range(e))?;
        Ok(codec)
    }
}

impl fmt::Display for Codec {
    /// Writes the shortest specification that parses as this codec, except that amount and values are always
    /// written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out = &mut SpecWriter::new(f, self.name())?;
        match self {
            Self::Raw | Self::Lossless => Ok(()),
            Self::TopK(c) => c.write(out),
            Self::Threshold(c) => c.write(out),
            Self::Sbc(c) => c.write(out),
            Self::Sidco(c) => c.write(out),
            Self::RandK(c) => c.write(out),
            Self::Chunked(c) => c.write(out),
            Self::Demo(c) => c.write(out),
            Self::PowerSgd(c) => c.write(out),
            Self::Natural(c) => c.write(out),
            Self::Qsgd(c) => c.write(out),
            Self::Dither(c) => c.write(out),
            Self::TernGrad(c) => c.write(out),
            Self::Sign(c) => c.write(out),
            Self::Int8(c) => c.write(out),
            Self::Delta(c) => c.write(out),
        }
    }
}

impl Codec {
    /// Returns the name in specifications.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Lossless => "lossless",
            Self::TopK(_) => "topk",
            Self::Threshold(_) => "threshold",
            Self::Sbc(_) => "sbc",
            Self::Sidco(_) => "sidco",
            Self::RandK(_) => "randk",
            Self::Chunked(_) => "chunked",
            Self::Demo(_) => "demo",
            Self::PowerSgd(_) => "powersgd",
            Self::Natural(_) => "natural",
            Self::Qsgd(_) => "qsgd",
            Self::Dither(_) => "dither",
            Self::TernGrad(_) => "terngrad",
            Self::Sign(_) => "sign",
            Self::Int8(_) => "int8",
            Self::Delta(_) => "delta",
        }
    }

    /// Returns how the positions of this codec's blocks are written.
    pub fn positions(&self) -> Positions {
        match self {
            Self::TopK(c) => c.positions,
            Self::Threshold(c) => c.positions,
            Self::Sbc(c) => c.positions,
            Self::Sidco(c) => c.positions,
            Self::Delta(c) => c.positions,
            _ => Positions::Auto,
        }
    }

    /// Returns how this codec's blocks are written.
    pub fn block_options(&self) -> BlockOptions {
        BlockOptions::default().with_positions(self.positions())
    }

    /// Returns this codec for the update `steps` later: its seed is greater by `steps`, so that each update
    /// rounds and draws differently. Codecs without a seed stay the same, and so does `powersgd`, whose seed
    /// is that of the first step.
    #[must_use]
    pub fn later(mut self, steps: u64) -> Self {
        let seed = match &mut self {
            Self::TopK(c) => &mut c.seed,
            Self::Threshold(c) => &mut c.seed,
            Self::Sidco(c) => &mut c.seed,
            Self::RandK(c) => &mut c.seed,
            Self::Natural(c) => &mut c.seed,
            Self::Qsgd(c) => &mut c.seed,
            Self::Dither(c) => &mut c.seed,
            Self::TernGrad(c) => &mut c.seed,
            _ => return self,
        };
        *seed = seed.wrapping_add(steps);
        self
    }

    /// Returns the quantiser of a codec that quantises all elements.
    fn quantizer(&self) -> Option<Quantizer> {
        match self {
            Self::Qsgd(c) => Some(c.quantizer()),
            Self::Dither(c) => Some(c.quantizer()),
            Self::TernGrad(c) => Some(c.quantizer()),
            Self::Int8(c) => Some(c.quantizer()),
            _ => None,
        }
    }

    /// Whether the receiver may get other values than the sender had.
    pub fn is_lossy(&self) -> bool {
        !matches!(self, Self::Raw | Self::Lossless | Self::Delta(_))
    }

    /// Checks that every setting is in its range.
    fn check(&self) -> Result<()> {
        self.range_check().map_err(|e| Error::bad_option(e.key))
    }

    fn range_check(&self) -> Result<(), OutOfRange> {
        match self {
            Self::Raw | Self::Lossless => Ok(()),
            Self::TopK(c) => c.check(),
            Self::Threshold(c) => c.check(),
            Self::Sbc(c) => c.check(),
            Self::Sidco(c) => c.check(),
            Self::RandK(c) => c.check(),
            Self::Chunked(c) => c.check(),
            Self::Demo(c) => c.check(),
            Self::PowerSgd(c) => c.check(),
            Self::Natural(c) => c.check(),
            Self::Qsgd(c) => c.check(),
            Self::Dither(c) => c.check(),
            Self::TernGrad(c) => c.check(),
            Self::Sign(c) => c.check(),
            Self::Int8(c) => c.check(),
            Self::Delta(c) => c.check(),
        }
    }

    /// Appends the blocks of a run of tensors. `chosen`: the elements already selected, for
    /// [`Selection::Global`].
    fn blocks(
        &self,
        inputs: &[Input<'_>],
        tensors: &mut [Source<'_>],
        chosen: &mut [Chosen],
        options: &Options,
        blocks: &mut Vec<Block>,
    ) -> Result<()> {
        match self {
            Self::Raw => lossless::dense(inputs, options, false, blocks),
            Self::Lossless => lossless::dense(inputs, options, true, blocks),
            Self::Delta(c) => c.blocks(inputs, blocks)?,
            Self::TopK(c) => blocks.push(c.block(tensors, chosen)?),
            Self::Threshold(c) => blocks.push(c.block(tensors)?),
            Self::Sbc(c) => blocks.push(c.block(tensors)?),
            Self::Sidco(c) => blocks.push(c.block(tensors)?),
            Self::RandK(c) => c.blocks(tensors, blocks)?,
            Self::Chunked(c) => c.blocks(tensors, blocks)?,
            Self::Demo(c) => demo::blocks(tensors, inputs, c, options, blocks)?,
            Self::PowerSgd(c) => powersgd::blocks(tensors, inputs, c, options, blocks)?,
            Self::Natural(c) => natural::blocks(tensors, c, options, blocks)?,
            Self::Qsgd(c) => quantize::blocks(tensors, c.quantizer(), options, blocks)?,
            Self::Dither(c) => quantize::blocks(tensors, c.quantizer(), options, blocks)?,
            Self::TernGrad(c) => quantize::blocks(tensors, c.quantizer(), options, blocks)?,
            Self::Sign(c) => sign::blocks(tensors, c, options, blocks)?,
            Self::Int8(c) => quantize::blocks(tensors, c.quantizer(), options, blocks)?,
        }
        Ok(())
    }
}

/// Compresses the tensors of one update. Returns blocks in ascending order of the elements that they span.
///
/// `inputs`: in ascending order of their numbers; `codecs`: one for each input. With `feedback`, lossy codecs
/// compress the sum of the tensor and its residual from earlier calls, and the new residual is stored there.
///
/// # Memory
/// The returned blocks are held at once:
///
/// | codec | bytes |
/// |---|---|
/// | sparse codecs | 12 for each element kept |
/// | `natural` | 9 bits for each element |
/// | `int8` | 1 for each element |
/// | `qsgd`, `dither`, `terngrad` | 1 for each element; 4 with more than 8 bits |
/// | `raw`, `lossless` | a copy of the elements |
/// | `demo` | 12 for each coefficient kept |
/// | `powersgd` | 4 for each element of the largest tensor |
///
/// `demo` and `powersgd` take 4 bytes more for each element of a block, to reconstruct it. In addition to
/// this and to the residuals, sparse codecs take at most 1 MiB and, with the coding of
/// [`Encoder::update`](crate::stream::Encoder::update), 64 bytes for each element kept, as measured in
/// `tests/properties/memory.rs` at a density of 0.001. Dense codecs take a few tiles for each thread. A
/// sender that cannot hold this compresses some tensors at a time, or uses [`pending()`].
///
/// # Errors
/// [`Error::Input`] with the number of the tensor: an integer tensor or a value that is not finite for a
/// lossy codec, a missing or different base for [`Codec::Delta`], a residual of another shape.
/// [`Error::Input`] without it: an option out of its range. `feedback` is unchanged then.
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
        let mut blocks = Vec::new();
        let codec = codecs[run.start];
        codec.blocks(&inputs[run.clone()], tensors, &mut chosen[run], options, &mut blocks)?;
        let options = codec.block_options();
        coded.extend(blocks.into_iter().map(|block| CodedBlock { block, options }));
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

/// Collects all results, or the first error in their order. (Collecting into a `Result` directly would return
/// any of several errors.)
fn in_order<T: Send>(results: impl ParallelIterator<Item = Result<T>>) -> Result<Vec<T>> {
    results.collect::<Vec<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests;
