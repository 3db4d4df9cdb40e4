//! `gcodec reduce`: sums many senders' updates.

mod compressed;
mod dense;
mod turns;

use crate::fail::{Failure, InOutput, Outcome, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input, is_standard};
use crate::learned::ModelArgs;
use crate::options::{LimitArgs, check_one_stdin, check_output_is_new};
use crate::output::{Counted, Output, counted, human_bytes, note};
use crate::tensors::Format;
use clap::ValueEnum;
use gcodec::stream::EncodeOptions;
use gcodec::{Codec, Writer};
use std::path::PathBuf;
use turns::{SentSets, Turns};

/// Sum the updates of many senders, or take their mean
///
/// Updates of one step and round are summed in the order of their senders' numbers, whatever the order of the
/// inputs, so that every node gets the same bytes. A sender without an update for a step is left out of that
/// step. The result states the number of contributors.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Methods:
  dense   expands every update, of any codec, and adds them element by element
  sparse  keeps the union of the positions of sparse updates with float values
  add     adds values where all updates have the same elements (a shared index set, or dense
          floats), without expanding them; the result is as small as one of them

--codec needs space for the uncompressed sum in the folder of OUT.

Latent codes are decoded first, by the models of --model and those in the streams.

Updates that cannot be summed are refused, with the reason and the sender: deltas against a base,
means, another manifest, another number of senders, a repeated sender. Inputs that were encoded
without --sender all have the number 0; --by-input numbers them in their order.

The result is a stream with one update for each step, or the tensors of one update if its name ends
in .safetensors, .npz or .npy.

Examples:
  gcodec reduce worker*.gcu -o mean.gcu --mean
  gcodec reduce a.gcu b.gcu -o sum.safetensors --by-input --weight 600 --weight 200
  gcodec reduce worker*.gcu -o sum.gcu --method sparse
  gcodec reduce worker*.gcu -o down.gcu --mean --codec topk:density=0.01")]
pub(crate) struct Args {
    /// Streams of one or several senders; `-` is standard input
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// File for the result; `-` is standard output, as a stream
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Divide by the sum of the weights
    #[arg(long)]
    mean: bool,
    /// Weight of an input, for instance its number of samples; one per input [default: 1]
    #[arg(long = "weight", value_name = "W")]
    weights: Vec<f64>,
    /// Method of summation
    #[arg(long, value_enum, default_value_t = Method::Dense)]
    method: Method,
    /// Precision of the sums of floats
    #[arg(long, value_enum, default_value_t = Width::F32)]
    precision: Width,
    /// Only this step
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Number senders by the order of the inputs
    #[arg(long)]
    by_input: bool,
    /// Codec of the result of the method dense [default: the uncompressed sum]
    #[arg(long, value_name = "SPEC", value_parser = crate::naming::CODEC, hide_possible_values = true)]
    codec: Option<Codec>,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Method {
    Dense,
    Sparse,
    Add,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Width {
    F32,
    F64,
}

/// Runs the command; `quiet` suppresses the summary.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    check(args)?;
    let limits = args.limits.limits();
    let inputs =
        args.inputs.iter().map(|path| Input::open(path, DEFAULT_MAX_BYTES)).collect::<Result<Vec<_>>>()?;
    let sets = turns::index_sets(&inputs, &limits);
    let all = turns::all(args, &inputs, &sets, &limits)?;
    let plain = turns::without_codes(args, &inputs, &all, &limits)?;
    let turns = turns::turns(args, all, &plain, &limits)?;
    let format = Format::of_path(&args.output).filter(|_| !is_standard(&args.output));
    let read: u64 = inputs.iter().map(|bytes| bytes.len()).sum();
    let counts = (turns.len() as u64, turns.values().map(|updates| updates.len() as u64).sum::<u64>());
    let written = match format {
        Some(_) => write_tensors(args, turns)?,
        None => write_stream(args, turns, &sets)?,
    };
    if !quiet {
        note(format_args!(
            "{}: {} of {}, {} -> {}",
            args.output.display(),
            counted(counts.1, "update"),
            counted(counts.0, "step"),
            human_bytes(read),
            human_bytes(written),
        ));
    }
    Ok(Outcome::Well)
}

fn check(args: &Args) -> Result<()> {
    check_one_stdin(&args.inputs)?;
    check_output_is_new(&args.output, &args.inputs)?;
    if !args.weights.is_empty() && args.weights.len() != args.inputs.len() {
        return Err(Failure::usage("give --weight once for each input, or not at all"));
    }
    if let Some(bad) = args.weights.iter().find(|w| !(w.is_finite() && **w > 0.0)) {
        return Err(Failure::usage(format_args!("--weight {bad}: not a positive number")));
    }
    let plain = args.weights.is_empty() && !args.mean && args.codec.is_none();
    if args.method != Method::Dense && !(plain && args.precision == Width::F32) {
        return Err(Failure::usage("--mean, --weight, --codec and --precision are for the method dense"));
    }
    if matches!(args.codec, Some(Codec::Delta { .. })) {
        return Err(Failure::usage("a sum has no base: the codec delta cannot be used here"));
    }
    Ok(())
}

/// Bytes in one frame of the result: blocks of sums hold their values, so that a part is twice in memory
/// while it is written.
const PART_BYTES: u64 = 32 << 20;

fn write_stream(args: &Args, turns: Turns<'_>, sets: &SentSets) -> Result<u64> {
    let options = EncodeOptions::default().with_part_bytes(PART_BYTES);
    let mut writer = Writer::new(Counted::new(Output::create(&args.output)?), options);
    for updates in turns.into_values() {
        match (args.method, args.codec) {
            (Method::Dense, codec) => dense::Dense::new(args, updates)?.write(&mut writer, codec)?,
            (method, _) => compressed::write(args, method, &updates, sets, &mut writer)?,
        }
    }
    writer.finish().and_then(|out| Ok(out.finish()?)).in_output(&args.output)
}

fn write_tensors(args: &Args, turns: Turns<'_>) -> Result<u64> {
    crate::tensors::check_output(&args.output)?;
    if args.method != Method::Dense || args.codec.is_some() {
        return Err(Failure::usage("tensors are written by the method dense, and without a codec"));
    }
    let mut turns = turns.into_values();
    let (Some(updates), None) = (turns.next(), turns.next()) else {
        return Err(Failure::usage("there are several steps: choose one with --step, or write a stream"));
    };
    dense::Dense::new(args, updates)?.write_tensors()
}
