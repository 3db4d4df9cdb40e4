//! The command `gcodec`, as one function: the command line of the format for compressed model updates.
//!
//! The program `gcodec` and the Python package run it; it is no interface for others. One module for each
//! command; `fail` holds the exit codes.

#![deny(unsafe_code)]

mod annotate;
mod assign;
mod audit;
mod bandwidth;
mod baselines;
mod bench;
mod checkpoint;
mod compare;
mod console;
mod convert;
mod damage;
mod decode;
mod demo;
mod diff;
mod digest;
mod encode;
mod fail;
mod features;
mod feedback;
mod files;
mod fit;
mod input;
mod inspect;
mod learned;
#[cfg(feature = "packaging")]
mod man;
mod model;
mod naming;
mod options;
mod order;
mod origin;
mod output;
mod pairs;
mod parquet;
mod plan;
mod progress;
mod records;
mod recover;
mod reduce;
mod signals;
mod spool;
#[cfg(feature = "store")]
mod store;
mod stream;
mod tensors;
mod terminal;
#[cfg(test)]
mod testing;
mod verify;
#[doc(hidden)]
pub mod versions;
#[cfg(feature = "view")]
mod view;

use clap::{Parser, Subcommand};
use fail::{Code, Failure, Outcome, Result};
use std::ffi::OsString;
use std::io::Write;

/// The versions of this program and of the format that it writes.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (format 1.0)");

/// Compressed model updates: gradients, pseudo-gradients and weight deltas
///
/// Exit codes: 0 success; 1 the inputs differ or a check failed; 2 usage; 3 corrupt or invalid input; 4
/// limit exceeded; 74 reading or writing failed.
#[derive(Debug, Parser)]
#[command(name = "gcodec", version = VERSION, max_term_width = 100, after_help = features::note())]
struct Cli {
    /// Number of threads [default: the number of cores; 1 for bench]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Print errors only
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Encode(encode::Args),
    Decode(decode::Args),
    Compress(checkpoint::CompressArgs),
    Decompress(checkpoint::DecompressArgs),
    Inspect(inspect::Args),
    #[cfg(feature = "view")]
    View(view::Args),
    Verify(verify::Args),
    Recover(recover::Args),
    Reduce(reduce::Args),
    Audit(audit::Args),
    Convert(convert::Args),
    Diff(diff::Args),
    Digest(digest::Args),
    Bench(bench::Args),
    Plan(plan::Args),
    Demo(demo::Args),
    #[cfg(feature = "store")]
    #[command(flatten)]
    Store(store::Command),
    Model(model::Args),
    #[cfg(feature = "packaging")]
    #[command(flatten)]
    Man(man::Command),
}

/// Runs the command line of these words and returns its exit code. The first word names the program.
///
/// Once per process: it starts the threads, and replaces the handlers of SIGINT, SIGTERM and SIGHUP by one
/// that removes unfinished files.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    signals::watch();
    let words: Vec<OsString> = words.into_iter().collect();
    let code = match Cli::try_parse_from(&words) {
        Ok(cli) => code_of(start(&cli)),
        Err(error) => match features::missing_command(&error, words) {
            Some(failure) => code_of(Err(failure)),
            None => {
                // Ignores a closed pipe, as `clap::Error::exit` does.
                let _ = error.print();
                error.exit_code() as u8
            }
        },
    };
    // A host in another language does not flush Rust's standard output when it ends.
    let _ = std::io::stdout().flush();
    code
}

/// Prints the failure, if it is one, and returns the exit code.
fn code_of(result: Result<Outcome>) -> u8 {
    result.map_or_else(|failure| failure.report(), |outcome| outcome as u8)
}

/// Starts the threads and runs the command.
fn start(cli: &Cli) -> Result<Outcome> {
    let default = if matches!(cli.command, Command::Bench(_)) { 1 } else { 0 };
    let threads = cli.threads.map_or(default, usize::from);
    // The pool is built only once, so this fails only if the system starts no threads.
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .map_err(|e| Failure::new(Code::Io, format_args!("cannot start threads: {e}")))?;
    execute(cli)
}

/// Runs the command.
fn execute(cli: &Cli) -> Result<Outcome> {
    match &cli.command {
        Command::Encode(args) => encode::run(args, cli.quiet),
        Command::Decode(args) => decode::run(args, cli.quiet),
        Command::Compress(args) => checkpoint::compress(args, cli.quiet),
        Command::Decompress(args) => checkpoint::decompress(args, cli.quiet),
        Command::Inspect(args) => inspect::run(args),
        #[cfg(feature = "view")]
        Command::View(args) => view::run(args),
        Command::Verify(args) => verify::run(args, cli.quiet),
        Command::Recover(args) => recover::run(args, cli.quiet),
        Command::Reduce(args) => reduce::run(args, cli.quiet),
        Command::Audit(args) => audit::run(args),
        Command::Convert(args) => convert::run(args, cli.quiet),
        Command::Diff(args) => diff::run(args),
        Command::Digest(args) => digest::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Demo(args) => demo::run(args),
        #[cfg(feature = "store")]
        Command::Store(command) => store::run(command, cli.quiet),
        Command::Model(args) => model::run(args, cli.quiet),
        #[cfg(feature = "packaging")]
        Command::Man(command) => man::run(command, <Cli as clap::CommandFactory>::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use gcodec::frame::{VERSION_MAJOR, VERSION_MINOR};

    #[test]
    fn the_version_names_the_format_that_streams_state() {
        assert!(VERSION.ends_with(&format!(" (format {VERSION_MAJOR}.{VERSION_MINOR})")));
    }

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
