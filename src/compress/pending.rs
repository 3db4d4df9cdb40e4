//! Compression of large tensors block by block, while an encoder writes them.

use std::ops::Range;

use super::codec::Codec;
use super::codecs::natural;
use super::codecs::quantize::GroupQuantizer;
use super::extents::{Extent, extents};
use super::options::{Input, Options};
use super::source::Source;
use super::update::{check, compress};
use crate::block::{Later, LaterValues, PendingBlock, ValuesId};
use crate::codes::Scratch;
use crate::error::Result;

/// Number of elements from which on a tensor's dense blocks are made when they are written.
const LARGE: u64 = 1 << 16;

/// Compresses the tensors of one update as [`compress()`] does without feedback, but makes the values of
/// large dense blocks only when [`Encoder::update`](crate::stream::Encoder::update) writes
/// them.
///
/// The bytes are those of [`compress()`]. `inputs` and `codecs` are as there.
///
/// # Memory
/// As [`compress()`] for sparse codecs, `demo`, `powersgd`, `sign`, and tensors below 2^16 elements. Nothing
/// for other tensors.
///
/// # Errors
/// As [`compress()`], except that a value that is not finite may be found only when its block is written.
pub fn pending<'a>(
    inputs: &[Input<'a>],
    codecs: &[Codec],
    options: &Options,
) -> Result<Vec<PendingBlock<'a>>> {
    check(inputs, codecs, options, false)?;
    let (mut now, mut codecs_now, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    for (input, codec) in inputs.iter().zip(codecs) {
        match Dense::of(codec) {
            Some(dense) if input.view.elements() >= LARGE && dense.divides(input) => {
                Source::new(input, codec.is_lossy(), options, None).map_err(|e| e.in_tensor(input.tensor))?;
                blocks.extend(dense.blocks(input, codec, options));
            }
            _ => {
                now.push(*input);
                codecs_now.push(*codec);
            }
        }
    }
    blocks.extend(compress(&now, &codecs_now, options, None)?.into_iter().map(PendingBlock::from));
    // All blocks of a tensor are in one of both lists, and in order there.
    blocks.sort_by_key(|block| block.scope().first());
    Ok(blocks)
}

/// How the values of a codec's dense blocks are made. They depend on their own elements only.
#[derive(Clone, Copy)]
enum Dense {
    Floats,
    Planes,
    Made(Maker),
}

#[derive(Clone, Copy)]
enum Maker {
    /// With this seed.
    Natural(u64),
    Quantized(GroupQuantizer),
}

impl Dense {
    fn of(codec: &Codec) -> Option<Self> {
        match codec {
            Codec::Raw => Some(Self::Floats),
            Codec::Lossless => Some(Self::Planes),
            Codec::Natural(c) => Some(Self::Made(Maker::Natural(c.seed))),
            codec => codec.quantizer().map(|quantizer| Self::Made(Maker::Quantized(quantizer))),
        }
    }

    /// Whether a block's elements are whole bytes of the tensor.
    fn divides(self, input: &Input<'_>) -> bool {
        matches!(self, Self::Made(_)) || input.view.dtype().bits() >= 8
    }

    /// Returns the blocks of one tensor.
    fn blocks<'a>(self, input: &Input<'a>, codec: &Codec, options: &Options) -> Vec<PendingBlock<'a>> {
        let lens = [input.view.elements()];
        let size = input.view.dtype().bits() as usize / 8;
        let block = |extent: Extent| {
            let (_, range) = extent.span(&lens)?;
            let bytes =
                |elements: Range<usize>| &input.view.data()[elements.start * size..elements.end * size];
            let len = range.len() as u64;
            let (values, weight) = match self {
                Self::Floats => (LaterValues::Floats(bytes(range)), len * size as u64),
                Self::Planes => (LaterValues::Planes(bytes(range)), len * size as u64),
                Self::Made(maker) => (maker.values(*input, *codec, options.clone(), range), len),
            };
            let (scope, options) = (extent.scope(|_| input.tensor), codec.block_options());
            Some(PendingBlock::later(Later { scope, values, weight }, options))
        };
        extents(&lens, options.block_len, false).into_iter().filter_map(block).collect()
    }
}

impl Maker {
    /// Returns values for a span of a tensor.
    fn values(
        self,
        input: Input<'_>,
        codec: Codec,
        options: Options,
        range: Range<usize>,
    ) -> LaterValues<'_> {
        let id = match self {
            Self::Natural(_) => ValuesId::POW2,
            Self::Quantized(quantizer) => quantizer.values_id(),
        };
        let make = move |scratch: &mut Scratch| {
            let mut tensor = Source::new(&input, codec.is_lossy(), &options, None)?;
            match self {
                Self::Natural(seed) => natural::values(&mut tensor, range.clone(), seed, scratch),
                Self::Quantized(quantizer) => quantizer.values(&mut tensor, range.clone(), scratch),
            }
        };
        LaterValues::Made(id, Box::new(make))
    }
}
