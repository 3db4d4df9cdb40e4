//! Memory of a device, page-locked memory of the host, and events. All belong to the device's primary
//! context.

use crate::device::Device;
use crate::driver::OUT_OF_MEMORY;
use crate::error::{Error, Result};
use crate::tensor::Stream;

/// Memory on a device, aligned to 256 bytes and not initialised.
#[derive(Debug)]
pub(crate) struct Memory {
    device: Device,
    address: u64,
    bytes: u64,
}

impl Memory {
    /// `bytes` may be 0. The context is current.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn new(device: &Device, bytes: u64) -> Result<Self> {
        let mut address = 0;
        let too_much = || Error::OutOfMemory { pinned: false, bytes };
        if bytes > 0 {
            let size = usize::try_from(bytes).map_err(|_| too_much())?;
            // SAFETY: the driver writes the address to a place of its type.
            match unsafe { (device.driver().functions.allocate)(&raw mut address, size) } {
                OUT_OF_MEMORY => return Err(too_much()),
                code => device.driver().check("cuMemAlloc", code)?,
            }
        }
        Ok(Self { device: device.clone(), address, bytes })
    }

    /// Grows to at least `bytes`; the content is lost if it grows. No launched work uses this memory any
    /// more.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.bytes {
            // The old memory is freed first: the device may not have room for both.
            let device = self.device.clone();
            *self = Self::new(&device, 0)?;
            *self = Self::new(&device, bytes)?;
        }
        Ok(())
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    /// Copies the first `bytes` of pinned memory to `offset`, in stream order.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn copy_from(&self, offset: u64, from: &Pinned, bytes: u64, stream: Stream) -> Result<()> {
        debug_assert!(offset + bytes <= self.bytes && bytes <= from.bytes);
        let copy = self.device.driver().functions.copy_to_device;
        // SAFETY: both ranges are inside of their allocations; writers of `Pinned` promise to wait for the
        // stream first.
        let code = unsafe { copy(self.address + offset, from.pointer(), bytes as usize, stream.raw()) };
        self.device.driver().check("cuMemcpyHtoDAsync", code)
    }

    /// Copies `bytes` from `offset` to pinned memory, in stream order.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn copy_to(&self, offset: u64, to: &mut Pinned, bytes: u64, stream: Stream) -> Result<()> {
        debug_assert!(offset + bytes <= self.bytes && bytes <= to.bytes);
        let copy = self.device.driver().functions.copy_to_host;
        // SAFETY: both ranges are inside of their allocations; readers of `Pinned` promise to wait for the
        // stream first.
        let code = unsafe { copy(to.pointer(), self.address + offset, bytes as usize, stream.raw()) };
        self.device.driver().check("cuMemcpyDtoHAsync", code)
    }

    /// Sets `bytes` bytes from `offset` on to `value`, in stream order.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn fill(&self, offset: u64, value: u8, bytes: u64, stream: Stream) -> Result<()> {
        debug_assert!(offset + bytes <= self.bytes);
        let fill = self.device.driver().functions.fill;
        // SAFETY: the range is inside of the allocation.
        let code = unsafe { fill(self.address + offset, value, bytes as usize, stream.raw()) };
        self.device.driver().check("cuMemsetD8Async", code)
    }
}

impl Drop for Memory {
    #[expect(unsafe_code, reason = "calls the driver")]
    fn drop(&mut self) {
        if self.address != 0 {
            let _current = self.device.enter();
            // SAFETY: it was allocated and is freed once; the driver waits for work that uses it.
            unsafe { (self.device.driver().functions.free)(self.address) };
        }
    }
}

/// Page-locked memory of the host: a staging buffer of copies.
#[derive(Debug)]
pub(crate) struct Pinned {
    device: Device,
    address: usize,
    bytes: u64,
}

impl Pinned {
    /// `bytes` may be 0. The context is current.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn new(device: &Device, bytes: u64) -> Result<Self> {
        let mut pointer = std::ptr::null_mut();
        let too_much = || Error::OutOfMemory { pinned: true, bytes };
        if bytes > 0 {
            let size = usize::try_from(bytes).map_err(|_| too_much())?;
            // SAFETY: the driver writes the address to a place of its type; flags of 0 are the default.
            match unsafe { (device.driver().functions.allocate_pinned)(&raw mut pointer, size, 0) } {
                OUT_OF_MEMORY => return Err(too_much()),
                code => device.driver().check("cuMemHostAlloc", code)?,
            }
            // SAFETY: `size` bytes were just allocated. Once written, they can be lent as a slice.
            unsafe { pointer.write_bytes(0, size) };
        }
        Ok(Self { device: device.clone(), address: pointer.expose_provenance(), bytes })
    }

    /// Grows to at least `bytes`; the content is lost if it grows. No copy of this memory is under way.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.bytes {
            let device = self.device.clone();
            *self = Self::new(&device, 0)?;
            // Rounded up, so that slowly growing sizes do not pin memory anew each time.
            *self = Self::new(&device, bytes.next_power_of_two())?;
        }
        Ok(())
    }

    fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    /// The first `len` bytes.
    ///
    /// # Safety
    /// No copy to this memory is under way.
    #[expect(unsafe_code, reason = "lends allocated memory as a slice")]
    pub(crate) unsafe fn bytes(&self, len: u64) -> &[u8] {
        if len == 0 {
            return &[];
        }
        assert!(len <= self.bytes);
        // SAFETY: the memory is allocated and initialised; by the caller's promise the device does not write
        // to it.
        unsafe { std::slice::from_raw_parts(self.pointer(), len as usize) }
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Safety
    /// No copy from this memory is under way.
    #[expect(unsafe_code, reason = "writes to allocated memory")]
    pub(crate) unsafe fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.bytes));
        if !bytes.is_empty() {
            // SAFETY: the range is inside of the allocation, and no slice of it is borrowed beside `&mut
            // self`.
            unsafe {
                self.pointer().add(offset as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
        }
    }
}

impl Drop for Pinned {
    #[expect(unsafe_code, reason = "calls the driver")]
    fn drop(&mut self) {
        if self.address != 0 {
            let _current = self.device.enter();
            // SAFETY: it was allocated and is freed once.
            unsafe { (self.device.driver().functions.free_pinned)(self.pointer()) };
        }
    }
}

/// A point in the order of a stream.
#[derive(Debug)]
pub(crate) struct Event {
    device: Device,
    handle: usize,
    recorded: bool,
}

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

impl Event {
    /// The context is current.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: the driver writes the handle to a place of its type.
        let code = unsafe { (device.driver().functions.event_create)(&raw mut handle, DISABLE_TIMING) };
        device.driver().check("cuEventCreate", code)?;
        Ok(Self { device: device.clone(), handle, recorded: false })
    }

    /// Moves the event behind everything that is in the stream now.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn record(&mut self, stream: Stream) -> Result<()> {
        // SAFETY: the event exists, and `Stream` promises that the stream does.
        let code = unsafe { (self.device.driver().functions.event_record)(self.handle, stream.raw()) };
        self.device.driver().check("cuEventRecord", code)?;
        self.recorded = true;
        Ok(())
    }

    /// Blocks until the event is reached, if it was recorded since the last wait.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn wait(&mut self) -> Result<()> {
        if self.recorded {
            // SAFETY: the event exists.
            let code = unsafe { (self.device.driver().functions.event_synchronize)(self.handle) };
            self.device.driver().check("cuEventSynchronize", code)?;
            self.recorded = false;
        }
        Ok(())
    }

    /// Lets later work in `stream` wait for the event.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn hold(&self, stream: Stream) -> Result<()> {
        // SAFETY: the event exists, and may be destroyed before the stream has waited; `Stream` promises that
        // the stream exists.
        let code =
            unsafe { (self.device.driver().functions.stream_wait_event)(stream.raw(), self.handle, 0) };
        self.device.driver().check("cuStreamWaitEvent", code)
    }
}

impl Drop for Event {
    #[expect(unsafe_code, reason = "calls the driver")]
    fn drop(&mut self) {
        let _current = self.device.enter();
        // SAFETY: it was created and is destroyed once.
        unsafe { (self.device.driver().functions.event_destroy)(self.handle) };
    }
}
