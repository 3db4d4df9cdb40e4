//! `gcodec reduce`: sums many senders' updates.

use crate::fail::{Failure, InFile, InOutput, Outcome, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input, is_standard};
use crate::learned::{self, ModelArgs};
use crate::options::{LimitArgs, check_one_stdin, check_output_is_new};
use crate::output::{Counted, Output, counted, human_bytes, note};
use crate::plan::{self, Plan, fitting};
use crate::stream::{Names, explain, only};
use crate::tensors::{self, Format};
use clap::ValueEnum;
use gcodec::block::{Block, BlockOptions, CodedBlock, Set, SetId, Sets, Support};
use gcodec::compress::{self, Options};
use gcodec::frame::{FrameKind, IndexSet, Manifest, UpdateHeader, UpdatePart};
use gcodec::reduce::{self, Precision, Sum, SumOptions};
use gcodec::stream::{Body, EncodeOptions, Event, SliceReader};
use gcodec::{Codec, Limits, TensorBuf, Writer};
use gcodec_latent::has_latent;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// All parts of one sender's update.
struct Update<'a> {
    input: usize,
    weight: f64,
    parts: Vec<UpdatePart<'a>>,
}

impl<'a> Update<'a> {
    fn header(&self) -> &UpdateHeader {
        &self.parts[0].header
    }

    fn manifest(&self) -> &Arc<Manifest> {
        &self.parts[0].manifest
    }
}

/// Step and round: the updates of a turn are summed together.
type Turn = (u64, u64);

/// Runs the command; `quiet` suppresses the summary.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    check(args)?;
    let limits = args.limits.limits();
    let inputs =
        args.inputs.iter().map(|path| Input::open(path, DEFAULT_MAX_BYTES)).collect::<Result<Vec<_>>>()?;
    let sets = index_sets(&inputs, &limits);
    let mut all = Vec::new();
    for (number, (bytes, path)) in inputs.iter().zip(&args.inputs).enumerate() {
        all.extend(updates(args, number, bytes, &sets, &limits).in_file(path)?);
    }
    let plain = without_codes(args, &inputs, &all, &limits)?;
    let mut turns: BTreeMap<Turn, Vec<Update<'_>>> = BTreeMap::new();
    for (mut update, plain) in all.into_iter().zip(&plain) {
        if let Some(stream) = plain {
            update.parts = parts(stream, &limits)?;
        }
        if args.by_input {
            let sender = update.input as u64;
            update.parts.iter_mut().for_each(|part| part.header.sender = sender);
        }
        let header = update.header();
        turns.entry((header.step, header.round)).or_default().push(update);
    }
    if turns.is_empty() {
        let failure = match args.step {
            Some(step) => Failure::usage(format_args!("no update has step {step}")),
            None => Failure::invalid("there is no update"),
        };
        let names: Vec<String> = args.inputs.iter().map(|path| path.display().to_string()).collect();
        return Err(failure.about(names.join(", ")));
    }
    let format = Format::of_path(&args.output).filter(|_| !is_standard(&args.output));
    let read: u64 = inputs.iter().map(|bytes| bytes.len() as u64).sum();
    let counts = (turns.len() as u64, turns.values().map(|updates| updates.len() as u64).sum::<u64>());
    let written = match format {
        Some(_) => write_tensors(args, turns, &limits)?,
        None => write_stream(args, turns, &sets, &limits)?,
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

/// Index sets by their ids, each with its manifest.
type SentSets = HashMap<SetId, (IndexSet, Arc<Manifest>)>;

/// Frames that index sets need.
const SETS: [FrameKind; 2] = [FrameKind::MANIFEST, FrameKind::INDEX_SET];

/// Reads the index sets of all inputs: only the leader of a step sends its set, the others refer to it.
fn index_sets(inputs: &[Input], limits: &Limits) -> SentSets {
    let mut sets = SentSets::new();
    for bytes in inputs {
        let mut manifests = HashMap::new();
        // Sets need only their manifests; errors of an input are reported when its updates are read.
        for event in SliceReader::new(&only(bytes, &SETS), limits.clone()) {
            match event {
                Ok(Event::Frame(_, Body::Manifest(manifest))) => {
                    manifests.insert(manifest.id(), manifest);
                }
                Ok(Event::Frame(_, Body::IndexSet(set, id, _))) => {
                    let manifest = manifests.get(&set.manifest).map(Arc::clone);
                    sets.extend(manifest.map(|manifest| (id, (*set, manifest))));
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
    sets
}

/// Reads the complete updates of one input.
fn updates<'a>(
    args: &Args,
    input: usize,
    bytes: &'a [u8],
    sets: &SentSets,
    limits: &Limits,
) -> Result<Vec<Update<'a>>> {
    let (mut all, mut names) = (Vec::<Update<'a>>::new(), Names::default());
    let mut reader = SliceReader::new(bytes, limits.clone());
    for (id, (set, manifest)) in sets {
        reader.add_index_set(*id, set, manifest)?;
    }
    for event in reader {
        let event = event.map_err(|e| names.explain(e))?;
        names.see(&event);
        let Event::Frame(_, Body::Update(part)) = event else { continue };
        if args.step.is_some_and(|step| part.header.step != step) {
            continue;
        }
        match all.last_mut() {
            Some(update) if part.part > 0 => update.parts.push(*part),
            _ => {
                let weight = args.weights.get(input).copied().unwrap_or(1.0);
                all.push(Update { input, weight, parts: vec![*part] });
            }
        }
    }
    Ok(all)
}

/// Returns each update with latent codes as a stream of its own, without them.
fn without_codes(
    args: &Args,
    inputs: &[Input],
    updates: &[Update<'_>],
    limits: &Limits,
) -> Result<Vec<Option<Vec<u8>>>> {
    let mut models = args.models.models()?;
    for (number, (input, path)) in inputs.iter().zip(&args.inputs).enumerate() {
        if updates.iter().any(|update| update.input == number && has_latent(&update.parts)) {
            learned::add_inline(&mut models, input, limits).in_file(path)?;
        }
    }
    let plain = |update: &Update<'_>| {
        learned::decoded(&update.parts, &models).map_err(|f| f.in_file(path_of(args, update)))
    };
    updates.iter().map(plain).collect()
}

/// Returns the parts of the only update of a stream.
fn parts<'a>(stream: &'a [u8], limits: &Limits) -> Result<Vec<UpdatePart<'a>>> {
    let mut parts = Vec::new();
    for event in SliceReader::new(stream, limits.clone()) {
        if let Event::Frame(_, Body::Update(part)) = event? {
            parts.push(*part);
        }
    }
    Ok(parts)
}

/// Result of one turn.
struct Reduced {
    header: UpdateHeader,
    manifest: Arc<Manifest>,
    sets: Vec<SetId>,
    blocks: Vec<Block>,
}

fn write_stream(
    args: &Args,
    turns: BTreeMap<Turn, Vec<Update<'_>>>,
    sets: &SentSets,
    limits: &Limits,
) -> Result<u64> {
    let mut writer = Writer::new(Counted::new(Output::create(&args.output)?), EncodeOptions::default());
    for updates in turns.into_values() {
        let manifest = Arc::clone(updates[0].manifest());
        let named = |e| explain(e, Some(&manifest));
        match (args.method, args.codec) {
            (Method::Dense, Some(codec)) => {
                let sum = dense(args, &updates, limits)?;
                let header = sum.header.clone().with_label(codec.to_string());
                let compressed = recompressed(codec, &manifest, &sum.tensors().map_err(named)?)?;
                writer.update(&header, &manifest, &compressed).map_err(named)?;
            }
            (Method::Dense, None) => {
                let sum = dense(args, &updates, limits)?;
                let blocks = sum.blocks().map_err(named)?;
                writer.update(&sum.header, &manifest, &blocks).map_err(named)?;
            }
            (method, _) => {
                let sum = compressed(args, method, &updates)?;
                for id in &sum.sets {
                    let found = sets.get(id);
                    let (set, _) =
                        found.ok_or_else(|| Failure::invalid("an index set of the sum is missing"))?;
                    writer.index_set(set, &sum.manifest, BlockOptions::default()).map_err(named)?;
                }
                writer.update(&sum.header, &sum.manifest, &sum.blocks).map_err(named)?;
            }
        }
    }
    writer.finish().and_then(|out| Ok(out.finish()?)).in_output(&args.output)
}

fn write_tensors(args: &Args, turns: BTreeMap<Turn, Vec<Update<'_>>>, limits: &Limits) -> Result<u64> {
    tensors::check_output(&args.output)?;
    if args.method != Method::Dense || args.codec.is_some() {
        return Err(Failure::usage("tensors are written by the method dense, and without a codec"));
    }
    let mut turns = turns.into_values();
    let (Some(updates), None) = (turns.next(), turns.next()) else {
        return Err(Failure::usage("there are several steps: choose one with --step, or write a stream"));
    };
    let manifest = Arc::clone(updates[0].manifest());
    let sum = dense(args, &updates, limits)?.tensors().map_err(|e| explain(e, Some(&manifest)))?;
    let views: Vec<_> =
        manifest.tensors().iter().zip(&sum).map(|(info, t)| (info.name.as_str(), t.view())).collect();
    tensors::write(&args.output, &views, &BTreeMap::new())?;
    Ok(std::fs::metadata(&args.output).in_file(&args.output)?.len())
}

/// Returns the dense sum or mean of one turn.
fn dense(args: &Args, updates: &[Update<'_>], limits: &Limits) -> Result<reduce::Reduced> {
    let precision = match args.precision {
        Width::F32 => Precision::F32,
        Width::F64 => Precision::F64,
    };
    let options = SumOptions::default().with_limits(limits.clone()).with_precision(precision);
    let manifest = updates[0].manifest();
    let mut sum = Sum::new(manifest, options);
    for update in updates {
        for part in &update.parts {
            sum.add(part, update.weight).map_err(|e| refused(args, update, e))?;
        }
    }
    sum.finish(args.mean).map_err(|e| explain(e, Some(manifest)))
}

/// Adds the input and advice to a failure.
fn refused(args: &Args, update: &Update<'_>, error: gcodec::Error) -> Failure {
    explained(args, error, update.manifest()).in_file(path_of(args, update))
}

fn explained(args: &Args, error: gcodec::Error, manifest: &Manifest) -> Failure {
    let mut failure = explain(error, Some(manifest));
    if failure.message.contains("was added before") && !args.by_input {
        failure.message.push_str("; --by-input numbers senders by their inputs");
    }
    failure
}

fn path_of<'a>(args: &'a Args, update: &Update<'_>) -> &'a Path {
    &args.inputs[update.input]
}

/// Returns the sum of one turn without expanding its updates.
fn compressed(args: &Args, method: Method, updates: &[Update<'_>]) -> Result<Reduced> {
    let mut order: Vec<&Update<'_>> = updates.iter().collect();
    order.sort_by_key(|update| update.header().sender);
    let manifest = Arc::clone(order[0].manifest());
    let fail = |update: &Update<'_>, why: &str| Failure::usage(why).in_file(path_of(args, update));
    if let Some(update) = order.iter().find(|update| update.manifest().id() != manifest.id()) {
        return Err(fail(update, "it has another manifest"));
    }
    let header = reduce::header(order.iter().map(|update| update.header()), false);
    let header = header.map_err(|e| explained(args, e, &manifest))?;
    let mut decoded: Vec<Vec<Block>> = Vec::new();
    let (mut sets, mut sent): (Sets, Vec<SetId>) = (Sets::new(), Vec::new());
    for &update in &order {
        let mut blocks = Vec::new();
        for part in &update.parts {
            let these =
                part.decode_all().map_err(|e| explain(e, Some(&manifest)).in_file(path_of(args, update)))?;
            for block in &these {
                if let Support::Set(Set { id }) = &block.support
                    && let Some(set) = part.sets().get(id)
                    && sets.insert(*id, Arc::clone(set)).is_none()
                {
                    sent.push(*id);
                }
            }
            blocks.extend(these);
        }
        if decoded.first().is_some_and(|first: &Vec<Block>| first.len() != blocks.len()) {
            return Err(fail(update, "its number of blocks differs from the first: use the method dense"));
        }
        decoded.push(blocks);
    }
    let mut blocks = Vec::new();
    for at in 0..decoded[0].len() {
        let space = manifest.space(decoded[0][at].scope, 0)?;
        let all: Vec<&Block> = decoded.iter().map(|blocks| &blocks[at]).collect();
        let sum = match method {
            Method::Sparse => reduce::merge(&all, &space),
            _ => {
                all[1..].iter().try_fold(all[0].clone(), |sum, block| reduce::add(&sum, block, &space, &sets))
            }
        };
        blocks.push(sum.map_err(|e| explain(e, Some(&manifest)))?);
    }
    Ok(Reduced { header, manifest, sets: sent, blocks })
}

fn recompressed(codec: Codec, manifest: &Manifest, tensors: &[TensorBuf]) -> Result<Vec<CodedBlock>> {
    let plan = Plan::new(codec, &[]);
    let inputs: Vec<_> = manifest
        .tensors()
        .iter()
        .zip(tensors)
        .zip(0u64..)
        .map(|((info, t), tensor)| compress::Input { tensor, name: &info.name, view: t.view(), base: None })
        .collect();
    let codecs: Vec<Codec> =
        inputs.iter().map(|input| fitting(plan.codec(input.name), &input.view)).collect();
    gcodec::compress::compress(&inputs, &codecs, &Options::default(), None)
        .map_err(|e| plan::explain(e, manifest))
}
