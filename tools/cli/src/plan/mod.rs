//! `gcodec plan`: which codec, if any, makes a training faster on given links. It measures the codecs on a
//! user's gradients, and computes steps with the model.

mod measure;
mod measured;
mod model;
mod page;
mod report;
mod units;

use crate::bench::{bytes, elements};
use crate::fail::{Failure, InFile, InOutput, Outcome, Result};
use crate::options::{check_one_stdin, check_output_is_new};
use crate::output::{Output, print};
use crate::progress::Progress;
use crate::tensors::Dump;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use gcodec::Codec;
use measured::{Measured, Measurements};
use model::{Backend, Exchange, Fleet, Groups, Link};
use report::{Choice, Report};
use std::io::Write;
use std::path::PathBuf;
use units::{parse_duration, parse_rate};

/// Tell which codec makes a training step fastest, on these gradients, workers and links
///
/// Measures each codec on the gradients and on this machine: sizes, errors, and times on all threads. Then
/// computes the time of a step for each way to exchange updates, beside plain gradients, and recommends the
/// codec and exchange of the smallest error among those that are nearly as fast as the fastest: or none, if
/// compression gains little.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exchanges:
  ring        plain gradients: all-reduce in a ring
  tree        plain gradients: all-reduce along two trees
  gather      all-gather of updates in a ring; every worker adds all of them
  shared-set  one worker's positions for all (ScaleCom): all-reduce of the values there
  aggregator  one machine with the same link adds all updates and sends the sum to all
  shards      every worker is the aggregator of a share of the elements; only if asked for, as no
              adapter of gcodec exchanges so

The time of a step is the compute, and unless --overlap hides a part of it, the time of coding, of
the bytes at the rate of the link, and of its latencies. The error is that of one update without
error feedback; it is no prediction of the result of a training.

With gradients of several workers at one step, the growth of sums and the error of shared sets are
measured; with one file, updates are taken to have no position in common. The JSON of one plan is the
--measured of others, for more links and fleets without measuring again.

Examples:
  gcodec plan grad.safetensors --workers 64 --link 1Gbit --latency 20ms --compute 350ms
  gcodec plan worker*.safetensors --workers 8 --link 100Mbit --compute 2s --every 20 --json
  gcodec plan grad.safetensors --workers 256 --link 1Gbit --compute 1s --group 8 --group-link 400Gbit
  gcodec plan --measured plan.json --workers 16 --link 100Mbit --latency 10ms --compute 0 --backend gloo")]
pub(crate) struct Args {
    /// Gradients of one step, a file for each worker: .safetensors, .npz or .npy
    #[arg(required_unless_present = "measured", value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// Measurements of an earlier plan with --json, in place of gradients
    #[arg(long, value_name = "FILE", conflicts_with_all = ["inputs", "runs"])]
    measured: Option<PathBuf>,
    /// Number of workers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    workers: u64,
    /// Rate of each worker's link, the same in both directions: 100Mbit, 1Gbit, 25Gbit
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    link: f64,
    /// Time from one worker to another: 20ms, 50us
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0")]
    latency: f64,
    /// Time of the forward and backward passes of a step: 350ms
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    compute: f64,
    /// Number of steps from one exchange to the next, as in DiLoCo
    #[arg(long, value_name = "H", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Exchange buckets of 25 MiB while the backward pass runs, in whose thread they are coded
    #[arg(long)]
    overlap: bool,
    /// Part of gcodec that exchanges updates: the hook of DistributedDataParallel makes 1 all-gather of a few
    /// bytes in each exchange, Average 3
    #[arg(long, value_enum, default_value_t = Adapter::Hook)]
    adapter: Adapter,
    /// Backend of the exchanges between workers: on gloo a message waits for a notice of its receiver, and so
    /// takes two latencies
    #[arg(long, value_enum, default_value_t = BackendName::Nccl)]
    backend: BackendName,
    /// Number of workers that share the cores of a machine such as this: each codes as many times as long
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    share_cores: u64,
    /// Number of workers that share one link and are connected by --group-link inside
    #[arg(long, value_name = "N", requires = "group_link", value_parser = clap::value_parser!(u64).range(2..))]
    group: Option<u64>,
    /// Rate of the links inside a group
    #[arg(long, value_name = "RATE", requires = "group", value_parser = parse_rate)]
    group_link: Option<f64>,
    /// Number of parameters of the model [default: that of the gradients]; sizes and times are in proportion
    #[arg(long, value_name = "N", value_parser = crate::options::parse_size)]
    parameters: Option<u64>,
    /// Codec to measure; may be repeated [default: one of each kind]
    #[arg(long = "codec", value_name = "SPEC", value_parser = crate::naming::CODEC, hide_possible_values = true)]
    codecs: Vec<Codec>,
    /// Exchange to consider; may be repeated [default: all but shards]
    #[arg(long = "exchange", value_name = "NAME", value_parser = exchanges())]
    exchanges: Vec<Exchange>,
    /// Number of runs of each measurement; the best one counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Print JSON, with all measurements
    #[arg(long, conflicts_with = "html")]
    json: bool,
    /// Write a page of HTML to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Part of gcodec that exchanges updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Adapter {
    Hook,
    Average,
}

impl Adapter {
    fn control(self) -> u64 {
        match self {
            Self::Hook => model::HOOK_CONTROL,
            Self::Average => model::AVERAGE_CONTROL,
        }
    }
}

/// Backend of the exchanges between workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BackendName {
    Nccl,
    Gloo,
}

impl BackendName {
    fn backend(self) -> Backend {
        match self {
            Self::Nccl => Backend::NCCL,
            Self::Gloo => Backend::GLOO,
        }
    }
}

/// Codecs measured by default.
const CODECS: [&str; 12] = [
    "raw",
    "lossless",
    "natural",
    "int8:group=256",
    "qsgd:bits=4,bucket=512",
    "sign",
    "topk:density=0.1",
    "topk:density=0.01",
    "topk:density=0.01,values=pow2",
    "topk:density=0.001",
    "sidco:density=0.001,values=pow2",
    "sbc:density=0.001",
];

fn exchanges() -> impl TypedValueParser<Value = Exchange> {
    let names = PossibleValuesParser::new(Exchange::ALL.map(|(_, name)| name));
    names.map(|chosen| {
        Exchange::ALL
            .iter()
            .find(|(_, name)| *name == chosen)
            .map_or(Exchange::Ring, |(exchange, _)| *exchange)
    })
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    check_one_stdin(&args.inputs)?;
    if let Some(html) = &args.html {
        let inputs: Vec<PathBuf> = args.inputs.iter().chain(&args.measured).cloned().collect();
        check_output_is_new(html, &inputs)?;
    }
    let measurements = match &args.measured {
        Some(path) => Measurements::open(path)?.only(&args.codecs).in_file(path)?,
        None => measured(args)?,
    };
    let fleet = fleet(args);
    let parameters = args.parameters.unwrap_or(measurements.elements);
    let factor = parameters as f64 / measurements.elements as f64;
    let scaled: Vec<Measured> = measurements.measured.iter().map(|one| one.scaled(factor)).collect();
    let choices: Vec<Choice> = scaled.iter().filter_map(|one| best(one, &fleet, &args.exchanges)).collect();
    if choices.is_empty() {
        return Err(Failure::usage("none of these codecs can use one of these exchanges"));
    }
    let recommended = report::recommend(&choices);
    let report = Report { measurements, parameters, fleet, choices, recommended };
    match (&args.html, args.json) {
        (Some(html), _) => {
            let mut out = Output::create(html)?;
            out.write_all(page::render(&report).as_bytes()).in_output(html)?;
            out.finish().in_output(html)?;
        }
        (None, true) => {
            let json = serde_json::to_string_pretty(&report).map_err(std::io::Error::from)?;
            print(format_args!("{json}\n"))?;
        }
        (None, false) => print(report.text())?,
    }
    Ok(Outcome::Well)
}

/// Measures the codecs on the gradients.
fn measured(args: &Args) -> Result<Measurements> {
    let codecs = chosen(args)?;
    let dumps = read(args)?;
    let progress = Progress::new(codecs.len() as u64, "measuring", false);
    let mut measured = vec![measure::plain(&dumps)];
    for codec in codecs {
        measured.push(measure::measure(&dumps, codec, args.runs).in_file(&args.inputs[0])?);
        progress.add(1);
    }
    Ok(Measurements {
        file: args.inputs[0].display().to_string(),
        gradients: dumps.len() as u64,
        tensors: dumps[0].tensors.len() as u64,
        elements: elements(&dumps[0]),
        bytes: bytes(&dumps[0]),
        threads: rayon::current_num_threads(),
        measured,
    })
}

/// Returns the codecs to measure.
fn chosen(args: &Args) -> Result<Vec<Codec>> {
    let codecs = match args.codecs.as_slice() {
        [] => {
            CODECS.iter().map(|spec| spec.parse()).collect::<Result<Vec<_>, _>>().map_err(Failure::usage)?
        }
        codecs => codecs.to_vec(),
    };
    if codecs.iter().any(|codec| matches!(codec, Codec::Delta(_))) {
        return Err(Failure::usage(
            "delta is for weights of which the receiver has the last version, not for gradients",
        ));
    }
    Ok(codecs)
}

/// Reads the gradients, which must have the same tensors.
fn read(args: &Args) -> Result<Vec<Dump>> {
    let mut dumps: Vec<Dump> = Vec::new();
    for path in &args.inputs {
        let mut dump = Dump::open(path)?;
        dump.tensors.sort_by(|a, b| a.name().cmp(b.name()));
        if elements(&dump) == 0 {
            return Err(Failure::usage("it has no elements")).in_file(path);
        }
        if let Some(first) = dumps.first() {
            let outline = |dump: &Dump| -> Vec<_> {
                dump.tensors
                    .iter()
                    .map(|t| (t.name().to_owned(), t.view().dtype(), t.view().shape().to_vec()))
                    .collect()
            };
            if outline(first) != outline(&dump) {
                let why = format!(
                    "its tensors are not those of {}",
                    crate::output::printable(&args.inputs[0].display().to_string())
                );
                return Err(Failure::usage(why)).in_file(path);
            }
        }
        dumps.push(dump);
    }
    Ok(dumps)
}

fn fleet(args: &Args) -> Fleet {
    let link = Link { bits_per_second: args.link, latency: args.latency };
    let inside = |bits_per_second| Link { bits_per_second, latency: 0.0 };
    let groups = args.group.zip(args.group_link).map(|(size, rate)| Groups { size, link: inside(rate) });
    let (workers, compute, every) = (args.workers, args.compute, args.every);
    Fleet {
        workers,
        link,
        groups,
        compute,
        every,
        bucket: args.overlap.then_some(model::BUCKET),
        control: args.adapter.control(),
        backend: args.backend.backend(),
        sharing: args.share_cores,
    }
}

/// Returns the best exchange of a codec, or of plain gradients.
fn best(measured: &Measured, fleet: &Fleet, wanted: &[Exchange]) -> Option<Choice> {
    let usable = |exchange: &Exchange| {
        let is_wanted =
            if wanted.is_empty() { *exchange != Exchange::Shards } else { wanted.contains(exchange) };
        is_wanted && exchange.is_plain() == measured.codec.is_none()
    };
    let exchanges = Exchange::ALL.iter().map(|(exchange, _)| *exchange).filter(usable);
    let best = model::best(fleet, exchanges, &measured.parts, measured.relative_l2)?;
    let model::Exchanged { exchange, relative_l2, step } = best;
    Some(Choice { codec: measured.codec.clone(), exchange, relative_l2, step })
}
