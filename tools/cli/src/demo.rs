//! `gcodec demo`: shows the codecs and commands on real gradients that are part of the program.

use crate::bench::measure;
use crate::fail::{Failure, InFile, Outcome, Result};
use crate::input::Input;
use crate::output::{Align, Table, print, real, thousands};
use crate::tensors::Dump;
use crate::tensors::kind::Kind;
use clap::Parser;
use std::path::{Path, PathBuf};

/// Show the codecs and commands on built-in real gradients
///
/// Encodes them with the codecs of the papers, then inspects, verifies, decodes and compares a stream of
/// several steps.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The gradients are those of tools/cli/gradients/ in the repository: a small convolutional network for
digits, two workers at one step; and the first layers of a small ResNet at three steps.

Examples:
  gcodec demo
  gcodec demo --keep demo-files")]
pub(crate) struct Args {
    /// Keep the files in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

macro_rules! gradients {
    ($($name:literal)*) => {
        [$(($name, include_bytes!(concat!("../gradients/", $name)) as &[u8])),*]
    };
}

/// Gradients of two workers at one step.
const WORKERS: [(&str, &[u8]); 2] =
    gradients!["digits_convnet_step0030_worker0.safetensors" "digits_convnet_step0030_worker1.safetensors"];

/// Gradients of one worker at three steps.
const STEPS: [(&str, &[u8]); 3] = gradients![
    "resnet_head_step0015_worker0.safetensors"
    "resnet_head_step0200_worker0.safetensors"
    "resnet_head_step0600_worker0.safetensors"
];

/// Codecs and the papers that describe them.
const CODECS: [(&str, &str); 12] = [
    ("raw", "-"),
    ("lossless", "-"),
    ("topk:density=0.01", "Sparse Communication, 1704.05021"),
    ("topk:density=0.01,scope=global", "Deep Gradient Compression, 1712.01887"),
    ("topk:density=0.01,values=bf16", "-"),
    ("topk:density=0.01,values=pow2", "and Natural Compression, 1905.10988"),
    ("topk:density=0.01,values=sign", "Sparse Ternary Compression, 1903.02891"),
    ("topk:density=0.01,values=q4", "after SparseLoCo, 2508.15706"),
    ("sbc:density=0.001", "Sparse Binary Compression, 1805.08768"),
    ("natural", "Natural Compression, 1905.10988"),
    ("qsgd:bits=4,bucket=512", "QSGD, 1610.02132"),
    ("int8:group=256", "8-bit approximations, 1511.04561"),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let place = Place::new(args.keep.as_deref())?;
    for (name, bytes) in WORKERS.iter().chain(&STEPS) {
        std::fs::write(name, bytes).in_file(Path::new(name))?;
    }
    codecs()?;
    steps()?;
    drop(place);
    if let Some(directory) = &args.keep {
        print(format_args!("\nThe files are in {}.\n", directory.display()))?;
    }
    Ok(Outcome::Well)
}

/// Prints the codecs' results on the two workers' gradients.
fn codecs() -> Result<()> {
    let dumps = WORKERS
        .iter()
        .map(|(_, bytes)| Dump::parse(Kind::Safetensors, Input::Owned(bytes.to_vec()), Path::new("")))
        .collect::<Result<Vec<_>>>()?;
    let elements: u64 = dumps.iter().flat_map(|d| &d.tensors).map(|t| t.view().elements()).sum();
    print(format_args!(
        "Gradients of a convolutional network for digits, {} workers at step 30, {} elements of f32 in all:\n\n",
        dumps.len(),
        thousands(elements),
    ))?;
    let mut table = Table::new(&[
        ("codec", Align::Left),
        ("paper (arXiv)", Align::Left),
        ("bytes", Align::Right),
        ("bits/par", Align::Right),
        ("ratio", Align::Right),
        ("rel L2 error", Align::Right),
    ]);
    for (spec, paper) in CODECS {
        let codec = spec.parse().map_err(Failure::usage)?;
        let mut bytes = 0;
        let mut squares = 0.0;
        for dump in &dumps {
            let measured = measure(dump, codec, 1)?;
            bytes += measured.bytes;
            squares += measured.relative_l2 * measured.relative_l2;
        }
        table.row([
            spec.to_owned(),
            paper.to_owned(),
            thousands(bytes),
            format!("{:.3}", bytes as f64 * 8.0 / elements as f64),
            real(elements as f64 * 4.0 / bytes as f64),
            real((squares / dumps.len() as f64).sqrt()),
        ]);
    }
    print(format_args!(
        "{table}
Everything is counted: names, shapes, headers, checksums, index. At this size they are most of what the sparse codecs
send. The error is what one update lacks; with error feedback (encode --feedback) the next ones make up for it.\n"
    ))
}

/// Runs the commands on three steps of a ResNet.
fn steps() -> Result<()> {
    let stream = "resnet.gcu";
    let codec = ["--codec", "topk:density=0.02,values=bf16", "--rule", "*bn*=lossless"];
    let mut encode: Vec<&str> = vec!["encode"];
    encode.extend(STEPS.iter().map(|(name, _)| *name));
    encode.extend(["-o", stream]);
    encode.extend(codec);
    encode.extend(["--meta", "model=resnet18"]);
    print(
        "\nThe first layers of a ResNet-18 at steps 15, 200 and 600, as one stream with lossless batch norms:\n",
    )?;
    command(&encode)?;
    command(&["inspect", stream])?;
    command(&["verify", stream])?;
    command(&["decode", stream, "--step", "600", "-o", "decoded.safetensors"])?;
    command(&["diff", STEPS[2].0, "decoded.safetensors"])?;
    print("\nOne worker's gradient, losslessly and bit by bit:\n")?;
    command(&["encode", WORKERS[0].0, "-o", "digits.gcu", "--codec", "lossless"])?;
    command(&["diff", WORKERS[0].0, "digits.gcu"])
}

/// Prints a command line and runs it.
fn command(args: &[&str]) -> Result<()> {
    let shown = args.iter().map(|a| if a.contains('*') { format!("'{a}'") } else { (*a).to_owned() });
    print(format_args!("\n$ gcodec {}\n", shown.collect::<Vec<_>>().join(" ")))?;
    let cli = crate::Cli::try_parse_from(std::iter::once(&"gcodec").chain(args));
    crate::execute(&cli.map_err(|e| Failure::usage(e.render()))?).map(drop)
}

/// The directory of the files. The program works in it, so that a user could type the same command lines.
struct Place {
    before: PathBuf,
    temporary: Option<tempfile::TempDir>,
}

impl Place {
    fn new(keep: Option<&Path>) -> Result<Self> {
        let before = std::env::current_dir()?;
        let temporary = match keep {
            Some(directory) => {
                std::fs::create_dir_all(directory).in_file(directory)?;
                None
            }
            None => Some(tempfile::Builder::new().prefix("gcodec-demo-").tempdir()?),
        };
        let directory = keep.or(temporary.as_ref().map(tempfile::TempDir::path)).unwrap_or(Path::new("."));
        std::env::set_current_dir(directory).in_file(directory)?;
        Ok(Self { before, temporary })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Some systems do not remove the working directory of a process.
        let _ = std::env::set_current_dir(&self.before);
        drop(self.temporary.take());
    }
}
