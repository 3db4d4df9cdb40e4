//! Lossless blocks of unchanged elements: the codec `lossless`, and the blocks of `raw`.

use rayon::prelude::*;

use crate::arch::pages;
use crate::block::{Block, Effort, Floats, Planes, Scope, Stored, Support, Values};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::extents::{Extent, Sharing, extents, whole};
use crate::compress::settings::Visitor;
use crate::error::Result;
use crate::limits::in_memory;
use crate::tensor::Dtype;
use crate::tensor::element::bits_at;

/// `lossless`: the elements' byte planes, entropy coded.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lossless {
    /// `effort`: `fast` encodes about twice as fast, and streams are mostly up to 1 % larger.
    /// Default: `default`.
    pub effort: Effort,
}

impl Compressor for Lossless {
    const NAME: &'static str = "lossless";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.effort(&mut self.effort)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        Ok(dense(&run, true))
    }
}

/// Returns dense blocks of a run of tensors, as byte planes if `planes`.
pub(in crate::compress) fn dense(
    TensorRun { inputs, options, .. }: &TensorRun<'_, '_>,
    planes: bool,
) -> Vec<Block> {
    let lens: Vec<u64> = inputs.iter().map(|input| input.view.elements()).collect();
    let block = |extent| {
        let (scope, bytes) = match extent {
            Extent::Whole(run) => {
                let inputs = &inputs[run];
                let mut elements = Elements::new(inputs[0].view.dtype());
                inputs.iter().for_each(|input| elements.extend(input.view.data(), 0, input.view.elements()));
                (whole(inputs[0].tensor, inputs.len()), elements.bytes)
            }
            Extent::Slice(i, range) => {
                let (input, len) = (&inputs[i], range.end - range.start);
                let mut elements = Elements::new(input.view.dtype());
                elements.extend(input.view.data(), range.start, len);
                (Scope::Range { tensor: input.tensor, start: range.start, len }, elements.bytes)
            }
        };
        let values = match planes {
            true => Values::Planes(Planes { bytes }),
            false => Values::Floats(Floats { stored: Stored::Source, bytes }),
        };
        Block { scope, add: false, support: Support::All, values }
    };
    // The copies touch new memory, which takes longer than the copying: threads share it.
    extents(&lens, options.block_len, Sharing::All).into_par_iter().map(block).collect()
}

/// A row of elements (spec, section 1) that grows.
pub(super) struct Elements {
    dtype: Dtype,
    pub(super) bytes: Vec<u8>,
    /// Elements that were pushed one by one.
    len: u64,
}

impl Elements {
    pub(super) fn new(dtype: Dtype) -> Self {
        Self { dtype, bytes: Vec::new(), len: 0 }
    }

    /// Appends the bits of an element.
    pub(super) fn push(&mut self, bits: u64) {
        match self.dtype.bits() {
            4 if !self.len.is_multiple_of(2) => {
                self.bytes.last_mut().into_iter().for_each(|last| *last |= (bits << 4) as u8);
            }
            bits_each => {
                let size = in_memory(u64::from(bits_each).div_ceil(8));
                self.bytes.extend_from_slice(&bits.to_le_bytes()[..size]);
            }
        }
        self.len += 1;
    }

    /// Appends elements of a tensor. Two of 4 bits share a byte, which may be another pair than in `data`.
    fn extend(&mut self, data: &[u8], start: u64, len: u64) {
        if self.dtype.bits() == 4 {
            (start..start + len).for_each(|i| self.push(bits_at(self.dtype, data, i).unwrap_or(0)));
            return;
        }
        let width = self.dtype.bits() as usize / 8;
        self.bytes.reserve(len as usize * width);
        pages::prefer_large(&mut self.bytes);
        self.bytes.extend_from_slice(&data[start as usize * width..(start + len) as usize * width]);
    }
}
