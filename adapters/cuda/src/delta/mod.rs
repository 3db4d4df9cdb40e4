//! The codec `delta` on a device: the tasks of [`gcodec::internal::device::delta`].

mod digest;
mod plan;
mod sum;

use gcodec::Codec;
use gcodec::block::CodedBlock;
use gcodec::compress::{DigestKind, Digests};
use gcodec::frame::{DeltaRuns, Manifest};
use gcodec::internal::device::Outline;
use gcodec::internal::device::delta::{self as host, Digested, Form, KEYS, KeyCount, Task};

use crate::abi::delta::{Delta, Digests as Hashes};
use crate::abi::{Plain, bytes_of, items_of};
use crate::device::{Device, Kernel, Quiet};
use crate::error::{Result, inconsistent};
use crate::memory::{Memory, Pinned};
use crate::tensor::{DeviceTensor, Stream};
use plan::{Output, Plan};

/// A tensor to send as a change of another one.
#[derive(Debug, Clone, Copy)]
pub struct DeltaInput<'a> {
    /// Its number in the manifest.
    pub tensor: u64,
    /// Its elements.
    pub new: DeviceTensor<'a>,
    /// The elements of the tensor that it replaces, which receivers have. Shape and element type are those of
    /// `new`.
    pub base: DeviceTensor<'a>,
}

/// Compresses device tensors with [`Codec::Delta`]: finds the elements that differ from a base, and copies
/// only their places and values to the host. Keeps its work memory from update to update.
///
/// Work memory takes at most 2.4 % of the bytes of 16-bit tensors (with 48 classes; half of that for 32-bit
/// ones), 32 bytes for each 256 KiB that are hashed, and the size of the copy to the host.
#[derive(Debug)]
pub struct DeltaCompressor {
    device: Device,
    /// Spans, changes and further tables.
    tables: Memory,
    /// The counts of keys; then totals and sums.
    work: Memory,
    /// The copy to the host: digests, ranks and values. Behind it the nodes of digests.
    payload: Memory,
    up: Pinned,
    down: Pinned,
    summer: sum::Summer,
}

impl DeltaCompressor {
    /// Allocates nothing yet.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call).
    pub fn new(device: &Device) -> Result<Self> {
        let _current = device.enter()?;
        Ok(Self {
            device: device.clone(),
            tables: Memory::new(device, 0)?,
            work: Memory::new(device, 0)?,
            payload: Memory::new(device, 0)?,
            up: Pinned::new(device, 0)?,
            down: Pinned::new(device, 0)?,
            summer: sum::Summer::new(device)?,
        })
    }

    /// Returns the blocks that [`gcodec::compress::compress()`] makes of these tensors.
    ///
    /// `inputs`: in ascending order of their numbers. `codecs`: one for each input, all [`Codec::Delta`]. All
    /// work is put into `stream`; the tensors are no longer in use when this returns.
    ///
    /// # Errors
    /// [`Error::Codec`](crate::Error::Codec) as [`gcodec::compress::compress()`], and for other codecs;
    /// [`Error::Tensor`](crate::Error::Tensor), [`Error::OutOfMemory`](crate::Error::OutOfMemory),
    /// [`Error::Call`](crate::Error::Call).
    pub fn compress(
        &mut self,
        inputs: &[DeltaInput<'_>],
        codecs: &[Codec],
        stream: Stream,
    ) -> Result<Vec<CodedBlock>> {
        Ok(self.run(inputs, codecs, None, stream)?.0)
    }

    /// Returns the same blocks, and the digests of the tensors before and after the update for
    /// [`UpdateHeader::with_runs`](gcodec::frame::UpdateHeader::with_runs), as [`Digests::deltas`] does:
    /// those that the codecs want. The device computes the digests that `digests` does not keep; 16 bytes of
    /// each hash and 32 of each sum cross the bus.
    ///
    /// # Errors
    /// As [`Self::compress`] and [`Digests::deltas`]. `digests` are unchanged after an error.
    pub fn compress_with_digests(
        &mut self,
        manifest: &Manifest,
        inputs: &[DeltaInput<'_>],
        codecs: &[Codec],
        digests: &mut Digests,
        stream: Stream,
    ) -> Result<(Vec<CodedBlock>, DeltaRuns)> {
        let summed = match host::wanted(codecs) {
            None | Some(DigestKind::Blake3) => None,
            Some(_) => Some(self.summer.digested(manifest, inputs, digests, stream)?),
        };
        let (blocks, hashed) = self.run(inputs, codecs, Some(digests), stream)?;
        let runs = host::deltas(digests, hashed.as_deref(), summed.as_deref(), &blocks);
        Ok((blocks, runs))
    }

    fn run(
        &mut self,
        inputs: &[DeltaInput<'_>],
        codecs: &[Codec],
        digests: Option<&Digests>,
        stream: Stream,
    ) -> Result<(Vec<CodedBlock>, Option<Vec<Digested>>)> {
        let outline = |input: &DeltaInput<'_>| Outline {
            tensor: input.tensor,
            dtype: input.new.dtype(),
            len: input.new.elements(),
        };
        let outlines: Vec<Outline> = inputs.iter().map(outline).collect();
        let tasks = host::tasks(&outlines, codecs)?;
        for input in inputs {
            [input.new, input.base].iter().try_for_each(|tensor| tensor.check_device(&self.device))?;
            if input.new.dtype() != input.base.dtype() || input.new.shape() != input.base.shape() {
                return Err(host::mismatch(input.tensor).into());
            }
        }
        let mut plan = Plan::new(&tasks, inputs)?;
        let hashed = digests.filter(|_| !matches!(host::wanted(codecs), None | Some(DigestKind::Sum)));
        let mut hashes = match hashed {
            Some(digests) => digest::Plan::new(inputs, digests)?,
            None => digest::Plan::default(),
        };
        let device = self.device.clone();
        let _current = device.enter()?;
        let quiet = Quiet { device: &device, stream };
        let counts = self.count_keys(&mut plan, stream)?;
        let forms = host::forms(&tasks, &counts)?;
        let totals = self.count(&mut plan, &tasks, &forms, stream)?;
        let (outputs, bytes) = self.emit(&mut plan, &mut hashes, &tasks, &totals, stream)?;
        quiet.done();
        let payload = self.downloaded(bytes);
        let found = outputs.iter().zip(&totals).map(|(output, counts)| output.found(counts, payload));
        let blocks = host::blocks(&tasks, &forms, &found.collect::<Result<Vec<_>>>()?)?;
        let computed = payload.get(..hashes.bytes() as usize).ok_or_else(inconsistent)?;
        let digested = hashed.map(|_| hashes.digested(inputs, computed)).transpose()?;
        Ok((blocks, digested))
    }

    /// Counts the keys of the samples, and waits for them.
    fn count_keys(&mut self, plan: &mut Plan, stream: Stream) -> Result<Vec<[KeyCount; KEYS]>> {
        let bytes = plan.count_bytes();
        if bytes > 0 {
            self.work.grow(bytes)?;
            self.down.grow(bytes)?;
            plan.place_counts(self.work.address());
            let [] = self.grow_tables(plan, [])?;
            let delta = self.upload(plan, [], stream)?;
            self.work.fill(0, 0, bytes, stream)?;
            self.launch(Kernel::DeltaKeys, self.blocks(plan.tiles), stream, &delta)?;
            self.work.copy_to(0, &mut self.down, bytes, stream)?;
            self.device.synchronize(stream)?;
        }
        Ok(plan.counts(&items_of(self.downloaded(bytes))))
    }

    /// Counts elements and changed elements by class and tile, and waits for the number of changed elements
    /// of each class.
    fn count(
        &mut self,
        plan: &mut Plan,
        tasks: &[Task],
        forms: &[Form],
        stream: Stream,
    ) -> Result<Vec<Vec<u64>>> {
        plan.take_forms(forms);
        let bytes = plan.total_bytes();
        if bytes > 0 {
            let sums = bytes.next_multiple_of(8);
            self.work.grow(sums + plan.sum_bytes())?;
            self.down.grow(bytes)?;
            plan.place_sums(self.work.address(), self.work.address() + sums);
            let [classes] = self.grow_tables(plan, [plan.class_of.len()])?;
            plan.place_classes(classes);
            let delta = self.upload(plan, [(classes, &plan.class_of)], stream)?;
            self.launch(Kernel::DeltaCount, self.blocks(plan.tiles), stream, &delta)?;
            self.launch(Kernel::DeltaPlace, plan.changes.len() as u32, stream, &delta)?;
            self.work.copy_to(0, &mut self.down, bytes, stream)?;
            self.device.synchronize(stream)?;
        }
        plan.totals(tasks, &items_of(self.downloaded(bytes)))
    }

    /// Computes digests, writes ranks and values, copies all of them to the host and waits for them. Returns
    /// where the output of each task is, and the bytes of the copy.
    fn emit(
        &mut self,
        plan: &mut Plan,
        hashes: &mut digest::Plan,
        tasks: &[Task],
        totals: &[Vec<u64>],
        stream: Stream,
    ) -> Result<(Vec<Output>, u64)> {
        let digests = hashes.bytes();
        let (places, outputs, bytes) = plan.outputs(tasks, totals, digests);
        if bytes == 0 {
            return Ok((outputs, bytes));
        }
        let nodes = bytes.next_multiple_of(32);
        self.payload.grow(nodes + hashes.node_bytes())?;
        self.down.grow(bytes)?;
        let payload = self.payload.address();
        let lens =
            [size_of_val(&*hashes.hashed), plan.class_of.len(), size_of_val(&*places), hashes.heads.len()];
        let [hashed, classes, placed, heads] = self.grow_tables(plan, lens)?;
        plan.place_classes(classes);
        plan.place_outputs(&outputs, payload, placed);
        hashes.place(heads, payload, payload + nodes);
        let parts: [(u64, &[u8]); 4] = [
            (hashed, bytes_of(&hashes.hashed)),
            (classes, &plan.class_of),
            (placed, bytes_of(&places)),
            (heads, &hashes.heads),
        ];
        let delta = self.upload(plan, parts, stream)?;
        if bytes > digests {
            self.launch(Kernel::DeltaEmit, self.blocks(plan.tiles), stream, &delta)?;
        }
        let n_hashed = hashes.hashed.len() as u32;
        if n_hashed > 0 {
            let hashes = Hashes { hashed, n_hashed, n_groups: hashes.groups };
            self.launch(Kernel::DigestChunks, self.blocks(hashes.n_groups), stream, &hashes)?;
            self.launch(Kernel::DigestRoots, n_hashed, stream, &hashes)?;
        }
        self.payload.copy_to(0, &mut self.down, bytes, stream)?;
        self.device.synchronize(stream)?;
        Ok((outputs, bytes))
    }

    /// Makes room for the tables of an update, and returns the addresses of further ones of these lengths, in
    /// bytes.
    fn grow_tables<const N: usize>(&mut self, plan: &Plan, lens: [usize; N]) -> Result<[u64; N]> {
        let mut end = plan.table_bytes();
        let offsets = lens.map(|len| {
            let start = end;
            end = (start + len as u64).next_multiple_of(8);
            start
        });
        self.tables.grow(end)?;
        self.up.grow(end)?;
        Ok(offsets.map(|offset| self.tables.address() + offset))
    }

    /// Copies the tables to the device. `further`: addresses and bytes of further ones. Every earlier copy
    /// from `up` was waited for.
    #[expect(unsafe_code, reason = "writes pinned memory that the device reads")]
    fn upload<const N: usize>(
        &mut self,
        plan: &Plan,
        further: [(u64, &[u8]); N],
        stream: Stream,
    ) -> Result<Delta> {
        let (spans, changes) = (bytes_of(&plan.spans), bytes_of(&plan.changes));
        let tables = self.tables.address();
        let mut end = plan.table_bytes();
        // SAFETY: as the summary says.
        unsafe {
            self.up.write(0, spans);
            self.up.write(spans.len() as u64, changes);
            for (address, bytes) in further {
                self.up.write(address - tables, bytes);
                end = address - tables + bytes.len() as u64;
            }
        }
        self.tables.copy_from(0, &self.up, end, stream)?;
        let changes = tables + spans.len() as u64;
        Ok(Delta { spans: tables, changes, n_spans: plan.spans.len() as u32, n_tiles: plan.tiles })
    }

    /// Blocks of threads for kernels in which a block takes several units of work.
    fn blocks(&self, units: u32) -> u32 {
        units.min(8 * self.device.multiprocessors())
    }

    #[expect(unsafe_code, reason = "launches kernels")]
    fn launch<T: Plain>(&self, kernel: Kernel, blocks: u32, stream: Stream, arguments: &T) -> Result<()> {
        // SAFETY: the context is current; the tables point into memory of the compressor, which is as large
        // as the plan requires, and into borrowed tensors, which their spans do not exceed.
        unsafe { self.device.launch(kernel, (blocks, 1), stream, arguments) }
    }

    /// The first `bytes` of the last copy to the host, which was waited for.
    #[expect(unsafe_code, reason = "reads pinned memory that the device wrote")]
    fn downloaded(&self, bytes: u64) -> &[u8] {
        // SAFETY: the stream of every copy was waited for.
        unsafe { self.down.bytes(bytes) }
    }
}
