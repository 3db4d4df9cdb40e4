//! The threads that code. They are the package's own and not rayon's global ones: a process that was forked has no threads
//! but the one that forked, and work given to the others would never be done. So each process has its own pool.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

struct Pool {
    process: u32,
    asked: usize,
    pool: rayon::ThreadPool,
}

/// Null, or a pool that is never freed: a child's copy of its parent's pool could not be joined. There is one for each fork
/// and each call of `set_num_threads` at most.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
static ASKED: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn pool() -> PyResult<&'static rayon::ThreadPool> {
    let (process, asked) = (std::process::id(), ASKED.load(Ordering::Relaxed));
    loop {
        let current = POOL.load(Ordering::Acquire);
        // SAFETY: null, or from `Box::into_raw` below and never freed.
        if let Some(found) = unsafe { current.as_ref() }.filter(|p| p.process == process && p.asked == asked)
        {
            return Ok(&found.pool);
        }
        let name = |i| format!("gcodec-{i}");
        let built = rayon::ThreadPoolBuilder::new().num_threads(asked).thread_name(name).build();
        let pool = built.map_err(|e| PyRuntimeError::new_err(format!("no threads to code with: {e}")))?;
        let new = Box::into_raw(Box::new(Pool { process, asked, pool }));
        // No lock: another thread of the parent could have held it when this process was forked.
        if POOL.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Runs `work` on the package's threads, with the interpreter free for others meanwhile.
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
    ASKED.store(threads, Ordering::Relaxed);
}
