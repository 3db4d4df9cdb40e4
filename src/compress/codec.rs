//! [`Codec`], and the choice between the codecs.

use std::fmt;
use std::str::FromStr;

use super::codecs::quantize::Quantizer;
use super::codecs::*;
use super::options::{Input, Options};
use super::select::Chosen;
use super::settings::{Keys, OutOfRange, SpecError, SpecWriter};
use super::source::Source;
use crate::block::{Block, BlockOptions, Positions};
use crate::error::{Error, Result};

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

pub(super) const NAMES: &str = "raw, lossless, topk, stc, threshold, sbc, sidco, randk, chunked, demo, powersgd, natural, qsgd, dither, terngrad, sign, int8, delta";

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
    pub(super) fn quantizer(&self) -> Option<Quantizer> {
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
    pub(super) fn check(&self) -> Result<()> {
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
    pub(super) fn blocks(
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
