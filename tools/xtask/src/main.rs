//! The tasks contributors run, in Rust: `cargo xtask --help`.

mod measure;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The tasks contributors run")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measures sizes on real gradients and compares them with what they must reach.
    Measure(measure::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Measure(args) => measure::run(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
    }
}
