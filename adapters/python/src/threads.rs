//! The threads that encode and decode.

use gcodec::internal::threads;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Returns the pool of this process, and makes it if necessary.
pub(crate) fn pool() -> PyResult<&'static rayon::ThreadPool> {
    threads::pool().map_err(|e| PyRuntimeError::new_err(e.to_string()))
}

/// Runs `work` on the package's threads, and releases the interpreter meanwhile.
pub(crate) fn run<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let pool = pool()?;
    Ok(py.detach(|| pool.install(work)))
}

#[pyfunction]
pub(crate) fn num_threads() -> PyResult<usize> {
    Ok(pool()?.current_num_threads())
}

#[pyfunction]
pub(crate) fn set_num_threads(threads: usize) {
    threads::set_threads(threads);
}
