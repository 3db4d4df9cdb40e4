//! Options that several commands share.

use crate::fail::{Failure, InFile, Result};
use gcodec::Limits;
use std::path::{Path, PathBuf};

/// What a reader allows a stream to ask for.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Most elements that one part of an update may span [default: 2^40]
    #[arg(long, value_name = "N")]
    max_elements: Option<u64>,
    /// Most bytes of memory that a frame, or the tensors of an update, may ask for [default: 64 GiB]
    #[arg(long, value_name = "BYTES")]
    max_alloc: Option<u64>,
}

impl LimitArgs {
    /// The library's limits with these instead. A person who decodes a file means it, so its size is less of a surprise
    /// than what a server receives.
    pub(crate) fn limits(self) -> Limits {
        let default = Limits::default();
        let elements = self.max_elements.unwrap_or(default.max_elements);
        default.with_max_elements(elements).with_max_alloc_bytes(self.max_alloc.unwrap_or(DEFAULT_MAX_ALLOC))
    }
}

const DEFAULT_MAX_ALLOC: u64 = 64 << 30;

/// Which tensors are meant: names by a glob.
#[derive(Debug, Clone)]
pub(crate) struct NameGlob(glob::Pattern);

impl NameGlob {
    /// Whether the name is meant.
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

/// Whether `name` is meant by an option that may be absent and then means all.
pub(crate) fn is_wanted(glob: Option<&NameGlob>, name: &str) -> bool {
    glob.is_none_or(|glob| glob.matches(name))
}

/// `key=value`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("not KEY=VALUE".into()),
    }
}

/// Refuses an output that is also an input: a slip with `-o` must not cost the only copy of something.
pub(crate) fn check_output_is_new<'a>(
    output: &Path,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<()> {
    // What is not there yet, or is `-`, is no input's file.
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
