//! Decoded blocks into device tensors.
#![allow(unsafe_code)]

use gcodec::Budget;
use gcodec::block::{Block, IndexSpace, Sets, Stored, Values};
use gcodec::compress::outside;

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
        let fits = targets.len() == space.lens.len()
            && targets.iter().zip(&space.lens).all(|(t, &len)| {
                t.len == len
                    && t.tensor.dtype() == space.dtype
                    && t.start.checked_add(len).is_some_and(|end| end <= t.tensor.elements())
            });
        if !fits {
            return Err(wrong("targets do not fit the block's scope"));
        }
        targets.iter().try_for_each(|t| t.tensor.check_device(&self.device))?;
        let mut positions = block.positions(space, sets, budget)?;
        let numbers = numbers(block, space, sets, budget)?;
        if numbers.len() != positions.len() {
            return Err(wrong("the block's values are not as many as its positions"));
        }
        // A block that was read is in order; one that was made need not be, and a device does not look.
        if !positions.is_sorted_by(|a, b| a < b) || positions.last().is_some_and(|&p| p >= space.len()) {
            return Err(wrong("the block's positions are not ascending inside of its scope"));
        }
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()?;
        let (mut puts, mut done, mut base) = (Vec::new(), 0, 0);
        for target in targets {
            let end = base + target.len;
            let count = positions[done..].partition_point(|&p| p < end);
            for position in &mut positions[done..done + count] {
                *position = *position - base + target.start;
            }
            if count > 0 {
                puts.push(Put {
                    data: target.tensor.address(),
                    positions: done as u64,
                    values: done as u64,
                    start: 0,
                    len: count as u64,
                    dtype: target.tensor.dtype().id().into(),
                    add: u32::from(add || block.add),
                });
            }
            (done, base) = (done + count, end);
        }
        if puts.is_empty() {
            return Ok(());
        }
        let table = (puts.len() * size_of::<Put>()) as u64;
        let first_value = table + 8 * positions.len() as u64;
        let bytes = first_value + 4 * numbers.len() as u64;
        self.memory.grow(bytes)?;
        self.up.grow(bytes)?;
        for put in &mut puts {
            put.positions = self.memory.address() + table + 8 * put.positions;
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
        let arguments = Puts { puts: self.memory.address() };
        let most = puts.iter().map(|p| p.len).max().unwrap_or(1);
        let blocks = most.div_ceil(4 * u64::from(THREADS)).min(u64::from(8 * self.device.multiprocessors()));
        for first in (0..puts.len()).step_by(65_535) {
            let rows = (puts.len() - first).min(65_535);
            let arguments = Puts { puts: arguments.puts + (first * size_of::<Put>()) as u64 };
            // SAFETY: the context is current; every position was found to lie inside of its tensor, which the caller lends.
            unsafe { self.device.launch(Kernel::Scatter, (blocks as u32, rows as u32), stream, &arguments)? };
        }
        self.last.record(stream)
    }
}

fn wrong(what: &'static str) -> Error {
    outside::misfit(what).into()
}

/// The floats that a block gives, stored as the tensors' own elements or not.
fn numbers(block: &Block, space: &IndexSpace, sets: &Sets, budget: &Budget) -> Result<Vec<f32>> {
    match &block.values {
        Values::Floats { stored: Stored::Source, bytes } | Values::Planes { bytes } => {
            let len = bytes.len() / (space.dtype.bits() / 8) as usize;
            let mut numbers = vec![0.0; len];
            gcodec::element::decode_f32s(space.dtype, bytes, 0, &mut numbers)?;
            Ok(numbers)
        }
        _ => Ok(block.numbers(space, sets, budget)?),
    }
}
