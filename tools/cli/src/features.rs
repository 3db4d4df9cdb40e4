//! Cargo features of this build: what a command or an argument says whose feature is missing.

use crate::fail::Failure;
use clap::builder::{Resettable, StyledStr};
use clap::error::{ContextKind, ContextValue};
use std::ffi::OsString;
use std::fmt;

/// A part of the program that a build may leave out, because it needs many crates.
struct Feature {
    name: &'static str,
    is_built: bool,
    /// Commands that only it has.
    commands: &'static [&'static str],
}

const FEATURES: [Feature; 3] = [
    Feature { name: "view", is_built: cfg!(feature = "view"), commands: &["view"] },
    Feature {
        name: "store",
        is_built: cfg!(feature = "store"),
        commands: &["publish", "pull", "log", "fold", "gc"],
    },
    Feature { name: "packaging", is_built: cfg!(feature = "packaging"), commands: &["completions", "man"] },
];

/// Returns the usage error of something that needs a feature which this build lacks.
pub(crate) fn missing(feature: &str, what: impl fmt::Display) -> Failure {
    Failure::usage(format_args!(
        "built without `{feature}`: {what} needs `--features {feature}` at `cargo install` or `cargo run`"
    ))
}

/// Returns the error of a command line whose command is of a missing feature; `None` if it is none.
pub(crate) fn missing_command(
    error: &clap::Error,
    words: impl IntoIterator<Item = OsString>,
) -> Option<Failure> {
    let Some(ContextValue::String(command)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let feature = FEATURES.iter().find(|feature| feature.commands.contains(&command.as_str()))?;
    // A store that is no folder needs more: one message says all of it.
    let is_url = |word: &str| word.contains("://") && !word.starts_with("file://");
    let has_url = words.into_iter().any(|word| is_url(&word.to_string_lossy()));
    let name = if feature.name == "store" && has_url { "cloud" } else { feature.name };
    Some(missing(name, format_args!("`gcodec {command}`")))
}

/// Returns the end of `gcodec --help`: the commands that this build lacks.
pub(crate) fn note() -> Resettable<StyledStr> {
    let missing: Vec<String> = FEATURES
        .iter()
        .filter(|feature| !feature.is_built)
        .map(|feature| format!("{} (feature `{}`)", feature.commands.join(", "), feature.name))
        .collect();
    match missing.is_empty() {
        true => Resettable::Reset,
        false => Resettable::Value(
            format!("Not in this build: {}. `cargo install --features full` has all.", missing.join("; "))
                .into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_a_missing_feature_names_it() {
        let parse = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let lean = clap::Command::new("gcodec").subcommand(clap::Command::new("demo"));
            let error = lean.try_get_matches_from(&words);
            missing_command(&error.unwrap_err(), words).map(|failure| failure.message)
        };
        let message = parse("gcodec pull s3://bucket/run -o x.npz").unwrap();
        let flags = "needs `--features cloud` at `cargo install` or `cargo run`";
        assert_eq!(message, format!("built without `cloud`: `gcodec pull` {flags}"));
        assert!(parse("gcodec pull run --help").unwrap().starts_with("built without `store`: `gcodec pull`"));
        assert!(parse("gcodec log file:///run").unwrap().starts_with("built without `store`"));
        assert!(parse("gcodec view http://x").unwrap().starts_with("built without `view`"));
        assert_eq!(parse("gcodec viw x"), None);
        assert_eq!(parse("gcodec --viw"), None);
    }

    #[test]
    fn each_command_is_in_its_feature() {
        let command = <crate::Cli as clap::CommandFactory>::command();
        for feature in &FEATURES {
            for name in feature.commands {
                assert_eq!(command.find_subcommand(name).is_some(), feature.is_built, "{name}");
            }
        }
    }
}
