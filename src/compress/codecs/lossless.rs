//! Lossless blocks: unchanged elements, and differences from a base.

use std::collections::HashSet;

use rayon::prelude::*;

use crate::block::{Block, Coded, Floats, Planes, Scope, Sparse, Stored, Support, Ulp, Values};
use crate::compress::{Input, Options, Part, in_order, parts, whole};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{Delta, tensor_digest};
use crate::tensor::element::{bits_at, set_bits_at, ulp_diff};
use crate::tensor::{Dtype, TensorView};

/// Appends dense blocks of a run of tensors, as byte planes if `planes`.
pub(crate) fn dense(inputs: &[Input<'_>], options: &Options, planes: bool, blocks: &mut Vec<Block>) {
    let lens: Vec<u64> = inputs.iter().map(|input| input.view.elements()).collect();
    let block = |part| {
        let (scope, bytes) = match part {
            Part::Whole(run) => {
                let inputs = &inputs[run];
                let mut elements = Elements::new(inputs[0].view.dtype());
                inputs.iter().for_each(|input| elements.push(input.view.data(), 0, input.view.elements()));
                (whole(inputs[0].tensor, inputs.len()), elements.bytes)
            }
            Part::Slice(i, range) => {
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
    blocks.par_extend(parts(&lens, options.block_len, true).into_par_iter().map(block));
}

/// Maximum number of elements of a block of differences, unless the block spans one tensor.
const DELTA_BLOCK: u64 = 1 << 26;

/// Appends blocks of the elements of a run of tensors that differ from their bases.
pub(crate) fn delta(inputs: &[Input<'_>], blocks: &mut Vec<Block>) -> Result<()> {
    let differences = in_order(inputs.par_iter().map(|input| {
        let base = input.base.ok_or(Error::input(InputErrorKind::MissingBase));
        base.and_then(|base| differences(input.view, base)).map_err(|e| e.in_tensor(input.tensor))
    }))?;
    let (mut start, mut count) = (0u64, 0usize);
    let (mut positions, mut diffs) = (Vec::new(), Vec::new());
    for (i, (p, d)) in differences.into_iter().enumerate() {
        let len = inputs[i].view.elements();
        if count > 0 && start.saturating_add(len) > DELTA_BLOCK {
            let scope = whole(inputs[i - count].tensor, count);
            let support = Support::Sparse(Sparse { positions: std::mem::take(&mut positions) });
            let values = Values::Ulp(Ulp { diffs: std::mem::take(&mut diffs) });
            blocks.push(Block { scope, add: false, support, values });
            (start, count) = (0, 0);
        }
        positions.extend(p.into_iter().map(|p| start + p));
        diffs.extend(d);
        start += len;
        count += 1;
    }
    let scope = whole(inputs[inputs.len() - count].tensor, count);
    blocks.push(Block {
        scope,
        add: false,
        support: Support::Sparse(Sparse { positions }),
        values: Values::Ulp(Ulp { diffs }),
    });
    Ok(())
}

/// Returns the entries that an update's header has for the tensors touched by these blocks, before and after
/// the update ([`UpdateHeader::delta`](crate::frame::UpdateHeader::delta)). Only tensors of `inputs` with a
/// base have an entry.
pub fn deltas<B: Coded>(inputs: &[Input<'_>], blocks: &[B]) -> Vec<Delta> {
    let scopes = blocks.iter().map(|coded| coded.block().scope);
    let touched: HashSet<u64> =
        scopes.flat_map(|scope| (scope.first()..).take(scope.tensors() as usize)).collect();
    let entry = |input: &Input<'_>| {
        let base = input.base?;
        Some(Delta { tensor: input.tensor, base: tensor_digest(base), result: tensor_digest(input.view) })
    };
    inputs.iter().filter(|input| touched.contains(&input.tensor)).filter_map(entry).collect()
}

/// Number of bytes compared at once where nothing differs. It holds whole elements of every type.
const ROW: usize = 256;
/// Number of bytes that a thread processes at a time.
const STEP: usize = 1 << 20;

fn differences(new: TensorView<'_>, old: TensorView<'_>) -> Result<(Vec<u64>, Vec<i64>)> {
    if new.dtype() != old.dtype() || new.shape() != old.shape() {
        return Err(Error::input(InputErrorKind::Mismatch {
            what: "shapes or element types of tensor and base",
        }));
    }
    let (dtype, n) = (new.dtype(), new.elements());
    let per_byte = |bytes: usize| bytes as u64 * 8 / u64::from(dtype.bits());
    let pieces: Vec<(Vec<u64>, Vec<i64>)> = new
        .data()
        .par_chunks(STEP)
        .zip(old.data().par_chunks(STEP))
        .enumerate()
        .map(|(i, (new, old))| {
            let (mut positions, mut diffs) = (Vec::new(), Vec::new());
            for (row, (new, old)) in new.chunks(ROW).zip(old.chunks(ROW)).enumerate() {
                if new == old {
                    continue;
                }
                let first = per_byte(i * STEP + row * ROW);
                for at in 0..per_byte(new.len()).min(n - first) {
                    let (Some(new), Some(old)) = (bits_at(dtype, new, at), bits_at(dtype, old, at)) else {
                        break;
                    };
                    if new != old {
                        positions.push(first + at);
                        diffs.push(ulp_diff(dtype, old, new));
                    }
                }
            }
            (positions, diffs)
        })
        .collect();
    let (mut positions, mut diffs) = (Vec::new(), Vec::new());
    for (p, d) in pieces {
        positions.extend(p);
        diffs.extend(d);
    }
    Ok((positions, diffs))
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
        self.bytes.extend_from_slice(&data[start as usize * width..(start + len) as usize * width]);
        self.len += len;
    }
}
