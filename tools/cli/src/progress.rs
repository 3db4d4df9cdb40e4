//! A progress bar on standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Shows the progress of long work if standard error is a terminal.
pub(crate) struct Progress(pub(crate) ProgressBar);

impl Progress {
    /// Returns a bar of `total` bytes, or of steps if not `bytes`.
    pub(crate) fn new(total: u64, what: &'static str, bytes: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5));
        let template = match bytes {
            true => "{msg} [{bar:30}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
            false => "{msg} [{bar:30}] {pos}/{len} {eta}",
        };
        // The templates are constants; the default bar replaces a wrong one.
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.set_message(what);
        // Delays the bar, so that short work shows nothing.
        bar.enable_steady_tick(Duration::from_millis(300));
        Self(bar)
    }

    /// Sets the amount of all work.
    pub(crate) fn set_total(&self, total: u64) {
        self.0.set_length(total);
    }

    /// Sets the amount of finished work.
    pub(crate) fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Adds to the amount of finished work.
    pub(crate) fn add(&self, done: u64) {
        self.0.inc(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
