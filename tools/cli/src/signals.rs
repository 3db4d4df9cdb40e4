//! Ctrl-C and SIGTERM: the unfinished files are removed, then the program ends.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Temporary files that are not in their place yet.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Exit code of a program that SIGINT ended, as shells report it.
const INTERRUPTED: i32 = 130;

/// Removes the unfinished files when a signal ends the program.
pub(crate) fn watch() {
    // Without a handler the program ends as well, and only the temporary file stays.
    let _ = ctrlc::set_handler(|| {
        for path in UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = std::fs::remove_file(path);
        }
        std::process::exit(INTERRUPTED);
    });
}

/// Adds a temporary file.
pub(crate) fn begin(path: &Path) {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
}

/// Takes a temporary file out: it is in its place, or removed.
pub(crate) fn end(path: &Path) {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).retain(|unfinished| unfinished != path);
}
