//! Processor time of a piece of work.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns the processor time of this thread on Linux, and the elapsed time elsewhere. Other work on the
/// machine does not change the processor time. Its resolution is some milliseconds: suited to sums over many
/// steps.
pub(crate) fn now() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    match text.split_whitespace().next().and_then(|ns| ns.parse().ok()) {
        Some(ns) => Duration::from_nanos(ns),
        None => {
            static BEGIN: OnceLock<Instant> = OnceLock::new();
            BEGIN.get_or_init(Instant::now).elapsed()
        }
    }
}
