//! From device tensors to blocks.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use gcodec::block::Block;
use gcodec::compress::outside::{self, Outline, Search as Task, Sent};
use gcodec::compress::{Chosen, Feedback, NonFinite as NonFiniteRule, Options, Selection};
use gcodec::{Codec, TensorBuf};

use crate::dense::{Dense, Outcome, Source};
use crate::device::{Device, Event, Kernel, Memory, Pinned, Quiet};
use crate::error::{Error, Result, TensorError};
use crate::plan::{
    BINS, LOWEST, NonFinite, Piece, SAMPLE, Search, Select, State, Subtract, THREADS, TILE, Taken, WARPS,
    bytes_of,
};
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

/// Selects on a device, in memory of its own that it keeps from update to update.
///
/// With [`Compressor::compress_with_feedback`] it holds the residuals of error feedback too, on the device: two 32-bit floats for each
/// element, as an update that fails has to leave them as they were.
#[derive(Debug)]
pub struct Compressor {
    device: Device,
    work: Memory,
    /// Positions of what was kept, then the values.
    out: Memory,
    sent: Memory,
    dense: Dense,
    up: Pinned,
    down: Pinned,
    /// The last work that nobody waited for.
    last: Event,
    residuals: BTreeMap<String, Residual>,
    piece_len: u64,
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
            sent: Memory::new(device, 0)?,
            dense: Dense::new(device)?,
            up: Pinned::new(device, 0)?,
            down: Pinned::new(device, 0)?,
            last: Event::new(device)?,
            residuals: BTreeMap::new(),
            piece_len: PIECE,
        })
    }

    /// Sets how many elements of a tensor are seen as one piece, rounded up to 8192, at most 2^31, which is what it is without.
    /// It changes nothing of the result.
    #[must_use]
    pub fn with_piece_len(mut self, elements: u64) -> Self {
        self.piece_len = elements.clamp(TILE, PIECE).next_multiple_of(TILE);
        self
    }

    /// Sets what is added to an element's number where a word is drawn for it: a test's way to numbers beyond 2^32.
    #[doc(hidden)]
    #[must_use]
    pub fn with_first_element(mut self, number: u64) -> Self {
        self.dense.first = number;
        self
    }

    /// The blocks that [`gcodec::compress()`] makes of these tensors.
    ///
    /// `inputs`: in ascending order of their numbers; `codecs`: one for each, of `topk`, `stc`, `threshold`, `sbc`, `natural`, `qsgd`,
    /// `dither`, `terngrad`, `int8` and `sign`. Work is put into `stream`; when this returns, the tensors are no longer used.
    ///
    /// # Errors
    /// [`Error::Codec`](crate::Error::Codec) as [`gcodec::compress()`], and for other codecs; [`Error::Tensor`](crate::Error::Tensor), [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Call`](crate::Error::Call).
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

    fn run(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
        feedback: bool,
    ) -> Result<Vec<Block>> {
        let outlines: Vec<Outline> = inputs
            .iter()
            .map(|i| Outline { tensor: i.tensor, dtype: i.data.dtype(), len: i.data.elements() })
            .collect();
        let dense_tasks = outside::dense::tasks(&outlines, codecs, options)?;
        let (dense, sparse): (Vec<usize>, Vec<usize>) =
            (0..inputs.len()).partition(|&i| outside::dense::takes(&codecs[i]));
        let selected: Vec<Input<'_>> = sparse.iter().map(|&i| inputs[i]).collect();
        let selected_outlines: Vec<Outline> = sparse.iter().map(|&i| outlines[i]).collect();
        let selectors: Vec<Codec> = sparse.iter().map(|&i| codecs[i]).collect();
        let tasks = outside::searches(&selected_outlines, &selectors)?;
        inputs.iter().try_for_each(|i| i.data.check_device(&self.device))?;
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()?;
        if feedback {
            self.prepare_residuals(inputs)?;
        }
        let plan = self.plan(&selected, &tasks, options, feedback)?;
        let sources = self.sources(inputs, feedback);
        let quiet = Quiet { device: &device, stream };
        let begun = self.dense.begin(&device, dense_tasks, &sources, options, stream)?;
        let found = self.select(&plan, selected.len(), stream)?;
        let mut blocks = Vec::new();
        let mut not_finite = None;
        if let Some(begun) = begun {
            match self.dense.finish(&device, &begun, stream)? {
                Outcome::Blocks(of_dense) => blocks = of_dense,
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
        let bad = |sides: &[Chosen; 2]| sides.iter().any(|s| s.values.iter().any(|x| !x.is_finite()));
        let kept = (0..selected.len()).filter(|&i| bad(&found.chosen[i])).min_by_key(|&i| rank(sparse[i]));
        match (kept, not_finite) {
            (Some(i), Some((input, error))) if rank(input) < rank(sparse[i]) => return Err(error),
            (Some(i), _) => return Err(self.non_finite(&plan, i, inputs[sparse[i]].tensor, stream)?),
            (None, Some((_, error))) => return Err(error),
            (None, None) => {}
        }
        if !sparse.is_empty() {
            let (of_sparse, sent) = outside::blocks(&selected_outlines, &selectors, &found.chosen)?;
            blocks.extend(of_sparse);
            if !dense.is_empty() {
                // Stable: blocks of one tensor are all of one kind, and in order.
                blocks.sort_by_key(|block| block.scope.first());
            }
            if feedback {
                self.subtract(&plan, &found, &sent, stream)?;
            }
        }
        if feedback {
            for input in inputs {
                if let Some(residual) = self.residuals.get_mut(input.name) {
                    std::mem::swap(&mut residual.values, &mut residual.spare);
                    residual.known = true;
                }
            }
        }
        quiet.done();
        Ok(blocks)
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
        let tasks = outside::dense::tasks(&outlines, codecs, options)?;
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
            return Err(outside::misfit("two inputs of one name").into());
        }
        for input in inputs {
            let residual = self.residuals.get(input.name);
            if residual.is_some_and(|r| r.known && r.shape != input.data.shape()) {
                return Err(outside::misfit("shapes of tensor and residual differ").into());
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
                Task::BothSides { of, .. } | Task::AtLeast { of, .. } => std::slice::from_ref(of),
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
            if elements == 0 {
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
            match *task {
                Task::AtLeast { at, .. } => {
                    (search.least, search.exact, search.k) = (at.to_bits(), 1, elements);
                    search.capacity = elements.min(elements / 16 + (1 << 16));
                }
                Task::Largest { k, .. } | Task::BothSides { k, .. } => {
                    search.k = k;
                    search.sides = if matches!(task, Task::BothSides { .. }) { 2 } else { 1 };
                    search.capacity = elements.min(k.saturating_mul(4).saturating_add(1 << 16));
                    if let Some(rank) = rank(k, elements) {
                        (search.rank, search.sample) = (rank, plan.samples);
                        plan.samples += 1;
                    }
                }
            }
            plan.candidates += search.capacity;
            plan.searches.push(search);
        }
        match plan.searches.len() <= ROWS && plan.pieces.len() <= ROWS && u32::try_from(plan.tiles).is_ok() {
            true => Ok(plan),
            false => Err(TensorError::TooMany { most: ROWS }.into()),
        }
    }

    /// Everything that is kept.
    fn select(&mut self, plan: &Plan, inputs: usize, stream: Stream) -> Result<FoundAll> {
        let mut found = FoundAll { chosen: vec![Default::default(); inputs], runs: Vec::new(), total: 0 };
        if plan.searches.is_empty() {
            return Ok(found);
        }
        let (layout, mut select) = plan.layout();
        self.work.grow(layout.bytes)?;
        let table = [bytes_of(&plan.pieces), bytes_of(&plan.searches)];
        self.up.grow(layout.table.end)?;
        self.down.grow(layout.sizes.end - layout.sizes.start)?;
        // SAFETY: the event was waited for, so that no copy of it is under way.
        unsafe {
            self.up.write(0, table[0]);
            self.up.write(select.searches, table[1]);
        }
        select.place(self.work.address());
        self.work.copy_from(0, &self.up, layout.table.end, stream)?;
        self.work.fill(layout.zeros.start, 0, layout.zeros.end - layout.zeros.start, stream)?;
        let (many, n) = (self.device.multiprocessors(), plan.searches.len() as u32);
        let tiles = plan.tiles as u32;
        let warps = plan.tiles.div_ceil(WARPS).min(u64::from(8 * many)) as u32;
        // SAFETY: the context is current; `select` points into `work`, which is as large as its layout, and into the tensors.
        unsafe {
            self.device.launch(Kernel::Sample, (n, 1), stream, &select)?;
            self.device.launch(Kernel::Collect, (tiles.min(8 * many), 1), stream, &select)?;
            for (shift, width) in [(20, 11), (10, 10), (0, 10)] {
                if plan.searches.iter().any(|s| s.exact == 0) {
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
        let words = words(unsafe { self.down.bytes(sizes) });
        let (totals, before) = words.split_at(2 * plan.searches.len());
        let (totals, before) = (totals.to_vec(), before.to_vec());
        found.total = totals.iter().sum();
        if found.total > 0 {
            self.out.grow(8 * found.total)?;
            self.down.grow(8 * found.total)?;
            (select.out_places, select.out_bits) = (self.out.address(), self.out.address() + 4 * found.total);
            // SAFETY: as above; `out` has room for what the sizes say, by which the kernel places it.
            unsafe { self.device.launch(Kernel::Emit, (warps, 1), stream, &select)? };
            self.out.copy_to(0, &mut self.down, 8 * found.total, stream)?;
            self.device.synchronize(stream)?;
        }
        // SAFETY: the stream was waited for.
        let kept = unsafe { self.down.bytes(8 * found.total) };
        let (places, bits) = kept.split_at(kept.len() / 2);
        let (places, bits) = (places.as_chunks::<4>().0, bits.as_chunks::<4>().0);
        let mut first = 0;
        for (search, totals) in plan.searches.iter().zip(totals.chunks(2)) {
            for (side, &total) in totals.iter().enumerate() {
                let pieces = search.first_piece as usize..(search.first_piece + search.pieces) as usize;
                for piece in pieces.clone() {
                    let next = if piece + 1 < pieces.end { before[2 * (piece + 1) + side] } else { total };
                    let run = (first + before[2 * piece + side]) as usize..(first + next) as usize;
                    let Place { input, start } = plan.places[piece];
                    let chosen = &mut found.chosen[input][side];
                    let place = |p: &[u8; 4]| start + u64::from(u32::from_ne_bytes(*p));
                    chosen.positions.extend(places[run.clone()].iter().map(place));
                    chosen.values.extend(bits[run.clone()].iter().map(|b| f32::from_ne_bytes(*b)));
                    found.runs.push(Run { piece, side, kept: run });
                }
                first += total;
            }
        }
        Ok(found)
    }

    /// The error that the library has for a value that was kept of this input and is not finite.
    fn non_finite(&mut self, plan: &Plan, input: usize, tensor: u64, stream: Stream) -> Result<Error> {
        self.down.grow(8)?;
        self.work.fill(0, 0xff, 8, stream)?;
        for (piece, place) in plan.pieces.iter().zip(&plan.places).filter(|(_, p)| p.input == input) {
            let blocks = piece.len.div_ceil(TILE).min(u64::from(8 * self.device.multiprocessors())) as u32;
            let arguments = NonFinite { piece: *piece, start: place.start, least: self.work.address() };
            // SAFETY: the context is current, the tensor there, and `work` has room for a word.
            unsafe { self.device.launch(Kernel::NonFinite, (blocks, 1), stream, &arguments)? };
        }
        self.work.copy_to(0, &mut self.down, 8, stream)?;
        self.device.synchronize(stream)?;
        // SAFETY: the stream was waited for.
        let index = words(unsafe { self.down.bytes(8) })[0];
        Ok(outside::non_finite(tensor, index).into())
    }

    /// Takes what is sent from the sums.
    fn subtract(&mut self, plan: &Plan, found: &FoundAll, sent: &[Sent], stream: Stream) -> Result<()> {
        let values = self.out.address() + 4 * found.total;
        let mut taken = Vec::new();
        let mut upload = Vec::new();
        // How many of a tensor's values earlier pieces had.
        let mut done = vec![0; sent.len()];
        for Run { piece, side, kept } in &found.runs {
            let input = plan.places[*piece].input;
            let (sent, before) = (&sent[input], done[input]);
            if *side != sent.side || kept.is_empty() {
                continue;
            }
            let range = before..before + kept.len();
            done[input] = range.end;
            let (own, sent) = (&found.chosen[input][*side].values[range.clone()], &sent.values[range]);
            let mut item = Taken {
                after: plan.pieces[*piece].after,
                first: kept.start as u64,
                len: kept.len() as u64,
                ..Taken::default()
            };
            if own.iter().zip(sent).all(|(a, b)| a.to_bits() == b.to_bits()) {
                item.values = values;
            } else if sent.iter().all(|x| x.to_bits() == sent[0].to_bits()) {
                item.value = sent[0];
            } else {
                upload.push((taken.len(), sent));
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
        let mut residuals = BTreeMap::new();
        for (name, tensor) in feedback.save() {
            let shape = tensor.view().shape();
            if feedback.get(&name).is_none() {
                return Err(outside::misfit("state of a codec that does not run on a device").into());
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
        self.residuals = residuals;
        Ok(())
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
}

#[derive(Debug, Clone, Copy)]
struct Place {
    input: usize,
    start: u64,
}

/// What was kept of each input, and which run of all that was kept each piece has.
#[derive(Debug)]
struct FoundAll {
    chosen: Vec<[Chosen; 2]>,
    runs: Vec<Run>,
    total: u64,
}

#[derive(Debug)]
struct Run {
    piece: usize,
    side: usize,
    kept: Range<usize>,
}

/// Where things are in the work memory.
#[derive(Debug)]
struct Layout {
    table: Range<u64>,
    zeros: Range<u64>,
    sizes: Range<u64>,
    bytes: u64,
}

impl Plan {
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
        let table = 0..take(0);
        select.states = take(size_of::<State>() as u64 * searches);
        select.counts = take(8 * 2 * BINS * searches);
        select.ticket = take(4);
        let zeros = select.states..take(0);
        select.samples = take(4 * SAMPLE * u64::from(self.samples));
        select.tile_first = take(8 * tiles);
        select.tile_hits = take(4 * tiles);
        select.tile_above = take(4 * 2 * tiles);
        select.tile_equal = take(4 * 2 * tiles);
        select.tile_kept = take(8 * 2 * tiles);
        select.candidate_places = take(4 * self.candidates);
        select.candidate_bits = take(4 * self.candidates);
        select.bases = take(8 * 2 * searches);
        // Together, so that one copy takes both.
        select.totals = take(8 * 2 * (searches + pieces));
        select.piece_kept = select.totals + 8 * 2 * searches;
        let sizes = select.totals..select.piece_kept + 8 * 2 * pieces;
        (Layout { table, zeros, sizes, bytes: take(0) }, select)
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
        ] {
            *field += base;
        }
    }
}

/// As the host's selector has it: `None` where a sample would not help.
fn rank(k: u64, elements: u64) -> Option<u32> {
    let expected = k as f64 * SAMPLE as f64 / elements as f64;
    let rank = (expected + 4.0 * expected.sqrt() + 4.0) as u64;
    (elements > SAMPLE && rank < SAMPLE).then_some(rank as u32)
}

/// Numbers that a device wrote, whose byte order is the host's.
fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|b| u64::from_ne_bytes(*b)).collect()
}
