//! A device: its context, the kernels loaded into it, its memory.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use crate::driver::{Driver, OUT_OF_MEMORY};
use crate::error::{Error, Result};
use crate::plan::{Plain, THREADS};
use crate::tensor::Stream;

/// The kernels, compiled by `cargo xtask cuda`.
static IMAGE: &Image<[u8]> = &Image(*include_bytes!("../kernels/gcodec.fatbin"));

/// The driver reads words of it.
#[repr(C, align(16))]
struct Image<T: ?Sized>(T);

const MULTIPROCESSORS: i32 = 16;
const CAPABILITY: [i32; 2] = [75, 76];

/// A kernel, by its place in [`NAMES`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kernel {
    Sample,
    Collect,
    Digits,
    Count,
    Place,
    Emit,
    Measure,
    MeasureLogs,
    Decide,
    Choose,
    Pack,
    NonFinite,
    Subtract,
    Scatter,
    RiceRows,
    RiceMeasure,
    RiceChoose,
    RicePack,
    DenseRound,
    DenseRanges,
    DenseMeasure,
    DenseScale,
    DenseQuantise,
    DensePack,
}

const NAMES: [&CStr; 24] = [
    c"gcodec_sample",
    c"gcodec_collect",
    c"gcodec_digits",
    c"gcodec_count",
    c"gcodec_place",
    c"gcodec_emit",
    c"gcodec_measure",
    c"gcodec_measure_logs",
    c"gcodec_decide",
    c"gcodec_choose",
    c"gcodec_pack",
    c"gcodec_non_finite",
    c"gcodec_subtract",
    c"gcodec_scatter",
    c"gcodec_rice_rows",
    c"gcodec_rice_measure",
    c"gcodec_rice_choose",
    c"gcodec_rice_pack",
    c"gcodec_dense_round",
    c"gcodec_dense_ranges",
    c"gcodec_dense_measure",
    c"gcodec_dense_scale",
    c"gcodec_dense_quantise",
    c"gcodec_dense_pack",
];

/// A CUDA device. Clones are the same device.
#[derive(Debug, Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: Arc<Driver>,
    ordinal: i32,
    /// The driver's name for it.
    device: i32,
    name: String,
    multiprocessors: u32,
    context: usize,
    module: usize,
    kernels: [usize; NAMES.len()],
}

impl Device {
    /// Device `ordinal` of this machine's driver, with its primary context, which frameworks use too.
    ///
    /// # Errors
    /// Those of [`Driver::get`]; [`Error::NoSuchDevice`], [`Error::OldDevice`]; [`Error::Call`].
    pub fn open(ordinal: i32) -> Result<Self> {
        Self::of(&Driver::get()?, ordinal)
    }

    /// Device `ordinal` of a driver.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of(driver: &Arc<Driver>, ordinal: i32) -> Result<Self> {
        let count = driver.devices();
        if !(0..count).contains(&ordinal) {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        let f = &driver.functions;
        let (mut device, mut name) = (0, [0 as c_char; 128]);
        let mut attributes = [0; 3];
        // SAFETY: all pointers are to places of the types that the driver writes, and the name's length is given.
        unsafe {
            driver.check("cuDeviceGet", (f.device)(&raw mut device, ordinal))?;
            let code = (f.device_name)(name.as_mut_ptr(), name.len() as i32 - 1, device);
            driver.check("cuDeviceGetName", code)?;
            for (value, id) in attributes.iter_mut().zip([MULTIPROCESSORS, CAPABILITY[0], CAPABILITY[1]]) {
                driver.check("cuDeviceGetAttribute", (f.device_attribute)(value, id, device))?;
            }
        }
        let [multiprocessors, major, minor] = attributes;
        if major < 8 {
            return Err(Error::OldDevice { capability: (major, minor) });
        }
        let bytes: Vec<u8> = name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        let mut inner = Inner {
            driver: Arc::clone(driver),
            ordinal,
            device,
            name: String::from_utf8_lossy(&bytes).into_owned(),
            multiprocessors: u32::try_from(multiprocessors).unwrap_or(1).max(1),
            context: 0,
            module: 0,
            kernels: [0; NAMES.len()],
        };
        // SAFETY: a place for the handle; `Inner` releases the context once it has one.
        let code = unsafe { (f.context_retain)(&raw mut inner.context, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let current = inner.enter();
        let loaded = current.and_then(|_current| {
            // SAFETY: the image is what nvcc made, and stays; names are null-terminated.
            unsafe {
                let (mut module, mut kernels) = (0, [0; NAMES.len()]);
                driver
                    .check("cuModuleLoadData", (f.module_load)(&raw mut module, IMAGE.0.as_ptr().cast()))?;
                for (kernel, name) in kernels.iter_mut().zip(NAMES) {
                    let code = (f.module_function)(kernel, module, name.as_ptr());
                    if let Err(e) = driver.check("cuModuleGetFunction", code) {
                        (f.module_unload)(module);
                        return Err(e);
                    }
                }
                Ok((module, kernels))
            }
        });
        // On an error `inner` goes, and with it the context.
        (inner.module, inner.kernels) = loaded?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Its number.
    pub fn ordinal(&self) -> i32 {
        self.inner.ordinal
    }

    /// What its maker calls it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub(crate) fn multiprocessors(&self) -> u32 {
        self.inner.multiprocessors
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// Makes the device's context current for as long as the guard lives.
    pub(crate) fn enter(&self) -> Result<Current<'_>> {
        self.inner.enter()
    }

    /// Launches `grid` blocks of a kernel.
    ///
    /// # Safety
    /// The context is current; `arguments` is what the kernel takes, and what it points to is there until the launch is done.
    pub(crate) unsafe fn launch<T: Plain>(
        &self,
        kernel: Kernel,
        grid: (u32, u32),
        stream: Stream,
        arguments: &T,
    ) -> Result<()> {
        let mut pointers = [(&raw const *arguments).cast::<c_void>()];
        let function = self.inner.kernels[kernel as usize];
        let (x, y) = grid;
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        let code = unsafe {
            let extra = std::ptr::null_mut();
            let launch = self.driver().functions.launch;
            launch(function, x, y, 1, THREADS, 1, 1, 0, stream.raw(), pointers.as_mut_ptr(), extra)
        };
        self.driver().check("cuLaunchKernel", code)
    }

    /// Lets what is put into `later` from now on wait for what is in `earlier` by now. The host waits for nothing.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn order(&self, earlier: Stream, later: Stream) -> Result<()> {
        if earlier == later {
            return Ok(());
        }
        let _current = self.enter()?;
        let mut event = Event::new(self)?;
        event.record(earlier)?;
        // SAFETY: the event is ours, and may go before what waits for it; `Stream` promises that these are streams.
        let code = unsafe { (self.driver().functions.stream_wait_event)(later.raw(), event.handle, 0) };
        self.driver().check("cuStreamWaitEvent", code)
    }

    pub(crate) fn synchronize(&self, stream: Stream) -> Result<()> {
        // SAFETY: `Stream` promises that it is a stream.
        let code = unsafe { (self.driver().functions.stream_synchronize)(stream.raw()) };
        self.driver().check("cuStreamSynchronize", code)
    }
}

impl Inner {
    fn enter(&self) -> Result<Current<'_>> {
        // SAFETY: the context is retained as long as `self`.
        let code = unsafe { (self.driver.functions.context_push)(self.context) };
        self.driver.check("cuCtxPushCurrent", code)?;
        Ok(Current { driver: &self.driver })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.module != 0 {
            let _current = self.enter();
            // SAFETY: the module was loaded, and nothing of it is used any more.
            unsafe { (self.driver.functions.module_unload)(self.module) };
        }
        if self.context != 0 {
            // SAFETY: it was retained once.
            unsafe { (self.driver.functions.context_release)(self.device) };
        }
    }
}

/// Takes the context away again that [`Device::enter`] made current.
pub(crate) struct Current<'a> {
    driver: &'a Driver,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut context = 0;
        // SAFETY: a place for a handle.
        unsafe { (self.driver.functions.context_pop)(&raw mut context) };
    }
}

/// Memory on a device, aligned to 256 bytes; not zeroed.
#[derive(Debug)]
pub(crate) struct Memory {
    device: Device,
    address: u64,
    bytes: u64,
}

impl Memory {
    /// `bytes` may be 0. The context is current.
    pub(crate) fn new(device: &Device, bytes: u64) -> Result<Self> {
        let mut address = 0;
        let too_much = || Error::OutOfMemory { pinned: false, bytes };
        if bytes > 0 {
            let size = usize::try_from(bytes).map_err(|_| too_much())?;
            // SAFETY: a place for the address.
            match unsafe { (device.driver().functions.allocate)(&raw mut address, size) } {
                OUT_OF_MEMORY => return Err(too_much()),
                code => device.driver().check("cuMemAlloc", code)?,
            }
        }
        Ok(Self { device: device.clone(), address, bytes })
    }

    /// As much as that, or more; what was in it is lost if it grows. Nothing that was launched uses it any more.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.bytes {
            // First the old one goes: there may not be room for both.
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

    /// Copies pinned memory to `offset`, in stream order.
    pub(crate) fn copy_from(&self, offset: u64, from: &Pinned, bytes: u64, stream: Stream) -> Result<()> {
        debug_assert!(offset + bytes <= self.bytes && bytes <= from.bytes);
        let copy = self.device.driver().functions.copy_to_device;
        // SAFETY: both ranges are inside of what was allocated; `Pinned` is not written to before the stream was waited for.
        let code = unsafe { copy(self.address + offset, from.pointer(), bytes as usize, stream.raw()) };
        self.device.driver().check("cuMemcpyHtoDAsync", code)
    }

    /// Copies `bytes` from `offset` to pinned memory, in stream order.
    pub(crate) fn copy_to(&self, offset: u64, to: &mut Pinned, bytes: u64, stream: Stream) -> Result<()> {
        debug_assert!(offset + bytes <= self.bytes && bytes <= to.bytes);
        let copy = self.device.driver().functions.copy_to_host;
        // SAFETY: as above; it is not read before the stream was waited for.
        let code = unsafe { copy(to.pointer(), self.address + offset, bytes as usize, stream.raw()) };
        self.device.driver().check("cuMemcpyDtoHAsync", code)
    }

    /// Sets `bytes` from `offset` on to `value`, in stream order.
    pub(crate) fn fill(&self, offset: u64, value: u8, bytes: u64, stream: Stream) -> Result<()> {
        debug_assert!(offset + bytes <= self.bytes);
        let fill = self.device.driver().functions.fill;
        // SAFETY: inside of what was allocated.
        let code = unsafe { fill(self.address + offset, value, bytes as usize, stream.raw()) };
        self.device.driver().check("cuMemsetD8Async", code)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 {
            let _current = self.device.enter();
            // SAFETY: it was allocated and is freed once; the driver waits for what uses it.
            unsafe { (self.device.driver().functions.free)(self.address) };
        }
    }
}

/// Page-locked memory of the host.
#[derive(Debug)]
pub(crate) struct Pinned {
    device: Device,
    address: usize,
    bytes: u64,
}

impl Pinned {
    /// `bytes` may be 0. The context is current.
    pub(crate) fn new(device: &Device, bytes: u64) -> Result<Self> {
        let mut pointer = std::ptr::null_mut();
        let too_much = || Error::OutOfMemory { pinned: true, bytes };
        if bytes > 0 {
            let size = usize::try_from(bytes).map_err(|_| too_much())?;
            // SAFETY: a place for the address; 0 asks for nothing special.
            match unsafe { (device.driver().functions.allocate_pinned)(&raw mut pointer, size, 0) } {
                OUT_OF_MEMORY => return Err(too_much()),
                code => device.driver().check("cuMemHostAlloc", code)?,
            }
            // SAFETY: it is ours, and so many bytes; a slice is only of bytes that were written.
            unsafe { pointer.write_bytes(0, size) };
        }
        Ok(Self { device: device.clone(), address: pointer.expose_provenance(), bytes })
    }

    /// As much as that, or more; what was in it is lost if it grows. No copy of it is under way.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.bytes {
            let device = self.device.clone();
            *self = Self::new(&device, 0)?;
            // Twice what was asked for, so that sizes that creep do not pin anew each time.
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
    /// No copy to it is under way.
    pub(crate) unsafe fn bytes(&self, len: u64) -> &[u8] {
        if len == 0 {
            return &[];
        }
        assert!(len <= self.bytes);
        // SAFETY: allocated and written; the caller says that nobody writes.
        unsafe { std::slice::from_raw_parts(self.pointer(), len as usize) }
    }

    /// Writes at `offset`.
    ///
    /// # Safety
    /// No copy of it is under way.
    pub(crate) unsafe fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.bytes));
        if !bytes.is_empty() {
            // SAFETY: inside of what was allocated, which no slice of ours is part of.
            unsafe {
                self.pointer().add(offset as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
            };
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.address != 0 {
            let _current = self.device.enter();
            // SAFETY: it was allocated and is freed once.
            unsafe { (self.device.driver().functions.free_pinned)(self.pointer()) };
        }
    }
}

/// What was last put into a stream.
#[derive(Debug)]
pub(crate) struct Event {
    device: Device,
    handle: usize,
    recorded: bool,
}

/// No timing.
const EVENT_FLAGS: u32 = 2;

impl Event {
    /// The context is current.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: a place for the handle.
        let code = unsafe { (device.driver().functions.event_create)(&raw mut handle, EVENT_FLAGS) };
        device.driver().check("cuEventCreate", code)?;
        Ok(Self { device: device.clone(), handle, recorded: false })
    }

    pub(crate) fn record(&mut self, stream: Stream) -> Result<()> {
        // SAFETY: the event is ours, the stream one of this context.
        let code = unsafe { (self.device.driver().functions.event_record)(self.handle, stream.raw()) };
        self.device.driver().check("cuEventRecord", code)?;
        self.recorded = true;
        Ok(())
    }

    /// Waits for what was in the stream when it was recorded, if it was since the last wait.
    pub(crate) fn wait(&mut self) -> Result<()> {
        if self.recorded {
            // SAFETY: the event is ours.
            let code = unsafe { (self.device.driver().functions.event_synchronize)(self.handle) };
            self.device.driver().check("cuEventSynchronize", code)?;
            self.recorded = false;
        }
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _current = self.device.enter();
        // SAFETY: it was created and is destroyed once.
        unsafe { (self.device.driver().functions.event_destroy)(self.handle) };
    }
}

/// Waits for a stream when it goes, so that nothing launched outlives what it uses, whatever error came in between.
pub(crate) struct Quiet<'a> {
    pub(crate) device: &'a Device,
    pub(crate) stream: Stream,
}

impl Quiet<'_> {
    /// Nothing is left to wait for.
    pub(crate) fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // A context that failed is beyond waiting for.
        let _ = self.device.synchronize(self.stream);
    }
}
