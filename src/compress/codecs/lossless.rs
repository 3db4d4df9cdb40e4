//! Lossless blocks of unchanged elements.

use rayon::prelude::*;

use crate::arch::pages;
use crate::block::{Block, Floats, Planes, Scope, Stored, Support, Values};
use crate::compress::codecs::Run;
use crate::compress::extents::{Extent, extents, whole};
use crate::tensor::Dtype;
use crate::tensor::element::{bits_at, set_bits_at};

/// Returns dense blocks of a run of tensors, as byte planes if `planes`.
pub(in crate::compress) fn dense(Run { inputs, options, .. }: &Run<'_, '_>, planes: bool) -> Vec<Block> {
    let lens: Vec<u64> = inputs.iter().map(|input| input.view.elements()).collect();
    let block = |extent| {
        let (scope, bytes) = match extent {
            Extent::Whole(run) => {
                let inputs = &inputs[run];
                let mut elements = Elements::new(inputs[0].view.dtype());
                inputs.iter().for_each(|input| elements.push(input.view.data(), 0, input.view.elements()));
                (whole(inputs[0].tensor, inputs.len()), elements.bytes)
            }
            Extent::Slice(i, range) => {
                let (input, len) = (&inputs[i], range.end - range.start);
                let mut elements = Elements::new(input.view.dtype());
                elements.push(input.view.data(), range.start, len);
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
    extents(&lens, options.block_len, true).into_par_iter().map(block).collect()
}

/// Reads elements one by one, even if two share a byte.
struct Elements {
    dtype: Dtype,
    len: u64,
    bytes: Vec<u8>,
}

impl Elements {
    fn new(dtype: Dtype) -> Self {
        Self { dtype, len: 0, bytes: Vec::new() }
    }

    fn push(&mut self, data: &[u8], start: u64, len: u64) {
        if self.dtype.bits() == 4 {
            for i in 0..len {
                if self.len.is_multiple_of(2) {
                    self.bytes.push(0);
                }
                let bits = bits_at(self.dtype, data, start + i).unwrap_or(0);
                let set = set_bits_at(self.dtype, &mut self.bytes, self.len, bits);
                debug_assert!(set.is_some(), "the byte was pushed");
                self.len += 1;
            }
            return;
        }
        let width = self.dtype.bits() as usize / 8;
        self.bytes.reserve(len as usize * width);
        pages::prefer_large(&mut self.bytes);
        self.bytes.extend_from_slice(&data[start as usize * width..(start + len) as usize * width]);
        self.len += len;
    }
}
