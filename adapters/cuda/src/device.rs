//! A device: its context, and the kernels loaded into it.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use crate::abi::{Plain, THREADS};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::memory::Event;
use crate::tensor::Stream;

/// The kernels, compiled by `cargo xtask cuda`.
static IMAGE: &Image<[u8]> = &Image(*include_bytes!("../kernels/gcodec.fatbin"));

/// Aligned, because the driver reads it in words.
#[repr(C, align(16))]
struct Image<T: ?Sized>(T);

/// Attributes of a device: its number of multiprocessors, and its compute capability, major and minor.
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
    DeltaKeys,
    DeltaCount,
    DeltaPlace,
    DeltaEmit,
    DigestChunks,
    DigestRoots,
    Sums,
}

const NAMES: [&CStr; 31] = [
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
    c"gcodec_delta_keys",
    c"gcodec_delta_count",
    c"gcodec_delta_place",
    c"gcodec_delta_emit",
    c"gcodec_digest_chunks",
    c"gcodec_digest_roots",
    c"gcodec_sums",
];

/// A CUDA device. Clones refer to the same device.
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
    /// Opens device `ordinal` of this machine's driver, with its primary context, which frameworks share.
    ///
    /// # Errors
    /// The errors of [`Driver::get`]; [`Error::NoSuchDevice`], [`Error::OldDevice`]; [`Error::Call`].
    pub fn open(ordinal: i32) -> Result<Self> {
        Self::of(&Driver::get()?, ordinal)
    }

    /// Opens device `ordinal` of a driver.
    ///
    /// # Errors
    /// As [`Self::open`].
    #[expect(unsafe_code, reason = "calls the driver")]
    pub fn of(driver: &Arc<Driver>, ordinal: i32) -> Result<Self> {
        let count = driver.devices();
        if !(0..count).contains(&ordinal) {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        let f = &driver.functions;
        let (mut device, mut name) = (0, [0 as c_char; 128]);
        let mut attributes = [0; 3];
        // SAFETY: all pointers are to places of the types that the driver writes, and the name's length is
        // given.
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
        // SAFETY: a place for the handle; `Inner` releases the context once it has one, also on an error
        // below.
        let code = unsafe { (f.context_retain)(&raw mut inner.context, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let loaded = inner.enter().and_then(|_current| load_kernels(driver));
        (inner.module, inner.kernels) = loaded?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The number by which the driver knows the device.
    pub fn ordinal(&self) -> i32 {
        self.inner.ordinal
    }

    /// The product name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub(crate) fn multiprocessors(&self) -> u32 {
        self.inner.multiprocessors
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// Makes the device's context current while the guard lives.
    pub(crate) fn enter(&self) -> Result<Current<'_>> {
        self.inner.enter()
    }

    /// Launches a kernel on a grid of blocks.
    ///
    /// # Safety
    /// The context is current; `arguments` is of the type that the kernel takes, and all that it points to
    /// stays allocated until the launch is done.
    #[expect(unsafe_code, reason = "calls the driver")]
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

    /// Makes work that is put into `later` from now on wait for the work that is in `earlier` now. The host
    /// does not wait.
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
        event.hold(later)
    }

    /// Blocks until all work in `stream` is done.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn synchronize(&self, stream: Stream) -> Result<()> {
        // SAFETY: `Stream` promises that the stream exists.
        let code = unsafe { (self.driver().functions.stream_synchronize)(stream.raw()) };
        self.driver().check("cuStreamSynchronize", code)
    }
}

impl Inner {
    #[expect(unsafe_code, reason = "calls the driver")]
    fn enter(&self) -> Result<Current<'_>> {
        // SAFETY: the context is retained as long as `self` lives.
        let code = unsafe { (self.driver.functions.context_push)(self.context) };
        self.driver.check("cuCtxPushCurrent", code)?;
        Ok(Current { driver: &self.driver })
    }
}

impl Drop for Inner {
    #[expect(unsafe_code, reason = "calls the driver")]
    fn drop(&mut self) {
        if self.module != 0 {
            let _current = self.enter();
            // SAFETY: the module was loaded, and no kernel of it is in use any more.
            unsafe { (self.driver.functions.module_unload)(self.module) };
        }
        if self.context != 0 {
            // SAFETY: the context was retained once.
            unsafe { (self.driver.functions.context_release)(self.device) };
        }
    }
}

/// Loads the kernels into the current context: the module's handle, and those of its kernels.
#[expect(unsafe_code, reason = "calls the driver")]
fn load_kernels(driver: &Driver) -> Result<(usize, [usize; NAMES.len()])> {
    let f = &driver.functions;
    let (mut module, mut kernels) = (0, [0; NAMES.len()]);
    // SAFETY: the image was made by nvcc and is static; names are null-terminated.
    unsafe {
        driver.check("cuModuleLoadData", (f.module_load)(&raw mut module, IMAGE.0.as_ptr().cast()))?;
        for (kernel, name) in kernels.iter_mut().zip(NAMES) {
            let code = (f.module_function)(kernel, module, name.as_ptr());
            if let Err(e) = driver.check("cuModuleGetFunction", code) {
                (f.module_unload)(module);
                return Err(e);
            }
        }
    }
    Ok((module, kernels))
}

/// Restores, when dropped, the context that was current before [`Device::enter`].
pub(crate) struct Current<'a> {
    driver: &'a Driver,
}

impl Drop for Current<'_> {
    #[expect(unsafe_code, reason = "calls the driver")]
    fn drop(&mut self) {
        let mut context = 0;
        // SAFETY: the driver writes the handle to a place of its type.
        unsafe { (self.driver.functions.context_pop)(&raw mut context) };
    }
}

/// Waits for a stream when dropped, so that after an error no launched work outlives the memory that it uses.
pub(crate) struct Quiet<'a> {
    pub(crate) device: &'a Device,
    pub(crate) stream: Stream,
}

impl Quiet<'_> {
    /// Ends the guard without a wait.
    pub(crate) fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // An error here has no use: the context has failed, and runs nothing any more.
        let _ = self.device.synchronize(self.stream);
    }
}
