//! The commands of stores of versions: `publish`, `pull`, `log`, `fold` and `gc`.

mod fold;
mod gc;
mod log;
mod publish;
mod pull;

use crate::fail::{Code, Failure, Outcome, Result};
use crate::features;
use crate::fit::Prefixes;
use crate::progress::Progress;
use crate::tensors::versions;
use crate::tensors::{Dump, NamedTensor};
use gcodec_store::{Error, Options, Replica, Store, Tensor};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Key of a file's metadata with the version that it contains.
const VERSION_KEY: &str = "gcodec-version";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Publish(publish::Args),
    Pull(pull::Args),
    Log(log::Args),
    Fold(fold::Args),
    Gc(gc::Args),
}

/// Runs one of the commands.
pub(crate) fn run(command: &Command, quiet: bool) -> Result<Outcome> {
    match command {
        Command::Publish(args) => publish::run(args, quiet),
        Command::Pull(args) => pull::run(args, quiet),
        Command::Log(args) => log::run(args),
        Command::Fold(args) => fold::run(args, quiet),
        Command::Gc(args) => gc::run(args, quiet),
    }
}

/// Where versions are.
#[derive(Debug, Clone, clap::Args)]
struct Place {
    /// Store: a folder, s3://BUCKET/PREFIX, gs://, az:// or http://; AWS_*, GOOGLE_* and AZURE_* configure it
    #[cfg_attr(not(feature = "cloud"), doc = "(this build: folders only)")]
    #[arg(value_name = "STORE")]
    store: String,
    /// Objects that are transferred at the same time
    #[arg(long, value_name = "N", default_value_t = 8)]
    transfers: u16,
    /// MiB of objects on this machine at the same time, unless one object is larger
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    memory: u64,
}

impl Place {
    /// Returns the newest version of the folder, if it has versions of slime and miles instead of a store.
    fn newest(&self) -> Result<Option<u64>> {
        let folder = Path::new(&self.store);
        if folder.is_dir() { versions::published(folder) } else { Ok(None) }
    }

    /// Opens the store; a progress bar shows its transfers.
    fn open(&self, what: &'static str, options: Options) -> Result<Store> {
        if self.newest()?.is_some() {
            let what = "the folder has versions of slime and miles, of which `gcodec pull`, `verify` and `audit` \
                        read all, and other commands each; `gcodec convert --to` adds versions";
            return Err(Failure::usage(what).about(&self.store));
        }
        let progress = Progress::new(0, what, true);
        let show = move |done, total| {
            // The amount becomes known on the way.
            progress.0.set_length(total);
            progress.set(done);
        };
        let options = options
            .with_transfers(self.transfers.max(1).into())
            .with_memory(self.memory.saturating_mul(1 << 20))
            .with_progress(Some(Arc::new(show)));
        Store::open(&self.store, options).in_store(self)
    }

    /// Opens the store for a command that holds weights: temporary files in `scratch` have them, or in the
    /// folder of the system.
    fn open_large(&self, what: &'static str, options: Options, scratch: Option<PathBuf>) -> Result<Store> {
        self.open(what, options.with_scratch(Some(scratch.unwrap_or_else(std::env::temp_dir))))
    }

    /// Returns the folder of the store, if it is in one: a command that writes there has room there.
    fn folder(&self) -> Result<Option<PathBuf>> {
        Store::folder_of(&self.store).in_store(self)
    }
}

/// A version that a file holds, and the file's names of the store's tensors where they may differ.
struct Held {
    replica: Replica,
    own: HashMap<String, String>,
}

/// Reads the version that a file states in its metadata.
fn held(place: &Place, store: &Store, prefixes: &Prefixes, mut dump: Dump) -> Result<Held> {
    let version = stated(&dump)?;
    let own = match prefixes.is_empty() {
        true => HashMap::new(),
        false => prefixes.counterparts(&store.names(version).in_store(place)?, &mut dump)?,
    };
    let tensors = dump.tensors.into_iter().map(shared).collect::<gcodec::Result<Vec<_>>>()?;
    Ok(Held { replica: store.hold(version, tensors).in_store(place)?, own })
}

/// Returns a tensor of a file, which stays mapped.
fn shared(tensor: NamedTensor) -> gcodec::Result<(String, Tensor)> {
    struct Elements(NamedTensor);

    impl AsRef<[u8]> for Elements {
        fn as_ref(&self) -> &[u8] {
            self.0.view().data()
        }
    }

    let (name, view) = (tensor.name().to_owned(), tensor.view());
    let (dtype, shape) = (view.dtype(), view.shape().to_vec());
    Ok((name, Tensor::new(dtype, shape, Elements(tensor))?))
}

/// Returns the version that a file states.
fn stated(dump: &Dump) -> Result<u64> {
    let stated = dump.metadata.get(VERSION_KEY).and_then(|text| text.parse().ok());
    stated.ok_or_else(|| {
        Failure::usage(format_args!(
            "the file does not state its version ({VERSION_KEY}); `gcodec pull` writes it"
        ))
    })
}

/// Adds the store's location to an error.
trait InStore<T> {
    /// Turns the error into a failure that begins with the place of the store.
    fn in_store(self, place: &Place) -> Result<T>;
}

impl<T> InStore<T> for std::result::Result<T, Error> {
    fn in_store(self, place: &Place) -> Result<T> {
        self.map_err(|e| {
            if let Error::Backend { url, .. } = &e {
                return features::missing("cloud", url);
            }
            let code = match e.fault() {
                "caller" => Code::Usage,
                "limits" => Code::Limit,
                "store" | "newer writer" => Code::Invalid,
                _ => Code::Io,
            };
            let message = e.to_string();
            // An error about the location itself begins with it.
            let failure = Failure::new(code, &message);
            if message.starts_with(&place.store) { failure } else { failure.about(&place.store) }
        })
    }
}
