//! `gcodec convert`: turns the updates of other projects into streams, and writes versions as they do.

mod chunks;
mod nemo;
mod pairs;
mod publish;
mod slime;

use crate::assign;
use crate::fail::{Failure, InFile, InOutput, Outcome, Result};
use crate::input::is_standard;
use crate::options::{check_one_stdin, check_output_is_new};
use crate::order;
use crate::origin::{Guesses, Origin};
use crate::output::{Counted, Output, counted, human_bytes, note};
use crate::tensors::versions::Checksum;
use crate::tensors::{Dump, Labels, NamedTensor, Opaque};
use gcodec::compress::{self, Digests, Input, Options};
use gcodec::frame::{Metadata, UpdateHeader};
use gcodec::stream::EncodeOptions;
use gcodec::tensor::Dtype;
use gcodec::{Codec, Writer};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

/// Turn the sparse updates of other projects into streams, or weights into versions of slime and miles
///
/// Every value is kept bit for bit; entries of value zero, which change nothing, are left out. Opaque tensors
/// of --base are kept as they are.
///
/// With --to, each weights file, version, or update of a stream becomes the next folder weight_vNNNNNN in
/// OUT, complete or not at all. --base is then version 0, the checkpoint that the engines have loaded; OUT
/// may have a link weight_v000000 to it instead.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Layouts:
  pairs  a .pt, .npz or .safetensors of indices and values: a list of (indices, values) in the order
         of --like, a dict of them, or NAME.indices and NAME.values. The indices count the elements
         of the flattened tensor. With --base in place of --like, the values replace its elements, as
         those of vLLM's sparse patches do
  demo   DeMo, SparseLoCo and templar: NAMEidxs and NAMEvals, positions in chunks of at most --chunk
         by --chunk elements, 12-bit indices and 8-bit values with their lookup tables included.
         With --dct the values are coefficients of DeMo's cosine transform
  slime  a folder of slime or miles, weight_vNNNNNN: a whole checkpoint, or the bytes that differ from
         --base, as XOR or as positions and bytes. The checksums of the results are verified. The
         folders become deltas, each made against the one before
  nemo   a payload of NeMo-RL's sparse weight transfer, or a folder with the payloads NNNNNN.pt of
         one sync: elements that differ from --base, as XOR or as new values, also compressed by zstd

Examples:
  gcodec convert topk_step0200_rank3.pt -o topk.gcu --layout pairs --like model.safetensors
  gcodec convert peer7.pt -o peer7.gcu --layout demo --like model.safetensors
  gcodec convert weight_v000001 weight_v000002 -o sync.gcu --layout slime --base hf/model.safetensors
  gcodec convert sync.gcu -o updates --to xor --base hf")]
pub(crate) struct Args {
    /// Updates; each becomes one update of the stream, or one version of --to
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// Stream to write, `-` is standard output; with --to, the folder of the versions
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Layout of the updates
    #[arg(long, value_name = "LAYOUT", required_unless_present = "to", conflicts_with = "to")]
    layout: Option<Layout>,
    /// Write the next versions of slime and miles: whole, or as differences
    #[arg(long, value_name = "FORM", conflicts_with_all = ["like", "dct", "step"])]
    to: Option<publish::Form>,
    /// Checksum in differences of --to
    #[arg(long, value_name = "NAME", default_value = "xxh3-128", requires = "to")]
    checksum: Checksum,
    /// File of tensors with the names, shapes and order of the model's tensors
    #[arg(long, value_name = "FILE", required_if_eq("layout", "demo"), conflicts_with = "base")]
    like: Option<PathBuf>,
    /// Weights before the first update
    #[arg(long, value_name = "FILE", required_if_eq_any([("layout", "slime"), ("layout", "nemo")]))]
    base: Option<PathBuf>,
    /// Longest side of a chunk
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=4096))]
    chunk: u64,
    /// Undo DeMo's cosine transform
    #[arg(long)]
    dct: bool,
    /// Step of the first update, the next ones follow [default: the step in the metadata or the name of each]
    #[arg(long, value_name = "N")]
    step: Option<u64>,
}

/// Layout of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Layout {
    /// Indices and values
    Pairs,
    /// Positions in chunks
    Demo,
    /// Bytes that differ
    Slime,
    /// Elements that differ
    Nemo,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    if let Some(form) = args.to {
        return publish::run(args, form, quiet);
    }
    let files = || args.inputs.iter().chain(&args.like).chain(&args.base);
    check_one_stdin(files())?;
    check_output_is_new(&args.output, files())?;
    if args.dct && args.layout != Some(Layout::Demo) {
        return Err(Failure::usage("--dct is for the layout demo"));
    }
    let like = args.like.as_deref().map(Dump::open_quietly).transpose()?;
    // Opaque tensors of the weights are carried, as `encode` does.
    let base = args.base.as_deref().map(|path| Dump::open_whole(path, &[], quiet));
    let mut base = base.transpose()?;
    let mut writer = Writer::new(Counted::new(Output::create(&args.output)?), EncodeOptions::default());
    let mut kept = 0;
    let mut guesses = Guesses::default();
    for (path, number) in order::arranged(&args.inputs).iter().zip(0u64..) {
        let update = args.read(path, like.as_ref(), base.as_ref()).in_file(path)?;
        let said = Origin { step: args.step.map(|first| first.saturating_add(number)), ..update.said };
        let said = Origin { step: said.step.or(update.said.step), ..said };
        let origin = said.or_named(path);
        guesses.add(said, origin, path);
        let header = UpdateHeader::default()
            .with_step(origin.step.unwrap_or(number))
            .with_sender(origin.sender.unwrap_or(0))
            .with_world(origin.world.unwrap_or(0))
            .with_label(update.label.clone());
        kept += write(&mut writer, header, &update, base.as_ref()).map_err(|f| f.in_output(&args.output))?;
        base = base.map(|base| Dump { tensors: update.tensors, metadata: base.metadata, ..Dump::default() });
    }
    let bytes = writer.finish().and_then(|out| Ok(out.finish()?)).in_output(&args.output)?;
    if !quiet {
        guesses.note();
        let name = if is_standard(&args.output) {
            "standard output".into()
        } else {
            args.output.display().to_string()
        };
        note(format_args!(
            "{name}: {}, {} in {}",
            counted(args.inputs.len() as u64, "update"),
            counted(kept, "block"),
            human_bytes(bytes)
        ));
    }
    Ok(Outcome::Well)
}

/// An update of another project.
struct Foreign {
    /// All tensors, dense.
    tensors: Vec<NamedTensor>,
    label: String,
    metadata: BTreeMap<String, String>,
    /// Step and sender, as far as the files themselves say them.
    said: Origin,
}

impl Args {
    fn read(&self, path: &std::path::Path, like: Option<&Dump>, base: Option<&Dump>) -> Result<Foreign> {
        match (self.layout, like, base) {
            (Some(Layout::Slime), _, Some(base)) => slime::read(path, base),
            (Some(Layout::Nemo), _, Some(base)) => nemo::read(path, base),
            (Some(Layout::Pairs), _, Some(base)) => pairs::replace(&Dump::open(path)?, base),
            (Some(Layout::Pairs), Some(like), _) => pairs::read(&Dump::open(path)?, like),
            (Some(Layout::Demo), Some(like), _) => {
                let grid = chunks::Grid { longest: self.chunk, dct: self.dct };
                chunks::read(&Dump::open(path)?, like, grid)
            }
            _ => {
                Err(Failure::usage("--like or --base is needed: --like for demo, --base for slime and nemo"))
            }
        }
    }
}

/// Writes an update; returns the number of its blocks.
fn write<W: std::io::Write>(
    writer: &mut Writer<W>,
    header: UpdateHeader,
    update: &Foreign,
    base: Option<&Dump>,
) -> Result<u64> {
    let mut entries = update.metadata.clone();
    entries.extend(base.and_then(|base| Labels::of(&base.metadata).entry()));
    if !entries.is_empty() {
        writer.metadata(&Metadata { entries })?;
    }
    let bases: HashMap<&str, &NamedTensor> =
        base.iter().flat_map(|dump| &dump.tensors).map(|t| (t.name(), t)).collect();
    let inputs: Vec<Input<'_>> = update
        .tensors
        .iter()
        .zip(0u64..)
        .map(|(t, tensor)| {
            let base = bases.get(t.name()).map(|base| base.view());
            Input { tensor, name: t.name(), view: t.view(), base }
        })
        .collect();
    let manifest = assign::manifest_of(update.tensors.iter().map(|t| (t.name(), t.view())))?;
    let codecs = match base {
        Some(_) => vec!["delta".parse().map_err(Failure::usage)?; inputs.len()],
        None => inputs.iter().map(|input| exact(&input.view)).collect::<Result<Vec<_>>>()?,
    };
    let explained = |e| assign::explain(e, &manifest);
    let mut pending = compress::pending(&inputs, &codecs, &Options::default()).map_err(explained)?;
    let header = header.with_runs(pending.deltas(&manifest, &mut Digests::default()).map_err(explained)?);
    let mut blocks = 0;
    writer.update(&header, &manifest, pending.inspect(|_| blocks += 1)).map_err(explained)?;
    Ok(blocks)
}

/// Returns a codec that keeps every value: the sparse one, unless it cannot or would not pay.
fn exact(view: &gcodec::TensorView<'_>) -> Result<Codec> {
    let values = match view.dtype() {
        Dtype::F32 => "f32",
        Dtype::F16 => "f16",
        Dtype::Bf16 => "bf16",
        _ => return Ok(Codec::LOSSLESS),
    };
    let stats = gcodec::reduce::stats::Stats::of(view, &gcodec::reduce::stats::StatsOptions::default());
    match stats.nan + stats.infinite > 0 || stats.nonzero() * 2 > stats.elements {
        true => Ok(Codec::LOSSLESS),
        false => format!("topk:density=1,values={values}").parse().map_err(Failure::usage),
    }
}

/// Finds the tensor of the model that a name or a number of the update stands for.
fn of_model<'a>(like: &'a Dump, name: &str) -> Result<&'a NamedTensor> {
    let tensors = &like.tensors;
    if let Some(found) = tensors.iter().find(|t| t.name() == name) {
        return Ok(found);
    }
    let opaque = |opaque: &Opaque, what: &str| {
        let Opaque { name, dtype, reason, .. } = opaque;
        Failure::usage(format_args!("tensor {name:?} ({dtype}) of --like is opaque: {reason}{what}"))
    };
    if let Some(found) = like.opaque.iter().find(|t| t.name == name) {
        return Err(opaque(found, ""));
    }
    let number = name.parse::<usize>().ok();
    if let (Some(_), Some(first)) = (number, like.opaque.first()) {
        // It stands between the others.
        return Err(opaque(first, "; so the numbers of tensors are not known"));
    }
    number.and_then(|number| tensors.get(number)).ok_or_else(|| {
        let hint = crate::naming::did_you_mean(name, tensors.iter().map(NamedTensor::name));
        Failure::usage(format_args!("--like has no tensor {name:?}{hint}"))
    })
}
