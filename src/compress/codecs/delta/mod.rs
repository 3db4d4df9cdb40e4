//! Lossless differences from a base.

mod classes;
mod digests;
mod pieces;

use std::fmt;

use rayon::prelude::*;

use crate::block::{Block, Positions, ROWS, Ranker, Scope, Sparse, Support, Ulp, Values};
use crate::compress::settings::{Keys, OutOfRange, SpecError, SpecWriter};
use crate::compress::{Input, whole};
use crate::error::Result;
pub use digests::{Digests, deltas};
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
