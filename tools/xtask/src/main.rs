//! The tasks contributors run, in Rust: `cargo xtask --help`.

mod cuda;
mod dependencies;
mod example;
mod fuzz;
mod measure;
mod programs;
mod python;
mod readers;
mod reference;
mod test;
mod torture;
mod vectors;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Any error: a task tells its caller what went wrong and stops.
type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The tasks contributors run")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything a contributor should run, and what CI runs.
    Test(test::Args),
    /// The conformance vectors in spec/vectors: write, check, list what they leave uncovered, fuzz both decoders.
    Vectors(vectors::Arguments),
    /// The worked example in spec/examples.md: write or check.
    Example(example::Args),
    /// Builds the Python package's wheel, installs it into a fresh environment, and runs its tests there.
    Python,
    /// Looks at the licences of all dependencies, and whether what is shipped has one twice.
    Dependencies,
    /// The reference decoder against the library, on what the command line writes from the public gradients.
    Reference(reference::Args),
    /// The Kaitai Struct description: compiled, and every vector parsed by it; and what file(1) says.
    Kaitai,
    /// The Wireshark dissector, with tshark.
    Wireshark,
    /// Fuzzes readers, the encoder and the command line, each target for a time; needs nightly Rust.
    Fuzz(fuzz::Args),
    /// Compiles the kernels for CUDA devices: writes or checks the image that the crate holds, and what each kernel takes.
    Cuda(cuda::Args),
    /// Measures sizes on real gradients and compares them with what they must reach.
    Measure(measure::Args),
    /// Damage, kills, full disks, races, bombs, and time: what happens when things go wrong, tried out and counted.
    Torture(torture::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Test(args) => test::run(&args),
        Task::Vectors(args) => vectors::run(&args).map(|()| true),
        Task::Example(args) => example::run(&args).map(|()| true),
        Task::Dependencies => dependencies::run(),
        Task::Python => python::test().map(|()| true),
        Task::Reference(args) => reference::run_all(&args).map(|()| true),
        Task::Kaitai => readers::kaitai().map(|()| true),
        Task::Wireshark => readers::wireshark().map(|()| true),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Cuda(args) => cuda::compile(&args).map(|()| true),
        Task::Measure(args) => measure::run(&args),
        Task::Torture(args) => torture::run(&args),
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

/// The project's folder.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}
