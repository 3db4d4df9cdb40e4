//! What a piece of work costs.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The processor time of this thread, where Linux tells it; elsewhere the time that has passed. Other work on the machine then
/// makes a run longer, but not what is reported of it. It advances in ticks of some milliseconds: good for sums over many
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
