//! `gcodec verify`: reads, checks and decodes whole streams.

use crate::damage::Damage;
use crate::digest::{self, Chosen, Digests};
use crate::fail::{Failure, InFile, Outcome, Result};
use crate::input::{Opened, is_standard};
use crate::learned::ModelArgs;
use crate::options::{LimitArgs, check_one_stdin, profiles};
use crate::output::{counted, human_bytes, print, printable, warn};
use crate::progress::Progress;
use crate::tensors::kind::{Kind, is_stream};
use crate::tensors::versions;
use gcodec::Limits;
use gcodec::block::{ModelId, Profile};
use gcodec::frame::UpdatePart;
use gcodec::stream::{Body, Event, Finding, salvage};
use gcodec_latent::{Error, Models, replace_codes};
use rayon::prelude::*;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Check streams: every checksum, every rule of the format, every block; or tensors by their digests
///
/// A folder is a version of slime or miles (weight_vNNNNNN), or has all versions of a run: the checksums of
/// all tensors are compared.
///
/// Exits with 3 if a stream is corrupt or invalid. After a fault, the check goes on. Standard error has the
/// byte offset, frame, block and tensor of each fault, and standard output says which updates are intact.
///
/// With --against-digests, the tensors of all files, streams or not, are compared with digests that `gcodec
/// digest --json` wrote, perhaps on another machine; exits with 1 if they differ, and names the tensors.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The digests of a delta's base and result are not checked: `gcodec decode --base` does that.
With --profile core, a stream that small readers cannot read is invalid; spec/core.md lists what they know.
Latent codes are decoded by the models of --model. Without any, only their bytes are checked, and they
count as not decoded.

Examples:
  gcodec verify run.gcu
  gcodec verify grad.gcu --model model.lgc
  gcodec verify --against-digests digests.json checkpoint/
  gcodec verify *.gcu && echo all valid")]
pub(crate) struct Args {
    /// Streams, or files of tensors with --against-digests; `-` is standard input
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// Also fail if a stream has more than this profile of the format: `core`, for small readers
    #[arg(long, value_name = "NAME", value_parser = profiles(), default_value = "full")]
    profile: Profile,
    /// Compare the tensors with these digests
    #[arg(long, value_name = "FILE")]
    against_digests: Option<PathBuf>,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Totals of a valid stream.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    bytes: u64,
    frames: u64,
    segments: u64,
    updates: u64,
    deltas: u64,
    blocks: u64,
    values: u64,
    elements: u64,
    /// Blocks of codes whose model is missing, and the model of the first.
    coded: u64,
    missing: Option<ModelId>,
    /// The first thing that the core profile does not have, and its frame, unless any profile will do.
    profile: Profile,
    beyond_core: Option<(&'static str, u64)>,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    if let Some(path) = &args.against_digests {
        return against(&Digests::open(path)?, args, quiet);
    }
    if !args.chosen.is_all() {
        return Err(Failure::usage(
            "--step, --base and --strip-prefix need --against-digests: all is checked",
        ));
    }
    check_one_stdin(&args.inputs)?;
    let (limits, models) = (args.limits.limits(), args.models.models()?);
    let mut failures: Vec<Failure> = Vec::new();
    for path in &args.inputs {
        match versions::verify(path) {
            Ok(None) => {}
            Ok(Some(_)) if quiet => continue,
            Ok(Some((versions, differences, tensors))) => {
                let (versions, tensors) = (counted(versions, "version"), counted(tensors, "tensor"));
                let name = printable(&path.display().to_string());
                let differences = counted(differences, "difference");
                print(format_args!("{name}: ok: {versions} of {tensors}, {differences}\n"))?;
                continue;
            }
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        }
        let (checked, damage) = match check(path, args.profile, &models, &limits) {
            Ok(found) => found,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        let name = if is_standard(path) { "standard input".into() } else { path.display().to_string() };
        let name = printable(&name);
        match damage.faults() {
            [] if quiet => {}
            [] => print(format_args!("{name}: ok: {}\n", checked.text()))?,
            [_, others @ ..] => {
                others.iter().for_each(|fault| warn(format_args!("{name}: {}", fault.error)));
                failures.extend(damage.failure().map(|failure| failure.in_file(path)));
                if !quiet && checked.frames > 0 {
                    print(format_args!("{name}: DAMAGED: {}\n", damage.summary()))?;
                }
            }
        }
        if let (Profile::Core, Some((what, frame))) = (args.profile, checked.beyond_core) {
            let what = format_args!("not of the core profile: {what} in frame {frame}");
            failures.push(Failure::invalid(what).in_file(path));
        }
        if let Some(id) = checked.missing
            && !args.models.is_empty()
        {
            failures.push(Failure::usage(Error::MissingModel(id)).in_file(path));
        }
    }
    // Checks all streams; the first failure sets the exit code.
    let mut failures = failures.into_iter();
    let first = failures.next();
    failures.for_each(warn);
    first.map_or(Ok(Outcome::Well), Err)
}

/// Most lines of differences.
const LISTED: usize = 20;

/// Compares the tensors of all files with digests.
fn against(expected: &Digests, args: &Args, quiet: bool) -> Result<Outcome> {
    let found = digest::of_files(&args.inputs, &args.chosen, &args.models, args.limits)?;
    let differences = expected.differences(&found);
    let (all, count) = (counted(expected.len() as u64, "tensor"), differences.len());
    if count == 0 {
        if !quiet {
            print(format_args!("ok: {all} with the same digests\n"))?;
        }
        return Ok(Outcome::Well);
    }
    for line in differences.iter().take(LISTED) {
        print(format_args!("{line}\n"))?;
    }
    if count > LISTED {
        print(format_args!("and {} more\n", count - LISTED))?;
    }
    print(format_args!("{} from the digests of {all}\n", counted(count as u64, "difference")))?;
    Ok(Outcome::Differs)
}

fn check(path: &Path, profile: Profile, models: &Models, limits: &Limits) -> Result<(Checked, Damage)> {
    match Opened::open(path)? {
        Opened::Whole(input) if is_stream(&input) => verify(&input[..], input.len(), profile, models, limits),
        Opened::Whole(input) => Err(not_a_stream(&input)),
        Opened::Pipe(pipe) if is_stream(pipe.head()) => {
            verify(pipe.into_reader(), 0, profile, models, limits)
        }
        Opened::Pipe(pipe) => Err(not_a_stream(pipe.head())),
    }
    .in_file(path)
}

fn not_a_stream(bytes: &[u8]) -> Failure {
    match Kind::of(bytes) {
        Ok(kind) => {
            Failure::invalid(format_args!("not a gcodec stream but a file of tensors ({})", kind.name()))
        }
        Err(failure) => failure,
    }
}

impl Checked {
    fn text(&self) -> String {
        let deltas = match self.deltas {
            0 => String::new(),
            n => format!(" ({})", counted(n, "delta")),
        };
        let codes = match self.coded {
            0 => String::new(),
            n => format!(", codes of {} not decoded", counted(n, "block")),
        };
        format!(
            "{}, {} in {}, {}{deltas}, {} with {} for {}{codes}",
            human_bytes(self.bytes),
            counted(self.frames, "frame"),
            counted(self.segments, "segment"),
            counted(self.updates, "update"),
            counted(self.blocks, "block"),
            counted(self.values, "value"),
            counted(self.elements, "element"),
        )
    }
}

/// Reads a stream to its end, past every fault.
///
/// `models`: those that decode latent codes. Of codes without their model, only the bytes are checked.
pub(crate) fn verify(
    reader: impl Read,
    len: u64,
    profile: Profile,
    models: &Models,
    limits: &Limits,
) -> Result<(Checked, Damage)> {
    let mut checked = Checked { profile, ..Checked::default() };
    let mut damage = Damage::default();
    let progress = Progress::new(len, "verifying", true);
    salvage(reader, limits, |finding| {
        match finding {
            Finding::Event(event) => {
                let sound = checked.see(&event, models, &mut damage);
                damage.see(&event, sound);
            }
            Finding::Fault(fault) => damage.see_fault(fault),
            _ => {}
        }
        progress.set(checked.bytes);
        ControlFlow::Continue(())
    })?;
    damage.drop_open();
    Ok((checked, damage))
}

impl Checked {
    /// Adds an event; returns whether the blocks of an update decode.
    fn see(&mut self, event: &Event<'_>, models: &Models, damage: &mut Damage) -> bool {
        let Event::Frame(info, body) = event else { return true };
        self.bytes = info.offset + info.len();
        self.frames += 1;
        let part = match body {
            Body::Update(part) => part,
            Body::End(_) => {
                self.segments += 1;
                return true;
            }
            Body::IndexSet(..) => return self.is_beyond(Some("an index set"), info.number),
            Body::Model(_) => return self.is_beyond(Some("a model"), info.number),
            _ => return true,
        };
        self.is_beyond(part.header.is_delta().then_some("a delta"), info.number);
        self.updates += u64::from(part.last);
        self.deltas += u64::from(part.last && part.header.is_delta());
        self.blocks += part.blocks.len() as u64;
        self.elements += part.blocks.iter().map(|b| b.space.len()).sum::<u64>();
        let mut sound = true;
        for (number, (values, error)) in decode_blocks(part, models).into_iter().enumerate() {
            self.values += values;
            match error {
                None => {}
                Some(Error::MissingModel(id)) => {
                    self.coded += 1;
                    self.missing.get_or_insert(id);
                }
                Some(error) => {
                    sound = false;
                    damage.see_block(error, number, part, info.number);
                }
            }
        }
        if sound && self.profile == Profile::Core && self.beyond_core.is_none() {
            let beyond = (0..part.blocks.len()).map(|number| part.beyond_core(number, &part.budget()));
            let first = beyond.filter_map(|what| what.ok().flatten()).next();
            self.is_beyond(first, info.number);
        }
        sound
    }

    /// Notes something that the core profile does not have; returns true.
    fn is_beyond(&mut self, what: Option<&'static str>, frame: u64) -> bool {
        self.beyond_core = self.beyond_core.or(what.map(|what| (what, frame)));
        true
    }
}

/// Returns the number of values in each block, and its error.
fn decode_blocks(part: &UpdatePart<'_>, models: &Models) -> Vec<(u64, Option<Error>)> {
    let budget = part.budget();
    let decode = |number| -> gcodec_latent::Result<_> {
        let block = part.decode(number, &budget.with_memory_renewed())?;
        let count = block.count(&part.blocks[number].space, part.sets())?;
        Ok((count, replace_codes(part, number, block, models).err()))
    };
    let blocks = (0..part.blocks.len()).into_par_iter();
    blocks.map(|number| decode(number).unwrap_or_else(|error| (0, Some(error)))).collect()
}
