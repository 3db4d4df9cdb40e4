//! Holds the library to the spec and to its promises: vectors, reference runs, faults, other readers, sizes.
//!
//! `cargo xtask` builds this program and passes its commands on: `cargo xtask vectors --check`.

mod dictionary;
mod example;
mod measure;
mod page;
mod programs;
mod readers;
mod reference;
mod registry;
mod seeds;
mod torture;
mod vectors;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Any error: a command prints it and stops.
type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Exit code of a command whose tools are missing on this machine; `cargo xtask test` reports the step as
/// skipped.
const SKIPPED: u8 = 77;

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Conformance of the library and of other readers")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes or checks the conformance vectors, lists uncovered requirements, fuzzes both decoders.
    Vectors(vectors::Arguments),
    /// Writes or checks the worked example in spec/examples.md.
    Example(example::Args),
    /// Writes or checks the tables of ids in spec/gcodec.md.
    Ids(registry::Args),
    /// Compares the reference decoder with the library on files that the command line writes.
    Reference(reference::Args),
    /// Compares the bytes of the command line with those of the same program for another machine.
    Foreign(reference::foreign::Args),
    /// Compiles the Kaitai Struct description and parses every vector with it; tests file(1).
    Kaitai,
    /// Tests the Wireshark dissector with tshark.
    Wireshark,
    /// Measures sizes on real gradients and compares them with their targets.
    Measure(measure::Args),
    /// Draws docs/sizes.svg from the sizes of one committed gradient, or checks it.
    Picture(measure::picture::Args),
    /// Tries corruption, kills, full disks, races, bombs and large inputs, and counts the outcomes.
    Torture(torture::Args),
    /// Writes the seeds of the fuzz targets, and writes or checks their dictionary.
    Seeds(seeds::Args),
}

/// How a command ended.
enum Outcome {
    Passed,
    Failed,
    /// A tool that the command needs is missing.
    Skipped(String),
}

impl From<bool> for Outcome {
    fn from(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }
}

fn main() -> ExitCode {
    let passed = |()| Outcome::Passed;
    let result = match Cli::parse().command {
        Command::Vectors(args) => vectors::run(&args).map(passed),
        Command::Example(args) => example::run(&args).map(passed),
        Command::Ids(args) => registry::run(&args).map(passed),
        Command::Reference(args) => reference::run_all(&args),
        Command::Foreign(args) => reference::foreign::run_all(&args),
        Command::Kaitai => readers::kaitai(),
        Command::Wireshark => readers::wireshark(),
        Command::Measure(args) => measure::run(&args).map(Outcome::from),
        Command::Picture(args) => measure::picture::run(&args).map(passed),
        Command::Torture(args) => torture::run(&args).map(Outcome::from),
        Command::Seeds(args) => seeds::run(&args).map(passed),
    };
    match result {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Ok(Outcome::Skipped(reason)) => {
            println!("skipped: {reason}");
            ExitCode::from(SKIPPED)
        }
        Err(e) => {
            eprintln!("gcodec-conformance: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The project's folder.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}
