//! From device tensors to blocks.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use gcodec::block::{Block, WireBlock};
use gcodec::compress::device::{
    self, Fitting, Found, Kept, Least, MomentQuery, Outline, Search as Task, Sent, Step,
};
use gcodec::compress::{Chosen, Feedback, NonFinite as NonFiniteRule, Options, Selection};
use gcodec::error::InputErrorKind;
use gcodec::{Codec, Dtype, TensorBuf};

use crate::dense::{Dense, Outcome, Source};
use crate::device::{Device, Event, Kernel, Memory, Pinned, Quiet};
use crate::error::{Error, Result, TensorError};
use crate::plan::{
    Ask, BINS, CANDIDATES, CHUNK, Choice, FROM, FROM_SAMPLE, KEEP, LOWEST, Moments, NonFinite, Pack, Piece,
    SAMPLE, SAMPLES, SIDES, Search, Select, State, Subtract, TENSORS, THREADS, TILE, Taken, WARPS, bytes_of,
    items_of,
};
use crate::rice::{Coding, Tables};
use crate::tensor::{DeviceTensor, Stream};

/// A tensor to compress.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Its number in the manifest.
    pub tensor: u64,
    /// Its name in the manifest, by which its residual is known.
    pub name: &'a str,
    /// Its elements.
    pub data: DeviceTensor<'a>,
}

/// The most elements of a piece: positions in a piece are 32 bits.
const PIECE: u64 = 1 << 31;
/// The most rows of blocks that a launch has.
const ROWS: usize = 65_535;
/// More bits of a sample's place than there are samples.
const NO_SAMPLE: u32 = u32::MAX;
/// Ends the name of a state of SIDCo's stage rule among residuals.
const STAGES: &str = "#sidco";

/// Whether a [`Compressor`] takes this codec. Others are for the host.
pub fn takes(codec: &Codec) -> bool {
    let outline = Outline { tensor: 0, dtype: Dtype::F32, len: 1 };
    device::dense::takes(codec) || device::searches(&[outline], &[*codec]).is_ok()
}

/// Selects on a device, in memory of its own that it keeps from update to update.
///
/// With [`Compressor::compress_with_feedback`] it holds the residuals of error feedback too, on the device: two 32-bit floats for each
/// element, as an update that fails has to leave them as they were; and, on the host, the state of SIDCo's rule of the authors.
#[derive(Debug)]
pub struct Compressor {
    device: Device,
    work: Memory,
    /// Positions of what was kept, then the values.
    out: Memory,
    /// What goes to the host, where that is not all of it.
    packed: Memory,
    sent: Memory,
    dense: Dense,
    up: Pinned,
    down: Pinned,
    /// The last work that nobody waited for.
    last: Event,
    residuals: BTreeMap<String, Residual>,
    /// By tensor, the state of SIDCo's stage rule.
    stages: BTreeMap<String, [i64; 3]>,
    /// The residuals that the last update changed, and whether each was known before.
    changed: Vec<(String, bool)>,
    /// The states of the stage rule before it.
    stages_before: BTreeMap<String, [i64; 3]>,
    piece_len: u64,
    zeros_before: u64,
}

#[derive(Debug)]
struct Residual {
    shape: Vec<u64>,
    /// Whether there are values: not before the first update. No residual is not the same as zeros, which make 0 of -0.
    known: bool,
    values: Memory,
    /// Where the next sums go.
    spare: Memory,
}

impl Compressor {
    /// A compressor without residuals.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call).
    pub fn new(device: &Device) -> Result<Self> {
        let _current = device.enter()?;
        Ok(Self {
            device: device.clone(),
            work: Memory::new(device, 0)?,
            out: Memory::new(device, 0)?,
            packed: Memory::new(device, 0)?,
            sent: Memory::new(device, 0)?,
            dense: Dense::new(device)?,
            up: Pinned::new(device, 0)?,
            down: Pinned::new(device, 0)?,
            last: Event::new(device)?,
            residuals: BTreeMap::new(),
            stages: BTreeMap::new(),
            changed: Vec::new(),
            stages_before: BTreeMap::new(),
            piece_len: PIECE,
            zeros_before: 0,
        })
    }

    /// Sets how many elements of a tensor are seen as one piece, rounded up to 8192, at most 2^31, which is what it is without.
    /// It changes nothing of the result.
    #[must_use]
    pub fn with_piece_len(mut self, elements: u64) -> Self {
        self.piece_len = elements.clamp(TILE, PIECE).next_multiple_of(TILE);
        self
    }

    /// Lets an update of one tensor take so many of its first elements for zeros, rounded down to 8192, and not read them. For tests:
    /// positions beyond 2^32 are reached where 2^32 elements take too long to read.
    #[doc(hidden)]
    #[must_use]
    pub fn with_zeros_before(mut self, elements: u64) -> Self {
        self.zeros_before = elements / TILE * TILE;
        self
    }

    /// Sets what is added to an element's number where a word is drawn for it: a test's way to numbers beyond 2^32.
    #[doc(hidden)]
    #[must_use]
    pub fn with_first_element(mut self, number: u64) -> Self {
        self.dense.first = number;
        self
    }

    /// The blocks that [`gcodec::compress::compress()`] makes of these tensors.
    ///
    /// `inputs`: in ascending order of their numbers; `codecs`: one for each, of `topk`, `stc`, `threshold`, `sbc`, `sidco`, `natural`,
    /// `qsgd`, `dither`, `terngrad`, `int8` and `sign`. Work is put into `stream`; when this returns, the tensors are no longer used.
    ///
    /// # Errors
    /// [`Error::Codec`](crate::Error::Codec) as [`gcodec::compress::compress()`], and for other codecs; [`Error::Tensor`](crate::Error::Tensor), [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Call`](crate::Error::Call).
    pub fn compress(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
    ) -> Result<Vec<Block>> {
        self.run(inputs, codecs, options, stream, false)
    }

    /// As [`Self::compress`], with error feedback: what is compressed is the sum of the tensor and of what earlier calls left over,
    /// and what this call leaves over is kept for the next.
    ///
    /// # Errors
    /// As [`Self::compress`]; [`Error::Codec`](crate::Error::Codec) for a residual of another shape, and for two tensors of one name. Residuals are then as
    /// they were before.
    pub fn compress_with_feedback(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
    ) -> Result<Vec<Block>> {
        self.run(inputs, codecs, options, stream, true)
    }

    /// The same blocks, for [`Encoder::update_wire`](gcodec::stream::Encoder::update_wire), with as much of them in wire form as the device writes:
    /// the positions of codecs whose `positions` are `rice` or `rice-one`, but for powers of two, which are drawn by position.
    /// Those positions do not cross the bus, but the bytes that a frame has of them do. All else are parts as [`Self::compress`] makes
    /// them.
    ///
    /// With the codecs' own [positions](Codec::positions) as options the frames are byte for byte those of the blocks of
    /// [`Self::compress`].
    ///
    /// # Errors
    /// As [`Self::compress`].
    pub fn compress_wire(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
    ) -> Result<Vec<WireBlock<'static>>> {
        self.run(inputs, codecs, options, stream, false)
    }

    /// As [`Self::compress_wire`], with error feedback as [`Self::compress_with_feedback`].
    ///
    /// # Errors
    /// As [`Self::compress_with_feedback`].
    pub fn compress_wire_with_feedback(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
    ) -> Result<Vec<WireBlock<'static>>> {
        self.run(inputs, codecs, options, stream, true)
    }

    fn run<T: Made>(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
        feedback: bool,
    ) -> Result<Vec<T>> {
        let outlines: Vec<Outline> = inputs
            .iter()
            .map(|i| Outline { tensor: i.tensor, dtype: i.data.dtype(), len: i.data.elements() })
            .collect();
        let dense_tasks = device::dense::tasks(&outlines, codecs, options)?;
        let (dense, sparse): (Vec<usize>, Vec<usize>) =
            (0..inputs.len()).partition(|&i| device::dense::takes(&codecs[i]));
        let selected: Vec<Input<'_>> = sparse.iter().map(|&i| inputs[i]).collect();
        let selected_outlines: Vec<Outline> = sparse.iter().map(|&i| outlines[i]).collect();
        let selectors: Vec<Codec> = sparse.iter().map(|&i| codecs[i]).collect();
        let tasks = device::searches(&selected_outlines, &selectors)?;
        inputs.iter().try_for_each(|i| i.data.check_device(&self.device))?;
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()?;
        if feedback {
            // The spare memory is about to be written to.
            self.changed.clear();
            self.stages_before.clone_from(&self.stages);
            self.prepare_residuals(inputs)?;
        }
        let mut plan = self.plan(&selected, &tasks, options, feedback)?;
        if T::WIRE {
            let joined = device::joined(&selected_outlines, &selectors)?;
            let pieces = plan.pieces_of_inputs(selected.len());
            plan.coding = Coding::new(&selected_outlines, &selectors, &joined, &pieces);
        }
        let sources = self.sources(inputs, feedback);
        let quiet = Quiet { device: &device, stream };
        let begun = self.dense.begin(&device, dense_tasks, &sources, options, stream)?;
        let mut found = self.select(&mut plan, selected.len(), stream)?;
        let mut blocks = Vec::new();
        let mut not_finite = None;
        if let Some(begun) = begun {
            match self.dense.finish(&device, &begun, stream)? {
                Outcome::Blocks(of_dense) => blocks.extend(of_dense.into_iter().map(T::from)),
                Outcome::NotFinite { task } => {
                    not_finite = Some(self.dense.first_non_finite(&device, &begun, task, &sources, stream)?);
                }
            }
        }
        // Which error the library would have found first: choices among all tensors are its first step.
        let rank = |input: usize| match codecs[input] {
            Codec::TopK { selection: Selection::Global, .. } => {
                (codecs.iter().position(|c| *c == codecs[input]), input)
            }
            _ => (Some(codecs.len()), input),
        };
        match (found.not_finite().min_by_key(|&i| rank(sparse[i])), not_finite) {
            (Some(i), Some((input, error))) if rank(input) < rank(sparse[i]) => return Err(error),
            (Some(i), _) => return Err(self.non_finite(&plan, i, inputs[sparse[i]].tensor, stream)?),
            (None, Some((_, error))) => return Err(error),
            (None, None) => {}
        }
        if !sparse.is_empty() {
            let (of_sparse, sent) = T::make(&selected_outlines, &selectors, &mut found)?;
            blocks.extend(of_sparse);
            if !dense.is_empty() {
                // Stable: blocks of one tensor are all of one kind, and in order.
                blocks.sort_by_key(T::first_tensor);
            }
            if feedback {
                self.subtract(&plan, &found, &sent, stream)?;
            }
        }
        if feedback {
            for input in inputs {
                if let Some(residual) = self.residuals.get_mut(input.name) {
                    std::mem::swap(&mut residual.values, &mut residual.spare);
                    self.changed.push((input.name.to_owned(), std::mem::replace(&mut residual.known, true)));
                }
            }
            for Fits { input, fitting, .. } in &plan.fits {
                let kept = found.found[*input].positions().len() as u64;
                if let Some(state) = fitting.adaptation(kept) {
                    self.stages.insert(selected[*input].name.to_owned(), state);
                }
            }
        }
        quiet.done();
        Ok(blocks)
    }

    /// Makes the residuals what they were before the last call of [`Self::compress_with_feedback`], if that succeeded: for an update
    /// whose other part, on the host for instance, failed. A second call does nothing.
    pub fn undo(&mut self) {
        for (name, known) in self.changed.drain(..) {
            if let Some(residual) = self.residuals.get_mut(&name) {
                std::mem::swap(&mut residual.values, &mut residual.spare);
                residual.known = known;
            }
        }
        self.stages.clone_from(&self.stages_before);
    }

    /// Quantises, without error feedback and without a copy of what comes of it to the host, and waits: for measurements.
    ///
    /// # Errors
    /// As [`Self::compress`], but for elements that are not finite.
    #[doc(hidden)]
    pub fn quantise_only(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
    ) -> Result<()> {
        let outlines: Vec<Outline> = inputs
            .iter()
            .map(|i| Outline { tensor: i.tensor, dtype: i.data.dtype(), len: i.data.elements() })
            .collect();
        let tasks = device::dense::tasks(&outlines, codecs, options)?;
        inputs.iter().try_for_each(|i| i.data.check_device(&self.device))?;
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()?;
        let quiet = Quiet { device: &device, stream };
        self.dense.begin(&device, tasks, &self.sources(inputs, false), options, stream)?;
        device.synchronize(stream)?;
        quiet.done();
        Ok(())
    }

    /// The inputs with the addresses of their residuals.
    fn sources<'a>(&self, inputs: &[Input<'a>], feedback: bool) -> Vec<Source<'a>> {
        let residual = |input: &Input<'_>| self.residuals.get(input.name).filter(|_| feedback);
        let source = |input: &Input<'a>| Source {
            input: *input,
            residual: residual(input).filter(|r| r.known).map_or(0, |r| r.values.address()),
            after: residual(input).map_or(0, |r| r.spare.address()),
        };
        inputs.iter().map(source).collect()
    }

    /// Gives every input a place for its residual.
    fn prepare_residuals(&mut self, inputs: &[Input<'_>]) -> Result<()> {
        let mut names = HashSet::new();
        if !inputs.iter().all(|i| names.insert(i.name)) {
            return Err(wrong(InputErrorKind::DuplicateName));
        }
        for input in inputs {
            let residual = self.residuals.get(input.name);
            if residual.is_some_and(|r| r.known && r.shape != input.data.shape()) {
                return Err(wrong(InputErrorKind::Mismatch { what: "shapes of tensor and residual" }));
            }
        }
        let fits = |i: &Input<'_>| self.residuals.get(i.name).is_some_and(|r| r.shape == i.data.shape());
        let new: Vec<_> = inputs.iter().filter(|i| !fits(i)).collect();
        for input in new {
            let residual = self.new_residual(input.data.shape())?;
            self.residuals.insert(input.name.to_owned(), residual);
        }
        Ok(())
    }

    fn new_residual(&self, shape: &[u64]) -> Result<Residual> {
        let elements = gcodec::tensor::elements(shape).ok_or(TensorError::Shape)?;
        let bytes = elements.checked_mul(4).ok_or(TensorError::Shape)?;
        let (values, spare) = (Memory::new(&self.device, bytes)?, Memory::new(&self.device, bytes)?);
        Ok(Residual { shape: shape.to_vec(), known: false, values, spare })
    }

    fn plan(&self, inputs: &[Input<'_>], tasks: &[Task], options: &Options, feedback: bool) -> Result<Plan> {
        let mut plan = Plan::default();
        for task in tasks {
            let among = match task {
                Task::Largest { among, .. } => among.as_slice(),
                Task::BothSides { of, .. } | Task::AtLeast { of, .. } | Task::Fitted { of, .. } => {
                    std::slice::from_ref(of)
                }
            };
            let (first_piece, first_tile) = (plan.pieces.len(), plan.tiles);
            let mut elements = 0;
            for &input in among {
                let Input { name, data, .. } = &inputs[input];
                let residual = self.residuals.get(*name).filter(|_| feedback);
                let size = u64::from(data.dtype().bits() / 8);
                for start in (0..data.elements()).step_by(self.piece_len as usize) {
                    let len = self.piece_len.min(data.elements() - start);
                    plan.pieces.push(Piece {
                        data: data.address() + size * start,
                        residual: residual.filter(|r| r.known).map_or(0, |r| r.values.address() + 4 * start),
                        after: residual.map_or(0, |r| r.spare.address() + 4 * start),
                        len,
                        start: elements,
                        dtype: data.dtype().id().into(),
                        search: plan.searches.len() as u32,
                        first_tile: plan.tiles as u32,
                        zero_non_finite: u32::from(options.non_finite == NonFiniteRule::Zero),
                    });
                    plan.places.push(Place { input, start });
                    plan.tiles += len.div_ceil(TILE);
                    elements += len;
                }
            }
            if let Task::Fitted { of, fitting } = task {
                let mut fitting = fitting.clone();
                if let Some(state) = self.stages.get(inputs[*of].name).filter(|_| feedback) {
                    fitting.set_adaptation(*state);
                }
                let search = (elements > 0).then_some(plan.searches.len());
                plan.fits.push(Fits { input: *of, search, fitting });
            }
            if elements == 0 {
                if let Task::BothSides { of, .. } = task {
                    plan.no_elements.push(*of);
                }
                continue;
            }
            let mut search = Search {
                elements,
                candidates: plan.candidates,
                sample: NO_SAMPLE,
                least: LOWEST,
                first_piece: first_piece as u32,
                pieces: (plan.pieces.len() - first_piece) as u32,
                first_tile: first_tile as u32,
                tiles: (plan.tiles - first_tile) as u32,
                sides: 1,
                ..Search::default()
            };
            let mut chunks = 0;
            match task {
                Task::AtLeast { at, .. } => {
                    (search.least, search.exact, search.k) = (at.to_bits(), 1, elements);
                    search.capacity = elements.min(elements / 16 + (1 << 16));
                }
                Task::Largest { k, .. } | Task::BothSides { k, .. } => {
                    search.k = *k;
                    if matches!(task, Task::BothSides { .. }) {
                        (search.sides, chunks) = (2, 2 * k.div_ceil(CHUNK));
                    }
                    let rank = device::sample_rank(*k, elements).map(|rank| rank as u32);
                    // So many of each side reach the sample's cut, by more than it is likely to be wrong: if there is no room for
                    // them, all elements are read again.
                    let of_sample = |rank: u32| 2 * u64::from(rank + 1) + 8;
                    let reached = rank.map_or(0, of_sample).saturating_mul(elements.div_ceil(SAMPLE));
                    let reached = reached.saturating_mul(search.sides.into());
                    let room = k.saturating_mul(4).saturating_add(1 << 16).max(reached);
                    search.capacity = elements.min(room);
                    if let Some(rank) = rank {
                        (search.rank, search.sample) = (rank, plan.samples);
                        plan.samples += 1;
                    }
                }
                Task::Fitted { fitting, .. } => {
                    search.k = fitting.wanted();
                    search.capacity = elements.min(fitting.limit());
                    if fitting.takes_sample() {
                        search.sample = plan.samples;
                        plan.samples += 1;
                    }
                    if matches!(fitting.next(), Step::Tensor(_)) {
                        (search.fitted, chunks) = (2, elements.div_ceil(CHUNK));
                    } else {
                        (search.fitted, chunks) = (1, search.capacity.div_ceil(CHUNK));
                        plan.listed += search.capacity;
                    }
                }
            }
            search.chunks = plan.chunks;
            plan.chunks += chunks;
            plan.candidates += search.capacity;
            plan.searches.push(search);
        }
        match plan.searches.len() <= ROWS && plan.pieces.len() <= ROWS && u32::try_from(plan.tiles).is_ok() {
            true => Ok(plan),
            false => Err(TensorError::TooMany { most: ROWS }.into()),
        }
    }

    /// Everything that is kept.
    fn select(&mut self, plan: &mut Plan, inputs: usize, stream: Stream) -> Result<FoundAll> {
        let mut found = FoundAll {
            found: vec![Found::Elements(Chosen::default()); inputs],
            bad: Vec::new(),
            runs: Vec::new(),
            total: 0,
            supports: plan.coding.empty(),
        };
        for &input in &plan.no_elements {
            found.found[input] = Found::Side { positions: Vec::new(), mean: 0.0 };
        }
        if plan.searches.is_empty() {
            return Ok(found);
        }
        let (layout, mut select) = plan.layout();
        self.work.grow(layout.bytes)?;
        self.up.grow(layout.table.end)?;
        self.down.grow((layout.sizes.end - layout.sizes.start).max(layout.sums.end - layout.sums.start))?;
        // SAFETY: the event was waited for, so that no copy of it is under way.
        unsafe {
            self.up.write(0, bytes_of(&plan.pieces));
            self.up.write(select.searches, bytes_of(&plan.searches));
            self.up.write(select.asks, bytes_of(&plan.asks()));
            self.up.write(layout.rows, bytes_of(&plan.coding.rows));
            self.up.write(layout.segments, bytes_of(&plan.coding.segments));
        }
        select.place(self.work.address());
        self.work.copy_from(0, &self.up, layout.table.end, stream)?;
        self.work.fill(layout.zeros.start, 0, layout.zeros.end - layout.zeros.start, stream)?;
        if self.zeros_before > 0 {
            select.first_tile = (self.zeros_before / TILE) as u32;
            self.work.fill(layout.tiles.start, 0, layout.tiles.end - layout.tiles.start, stream)?;
        }
        let (many, n) = (self.device.multiprocessors(), plan.searches.len() as u32);
        let tiles = plan.tiles as u32;
        let warps = plan.tiles.div_ceil(WARPS).min(u64::from(8 * many)) as u32;
        // SAFETY: the context is current; `select` points into `work`, which is as large as its layout, and into the tensors.
        unsafe { self.device.launch(Kernel::Sample, (n, 1), stream, &select)? };
        self.first_fits(plan, &layout, select, stream)?;
        // SAFETY: as above.
        unsafe { self.device.launch(Kernel::Collect, (tiles.min(8 * many), 1), stream, &select)? };
        self.last_fits(plan, &layout, select, stream)?;
        // SAFETY: as above.
        unsafe {
            for (shift, width) in [(20, 11), (10, 10), (0, 10)] {
                if plan.counts_digits() {
                    (select.shift, select.width) = (shift, width);
                    self.device.launch(Kernel::Digits, (plan.counters(many), n), stream, &select)?;
                }
            }
            self.device.launch(Kernel::Count, (warps, 1), stream, &select)?;
            self.device.launch(Kernel::Place, (n, 1), stream, &select)?;
        }
        let sizes = layout.sizes.end - layout.sizes.start;
        self.work.copy_to(layout.sizes.start, &mut self.down, sizes, stream)?;
        self.device.synchronize(stream)?;
        // SAFETY: the stream was waited for.
        let words: Vec<u64> = items_of(unsafe { self.down.bytes(sizes) });
        let (totals, before) = words.split_at(2 * plan.searches.len());
        found.total = totals.iter().sum();
        let payload = Payload::new(plan, totals);
        let kept = |piece: u32, side: u32| plan.kept(totals, before, piece as usize, side as usize);
        let coded = plan.coding.layout(payload.end, kept);
        // Positions that are written here stay here.
        let copied = if plan.coding.all() { payload.choices.start } else { 0 }..coded.copied;
        if found.total > 0 {
            self.out.grow(if payload.is_packed() { 8 * found.total } else { coded.bytes })?;
            (select.out_places, select.out_bits) = (self.out.address(), self.out.address() + 4 * found.total);
            // SAFETY: as above; `out` has room for what the sizes say, by which the kernel places it.
            unsafe { self.device.launch(Kernel::Emit, (warps, 1), stream, &select)? };
            self.down.grow(copied.end - copied.start)?;
            if payload.is_packed() {
                self.packed.grow(coded.bytes)?;
                self.pack(plan, &payload, select, stream)?;
            }
            let source = if payload.is_packed() { &self.packed } else { &self.out };
            if !plan.coding.is_empty() {
                let tables = Tables {
                    rows: self.work.address() + layout.rows,
                    segments: self.work.address() + layout.segments,
                    choices: source.address() + payload.choices.start,
                };
                // SAFETY: as above; `source` has room for the layout.
                unsafe {
                    plan.coding.launch(&self.device, source, &coded, &select, &tables, stream)?;
                }
            }
            source.copy_to(copied.start, &mut self.down, copied.end - copied.start, stream)?;
            self.device.synchronize(stream)?;
            // SAFETY: the stream was waited for.
            let down = unsafe { self.down.bytes(copied.end - copied.start) };
            let taken = |range: Range<u64>| {
                &down[(range.start - copied.start) as usize..(range.end - copied.start) as usize]
            };
            let places = if plan.coding.all() { &[] } else { taken(payload.places.clone()) };
            let came = Came {
                choices: items_of(taken(payload.choices.clone())),
                places: places.as_chunks().0,
                bits: taken(payload.bits.clone()).as_chunks().0,
            };
            found.take(plan, totals, before, &came);
            if !plan.coding.is_empty() {
                found.supports = plan.coding.supports(&coded, taken(coded.written..coded.copied));
            }
        } else {
            found.take(plan, totals, before, &Came { choices: Vec::new(), places: &[], bits: &[] });
        }
        Ok(found)
    }

    /// The fits before candidates are collected, of samples and of whole tensors: a wait for each, for all tensors together.
    fn first_fits(&mut self, plan: &mut Plan, layout: &Layout, select: Select, stream: Stream) -> Result<()> {
        if plan.fits.is_empty() {
            return Ok(());
        }
        let before = |step: Step| matches!(step, Step::Sample(_) | Step::Tensor(_));
        let mut told = false;
        while plan.fits.iter().any(|f| f.search.is_some() && before(f.fitting.next())) {
            if told {
                self.tell(plan, layout, stream)?;
            }
            let (sums, _) = self.measure(plan, layout, select, SAMPLES | TENSORS, stream)?;
            for Fits { search, fitting, .. } in &mut plan.fits {
                let Some(search) = *search else { continue };
                match fitting.next() {
                    Step::Sample(_) => fitting.answer(&total(&sums, &plan.searches[search], 1)),
                    Step::Tensor(_) => {
                        let search = &plan.searches[search];
                        fitting.answer(&total(&sums, search, search.elements.div_ceil(CHUNK)));
                    }
                    _ => {}
                }
            }
            told = true;
        }
        if told {
            self.tell(plan, layout, stream)?;
        }
        // SAFETY: the context is current; `select` points into `work`.
        unsafe { self.device.launch(Kernel::Decide, (plan.searches.len() as u32, 1), stream, &select) }
    }

    /// The fits of candidates, a wait for each, for all tensors together.
    fn last_fits(
        &mut self,
        plan: &mut Plan,
        layout: &Layout,
        mut select: Select,
        stream: Stream,
    ) -> Result<()> {
        if !plan.fits.iter().any(|f| f.search.is_some() && matches!(f.fitting.next(), Step::Collect { .. })) {
            return Ok(());
        }
        let n = plan.searches.len() as u32;
        let warps = plan.tiles.div_ceil(WARPS).min(u64::from(8 * self.device.multiprocessors())) as u32;
        select.listing = 1;
        // SAFETY: the context is current; `select` points into `work`.
        unsafe {
            self.device.launch(Kernel::Count, (warps, 1), stream, &select)?;
            self.device.launch(Kernel::Place, (n, 1), stream, &select)?;
            self.device.launch(Kernel::Emit, (warps, 1), stream, &select)?;
        }
        loop {
            let (sums, states) = self.measure(plan, layout, select, CANDIDATES, stream)?;
            for Fits { search, fitting, .. } in &mut plan.fits {
                let Some(search) = *search else { continue };
                let (search, state) = (&plan.searches[search], &states[search]);
                // Those are in no list that a fit does not help with.
                let listed = state.candidates <= search.capacity
                    && (state.least[0] == LOWEST || state.candidates >= search.k);
                let chunks = if listed { state.candidates.div_ceil(CHUNK) } else { 0 };
                match fitting.next() {
                    Step::Collect { .. } => {
                        let least = f32::from_bits(state.least[0]);
                        fitting.collected(state.candidates, least, &total(&sums, search, chunks));
                    }
                    Step::Candidates(_) => fitting.answer(&total(&sums, search, chunks)),
                    _ => {}
                }
            }
            self.tell(plan, layout, stream)?;
            if !plan.fits.iter().any(|f| matches!(f.fitting.next(), Step::Candidates(_))) {
                break;
            }
        }
        // SAFETY: as above.
        unsafe { self.device.launch(Kernel::Decide, (n, 1), stream, &select) }
    }

    /// Copies to the device what fits ask and say. The stream was waited for since the last copy.
    fn tell(&mut self, plan: &Plan, layout: &Layout, stream: Stream) -> Result<()> {
        let asks = plan.asks();
        // SAFETY: as it says above.
        unsafe { self.up.write(0, bytes_of(&asks)) };
        self.work.copy_from(layout.asks, &self.up, size_of_val(asks.as_slice()) as u64, stream)
    }

    /// The sums of each chunk that asks of this kind are for, and all states.
    fn measure(
        &mut self,
        plan: &Plan,
        layout: &Layout,
        mut select: Select,
        what: u32,
        stream: Stream,
    ) -> Result<(Vec<device::Moments>, Vec<State>)> {
        select.what = what;
        let logs = plan.asks().iter().any(|ask| ask.what & what != 0 && ask.logs != 0);
        let kernel = if logs { Kernel::MeasureLogs } else { Kernel::Measure };
        let grid = (plan.measurers(self.device.multiprocessors()), plan.searches.len() as u32);
        // SAFETY: the context is current; `select` points into `work`, where each chunk has a place, and into the tensors.
        unsafe { self.device.launch(kernel, grid, stream, &select)? };
        let bytes = layout.sums.end - layout.sums.start;
        self.work.copy_to(layout.sums.start, &mut self.down, bytes, stream)?;
        self.device.synchronize(stream)?;
        // SAFETY: the stream was waited for.
        let bytes = unsafe { self.down.bytes(bytes) };
        let (sums, states) = bytes.split_at(bytes.len() - plan.searches.len() * size_of::<State>());
        let sums: Vec<Moments> = items_of(&sums[..plan.chunks as usize * size_of::<Moments>()]);
        Ok((sums.into_iter().map(moments).collect(), items_of(states)))
    }

    /// Chooses the side of searches that have two, and puts together what goes to the host.
    fn pack(&mut self, plan: &Plan, payload: &Payload, mut select: Select, stream: Stream) -> Result<()> {
        let (many, n) = (self.device.multiprocessors(), plan.searches.len() as u32);
        select.what = SIDES;
        let base = self.packed.address();
        let pack = Pack {
            searches: select.searches,
            totals: select.totals,
            bases: select.bases,
            moments: select.moments,
            out_places: select.out_places,
            out_bits: select.out_bits,
            choices: base + payload.choices.start,
            places: base + payload.places.start,
            bits: base + payload.bits.start,
            n_searches: n,
            reserved: 0,
        };
        let most = payload.most.div_ceil(4 * u64::from(THREADS)).clamp(1, u64::from(4 * many)) as u32;
        // SAFETY: the context is current; all of it points into `work`, `out` and `packed`, which the sizes were counted for.
        unsafe {
            self.device.launch(Kernel::Measure, (plan.measurers(many), n), stream, &select)?;
            self.device.launch(Kernel::Choose, (1, 1), stream, &pack)?;
            self.device.launch(Kernel::Pack, (most, n), stream, &pack)
        }
    }

    /// The error that the library has for a value that was kept of this input and is not finite.
    fn non_finite(&mut self, plan: &Plan, input: usize, tensor: u64, stream: Stream) -> Result<Error> {
        self.down.grow(8)?;
        self.work.fill(0, 0xff, 8, stream)?;
        let read = |(piece, place): &(&Piece, &Place)| {
            place.input == input && place.start + piece.len > self.zeros_before
        };
        for (piece, place) in plan.pieces.iter().zip(&plan.places).filter(read) {
            let blocks = piece.len.div_ceil(TILE).min(u64::from(8 * self.device.multiprocessors())) as u32;
            let arguments = NonFinite { piece: *piece, start: place.start, least: self.work.address() };
            // SAFETY: the context is current, the tensor there, and `work` has room for a word.
            unsafe { self.device.launch(Kernel::NonFinite, (blocks, 1), stream, &arguments)? };
        }
        self.work.copy_to(0, &mut self.down, 8, stream)?;
        self.device.synchronize(stream)?;
        // SAFETY: the stream was waited for.
        let index = items_of::<u64>(unsafe { self.down.bytes(8) })[0];
        Ok(device::non_finite(tensor, index).into())
    }

    /// Takes what is sent from the sums.
    fn subtract(&mut self, plan: &Plan, found: &FoundAll, sent: &[Sent], stream: Stream) -> Result<()> {
        let values = self.out.address() + 4 * found.total;
        let mut taken = Vec::new();
        let mut upload = Vec::new();
        // How many of a tensor's values earlier pieces had.
        let mut done = vec![0; sent.len()];
        for Run { piece, kept } in found.runs.iter().filter(|run| !run.kept.is_empty()) {
            let input = plan.places[*piece].input;
            let range = done[input]..done[input] + kept.len();
            done[input] = range.end;
            let mut item = Taken {
                after: plan.pieces[*piece].after,
                first: kept.start as u64,
                len: kept.len() as u64,
                ..Taken::default()
            };
            match (&found.found[input], &sent[input]) {
                (_, Sent::All(value)) => item.value = *value,
                (Found::Elements(own), Sent::Each(sent)) => {
                    let (own, sent) = (&own.values[range.clone()], &sent[range]);
                    if own.iter().zip(sent).all(|(a, b)| a.to_bits() == b.to_bits()) {
                        item.values = values;
                    } else if sent.iter().all(|x| x.to_bits() == sent[0].to_bits()) {
                        item.value = sent[0];
                    } else {
                        upload.push((taken.len(), sent));
                    }
                }
                (Found::Side { .. }, Sent::Each(sent)) => upload.push((taken.len(), &sent[range])),
            }
            taken.push(item);
        }
        if taken.is_empty() {
            return self.last.record(stream);
        }
        let table = (taken.len() * size_of::<Taken>()) as u64;
        let bytes = table + upload.iter().map(|(_, sent)| 4 * sent.len() as u64).sum::<u64>();
        self.sent.grow(bytes)?;
        self.up.grow(bytes)?;
        let mut at = table;
        for (item, sent) in upload {
            // The kernel adds `first` to it, as it does to the positions.
            taken[item].values = (self.sent.address() + at).wrapping_sub(4 * taken[item].first);
            let floats: Vec<u8> = sent.iter().flat_map(|x| x.to_ne_bytes()).collect();
            // SAFETY: the stream was waited for since it was last copied from.
            unsafe { self.up.write(at, &floats) };
            at += floats.len() as u64;
        }
        // SAFETY: as above.
        unsafe { self.up.write(0, bytes_of(&taken)) };
        self.sent.copy_from(0, &self.up, bytes, stream)?;
        let most = taken.iter().map(|t| t.len).max().unwrap_or(1);
        let blocks = most.div_ceil(4 * u64::from(THREADS)).min(u64::from(4 * self.device.multiprocessors()));
        let arguments = Subtract { taken: self.sent.address(), places: self.out.address() };
        // SAFETY: the context is current; places are those of kept elements, which lie in the sums that `after` points to.
        unsafe {
            let grid = (blocks as u32, taken.len() as u32);
            self.device.launch(Kernel::Subtract, grid, stream, &arguments)?;
        }
        self.last.record(stream)
    }

    /// The residuals, for a checkpoint, or to go on with on the host: [`Feedback::load`] takes its [`Feedback::save`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Call`](crate::Error::Call).
    pub fn residuals(&mut self) -> Result<Feedback> {
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()?;
        let mut tensors = Vec::new();
        for (name, residual) in self.residuals.iter().filter(|(_, r)| r.known) {
            let bytes = 4 * gcodec::tensor::elements(&residual.shape).unwrap_or(0);
            let mut host = Pinned::new(&device, bytes)?;
            if bytes > 0 {
                residual.values.copy_to(0, &mut host, bytes, Stream::DEFAULT)?;
                device.synchronize(Stream::DEFAULT)?;
            }
            // SAFETY: the stream was waited for.
            let floats = unsafe { host.bytes(bytes) }.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b));
            let floats: Vec<f32> = floats.collect();
            tensors.push((name.clone(), TensorBuf::from_f32(residual.shape.clone(), &floats)?));
        }
        for (name, state) in &self.stages {
            let bytes = state.iter().flat_map(|word| word.to_le_bytes()).collect();
            tensors.push((format!("{name}{STAGES}"), TensorBuf::new(Dtype::I64, vec![3], bytes)?));
        }
        Ok(Feedback::load(tensors)?)
    }

    /// Takes residuals for its own, in the place of those that it has.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Call`](crate::Error::Call); the residuals are then as they were before. [`Error::Codec`](crate::Error::Codec) if there is other
    /// state in them than residuals.
    pub fn set_residuals(&mut self, feedback: &Feedback) -> Result<()> {
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()?;
        let (mut residuals, mut stages) = (BTreeMap::new(), BTreeMap::new());
        for (name, tensor) in feedback.save() {
            let shape = tensor.view().shape();
            if let (Dtype::I64, Some(of), ([a, b, c], [])) =
                (tensor.dtype(), name.strip_suffix(STAGES), tensor.data().as_chunks::<8>())
            {
                stages.insert(of.to_owned(), [a, b, c].map(|word| i64::from_le_bytes(*word)));
                continue;
            }
            if feedback.get(&name).is_none() {
                return Err(wrong(InputErrorKind::BadState { what: "its codec does not run on a device" }));
            }
            let mut residual = self.new_residual(shape)?;
            residual.known = true;
            let bytes: Vec<u8> = tensor.view().to_f32()?.iter().flat_map(|x| x.to_ne_bytes()).collect();
            if !bytes.is_empty() {
                let mut host = Pinned::new(&device, bytes.len() as u64)?;
                // SAFETY: it is new.
                unsafe { host.write(0, &bytes) };
                residual.values.copy_from(0, &host, bytes.len() as u64, Stream::DEFAULT)?;
                device.synchronize(Stream::DEFAULT)?;
            }
            residuals.insert(name, residual);
        }
        (self.residuals, self.stages) = (residuals, stages);
        (self.changed, self.stages_before) = (Vec::new(), self.stages.clone());
        Ok(())
    }
}

/// The form of the blocks that an update becomes.
trait Made: From<Block> {
    /// Whether the device writes positions.
    const WIRE: bool;

    /// The blocks of what was found, and what they send.
    fn make(
        outlines: &[Outline],
        codecs: &[Codec],
        found: &mut FoundAll,
    ) -> gcodec::Result<(Vec<Self>, Vec<Sent>)>;

    fn first_tensor(&self) -> u64;
}

impl Made for Block {
    const WIRE: bool = false;

    fn make(
        outlines: &[Outline],
        codecs: &[Codec],
        found: &mut FoundAll,
    ) -> gcodec::Result<(Vec<Self>, Vec<Sent>)> {
        device::blocks(outlines, codecs, &found.found)
    }

    fn first_tensor(&self) -> u64 {
        self.scope.first()
    }
}

impl Made for WireBlock<'static> {
    const WIRE: bool = true;

    fn make(
        outlines: &[Outline],
        codecs: &[Codec],
        found: &mut FoundAll,
    ) -> gcodec::Result<(Vec<Self>, Vec<Sent>)> {
        device::wire_blocks(outlines, codecs, &found.found, std::mem::take(&mut found.supports))
    }

    fn first_tensor(&self) -> u64 {
        self.scope.first()
    }
}

/// What one update asks of the device.
#[derive(Debug, Default)]
struct Plan {
    pieces: Vec<Piece>,
    /// Whose elements each piece has.
    places: Vec<Place>,
    searches: Vec<Search>,
    tiles: u64,
    candidates: u64,
    samples: u32,
    /// Which positions are written on the device.
    coding: Coding,
    fits: Vec<Fits>,
    /// Room for the candidates of fits.
    listed: u64,
    /// Chunks that sums are taken of.
    chunks: u64,
    /// Inputs of `sbc` without elements.
    no_elements: Vec<usize>,
}

/// A search by fits; none if there are no elements.
#[derive(Debug)]
struct Fits {
    input: usize,
    search: Option<usize>,
    fitting: Fitting,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    input: usize,
    start: u64,
}

/// What was kept of each input, and which run of all that was kept on the device each piece has.
#[derive(Debug)]
struct FoundAll {
    found: Vec<Found>,
    /// Inputs of which what was kept is not finite, as far as its values are not here.
    bad: Vec<usize>,
    runs: Vec<Run>,
    total: u64,
    /// Of each block, its positions in wire form.
    supports: Vec<Option<Vec<u8>>>,
}

#[derive(Debug)]
struct Run {
    piece: usize,
    kept: Range<usize>,
}

/// What comes to the host of what was kept, in bytes: positions; a [`Choice`] for each search if some search has two sides; values of
/// searches that have not. Without choices that is how everything was emitted.
#[derive(Debug)]
struct Payload {
    places: Range<u64>,
    choices: Range<u64>,
    bits: Range<u64>,
    end: u64,
    /// The most elements of a search.
    most: u64,
}

/// The same, on the host.
struct Came<'a> {
    choices: Vec<Choice>,
    places: &'a [[u8; 4]],
    bits: &'a [[u8; 4]],
}

impl Payload {
    fn new(plan: &Plan, totals: &[u64]) -> Self {
        let (mut places, mut values, mut most) = (0, 0, 0);
        for (search, totals) in plan.searches.iter().zip(totals.chunks(2)) {
            let kept = totals[0].max(totals[1]);
            most = most.max(kept);
            places += kept;
            values += if search.sides == 1 { kept } else { 0 };
        }
        let chooses = plan.searches.iter().any(|s| s.sides == 2);
        let places = 0..4 * places;
        let choices = if chooses { places.end.next_multiple_of(16) } else { places.end };
        let choices =
            choices..choices + if chooses { (size_of::<Choice>() * plan.searches.len()) as u64 } else { 0 };
        let bits = choices.end..choices.end + 4 * values;
        Self { places, choices, end: bits.end, bits, most }
    }

    /// Whether it is not as it was emitted.
    fn is_packed(&self) -> bool {
        !self.choices.is_empty()
    }
}

impl FoundAll {
    /// The inputs of which something was kept that is not finite.
    fn not_finite(&self) -> impl Iterator<Item = usize> {
        let bad = |(input, found): (usize, &Found)| match found {
            Found::Elements(chosen) if chosen.values.iter().any(|x| !x.is_finite()) => Some(input),
            _ => None,
        };
        self.found.iter().enumerate().filter_map(bad).chain(self.bad.iter().copied())
    }

    fn take(&mut self, plan: &Plan, totals: &[u64], before: &[u64], came: &Came<'_>) {
        // Of the search: its first element among all that was kept, and its first position and value among what came.
        let (mut first, mut place, mut value) = (0, 0, 0);
        for (i, (search, totals)) in plan.searches.iter().zip(totals.chunks(2)).enumerate() {
            let choice = came.choices.get(i).copied().unwrap_or_default();
            let (side, mean) = match search.sides {
                1 => (0, None),
                _ => {
                    let (side, mean) = device::larger_side(choice.sums, [totals[0], totals[1]]);
                    (side, Some(mean))
                }
            };
            let begin = first + if side == 1 { totals[0] } else { 0 };
            let pieces = search.first_piece as usize..(search.first_piece + search.pieces) as usize;
            for piece in pieces.clone() {
                let here = before[2 * piece + side] as usize;
                let next = if piece + 1 < pieces.end { before[2 * (piece + 1) + side] } else { totals[side] };
                let next = next as usize;
                let Place { input, start } = plan.places[piece];
                let position = |p: &[u8; 4]| start + u64::from(u32::from_ne_bytes(*p));
                let coded = plan.coding.inputs.get(input).is_some_and(|coded| *coded);
                let places = if coded { &[] } else { &came.places[place + here..place + next] };
                let positions = places.iter().map(position);
                match (&mut self.found[input], mean) {
                    (Found::Elements(chosen), None) => {
                        chosen.positions.extend(positions);
                        let values = &came.bits[value + here..value + next];
                        chosen.values.extend(values.iter().map(|b| f32::from_ne_bytes(*b)));
                    }
                    (Found::Side { positions: all, .. }, Some(_)) => all.extend(positions),
                    (found, Some(mean)) => {
                        *found = Found::Side { positions: positions.collect(), mean };
                        if choice.sums.iter().any(|sum| !sum.is_finite()) {
                            self.bad.push(input);
                        }
                    }
                    (Found::Side { .. }, None) => {}
                }
                self.runs.push(Run { piece, kept: begin as usize + here..begin as usize + next });
            }
            first += totals[0] + totals[1];
            place += totals[side] as usize;
            value += if mean.is_none() { totals[side] as usize } else { 0 };
        }
    }
}

/// The sums of a search's chunks, in their order.
fn total(sums: &[device::Moments], search: &Search, chunks: u64) -> device::Moments {
    let of_search = sums.iter().skip(search.chunks as usize).take(chunks as usize);
    of_search.fold(device::Moments::default(), |sum, chunk| sum.and(*chunk))
}

fn moments(m: Moments) -> device::Moments {
    let Moments { count, sum, squares, product, exponent, max, .. } = m;
    device::Moments { count, sum, squares, product, exponent, max }
}

/// Where things are in the work memory.
#[derive(Debug)]
struct Layout {
    table: Range<u64>,
    rows: u64,
    segments: u64,
    asks: u64,
    /// Moments, then states.
    sums: Range<u64>,
    zeros: Range<u64>,
    /// Counts of each tile.
    tiles: Range<u64>,
    sizes: Range<u64>,
    bytes: u64,
}

impl Plan {
    /// Of each input the numbers of its pieces, and where they begin in it.
    fn pieces_of_inputs(&self, inputs: usize) -> Vec<Vec<(u32, u64)>> {
        let mut pieces = vec![Vec::new(); inputs];
        self.places.iter().zip(0..).for_each(|(place, piece)| pieces[place.input].push((piece, place.start)));
        pieces
    }

    /// How many were kept of one side of a piece. `totals`: of each search; `before`: of a piece's search before it.
    fn kept(&self, totals: &[u64], before: &[u64], piece: usize, side: usize) -> u64 {
        let search = self.pieces[piece].search as usize;
        let end = (self.searches[search].first_piece + self.searches[search].pieces) as usize;
        let next = if piece + 1 < end { before[2 * (piece + 1) + side] } else { totals[2 * search + side] };
        next - before[2 * piece + side]
    }

    /// Offsets, in the fields of a `Select` too.
    fn layout(&self) -> (Layout, Select) {
        let mut end = 0u64;
        let mut take = |bytes: u64| {
            let start = end;
            end = (start + bytes).next_multiple_of(256);
            start
        };
        let (searches, pieces, tiles) = (self.searches.len() as u64, self.pieces.len() as u64, self.tiles);
        let mut select = Select {
            pieces: take(size_of::<Piece>() as u64 * pieces),
            searches: take(size_of::<Search>() as u64 * searches),
            n_pieces: pieces as u32,
            n_searches: searches as u32,
            n_tiles: tiles as u32,
            ..Select::default()
        };
        let rows = take(bytes_of(&self.coding.rows).len() as u64);
        let segments_at = take(bytes_of(&self.coding.segments).len() as u64);
        select.asks = take(size_of::<Ask>() as u64 * searches);
        let table = 0..take(0);
        select.moments = take(size_of::<Moments>() as u64 * self.chunks);
        select.states = take(size_of::<State>() as u64 * searches);
        select.counts = take(8 * 2 * BINS * searches);
        select.ticket = take(4);
        let zeros = select.states..take(0);
        let sums = select.moments..select.states + size_of::<State>() as u64 * searches;
        select.samples = take(4 * SAMPLE * u64::from(self.samples));
        select.tile_first = take(8 * tiles);
        select.tile_hits = take(4 * tiles);
        select.tile_above = take(4 * 2 * tiles);
        select.tile_equal = take(4 * 2 * tiles);
        select.tile_kept = take(8 * 2 * tiles);
        let counted = select.tile_hits..take(0);
        select.candidate_places = take(4 * self.candidates);
        select.candidate_bits = take(4 * self.candidates);
        select.list = take(4 * self.listed);
        select.bases = take(8 * 2 * searches);
        // Together, so that one copy takes both.
        select.totals = take(8 * 2 * (searches + pieces));
        select.piece_kept = select.totals + 8 * 2 * searches;
        let sizes = select.totals..select.piece_kept + 8 * 2 * pieces;
        let (asks, tiles, segments) = (select.asks, counted, segments_at);
        (Layout { table, rows, segments, asks, sums, zeros, tiles, sizes, bytes: take(0) }, select)
    }

    /// What fits ask of the device, or tell it.
    fn asks(&self) -> Vec<Ask> {
        let question = |what, q: MomentQuery| Ask {
            what,
            at: q.at.to_bits(),
            location: q.location,
            logs: u32::from(q.logs),
            rank: 0,
        };
        let sides = Ask { what: SIDES, at: LOWEST, ..Ask::default() };
        let sides = |s: &Search| if s.sides == 2 { sides } else { Ask::default() };
        let mut asks: Vec<Ask> = self.searches.iter().map(sides).collect();
        for Fits { search, fitting, .. } in &self.fits {
            let Some(search) = *search else { continue };
            asks[search] = match fitting.next() {
                Step::Sample(q) => question(SAMPLES, q),
                Step::Tensor(q) => question(TENSORS, q),
                Step::Candidates(q) => question(CANDIDATES, q),
                Step::Collect { least: Least::At(_), question: Some(q) } => question(CANDIDATES | FROM, q),
                Step::Collect { least: Least::InSample(rank), .. } => {
                    Ask { what: CANDIDATES | FROM_SAMPLE, rank, ..Ask::default() }
                }
                Step::Collect { least: Least::At(at), question: None } => {
                    Ask { what: CANDIDATES | FROM, at: at.to_bits(), location: at, ..Ask::default() }
                }
                Step::Keep(Kept::Reached(at)) => Ask { what: KEEP, at: at.to_bits(), ..Ask::default() },
                Step::Keep(Kept::Largest) => Ask::default(),
            };
        }
        asks
    }

    /// Whether some cut is not known without counting.
    fn counts_digits(&self) -> bool {
        let largest = |f: &Fits| f.search.is_some() && f.fitting.next() == Step::Keep(Kept::Largest);
        self.searches.iter().any(|s| s.exact == 0 && s.fitted == 0) || self.fits.iter().any(largest)
    }

    /// Blocks of the kernel that takes sums, for each search.
    fn measurers(&self, multiprocessors: u32) -> u32 {
        let chunks = self.searches.iter().map(|s| match s.fitted {
            0 => s.k.div_ceil(CHUNK),
            1 => s.capacity.div_ceil(CHUNK),
            _ => s.elements.div_ceil(CHUNK),
        });
        chunks.max().unwrap_or(0).clamp(1, u64::from(8 * multiprocessors)) as u32
    }

    /// Blocks of the kernel that counts digits, for each search.
    fn counters(&self, multiprocessors: u32) -> u32 {
        let most = self.searches.iter().map(|s| s.capacity).max().unwrap_or(0);
        // A block counts less than 2^32 elements, also where it has to read the tensors.
        let least = self.searches.iter().map(|s| s.tiles >> 18).max().unwrap_or(0) + 1;
        least.max(most.div_ceil(8 * u64::from(THREADS)).min(u64::from(2 * multiprocessors)) as u32)
    }
}

impl Select {
    /// Makes addresses of its offsets.
    fn place(&mut self, base: u64) {
        for field in [
            &mut self.pieces,
            &mut self.searches,
            &mut self.states,
            &mut self.counts,
            &mut self.samples,
            &mut self.tile_first,
            &mut self.tile_hits,
            &mut self.tile_above,
            &mut self.tile_equal,
            &mut self.tile_kept,
            &mut self.candidate_places,
            &mut self.candidate_bits,
            &mut self.totals,
            &mut self.piece_kept,
            &mut self.bases,
            &mut self.ticket,
            &mut self.asks,
            &mut self.moments,
            &mut self.list,
        ] {
            *field += base;
        }
    }
}

fn wrong(kind: InputErrorKind) -> Error {
    gcodec::Error::from(kind).into()
}
