//! A progress bar on standard error, for people only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Shows how far long work is; nothing where standard error is no terminal.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar of `total` bytes, or steps if not `bytes`.
    pub(crate) fn new(total: u64, what: &'static str, bytes: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5));
        let template = match bytes {
            true => "{msg} [{bar:30}] {bytes}/{total_bytes} {eta}",
            false => "{msg} [{bar:30}] {pos}/{len} {eta}",
        };
        // The templates are constants; if one were wrong the plain bar would do.
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.set_message(what);
        // So that short work shows nothing at all.
        bar.enable_steady_tick(Duration::from_millis(300));
        Self(bar)
    }

    /// So much is done.
    pub(crate) fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// So much more is done.
    pub(crate) fn add(&self, done: u64) {
        self.0.inc(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
