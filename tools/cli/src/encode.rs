//! `gcodec encode`: encodes tensors as a stream of updates.

use crate::assign::{self, Plan, Rule, fitting};
use crate::fail::{Code, Failure, InFile, InOutput, Outcome, Result};
use crate::feedback::{Residuals, Saved};
use crate::fit::{self, Prefixes};
use crate::input::is_standard;
use crate::learned::{self, Chosen};
use crate::naming::{CHOSEN, did_you_mean};
use crate::options::{NameGlob, check_one_stdin, check_output_is_new, parse_pair, profiles};
use crate::order;
use crate::origin::{Guesses, Origin};
use crate::output::{Counted, Output, human_bytes, note, real, thousands, warn};
use crate::progress::Progress;
use crate::tensors::{Dump, Labels, NamedTensor, Outline};
use gcodec::block::{PendingBlock, Profile};
use gcodec::compress::{self, Digests, Input, NonFinite, Options};
use gcodec::file::{File, Map};
use gcodec::frame::{Manifest, Metadata, UpdateHeader};
use gcodec::internal::batches;
use gcodec::stream::EncodeOptions;
use gcodec::{Codec, Limits, TensorView, Writer};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Encode tensors as a stream of updates
///
/// Each input becomes one update. A tensor's codec is --codec, or the last --rule whose GLOB matches its
/// name. Integer and bool tensors that a lossy codec does not support are encoded losslessly, with a note.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
SPEC is name[:key=value,...]; docs/compressors.md lists papers and sizes:
  raw                       the unchanged elements
  lossless                  byte planes, entropy coded; effort=default|fast
  delta                     the elements that differ from --base, losslessly; values=ulp|overwrite
  topk:density=0.01         the largest magnitudes; or k=N; values=f32|f16|bf16|pow2|sign|q4;
                            scope=tensor|global
  stc:density=0.01          Sparse Ternary Compression: topk with values=sign
  threshold:at=0.001        magnitudes of at least this; values= as for topk
  sbc:density=0.001         Sparse Binary Compression: one value for the largest of one sign
  sidco:density=0.001       about this share of the largest, above a fitted threshold;
                            fit=gp|gamma-gp|exp, stages=guard|authors|N; values= as for topk
  randk:density=0.01        random positions; scale=n/k|1, values=f32|f16|bf16, seed=1
  chunked:chunk=4096        the largest of each chunk; kept=64, values=code2|sign
  demo:chunk=64,kept=32     DeMo: the largest of each chunk's cosine transform
  natural                   Natural Compression: random rounding to powers of two; seed=1,
                            effort=default|fast
  dither:levels=8           natural dithering; bucket=512, norm=l1|l2|max, seed=1
  qsgd:bits=4,bucket=512    random rounding to multiples of the bucket's norm; norm=l2|max, seed=1
  terngrad:clip=2.5         random rounding to -1, 0 or 1 times a maximum; bucket=4096, seed=1
  sign:group=tensor|64      signs, and the mean magnitude of each group
  int8:group=256            8 bits per element and a scale per group
  powersgd:rank=4           PowerSGD: each matrix as two factors
  lgc:model=FILE            LGC: codes of the largest elements, by a model of `gcodec model train`;
                            density=0.01, codes=int8|f32|f16|bf16, innovation=0.1 (share of values
                            that is exact), inline=no|yes (the model in the stream)

Codecs with positions take positions=auto|rice|rice-one|tokens|bitmap|classed. A seed grows by one
with each update.

With the codec delta, each input is the base of the next one; without --base the first input is
encoded losslessly. A base that lacks a tensor, or has it with another shape or type, is a usage
error (exit code 2).

Examples:
  gcodec encode grad.safetensors -o grad.gcu --codec topk:density=0.01
  gcodec encode step*.safetensors -o run.gcu --codec natural --step 100 --rule '*.bias=lossless'
  gcodec encode new.safetensors -o sync.gcu --codec delta --base old.safetensors
  produce | gcodec encode - -o - --codec sbc:density=0.001 | send
  gcodec encode grad2.safetensors -o run.gcu --codec sbc --feedback residual.safetensors --append")]
pub(crate) struct Args {
    /// Tensors: .safetensors, .npz, .npy, .pt or .gguf, or the folder of a checkpoint; `-` is standard input.
    /// Each becomes an update
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// Stream to write, named *.gcu by convention; `-` is standard output
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Codec of the tensors
    #[arg(long, value_name = "SPEC", value_parser = CHOSEN, hide_possible_values = true)]
    codec: Chosen,
    /// Other codec for the tensors whose names match; the last matching rule counts
    #[arg(long = "rule", value_name = "GLOB=SPEC")]
    rules: Vec<Rule>,
    /// Warn about a rule that matches no tensor, instead of failing
    #[arg(long)]
    allow_unused_rules: bool,
    /// Tensors against which the first delta (codec `delta`) is made
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    /// Step of the first update of a sender, the next ones follow [default: the step in the input's metadata,
    /// its name or its folder's, or else the one after the sender's last; of a new sender, the one after the
    /// last in the stream before, or 0]
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Key of the step in the inputs' metadata [default: step, global_step, iteration, iter, round or epoch]
    #[arg(long, value_name = "KEY", conflicts_with = "step")]
    meta_step: Option<String>,
    /// Number of the sender [default: the sender, worker or rank in the input's metadata, its name or its
    /// folder's, or 0]
    #[arg(long, value_name = "N")]
    sender: Option<u64>,
    /// Number of senders, 0 if unknown [default: the world or world_size in the input's metadata, or 0]
    #[arg(long, value_name = "N")]
    world: Option<u64>,
    /// Key and value for the stream's metadata
    #[arg(long, value_name = "K=V", value_parser = parse_pair)]
    meta: Vec<(String, String)>,
    /// Leave out the tensors whose names match
    #[arg(long, value_name = "GLOB")]
    without: Vec<NameGlob>,
    /// Leave out the inputs' own metadata
    #[arg(long)]
    no_metadata: bool,
    /// File of the residuals of lossy codecs (error feedback): read if it exists, and replaced when the
    /// stream is complete
    #[arg(long, value_name = "FILE")]
    feedback: Option<PathBuf>,
    /// Replace NaN and infinity with zero where a lossy codec cannot encode them, instead of failing
    #[arg(long)]
    zero_non_finite: bool,
    /// Profile of the format: `core` writes only what small readers know, with the same elements, and refuses
    /// what they cannot read: delta, demo, powersgd, lgc
    #[arg(long, value_name = "NAME", value_parser = profiles(), default_value = "full")]
    profile: Profile,
    #[command(flatten)]
    prefixes: Prefixes,
    /// Append to a finished stream
    #[arg(long)]
    append: bool,
}

impl Args {
    fn options(&self) -> EncodeOptions {
        EncodeOptions::default().with_profile(self.profile)
    }
}

/// Totals of the encoded updates.
#[derive(Debug, Default)]
struct Totals {
    updates: u64,
    elements: u64,
    bytes: u64,
}

/// Runs the command; `quiet` suppresses notes and the summary.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    check_one_stdin(args.inputs.iter().chain(&args.base))?;
    check_output_is_new(&args.output, args.inputs.iter().chain(&args.base).chain(&args.feedback))?;
    let start = Instant::now();
    let (totals, bytes_out) = match args.append {
        true => append(args, quiet)?,
        false => {
            let mut writer = Writer::new(Counted::new(Output::create(&args.output)?), args.options());
            let (totals, residuals) = write(args, &mut writer, Places::new(args), quiet)?;
            let bytes_out = writer.finish().and_then(|out| Ok(out.finish()?)).in_output(&args.output)?;
            residuals.map_or(Ok(()), Saved::commit)?;
            (totals, bytes_out)
        }
    };
    if !quiet {
        // Without elements there are no bits of one, and no ratio.
        let bits = match totals.elements {
            0 => String::new(),
            elements => format!(
                ", ratio {}, {} bits per parameter",
                real(totals.bytes as f64 / bytes_out as f64),
                real(bytes_out as f64 * 8.0 / elements as f64)
            ),
        };
        note(format_args!(
            "{}: {} update{}, {} elements, {} -> {}{bits}, {:.2} s",
            if is_standard(&args.output) {
                "standard output".into()
            } else {
                args.output.display().to_string()
            },
            totals.updates,
            if totals.updates == 1 { "" } else { "s" },
            thousands(totals.elements),
            human_bytes(totals.bytes),
            human_bytes(bytes_out),
            start.elapsed().as_secs_f64(),
        ));
    }
    Ok(Outcome::Well)
}

/// Appends to a finished file; on failure the file is restored.
fn append(args: &Args, quiet: bool) -> Result<(Totals, u64)> {
    let path = &args.output;
    if is_standard(path) {
        return Err(Failure::usage("--append needs a file"));
    }
    let bytes = Map::open(path).in_file(path)?;
    let file =
        File::open(&bytes, Limits::default()).map_err(|e| crate::stream::explain(e, None).in_file(path))?;
    let places = Places::behind(args, file.updates().iter().map(|update| &update.header));
    let old_len = bytes.len() as u64;
    let write_on = || {
        let mut writer = gcodec::file::append(path, args.options()).in_file(path)?;
        let (totals, residuals) = write(args, &mut writer, places, quiet)?;
        let file = writer.finish().in_file(path)?;
        file.sync_all().in_file(path)?;
        residuals.map_or(Ok(()), Saved::commit)?;
        Ok((totals, file.metadata().in_file(path)?.len() - old_len))
    };
    write_on().inspect_err(|_| {
        let cut = std::fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(old_len));
        if let Err(e) = cut {
            warn(format_args!("{}: could not be cut back to {old_len} bytes: {e}", path.display()));
        }
    })
}

/// Writes the updates. Returns the file of residuals, to be put in its place when the stream is complete:
/// with an old one, the same updates can be encoded again.
fn write<W: Write>(
    args: &Args,
    writer: &mut Writer<W>,
    mut places: Places<'_>,
    quiet: bool,
) -> Result<(Totals, Option<Saved>)> {
    if !args.meta.is_empty() {
        let entries: BTreeMap<_, _> = args.meta.iter().cloned().collect();
        if entries.len() != args.meta.len() {
            return Err(Failure::usage("a key of --meta is repeated"));
        }
        writer.metadata(&Metadata { entries }).in_output(&args.output)?;
    }
    let mut residuals = args.feedback.as_deref().map(Residuals::open).transpose()?;
    let options = Options::default().with_non_finite(match args.zero_non_finite {
        true => NonFinite::Zero,
        false => NonFinite::Reject,
    });
    let plan = Plan::new(args.codec.codec(), &args.rules);
    let learned = args.codec.learned().map(learned::Encoder::open).transpose()?;
    if let Some(learned) = learned.as_ref().filter(|learned| learned.inline) {
        writer.model(&learned.frame()).in_output(&args.output)?;
    }
    if args.base.is_some() && !plan.has_delta() {
        return Err(Failure::usage("--base is for the codec delta"));
    }
    if plan.has_delta() && args.base.is_none() && args.inputs.len() == 1 {
        return Err(Failure::usage("the codec delta needs --base, or a second input"));
    }
    let mut base = args.base.as_deref().map(Dump::open_carrying).transpose()?;
    if let (Some(dump), Some(path)) = (&mut base, &args.base) {
        args.prefixes.rename(dump).in_file(path)?;
    }
    let mut totals = Totals::default();
    let progress = Progress::new(args.inputs.len() as u64, "encoding", false);
    for (path, number) in order::arranged(&args.inputs).iter().zip(0u64..) {
        let mut dump = Dump::open_whole(path, &args.without, quiet)?;
        args.prefixes.rename(&mut dump).in_file(path)?;
        let place = places.of(&dump, path, quiet).in_file(path)?;
        let entries = match args.no_metadata {
            true => Labels::of(&dump.metadata).entry().into_iter().collect(),
            false => dump.metadata.clone(),
        };
        if !entries.is_empty() {
            writer.metadata(&Metadata { entries }).in_output(&args.output)?;
        }
        let update =
            Update { args, plan: &plan, learned: learned.as_ref(), options: &options, number, place, quiet };
        let written = update.write(writer, &dump, base.as_ref(), residuals.as_mut());
        // The inputs are open: in the system, only writing can fail, to the output or to a temporary file.
        written.map_err(|f| if f.code == Code::Io { f.in_output(&args.output) } else { f.in_file(path) })?;
        totals.updates += 1;
        totals.elements += dump.tensors.iter().map(|t| t.view().elements()).sum::<u64>();
        totals.bytes += dump.tensors.iter().map(|t| t.view().data().len() as u64).sum::<u64>();
        if plan.has_delta() {
            base = Some(dump);
        }
        progress.add(1);
    }
    if !quiet {
        places.guesses.note();
    }
    Ok((totals, residuals.map(Residuals::save).transpose()?))
}

/// One of the updates that the command writes.
struct Update<'a> {
    args: &'a Args,
    plan: &'a Plan<'a>,
    learned: Option<&'a learned::Encoder>,
    options: &'a Options,
    number: u64,
    place: Place,
    quiet: bool,
}

/// Step, sender and number of senders of an update.
struct Place {
    step: u64,
    sender: u64,
    world: u64,
}

/// Finds the places of the updates.
struct Places<'a> {
    args: &'a Args,
    /// The last step of the stream before this command.
    before: Option<u64>,
    /// The last step of each sender.
    last: HashMap<u64, u64>,
    /// Steps and senders of the updates in the stream.
    taken: HashSet<(u64, u64)>,
    /// Senders of the inputs.
    senders: HashSet<u64>,
    guesses: Guesses,
}

impl<'a> Places<'a> {
    fn new(args: &'a Args) -> Self {
        let (last, taken, senders) = (HashMap::new(), HashSet::new(), HashSet::new());
        Self { args, before: None, last, taken, senders, guesses: Guesses::default() }
    }

    /// Returns the places behind these updates of a stream.
    fn behind<'u>(args: &'a Args, updates: impl Iterator<Item = &'u UpdateHeader>) -> Self {
        let mut places = Self::new(args);
        updates.for_each(|header| places.take(header.step, header.sender));
        places.before = places.taken.iter().map(|(step, _)| *step).max();
        places
    }

    /// Notes that an update of this step and sender is in the stream.
    fn take(&mut self, step: u64, sender: u64) {
        self.last.insert(sender, step);
        self.taken.insert((step, sender));
    }

    /// Returns the next step of a sender of which no update is in the stream.
    fn next(&self, sender: u64) -> Result<u64> {
        let mut next =
            self.last.get(&sender).copied().or(self.before).map_or(Some(0), |last| last.checked_add(1));
        while let Some(step) = next.filter(|step| self.taken.contains(&(*step, sender))) {
            next = step.checked_add(1);
        }
        next.ok_or_else(|| Failure::usage("the steps exceed 64 bits"))
    }

    /// Returns the place of the update of an input.
    fn of(&mut self, dump: &Dump, path: &Path, quiet: bool) -> Result<Place> {
        let key = self.args.meta_step.as_deref();
        let said = Origin::said(dump, key);
        if let (Some(key), None) = (key, said.step) {
            let hint = did_you_mean(key, dump.metadata.keys().map(String::as_str));
            return Err(Failure::usage(format_args!("its metadata has no step under {key:?}{hint}")));
        }
        let Args { step, sender, world, .. } = self.args;
        let said = Origin {
            step: step.or(said.step),
            sender: sender.or(said.sender),
            world: world.or(said.world),
            ..said
        };
        let origin = said.or_named(path);
        self.guesses.add(said, origin, path);
        let sender = origin.sender.unwrap_or(0);
        let is_first = self.senders.insert(sender);
        if self.args.feedback.is_some() && self.senders.len() > 1 {
            return Err(Failure::usage(format_args!(
                "it is of sender {sender}, and the inputs before are not: --feedback has the residuals of one \
                 sender; encode each with its own, or set --sender"
            )));
        }
        // --step is that of the sender's first update here; the next ones follow it.
        let said = origin.step.filter(|_| step.is_none() || is_first);
        let repeated = said.filter(|step| self.taken.contains(&(*step, sender)));
        let place = match said.filter(|_| repeated.is_none()) {
            Some(step) => step,
            None => self.next(sender)?,
        };
        if let Some(repeated) = repeated {
            let what = format!("step {repeated} of sender {sender} was already there");
            match step {
                Some(_) => {
                    return Err(Failure::usage(format_args!("{what}: give another --step or --sender")));
                }
                None if !quiet => warn(format_args!("{what}: it becomes step {place}")),
                None => {}
            }
        }
        self.take(place, sender);
        Ok(Place { step: place, sender, world: origin.world.unwrap_or(0) })
    }
}

impl Update<'_> {
    fn write<W: Write>(
        &self,
        writer: &mut Writer<W>,
        dump: &Dump,
        base: Option<&Dump>,
        residuals: Option<&mut Residuals>,
    ) -> Result<()> {
        let named = || dump.tensors.iter().map(|t| (t.name(), t.view()));
        let manifest = assign::manifest_of(named())?;
        let codecs = self.codecs(dump, base.is_some())?;
        let bases: HashMap<&str, TensorView<'_>> =
            base.iter().flat_map(|b| &b.tensors).map(|t| (t.name(), t.view())).collect();
        let is_delta = codecs.iter().any(|codec| matches!(codec, Codec::Delta { .. }));
        let inputs: Vec<Input<'_>> = named()
            .zip(0u64..)
            .map(|((name, view), tensor)| Input { tensor, name, view, base: bases.get(name).copied() })
            .collect();
        if is_delta {
            // Also the tensors that are no deltas: a base that lacks them is another model's.
            let outlines: Vec<_> = dump.tensors.iter().map(Outline::from).collect();
            fit::check_base(
                &outlines,
                &bases.iter().map(|(name, view)| ((*name).to_owned(), *view)).collect(),
            )?;
        }
        let label = match self.plan.has_delta() && !is_delta {
            true => Codec::LOSSLESS.to_string(),
            false => Plan::new(self.args.codec.codec().later(self.number), &self.args.rules).label(),
        };
        let header = UpdateHeader::default()
            .with_step(self.place.step)
            .with_sender(self.place.sender)
            .with_world(self.place.world)
            .with_label(self.learned.map_or(label, learned::Encoder::label));
        self.write_blocks(writer, header, &manifest, &inputs, &codecs, residuals)
    }

    fn write_blocks<W: Write>(
        &self,
        writer: &mut Writer<W>,
        header: UpdateHeader,
        manifest: &Arc<Manifest>,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        residuals: Option<&mut Residuals>,
    ) -> Result<()> {
        let explained = |e| assign::explain(e, manifest);
        // Only lossy codecs have residuals, and only lossless ones deltas.
        let residuals = residuals.filter(|_| codecs.iter().any(Codec::is_lossy));
        if let Some(learned) = self.learned {
            // All at once: the values of consecutive tensors are one signal.
            let all = 0..inputs.len();
            let blocks = match residuals {
                Some(residuals) => residuals.update(vec![all], inputs, codecs, self.options, |blocks| {
                    blocks.collect::<gcodec::Result<Vec<_>>>().map_err(explained)
                })?,
                None => compress::compress(inputs, codecs, self.options, None).map_err(explained)?,
            };
            let blocks = learned.encode(blocks, manifest, self.place.sender)?;
            let runs = compress::deltas(manifest, inputs, codecs, &blocks).map_err(explained)?;
            return writer.update(&header.with_runs(runs), manifest, blocks).map_err(explained);
        }
        if let Some(residuals) = residuals {
            let ranges = batches(inputs, codecs, self.options).map_err(explained)?;
            return residuals.update(ranges, inputs, codecs, self.options, |blocks| {
                let blocks = blocks.map(|block| block.map(PendingBlock::from));
                writer.update(&header, manifest, blocks).map_err(explained)
            });
        }
        let mut blocks = compress::pending(inputs, codecs, self.options).map_err(explained)?;
        let runs = blocks.deltas(manifest, &mut Digests::default()).map_err(explained)?;
        writer.update(&header.with_runs(runs), manifest, blocks).map_err(explained)
    }

    /// Returns the codec of each tensor, and prints notes on choices that may surprise the user.
    fn codecs(&self, dump: &Dump, has_base: bool) -> Result<Vec<Codec>> {
        let warning = |text: &str| {
            if !self.quiet {
                warn(text);
            }
        };
        let mut fallen = Vec::new();
        let mut codecs = Vec::new();
        let labels = Labels::of(&dump.metadata);
        for tensor in &dump.tensors {
            let asked = self.plan.codec(tensor.name()).later(self.number);
            let codec = match asked {
                Codec::Delta { .. } if !has_base => Codec::LOSSLESS,
                asked => fitting(asked, &tensor.view()),
            };
            if asked.is_lossy() && codec != asked {
                fallen.push(format!("{:?} ({})", tensor.name(), labels.dtype(&tensor.into())));
            }
            codecs.push(codec);
        }
        let mixed = codecs.iter().find(|codec| codec.is_lossy());
        if let Some(lossy) = mixed.filter(|_| codecs.iter().any(|c| matches!(c, Codec::Delta { .. }))) {
            return Err(Failure::usage(format_args!("one update cannot have both delta and {lossy}")));
        }
        if self.number == 0 {
            if self.plan.has_delta() && !has_base {
                warning("no --base: the first update is encoded losslessly");
            }
            for rule in self.plan.idle_rules(dump.tensors.iter().map(NamedTensor::name)) {
                let glob = rule.split('=').next().unwrap_or_default();
                let hint = did_you_mean(glob, dump.tensors.iter().map(NamedTensor::name));
                let what = format!("the rule {rule} matches no tensor");
                match self.args.allow_unused_rules {
                    true => warning(&what),
                    false => return Err(Failure::usage(what + &hint + "; --allow-unused-rules allows it")),
                }
            }
            if let [first, rest @ ..] = &fallen[..] {
                let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
                warning(&format!("no floats, encoded losslessly: tensor {first}{more}"));
            }
        }
        Ok(codecs)
    }
}
