//! Codecs that send every element: what [`gcodec::compress::device::dense`] asks for, on a device.
#![allow(unsafe_code)]

use std::ops::Range;

use gcodec::block::{Block, Spacing};
use gcodec::compress::device::dense::{Packed, Quantizer, Task, blocks};
use gcodec::compress::device::non_finite;
use gcodec::compress::{NonFinite as NonFiniteRule, Options, Share};
use gcodec::error::InputErrorKind;

use crate::compressor::Input;
use crate::device::{Device, Kernel, Memory, Pinned};
use crate::error::{Error, Result, TensorError};
use crate::plan::dense::{Made, Measured, Quantized, RUN, Span, Work};
use crate::plan::{NonFinite, Piece, TILE, WARPS, bytes_of};
use crate::tensor::Stream;

/// Kinds of [`Quantized`], by their numbers in `adapters/cuda/kernels/dense.cuh`.
const NATURAL: u32 = 0;
const UNIFORM: u32 = 1;
const DITHER: u32 = 2;
const INT8: u32 = 3;
const SIGNS: u32 = 4;

/// Memory for dense codecs, kept from update to update.
#[derive(Debug)]
pub(crate) struct Dense {
    work: Memory,
    /// What the host gets: scales, planes whose length is known, planes of natural codes.
    payload: Memory,
    up: Pinned,
    down: Pinned,
    /// Added to the number of each element where words are drawn.
    pub(crate) first: u64,
}

/// A tensor and its residual.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) input: Input<'a>,
    /// Address of the residual that is added, and of where the next one goes; 0 for none.
    pub(crate) residual: u64,
    pub(crate) after: u64,
}

/// What was launched.
#[derive(Debug)]
pub(crate) struct Begun {
    tasks: Vec<Task>,
    /// For each block of the device's table its task, and where its scales and its plane are in the payload.
    places: Vec<Place>,
    /// Bytes of the payload before the planes of natural codes.
    fixed: u64,
    zero_non_finite: u32,
}

#[derive(Debug, Clone, Default)]
struct Place {
    task: usize,
    scales: u64,
    plane: Range<u64>,
}

/// What came of it.
pub(crate) enum Outcome {
    /// The blocks.
    Blocks(Vec<Block>),
    /// This task has an element that is not finite.
    NotFinite { task: usize },
}

/// Gives away places one after the other, each at a multiple of 256.
#[derive(Debug, Default)]
struct Layout {
    end: u64,
}

impl Layout {
    fn take(&mut self, bytes: u64) -> u64 {
        let start = self.end;
        self.end = (start + bytes).next_multiple_of(256);
        start
    }
}

impl Dense {
    /// The context is current.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            work: Memory::new(device, 0)?,
            payload: Memory::new(device, 0)?,
            up: Pinned::new(device, 0)?,
            down: Pinned::new(device, 0)?,
            first: 0,
        })
    }

    /// Puts everything but the copy of the payload into the stream; `None` if there is nothing to do. `sources`: one for each tensor
    /// that tasks were made of.
    pub(crate) fn begin(
        &mut self,
        device: &Device,
        tasks: Vec<Task>,
        sources: &[Source<'_>],
        options: &Options,
        stream: Stream,
    ) -> Result<Option<Begun>> {
        if tasks.is_empty() {
            return Ok(None);
        }
        let zero_non_finite = u32::from(options.non_finite == NonFiniteRule::Zero);
        let mut plan = Plan { first: self.first, zero_non_finite, ..Plan::default() };
        let is_natural = |task: &Task| matches!(task.quantizer, Quantizer::Natural { .. });
        // Natural blocks come first in the table, so that the others' planes can come first in the payload.
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        order.sort_by_key(|&i| !is_natural(&tasks[i]));
        for (i, of) in order.iter().map(|&i| (i, &tasks[i])) {
            match is_natural(of) {
                true => plan.natural(i, of, sources),
                false => plan.bucketed(i, of, sources),
            }
        }
        let counts = [plan.tiles, plan.measure, plan.teams, plan.packs, plan.spans.len() as u64];
        if counts.iter().any(|&n| i32::try_from(n).is_err()) || i32::try_from(plan.buckets).is_err() {
            return Err(TensorError::TooMany { most: i32::MAX as usize }.into());
        }
        let (natural, n_blocks) = (plan.natural, plan.blocks.len() as u64);
        // The table, what has to be zero in the beginning, and the rest.
        let mut layout = Layout::default();
        let mut work = Work {
            spans: layout.take((size_of::<Span>() * plan.spans.len()) as u64),
            blocks: layout.take((size_of::<Quantized>() * plan.blocks.len()) as u64),
            measured: layout.take((size_of::<Measured>() * plan.measured.len()) as u64),
            ..Work::default()
        };
        let table = layout.end;
        work.made = layout.take(size_of::<Made>() as u64 * n_blocks);
        work.ticket = layout.take(4);
        let zeros = work.made..layout.end;
        work.seen = layout.take(8 * plan.tiles);
        work.bytes = layout.take(8 * natural);
        let scratch = layout.take(plan.scratch.end);
        self.work.grow(layout.end)?;
        let fixed = plan.payload.end;
        self.payload.grow(fixed + plan.most)?;
        self.up.grow(table)?;
        self.down.grow(size_of::<Made>() as u64 * n_blocks)?;
        let (base, payload) = (self.work.address(), self.payload.address());
        plan.place(base + scratch, payload);
        // SAFETY: every update waits for what it copies from it.
        unsafe {
            self.up.write(work.spans, bytes_of(&plan.spans));
            self.up.write(work.blocks, bytes_of(&plan.blocks));
            self.up.write(work.measured, bytes_of(&plan.measured));
        }
        for offset in [
            &mut work.spans,
            &mut work.blocks,
            &mut work.measured,
            &mut work.made,
            &mut work.ticket,
            &mut work.seen,
            &mut work.bytes,
        ] {
            *offset += base;
        }
        work.payload = payload;
        work.base = fixed;
        work.n_spans = plan.spans.len() as u32;
        work.n_natural = natural as u32;
        work.n_blocks = n_blocks as u32;
        work.n_measured = plan.measured.len() as u32;
        work.n_tiles = plan.tiles as u32;
        work.n_measure = plan.measure as u32;
        work.n_teams = plan.teams as u32;
        work.n_packs = plan.packs as u32;
        self.work.copy_from(0, &self.up, table, stream)?;
        self.work.fill(zeros.start, 0, zeros.end - zeros.start, stream)?;
        let most = u64::from(8 * device.multiprocessors());
        for (kernel, wanted) in [
            (Kernel::DenseRound, plan.tiles.min(most)),
            (Kernel::DenseRanges, natural),
            (Kernel::DenseMeasure, plan.measure.min(most)),
            (Kernel::DenseScale, plan.buckets),
            (Kernel::DenseQuantise, plan.teams.min(most)),
            (Kernel::DensePack, plan.packs.min(most)),
        ] {
            if wanted > 0 {
                // SAFETY: the context is current; the tables point into `work` and `payload`, which are as large as the plan says,
                // and into tensors and residuals, where spans lie inside of them.
                unsafe { device.launch(kernel, (wanted as u32, 1), stream, &work)? };
            }
        }
        self.work.copy_to(zeros.start, &mut self.down, size_of::<Made>() as u64 * n_blocks, stream)?;
        Ok(Some(Begun { tasks, places: plan.places, fixed, zero_non_finite }))
    }

    /// Waits for it.
    pub(crate) fn finish(&mut self, device: &Device, begun: &Begun, stream: Stream) -> Result<Outcome> {
        device.synchronize(stream)?;
        let bytes = (size_of::<Made>() * begun.places.len()) as u64;
        // SAFETY: the stream was waited for.
        let made: Vec<Made> =
            unsafe { self.down.bytes(bytes) }.as_chunks::<24>().0.iter().map(made).collect();
        let bad =
            begun.places.iter().zip(&made).filter(|(_, made)| made.bad != 0).map(|(place, _)| place.task);
        if let Some(task) = bad.min() {
            return Ok(Outcome::NotFinite { task });
        }
        let mut planes = Vec::with_capacity(made.len());
        let mut end = begun.fixed;
        for (place, made) in begun.places.iter().zip(&made) {
            let task = &begun.tasks[place.task];
            let codes = match task.width() {
                Some(_) => place.plane.clone(),
                None => {
                    let bits = u128::from(task.elements()) * u128::from(made.width.min(8));
                    let bytes = bits.div_ceil(8) as u64;
                    let codes = made.plane..made.plane.saturating_add(bytes);
                    if codes.start < begun.fixed || codes.end > self.payload.len() {
                        return Err(wrong());
                    }
                    codes
                }
            };
            end = end.max(codes.end);
            planes.push(codes);
        }
        self.down.grow(end)?;
        if end > 0 {
            self.payload.copy_to(0, &mut self.down, end, stream)?;
            device.synchronize(stream)?;
        }
        // SAFETY: the stream was waited for.
        let payload = unsafe { self.down.bytes(end) };
        let part = |range: &Range<u64>| -> Result<&[u8]> {
            let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
            range.and_then(|(start, end)| payload.get(start..end)).ok_or_else(wrong)
        };
        let mut scales = Vec::with_capacity(made.len());
        for place in &begun.places {
            let task = &begun.tasks[place.task];
            let of_task = part(&(place.scales..place.scales + 4 * task.scales()))?;
            let mut floats: Vec<f32> = of_task.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
            if task.elements() == 0 {
                // Of nothing no kernel makes a scale.
                floats.fill(0.0);
            }
            scales.push(floats);
        }
        let mut packed = vec![Packed::default(); begun.tasks.len()];
        for (((place, made), codes), scales) in begun.places.iter().zip(&made).zip(&planes).zip(&scales) {
            let width = begun.tasks[place.task].width();
            packed[place.task] = Packed {
                min_exponent: i16::try_from(made.min_exponent).map_err(|_| wrong())?,
                width: width.unwrap_or(made.width),
                codes: part(codes)?,
                negative: if width.is_none() { part(&place.plane)? } else { &[] },
                scales,
            };
        }
        Ok(Outcome::Blocks(blocks(&begun.tasks, &packed)?))
    }

    /// The first input of a task with an element that is not finite, and the error for it.
    pub(crate) fn first_non_finite(
        &mut self,
        device: &Device,
        begun: &Begun,
        task: usize,
        sources: &[Source<'_>],
        stream: Stream,
    ) -> Result<(usize, Error)> {
        self.work.grow(8)?;
        self.down.grow(8)?;
        self.work.fill(0, 0xff, 8, stream)?;
        let mut start = 0;
        let mut starts = Vec::new();
        for span in &begun.tasks[task].spans {
            let Source { input, residual, .. } = sources[span.input];
            let piece = Piece {
                data: input.data.address(),
                residual,
                len: input.data.elements(),
                dtype: input.data.dtype().id().into(),
                zero_non_finite: begun.zero_non_finite,
                ..Piece::default()
            };
            starts.push((start, span.input));
            if piece.len > 0 {
                let blocks = piece.len.div_ceil(TILE).min(u64::from(8 * device.multiprocessors())) as u32;
                let arguments = NonFinite { piece, start, least: self.work.address() };
                // SAFETY: the context is current, the tensor there, and `work` has room for a word.
                unsafe { device.launch(Kernel::NonFinite, (blocks, 1), stream, &arguments)? };
            }
            start += piece.len;
        }
        self.work.copy_to(0, &mut self.down, 8, stream)?;
        device.synchronize(stream)?;
        // SAFETY: the stream was waited for.
        let word = unsafe { self.down.bytes(8) }.as_chunks::<8>().0[0];
        let index = u64::from_ne_bytes(word);
        let &(start, input) = starts.iter().rfind(|(start, _)| *start <= index).ok_or_else(wrong)?;
        Ok((input, non_finite(sources[input].input.tensor, index - start).into()))
    }
}

/// Returns the error for inconsistent results of a device.
fn wrong() -> Error {
    gcodec::Error::from(InputErrorKind::InconsistentBlock { what: "results of the device" }).into()
}

fn made(bytes: &[u8; 24]) -> Made {
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
    Made {
        plane: u64::from_ne_bytes(std::array::from_fn(|i| bytes[i])),
        min_exponent: word(8).cast_signed(),
        width: word(12),
        bad: word(16),
        below: word(20),
    }
}

/// The tables of one update; places are offsets until [`Plan::place`].
#[derive(Debug, Default)]
struct Plan {
    spans: Vec<Span>,
    blocks: Vec<Quantized>,
    measured: Vec<Measured>,
    places: Vec<Place>,
    first: u64,
    zero_non_finite: u32,
    natural: u64,
    tiles: u64,
    measure: u64,
    buckets: u64,
    teams: u64,
    packs: u64,
    scratch: Layout,
    payload: Layout,
    /// The most bytes that planes of natural codes take.
    most: u64,
    /// Which codes and signs are in the payload rather than in scratch memory.
    codes_in_payload: Vec<bool>,
    signs_in_payload: Vec<bool>,
    /// The last tensor that shares one scale: its input, and where that scale is.
    shared: Option<(usize, u64)>,
}

impl Plan {
    fn span(&mut self, source: &Source<'_>, start: u64, len: u64, before: u64) -> Span {
        let Source { input, residual, after } = source;
        let size = u64::from(input.data.dtype().bits() / 8);
        let address = |base: u64| if base == 0 { 0 } else { base + 4 * start };
        Span {
            piece: Piece {
                data: input.data.address() + size * start,
                residual: address(*residual),
                after: address(*after),
                len,
                start: before,
                dtype: input.data.dtype().id().into(),
                search: self.blocks.len() as u32,
                first_tile: self.tiles as u32,
                zero_non_finite: self.zero_non_finite,
            },
            tensor: input.tensor,
            first: start.wrapping_add(self.first),
            ..Span::default()
        }
    }

    fn natural(&mut self, i: usize, task: &Task, sources: &[Source<'_>]) {
        let Quantizer::Natural { seed } = task.quantizer else { return };
        let (len, first_span, first_tile) = (task.elements(), self.spans.len() as u32, self.tiles);
        let plane = self.payload.take(len.div_ceil(32) * 4);
        let mut before = 0;
        for of in &task.spans {
            let mut span = self.span(&sources[of.input], of.start, of.len, before);
            span.codes = self.scratch.take(of.len);
            let merged = task.spans.len() > 1;
            span.signs = if merged { self.scratch.take(of.len.div_ceil(32) * 4) } else { plane };
            self.spans.push(span);
            self.codes_in_payload.push(false);
            self.signs_in_payload.push(!merged);
            self.tiles += of.len.div_ceil(TILE);
            before += of.len;
        }
        self.blocks.push(Quantized {
            len,
            seed,
            plane,
            kind: NATURAL,
            first_span,
            spans: task.spans.len() as u32,
            first_tile: first_tile as u32,
            tiles: (self.tiles - first_tile) as u32,
            first_pack: self.packs as u32,
            ..Quantized::default()
        });
        self.packs += len.div_ceil(TILE);
        self.natural += 1;
        self.most += len.next_multiple_of(16);
        self.places.push(Place { task: i, scales: 0, plane: plane..plane + len.div_ceil(8) });
    }

    fn bucketed(&mut self, i: usize, task: &Task, sources: &[Source<'_>]) {
        let &[of] = task.spans.as_slice() else { return };
        let (len, width) = (of.len, task.width().unwrap_or(8));
        let source = &sources[of.input];
        let mut block = Quantized {
            len,
            width,
            clip: f32::INFINITY,
            first_span: self.spans.len() as u32,
            spans: 1,
            first_tile: self.tiles as u32,
            first_team: self.teams as u32,
            first_pack: self.packs as u32,
            ..Quantized::default()
        };
        match task.quantizer {
            Quantizer::Levels { spacing, max_level, norm, clip, seed } => {
                block.kind = if spacing == Spacing::Uniform { UNIFORM } else { DITHER };
                (block.max_level, block.norm, block.clip, block.seed) = (max_level, norm as u32, clip, seed);
            }
            Quantizer::Int8 => block.kind = INT8,
            Quantizer::Sign | Quantizer::Natural { .. } => block.kind = SIGNS,
        }
        block.plane = self.payload.take((u128::from(len) * u128::from(width)).div_ceil(32) as u64 * 4);
        let mut span = self.span(source, of.start, len, 0);
        let bucket = match task.share {
            Some(Share::Len(bucket)) => bucket.min(len).max(1),
            _ => len.max(1),
        };
        (block.bucket, block.runs) = (bucket, bucket.div_ceil(RUN));
        // Codes go to the plane at once where no two warps have bits of one word of it.
        let direct = match width {
            8 | 16 => true,
            1 | 2 | 4 => bucket >= len || bucket.is_multiple_of(32),
            _ => false,
        };
        (block.step, span.codes) = match direct {
            true => (width, block.plane),
            false if width > 8 => (16, self.scratch.take(2 * len)),
            false => (8, self.scratch.take(len)),
        };
        let shared = task.share == Some(Share::Tensor);
        block.known = u32::from(shared || block.runs > WARPS);
        block.scales = match self.shared {
            Some((input, scales)) if shared && input == of.input => scales,
            _ => {
                let scales = self.payload.take(4 * task.scales());
                let whole = source.input.data.elements();
                if shared && whole > 0 {
                    let piece = self.span(source, 0, whole, 0).piece;
                    self.measure(piece, whole, scales);
                } else if block.known != 0 {
                    self.measure(span.piece, bucket, scales);
                }
                scales
            }
        };
        if shared {
            self.shared = Some((of.input, block.scales));
        }
        self.teams += match block.known {
            0 => len.div_ceil(bucket).div_ceil(WARPS / block.runs),
            // The last bucket may have fewer runs; the others are as many as are counted.
            _ => (len.div_ceil(bucket) * block.runs).div_ceil(WARPS),
        };
        if !direct {
            self.packs += len.div_ceil(TILE);
        }
        let plane = block.plane..block.plane + (u128::from(len) * u128::from(width)).div_ceil(8) as u64;
        self.places.push(Place { task: i, scales: block.scales, plane });
        self.codes_in_payload.push(direct);
        self.signs_in_payload.push(false);
        self.spans.push(span);
        self.blocks.push(block);
    }

    /// Scales of the buckets of a piece before they are quantised.
    fn measure(&mut self, piece: Piece, bucket: u64, scales: u64) {
        let (buckets, tiles) = (piece.len.div_ceil(bucket), bucket.div_ceil(TILE));
        self.measured.push(Measured {
            piece,
            bucket,
            tiles,
            sums: self.scratch.take(8 * buckets * tiles),
            largest: self.scratch.take(4 * buckets * tiles),
            scales,
            block: self.blocks.len() as u32,
            first_team: self.measure as u32,
            first_bucket: self.buckets as u32,
            reserved: 0,
        });
        self.measure += buckets * tiles;
        self.buckets += buckets;
    }

    /// Makes addresses of offsets.
    fn place(&mut self, scratch: u64, payload: u64) {
        let in_payload = self.codes_in_payload.iter().zip(&self.signs_in_payload);
        for (span, (&codes, &signs)) in self.spans.iter_mut().zip(in_payload) {
            span.codes += if codes { payload } else { scratch };
            span.signs += if signs { payload } else { scratch };
        }
        for block in &mut self.blocks {
            block.scales += payload;
            block.plane += payload;
        }
        for measured in &mut self.measured {
            measured.sums += scratch;
            measured.largest += scratch;
            measured.scales += payload;
        }
    }
}
