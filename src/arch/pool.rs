//! The threads of a program in another language.
//!
//! They are not rayon's global threads. A forked process has only the thread that forked, so work given to
//! its parent's threads would never end. Each process therefore has a pool of its own.

use std::io;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::Result;

struct Pool {
    process: u32,
    requested: usize,
    threads: ThreadPool,
}

/// Null, or a pool that is never freed, because a child cannot join its copy of the parent's pool. At most
/// one pool exists for each fork and each call of [`set_threads`].
static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
/// The number of threads that [`set_threads`] set; 0 is the default.
static REQUESTED: AtomicUsize = AtomicUsize::new(0);

/// Returns the pool of this process, and makes it if necessary.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) if the system starts no threads.
pub fn pool() -> Result<&'static ThreadPool> {
    let (process, requested) = (std::process::id(), REQUESTED.load(Ordering::Relaxed));
    loop {
        let current = POOL.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or comes from `Box::into_raw` below and is never freed.
        let found = unsafe { current.as_ref() };
        if let Some(found) = found.filter(|p| p.process == process && p.requested == requested) {
            return Ok(&found.threads);
        }
        let name = |i| format!("gcodec-{i}");
        let built = ThreadPoolBuilder::new().num_threads(requested).thread_name(name).build();
        let threads =
            built.map_err(|e| io::Error::other(format!("the threads of gcodec cannot be started: {e}")))?;
        let new = Box::into_raw(Box::new(Pool { process, requested, threads }));
        // Without a lock, because another thread of the parent could hold it at the time of the fork.
        if POOL.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: the pointer was not published, so no other thread has it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Sets the number of threads of [`pool`] from its next call on; 0: one for each core.
pub fn set_threads(threads: usize) {
    REQUESTED.store(threads, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_stays_until_another_number_of_threads_is_set() {
        set_threads(2);
        let (first, again) = (pool().unwrap(), pool().unwrap());
        assert!(std::ptr::eq(first, again));
        assert_eq!(first.install(rayon::current_num_threads), 2);
        set_threads(3);
        assert_eq!(pool().unwrap().current_num_threads(), 3);
        // Work that has the earlier pool goes on.
        assert_eq!(first.install(rayon::current_num_threads), 2);
    }
}
