//! Text for a person while a command runs: output, warnings and notes.

use crate::fail::{InOutput, Result};
use crate::output::printable;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writes all of `text` to standard output.
///
/// If the reader closed the pipe, it returns a failure that [`report`](crate::fail::Failure::report) does
/// not print.
pub(crate) fn print(text: impl fmt::Display) -> Result<()> {
    let mut stdout = BufWriter::new(io::stdout().lock());
    write!(stdout, "{text}").and_then(|()| stdout.flush()).in_output(Path::new("-"))
}

/// Prints a warning on standard error.
pub(crate) fn warn(text: impl fmt::Display) {
    // Ignores a closed standard error.
    let _ = writeln!(io::stderr(), "warning: {}", printable(&text.to_string()));
}

/// Prints a note on standard error, away from the output.
pub(crate) fn note(text: impl fmt::Display) {
    // Ignores a closed standard error.
    let _ = writeln!(io::stderr(), "gcodec: {}", printable(&text.to_string()));
}
