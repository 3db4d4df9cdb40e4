//! NVIDIA's driver library, loaded at run time. The declarations are those of `cuda.h` 13.0; handles and
//! addresses are declared as integers, which are passed in the same way.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use libloading::Library;

use crate::error::{Error, Result};

/// The version of CUDA that the kernels are built with: 1000 major + 10 minor.
const NEEDED: i32 = 13000;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: i32 = 100;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: i32 = 2;
/// `CU_MEMORYTYPE_DEVICE`.
const MEMORY_TYPE_DEVICE: u32 = 2;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const DEVICE_ORDINAL: i32 = 9;

macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ty),*);)*) => {
        /// The driver's functions. All return 0 or an error code.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// # Safety
            /// The library has these functions as `cuda.h` declares them.
            #[expect(unsafe_code, reason = "takes functions from a library")]
            unsafe fn load(library: &Library) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the caller's promise.
                        let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *found.map_err(|e| Error::NoDriver { why: format!("{}: {e}", $symbol) })?
                    },)*
                })
            }
        }
    };
}

functions! {
    init: "cuInit" (c_uint);
    version: "cuDriverGetVersion" (*mut c_int);
    device_count: "cuDeviceGetCount" (*mut c_int);
    device: "cuDeviceGet" (*mut c_int, c_int);
    device_name: "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_attribute: "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    context_retain: "cuDevicePrimaryCtxRetain" (*mut usize, c_int);
    context_release: "cuDevicePrimaryCtxRelease_v2" (c_int);
    context_push: "cuCtxPushCurrent_v2" (usize);
    context_pop: "cuCtxPopCurrent_v2" (*mut usize);
    module_load: "cuModuleLoadData" (*mut usize, *const c_void);
    module_unload: "cuModuleUnload" (usize);
    module_function: "cuModuleGetFunction" (*mut usize, usize, *const c_char);
    allocate: "cuMemAlloc_v2" (*mut u64, usize);
    free: "cuMemFree_v2" (u64);
    allocate_pinned: "cuMemHostAlloc" (*mut *mut u8, usize, c_uint);
    free_pinned: "cuMemFreeHost" (*mut u8);
    copy_to_device: "cuMemcpyHtoDAsync_v2" (u64, *const u8, usize, usize);
    copy_to_host: "cuMemcpyDtoHAsync_v2" (*mut u8, u64, usize, usize);
    fill: "cuMemsetD8Async" (u64, u8, usize, usize);
    launch: "cuLaunchKernel"
        (usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *const c_void, *mut *const c_void);
    stream_synchronize: "cuStreamSynchronize" (usize);
    event_create: "cuEventCreate" (*mut usize, c_uint);
    event_record: "cuEventRecord" (usize, usize);
    event_synchronize: "cuEventSynchronize" (usize);
    event_destroy: "cuEventDestroy_v2" (usize);
    stream_wait_event: "cuStreamWaitEvent" (usize, usize, c_uint);
    pointer_attribute: "cuPointerGetAttribute" (*mut c_void, c_int, u64);
    error_name: "cuGetErrorName" (c_int, *mut *const c_char);
}

/// The driver, loaded and initialised.
pub struct Driver {
    pub(crate) functions: Functions,
    devices: i32,
    // Holds the functions.
    _library: Library,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("devices", &self.devices).finish_non_exhaustive()
    }
}

#[cfg(windows)]
const NAMES: [&str; 1] = ["nvcuda.dll"];
#[cfg(not(windows))]
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

impl Driver {
    /// Returns the driver of this machine. It is loaded by the first call that succeeds.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::OldDriver`] or [`Error::NoDevice`]; [`Error::Call`].
    #[expect(unsafe_code, reason = "loads a library")]
    pub fn get() -> Result<Arc<Self>> {
        static LOADED: OnceLock<Arc<Driver>> = OnceLock::new();
        if let Some(driver) = LOADED.get() {
            return Ok(Arc::clone(driver));
        }
        let mut failures = Vec::new();
        for name in NAMES {
            // SAFETY: like every CUDA program, trusts the system's library path to have the driver under its
            // name.
            match unsafe { Self::load(Path::new(name)) } {
                Ok(driver) => return Ok(Arc::clone(LOADED.get_or_init(|| driver))),
                Err(Error::NoDriver { why }) => failures.push(why),
                Err(other) => return Err(other),
            }
        }
        Err(Error::NoDriver { why: failures.remove(0) })
    }

    /// Loads a driver from a file.
    ///
    /// # Errors
    /// As [`Self::get`].
    ///
    /// # Safety
    /// The file is NVIDIA's driver library, or one that behaves like it.
    #[expect(unsafe_code, reason = "loads a library and calls it")]
    pub unsafe fn load(path: &Path) -> Result<Arc<Self>> {
        // SAFETY: the caller's promise.
        let library = unsafe { Library::new(path) }.map_err(|e| Error::NoDriver { why: e.to_string() })?;
        // SAFETY: as above.
        let functions = unsafe { Functions::load(&library) }?;
        let mut driver = Self { functions, devices: 0, _library: library };
        let (mut version, mut devices) = (0, 0);
        // SAFETY: the driver writes its results to places of their types.
        unsafe {
            driver.check("cuDriverGetVersion", (driver.functions.version)(&raw mut version))?;
            if version < NEEDED {
                return Err(Error::OldDriver { found: version, needed: NEEDED });
            }
            match (driver.functions.init)(0) {
                NO_DEVICE => return Err(Error::NoDevice),
                code => driver.check("cuInit", code)?,
            }
            driver.check("cuDeviceGetCount", (driver.functions.device_count)(&raw mut devices))?;
        }
        driver.devices = devices;
        match devices {
            0 => Err(Error::NoDevice),
            _ => Ok(Arc::new(driver)),
        }
    }

    /// The number of devices, at least 1.
    pub fn devices(&self) -> i32 {
        self.devices
    }

    /// Returns the number of the device in whose memory `address` lies; `None` if it lies in no device's
    /// memory.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub fn device_of(&self, address: u64) -> Option<i32> {
        let (mut kind, mut ordinal) = (0u32, 0i32);
        let attribute = self.functions.pointer_attribute;
        // SAFETY: the driver writes these attributes to places of their types.
        let known = unsafe {
            attribute((&raw mut kind).cast(), MEMORY_TYPE, address) == 0
                && attribute((&raw mut ordinal).cast(), DEVICE_ORDINAL, address) == 0
        };
        (known && kind == MEMORY_TYPE_DEVICE).then_some(ordinal)
    }

    /// Turns the result of a call into an error.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the driver takes any code, and writes a static string or null.
        let name = unsafe {
            (self.functions.error_name)(code, &raw mut name);
            if name.is_null() { "unknown error".into() } else { CStr::from_ptr(name).to_string_lossy() }
        };
        Err(Error::Call { call, code, name: name.into_owned() })
    }
}

/// Returns why CUDA tensors cannot be used on this machine, in words; `None` if they can.
pub fn why_not() -> Option<String> {
    Driver::get().err().map(|e| e.to_string())
}
