//! The threads that encode and decode.
//!
//! They are not rayon's global threads. A forked process has only the thread that forked, so work given to
//! its parent's threads would never end. Each process therefore has a pool of its own.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

struct Pool {
    process: u32,
    requested: usize,
    pool: rayon::ThreadPool,
}

/// Null, or a pool that is never freed, because a child cannot join its copy of the parent's pool. At most
/// one pool exists for each fork and each call of `set_num_threads`.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
/// The number of threads that `set_num_threads` set; 0 is the default.
static REQUESTED: AtomicUsize = AtomicUsize::new(0);

/// Returns the pool of this process, and makes it if necessary.
#[expect(unsafe_code, reason = "the pool is shared through an atomic pointer, without a lock")]
pub(crate) fn pool() -> PyResult<&'static rayon::ThreadPool> {
    let (process, requested) = (std::process::id(), REQUESTED.load(Ordering::Relaxed));
    loop {
        let current = POOL.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or comes from `Box::into_raw` below and is never freed.
        let found = unsafe { current.as_ref() };
        if let Some(found) = found.filter(|p| p.process == process && p.requested == requested) {
            return Ok(&found.pool);
        }
        let name = |i| format!("gcodec-{i}");
        let built = rayon::ThreadPoolBuilder::new().num_threads(requested).thread_name(name).build();
        let pool = built
            .map_err(|e| PyRuntimeError::new_err(format!("the threads of gcodec cannot be started: {e}")))?;
        let new = Box::into_raw(Box::new(Pool { process, requested, pool }));
        // Without a lock, because another thread of the parent could hold it at the time of the fork.
        if POOL.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: the pointer was not published, so no other thread has it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
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
    REQUESTED.store(threads, Ordering::Relaxed);
}
