//! Decoded blocks into device tensors.
#![allow(unsafe_code)]

use std::ops::Range;

use gcodec::block::{Block, Floats, IndexSpace, Planes, Scope, Sets, Stored, Support, Values};
use gcodec::error::InputErrorKind;
use gcodec::frame::Budget;

use crate::device::{Device, Event, Kernel, Memory, Pinned};
use crate::error::{Error, Result};
use crate::plan::{Put, Puts, THREADS, bytes_of};
use crate::tensor::{DeviceTensor, Stream};

/// The part of a device tensor that a block's scope covers.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The tensor; it is written to.
    pub tensor: DeviceTensor<'a>,
    /// First element that the scope covers.
    pub start: u64,
    /// How many it covers.
    pub len: u64,
}

/// Puts blocks into device tensors. What crosses the bus are the positions and the numbers of a block.
///
/// Every position of a block is another element, so that no order of the device's threads matters; blocks follow each other in the
/// order of the stream. Two runs, or two devices, give the same bits.
#[derive(Debug)]
pub struct Scatter {
    device: Device,
    memory: Memory,
    up: Pinned,
    last: Event,
}

impl Scatter {
    /// Something to put blocks with.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(device: &Device) -> Result<Self> {
        let _current = device.enter()?;
        let (memory, up) = (Memory::new(device, 0)?, Pinned::new(device, 0)?);
        Ok(Self { device: device.clone(), memory, up, last: Event::new(device)? })
    }

    /// Gives the elements of `targets`, one for each tensor of the block's scope, what the block says of them, or adds it to them, as
    /// [`Block::apply`] does in the host's memory. It is in the stream when this returns, but need not be done.
    ///
    /// `add`: whether the numbers are added, whatever [`Block::add`] says, which is for blocks of one update.
    ///
    /// # Errors
    /// [`Error::Codec`] for what [`Block::numbers`] and [`Block::positions`] do not know, and for a block that does not fit the
    /// targets; [`Error::Tensor`], [`Error::OutOfMemory`], [`Error::Call`]. Nothing is changed then.
    ///
    /// # Safety
    /// The tensors may be written to, and are there until what is in the stream now is done.
    #[allow(clippy::too_many_arguments)] // as `Block::apply`, and where it is done
    pub unsafe fn put(
        &mut self,
        block: &Block,
        space: &IndexSpace,
        sets: &Sets,
        budget: &Budget,
        targets: &[Target<'_>],
        add: bool,
        stream: Stream,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.put_all(&[Part { block, space, sets, targets }], &[], budget, add, stream) }
    }

    /// The same for the blocks of an update, in its order; first the elements of `zeros` become zero. One copy to the device takes it all;
    /// blocks that follow each other without [`Block::add`] are one launch.
    ///
    /// # Errors
    /// As [`Self::put`], for any of the blocks. Nothing is changed then; but if a call fails that puts work into the stream, some of it
    /// may be there.
    ///
    /// # Safety
    /// As [`Self::put`].
    pub unsafe fn put_all(
        &mut self,
        parts: &[Part<'_>],
        zeros: &[DeviceTensor<'_>],
        budget: &Budget,
        add: bool,
        stream: Stream,
    ) -> Result<()> {
        zeros.iter().try_for_each(|tensor| tensor.check_device(&self.device))?;
        let mut plan = Plan::default();
        for part in parts {
            part.targets.iter().try_for_each(|t| t.tensor.check_device(&self.device))?;
            plan.take(part, budget, add)?;
        }
        let Plan { mut puts, launches, positions, numbers, .. } = plan;
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()?;
        let table = size_of_val(&*puts) as u64;
        let first_value = table + 8 * positions.len() as u64;
        let bytes = first_value + 4 * numbers.len() as u64;
        if !puts.is_empty() {
            self.memory.grow(bytes)?;
            self.up.grow(bytes)?;
            for put in &mut puts {
                put.positions = match put.positions {
                    NO_POSITIONS => 0,
                    first => self.memory.address() + table + 8 * first,
                };
                put.values = self.memory.address() + first_value + 4 * put.values;
            }
            let positions: Vec<u8> = positions.iter().flat_map(|p| p.to_ne_bytes()).collect();
            let numbers: Vec<u8> = numbers.iter().flat_map(|x| x.to_ne_bytes()).collect();
            // SAFETY: the event was waited for.
            unsafe {
                self.up.write(0, bytes_of(&puts));
                self.up.write(table, &positions);
                self.up.write(first_value, &numbers);
            }
            self.memory.copy_from(0, &self.up, bytes, stream)?;
            self.last.record(stream)?;
        }
        for tensor in zeros.iter().filter(|t| t.elements() > 0) {
            let bytes = tensor.dtype().bytes_for(tensor.elements()).unwrap_or(0) as usize;
            // SAFETY: the caller lends the whole tensor.
            let code = unsafe { (device.driver().functions.fill)(tensor.address(), 0, bytes, stream.raw()) };
            device.driver().check("cuMemsetD8Async", code)?;
        }
        for launch in launches {
            let most = puts[launch.clone()].iter().map(|p| p.len).max().unwrap_or(1);
            let blocks = most.div_ceil(4 * u64::from(THREADS)).min(u64::from(8 * device.multiprocessors()));
            for first in launch.clone().step_by(65_535) {
                let rows = (launch.end - first).min(65_535);
                let arguments = Puts { puts: self.memory.address() + (first * size_of::<Put>()) as u64 };
                // SAFETY: the context is current; every position was found to lie inside of its tensor, which the caller lends.
                unsafe { device.launch(Kernel::Scatter, (blocks as u32, rows as u32), stream, &arguments)? };
            }
        }
        self.last.record(stream)
    }
}

impl Scatter {
    /// Waits until what was put last is there.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn wait(&mut self) -> Result<()> {
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()
    }
}

/// A block of an update, and where it goes.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The block.
    pub block: &'a Block,
    /// The elements that it speaks of.
    pub space: &'a IndexSpace,
    /// The index sets that it may name.
    pub sets: &'a Sets,
    /// One for each tensor of its scope.
    pub targets: &'a [Target<'a>],
}

/// In the place of the first of a put's positions: it has none, but all elements.
const NO_POSITIONS: u64 = u64::MAX;

/// What crosses the bus. Until it has a place there, puts have numbers of positions and values for their addresses.
#[derive(Default)]
struct Plan {
    puts: Vec<Put>,
    launches: Vec<Range<usize>>,
    positions: Vec<u64>,
    numbers: Vec<u32>,
    /// The first tensor and element that the next block may cover to be in the same launch.
    next: Option<(u64, u64)>,
}

impl Plan {
    fn take(&mut self, part: &Part<'_>, budget: &Budget, add: bool) -> Result<()> {
        let Part { block, space, sets, targets } = *part;
        let fits = targets.len() == space.lens.len()
            && targets.iter().zip(&space.lens).all(|(t, &len)| {
                t.len == len
                    && t.tensor.dtype() == space.dtype
                    && t.start.checked_add(len).is_some_and(|end| end <= t.tensor.elements())
            });
        if !fits {
            return Err(wrong("targets do not fit the block's scope"));
        }
        let all = block.support == Support::All;
        let mut positions = if all { Vec::new() } else { block.positions(space, sets, budget)? };
        let add = add || block.add;
        let (numbers, as_they_are) = words(block, space, sets, budget, add)?;
        let count = if all { space.len() } else { positions.len() as u64 };
        if numbers.len() as u64 != count {
            return Err(wrong("the block's values are not as many as its positions"));
        }
        // A block that was read is in order; one that was made need not be, and a device does not look.
        if !positions.is_sorted_by(|a, b| a < b) || positions.last().is_some_and(|&p| p >= space.len()) {
            return Err(wrong("the block's positions are not ascending inside of its scope"));
        }
        let (first, from) = (self.puts.len(), self.numbers.len());
        let (mut done, mut base) = (0, 0);
        for target in targets {
            let end = base + target.len;
            let count = match all {
                true => target.len as usize,
                false => positions[done..].partition_point(|&p| p < end),
            };
            if !all {
                for position in &mut positions[done..done + count] {
                    *position = *position - base + target.start;
                }
            }
            if count > 0 {
                self.puts.push(Put {
                    data: target.tensor.address(),
                    positions: if all { NO_POSITIONS } else { (self.positions.len() + done) as u64 },
                    values: (from + done) as u64,
                    start: target.start,
                    len: count as u64,
                    dtype: target.tensor.dtype().id().into(),
                    add: if as_they_are { 2 } else { u32::from(add) },
                });
            }
            (done, base) = (done + count, end);
        }
        self.positions.extend(positions);
        self.numbers.extend(numbers);
        let (start, end) = match block.scope {
            Scope::Tensor(t) => ((t, 0), (t.saturating_add(1), 0)),
            Scope::Tensors { first, count } => ((first, 0), (first.saturating_add(count), 0)),
            Scope::Range { tensor, start, len } => ((tensor, start), (tensor, start.saturating_add(len))),
        };
        let apart = self.next.is_some_and(|next| start >= next) && !block.add;
        self.next = (!block.add).then_some(end);
        let new = first..self.puts.len();
        match self.launches.last_mut() {
            _ if new.is_empty() => {}
            Some(last) if apart => last.end = new.end,
            _ => self.launches.push(new),
        }
        Ok(())
    }
}

fn wrong(what: &'static str) -> Error {
    gcodec::Error::from(InputErrorKind::InconsistentBlock { what }).into()
}

/// The words that a block gives: bit patterns of 32-bit floats; or, for the second, of 16-bit elements as they are.
fn words(
    block: &Block,
    space: &IndexSpace,
    sets: &Sets,
    budget: &Budget,
    add: bool,
) -> Result<(Vec<u32>, bool)> {
    let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect();
    match &block.values {
        Values::Floats(Floats { stored: Stored::Source, bytes }) | Values::Planes(Planes { bytes }) => {
            let width = space.dtype.bits() / 8;
            if width == 2 && !add {
                // Not by way of floats, which have no signalling NaN of the narrow type.
                let halves = bytes.as_chunks().0.iter().map(|b| u32::from(u16::from_le_bytes(*b)));
                return Ok((halves.collect(), true));
            }
            let mut numbers = vec![0.0; bytes.len() / width as usize];
            gcodec::tensor::element::decode_f32s(space.dtype, bytes, 0, &mut numbers)?;
            Ok((bits(numbers), false))
        }
        _ => Ok((bits(block.numbers(space, sets, budget)?), false)),
    }
}
