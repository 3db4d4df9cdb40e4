//! The command line, for `python -m gcodec` and the script `gcodec`.

use std::ffi::OsString;
use std::panic;

use pyo3::prelude::*;

/// Exit code of a program in Rust that panicked. An exception would give 1: the inputs differ.
const PANICKED: u8 = 101;

#[pyfunction]
pub(crate) fn command(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| panic::catch_unwind(|| gcodec_cli::run(words)).unwrap_or(PANICKED))
}
