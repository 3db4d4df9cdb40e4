//! Options that several commands share.

use crate::fail::{Failure, InFile, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use gcodec::Limits;
use gcodec::block::{Effort, Profile};
use std::path::{Path, PathBuf};

/// Parser of profiles of the format. Completions offer their names.
pub(crate) fn profiles() -> impl TypedValueParser<Value = Profile> {
    let names = PossibleValuesParser::new(Profile::ALL.map(|(_, name)| name));
    names.map(|name| Profile::from_name(&name).unwrap_or_default())
}

/// Parser of the efforts of the codec `lossless`. Completions offer their names.
pub(crate) fn efforts() -> impl TypedValueParser<Value = Effort> {
    let names = PossibleValuesParser::new(Effort::ALL.map(|(_, name)| name));
    names.map(|name| Effort::from_name(&name).unwrap_or_default())
}

/// Limits on the memory that a stream may claim.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Most elements in one part of an update [default: 2^36; 1G is 10^9, 1Gi is 2^30]
    #[arg(long, value_name = "N", value_parser = parse_size)]
    max_elements: Option<u64>,
    /// Most bytes of memory for a frame, or for the tensors of an update [default: 64GiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
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

/// Parses a number or a size: `1000`, `1k`, `64GiB`, `1.5G`, `2^40`. k, M, G, T are powers of 1000; ki, Ki,
/// Mi, Gi, Ti powers of 1024; a final `B` means nothing more.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("not a size such as 1000, 1.5G, 64GiB or 2^40: {text:?}");
    if let Some(exponent) = text.strip_prefix("2^") {
        return exponent.parse::<u32>().ok().and_then(|e| 1u64.checked_shl(e)).ok_or_else(wrong);
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = unit.trim_start();
    let unit = unit.strip_suffix('B').unwrap_or(unit);
    let factor = match unit {
        "" => 1,
        "k" | "K" => 1000,
        "M" => 1000_u64.pow(2),
        "G" => 1000_u64.pow(3),
        "T" => 1000_u64.pow(4),
        "ki" | "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return Err(wrong()),
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(wrong);
    }
    match digits.parse::<f64>() {
        Ok(real) if factor > 1 && real * (factor as f64) < u64::MAX as f64 => {
            Ok((real * factor as f64) as u64)
        }
        _ => Err(wrong()),
    }
}

/// A filter of tensors: a glob on their names.
#[derive(Debug, Clone)]
pub(crate) struct NameGlob(glob::Pattern);

impl NameGlob {
    /// Returns the pattern.
    pub(crate) fn text(&self) -> &str {
        self.0.as_str()
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases = [
            ("1000", 1000),
            ("1k", 1000),
            ("1G", 1_000_000_000),
            ("1.5 MB", 1_500_000),
            ("64GiB", 64 << 30),
            ("2Ki", 2048),
            ("2^40", 1 << 40),
            ("0", 0),
        ];
        for (text, size) in cases {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for wrong in ["", "G", "-1", "1.5", "1X", "2^64", "99999999T", "1..5G", "nan"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
