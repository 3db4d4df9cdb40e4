//! Lossless changes of a base.

pub(in crate::compress) mod classes;
mod digests;
mod pieces;

use rayon::prelude::*;

use super::lossless::Elements;
use crate::arch::pages;
use crate::block::{Block, Planes, Positions, ROWS, Ranker, Scope, Sparse, Support, Ulp, Values};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::extents::{Span, whole};
use crate::compress::settings::{Setting, Visitor};
use crate::error::Result;
use crate::limits::in_memory;
use classes::{Classes, Places};
pub use digests::{Digested, Digests, deltas};
pub(in crate::compress) use pieces::division;
use pieces::{Piece, Step, for_each_step};

/// `delta`: sends the elements that differ from a base, without loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delta {
    /// `values`: what is sent of a changed element. Default: `ulp`.
    pub values: Change,
    /// `positions`: the encoding of positions. Default: `auto`.
    pub positions: Positions,
}

/// Values of a delta: the form in which it sends an element that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// The difference in units of the last place, and positions that depend on the base: smallest. Where more
    /// than a quarter of the elements change and the base hardly predicts which, all elements have a
    /// difference, which is faster.
    Ulp,
    /// The new element, and positions that do not depend on the base: a receiver may apply the update twice,
    /// or to elements that differ from the base. Where more than a quarter of the elements change, all of
    /// them are sent, which is larger and faster than differences.
    Overwrite,
}

const VALUES: Setting<Change> =
    Setting::one_of("values", &[(Change::Ulp, "ulp"), (Change::Overwrite, "overwrite")]).unless(Change::Ulp);

impl Default for Delta {
    fn default() -> Self {
        Self { values: Change::Ulp, positions: Positions::Auto }
    }
}

impl Compressor for Delta {
    const NAME: &'static str = "delta";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.visit(&VALUES, &mut self.values)?;
        visitor.positions(&mut self.positions)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        let Some(first) = run.inputs.first() else { return Ok(Vec::new()) };
        let tensors = run.inputs.iter().map(Piece::whole).collect::<Result<Vec<_>>>()?;
        let lens: Vec<u64> = tensors.iter().map(|tensor| tensor.len).collect();
        let blocks_of = division(first.view.dtype(), &lens);
        let made = blocks_of.par_iter().map(|spans| {
            let pieces: Vec<Piece<'_>> = spans.iter().map(|&span| tensors[span.input].part(span)).collect();
            let (support, values) = self.changes(&pieces);
            Block { scope: scope(first.tensor, &lens, spans), add: false, support, values }
        });
        Ok(made.collect::<Vec<_>>().into_iter().filter(is_sent).collect())
    }
}

impl Delta {
    /// Returns whether classes of the base are useful: `Some(true)` if they are wanted in any case.
    pub(in crate::compress) fn classes(&self) -> Option<bool> {
        match (self.values, self.positions) {
            (Change::Ulp, Positions::Auto) => Some(false),
            (Change::Ulp, Positions::Classed) => Some(true),
            _ => None,
        }
    }

    /// Returns the changes of consecutive tensors, or of a part of one.
    fn changes(&self, pieces: &[Piece<'_>]) -> (Support, Values) {
        let places = self.classes().map(|forced| classes::choose(&classes::count_keys(pieces), forced));
        match (self.values, places) {
            (Change::Ulp, Some(Places::Classes(classes))) => classed_differences(pieces, classes),
            (Change::Ulp, Some(Places::All)) => all_differences(pieces),
            (Change::Ulp, Some(Places::Changed) | None) => {
                let mut diffs = Vec::new();
                let support = changed(pieces, |step, at| diffs.push(step.diff(at)));
                (support, Values::Ulp(Ulp { diffs }))
            }
            (Change::Overwrite, _) => {
                let dtype = pieces[0].dtype();
                let mut elements = Elements::new(dtype);
                let support = match dtype.bits() >= 8 && classes::most_change(pieces) {
                    true => {
                        for_each_step(pieces, |_| true, |step| elements.bytes.extend_from_slice(step.new));
                        Support::All
                    }
                    false => changed(pieces, |step, at| elements.push(step.new_bits(at))),
                };
                (support, Values::Planes(Planes { bytes: elements.bytes }))
            }
        }
    }
}

/// Returns the differences of all elements.
fn all_differences(pieces: &[Piece<'_>]) -> (Support, Values) {
    let mut diffs = pages::with_room(in_memory(pieces.iter().map(|piece| piece.len).sum()));
    for_each_step(pieces, |_| true, |step| step.append_diffs(&mut diffs));
    (Support::All, Values::Ulp(Ulp { diffs }))
}

/// Returns the changed elements by classes of the base, and their differences.
fn classed_differences(pieces: &[Piece<'_>], classes: Classes) -> (Support, Values) {
    let mut masks = [0; ROWS];
    let mut ranker = Ranker::new(pieces[0].dtype(), classes.bounds, &classes.changed);
    for_each_step(
        pieces,
        |_| true,
        |step| {
            step.changed(&mut masks);
            match step.dtype.bits() {
                16 => ranker.add(step.base, step.len, &masks, step.ahead, step.diff_of::<2>()),
                32 => ranker.add(step.base, step.len, &masks, step.ahead, step.diff_of::<4>()),
                _ => ranker.add(step.base, step.len, &masks, step.ahead, |at| step.diff(at)),
            }
        },
    );
    let (based, diffs) = ranker.finish();
    (Support::Based(based), Values::Ulp(Ulp { diffs }))
}

/// Returns the positions of the changed elements, after calling `f` for each.
fn changed<'a>(pieces: &[Piece<'a>], mut f: impl FnMut(&Step<'a>, usize)) -> Support {
    let mut positions = Vec::new();
    let mut masks = [0; ROWS];
    for_each_step(
        pieces,
        |_| true,
        |step| {
            if step.changed(&mut masks) {
                step.for_each_changed(&masks, |at| {
                    positions.push(step.position + at as u64);
                    f(&step, at);
                });
            }
        },
    );
    Support::Sparse(Sparse { positions })
}

/// Returns the scope of the block of a division's spans. `first`: number of the division's first tensor.
pub(in crate::compress) fn scope(first: u64, lens: &[u64], spans: &[Span]) -> Scope {
    let Span { input, start, len } = spans[0];
    let tensor = first + input as u64;
    if spans.len() == 1 && len < lens[input] {
        return Scope::Range { tensor, start, len };
    }
    whole(tensor, spans.len())
}

/// Whether a block of this codec is sent. A tensor without changes has one block, so that the update lists
/// its digests.
pub(in crate::compress) fn is_sent(block: &Block) -> bool {
    let is_empty = match &block.values {
        Values::Ulp(ulp) => ulp.diffs.is_empty(),
        Values::Planes(planes) => planes.bytes.is_empty(),
        _ => false,
    };
    !is_empty || !matches!(block.scope, Scope::Range { start: 1.., .. })
}
