//! Lossless changes of a base.

pub(in crate::compress) mod classes;
mod pieces;

use std::collections::VecDeque;

use rayon::prelude::*;

use super::lossless::Elements;
use crate::arch::pages;
use crate::block::{Block, Planes, Positions, ROWS, Ranker, Scope, Sparse, Support, Ulp, Values};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::extents::{Span, whole};
use crate::compress::options::Input;
use crate::compress::settings::{Setting, Visitor};
use crate::error::Result;
use crate::limits::in_memory;
use classes::{Classes, Places};
use pieces::{Piece, Step, for_each_step};
pub(in crate::compress) use pieces::{RUN_BYTES, division};

/// `delta`: sends the elements that differ from a base, without loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delta {
    /// `values`: what is sent of a changed element. Default: `ulp`.
    pub values: Change,
    /// `positions`: the encoding of positions. Default: `auto`.
    pub positions: Positions,
    /// `digest`: digests of the tensors before and after. Default: `sum`.
    pub digest: DigestKind,
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

/// The digests that an update has for each tensor that it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DigestKind {
    /// Sum digests (spec, section 6.1): they add up over the shards of a tensor, and that of a result is that
    /// of the base and the changes. They detect accidents.
    Sum,
    /// Hashes by BLAKE3 (spec, section 6), which detect changes on purpose, too.
    Blake3,
    /// Both.
    Both,
}

const VALUES: Setting<Change> =
    Setting::one_of("values", &[(Change::Ulp, "ulp"), (Change::Overwrite, "overwrite")]).unless(Change::Ulp);

const DIGEST: Setting<DigestKind> = Setting::one_of(
    "digest",
    &[(DigestKind::Sum, "sum"), (DigestKind::Blake3, "blake3"), (DigestKind::Both, "both")],
)
.unless(DigestKind::Sum);

impl Default for Delta {
    fn default() -> Self {
        Self { values: Change::Ulp, positions: Positions::Auto, digest: DigestKind::Sum }
    }
}

impl Compressor for Delta {
    const NAME: &'static str = "delta";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.visit(&VALUES, &mut self.values)?;
        visitor.positions(&mut self.positions)?;
        visitor.visit(&DIGEST, &mut self.digest)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        Ok(Changes::new(*self, run.inputs)?.next_blocks(u64::MAX))
    }
}

/// The blocks of a run of tensors that are still to make.
pub(in crate::compress) struct Changes<'a> {
    codec: Delta,
    tensors: Vec<Piece<'a>>,
    divided: VecDeque<(Scope, Vec<Span>)>,
}

impl<'a> Changes<'a> {
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if a tensor has no base, or one of another shape or type.
    pub(in crate::compress) fn new(codec: Delta, inputs: &[Input<'a>]) -> Result<Self> {
        let tensors = inputs.iter().map(Piece::whole).collect::<Result<Vec<_>>>()?;
        let lens: Vec<u64> = tensors.iter().map(|tensor| tensor.len).collect();
        let divided = inputs.iter().take(1).flat_map(|first| {
            let divided = division(first.view.dtype(), &lens).into_iter();
            divided.map(|spans| (scope(first.tensor, &lens, &spans), spans))
        });
        Ok(Self { codec, divided: divided.collect(), tensors })
    }

    fn pieces(&self, spans: &[Span]) -> Vec<Piece<'a>> {
        spans.iter().map(|&span| self.tensors[span.input].part(span)).collect()
    }

    /// Returns the tensors that will be in one block, classed by the base, with the tensor before them: they
    /// share its digest.
    pub(in crate::compress) fn joined(&self) -> Vec<u64> {
        let is_based = |(scope, spans): &&(Scope, Vec<Span>)| {
            scope.tensors() > 1 && matches!(self.codec.places(&self.pieces(spans)), Some(Places::Classes(_)))
        };
        let based = self.divided.par_iter().filter(is_based);
        based.flat_map_iter(|(scope, _)| (scope.first()..).take(in_memory(scope.tensors())).skip(1)).collect()
    }

    /// Makes the next blocks: as many as span `elements`, and at least one; none after the last.
    pub(in crate::compress) fn next_blocks(&mut self, elements: u64) -> Vec<Block> {
        let mut made = Vec::new();
        while made.is_empty() && !self.divided.is_empty() {
            let mut sum = 0u64;
            let fits = |(_, spans): &&(Scope, Vec<Span>)| {
                let is_first = sum == 0;
                sum = sum.saturating_add(spans.iter().map(|span| span.len.max(1)).sum());
                is_first || sum <= elements
            };
            let count = self.divided.iter().take_while(fits).count();
            let next: Vec<_> = self.divided.drain(..count).collect();
            let blocks = next.into_par_iter().map(|(scope, spans)| {
                let (support, values) = self.codec.changes(&self.pieces(&spans));
                Block { scope, add: false, support, values }
            });
            made = blocks.collect();
            made.retain(is_sent);
        }
        made
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

    /// Returns how positions of differences are sent.
    fn places(&self, pieces: &[Piece<'_>]) -> Option<Places> {
        self.classes().map(|forced| classes::choose(&classes::count_keys(pieces), forced))
    }

    /// Returns the changes of consecutive tensors, or of a part of one.
    fn changes(&self, pieces: &[Piece<'_>]) -> (Support, Values) {
        match (self.values, self.places(pieces)) {
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
