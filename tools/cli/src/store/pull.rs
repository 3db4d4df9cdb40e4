//! `gcodec pull`: writes a version of a store to a file.

use super::{Held, InStore, Place, VERSION_KEY, held, stated};
use crate::fail::{Failure, InFile, InOutput, Outcome, Result};
use crate::fit::{Prefixes, check_unique};
use crate::input::is_standard;
use crate::options::check_output_is_new;
use crate::output::{Output, counted, human_bytes, note};
use crate::tensors::versions::{self, Chain, Start};
use crate::tensors::{self, Dump, Labels, Outline};
use gcodec_store::{Options, Read, Reading, Store};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Write a version of a store, or of slime and miles, to a file
///
/// The file appears only if every digest is correct. Temporary files are beside it. STORE may also be a
/// folder with the versions of slime and miles (weight_vNNNNNN): every checksum is then compared.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --base, only the changes since that version are downloaded, or an anchor if that is smaller.
With --strip-prefix, tensors have the names that the base has, or else names without the prefix.

Examples:
  gcodec pull s3://bucket/runs/7 -o latest.safetensors
  gcodec pull runs/7 -o new.safetensors --base old.safetensors
  gcodec pull runs/7 -o head.safetensors --version 12 --tensor lm_head.weight
  gcodec pull updates -o new.safetensors --base old.safetensors")]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// File for the tensors: .safetensors, .npz or .npy; `-` is standard output
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Version [default: the latest]
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    /// A version that an earlier pull wrote
    #[arg(long, value_name = "FILE", conflicts_with = "tensor")]
    base: Option<PathBuf>,
    /// Only this tensor, without downloading the others
    #[arg(long, value_name = "NAME")]
    tensor: Option<String>,
    #[command(flatten)]
    prefixes: Prefixes,
    /// Folder for downloaded objects: a pull that was stopped continues from it
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    tensors::check_output(&args.output)?;
    check_output_is_new(&args.output, args.base.iter())?;
    if let Some(newest) = args.place.newest()? {
        return args.pull_of_run(newest, quiet);
    }
    let options = Options::default().with_cache(args.cache.clone());
    let store = args.place.open_large("pulling", options, folder_of(&args.output))?;
    if let Some(name) = &args.tensor {
        let own = args.own_name(&store, name)?;
        let tensor = store.tensor(args.version, &own).in_store(&args.place)?;
        let labels = args.labels(&store, &own)?.renamed(|name| args.prefixes.strip(name).into_owned());
        let metadata = labels.entry().into_iter().collect();
        tensors::write(&args.output, &[(&args.prefixes.strip(&own), tensor.view())], &metadata)?;
        return Ok(Outcome::Well);
    }
    let held = |path| held(&args.place, &store, &args.prefixes, Dump::open_carrying(path)?).in_file(path);
    let (base, own) = match args.base.as_deref().map(held).transpose()? {
        Some(Held { replica, own }) => (Some(replica), own),
        None => (None, HashMap::new()),
    };
    let reading = store.read(base.as_ref(), args.version).in_store(&args.place)?;
    let name = |of: &str| own.get(of).cloned().unwrap_or_else(|| args.prefixes.strip(of).into_owned());
    let names: Vec<String> = reading.tensors().iter().map(|info| name(&info.name)).collect();
    check_unique(names.iter().map(String::as_str))?;
    let mut metadata = BTreeMap::from([(VERSION_KEY.to_owned(), reading.version().to_string())]);
    let labels = Labels::of(reading.meta()).renamed(name);
    metadata.extend(labels.entry());
    let read = args.to_output(|output| args.write(&reading, &names, &metadata, output))?;
    // The next pull needs other objects.
    if let Some(Err(e)) = args.cache.as_deref().map(std::fs::remove_dir_all)
        && e.kind() != std::io::ErrorKind::NotFound
    {
        return Err(Failure::from(e).about("the cache cannot be emptied"));
    }
    if !quiet {
        note(format_args!(
            "version {}: {} in {}, {} of {} tensors changed",
            reading.version(),
            human_bytes(read.bytes),
            counted(read.steps as u64, "step"),
            read.touched,
            names.len()
        ));
    }
    Ok(Outcome::Well)
}

/// Reason why a version was not written.
enum Unwritten {
    Unread(gcodec_store::Error),
    Refused(Failure),
}

impl From<gcodec_store::Error> for Unwritten {
    fn from(error: gcodec_store::Error) -> Self {
        Self::Unread(error)
    }
}

/// Whether an output is a file, which appears when it is complete.
fn is_file(output: &Path) -> bool {
    !is_standard(output) && std::fs::metadata(output).map_or(true, |at| at.is_file())
}

/// Returns the folder of an output that is a file.
fn folder_of(output: &Path) -> Option<PathBuf> {
    let folder = output.parent().filter(|_| is_file(output))?;
    Some(if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_owned() })
}

/// Most records that are read for labels.
const FEW: u64 = 64;

impl Args {
    /// Writes the tensors of a version to a file, under these names.
    fn write(
        &self,
        reading: &Reading<'_>,
        names: &[String],
        metadata: &BTreeMap<String, String>,
        output: &Path,
    ) -> Result<Read> {
        let infos = reading.tensors().iter().map(Outline::from);
        let outlines: Vec<_> = infos.zip(names).map(|(info, name)| Outline { name, ..info }).collect();
        let mut read = None;
        tensors::write_from(output, &outlines, metadata, None, &mut |sink| {
            let mut rest = names.iter();
            let done = reading.for_each(|_, tensor| {
                let name = rest.next().map_or("", |name| name);
                sink(name, tensor.data()).map_err(Unwritten::Refused)
            });
            read = Some(done.or_else(|unwritten| match unwritten {
                Unwritten::Unread(e) => Err(e).in_store(&self.place),
                Unwritten::Refused(failure) => Err(failure),
            })?);
            Ok(())
        })?;
        read.ok_or_else(|| Failure::usage("the output takes no tensors"))
    }

    /// Calls `write` with the path of the output, or with that of a file for a pipe, which cannot take back
    /// what it got: it gets all of a file that is complete.
    fn to_output<T>(&self, write: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        if is_file(&self.output) {
            return write(&self.output);
        }
        let extension = self.output.extension().filter(|_| !is_standard(&self.output));
        let extension = extension.and_then(OsStr::to_str).unwrap_or("safetensors");
        let folder = tempfile::tempdir()?;
        let whole = folder.path().join(format!("whole.{extension}"));
        let written = write(&whole)?;
        let mut output = Output::create(&self.output)?;
        let copied = std::io::copy(&mut File::open(&whole)?, &mut output);
        copied.and_then(|_| output.finish()).in_output(&self.output)?;
        Ok(written)
    }

    /// Writes a version of slime and miles.
    fn pull_of_run(&self, newest: u64, quiet: bool) -> Result<Outcome> {
        let (run, version) = (Path::new(&self.place.store), self.version.unwrap_or(newest));
        if !self.prefixes.is_empty() || self.cache.is_some() {
            return Err(Failure::usage("--strip-prefix and --cache are for stores")).in_file(run);
        }
        let base = self
            .base
            .as_deref()
            .map(|path| Dump::open_carrying(path).and_then(|dump| Ok((stated(&dump)?, dump))));
        let (held, base) = base.transpose()?.unzip();
        let chain = Chain::to(&run.join(versions::folder_of(version)), held)?;
        let base = base.filter(|_| matches!(chain.start, Start::Version(at) if Some(at) == held));
        let mut dump = chain.begin(base).in_file(run)?;
        if let Some(name) = &self.tensor {
            dump.tensors.retain(|tensor| tensor.name() == name);
            if dump.tensors.is_empty() {
                return Err(Failure::usage(format_args!("version {version} has no tensor {name:?}")))
                    .in_file(run);
            }
        }
        let mut metadata = BTreeMap::from([(VERSION_KEY.to_owned(), version.to_string())]);
        metadata.extend(Labels::of(&dump.metadata).entry());
        let outlines: Vec<_> = dump.tensors.iter().map(Outline::from).collect();
        let source: &mut tensors::Source<'_> = &mut |sink| {
            for tensors in dump.tensors.chunks(rayon::current_num_threads()) {
                let found: Vec<_> = tensors.par_iter().map(|tensor| chain.bytes_of(tensor)).collect();
                for (tensor, bytes) in tensors.iter().zip(found) {
                    sink(tensor.name(), &bytes?)?;
                }
            }
            Ok(())
        };
        self.to_output(|output| tensors::write_from(output, &outlines, &metadata, Some(run), source))?;
        if !quiet {
            let (bytes, steps) = (human_bytes(chain.bytes()), counted(chain.steps.len() as u64, "step"));
            note(format_args!(
                "version {version}: {bytes} in {steps} of differences, {}",
                counted(outlines.len() as u64, "tensor")
            ));
        }
        Ok(Outcome::Well)
    }

    /// Returns the name of a tensor in the store, which it may have with or without a prefix.
    fn own_name(&self, store: &Store, name: &str) -> Result<String> {
        if self.prefixes.is_empty() {
            return Ok(name.to_owned());
        }
        let version = self.version.map_or_else(|| store.latest(), Ok).in_store(&self.place)?;
        let names = store.names(version).in_store(&self.place)?;
        let bare = self.prefixes.strip(name);
        Ok(names.into_iter().find(|own| self.prefixes.strip(own) == bare).unwrap_or_else(|| name.to_owned()))
    }

    /// Returns the label of an opaque tensor.
    fn labels(&self, store: &Store, name: &str) -> Result<Labels> {
        let latest = store.latest().in_store(&self.place)?;
        // Far back, the labels of a later version must do: each record is a download.
        let behind = latest.saturating_sub(self.version.unwrap_or(latest)).min(FEW);
        let versions = store.log(behind.saturating_add(1)).in_store(&self.place)?;
        let labels = versions.last().map(|version| Labels::of(&version.meta)).unwrap_or_default();
        Ok(labels.only(name))
    }
}
