//! The tables of an update that quantises.

use std::ops::Range;

use gcodec::block::Spacing;
use gcodec::compress::{NonFinite as NonFiniteRule, Options, Share};
use gcodec::internal::device::dense::{Quantizer, Task};

use crate::abi::dense::{Made, Measured, Quantized, RUN_LEN, Span, Work};
use crate::abi::{Piece, TILE_LEN, WARPS};
use crate::error::{Result, TensorError};
use crate::residuals::Source;

/// Kinds of [`Quantized`], by their numbers in `adapters/cuda/kernels/dense.cuh`.
const NATURAL: u32 = 0;
const UNIFORM: u32 = 1;
const DITHER: u32 = 2;
const INT8: u32 = 3;
const SIGNS: u32 = 4;

/// The tables of one update. Offsets in them become addresses by [`Plan::place`].
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) spans: Vec<Span>,
    /// Natural blocks first, so that their planes, whose length only the device knows, come last in the
    /// payload.
    pub(super) blocks: Vec<Quantized>,
    pub(super) measured: Vec<Measured>,
    /// For each block where its result is.
    pub(super) places: Vec<Place>,
    pub(super) zero_non_finite: u32,
    /// The number of natural blocks, and of their tiles.
    pub(super) natural: u64,
    pub(super) tiles: u64,
    /// Tiles to measure, and the buckets that they belong to.
    pub(super) measure: u64,
    pub(super) buckets: u64,
    pub(super) teams: u64,
    /// Tiles to pack.
    pub(super) packs: u64,
    first: u64,
    scratch: Layout,
    payload: Layout,
    /// The most bytes that planes of natural codes take.
    natural_bytes: u64,
    /// Which spans have their codes, and their signs, in the payload rather than in scratch memory.
    codes_in_payload: Vec<bool>,
    signs_in_payload: Vec<bool>,
    /// The last tensor with one scale: its input, and the offset of the scale.
    shared: Option<(usize, u64)>,
}

/// The task of a block, and where its scales and its plane are in the payload. The plane of a natural block
/// has its signs.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    pub(super) task: usize,
    pub(super) scales: u64,
    pub(super) plane: Range<u64>,
}

/// Offsets in the work memory, in bytes: the tables, which are copied to the device; what begins as zeros;
/// the rest.
pub(super) struct WorkLayout {
    /// With offsets in the place of addresses.
    pub(super) work: Work,
    pub(super) table: u64,
    pub(super) zeros: Range<u64>,
    pub(super) scratch: u64,
    pub(super) bytes: u64,
}

/// Allots memory, at multiples of 256 bytes.
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

impl Plan {
    /// `first`: added to the index of each element where a random word is drawn for it.
    pub(super) fn new(tasks: &[Task], sources: &[Source<'_>], options: &Options, first: u64) -> Result<Self> {
        let zero_non_finite = u32::from(options.non_finite == NonFiniteRule::Zero);
        let mut plan = Self { first, zero_non_finite, ..Self::default() };
        let is_natural = |task: &Task| matches!(task.quantizer, Quantizer::Natural { .. });
        let (natural, bucketed): (Vec<_>, Vec<_>) =
            tasks.iter().enumerate().partition(|(_, t)| is_natural(t));
        natural.into_iter().for_each(|(i, task)| plan.natural(i, task, sources));
        bucketed.into_iter().for_each(|(i, task)| plan.bucketed(i, task, sources));
        let spans = plan.spans.len() as u64;
        let counts = [plan.tiles, plan.measure, plan.teams, plan.packs, plan.buckets, spans];
        match counts.iter().all(|&n| i32::try_from(n).is_ok()) {
            true => Ok(plan),
            false => Err(TensorError::TooMany { most: i32::MAX as usize }.into()),
        }
    }

    /// Bytes of the payload before the planes of natural codes.
    pub(super) fn fixed_bytes(&self) -> u64 {
        self.payload.end
    }

    pub(super) fn payload_bytes(&self) -> u64 {
        self.payload.end + self.natural_bytes
    }

    pub(super) fn layout(&self) -> WorkLayout {
        let mut layout = Layout::default();
        let mut work = Work {
            spans: layout.take(size_of_val(self.spans.as_slice()) as u64),
            blocks: layout.take(size_of_val(self.blocks.as_slice()) as u64),
            measured: layout.take(size_of_val(self.measured.as_slice()) as u64),
            ..Work::default()
        };
        let table = layout.end;
        work.made = layout.take(size_of::<Made>() as u64 * self.blocks.len() as u64);
        work.ticket = layout.take(4);
        let zeros = work.made..layout.end;
        work.seen = layout.take(8 * self.tiles);
        work.bytes = layout.take(8 * self.natural);
        let scratch = layout.take(self.scratch.end);
        WorkLayout { work, table, zeros, scratch, bytes: layout.end }
    }

    /// Returns the kernels' arguments. `offsets`: those of [`Self::layout`]; `base` and `payload`: addresses.
    pub(super) fn arguments(&self, offsets: Work, base: u64, payload: u64) -> Work {
        Work {
            spans: base + offsets.spans,
            blocks: base + offsets.blocks,
            measured: base + offsets.measured,
            made: base + offsets.made,
            seen: base + offsets.seen,
            bytes: base + offsets.bytes,
            ticket: base + offsets.ticket,
            payload,
            base: self.fixed_bytes(),
            n_spans: self.spans.len() as u32,
            n_natural: self.natural as u32,
            n_blocks: self.blocks.len() as u32,
            n_measured: self.measured.len() as u32,
            n_tiles: self.tiles as u32,
            n_measure: self.measure as u32,
            n_teams: self.teams as u32,
            n_packs: self.packs as u32,
        }
    }

    /// Elements `start` to `start + len` of a tensor, which are preceded by `before` elements in their block.
    fn span(&self, source: &Source<'_>, start: u64, len: u64, before: u64) -> Span {
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
            self.tiles += of.len.div_ceil(TILE_LEN);
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
        self.packs += len.div_ceil(TILE_LEN);
        self.natural += 1;
        self.natural_bytes += len.next_multiple_of(16);
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
        (block.bucket, block.runs) = (bucket, bucket.div_ceil(RUN_LEN));
        // Codes are written to the plane directly where no two warps share a word of it.
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
            // The last bucket may have fewer runs than are counted.
            _ => (len.div_ceil(bucket) * block.runs).div_ceil(WARPS),
        };
        if !direct {
            self.packs += len.div_ceil(TILE_LEN);
        }
        let plane = block.plane..block.plane + (u128::from(len) * u128::from(width)).div_ceil(8) as u64;
        self.places.push(Place { task: i, scales: block.scales, plane });
        self.codes_in_payload.push(direct);
        self.signs_in_payload.push(false);
        self.spans.push(span);
        self.blocks.push(block);
    }

    /// Measures the scales of the buckets of a piece before they are quantised.
    fn measure(&mut self, piece: Piece, bucket: u64, scales: u64) {
        let (buckets, tiles) = (piece.len.div_ceil(bucket), bucket.div_ceil(TILE_LEN));
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

    /// Turns offsets into addresses.
    pub(super) fn place(&mut self, scratch: u64, payload: u64) {
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
