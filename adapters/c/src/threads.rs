//! The threads that encode and decode.

use gcodec::internal::threads;

use crate::error::Result;

/// Runs `work` on the threads of this process. A panic there goes on in the calling thread.
pub(crate) fn run<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    threads::pool()?.install(work)
}

/// Sets the number of threads that all later calls of this process use together; 0: one for each core. Any
/// thread may call it at any time. Threads of an earlier number are never freed: call it once, at the start.
#[unsafe(no_mangle)]
pub extern "C" fn gcodec_set_threads(threads: u32) {
    threads::set_threads(threads as usize);
}
