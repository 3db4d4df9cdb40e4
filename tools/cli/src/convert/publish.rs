//! `gcodec convert --to`: writes versions as slime and miles do, which SGLang's `/pull_weights` reads.

use super::Args;
use crate::fail::{Code, Failure, InFile, InOutput, Outcome, Result};
use crate::files;
use crate::fit;
use crate::input::Input;
use crate::options::check_one_stdin;
use crate::order;
use crate::output::{counted, human_bytes, note};
use crate::stream::{Base, Updates};
use crate::tensors::versions::{self, Chain, Checksum, Difference, Encoding, Start};
use crate::tensors::{self, Any, Dump, Labels, NamedTensor, Outline, folder};
use gcodec::Limits;
use gcodec::tensor::{Dtype, TensorView};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Form of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Form {
    /// The bytes of the version before and the new ones, exclusive or
    Xor,
    /// The positions of the bytes that change, and the new ones: larger, and can be applied twice
    Overwrite,
    /// A stream of one delta for each tensor, for receivers that were taught this encoding
    Gcodec,
    /// A checkpoint, with the other files of the folder --base
    Whole,
}

impl Form {
    /// Returns the encoding of differences; `None` if the version is whole.
    fn encoding(self) -> Option<Encoding> {
        match self {
            Self::Xor => Some(Encoding::Xor),
            Self::Overwrite => Some(Encoding::Overwrite),
            Self::Gcodec => Some(Encoding::Gcodec),
            Self::Whole => None,
        }
    }
}

/// File of the tensors of a whole version.
const MODEL: &str = "model.safetensors";
/// File of the differences, numbered as slime numbers those of its ranks.
const SHARD: &str = "model-00000-of-00001.safetensors";

/// Runs the command.
pub(super) fn run(args: &Args, form: Form, quiet: bool) -> Result<Outcome> {
    check_one_stdin(args.inputs.iter().chain(&args.base))?;
    let mut run = Run::open(args, form)?;
    for path in &order::arranged(&args.inputs) {
        match Any::open_carrying(path)? {
            Any::Stream(input) => run.add_stream(&input).in_file(path)?,
            Any::Tensors(dump) => {
                dump.fault().map_or(Ok(()), Err).in_file(path)?;
                run.add(dump.tensors, &Labels::of(&dump.metadata)).in_file(path)?;
            }
        }
    }
    if !quiet {
        let (versions, bytes) = (counted(run.written, "version"), human_bytes(run.bytes));
        let newest = versions::folder_of(run.newest);
        note(format_args!("{}: {versions} in {bytes}, the newest is {newest}", args.output.display()));
    }
    Ok(Outcome::Well)
}

/// The folder of the versions, and the weights of the newest.
struct Run {
    folder: PathBuf,
    form: Form,
    checksum: Checksum,
    newest: u64,
    /// `None` if no version is whole yet, and none is needed.
    weights: Option<Vec<NamedTensor>>,
    metadata: BTreeMap<String, String>,
    /// Files of a checkpoint beside its tensors.
    others: Vec<PathBuf>,
    written: u64,
    bytes: u64,
}

impl Run {
    fn open(args: &Args, form: Form) -> Result<Self> {
        let folder = args.output.clone();
        let newest = if files::exists(&folder) { versions::newest(&folder)? } else { None };
        let chain =
            newest.map(|newest| Chain::to(&folder.join(versions::folder_of(newest)), None)).transpose()?;
        let base = |needed| match &args.base {
            Some(path) if needed => Dump::open_carrying(path).map(Some),
            _ => Ok(None),
        };
        let dump = match &chain {
            None => base(true)?,
            Some(chain) => Some(chain.resolve(base(matches!(chain.start, Start::Version(0)))?)?),
        };
        if let Some(fault) = dump.as_ref().and_then(Dump::fault) {
            return Err(fault);
        }
        if dump.is_none() && form != Form::Whole {
            return Err(Failure::usage(
                "differences need the version before: give --base, which is version 0",
            ));
        }
        let others = match &args.base {
            Some(base) if form == Form::Whole && files::is_folder(base) => folder::others_in(base)?,
            _ => Vec::new(),
        };
        let metadata = dump.as_ref().map(|dump| dump.metadata.clone()).unwrap_or_default();
        let weights = dump.map(|dump| dump.tensors);
        let (newest, checksum) = (newest.unwrap_or(0), args.checksum);
        Ok(Self { folder, form, checksum, newest, weights, metadata, others, written: 0, bytes: 0 })
    }

    /// Adds a version for each update of a stream.
    fn add_stream(&mut self, input: &Input) -> Result<()> {
        let updates = Updates::open(input, &Limits::default())?;
        let mut labels = BTreeMap::new();
        for number in 0..updates.len() {
            labels.extend(updates.metadata(number)?);
            let views = self.weights.iter().flatten().map(|t| (t.name().to_owned(), t.view()));
            let base: Base<'_> = views.collect();
            let tensors = updates.decode(number, |_| true, &base)?;
            self.add(tensors, &Labels::of(&labels))?;
        }
        Ok(())
    }

    /// Adds the next version.
    fn add(&mut self, tensors: Vec<NamedTensor>, labels: &Labels) -> Result<()> {
        let version = self.newest + 1;
        if let (Some(old), true) = (&self.weights, self.form != Form::Whole) {
            let old: Vec<Outline<'_>> = old.iter().map(Outline::from).collect();
            let new: Vec<Outline<'_>> = tensors.iter().map(Outline::from).collect();
            let lacks = fit::differences(&old, &new, "it");
            let before = versions::folder_of(self.newest);
            if let Some(what) = lacks.or_else(|| fit::differences(&new, &old, &before)) {
                return Err(Failure::usage(format_args!("another model than that of {before}: {what}")));
            }
        }
        let made = Unfinished::create(&self.folder, version)?;
        match (self.form.encoding(), &self.weights) {
            (None, _) => self.write_whole(&made.0, &tensors, labels),
            (Some(encoding), Some(old)) => self.write_differences(&made.0, encoding, old, &tensors),
            (_, None) => Err(Failure::usage("differences need the version before")),
        }?;
        for entry in files::entries(&made.0)? {
            self.bytes += files::len(&entry).unwrap_or(0);
        }
        made.finish(&self.folder.join(versions::folder_of(version)))?;
        (self.newest, self.weights) = (version, Some(tensors));
        self.written += 1;
        Ok(())
    }

    fn write_differences(
        &self,
        folder: &Path,
        encoding: Encoding,
        old: &[NamedTensor],
        new: &[NamedTensor],
    ) -> Result<()> {
        let by_name: HashMap<&str, &NamedTensor> = old.iter().map(|t| (t.name(), t)).collect();
        let changed = |new: &NamedTensor| -> Option<Result<(String, Vec<u8>, String)>> {
            let old = by_name.get(new.name())?;
            let about = |failure: Failure| failure.about(format_args!("tensor {:?}", new.name()));
            let difference = match encoding.difference(old, new) {
                Ok(difference) => difference?,
                Err(failure) => return Some(Err(about(failure))),
            };
            // The reader needs the number of bytes in the frame, which zstd's streams leave out.
            let packed = zstd::bulk::compress(&difference, LEVEL).map_err(|e| about(e.into()));
            Some(packed.map(|packed| (new.name().to_owned(), packed, self.checksum.digits(&new.bytes()))))
        };
        let mut changed = new.par_iter().filter_map(changed).collect::<Result<Vec<_>>>()?;
        changed.sort();
        let shapes: Vec<[u64; 1]> = changed.iter().map(|(_, packed, _)| [packed.len() as u64]).collect();
        let views = changed.iter().zip(&shapes).map(|((name, packed, _), shape)| {
            Ok((name.as_str(), TensorView::new(Dtype::U8, shape, packed)?))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let checksums = changed.iter().map(|(name, _, checksum)| (name.clone(), checksum.clone())).collect();
        if !changed.is_empty() {
            tensors::write(&folder.join(SHARD), &views, &checksums)?;
        }
        let (version, base, checksum) = (self.newest + 1, self.newest, self.checksum);
        let said = Difference { version, base, encoding, checksum }.said();
        let metadata = said.into_iter().map(|(key, value)| (key, Value::from(value))).collect();
        write_index(folder, metadata, changed.iter().map(|(name, ..)| (name.as_str(), SHARD)))
    }

    fn write_whole(&self, folder: &Path, new: &[NamedTensor], labels: &Labels) -> Result<()> {
        for file in &self.others {
            let name = file.file_name().unwrap_or_default();
            std::fs::copy(file, folder.join(name)).in_file(file)?;
        }
        let views: Vec<_> = new.iter().map(|t| (t.name(), t.view())).collect();
        // Loaders of models ask for the format.
        let mut metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let labels = if labels.is_empty() { Labels::of(&self.metadata).entry() } else { labels.entry() };
        metadata.extend(labels);
        tensors::write(&folder.join(MODEL), &views, &metadata)?;
        let total: u64 = new.iter().map(|t| Outline::from(t).bytes()).sum();
        let metadata = BTreeMap::from([("total_size".to_owned(), Value::from(total))]);
        write_index(folder, metadata, new.iter().map(|t| (t.name(), MODEL)))
    }
}

/// zstd level: that of slime and miles.
const LEVEL: i32 = 1;

fn write_index<'a>(
    folder: &Path,
    metadata: BTreeMap<String, Value>,
    files: impl Iterator<Item = (&'a str, &'static str)>,
) -> Result<()> {
    let map: BTreeMap<&str, &str> = files.collect();
    let path = folder.join(versions::INDEX);
    let text = json!({ "metadata": metadata, "weight_map": map }).to_string();
    std::fs::write(&path, text).in_output(&path)
}

/// A folder that is not in its place yet; it is removed if it does not get there.
struct Unfinished(PathBuf);

impl Unfinished {
    fn create(run: &Path, version: u64) -> Result<Self> {
        // Its name is that of no version: readers do not take it for one.
        std::fs::create_dir_all(run).in_output(run)?;
        let path = run.join(format!(".{}-{}", versions::folder_of(version), std::process::id()));
        std::fs::create_dir(&path).in_output(&path)?;
        Ok(Self(path))
    }

    /// Moves it to its place, where there must be nothing.
    fn finish(self, place: &Path) -> Result<()> {
        if files::exists(place) {
            return Err(Failure::new(Code::Io, "another program wrote this version first")).in_output(place);
        }
        std::fs::rename(&self.0, place).in_output(place)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Nothing is there after it was moved.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
