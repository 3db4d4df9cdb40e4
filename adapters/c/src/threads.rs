//! The threads that encode and decode.
//!
//! They are not rayon's global threads. A forked process has only the thread that forked, so work given to
//! its parent's threads would never end. Each process therefore has a pool of its own.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::error::{Failure, Result, gcodec_status};

struct Pool {
    process: u32,
    requested: usize,
    pool: rayon::ThreadPool,
}

/// Null, or a pool that is never freed, because a child cannot join its copy of the parent's pool.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
/// The number of threads that `gcodec_set_threads` set; 0 is the default.
static REQUESTED: AtomicUsize = AtomicUsize::new(0);

/// Returns the pool of this process, and makes it if necessary.
fn pool() -> Result<&'static rayon::ThreadPool> {
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
        let pool = built.map_err(|e| {
            let message = format!("the threads of gcodec cannot be started: {e}");
            Failure::new(gcodec_status::Io, "io", message)
        })?;
        let new = Box::into_raw(Box::new(Pool { process, requested, pool }));
        // Without a lock, because another thread of the parent could hold it at the time of the fork.
        if POOL.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: the pointer was not published, so no other thread has it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Runs `work` on the threads of this process. A panic there goes on in the calling thread.
pub(crate) fn run<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    pool()?.install(work)
}

/// Sets the number of threads that all later calls of this process use together; 0: one for each core. Any
/// thread may call it at any time. Threads of an earlier number are never freed: call it once, at the start.
#[unsafe(no_mangle)]
pub extern "C" fn gcodec_set_threads(threads: u32) {
    REQUESTED.store(threads as usize, Ordering::Relaxed);
}
