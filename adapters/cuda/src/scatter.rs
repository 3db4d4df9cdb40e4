//! From decoded blocks to device tensors.

use std::ops::Range;

use gcodec::block::{Block, Floats, IndexSpace, Planes, Scope, Sets, Stored, Support, Values};
use gcodec::error::InputErrorKind;
use gcodec::frame::Budget;

use crate::abi::{Put, Puts, THREADS, bytes_of};
use crate::device::{Device, Kernel};
use crate::error::{Error, Result};
use crate::memory::{Event, Memory, Pinned};
use crate::tensor::{DeviceTensor, Stream};

/// The part of a device tensor that a block's scope covers.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The tensor, which is written to.
    pub tensor: DeviceTensor<'a>,
    /// First element that the scope covers.
    pub start: u64,
    /// The number of elements that it covers.
    pub len: u64,
}

/// Writes blocks into device tensors. The positions and the values of each block cross the bus.
///
/// The result does not depend on the order of the device's threads, because the positions of a block are
/// distinct, and blocks follow each other in stream order. Two runs, or two devices, give the same bits.
#[derive(Debug)]
pub struct Scatter {
    device: Device,
    memory: Memory,
    up: Pinned,
    last: Event,
}

impl Scatter {
    /// Returns a scatter that has allocated no memory yet.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(device: &Device) -> Result<Self> {
        let _current = device.enter()?;
        let (memory, up) = (Memory::new(device, 0)?, Pinned::new(device, 0)?);
        Ok(Self { device: device.clone(), memory, up, last: Event::new(device)? })
    }

    /// Writes a block into `targets`, one for each tensor of its scope, or adds it to them: on the device
    /// what [`Block::apply`] does on the host. The work is in the stream when this returns, and may still be
    /// running.
    ///
    /// `add`: adds the values even without [`Block::add`], which relates blocks of one update.
    ///
    /// # Errors
    /// [`Error::Codec`] for blocks that [`Block::numbers`] and [`Block::positions`] refuse, and for a block
    /// that does not fit the targets; [`Error::Tensor`], [`Error::OutOfMemory`], [`Error::Call`]. The targets
    /// are unchanged after an error.
    ///
    /// # Safety
    /// The tensors may be written to, and stay allocated until the work that is in the stream now is done.
    #[expect(clippy::too_many_arguments, reason = "those of `Block::apply`, and the stream")]
    #[expect(unsafe_code, reason = "forwards the caller's promise")]
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
        unsafe { self.put_all(&[TargetedBlock { block, space, sets, targets }], &[], budget, add, stream) }
    }

    /// Sets the elements of `zeros` to zero, then writes the blocks of an update in their order. All blocks
    /// are one copy to the device, and consecutive blocks without [`Block::add`] are one launch.
    ///
    /// # Errors
    /// As [`Self::put`], for any of the blocks. The targets are unchanged after an error, except if a call
    /// fails that puts work into the stream: then some of the blocks may be written.
    ///
    /// # Safety
    /// As [`Self::put`].
    #[expect(unsafe_code, reason = "writes pinned memory, calls the driver and launches kernels")]
    pub unsafe fn put_all(
        &mut self,
        parts: &[TargetedBlock<'_>],
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
            // SAFETY: the event behind the last copy from it was waited for.
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
            // SAFETY: the caller lends the whole tensor to be written to.
            let code = unsafe { (device.driver().functions.fill)(tensor.address(), 0, bytes, stream.raw()) };
            device.driver().check("cuMemsetD8Async", code)?;
        }
        for launch in launches {
            let most = puts[launch.clone()].iter().map(|p| p.len).max().unwrap_or(1);
            let blocks = most.div_ceil(4 * u64::from(THREADS)).min(u64::from(8 * device.multiprocessors()));
            for first in launch.clone().step_by(65_535) {
                let rows = (launch.end - first).min(65_535);
                let arguments = Puts { puts: self.memory.address() + (first * size_of::<Put>()) as u64 };
                // SAFETY: the context is current; `Plan::take` checked that every position lies inside of its
                // tensor, which the caller lends to be written to.
                unsafe { device.launch(Kernel::Scatter, (blocks as u32, rows as u32), stream, &arguments)? };
            }
        }
        self.last.record(stream)
    }

    /// Blocks until the last blocks are written.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn wait(&mut self) -> Result<()> {
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()
    }
}

/// A block of an update and its targets.
#[derive(Debug, Clone, Copy)]
pub struct TargetedBlock<'a> {
    /// The block.
    pub block: &'a Block,
    /// The elements of its scope.
    pub space: &'a IndexSpace,
    /// The index sets that it may refer to.
    pub sets: &'a Sets,
    /// The targets, one for each tensor of its scope.
    pub targets: &'a [Target<'a>],
}

/// Stands for the index of the first position of a put that covers all elements.
const NO_POSITIONS: u64 = u64::MAX;

/// The copy to the device. Puts have indices of positions and values where the kernel expects addresses,
/// until the copy has its place.
#[derive(Default)]
struct Plan {
    puts: Vec<Put>,
    launches: Vec<Range<usize>>,
    positions: Vec<u64>,
    numbers: Vec<u32>,
    /// The first tensor and element that the next block may cover and still be in the same launch.
    next: Option<(u64, u64)>,
}

impl Plan {
    fn take(&mut self, part: &TargetedBlock<'_>, budget: &Budget, add: bool) -> Result<()> {
        let TargetedBlock { block, space, sets, targets } = *part;
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
        let (numbers, are_elements) = words(block, space, sets, budget, add)?;
        let count = if all { space.len() } else { positions.len() as u64 };
        if numbers.len() as u64 != count {
            return Err(wrong("the numbers of the block's values and positions differ"));
        }
        // A decoded block is in order. One that the caller made need not be, and the kernel does not check.
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
                    add: if are_elements { 2 } else { u32::from(add) },
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
    InputErrorKind::InconsistentBlock { what }.into()
}

/// Returns a block's values as bit patterns of 32-bit floats; or of 16-bit elements, if the second result is
/// true.
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
                // Not converted to floats, which would make signalling NaNs quiet.
                let halves = bytes.as_chunks().0.iter().map(|b| u32::from(u16::from_le_bytes(*b)));
                return Ok((halves.collect(), true));
            }
            let mut numbers = vec![0.0; bytes.len() / width as usize];
            gcodec::internal::element::decode_f32s(space.dtype, bytes, 0, &mut numbers)?;
            Ok((bits(numbers), false))
        }
        _ => Ok((bits(block.numbers(space, sets, budget)?), false)),
    }
}
