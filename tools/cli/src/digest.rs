//! `gcodec digest`: sum digests of tensors, and their comparison with those of another machine.

use crate::fail::{Failure, InFile, Outcome, Result};
use crate::fit::Prefixes;
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::learned::ModelArgs;
use crate::options::{LimitArgs, check_one_stdin};
use crate::output::{Align, Table, counted, print, printable};
use crate::pairs::{Side, Waiting};
use crate::tensors::{Any, Dump, Outline};
use gcodec::digest::SumDigest;
use gcodec::frame::TensorInfo;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Print the sum digests of tensors
///
/// The digests of the same elements are the same, whatever file, stream, machine or device they are in, and
/// those of shards add up to the tensor's. `gcodec verify --against-digests` compares them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Several files count as one. Streams that hold shards of a tensor give the digest of the whole tensor. The
sum of all is the `state` that `gcodec log` prints of a version with these tensors.

Examples:
  gcodec digest model.safetensors
  gcodec digest checkpoint/ --json > digests.json
  gcodec digest rank0.gcu rank1.gcu --step 300
  gcodec verify --against-digests digests.json downloaded/")]
pub(crate) struct Args {
    /// Files of tensors, streams, indexes of shards, or folders of checkpoints; `-` is standard input
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// The tensors to digest: of which update, on which base, by which names.
#[derive(Debug, clap::Args)]
pub(crate) struct Chosen {
    /// Step of the update, for a stream [default: the last update]
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Tensors that the stream's update applies to, if it is a delta
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    #[command(flatten)]
    prefixes: Prefixes,
}

impl Chosen {
    /// Whether nothing is chosen.
    pub(crate) fn is_all(&self) -> bool {
        self.step.is_none() && self.base.is_none() && self.prefixes.is_empty()
    }
}

/// Digests of tensors, as JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Digests {
    /// `gcodec-digests 1`.
    format: String,
    /// The sum of all.
    sum: String,
    tensors: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    /// The tensor's share in the sum: its digest times its weight.
    sum: String,
}

const FORMAT: &str = "gcodec-digests 1";

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let digests = of_files(&args.inputs, &args.chosen, &args.models, args.limits)?;
    if args.json {
        let json = serde_json::to_string_pretty(&digests).map_err(std::io::Error::from)?;
        print(format_args!("{json}\n"))?;
        return Ok(Outcome::Well);
    }
    let mut table = Table::new(&[
        ("digest", Align::Left),
        ("type", Align::Left),
        ("shape", Align::Left),
        ("tensor", Align::Left),
    ]);
    for (name, Entry { dtype, shape, sum }) in &digests.tensors {
        table.row([sum.clone(), dtype.clone(), format!("{shape:?}"), name.clone()]);
    }
    let count = counted(digests.tensors.len() as u64, "tensor");
    print(format_args!("{table}{}  sum of {count}\n", digests.sum))?;
    Ok(Outcome::Well)
}

/// Returns the digests of the tensors of all files.
pub(crate) fn of_files(
    paths: &[PathBuf],
    chosen: &Chosen,
    models: &ModelArgs,
    limits: LimitArgs,
) -> Result<Digests> {
    check_one_stdin(paths.iter().chain(&chosen.base))?;
    let base = chosen.base.as_deref().map(Dump::open_carrying).transpose()?;
    let base = chosen.prefixes.base(base.iter().flat_map(|dump| &dump.tensors));
    let (models, limits) = (models.models()?, limits.limits());
    let mut found = Found::default();
    for path in paths {
        let any = Any::open_carrying(path)?;
        if let Any::Tensors(dump) = &any
            && let Some(failure) = dump.fault()
        {
            return Err(failure.in_file(path));
        }
        let side = Side::of(&any, path, chosen.step, &base, &limits, &models)?;
        found.add(&side, &chosen.prefixes, path)?;
    }
    Ok(found.digests())
}

/// Digests of the tensors of several files.
#[derive(Default)]
struct Found {
    tensors: BTreeMap<String, (Of, SumDigest)>,
}

/// What a digest is of.
#[derive(Clone, PartialEq, Eq)]
struct Of {
    dtype: String,
    shape: Vec<u64>,
    /// Whether it is the sum of shards so far.
    is_shard: bool,
}

impl Found {
    fn add(&mut self, side: &Side<'_>, prefixes: &Prefixes, path: &Path) -> Result<()> {
        let labels = side.labels()?;
        match side {
            Side::Tensors(dump) => {
                let outlines: Vec<Outline<'_>> = dump.tensors.iter().map(Outline::from).collect();
                let names = prefixes.names(&outlines).in_file(path)?;
                let tensors = dump.tensors.par_iter().zip(&names).map(|(tensor, name)| {
                    let view = tensor.view();
                    let info = TensorInfo::new(&**name, view.dtype(), view.shape());
                    let sum = info.sum_digest(view)?;
                    Ok((info, sum))
                });
                let tensors: Vec<gcodec::Result<_>> = tensors.collect();
                for (tensor, outline) in tensors.into_iter().zip(&outlines) {
                    let (info, sum) = tensor?;
                    self.put(&info, labels.dtype(outline), sum).in_file(path)?;
                }
            }
            Side::Update { updates, number, base, .. } => {
                if !base.is_empty() {
                    updates.check_base(*number, base).in_file(path)?;
                }
                let manifest = updates.manifest(*number);
                let mut sums = Sums::default();
                updates
                    .decode_to(*number, |_| true, base, &mut |info, bytes| sums.add(info, prefixes, bytes))
                    .in_file(path)?;
                for info in manifest.tensors() {
                    let dtype = labels.dtype(&Outline::from(info));
                    let info = renamed(info, prefixes);
                    let sum = sums.all.get(&info.name).copied().unwrap_or_default();
                    self.put(&info, dtype, sum).in_file(path)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a tensor, or a shard of one.
    fn put(&mut self, info: &TensorInfo, dtype: &str, sum: SumDigest) -> Result<()> {
        let (name, shape) = info.whole();
        let of = Of { dtype: dtype.to_owned(), shape: shape.to_vec(), is_shard: info.shard.is_some() };
        match self.tensors.get_mut(name) {
            None => _ = self.tensors.insert(name.to_owned(), (of, sum)),
            Some((before, all)) if *before == of && of.is_shard => *all += sum,
            Some(_) => {
                let what = format_args!("the tensor {:?} is here twice", printable(name));
                return Err(Failure::invalid(what));
            }
        }
        Ok(())
    }

    fn digests(self) -> Digests {
        let sum: SumDigest = self.tensors.values().map(|(_, sum)| *sum).sum();
        let tensors = self.tensors.into_iter().map(|(name, (of, sum))| {
            (name, Entry { dtype: of.dtype, shape: of.shape, sum: sum.to_string() })
        });
        Digests { format: FORMAT.into(), sum: sum.to_string(), tensors: tensors.collect() }
    }
}

/// Sums of the tensors of an update, which come in pieces.
#[derive(Default)]
struct Sums {
    all: HashMap<String, SumDigest>,
    waiting: Waiting,
}

impl Sums {
    fn add(&mut self, info: &TensorInfo, prefixes: &Prefixes, bytes: &[u8]) -> Result<()> {
        let Self { all, waiting } = self;
        waiting.add(info, bytes, info.dtype, &mut |start, bytes| {
            let info = renamed(info, prefixes);
            let sum = info.sum_of_elements(start * 8 / u64::from(info.dtype.bits()), bytes)?;
            *all.entry(info.name).or_default() += sum;
            Ok(())
        })
    }
}

fn renamed(info: &TensorInfo, prefixes: &Prefixes) -> TensorInfo {
    let mut renamed = info.clone();
    renamed.name = prefixes.strip(&info.name).into_owned();
    renamed
}

impl Digests {
    /// Reads what [`run`] wrote.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let input = Input::open(path, DEFAULT_MAX_BYTES)?;
        Self::parse(&input).in_file(path)
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let digests: Self = serde_json::from_slice(bytes)
            .map_err(|e| Failure::invalid(format_args!("not the output of `gcodec digest --json`: {e}")))?;
        if digests.format != FORMAT {
            let format = printable(&digests.format);
            return Err(Failure::invalid(format_args!("digests of the format {format:?}, not {FORMAT:?}")));
        }
        // A file that lost a line must not pass for one of fewer tensors.
        let sums = digests.tensors.iter().map(|(name, entry)| {
            let sum = entry.sum.parse::<SumDigest>();
            sum.map_err(|_| Failure::invalid(format_args!("{:?} is no digest", entry.sum)).about(name))
        });
        let sum: SumDigest = sums.sum::<Result<_>>()?;
        match digests.sum.parse().ok() == Some(sum) {
            true => Ok(digests),
            false => Err(Failure::invalid("the sum is not that of the tensors' digests")),
        }
    }

    /// Returns the differences of `found` from these, a line for each; empty if there are none.
    pub(crate) fn differences(&self, found: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, expected) in &self.tensors {
            let quoted = printable(name);
            match found.tensors.get(name) {
                None => lines.push(format!("{quoted}: missing")),
                Some(here) if here == expected => {}
                Some(here) if (&here.dtype, &here.shape) != (&expected.dtype, &expected.shape) => {
                    lines.push(format!(
                        "{quoted}: {} {:?} in place of {} {:?}",
                        printable(&here.dtype),
                        here.shape,
                        printable(&expected.dtype),
                        expected.shape
                    ));
                }
                Some(_) => lines.push(format!("{quoted}: other elements")),
            }
        }
        let extra = found.tensors.keys().filter(|name| !self.tensors.contains_key(*name));
        lines.extend(extra.map(|name| format!("{}: not in the digests", printable(name))));
        lines
    }

    /// Returns the number of tensors.
    pub(crate) fn len(&self) -> usize {
        self.tensors.len()
    }
}
