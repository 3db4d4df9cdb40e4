//! Options that several commands share.

use crate::fail::{Failure, InFile, Result};
use gcodec::Limits;
use std::path::{Path, PathBuf};

/// Limits on the memory that a stream may claim.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Most elements in one part of an update [default: 2^36]
    #[arg(long, value_name = "N")]
    max_elements: Option<u64>,
    /// Most bytes of memory for a frame, or for the tensors of an update [default: 64 GiB]
    #[arg(long, value_name = "BYTES")]
    max_alloc: Option<u64>,
}

impl LimitArgs {
    /// Returns the library's limits with these values. They are larger than the library's own: a user
    /// chooses the file, while a server receives unknown streams.
    pub(crate) fn limits(self) -> Limits {
        let default = Limits::default();
        let elements = self.max_elements.unwrap_or(default.max_elements);
        default.with_max_elements(elements).with_max_alloc_bytes(self.max_alloc.unwrap_or(DEFAULT_MAX_ALLOC))
    }
}

const DEFAULT_MAX_ALLOC: u64 = 64 << 30;

/// A filter of tensors: a glob on their names.
#[derive(Debug, Clone)]
pub(crate) struct NameGlob(glob::Pattern);

impl NameGlob {
    /// Whether the name matches.
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.0.matches(name)
    }
}

impl std::str::FromStr for NameGlob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        glob::Pattern::new(text).map(Self).map_err(|e| format!("not a glob pattern: {e}"))
    }
}

/// Whether `name` matches an optional filter; without a filter all names match.
pub(crate) fn is_wanted(glob: Option<&NameGlob>, name: &str) -> bool {
    glob.is_none_or(|glob| glob.matches(name))
}

/// Parses `key=value`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("not KEY=VALUE".into()),
    }
}

/// Refuses an output that is also an input: a wrong `-o` must not overwrite the only copy.
pub(crate) fn check_output_is_new<'a>(
    output: &Path,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<()> {
    // A missing path and `-` cannot be an input's file.
    let Ok(target) = output.canonicalize() else { return Ok(()) };
    let is_file = target.is_file();
    if is_file && inputs.into_iter().any(|input| input.canonicalize().is_ok_and(|input| input == target)) {
        return Err(Failure::usage("the output is also an input; give it another name")).in_file(output);
    }
    Ok(())
}

/// Fails unless standard input is read at most once.
pub(crate) fn check_one_stdin<'a>(inputs: impl IntoIterator<Item = &'a PathBuf>) -> Result<()> {
    if inputs.into_iter().filter(|path| crate::input::is_standard(path)).count() > 1 {
        return Err(Failure::usage("standard input can be read once only"));
    }
    Ok(())
}
