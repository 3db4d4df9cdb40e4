//! The tasks that contributors run: `cargo xtask --help`.

mod vectors;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The tasks that contributors run")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// The conformance vectors in spec/vectors: write, check, list what they leave uncovered, fuzz both decoders.
    Vectors(vectors::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Vectors(arguments) => vectors::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
