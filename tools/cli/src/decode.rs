//! `gcodec decode`: turns an update of a stream into dense tensors.

use crate::fail::{Failure, InFile, Outcome, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::options::{LimitArgs, NameGlob, check_one_stdin, check_output_is_new, is_wanted};
use crate::stream::{Base, Updates};
use crate::tensors::{self, Dump, NamedTensor};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Decode an update of a stream into dense tensors
///
/// Every tensor is written with its name, shape and element type. Elements that the update does not contain
/// are zero or, for a delta, the base's.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The extension of the output selects its format: .safetensors, .npz or .npy. Standard output (`-`)
is safetensors.

A delta needs its --base: the tensors that it, or an earlier delta of the same stream, was made
against. All deltas from there on are applied in turn. A wrong base is a usage error (exit code 2).
A truncated or corrupt stream is refused (exit code 3); `gcodec recover` saves its intact updates.

Examples:
  gcodec decode grad.gcu -o grad.safetensors
  gcodec decode run.gcu -o bias.npz --step 100 --tensor '*.bias'
  gcodec decode sync.gcu -o new.safetensors --base old.safetensors
  receive | gcodec decode - -o - | consume")]
pub(crate) struct Args {
    /// Stream; `-` is standard input
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// File for the tensors
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Step of the update; the last one if several have it [default: the last update]
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Only tensors whose names match
    #[arg(long, value_name = "GLOB")]
    tensor: Option<NameGlob>,
    /// Tensors that the delta applies to
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    check_one_stdin([&args.input].into_iter().chain(&args.base))?;
    tensors::check_output(&args.output)?;
    check_output_is_new(&args.output, [&args.input].into_iter().chain(&args.base))?;
    let base = args.base.as_deref().map(Dump::open).transpose()?;
    let base: Base<'_> =
        base.iter().flat_map(|b| &b.tensors).map(|t| (t.name().to_owned(), t.view())).collect();
    let input = Input::open(&args.input, DEFAULT_MAX_BYTES)?;
    let tensors = decode(args, &input, &base).in_file(&args.input)?;
    let views: Vec<_> = tensors.iter().map(|t| (t.name(), t.view())).collect();
    tensors::write(&args.output, &views, &BTreeMap::new())?;
    Ok(Outcome::Well)
}

fn decode(args: &Args, bytes: &[u8], base: &Base<'_>) -> Result<Vec<NamedTensor>> {
    let updates = Updates::open(bytes, &args.limits.limits())?;
    let number = updates.find(args.step)?;
    let wanted = |name: &str| is_wanted(args.tensor.as_ref(), name);
    let infos = updates.manifest(number).tensors();
    if args.tensor.is_some() && !infos.iter().any(|info| wanted(&info.name)) {
        return Err(Failure::usage("no tensor of the update matches --tensor"));
    }
    updates.decode(number, wanted, base)
}
