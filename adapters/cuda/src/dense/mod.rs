//! Codecs that send every element: the tasks of [`gcodec::internal::device::dense`], on a device.

mod plan;

use std::ops::Range;

use gcodec::block::CodedBlock;
use gcodec::compress::Options;
use gcodec::internal::device::dense::{Packed, Task, blocks};
use gcodec::internal::device::non_finite;

use crate::abi::dense::{Made, Work};
use crate::abi::{NonFinite, Piece, TILE_LEN, bytes_of, items_of};
use crate::device::{Device, Kernel};
use crate::error::{Error, Result, inconsistent};
use crate::memory::{Memory, Pinned};
use crate::residuals::Source;
use crate::tensor::Stream;
use plan::{Place, Plan};

/// Memory for dense codecs, kept from update to update.
#[derive(Debug)]
pub(crate) struct Dense {
    work: Memory,
    /// The copy to the host: scales, planes whose length is known, planes of natural codes.
    payload: Memory,
    up: Pinned,
    down: Pinned,
    /// Added to the index of each element where a random word is drawn for it.
    pub(crate) first: u64,
}

/// The launched work of one update.
#[derive(Debug)]
pub(crate) struct Begun {
    tasks: Vec<Task>,
    /// For each block of the device's table where its scales and planes are in the payload.
    places: Vec<Place>,
    /// Bytes of the payload before the planes of natural codes.
    fixed: u64,
    zero_non_finite: u32,
}

/// The result of an update.
pub(crate) enum Outcome {
    /// The blocks.
    Blocks(Vec<CodedBlock>),
    /// This task has an element that is not finite.
    NotFinite { task: usize },
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

    /// Puts everything except the copy of the payload into the stream; `None` without tasks. `sources`: one
    /// for each tensor that the tasks were made of.
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
        let mut plan = Plan::new(&tasks, sources, options, self.first)?;
        let layout = plan.layout();
        let made = size_of::<Made>() as u64 * plan.blocks.len() as u64;
        self.work.grow(layout.bytes)?;
        self.payload.grow(plan.payload_bytes())?;
        self.up.grow(layout.table)?;
        self.down.grow(made)?;
        plan.place(self.work.address() + layout.scratch, self.payload.address());
        self.upload(&plan, &layout.work, layout.table, stream)?;
        self.work.fill(layout.zeros.start, 0, layout.zeros.end - layout.zeros.start, stream)?;
        let work = plan.arguments(layout.work, self.work.address(), self.payload.address());
        launch(device, &plan, &work, stream)?;
        self.work.copy_to(layout.zeros.start, &mut self.down, made, stream)?;
        let (fixed, zero_non_finite) = (plan.fixed_bytes(), plan.zero_non_finite);
        Ok(Some(Begun { tasks, places: plan.places, fixed, zero_non_finite }))
    }

    /// Copies the tables to the device. Every update waits for its stream, so no copy from `up` is under way.
    #[expect(unsafe_code, reason = "writes pinned memory that the device reads")]
    fn upload(&mut self, plan: &Plan, offsets: &Work, table: u64, stream: Stream) -> Result<()> {
        // SAFETY: the last update waited for its copy from it.
        unsafe {
            self.up.write(offsets.spans, bytes_of(&plan.spans));
            self.up.write(offsets.blocks, bytes_of(&plan.blocks));
            self.up.write(offsets.measured, bytes_of(&plan.measured));
        }
        self.work.copy_from(0, &self.up, table, stream)
    }

    /// Waits for the kernels, copies the payload and returns its blocks.
    #[expect(unsafe_code, reason = "reads pinned memory that the device wrote")]
    pub(crate) fn finish(&mut self, device: &Device, begun: &Begun, stream: Stream) -> Result<Outcome> {
        device.synchronize(stream)?;
        let bytes = (size_of::<Made>() * begun.places.len()) as u64;
        // SAFETY: the stream was waited for.
        let made: Vec<Made> = items_of(unsafe { self.down.bytes(bytes) });
        let bad =
            begun.places.iter().zip(&made).filter(|(_, made)| made.bad != 0).map(|(place, _)| place.task);
        if let Some(task) = bad.min() {
            return Ok(Outcome::NotFinite { task });
        }
        let planes = self.planes(begun, &made)?;
        let end = planes.iter().map(|plane| plane.end).max().unwrap_or(0).max(begun.fixed);
        self.down.grow(end)?;
        if end > 0 {
            self.payload.copy_to(0, &mut self.down, end, stream)?;
            device.synchronize(stream)?;
        }
        // SAFETY: the stream was waited for.
        let payload = unsafe { self.down.bytes(end) };
        begun.blocks(&made, &planes, payload).map(Outcome::Blocks)
    }

    /// Returns where the plane of codes of each block is in the payload.
    fn planes(&self, begun: &Begun, made: &[Made]) -> Result<Vec<Range<u64>>> {
        let plane = |(place, made): (&Place, &Made)| {
            let task = &begun.tasks[place.task];
            if task.width().is_some() {
                return Ok(place.plane.clone());
            }
            let bits = u128::from(task.elements()) * u128::from(made.width.min(8));
            let codes = made.plane..made.plane.saturating_add(bits.div_ceil(8) as u64);
            match codes.start < begun.fixed || codes.end > self.payload.len() {
                true => Err(inconsistent()),
                false => Ok(codes),
            }
        };
        begun.places.iter().zip(made).map(plane).collect()
    }

    /// Returns the first input of a task with an element that is not finite, and the error for it.
    #[expect(unsafe_code, reason = "launches kernels and reads pinned memory that the device wrote")]
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
                let blocks = piece.len.div_ceil(TILE_LEN).min(u64::from(8 * device.multiprocessors())) as u32;
                let arguments = NonFinite { piece, start, least: self.work.address() };
                // SAFETY: the context is current, the tensor is borrowed, and `work` has room for a word.
                unsafe { device.launch(Kernel::NonFinite, (blocks, 1), stream, &arguments)? };
            }
            start += piece.len;
        }
        self.work.copy_to(0, &mut self.down, 8, stream)?;
        device.synchronize(stream)?;
        // SAFETY: the stream was waited for.
        let index = items_of::<u64>(unsafe { self.down.bytes(8) })[0];
        let &(start, input) = starts.iter().rfind(|(start, _)| *start <= index).ok_or_else(inconsistent)?;
        Ok((input, non_finite(sources[input].input.tensor, index - start).into()))
    }
}

impl Begun {
    /// `planes`: the codes of each block; `payload`: the copy of the device's.
    fn blocks(&self, made: &[Made], planes: &[Range<u64>], payload: &[u8]) -> Result<Vec<CodedBlock>> {
        let part = |range: &Range<u64>| -> Result<&[u8]> {
            let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
            range.and_then(|(start, end)| payload.get(start..end)).ok_or_else(inconsistent)
        };
        let mut scales = Vec::with_capacity(made.len());
        for place in &self.places {
            let task = &self.tasks[place.task];
            let bytes = part(&(place.scales..place.scales + 4 * task.scales()))?;
            let mut floats: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
            if task.elements() == 0 {
                // No kernel writes the scale of an empty block.
                floats.fill(0.0);
            }
            scales.push(floats);
        }
        let mut packed = vec![Packed::default(); self.tasks.len()];
        for (((place, made), codes), scales) in self.places.iter().zip(made).zip(planes).zip(&scales) {
            let width = self.tasks[place.task].width();
            packed[place.task] = Packed {
                min_exponent: i16::try_from(made.min_exponent).map_err(|_| inconsistent())?,
                width: width.unwrap_or(made.width),
                codes: part(codes)?,
                negative: if width.is_none() { part(&place.plane)? } else { &[] },
                scales,
            };
        }
        Ok(blocks(&self.tasks, &packed)?)
    }
}

/// Launches the kernels that have work. The context is current.
#[expect(unsafe_code, reason = "launches kernels")]
fn launch(device: &Device, plan: &Plan, work: &Work, stream: Stream) -> Result<()> {
    let most = u64::from(8 * device.multiprocessors());
    for (kernel, blocks) in [
        (Kernel::DenseRound, plan.tiles.min(most)),
        (Kernel::DenseRanges, plan.natural),
        (Kernel::DenseMeasure, plan.measure.min(most)),
        (Kernel::DenseScale, plan.buckets),
        (Kernel::DenseQuantise, plan.teams.min(most)),
        (Kernel::DensePack, plan.packs.min(most)),
    ] {
        if blocks > 0 {
            // SAFETY: the context is current; the tables point into the work memory and the payload, which
            // are as large as the plan requires, and into borrowed tensors and residuals, which their spans
            // do not exceed.
            unsafe { device.launch(kernel, (blocks as u32, 1), stream, work)? };
        }
    }
    Ok(())
}
