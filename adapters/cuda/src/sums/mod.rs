//! Sum digests of tensors on a device (spec, section 6.1).

mod plan;

use gcodec::digest::SumDigest;

use crate::abi::sums::{Axis, Summed, Sums};
use crate::abi::{bytes_of, items_of};
use crate::device::{Device, Kernel, Quiet};
use crate::error::{Result, inconsistent};
use crate::memory::{Memory, Pinned};
use crate::tensor::{DeviceView, Stream};
use plan::{LANES, Plan};

/// A tensor to digest, or a shard of one.
#[derive(Debug, Clone, Copy)]
pub struct SumInput<'a> {
    /// Its elements.
    pub data: DeviceView<'a>,
    /// For each dimension, the index of its first element in the whole tensor.
    pub offsets: &'a [u64],
}

/// Computes the digests of [`SumDigest::of_shard`] from device tensors of any strides. Keeps its work memory:
/// 32 bytes a tensor, 80 for each box of units and 40 for each of its axes.
#[derive(Debug)]
pub struct SumDigester {
    device: Device,
    /// Boxes, then axes.
    tables: Memory,
    /// The sums of each tensor.
    sums: Memory,
    up: Pinned,
    down: Pinned,
}

impl SumDigester {
    /// Allocates nothing yet.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call).
    pub fn new(device: &Device) -> Result<Self> {
        let _current = device.enter()?;
        Ok(Self {
            device: device.clone(),
            tables: Memory::new(device, 0)?,
            sums: Memory::new(device, 0)?,
            up: Pinned::new(device, 0)?,
            down: Pinned::new(device, 0)?,
        })
    }

    /// Returns the digests of tensors or shards. One copy to the device, one launch, one copy of 32 bytes a
    /// tensor to the host and one wait, all in `stream`.
    ///
    /// # Errors
    /// [`Error::Tensor`](crate::Error::Tensor), [`Error::OutOfMemory`](crate::Error::OutOfMemory),
    /// [`Error::Call`](crate::Error::Call).
    pub fn digests(&mut self, inputs: &[SumInput<'_>], stream: Stream) -> Result<Vec<SumDigest>> {
        let mut plan = Plan::new(inputs, &self.device)?;
        if plan.summed.is_empty() {
            return Ok(vec![SumDigest::ZERO; inputs.len()]);
        }
        let device = self.device.clone();
        let _current = device.enter()?;
        let quiet = Quiet { device: &device, stream };
        let bytes = 8 * (LANES * inputs.len()) as u64;
        self.sums.grow(bytes)?;
        self.down.grow(bytes)?;
        let tables = size_of_val(&*plan.summed) as u64;
        let end = tables + size_of_val(&*plan.axes) as u64;
        self.tables.grow(end)?;
        self.up.grow(end)?;
        plan.place(self.tables.address() + tables, self.sums.address());
        self.upload(&plan.summed, &plan.axes, end, stream)?;
        self.sums.fill(0, 0, bytes, stream)?;
        self.launch(&plan, stream)?;
        self.sums.copy_to(0, &mut self.down, bytes, stream)?;
        self.device.synchronize(stream)?;
        quiet.done();
        self.downloaded(bytes).as_chunks().0.iter().map(digest_of).collect()
    }

    /// Copies the tables to the device. Every earlier copy from `up` was waited for.
    #[expect(unsafe_code, reason = "writes pinned memory that the device reads")]
    fn upload(&mut self, summed: &[Summed], axes: &[Axis], end: u64, stream: Stream) -> Result<()> {
        let (summed, axes) = (bytes_of(summed), bytes_of(axes));
        // SAFETY: as the summary says.
        unsafe {
            self.up.write(0, summed);
            self.up.write(summed.len() as u64, axes);
        }
        self.tables.copy_from(0, &self.up, end, stream)
    }

    #[expect(unsafe_code, reason = "launches a kernel")]
    fn launch(&self, plan: &Plan, stream: Stream) -> Result<()> {
        let n_summed = plan.summed.len() as u32;
        let sums = Sums { summed: self.tables.address(), n_summed, n_work: plan.works };
        let blocks = plan.works.min(8 * self.device.multiprocessors());
        // SAFETY: the context is current; the tables are in memory of `self`, and point into it and into
        // borrowed tensors, which the boxes of the plan do not exceed.
        unsafe { self.device.launch(Kernel::Sums, (blocks, 1), stream, &sums) }
    }

    /// The sums of the last copy to the host, which was waited for.
    #[expect(unsafe_code, reason = "reads pinned memory that the device wrote")]
    fn downloaded(&self, bytes: u64) -> Vec<u64> {
        // SAFETY: the stream of the copy was waited for.
        items_of(unsafe { self.down.bytes(bytes) })
    }
}

/// Returns the digest of a tensor from its sums, which are not reduced.
fn digest_of(sums: &[u64; LANES]) -> Result<SumDigest> {
    const P: u64 = (1 << 31) - 1;
    let mut bytes = [0; 4 * LANES];
    for (bytes, sum) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
        *bytes = ((sum % P) as u32).to_le_bytes();
    }
    SumDigest::from_bytes(bytes).ok_or_else(inconsistent)
}
