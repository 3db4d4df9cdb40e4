//! Lossless differences from a base.

mod classes;
mod pieces;

use std::collections::HashSet;
use std::fmt;

use rayon::prelude::*;

use crate::block::{Block, Coded, Positions, ROWS, Ranker, Scope, Sparse, Support, Ulp, Values};
use crate::compress::settings::{Keys, OutOfRange, SpecError, SpecWriter};
use crate::compress::{Input, whole};
use crate::error::Result;
use crate::frame;
use crate::frame::{Digest, run_digest, tensor_digest};
use pieces::{Piece, for_each_step};

/// `delta`: sends the elements that differ from a base, without loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delta {
    /// `positions`: the encoding of positions. Default: `auto`.
    pub positions: Positions,
}

impl Default for Delta {
    fn default() -> Self {
        Self { positions: Positions::Auto }
    }
}

impl Delta {
    pub(in crate::compress) fn parse(keys: &mut Keys<'_>) -> Result<Self, SpecError> {
        Ok(Self { positions: keys.positions()? })
    }

    pub(in crate::compress) fn check(&self) -> Result<(), OutOfRange> {
        Ok(())
    }

    pub(in crate::compress) fn write(&self, out: &mut SpecWriter<'_, '_>) -> fmt::Result {
        out.positions(self.positions)
    }

    /// Appends blocks of the elements of a run of tensors that differ from their bases.
    pub(in crate::compress) fn blocks(&self, inputs: &[Input<'_>], blocks: &mut Vec<Block>) -> Result<()> {
        let mut runs: Vec<Vec<Piece<'_>>> = Vec::new();
        let mut rest = inputs;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|input| {
                bytes += input.view.data().len();
                bytes <= RUN_BYTES
            });
            let (own, others) = rest.split_at(fits.count().max(1));
            match own {
                [one] => runs.extend(Piece::of_tensor(one)?.into_iter().map(|piece| vec![piece])),
                several => runs.push(several.iter().map(Piece::whole).collect::<Result<_>>()?),
            }
            rest = others;
        }
        let made: Vec<Block> = runs.par_iter().map(|pieces| self.block(pieces)).collect();
        // A tensor without changes has one block, so that the update lists its digests.
        blocks.extend(made.into_iter().filter(|block| match (block.scope, &block.values) {
            (Scope::Range { start: 1.., .. }, Values::Ulp(ulp)) => !ulp.diffs.is_empty(),
            _ => true,
        }));
        Ok(())
    }

    /// Makes a block of the differences of consecutive tensors, or of a part of one.
    fn block(&self, pieces: &[Piece<'_>]) -> Block {
        let scope = match pieces {
            [piece] => piece.scope(),
            _ => whole(pieces[0].tensor, pieces.len()),
        };
        let bounds = match self.positions {
            Positions::Auto => classes::choose(pieces, false),
            Positions::Classed => classes::choose(pieces, true),
            _ => None,
        };
        let mut masks = [0; ROWS];
        let (support, diffs) = match bounds {
            Some(bounds) => {
                let mut ranker = Ranker::new(pieces[0].dtype(), bounds);
                for_each_step(
                    pieces,
                    |_| true,
                    |step| {
                        step.changed(&mut masks);
                        match step.dtype.bits() {
                            16 => ranker.add(step.base, step.len, &masks, step.diff_of::<2>()),
                            32 => ranker.add(step.base, step.len, &masks, step.diff_of::<4>()),
                            _ => ranker.add(step.base, step.len, &masks, |at| step.diff(at)),
                        }
                    },
                );
                let (based, diffs) = ranker.finish();
                (Support::Based(based), diffs)
            }
            None => {
                let (mut positions, mut diffs) = (Vec::new(), Vec::new());
                for_each_step(
                    pieces,
                    |_| true,
                    |step| {
                        if step.changed(&mut masks) {
                            step.for_each_changed(&masks, |at| {
                                positions.push(step.position + at as u64);
                                diffs.push(step.diff(at));
                            });
                        }
                    },
                );
                (Support::Sparse(Sparse { positions }), diffs)
            }
        };
        Block { scope, add: false, support, values: Values::Ulp(Ulp { diffs }) }
    }
}

/// Most bytes of tensors that share a block and a digest, unless it is one tensor. Whoever reads one tensor
/// of them needs the base of all.
const RUN_BYTES: usize = 8 << 20;
/// Digests of a tensor before and after an update.
struct Digested {
    tensor: u64,
    bytes: usize,
    base: Digest,
    result: Digest,
}

/// Returns the entries that an update's header has for the tensors touched by these blocks, before and after
/// the update ([`UpdateHeader::delta`](crate::frame::UpdateHeader::delta)). Consecutive small tensors share
/// an entry, and so do the tensors of a block classed by the base. Only tensors of `inputs` with a base have
/// one.
pub fn deltas<B: Coded>(inputs: &[Input<'_>], blocks: &[B]) -> Vec<frame::Delta> {
    let scopes = || blocks.iter().map(|coded| coded.block().scope);
    let tensors = |scope: Scope| (scope.first()..).take(scope.tensors() as usize);
    let touched: HashSet<u64> = scopes().flat_map(tensors).collect();
    let based = blocks.iter().map(Coded::block).filter(|b| matches!(b.support, Support::Based(_)));
    let not_first: HashSet<u64> = based.flat_map(|block| tensors(block.scope).skip(1)).collect();
    let touched = inputs.par_iter().filter(|input| touched.contains(&input.tensor));
    let digested: Vec<Digested> = touched
        .filter_map(|input| {
            let (tensor, bytes) = (input.tensor, input.view.data().len());
            let (base, result) = (tensor_digest(input.base?), tensor_digest(input.view));
            Some(Digested { tensor, bytes, base, result })
        })
        .collect();
    let mut runs: Vec<Vec<&Digested>> = Vec::new();
    let mut run_bytes = 0;
    for together in digested.chunk_by(|_, next| not_first.contains(&next.tensor)) {
        let bytes: usize = together.iter().map(|d| d.bytes).sum();
        match runs.last_mut() {
            Some(run)
                if run[run.len() - 1].tensor + 1 == together[0].tensor && run_bytes + bytes <= RUN_BYTES =>
            {
                run.extend(together);
                run_bytes += bytes;
            }
            _ => {
                runs.push(together.iter().collect());
                run_bytes = bytes;
            }
        }
    }
    let entry = |run: &Vec<&Digested>| {
        let (bases, results): (Vec<Digest>, Vec<Digest>) = run.iter().map(|d| (d.base, d.result)).unzip();
        let more = run.len() as u64 - 1;
        frame::Delta { first: run[0].tensor, more, base: run_digest(&bases), result: run_digest(&results) }
    };
    runs.iter().map(entry).collect()
}
