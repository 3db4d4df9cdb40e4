//! `gcodec model train`: makes a model of the learned codec from stored gradients.

use crate::baselines::{self, Figures, Step};
use crate::fail::{Failure, InFile, InOutput, Outcome, Result};
use crate::learned::failure;
use crate::options::check_output_is_new;
use crate::origin::Origin;
use crate::output::{Output, note};
use crate::progress::Progress;
use crate::tensors::{Dump, NamedTensor};
use gcodec::TensorBuf;
use gcodec::compress::Amount;
use gcodec::frame::{Manifest, TensorInfo};
use gcodec_latent::protocol::{Class, Group, ProtocolOptions, Variant};
use gcodec_latent::training::{self, Signals, Trainer};
use gcodec_latent::{Architecture, Innovation};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Train models of the learned codec (LGC)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Train(Train),
}

/// Train an autoencoder on gradients of several workers
///
/// Each file has one worker's gradients of one step; its metadata or its name says which, as in
/// `run_step0200_worker3.safetensors`. In each step, one worker in turn chooses its largest elements, and the
/// autoencoder learns the values of all workers at these elements.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --accumulate, the files must have consecutive steps. The autoencoder then learns the values that
updates of the learned codec have: with the momentum and the residuals of earlier steps.

Without it, the command also prints what the last step costs and loses with this model, and with schemes
that need none: the innovation alone, the leader's set with values in powers of two, top-k at about the
same bytes, and a prediction of the other workers' values by the leader's.

The file is the model's weights: spec/models/lgc-conv1d.md. Its hash, which is printed, identifies
the model in streams.

Examples:
  gcodec model train grads/*.safetensors -o model.lgc
  gcodec encode grad.safetensors -o grad.gcu --codec lgc:model=model.lgc,density=0.01
  gcodec decode grad.gcu -o grad.safetensors --model model.lgc")]
struct Train {
    /// Files of gradients
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// File for the model, named *.lgc by convention
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Density of the shared set, in each tensor
    #[arg(long, default_value_t = 0.01, value_name = "D")]
    density: f64,
    /// Channels of the encoder's first layer; 64 in the paper
    #[arg(long, default_value_t = 16, value_name = "N")]
    width: usize,
    /// One decoder for all workers, on the mean of their codes, instead of one for each
    #[arg(long)]
    ring: bool,
    /// Add the momentum and the residuals of earlier steps to a step's gradients
    #[arg(long)]
    accumulate: bool,
    /// Optimizer steps of the training
    #[arg(long, default_value_t = 2000, value_name = "N")]
    iterations: u64,
    /// Learning rate of Adam; it falls to a tenth along a cosine
    #[arg(long, default_value_t = 2e-3, value_name = "R")]
    rate: f64,
    /// Share of the values that is a worker's innovation, 0 to 1
    #[arg(long, default_value_t = 0.1, value_name = "I")]
    innovation: f64,
    /// Weight of the distance between the workers' codes
    #[arg(long, default_value_t = 0.5, value_name = "W")]
    lambda_sim: f64,
    /// Seed of the initial weights and of the choice of windows
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

/// First bytes of a model of any version.
const MAGIC: &[u8] = b"lgc-c1d";

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    let Command::Train(args) = &args.command;
    check_output_is_new(&args.output, &args.inputs)?;
    let (signals, last) = signals(args)?;
    let workers = signals.first().map_or(0, |s| s.values.len());
    let (decoders, innovation) = match args.ring {
        true => (1, Innovation::None),
        false => (workers, Innovation::Channel),
    };
    let architecture = Architecture::new(decoders, innovation).with_width(args.width);
    let settings = training::TrainerOptions::default()
        .with_rate(args.rate)
        .with_innovation(args.innovation)
        .with_lambda_sim(args.lambda_sim)
        .with_seed(args.seed);
    let untrained = architecture.init(args.seed).map_err(failure)?;
    let mut trainer = Trainer::new(&untrained, settings).map_err(failure)?;
    signals.iter().try_for_each(|s| trainer.push(s)).map_err(failure)?;
    let progress = Progress::new(args.iterations, "training", false);
    let (mut done, mut loss) = (0, training::Loss::default());
    while done < args.iterations {
        let count = (args.iterations - done).min(100);
        let part = |i| (done + i) as f64 / args.iterations as f64;
        loss = trainer.run(count, part).map_err(failure)?;
        done += count;
        progress.add(count);
    }
    let model = trainer.model().map_err(failure)?;
    let mut out = Output::create(&args.output)?;
    let written = out.write_all(model.as_bytes());
    written.and_then(|()| out.finish()).in_output(&args.output)?;
    if !quiet {
        note(format_args!(
            "{}: model {}, {} bytes; {workers} workers, {} steps; error on the set {:.3} ({:.3} without codes), distance of codes {:.3}",
            args.output.display(),
            model.id(),
            model.as_bytes().len(),
            signals.len(),
            loss.rec.sqrt(),
            trainer.baseline().sqrt(),
            loss.sim,
        ));
        if let Some((step, mut settings)) = last.filter(|_| !args.accumulate) {
            settings.innovation = args.innovation;
            if args.ring {
                (settings.variant, settings.innovation) = (Variant::Ring, 0.0);
            }
            compared(&step, &settings, args.density, model)?;
        }
    }
    Ok(Outcome::Well)
}

/// Prints what a step costs and loses with the model and without.
fn compared(
    step: &Step,
    settings: &ProtocolOptions,
    density: f64,
    model: gcodec_latent::Model,
) -> Result<()> {
    let found = baselines::measure(step, settings, density, model)?;
    let line = |what: &str, Figures { error, bytes }: Figures| {
        note(format_args!("step {}: error {error:.3}, {bytes:.0} bytes of a worker: {what}", step.number));
    };
    line(if settings.variant == Variant::Ring { "codes" } else { "innovation and codes" }, found.codes);
    if settings.variant == Variant::Server {
        line("innovation alone", found.innovation);
    }
    line("leader's set, powers of two", found.shared_set);
    line(&format!("topk:density={:.4},values=pow2", found.density), found.top_k);
    note(format_args!(
        "step {}: error {:.3}: the others' values by the leader's, the best factor for each tensor",
        step.number, found.predicted
    ));
    Ok(())
}

/// The last step, with the settings of its signals.
type Last = (Step, ProtocolOptions);

/// Returns the workers' values on the sets of all steps, and the last step.
fn signals(args: &Train) -> Result<(Vec<Signals>, Option<Last>)> {
    let steps = steps(&args.inputs)?;
    let mut group: Option<(Group, Arc<Manifest>)> = None;
    let (mut signals, mut last) = (Vec::new(), None);
    for (step, workers) in steps {
        let manifest = manifest(step, &workers)?;
        let world = workers.len() as u64;
        let known = group.as_ref().filter(|(_, known)| args.accumulate && known.id() == manifest.id());
        let momentum = if args.accumulate { 0.9 } else { 0.0 };
        let settings = ProtocolOptions::new(Variant::Server, vec![Class::Learned; manifest.tensors().len()])
            .with_amount(Amount::Density(args.density))
            .with_momentum(momentum)
            .with_full_steps(0)
            .with_top_k_steps(u64::MAX);
        if known.is_none() {
            let new = Group::new(&manifest, &settings, world).map_err(failure)?;
            group = Some((new, Arc::clone(&manifest)));
        }
        let gradients: Vec<Vec<TensorBuf>> = workers.into_values().map(|(_, tensors)| tensors).collect();
        let Some((group, _)) = &mut group else { continue };
        let (outcome, _) =
            group.step(step, &gradients).map_err(|e| failure(e).about(format_args!("step {step}")))?;
        let values = outcome.signals;
        signals.push(Signals { leader: (step % world) as usize, values: values.clone() });
        let positions = outcome.positions;
        last = Some((Step { number: step, manifest, gradients, positions, values }, settings));
    }
    Ok((signals, last))
}

/// One worker's file and its float tensors.
type Gradients = (Manifest, Vec<TensorBuf>);

/// Returns the gradients of each step and worker.
fn steps(paths: &[PathBuf]) -> Result<BTreeMap<u64, BTreeMap<u64, Gradients>>> {
    let mut steps: BTreeMap<u64, BTreeMap<u64, Gradients>> = BTreeMap::new();
    for path in paths {
        let dump = Dump::open(path)?;
        let origin = Origin::of(&dump, path);
        let (Some(step), Some(sender)) = (origin.step, origin.sender) else {
            let what = "neither its metadata nor its name says its step and worker; name it like run_step0200_worker3";
            return Err(Failure::usage(what)).in_file(path);
        };
        let tensors = floats(dump).in_file(path)?;
        if steps.entry(step).or_default().insert(sender, tensors).is_some() {
            return Err(Failure::usage(format_args!("a second file of step {step}, worker {sender}")))
                .in_file(path);
        }
    }
    Ok(steps)
}

/// Returns a file's f32 tensors.
fn floats(dump: Dump) -> Result<Gradients> {
    let (mut infos, mut tensors) = (Vec::new(), Vec::new());
    for tensor in dump.tensors {
        if tensor.view().dtype() == gcodec::Dtype::F32 && tensor.view().elements() > 0 {
            let (name, tensor) = NamedTensor::into_parts(tensor)?;
            infos.push(TensorInfo::new(name, tensor.dtype(), tensor.shape()));
            tensors.push(tensor);
        }
    }
    if tensors.is_empty() {
        return Err(Failure::usage("it has no f32 tensors"));
    }
    Ok((Manifest::new(infos)?, tensors))
}

/// Returns the tensors that all workers of a step have.
fn manifest(step: u64, workers: &BTreeMap<u64, Gradients>) -> Result<Arc<Manifest>> {
    let numbers: Vec<u64> = workers.keys().copied().collect();
    if !numbers.iter().copied().eq(0..numbers.len() as u64) {
        let what =
            format_args!("step {step} has the workers {numbers:?}: give the files of 0, 1, ..").to_string();
        return Err(Failure::usage(what));
    }
    let mut manifests = workers.values().map(|(manifest, _)| manifest);
    let first = manifests.next().ok_or_else(|| Failure::usage("no files"))?;
    if manifests.any(|other| other.id() != first.id()) {
        return Err(Failure::usage(format_args!("step {step}: its workers have different tensors")));
    }
    Ok(Arc::new(first.clone()))
}

/// Describes a model for `inspect`; nothing if the path is not a file with one.
pub(crate) fn described(path: &Path, json: bool) -> Result<Option<String>> {
    let mut head = Vec::new();
    if !path.is_file() {
        return Ok(None);
    }
    std::fs::File::open(path)
        .and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head))
        .in_file(path)?;
    if head != MAGIC {
        return Ok(None);
    }
    let model = crate::learned::open(path)?;
    let [channels, _] = model.code_shape(1);
    let innovation = match model.innovation() {
        Innovation::None => "none",
        Innovation::Channel => "channel",
        Innovation::Replace => "replace",
    };
    let (id, format) = (model.id().to_string(), gcodec_latent::FORMAT);
    let (decoders, unit, len) = (model.decoders().len(), model.unit(), model.as_bytes().len());
    if json {
        let value = serde_json::json!({
            "file": path.display().to_string(), "kind": "model", "format": format, "id": id, "bytes": len,
            "decoders": decoders, "innovation": innovation, "values_per_column": unit, "code_channels": channels,
        });
        return Ok(Some(serde_json::to_string_pretty(&value).map_err(std::io::Error::from)? + "\n"));
    }
    Ok(Some(format!(
        "{}: model {format}, {len} bytes\n  id          {id}\n  decoders    {decoders}\n  innovation  \
         {innovation}\n  codes       {channels} for {unit} values\n",
        path.display()
    )))
}
