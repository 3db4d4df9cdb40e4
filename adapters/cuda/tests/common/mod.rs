//! The mock driver, built for the tests, and tensors in its device memory.
#![allow(dead_code, reason = "every test program uses a part of it")]

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use gcodec::Dtype;
use gcodec_cuda::{Device, DeviceTensor, Driver, Stream};
use libloading::Library;

/// The environment variable with the path of a mock driver to use, in place of one that the test builds.
pub(crate) const CHOSEN: &str = "GCODEC_MOCK_DRIVER";

/// Builds `adapters/cuda/mock_driver/driver.cpp` unless it is built already. Without a C++ compiler it prints
/// a message and returns `None`.
pub(crate) fn build(flags: &[&str]) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let version = match Command::new(&compiler).arg("--version").output() {
        Ok(output) => output.stdout,
        Err(e) => {
            println!("SKIPPED: no C++ compiler ({compiler}: {e}), so no kernel was run");
            return None;
        }
    };
    // The name is a hash of the sources, so that test programs share the library.
    let mut hash = blake3::Hasher::new();
    hash.update(&version).update(flags.join(" ").as_bytes());
    for folder in ["kernels", "cpu_emulator", "mock_driver"] {
        let files = std::fs::read_dir(here.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.collect();
        files.sort();
        files.iter().for_each(|file| _ = hash.update(&std::fs::read(file).unwrap()));
    }
    let name = format!("driver-{}", &hash.finalize().to_hex()[..16]);
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).join("libcuda.so.1");
    if out.exists() {
        return Some(out);
    }
    std::fs::create_dir_all(out.parent().unwrap()).unwrap();
    let new = out.with_extension(std::process::id().to_string());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Werror"])
        // Like nvcc with -fmad=false: a product and a sum are rounded separately.
        .args(["-ffp-contract=off", "-fPIC", "-shared"])
        .args(flags)
        .arg("-o")
        .arg(&new)
        .arg(here.join("mock_driver/driver.cpp"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&new, &out).unwrap();
    Some(out)
}

/// Runs a test of the same program in a separate process, with kernels under AddressSanitizer and
/// UndefinedBehaviorSanitizer.
pub(crate) fn under_sanitizers(test: &str) {
    if std::env::var_os(CHOSEN).is_some() {
        return;
    }
    let flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let Some(mock) = build(&flags) else { return };
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let found = Command::new(compiler).arg("-print-file-name=libasan.so").output().unwrap();
    let runtime = String::from_utf8(found.stdout).unwrap();
    if !runtime.starts_with('/') {
        println!("SKIPPED: the compiler has no libasan.so, so kernels do not run under sanitizers");
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(CHOSEN, mock)
        .env("LD_PRELOAD", runtime.trim())
        // Rust's allocations that live until the end of the process are not leaks.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The mock driver. Its counters are global, so one test runs at a time.
pub(crate) struct MockDriver {
    pub(crate) driver: Arc<Driver>,
    path: PathBuf,
    library: Library,
    _one: MutexGuard<'static, ()>,
}

/// Loads the mock driver, after the other tests that use it are done. `None` without a C++ compiler.
#[expect(unsafe_code, reason = "loads a library")]
pub(crate) fn mock_driver() -> Option<MockDriver> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let path = match std::env::var_os(CHOSEN) {
        Some(path) => PathBuf::from(path),
        None => BUILT.get_or_init(|| build(&["-O3"])).clone()?,
    };
    // SAFETY: the file is the mock driver.
    let (driver, library) = unsafe { (Driver::load(&path).unwrap(), Library::new(&path).unwrap()) };
    Some(MockDriver { driver, path, library, _one: one })
}

impl MockDriver {
    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Waits for a stream.
    pub(crate) fn finish(&self, stream: Stream) {
        let synchronize = self.function::<extern "C" fn(Stream) -> i32>("cuStreamSynchronize");
        assert_eq!(synchronize(stream), 0);
    }

    pub(crate) fn device(&self) -> Device {
        Device::of(&self.driver, 0).unwrap()
    }

    #[expect(unsafe_code, reason = "takes a function from a library")]
    pub(crate) fn function<T: Copy>(&self, name: &str) -> T {
        // SAFETY: callers give the types that `driver.cpp` declares.
        unsafe { *self.library.get::<T>(name.as_bytes()).unwrap() }
    }

    /// The number of calls of a function since [`Self::reset_counts`].
    pub(crate) fn count(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap();
        self.function::<extern "C" fn(*const c_char) -> u64>("mock_driver_count")(name.as_ptr())
    }

    pub(crate) fn reset_counts(&self) {
        self.function::<extern "C" fn()>("mock_driver_reset_counts")();
    }

    /// Lets one call of a function fail, after `after` successful ones; or no call.
    pub(crate) fn fail(&self, name: &str, after: Option<i64>) {
        let name = CString::new(name).unwrap();
        let after = after.unwrap_or(-1);
        self.function::<extern "C" fn(*const c_char, i64)>("mock_driver_fail")(name.as_ptr(), after);
    }

    pub(crate) fn machine(&self, devices: i32, version: i32) {
        self.function::<extern "C" fn(i32, i32)>("mock_driver_machine")(devices, version);
    }

    pub(crate) fn allocations(&self) -> u64 {
        self.function::<extern "C" fn() -> u64>("mock_driver_allocations")()
    }

    /// Fails if the mock driver found a fault that a driver would not report.
    #[expect(unsafe_code, reason = "reads a string of the library")]
    pub(crate) fn assert_sound(&self) {
        let fault = self.function::<extern "C" fn() -> *const c_char>("mock_driver_fault")();
        if !fault.is_null() {
            // SAFETY: a null-terminated string of the library.
            let fault = unsafe { CStr::from_ptr(fault) };
            panic!("{}", fault.to_string_lossy());
        }
    }

    /// Allocates pinned memory with these bytes.
    #[expect(unsafe_code, reason = "writes to allocated memory")]
    pub(crate) fn pinned(&self, bytes: &[u8]) -> u64 {
        let mut pointer = std::ptr::null_mut::<u8>();
        let push = self.function::<extern "C" fn(usize) -> i32>("cuCtxPushCurrent_v2");
        let pop = self.function::<extern "C" fn(*mut usize) -> i32>("cuCtxPopCurrent_v2");
        let allocate = self.function::<extern "C" fn(*mut *mut u8, usize, u32) -> i32>("cuMemHostAlloc");
        assert_eq!(push(1), 0);
        assert_eq!(allocate(&raw mut pointer, bytes.len(), 0), 0);
        assert_eq!(pop(&mut 0), 0);
        // SAFETY: `bytes.len()` bytes were allocated.
        unsafe { pointer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        pointer.expose_provenance() as u64
    }

    pub(crate) fn unpin(&self, pinned: u64) {
        assert_eq!(self.function::<extern "C" fn(u64) -> i32>("cuMemFreeHost")(pinned), 0);
    }

    /// Puts a copy to a device into a stream. It is done when the stream is waited for.
    pub(crate) fn copy_late(&self, to: &Memory, from: u64, bytes: usize, stream: Stream) {
        let push = self.function::<extern "C" fn(usize) -> i32>("cuCtxPushCurrent_v2");
        let pop = self.function::<extern "C" fn(*mut usize) -> i32>("cuCtxPopCurrent_v2");
        let copy = self.function::<extern "C" fn(u64, u64, usize, Stream) -> i32>("cuMemcpyHtoDAsync_v2");
        assert_eq!(push(1), 0);
        assert_eq!(copy(to.address, from, bytes, stream), 0);
        assert_eq!(pop(&mut 0), 0);
    }

    #[expect(unsafe_code, reason = "wraps a stream")]
    pub(crate) fn stream(&self) -> Stream {
        let mut stream = 0;
        let create = self.function::<extern "C" fn(*mut usize, u32) -> i32>("cuStreamCreate");
        assert_eq!(create(&raw mut stream, 1), 0);
        // SAFETY: the stream was just created.
        unsafe { Stream::from_raw(stream) }
    }

    /// Allocates memory of device `ordinal`.
    pub(crate) fn memory(&self, ordinal: i32, bytes: usize) -> Memory {
        let mut address = 0u64;
        let push = self.function::<extern "C" fn(usize) -> i32>("cuCtxPushCurrent_v2");
        let pop = self.function::<extern "C" fn(*mut usize) -> i32>("cuCtxPopCurrent_v2");
        let allocate = self.function::<extern "C" fn(*mut u64, usize) -> i32>("cuMemAlloc_v2");
        let mut context = 0;
        assert_eq!(push(ordinal as usize + 1), 0);
        assert_eq!(allocate(&raw mut address, bytes.max(1)), 0);
        assert_eq!(pop(&raw mut context), 0);
        Memory { address, bytes, free: self.function("cuMemFree_v2") }
    }

    /// Copies a tensor's bytes to device 0, `skip` bytes into an allocation that ends with them.
    pub(crate) fn upload(&self, bytes: &[u8], skip: usize) -> Memory {
        let memory = self.memory(0, skip + bytes.len());
        memory.write(skip, bytes);
        memory
    }
}

/// Device memory of the mock driver, which is host memory.
pub(crate) struct Memory {
    pub(crate) address: u64,
    bytes: usize,
    free: extern "C" fn(u64) -> i32,
}

impl Memory {
    #[expect(unsafe_code, reason = "writes to allocated memory")]
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes);
        // SAFETY: the range is inside of the allocation.
        unsafe {
            let place = std::ptr::with_exposed_provenance_mut::<u8>(self.address as usize).add(offset);
            place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    #[expect(unsafe_code, reason = "reads allocated memory")]
    pub(crate) fn read(&self) -> Vec<u8> {
        let place = std::ptr::with_exposed_provenance::<u8>(self.address as usize);
        // SAFETY: the memory is allocated and initialised.
        unsafe { std::slice::from_raw_parts(place, self.bytes) }.to_vec()
    }

    /// The tensor that begins at byte `skip`.
    #[expect(unsafe_code, reason = "borrows device memory")]
    pub(crate) fn tensor<'a>(
        &'a self,
        device: &Device,
        skip: usize,
        dtype: Dtype,
        shape: &'a [u64],
    ) -> DeviceTensor<'a> {
        // SAFETY: the memory lives as long as `self`, and tests do not write to it meanwhile.
        unsafe { DeviceTensor::from_raw(device, self.address + skip as u64, dtype, shape) }.unwrap()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        assert_eq!((self.free)(self.address), 0);
    }
}

/// Returns roughly normal numbers: sums of twelve uniform ones, minus their mean.
pub(crate) fn normal(n: usize, seed: u64) -> Vec<f32> {
    let mut words = vec![0; n * 3];
    gcodec::compress::random::words(seed, 0, 0, &mut words);
    let bytes = |w: &u32| w.to_le_bytes().map(f32::from).iter().sum::<f32>();
    words.chunks(3).map(|w| (w.iter().map(bytes).sum::<f32>() - 12.0 * 127.5) / 256.0).collect()
}

pub(crate) fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let mut data = vec![0; dtype.bytes_for(values.len() as u64).unwrap() as usize];
    gcodec::internal::element::encode_f32s(dtype, values, 0, &mut data).unwrap();
    data
}
