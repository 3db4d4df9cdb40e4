//! Compression while an encoder writes.

use std::collections::VecDeque;
use std::ops::Range;

use super::codec::{Codec, runs};
use super::codecs::DigestKind;
use super::codecs::delta::Changes;
use super::codecs::quantize::GroupQuantizer;
use super::codecs::{TopK, natural};
use super::digests::{Digests, Expected, wanted};
use super::extents::{Extent, Sharing, extents};
use super::options::{Input, Options};
use super::settings::Selection;
use super::source::Source;
use super::update::{check, compress};
use crate::block::{BlockOptions, Later, LaterValues, PendingBlock, ValuesId};
use crate::codes::Scratch;
use crate::error::Result;
use crate::frame::{DeltaRuns, Manifest, TensorInfo};

/// Number of elements from which on a tensor's dense blocks are made when they are written.
const LARGE: u64 = 1 << 16;

/// Elements that are compressed at a time, for each thread: enough that all threads have work. The unit tests
/// compress few, to cut more.
const BATCH: u64 = if cfg!(test) { 10_000 } else { 4 << 20 };

/// How many times as many elements of deltas: a block has up to 16 Mi, and so each thread has one.
const DELTA_BATCHES: u64 = 4;

/// Bytes of blocks that are made ahead.
const AHEAD: u64 = 32 << 20;

/// The blocks of an update, made while an encoder takes them: an iterator for
/// [`Encoder::update`](crate::stream::Encoder::update). After an error it ends.
pub struct Pending<'a> {
    inputs: &'a [Input<'a>],
    codecs: &'a [Codec],
    options: Options,
    work: VecDeque<Work<'a>>,
    ready: VecDeque<PendingBlock<'a>>,
    expected: Expected,
}

/// A share of the blocks that are still to make.
enum Work<'a> {
    /// Blocks of inputs that are compressed together.
    Together(Range<usize>),
    /// Blocks of one input, whose values are made when they are written.
    Large(usize, Dense),
    /// Blocks of a run of deltas.
    Changes(Changes<'a>, BlockOptions),
}

/// Compresses the tensors of one update as [`compress()`] does without feedback, but only while
/// [`Encoder::update`](crate::stream::Encoder::update) takes the blocks.
///
/// The bytes are those of [`compress()`]. `inputs` and `codecs` are as there.
///
/// # Memory
/// As [`compress()`] for some tensors at a time: as many as have 4 Mi elements for each thread, at least one.
/// A codec with positions takes those that share a block, up to 16 Mi elements; one with
/// [`Selection::Global`] takes them all. Dense blocks of large tensors take nothing, and `delta` takes 16 Mi
/// elements for each thread.
///
/// # Errors
/// As [`compress()`]. The inputs and settings are checked at once; a value that is not finite is found when
/// its block is made.
pub fn pending<'a>(inputs: &'a [Input<'a>], codecs: &'a [Codec], options: &Options) -> Result<Pending<'a>> {
    check(inputs, codecs, options, false)?;
    for (input, codec) in inputs.iter().zip(codecs) {
        Source::new(input, codec.is_lossy(), options, None).map_err(|e| e.in_tensor(input.tensor))?;
    }
    let (ready, expected, work) = Default::default();
    let mut pending = Pending { inputs, codecs, options: options.clone(), work, ready, expected };
    let runs = runs(codecs, |i| inputs[i].outline());
    let is_global = |run: &Range<usize>| {
        matches!(codecs[run.start], Codec::TopK(TopK { selection: Selection::Global, .. }))
    };
    let global = runs.iter().position(is_global).zip(runs.iter().rposition(is_global));
    for (number, run) in runs.iter().enumerate() {
        match global {
            Some((first, last)) if number == first => {
                pending.work.push_back(Work::Together(run.start..runs[last].end));
            }
            Some((first, last)) if (first..=last).contains(&number) => {}
            _ => pending.add(run.clone())?,
        }
    }
    Ok(pending)
}

/// Returns the inputs that can be compressed apart from others: [`compress()`] of one range after another
/// makes the blocks of all. A sender with feedback then needs the residuals of one range at a time.
///
/// # Errors
/// As [`pending`].
pub fn batches(inputs: &[Input<'_>], codecs: &[Codec], options: &Options) -> Result<Vec<Range<usize>>> {
    let work = pending(inputs, codecs, options)?.work;
    let start = |work: &Work<'_>| match work {
        Work::Together(run) => Some(run.start),
        Work::Large(i, _) => Some(*i),
        // Without residuals, and thus with those before.
        Work::Changes(..) => None,
    };
    let mut from = 0;
    let ends = work.iter().filter_map(start).filter(|start| *start > 0).chain([inputs.len()]);
    Ok(ends.map(|end| std::mem::replace(&mut from, end)..end).collect())
}

impl Pending<'_> {
    /// Returns the runs that the update's header has, as [`deltas`](super::deltas) does for blocks that are
    /// made, for all inputs with a base. `digests`: those of the bases, if they are known.
    ///
    /// Where few elements change, the sum of the changes is computed while blocks are made, as long as these
    /// take at most 32 MiB: the update has it before them.
    ///
    /// # Errors
    /// As [`deltas`](super::deltas).
    pub fn deltas(&mut self, manifest: &Manifest, digests: &mut Digests) -> Result<DeltaRuns> {
        let is_summed = matches!(wanted(self.codecs), Some(DigestKind::Sum | DigestKind::Both));
        if is_summed && self.inputs.iter().any(|input| digests.known_sum(input.tensor).contains(&None)) {
            self.make_ahead(manifest.tensors());
        }
        digests.expected(manifest, self.inputs, self.codecs, &self.expected)
    }

    /// Makes the first blocks of deltas, and keeps the sums of the changes.
    fn make_ahead(&mut self, infos: &[TensorInfo]) {
        let mut room = AHEAD;
        for work in &mut self.work {
            let Work::Changes(changes, _) = work else { continue };
            let sums = &mut self.expected.changes;
            changes.make_ahead(infos, DELTA_BATCHES * batch_elements(), &mut room, sums);
        }
    }

    /// Divides a run of inputs into work.
    fn add(&mut self, run: Range<usize>) -> Result<()> {
        let (codec, inputs) = (self.codecs[run.start], &self.inputs[run.clone()]);
        if let Codec::Delta(delta) = codec {
            let changes = Changes::new(delta, inputs)?;
            self.expected.joined.extend(changes.joined());
            self.work.push_back(Work::Changes(changes, codec.block_options()));
            return Ok(());
        }
        if codec.shares_blocks() {
            self.work.push_back(Work::Together(run));
            return Ok(());
        }
        let lens: Vec<u64> = inputs.iter().map(|input| input.view.elements()).collect();
        let (most, mut batch, mut elements) = (batch_elements(), run.start..run.start, 0);
        // Neighbours that share a block stay together.
        let sharing = codec.quantizer().map_or(Sharing::All, GroupQuantizer::sharing);
        for extent in extents(&lens, self.options.block_len, sharing) {
            let tensors = extent.tensors();
            let (start, end) = (run.start + tensors.start, run.start + tensors.end);
            if start < batch.end {
                // More of the tensor before.
                continue;
            }
            let input = &self.inputs[start];
            let dense = Dense::of(&codec).filter(|d| lens[tensors.start] >= LARGE && d.divides(input));
            if (dense.is_some() || elements >= most) && !batch.is_empty() {
                self.work.push_back(Work::Together(batch.clone()));
                (batch, elements) = (start..start, 0);
            }
            match dense {
                Some(dense) => {
                    self.work.push_back(Work::Large(start, dense));
                    batch = end..end;
                }
                None => {
                    batch.end = end;
                    elements += lens[tensors].iter().sum::<u64>();
                }
            }
        }
        if !batch.is_empty() {
            self.work.push_back(Work::Together(batch));
        }
        Ok(())
    }

    /// Makes the next blocks; none after the last.
    fn make(&mut self) -> Result<()> {
        while self.ready.is_empty() {
            match self.work.front_mut() {
                None => return Ok(()),
                Some(Work::Together(run)) => {
                    let (inputs, codecs) = (&self.inputs[run.clone()], &self.codecs[run.clone()]);
                    let made = compress(inputs, codecs, &self.options, None)?;
                    self.ready = made.into_iter().map(PendingBlock::from).collect();
                    self.work.pop_front();
                }
                Some(&mut Work::Large(i, dense)) => {
                    self.ready = dense.blocks(&self.inputs[i], &self.codecs[i], &self.options).into();
                    self.work.pop_front();
                }
                Some(Work::Changes(changes, options)) => {
                    let made = changes.next_blocks(DELTA_BATCHES * batch_elements());
                    self.ready = made.into_iter().map(|block| (block, *options).into()).collect();
                    if self.ready.is_empty() {
                        self.work.pop_front();
                    }
                }
            }
        }
        Ok(())
    }
}

impl<'a> Iterator for Pending<'a> {
    type Item = Result<PendingBlock<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.make() {
            Ok(()) => self.ready.pop_front().map(Ok),
            Err(e) => {
                self.work.clear();
                Some(Err(e))
            }
        }
    }
}

/// Elements that are compressed at a time.
fn batch_elements() -> u64 {
    BATCH.saturating_mul(rayon::current_num_threads() as u64)
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
            Codec::Lossless(_) => Some(Self::Planes),
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
        extents(&lens, options.block_len, Sharing::None).into_iter().filter_map(block).collect()
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
                Self::Natural(seed) => natural::values(&mut [(range.clone(), &mut tensor)], seed, scratch),
                Self::Quantized(quantizer) => quantizer.values(&mut tensor, range.clone(), scratch),
            }
        };
        LaterValues::Made(id, Box::new(make))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::block::Scope;
    use crate::compress::{Feedback, deltas};
    use crate::frame::{TensorInfo, UpdateHeader};
    use crate::random::word;
    use crate::stream::{EncodeOptions, Encoder};
    use crate::tensor::{Dtype, TensorBuf};

    /// Elements of bf16 near one, of which about one in `every` has another last bit with another seed.
    fn tensor(seed: u64, every: u32, number: u64, len: u64) -> TensorBuf {
        let bits = |i: u64| {
            let bits = 0x3f00 | (word(1, number, i) & 0x80ff) as u16;
            bits ^ u16::from(word(2, number, i).is_multiple_of(every) && word(seed, number, i) & 1 == 1)
        };
        let data = (0..len).flat_map(|i| bits(i).to_le_bytes()).collect();
        TensorBuf::new(Dtype::Bf16, vec![len], data).unwrap()
    }

    /// Compares the bytes of blocks that are made batch by batch with those of blocks made at once.
    fn compare(tensors: &[[TensorBuf; 2]], codecs: &[Codec], options: &Options) {
        let names: Vec<String> = (0..tensors.len()).map(|i| i.to_string()).collect();
        let infos =
            tensors.iter().zip(&names).map(|([t, _], name)| TensorInfo::new(name, t.dtype(), t.shape()));
        let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
        let is_delta = codecs.iter().any(|codec| matches!(codec, Codec::Delta(_)));
        let input = |i: usize| {
            let [new, base] = &tensors[i];
            let base = is_delta.then(|| base.view());
            Input { tensor: i as u64, name: &names[i], view: new.view(), base }
        };
        let inputs: Vec<Input<'_>> = (0..tensors.len()).map(input).collect();
        let header = |runs| UpdateHeader::default().with_runs(runs);
        let [mut at_once, mut in_batches] = [Vec::new(), Vec::new()];
        let blocks = compress(&inputs, codecs, options, None).unwrap();
        let update = header(deltas(&manifest, &inputs, codecs, &blocks).unwrap());
        Encoder::new(EncodeOptions::default()).update(&mut at_once, &update, &manifest, &blocks).unwrap();
        let mut blocks = pending(&inputs, codecs, options).unwrap();
        assert!(blocks.work.len() > 1 || matches!(blocks.work[0], Work::Changes(..)));
        let update = header(blocks.deltas(&manifest, &mut Digests::default()).unwrap());
        Encoder::new(EncodeOptions::default()).update(&mut in_batches, &update, &manifest, blocks).unwrap();
        assert!(at_once == in_batches, "{}", codecs[0]);
        let [mut of_all, mut apart] = [Feedback::new(), Feedback::new()];
        let blocks = compress(&inputs, codecs, options, Some(&mut of_all)).unwrap();
        let ranges = batches(&inputs, codecs, options).unwrap().into_iter();
        let made = ranges.flat_map(|range| {
            compress(&inputs[range.clone()], &codecs[range], options, Some(&mut apart)).unwrap()
        });
        assert!(made.eq(blocks) && of_all == apart, "{} with feedback", codecs[0]);
    }

    #[test]
    fn batches_of_small_tensors_have_the_blocks_of_all() {
        let lens = [3000, 70_000, 0, 5000, 100].into_iter().chain((0..200).map(|i| i * 37 % 4500));
        let tensors: Vec<_> =
            (0..).zip(lens).map(|(i, len)| [3, 4].map(|seed| tensor(seed, 10, i, len))).collect();
        let options = Options::default().with_block_len(50_000);
        let codecs = Codec::NAMES.iter().map(|name| name.parse().unwrap());
        for codec in codecs.filter(|codec: &Codec| !codec.shares_blocks()) {
            compare(&tensors, &vec![codec; tensors.len()], &options);
        }
        let cycle = Codec::NAMES.iter().map(|name| name.parse().unwrap()).cycle();
        compare(&tensors, &cycle.take(tensors.len()).collect::<Vec<_>>(), &options);
    }

    #[test]
    fn tensors_share_blocks_of_few_elements_up_to_their_size() {
        let some = |i: u64| {
            let mut data = vec![0; 10 << 20];
            (0..500).for_each(|at| data[20_000 * at + 1] = (word(1, i, at as u64) % 60) as u8);
            TensorBuf::new(Dtype::Bf16, vec![5 << 20], data).unwrap()
        };
        let tensors: Vec<_> = (0..5).map(|i| [some(i), some(i)]).collect();
        for codec in ["topk:k=100", "topk:k=100,values=q4,scope=global", "threshold:at=1e-30", "sbc:k=100"] {
            let codecs = vec![codec.parse().unwrap(); 5];
            let input =
                |i: usize| Input { tensor: 3 + i as u64, name: "", view: tensors[i][0].view(), base: None };
            let inputs: Vec<_> = (0..5).map(input).collect();
            let blocks = compress(&inputs, &codecs, &Options::default(), None).unwrap();
            let scopes = blocks.iter().map(|coded| coded.block.scope);
            let expected = [(3, 3), (6, 2)].map(|(first, count)| Scope::Tensors { first, count });
            assert!(scopes.eq(expected), "{codec}");
            if !codec.ends_with("global") {
                compare(&tensors, &codecs, &Options::default());
            }
        }
    }

    #[test]
    fn deltas_know_their_digests_before_their_blocks() {
        // Two tensors fit in a block, with classes of the base or without.
        let tensors: Vec<_> =
            (0..9).map(|i| [3, 4].map(|seed| tensor(seed, 3 << (2 * i), i, 1_300_000))).collect();
        for codec in ["delta", "delta:positions=classed", "delta:values=overwrite"] {
            compare(&tensors, &vec![codec.parse().unwrap(); tensors.len()], &Options::default());
        }
        let view = |i: usize, version: usize| tensors[i][version].view();
        let input = |i| Input { tensor: i as u64, name: "", view: view(i, 0), base: Some(view(i, 1)) };
        let (inputs, codecs) = (Vec::from_iter((0..9).map(input)), vec!["delta".parse().unwrap(); 9]);
        let infos = (0..9).map(|i| TensorInfo::new(i.to_string(), Dtype::Bf16, [1_300_000]));
        let manifest = Manifest::new(infos.collect()).unwrap();
        let mut pending = pending(&inputs, &codecs, &Options::default()).unwrap();
        pending.deltas(&manifest, &mut Digests::default()).unwrap();
        // Three tensors share a block. Those of the first change too many elements.
        assert!(pending.expected.changes.keys().eq(&[3, 4, 5, 6, 7, 8]));
    }
}
