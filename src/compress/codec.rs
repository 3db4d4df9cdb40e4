//! [`Codec`], and the choice between the codecs.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::codecs::quantize::GroupQuantizer;
use super::codecs::*;
use super::compressor::{Compressor, TensorRun};
use super::extents::{JOINED, alike, divide};
use super::options::Outline;
use super::settings::{Keys, OutOfRange, SpecError, SpecWriter, Visitor};
use crate::block::{Block, BlockOptions, Effort, Positions};
use crate::error::{Error, Result};

/// Makes [`Codec`] and every choice between the codecs from one list of codecs. A text behind a codec is
/// another name of it, with other defaults.
macro_rules! codecs {
    ($($(#[$doc:meta])* $Codec:ident $($alias:literal)?)*) => {
        /// A compressor and its settings. [`str::parse`] reads it from `name[:key=value,...]`,
        /// [`ToString`] writes it back.
        ///
        /// `docs/codecs.md` lists all names, keys, ranges and defaults.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[non_exhaustive]
        pub enum Codec {
            /// `raw`: the elements unchanged.
            Raw,
            $($(#[$doc])* $Codec($Codec),)*
        }

        impl Codec {
            /// The names that specifications may begin with.
            pub const NAMES: &[&str] = &["raw", $($Codec::NAME, $($alias,)?)*];

            /// Returns the name in specifications.
            pub fn name(&self) -> &'static str {
                match self {
                    Self::Raw => "raw",
                    $(Self::$Codec(_) => $Codec::NAME,)*
                }
            }

            /// Returns the codec of a name with default settings.
            fn of(name: &str) -> Option<Self> {
                Some(match name {
                    "raw" => Self::Raw,
                    $($Codec::NAME => Self::$Codec($Codec::default()),)*
                    _ => return None,
                })
            }

            fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
                match self {
                    Self::Raw => Ok(()),
                    $(Self::$Codec(codec) => codec.settings(visitor),)*
                }
            }

            fn range_check(mut self) -> Result<(), OutOfRange> {
                match &mut self {
                    Self::Raw => Ok(()),
                    $(Self::$Codec(codec) => codec.check(),)*
                }
            }

            /// Whether consecutive tensors share a block, small or not.
            pub(super) fn shares_blocks(&self) -> bool {
                match self {
                    Self::Raw => false,
                    $(Self::$Codec(_) => $Codec::SHARES_BLOCKS,)*
                }
            }

            /// Returns the blocks of a run of tensors.
            pub(super) fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
                match self {
                    Self::Raw => Ok(lossless::dense(&run, false)),
                    $(Self::$Codec(codec) => codec.blocks(run),)*
                }
            }
        }
    };
}

codecs! {
    /// `lossless`: the elements' byte planes, entropy coded.
    Lossless
    /// `topk`: the elements of largest magnitude.
    TopK "stc"
    /// `threshold`: the elements that reach a threshold.
    Threshold
    /// `sbc`: Sparse Binary Compression.
    Sbc
    /// `sidco`: the elements that reach a fitted threshold.
    Sidco
    /// `randk`: elements drawn at random.
    RandK
    /// `chunked`: the largest elements of each chunk.
    Chunked
    /// `demo`: the largest coefficients of a cosine transform.
    Demo
    /// `powersgd`: two factors of few columns.
    PowerSgd
    /// `natural`: powers of two.
    Natural
    /// `qsgd`: uniform levels.
    Qsgd
    /// `dither`: levels that are powers of two.
    Dither
    /// `terngrad`: -1, 0 or 1 times a scale.
    TernGrad
    /// `sign`: signs.
    Sign
    /// `int8`: 8-bit integers.
    Int8
    /// `delta`: the elements that differ from a base, without loss.
    Delta
}

/// Returns the runs of tensors that are compressed together: consecutive ones of one element type and one
/// codec, and no more than a block has if they share it.
pub(super) fn runs(codecs: &[Codec], of: impl Fn(usize) -> Outline) -> Vec<Range<usize>> {
    let alike = alike(codecs, |i| (of(i).tensor, of(i).dtype));
    let divided = |run: Range<usize>| match codecs[run.start].shares_blocks() {
        true => divide(run, JOINED, |i| of(i).len),
        false => vec![run],
    };
    alike.into_iter().flat_map(divided).collect()
}

impl FromStr for Codec {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let (name, rest) = spec.split_once(':').unwrap_or((spec, ""));
        let keys = &mut Keys::parse(name, rest)?;
        let codec = match Self::of(name) {
            Some(mut codec) => codec.settings(keys).map(|()| codec),
            None if name == "stc" => TopK::ternary(keys).map(Self::TopK),
            None => Err(SpecError(format!("unknown codec `{name}`: one of {}", Self::NAMES.join(", ")))),
        }?;
        keys.finish()?;
        codec.range_check().map_err(|e| keys.wrong(e))?;
        Ok(codec)
    }
}

impl fmt::Display for Codec {
    /// Writes the shortest specification that parses as this codec, except that amount and values are always
    /// written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out = &mut SpecWriter::new(f, self.name())?;
        let mut codec = *self;
        codec.settings(out)
    }
}

impl Codec {
    /// `lossless` with its default effort.
    pub const LOSSLESS: Self = Self::Lossless(Lossless { effort: Effort::Default });

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
    pub(crate) fn block_options(&self) -> BlockOptions {
        let effort = match self {
            Self::Lossless(c) => c.effort,
            Self::Natural(c) => c.effort,
            _ => Effort::Default,
        };
        BlockOptions::default().with_positions(self.positions()).with_effort(effort)
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
    pub(super) fn quantizer(&self) -> Option<GroupQuantizer> {
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
        !matches!(self, Self::Raw | Self::Lossless(_) | Self::Delta(_))
    }

    /// Checks that every setting is in its range.
    pub(super) fn check(&self) -> Result<()> {
        self.range_check().map_err(|e| Error::bad_option(e.key))
    }
}
