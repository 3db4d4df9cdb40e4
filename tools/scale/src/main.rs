//! Training steps at scale: the model of `gcodec plan` against real exchanges (`check`), its recommendations
//! on their links (`links`), and steps of 2 to 10,000 workers (`sweep`). Each writes its part of
//! `docs/scale.md`.

mod check;
mod links;
#[path = "../../cli/src/plan/model.rs"]
#[allow(dead_code, reason = "the command uses more of it")]
mod model;
mod page;
mod plot;
mod real;
mod sweep;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

/// Any error, printed for the user.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Debug, Parser)]
#[command(
    about = "Training steps at scale: the model of gcodec plan against real exchanges, and beyond them"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compares the model with the steps that tools/scale/real/run.py measured, and with those of a folder
    /// `unseen` beside them; fails if fewer than 90 % of either are within 15 %
    Check {
        /// Folder with real.csv and parts.csv
        #[arg(long, default_value_os_t = folder())]
        results: PathBuf,
        /// Number of cores of the machine that measured them
        #[arg(long, default_value_t = 2)]
        cores: u32,
        /// Prints each step beside the model, not only those beyond 15 %
        #[arg(long, conflicts_with = "write")]
        steps: bool,
        /// Writes the table of docs/scale.md
        #[arg(long)]
        write: bool,
    },
    /// Asks `gcodec plan` for the best codec on the links that tools/scale/real/run.py measured, and compares
    Links {
        /// The command line, as built
        #[arg(long, default_value_os_t = root().join("target/release/gcodec"))]
        gcodec: PathBuf,
        /// Folder with real.csv
        #[arg(long, default_value_os_t = folder())]
        results: PathBuf,
        /// The output of `gcodec plan --json` on the gradients of the exchanges
        #[arg(long, default_value_os_t = folder().join("sizes.json"))]
        measured: PathBuf,
        /// Writes the table of docs/scale.md
        #[arg(long)]
        write: bool,
    },
    /// Computes steps of 2 to 10,000 workers, 10 Mbit/s to 400 Gbit/s and 1 M to 70 G parameters
    Sweep {
        /// Sizes, sums and errors: the output of `gcodec plan --json` on gradients of several workers
        #[arg(long, default_value_os_t = folder().join("sizes.json"))]
        sizes: PathBuf,
        /// Times of coding: the same on a large gradient
        #[arg(long, default_value_os_t = folder().join("speeds.json"))]
        speeds: PathBuf,
        /// Writes the tables of docs/scale.md and its pictures
        #[arg(long)]
        write: bool,
    },
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folder() -> PathBuf {
    root().join("docs/scale")
}

fn main() -> std::process::ExitCode {
    let done = match Args::parse().command {
        Command::Check { results, cores, steps, write } => check::run(&results, cores, steps, write),
        Command::Links { gcodec, results, measured, write } => {
            links::run(&gcodec, &results, &measured, write)
        }
        Command::Sweep { sizes, speeds, write } => sweep::run(&sizes, &speeds, write),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gcodec-scale: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
