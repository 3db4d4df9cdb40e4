//! `gcodec`: the command line of the gcodec format for compressed model updates.
//!
//! One module for each command; `fail` holds the exit codes.

#![deny(unsafe_code)]

#[cfg_attr(not(test), expect(dead_code, reason = "for the command that measures"))]
mod bandwidth;
mod diff;
mod fail;
mod input;
mod man;
// Names and sizes for commands to come.
#[cfg_attr(not(test), allow(dead_code))]
mod output;
// Writing is for commands to come.
#[cfg_attr(not(test), allow(dead_code))]
mod tensors;
#[cfg(test)]
mod testing;

use clap::{CommandFactory, Parser, Subcommand};
use fail::{Outcome, Result};
use std::path::PathBuf;
use std::process::ExitCode;

/// Compressed model updates: gradients, pseudo-gradients and weight deltas.
///
/// Exit codes: 0 all is well; 1 the inputs differ or a check failed; 2 usage; 3 damaged or invalid input; 4 a limit was
/// exceeded; 74 reading or writing failed.
#[derive(Debug, Parser)]
#[command(name = "gcodec", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Diff(diff::Args),
    /// Print the completions of a shell
    #[command(hide = true)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write those of all commands
    #[command(hide = true)]
    Man {
        /// The directory to write to
        directory: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(outcome) => outcome.into(),
        Err(failure) => failure.report(),
    }
}

fn run(command: &Command) -> Result<Outcome> {
    match command {
        Command::Diff(args) => diff::run(args, tensors::Dump::open),
        Command::Completions { shell } => man::completions(Cli::command(), *shell),
        Command::Man { directory } => man::pages(Cli::command(), directory.as_deref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_are_parsed() {
        let cli = Cli::try_parse_from(["gcodec", "diff", "-", "b.npz", "--rtol", "1e-3"]).unwrap();
        assert!(matches!(cli.command, Command::Diff(_)));
        let error = Cli::try_parse_from(["gcodec", "diff", "a", "b", "--rtol=-1"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
    }
}
