//! CUDA tensors: borrowed through DLPack or the CUDA Array Interface, compressed on their device, and written
//! to there.

mod apply;
mod changes;
mod compress;
mod lent;
mod sums;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gcodec_cuda::{Compressor, DeltaCompressor, Device, Driver, Scatter, SumDigester, TensorError};
use pyo3::prelude::*;

pub(crate) use apply::cuda_apply;
pub(crate) use changes::{Changed, changes};
pub(crate) use compress::{Compressors, Given, compress, compress_in, ordinals, undo, with_residuals};
pub(crate) use lent::{Lent, lend, lend_at};
pub(crate) use sums::cuda_sum_shares;

use crate::encode::parse;
use crate::errors;

/// The driver and the devices that this process has opened.
struct Opened {
    /// A driver that replaces the system's.
    driver: Option<Arc<Driver>>,
    devices: BTreeMap<i32, Device>,
    /// Compressors for updates without one of their own, which keep their memory for the next update.
    idle: BTreeMap<i32, Compressor>,
    /// As above, for updates of deltas.
    idle_deltas: BTreeMap<i32, DeltaCompressor>,
    /// As above, for updates that are applied.
    idle_scatters: BTreeMap<i32, Scatter>,
    /// As above, for digests.
    idle_sums: BTreeMap<i32, SumDigester>,
}

impl Opened {
    const fn new(driver: Option<Arc<Driver>>) -> Self {
        Self {
            driver,
            devices: BTreeMap::new(),
            idle: BTreeMap::new(),
            idle_deltas: BTreeMap::new(),
            idle_scatters: BTreeMap::new(),
            idle_sums: BTreeMap::new(),
        }
    }
}

/// Not freed when the process ends, because the driver may have shut down by then.
static OPENED: Mutex<Opened> = Mutex::new(Opened::new(None));

fn opened() -> MutexGuard<'static, Opened> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn driver() -> gcodec_cuda::Result<Arc<Driver>> {
    let chosen = opened().driver.clone();
    chosen.map_or_else(Driver::get, Ok)
}

fn device(ordinal: i32) -> gcodec_cuda::Result<Device> {
    if let Some(device) = opened().devices.get(&ordinal) {
        return Ok(device.clone());
    }
    // Outside the lock, because it takes time. A second device object for the same device is harmless.
    let device = Device::of(&driver()?, ordinal)?;
    Ok(opened().devices.entry(ordinal).or_insert(device).clone())
}

/// Replaces the driver by the library in a file; `None` is the system's driver. Tests load
/// `adapters/cuda/mock_driver`.
#[pyfunction]
#[pyo3(name = "_load_driver")]
#[expect(unsafe_code, reason = "a library is loaded and trusted as the driver")]
pub(crate) fn load_driver(py: Python<'_>, path: Option<PathBuf>) -> PyResult<()> {
    // SAFETY: the caller of this private function says that the file behaves like the driver.
    let driver = path.map(|path| unsafe { Driver::load(&path) });
    let driver = driver.transpose().map_err(|e| errors::raise_cuda(py, e, None))?;
    let mut opened = opened();
    *opened = Opened::new(driver);
    Ok(())
}

/// Opens the driver, and the device `ordinal` if given. Raises the reason if CUDA cannot be used.
#[pyfunction]
#[pyo3(name = "cuda_open", signature = (ordinal=None))]
pub(crate) fn open(py: Python<'_>, ordinal: Option<i32>) -> PyResult<()> {
    let opened = py.detach(|| match ordinal {
        None => driver().map(drop),
        Some(ordinal) => device(ordinal).map(drop),
    });
    opened.map_err(|e| errors::raise_cuda(py, e, None))
}

/// Frees the device memory that is kept for updates without a compressor of their own.
#[pyfunction]
#[pyo3(name = "cuda_release")]
pub(crate) fn release(py: Python<'_>) {
    let mut opened = opened();
    let Opened { idle, idle_deltas, idle_scatters, idle_sums, .. } = &mut *opened;
    let idle = (
        std::mem::take(idle),
        std::mem::take(idle_deltas),
        std::mem::take(idle_scatters),
        std::mem::take(idle_sums),
    );
    drop(opened);
    py.detach(|| drop(idle));
}

/// Whether a codec runs on devices.
#[pyfunction]
#[pyo3(name = "cuda_takes")]
pub(crate) fn takes(py: Python<'_>, spec: &str) -> PyResult<bool> {
    Ok(gcodec_cuda::takes(&parse(py, spec)?))
}

/// Returns the number of the device to whose memory an address belongs.
#[pyfunction]
#[pyo3(name = "cuda_device_of")]
pub(crate) fn device_of(py: Python<'_>, address: u64) -> PyResult<i32> {
    let driver = driver().map_err(|e| errors::raise_cuda(py, e, None))?;
    let outside = TensorError::Bounds { address };
    driver.device_of(address).ok_or_else(|| errors::raise_cuda(py, outside.into(), None))
}
