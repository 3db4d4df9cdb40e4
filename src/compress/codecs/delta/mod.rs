//! Lossless changes of a base.

pub(in crate::compress) mod classes;
mod pieces;

use std::collections::{BTreeMap, VecDeque};

use rayon::prelude::*;

use super::lossless::Elements;
use crate::arch::pages;
use crate::block::{Block, Planes, Positions, Ranker, Scope, Sparse, Support, Ulp, Values};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::extents::{Span, whole};
use crate::compress::options::Input;
use crate::compress::settings::{Setting, Visitor};
use crate::digest::{SumChange, SumDigest};
use crate::error::Result;
use crate::frame::TensorInfo;
use crate::limits::in_memory;
use classes::{Classes, Places};
use pieces::{Changed, Piece, Step, for_each_step};
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
    /// Number of the first tensor.
    first: u64,
    tensors: Vec<Piece<'a>>,
    divided: VecDeque<Division>,
    /// Blocks that are made already.
    made: VecDeque<Block>,
}

/// What a block has: its scope, and the spans of tensors.
type Division = (Scope, Vec<Span>);

/// A block, and the sums of the changes of its spans, if they are known.
struct Made {
    block: Block,
    sums: Option<Vec<(Span, SumDigest)>>,
}

/// Up to one changed element in this many, their sum takes less time than that of all elements: the changes
/// are at hand.
const FEW: u64 = 20;

/// About the bytes of a changed element of a block.
const CHANGE_BYTES: u64 = 16;

impl<'a> Changes<'a> {
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if a tensor has no base, or one of another shape or type.
    pub(in crate::compress) fn new(codec: Delta, inputs: &[Input<'a>]) -> Result<Self> {
        let tensors = inputs.iter().map(Piece::whole).collect::<Result<Vec<_>>>()?;
        let lens: Vec<u64> = tensors.iter().map(|tensor| tensor.len).collect();
        let first = inputs.first().map_or(0, |input| input.tensor);
        let divided = inputs.iter().take(1).flat_map(|input| {
            let divided = division(input.view.dtype(), &lens).into_iter();
            divided.map(|spans| (scope(first, &lens, &spans), spans))
        });
        Ok(Self { codec, first, divided: divided.collect(), tensors, made: VecDeque::new() })
    }

    fn pieces(&self, spans: &[Span]) -> Vec<Piece<'a>> {
        spans.iter().map(|&span| self.tensors[span.input].part(span)).collect()
    }

    /// Returns the tensors that will be in one block, classed by the base, with the tensor before them: they
    /// share its digest.
    pub(in crate::compress) fn joined(&self) -> Vec<u64> {
        let is_based = |(scope, spans): &&Division| {
            scope.tensors() > 1 && matches!(self.codec.places(&self.pieces(spans)), Some(Places::Classes(_)))
        };
        let based = self.divided.par_iter().filter(is_based);
        based.flat_map_iter(|(scope, _)| (scope.first()..).take(in_memory(scope.tensors())).skip(1)).collect()
    }

    /// Makes the next blocks: as many as span `elements`, and at least one; none after the last.
    pub(in crate::compress) fn next_blocks(&mut self, elements: u64) -> Vec<Block> {
        let mut made: Vec<Block> = self.made.drain(..).collect();
        while made.is_empty() && !self.divided.is_empty() {
            let next = self.next_divisions(elements);
            made = self.make(&next, None).into_iter().map(|made| made.block).collect();
            made.retain(is_sent);
        }
        made
    }

    /// Makes the next blocks ahead, as long as they fit in about `room` bytes, which are taken from it, and
    /// adds the sums of the changes of each tensor whose blocks are all made and change few elements to
    /// `sums`. An update has digests before its blocks: the changes are found once for both so.
    ///
    /// `infos`: those of the manifest; `elements`: how many to make at a time.
    pub(in crate::compress) fn make_ahead(
        &mut self,
        infos: &[TensorInfo],
        elements: u64,
        room: &mut u64,
        sums: &mut BTreeMap<u64, SumDigest>,
    ) {
        let infos = usize::try_from(self.first).ok().and_then(|first| infos.get(first..)).unwrap_or(&[]);
        // For each tensor the elements whose changes are known, and their sum.
        let mut known: BTreeMap<usize, (u64, SumDigest)> = BTreeMap::new();
        while !self.divided.is_empty() {
            let mut next = self.next_divisions(elements);
            let mut left = *room;
            let fits = next.iter().take_while(|(_, spans)| {
                let after = left.checked_sub(CHANGE_BYTES * self.expected(spans));
                left = after.unwrap_or(0);
                after.is_some()
            });
            let fitting = fits.count();
            let is_full = fitting < next.len();
            next.drain(fitting..).rev().for_each(|division| self.divided.push_front(division));
            for Made { block, sums } in self.make(&next, Some(infos)) {
                for (span, sum) in sums.into_iter().flatten() {
                    let known = known.entry(span.input).or_default();
                    *known = (known.0 + span.len, known.1 + sum);
                }
                // There may be more changes than the sample had.
                *room = room.saturating_sub(CHANGE_BYTES.saturating_mul(values(&block)));
                self.made.extend(Some(block).filter(is_sent));
            }
            if is_full || *room == 0 {
                break;
            }
        }
        for (input, (elements, sum)) in known {
            if elements == self.tensors[input].len {
                sums.insert(self.first + input as u64, infos[input].weighted(sum));
            }
        }
    }

    /// Takes the next divisions: as many as span `elements`, and at least one.
    fn next_divisions(&mut self, elements: u64) -> Vec<Division> {
        let mut sum = 0u64;
        let fits = |(_, spans): &&Division| {
            let is_first = sum == 0;
            sum = sum.saturating_add(spans.iter().map(|span| span.len.max(1)).sum());
            is_first || sum <= elements
        };
        let count = self.divided.iter().take_while(fits).count();
        self.divided.drain(..count).collect()
    }

    /// Makes blocks, with the sums of their changes if they are few and `infos` are given: those of the run's
    /// tensors.
    fn make(&self, divisions: &[Division], infos: Option<&[TensorInfo]>) -> Vec<Made> {
        let made = divisions.par_iter().map(|(scope, spans)| {
            let pieces = self.pieces(spans);
            let len: u64 = spans.iter().map(|span| span.len).sum();
            let infos = infos.filter(|_| self.expected(spans) * FEW <= len);
            let noted = infos.and_then(|infos| {
                let infos = infos.get(spans[0].input..)?;
                pieces.iter().zip(infos).map(|(piece, info)| piece.no_change(info)).collect()
            });
            let mut sums: Vec<SumChange> = noted.unwrap_or_default();
            let (support, values) = self.codec.changes(&pieces, &mut sums);
            let is_noted = sums.len() == spans.len();
            let sums = is_noted.then(|| spans.iter().copied().zip(sums.into_iter().map(SumChange::finish)));
            Made {
                block: Block { scope: *scope, add: false, support, values },
                sums: sums.map(Iterator::collect),
            }
        });
        made.collect()
    }

    /// Returns about the number of changed elements of a block.
    fn expected(&self, spans: &[Span]) -> u64 {
        let sampled = SAMPLED_KIB / spans.len();
        self.pieces(spans).iter().map(|piece| piece.expected(sampled)).sum()
    }
}

/// KiB of a block in which changes are counted, to tell about how many there are.
const SAMPLED_KIB: usize = 64;

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

    /// Returns the changes of consecutive tensors, or of a part of one, and adds them to the sums of the
    /// changes of the pieces, if there are any. Without positions, no changes are added, and `sums` is empty
    /// afterwards.
    fn changes(&self, pieces: &[Piece<'_>], sums: &mut Vec<SumChange>) -> (Support, Values) {
        match (self.values, self.places(pieces)) {
            (Change::Ulp, Some(Places::Classes(classes))) => classed_differences(pieces, classes, sums),
            (Change::Ulp, Some(Places::All)) => {
                sums.clear();
                all_differences(pieces)
            }
            (Change::Ulp, Some(Places::Changed) | None) => {
                let mut diffs = Vec::new();
                let support =
                    changed(pieces, sums, |step, changed| step.append_diffs_at(changed, &mut diffs));
                (support, Values::Ulp(Ulp { diffs }))
            }
            (Change::Overwrite, _) => {
                let dtype = pieces[0].dtype();
                let mut elements = Elements::new(dtype);
                let support = match dtype.bits() >= 8 && classes::most_change(pieces) {
                    true => {
                        sums.clear();
                        for_each_step(pieces, |_| true, |step| elements.bytes.extend_from_slice(step.new));
                        Support::All
                    }
                    false => changed(pieces, sums, |step, changed| {
                        changed.iter().for_each(|&at| elements.push(step.new_bits(at.into())));
                    }),
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
fn classed_differences(pieces: &[Piece<'_>], classes: Classes, sums: &mut [SumChange]) -> (Support, Values) {
    let (mut room, mut diffs) = (Changed::new(), Vec::new());
    let mut ranker = Ranker::new(pieces[0].dtype(), classes.bounds, &classes.changed);
    for_each_step(
        pieces,
        |_| true,
        |step| {
            let changed = step.changed(&mut room);
            diffs.clear();
            step.append_diffs_at(changed, &mut diffs);
            if let Some(sum) = sums.get_mut(step.piece) {
                step.note(changed, sum);
            }
            ranker.add(step.base, step.len, changed, &diffs, step.ahead);
        },
    );
    let (based, diffs) = ranker.finish();
    (Support::Based(based), Values::Ulp(Ulp { diffs }))
}

/// Returns the positions of the changed elements, after calling `f` with those of each step.
fn changed<'a>(
    pieces: &[Piece<'a>],
    sums: &mut [SumChange],
    mut f: impl FnMut(&Step<'a>, &[u16]),
) -> Support {
    let mut positions = Vec::new();
    let mut room = Changed::new();
    for_each_step(
        pieces,
        |_| true,
        |step| {
            let changed = step.changed(&mut room);
            positions.extend(changed.iter().map(|&at| step.position + u64::from(at)));
            if let Some(sum) = sums.get_mut(step.piece) {
                step.note(changed, sum);
            }
            f(&step, changed);
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
    values(block) > 0 || !matches!(block.scope, Scope::Range { start: 1.., .. })
}

/// Number of differences of a block, or of bytes of elements; many of values that no delta has.
fn values(block: &Block) -> u64 {
    match &block.values {
        Values::Ulp(ulp) => ulp.diffs.len() as u64,
        Values::Planes(planes) => planes.bytes.len() as u64,
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Dtype, TensorBuf};

    #[test]
    fn blocks_made_ahead_are_those_made_later() {
        const LARGE: usize = 17 << 20;
        // Changed elements of each tensor. The second one has two blocks, the last two share one.
        let lens = [1000, LARGE, 5000, 100];
        let changed =
            [vec![7], [0].into_iter().chain((16 << 20..).take(40)).collect(), (0..5000).collect(), vec![]];
        let tensors = lens.iter().zip(&changed).map(|(&len, changed)| {
            [0, 1].map(|version| {
                let mut data = vec![63; 2 * len];
                changed.iter().for_each(|at: &usize| data[2 * at] += version);
                TensorBuf::new(Dtype::Bf16, vec![len as u64], data).unwrap()
            })
        });
        let tensors: Vec<[TensorBuf; 2]> = tensors.collect();
        let infos: Vec<TensorInfo> = (0..5)
            .map(|i| TensorInfo::new(i.to_string(), Dtype::Bf16, [*lens.get(i.max(1) - 1).unwrap() as u64]))
            .collect();
        let inputs = tensors.iter().zip(1..).map(|([base, new], tensor)| Input {
            tensor,
            name: "",
            view: new.view(),
            base: Some(base.view()),
        });
        let inputs: Vec<Input<'_>> = inputs.collect();
        let changes = || Changes::new(Delta::default(), &inputs).unwrap();
        let later = changes().next_blocks(u64::MAX);
        assert_eq!(later.len(), 4);
        // In a sample of 32 Ki, one change stands for 512 in the first block of the large tensor, and 40 for
        // 1280 in the second.
        let first = CHANGE_BYTES * (1 + 512);
        for (room, summed) in [(0, vec![]), (16, vec![1]), (first, vec![1]), (1 << 20, vec![1, 2])] {
            let (mut early, mut left, mut sums) = (changes(), room, BTreeMap::new());
            early.make_ahead(&infos, 1 << 20, &mut left, &mut sums);
            assert!(sums.keys().eq(&summed), "{room}: {sums:?}");
            for (&tensor, &sum) in &sums {
                let info = &infos[tensor as usize];
                let [base, new] =
                    tensors[tensor as usize - 1].each_ref().map(|t| info.sum_digest(t.view()).unwrap());
                assert_eq!(base + sum, new);
            }
            let made: Vec<Block> =
                std::iter::from_fn(|| Some(early.next_blocks(1)).filter(|made| !made.is_empty()))
                    .flatten()
                    .collect();
            assert!(made == later, "{room}");
        }
        // Shapes of other tensors.
        let mut sums = BTreeMap::new();
        changes().make_ahead(&infos[1..], 1 << 20, &mut (1 << 30), &mut sums);
        assert!(sums.is_empty());
    }
}
