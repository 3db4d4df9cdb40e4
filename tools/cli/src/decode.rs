//! `gcodec decode`: turns an update of a stream into dense tensors.

use crate::fail::{Failure, InFile, InOutput, Outcome, Result};
use crate::fit::Prefixes;
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::learned::ModelArgs;
use crate::naming::did_you_mean;
use crate::options::{LimitArgs, NameGlob, check_one_stdin, check_output_is_new, is_wanted};
use crate::output::warn;
use crate::stream::{Base, Updates};
use crate::tensors::{self, Dump, Outline};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Decode an update of a stream into dense tensors
///
/// Every tensor is written with its name, shape and element type. Elements that the update does not contain
/// are zero or, for a delta, those of the base.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The extension of the output selects its format: .safetensors, .npz or .npy. Standard output (`-`)
is safetensors, the only one that has the update's metadata.

A delta needs its --base: the tensors that it, or an earlier delta of the same stream, was made
against. All deltas from there on are applied in turn. A wrong base is a usage error (exit code 2).
A truncated or corrupt stream is refused (exit code 3); `gcodec recover` saves its intact updates.

Examples:
  gcodec decode grad.gcu -o grad.safetensors
  gcodec decode run.gcu -o bias.npz --step 100 --tensor '*.bias'
  gcodec decode run.gcu --all -o 'out-{step}-{sender}.safetensors'
  gcodec decode sync.gcu -o new.safetensors --base old.safetensors
  receive | gcodec decode - -o - | consume")]
pub(crate) struct Args {
    /// Stream; `-` is standard input
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// File for the tensors; `{step}` and `{sender}` in its name stand for those of each update
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Step of the update [default: the last update, with a warning if there are others]
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Sender of the update
    #[arg(long, value_name = "N")]
    sender: Option<u64>,
    /// All updates, or all of the given step or sender, each in its own file
    #[arg(long)]
    all: bool,
    /// Only tensors whose names match
    #[arg(long, value_name = "GLOB")]
    tensor: Option<NameGlob>,
    /// Tensors that the delta applies to
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    #[command(flatten)]
    prefixes: Prefixes,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    check_one_stdin([&args.input].into_iter().chain(&args.base))?;
    let template = Template::new(&args.output);
    tensors::check_output(&args.output)?;
    check_output_is_new(&args.output, [&args.input].into_iter().chain(&args.base))?;
    let base = args.base.as_deref().map(Dump::open_carrying).transpose()?;
    let base = args.prefixes.base(base.iter().flat_map(|dump| &dump.tensors));
    let input = Input::open(&args.input, DEFAULT_MAX_BYTES)?;
    let models = args.models.models()?;
    let updates = Updates::open(&input, &args.limits.limits()).in_file(&args.input)?.with_models(models);
    let numbers = args.numbers(&updates, template.is_some(), quiet).in_file(&args.input)?;
    let paths = paths(args, &updates, &numbers, template.as_ref())?;
    for (number, path) in numbers.into_iter().zip(&paths) {
        check_output_is_new(path, [&args.input].into_iter().chain(&args.base))?;
        decode(args, &updates, number, &base, path)?;
    }
    Ok(Outcome::Well)
}

impl Args {
    /// Returns the updates to decode.
    fn numbers(&self, updates: &Updates<'_>, named: bool, quiet: bool) -> Result<Vec<usize>> {
        let is_wanted = |&number: &usize| {
            let header = updates.header(number);
            self.step.is_none_or(|s| header.step == s) && self.sender.is_none_or(|s| header.sender == s)
        };
        let found: Vec<usize> = (0..updates.len()).filter(is_wanted).collect();
        let Some(&last) = found.last() else {
            return match (self.step, self.sender) {
                // Says which steps there are.
                (Some(_), None) | (None, None) => updates.find(self.step).map(|number| vec![number]),
                _ => Err(Failure::usage("no update has this step and sender")),
            };
        };
        if self.all || named {
            return Ok(found);
        }
        if found.len() > 1 && !quiet {
            let header = updates.header(last);
            warn(format_args!(
                "{} updates, of which the last is decoded (step {}, sender {}); --step and --sender select \
                 another, --all decodes all",
                found.len(),
                header.step,
                header.sender
            ));
        }
        Ok(vec![last])
    }
}

/// Returns the file of each update.
fn paths(
    args: &Args,
    updates: &Updates<'_>,
    numbers: &[usize],
    template: Option<&Template>,
) -> Result<Vec<PathBuf>> {
    let Some(template) = template else {
        return match numbers.len() {
            1 => Ok(vec![args.output.clone()]),
            n => Err(Failure::usage(format_args!(
                "{n} updates for one file: name them with -o 'out-{{step}}-{{sender}}.safetensors'"
            ))),
        };
    };
    let mut seen = HashSet::new();
    let mut paths = Vec::new();
    for &number in numbers {
        let header = updates.header(number);
        let path = template.path(header.step, header.sender);
        if !seen.insert(path.clone()) {
            return Err(Failure::usage(format_args!(
                "two updates for one file: step {}, sender {}; put {{step}} and {{sender}} into its name",
                header.step, header.sender
            )))
            .in_output(&path);
        }
        paths.push(path);
    }
    Ok(paths)
}

/// The name of an output that holds `{step}` or `{sender}`.
struct Template(String);

impl Template {
    fn new(path: &Path) -> Option<Self> {
        let name = path.to_str()?;
        (name.contains("{step}") || name.contains("{sender}")).then(|| Self(name.to_owned()))
    }

    fn path(&self, step: u64, sender: u64) -> PathBuf {
        self.0.replace("{step}", &step.to_string()).replace("{sender}", &sender.to_string()).into()
    }
}

/// Writes the wanted tensors of an update to `path`, while later ones are decoded.
fn decode(args: &Args, updates: &Updates<'_>, number: usize, base: &Base<'_>, path: &Path) -> Result<()> {
    let wanted = |name: &str| is_wanted(args.tensor.as_ref(), name);
    let infos = updates.manifest(number).tensors();
    let outlines: Vec<_> = infos.iter().filter(|info| wanted(&info.name)).map(Outline::from).collect();
    if let (Some(glob), true) = (&args.tensor, outlines.is_empty()) {
        let hint = did_you_mean(glob.text(), infos.iter().map(|info| info.name.as_str()));
        return Err(Failure::usage(format_args!("no tensor of the update matches --tensor{hint}")))
            .in_file(&args.input);
    }
    if !base.is_empty() {
        updates.check_base(number, base).in_file(&args.input)?;
    }
    let mut metadata = updates.metadata(number).in_file(&args.input)?;
    // It is about another file than the one that is written here.
    metadata.remove(crate::tensors::AROUND);
    tensors::write_from(path, &outlines, &metadata, Some(&args.input), &mut |sink| {
        updates.decode_to(number, wanted, base, &mut |info, bytes| sink(&info.name, bytes))
    })
}
