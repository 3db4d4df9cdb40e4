//! The tasks that contributors run: `cargo xtask --help`.

mod cuda;
mod foreign;
mod fuzz;
mod programs;
mod prose;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gcodec_packaging::{c, dependencies, links, peers, python, release, site, web};
use programs::Forwarded;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The tasks that contributors run")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs all tests: what to run before a commit, and what CI runs.
    Test(test::Args),
    /// Writes or checks the conformance vectors, lists uncovered requirements, fuzzes both decoders.
    #[command(disable_help_flag = true)]
    Vectors(Forwarded),
    /// Writes or checks the worked example in spec/examples.md.
    #[command(disable_help_flag = true)]
    Example(Forwarded),
    /// Writes or checks the tables of ids in spec/gcodec.md.
    #[command(disable_help_flag = true)]
    Ids(Forwarded),
    /// Builds the Python package's wheel, installs it into a fresh environment, and runs its tests there.
    Python,
    /// Measures the speed of gcodec beside other compressors; installs them once (350 MB).
    Peers(peers::Args),
    /// Tests the C library with programs in C and C++; installs it; writes its header.
    C(c::Args),
    /// Tests the Python package with inference engines and further trainers; installs vLLM once (6 GB).
    Engines,
    /// Checks the licences of all dependencies, and that nothing is shipped in two versions.
    Dependencies,
    /// Checks what has to hold before a release (docs/releasing.md); uploads nothing.
    Release(release::Args),
    /// Builds the site of all pages and references, and checks its links.
    Site(site::Args),
    /// Builds the page of `inspect` and the package for npm, and tests them in a browser and in node.
    Web(web::Args),
    /// Compares the reference decoder with the library on files that the command line writes.
    #[command(disable_help_flag = true)]
    Reference(Forwarded),
    /// Tests the wire format and the command line on other machines: big-endian, 32-bit, ARM; sets them up
    /// once (4 GB).
    Foreign(foreign::Args),
    /// Compiles the Kaitai Struct description and parses every vector with it; tests file(1).
    #[command(disable_help_flag = true)]
    Kaitai(Forwarded),
    /// Tests the Wireshark dissector with tshark.
    #[command(disable_help_flag = true)]
    Wireshark(Forwarded),
    /// Fuzzes readers, the encoder and the command line, each target for a time; needs nightly Rust.
    Fuzz(fuzz::Args),
    /// Compiles the CUDA kernels, writes or checks the image in the crate, and prints each kernel's
    /// registers.
    Cuda(cuda::Args),
    /// Measures sizes on real gradients and compares them with their targets.
    #[command(disable_help_flag = true)]
    Measure(Forwarded),
    /// Draws docs/sizes.svg from the sizes of one committed gradient, or checks it.
    #[command(disable_help_flag = true)]
    Picture(Forwarded),
    /// Checks that every relative link in a Markdown page leads to a file.
    Links,
    /// Checks that comments and Markdown prose are at most 110 columns wide.
    Prose,
    /// Runs the library's tests on small mistakes in it, and lists those that no test notices; takes hours.
    #[command(disable_help_flag = true)]
    Mutants(Forwarded),
    /// Tries corruption, kills, full disks, races, bombs and large inputs, and counts the outcomes.
    #[command(disable_help_flag = true)]
    Torture(Forwarded),
}

fn main() -> ExitCode {
    let end = |passed: bool| if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let result = match Cli::parse().task {
        Task::Test(args) => test::run(&args).map(end),
        Task::Vectors(args) => args.run("vectors"),
        Task::Example(args) => args.run("example"),
        Task::Ids(args) => args.run("ids"),
        Task::C(args) => c::run_task(&args),
        Task::Dependencies => dependencies::run().map(end),
        Task::Peers(args) => peers::measure(&args).map(|()| end(true)),
        Task::Python => python::test().map(|()| end(true)),
        Task::Release(args) => release::check(&args).map(end),
        Task::Site(args) => site::build(&args),
        Task::Web(args) => web::run_task(&args),
        Task::Engines => python::engines().map(|()| end(true)),
        Task::Reference(args) => args.run("reference"),
        Task::Foreign(args) => foreign::run(&args).map(|()| end(true)),
        Task::Kaitai(args) => args.run("kaitai"),
        Task::Wireshark(args) => args.run("wireshark"),
        Task::Fuzz(args) => fuzz::run(&args).map(end),
        Task::Cuda(args) => cuda::compile(&args).map(|()| end(true)),
        Task::Measure(args) => args.run("measure"),
        Task::Picture(args) => args.run("picture"),
        Task::Links => links::check().map(end),
        Task::Prose => prose::check().map(end),
        Task::Mutants(args) => args.start("gcodec-mutants", &[]),
        Task::Torture(args) => args.run("torture"),
    };
    match result {
        Ok(code) => code,
        Err(e) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
    }
}
