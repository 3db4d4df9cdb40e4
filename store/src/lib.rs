//! A store of versions of model weights, in a folder or an object store (S3, GCS, Azure, HTTP for reading).
//!
//! A trainer publishes a version after each step. A version is a delta against the one before, and at a
//! cadence also an anchor, the whole weights. Receivers pull from what they hold.
//!
//! ```
//! use std::collections::BTreeMap;
//! use gcodec::TensorBuf;
//! use gcodec_store::{Options, Policy, Publisher, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let url = folder.path().to_str().ok_or("a path in UTF-8")?;
//! let store = Store::open(url, Options::default())?; // or s3://bucket/run
//! let mut publisher = Publisher::new(&store, Policy::default())?;
//! for step in 0..3 {
//!     let weights = TensorBuf::from_f32(vec![2], &[0.5, step as f32])?;
//!     publisher.publish(&[("w", weights.view())], BTreeMap::new())?;
//! }
//! let held = store.pull(None, Some(1))?; // a receiver that falls behind
//! let staged = store.stage(Some(&held), None)?; // decodes beside what it holds
//! let verified = staged.verify()?; // checks every digest
//! assert_eq!(verified.touched().map(|(name, _)| name).collect::<Vec<_>>(), ["w"]);
//! let held = verified.commit(Some(held))?;
//! assert_eq!(held.version(), 3);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! - A version exists when its record exists, which one conditional write creates. Readers see a version
//!   whole or not at all, and of two publishers one gets [`Error::Conflict`].
//! - Objects are never changed. Every object has its size and BLAKE3 digest in the record, and every version
//!   the digest of all its tensors: nothing is committed before it matches.
//! - The content of a store may come from a stranger: it returns typed errors, in bounded memory. Digests
//!   detect damage; who may write to the store decides what its versions contain.
//!
//! # Blocking
//!
//! All calls block. Call them from `spawn_blocking` in an asynchronous program.

#![deny(unsafe_code)]

mod difference;
mod error;
mod fold;
mod gc;
mod layout;
mod options;
mod plan;
mod publish;
mod read;
mod remote;
mod scratch;
mod slice;
mod stage;
mod tensor;
mod weights;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme};
use url::Url;

pub use error::{Error, Result};
pub use fold::Folded;
pub use gc::{Collected, Collection};
pub use object_store;
pub use options::{Options, Policy, Progress};
pub use publish::{Published, Publisher};
pub use read::{Read, Reading};
pub use stage::{Poisoned, Reanchor, Sink, Staged, Verified};
pub use tensor::Tensor;
pub use weights::Replica;

use layout::{Hint, LeaseText, ModelText, Object, Probe, Record, Settings};
use remote::Remote;
use weights::Model;

/// Time for which `gc` keeps what readers and publishers at work may need, unless a store says otherwise.
pub const GRACE: Duration = Duration::from_secs(3600);

/// A store of versions.
pub struct Store {
    remote: Remote,
    grace: Duration,
    /// Whether conditional writes are known to work: of a backend that has them always, or by a trial.
    is_conditional: AtomicBool,
    /// The table of tensors that was read last.
    model: Mutex<Option<Arc<Model>>>,
}

/// A version, as [`Store::log`] lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Version {
    /// Its number.
    pub version: u64,
    /// Milliseconds since 1970, by the publisher's clock.
    pub created_ms: u64,
    /// Keys and values of the publisher.
    pub meta: BTreeMap<String, String>,
    /// Bytes of the weights.
    pub bytes: u64,
    /// Bytes of the delta, if the version has one.
    pub delta_bytes: Option<u64>,
    /// Codec of the delta: `delta`, or a longer form such as `delta:values=overwrite`. What a store states.
    pub codec: Option<String>,
    /// Bytes of the anchor, if the version is one.
    pub anchor_bytes: Option<u64>,
    /// Tensors that differ from the version before.
    pub touched: u64,
    /// Digest of all weights: the sum of their digests (spec, section 6.1), in hexadecimal digits.
    pub state: String,
}

/// Where a store is.
enum Address {
    Folder(PathBuf),
    Url(Url),
}

/// Reads the address of a store.
fn parsed(address: &str) -> Result<Address> {
    let url = match Url::parse(address) {
        // One letter is a drive.
        Ok(url) if url.scheme().len() > 1 => url,
        _ => return Ok(Address::Folder(PathBuf::from(address))),
    };
    if url.scheme() != "file" {
        return Ok(Address::Url(url));
    }
    let wrong = |()| Error::Address { url: address.to_owned(), what: "no path of this machine".into() };
    url.to_file_path().map(Address::Folder).map_err(wrong)
}

impl Store {
    /// Opens a store: a path, `file://`, `s3://`, `gs://`, `az://`, `http://` or `https://`.
    ///
    /// The environment's variables `AWS_*`, `GOOGLE_*` and `AZURE_*` configure the cloud backends, as the
    /// crate `object_store` documents them. Opening does not read or write.
    ///
    /// # Errors
    /// [`Error::Address`] for a wrong address, [`Error::Backend`] for one whose backend this build lacks.
    pub fn open(address: &str, options: Options) -> Result<Self> {
        let wrong = |what: String| Error::Address { url: address.to_owned(), what };
        let url = match parsed(address)? {
            Address::Folder(folder) => return Self::folder(&folder, options),
            Address::Url(url) => url,
        };
        let (scheme, _) = ObjectStoreScheme::parse(&url).map_err(|e| wrong(e.to_string()))?;
        let feature = match scheme {
            ObjectStoreScheme::AmazonS3 if !cfg!(feature = "aws") => "aws",
            ObjectStoreScheme::GoogleCloudStorage if !cfg!(feature = "gcp") => "gcp",
            ObjectStoreScheme::MicrosoftAzure if !cfg!(feature = "azure") => "azure",
            ObjectStoreScheme::Http if !cfg!(feature = "http") => "http",
            _ => "",
        };
        if !feature.is_empty() {
            return Err(Error::Backend { url: address.to_owned(), feature });
        }
        let known = |name: &str| ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| name.starts_with(prefix));
        let mut settings: Vec<(String, String)> =
            std::env::vars().filter(|(name, _)| known(name)).map(|(k, v)| (k.to_lowercase(), v)).collect();
        if url.scheme() == "http" {
            settings.push(("allow_http".into(), "true".into()));
        }
        // An error says that the program chose another provider before.
        #[cfg(feature = "tls")]
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parsed = object_store::parse_url_opts(&url, settings).map_err(|e| wrong(e.to_string()))?;
        let store = Self::with_objects(Arc::from(parsed.0), parsed.1, options)?;
        // Many services speak S3's protocol; the others have one server each.
        Ok(store.with_conditions(!matches!(scheme, ObjectStoreScheme::AmazonS3)))
    }

    /// Returns the folder that an address means, if it is one of this machine.
    ///
    /// # Errors
    /// [`Error::Address`] for a `file://` that is no path of this machine.
    pub fn folder_of(address: &str) -> Result<Option<PathBuf>> {
        Ok(match parsed(address)? {
            Address::Folder(folder) => Some(folder),
            Address::Url(_) => None,
        })
    }

    /// Opens a store in a folder, which is created if it is missing.
    fn folder(folder: &std::path::Path, options: Options) -> Result<Self> {
        let what = || folder.display().to_string();
        std::fs::create_dir_all(folder).map_err(|source| Error::Io { what: what(), source })?;
        let objects = LocalFileSystem::new_with_prefix(folder)
            .map_err(|e| Error::Address { url: what(), what: e.to_string() })?;
        let store = Self::with_objects(Arc::new(objects.with_fsync(true)), Path::default(), options)?;
        let mut store = store.with_conditions(true);
        store.remote.folder = Some(folder.to_owned());
        Ok(store)
    }

    /// Opens a store under a prefix of any object store.
    ///
    /// # Errors
    /// [`Error::Io`] if the system starts no runtime.
    pub fn with_objects(objects: Arc<dyn ObjectStore>, prefix: Path, options: Options) -> Result<Self> {
        let remote = Remote::new(objects, prefix, options)?;
        let is_conditional = AtomicBool::new(false);
        Ok(Self { remote, grace: GRACE, is_conditional, model: Mutex::default() })
    }

    /// Sets the grace period of a store that does not exist yet: the time for which [`Store::gc`] keeps what
    /// readers and publishers at work may need. Zero: it never runs beside them. Default: [`GRACE`].
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Fails if the store is in a folder whose file system has no hard links, by which a version appears
    /// under its name unless another has it.
    fn check_links(&self) -> Result<()> {
        let folder = self.remote.folder.as_deref();
        folder.map_or(Ok(()), |folder| check_links(folder, |a, b| std::fs::hard_link(a, b)))
    }

    fn with_conditions(mut self, known: bool) -> Self {
        self.is_conditional = AtomicBool::new(known);
        self
    }

    /// Fails if the server ignores the condition of a write, as some that speak S3's protocol do.
    fn check_conditions(&self) -> Result<()> {
        if self.is_conditional.load(Ordering::Relaxed) {
            return Ok(());
        }
        // The first write to a new store succeeds. The second one is refused, and so is each later one.
        for _ in 0..2 {
            let probe = Probe { nonce: publish::nonce() };
            if !self.remote.create(layout::PROBE, &probe).map_err(unconditional)? {
                self.is_conditional.store(true, Ordering::Relaxed);
                return Ok(());
            }
        }
        Err(Error::Unconditional { path: layout::PROBE.to_owned() })
    }

    /// Returns the number of the latest version.
    ///
    /// # Errors
    /// [`Error::Empty`] if there is none.
    pub fn latest(&self) -> Result<u64> {
        self.latest_from(0)
    }

    /// Returns the number of the latest version, which is at least `known`.
    fn latest_from(&self, known: u64) -> Result<u64> {
        let exists = |version| Ok::<_, Error>(self.remote.written(&layout::version_path(version))?.is_some());
        // The hint may be late, missing, or wrong: it only says where to begin.
        let hint = self.remote.text::<Hint>(layout::HINT).ok().flatten().map_or(0, |hint| hint.version);
        let (mut low, mut stride) = (known, 1u64);
        if hint > known && exists(hint)? {
            low = hint;
        }
        // Versions have no gaps: gallop, then halve.
        let mut high = low.saturating_add(1);
        while exists(high)? {
            (low, stride) = (high, stride.saturating_mul(2));
            high = low.saturating_add(stride);
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if exists(middle)? {
                low = middle;
            } else {
                high = middle;
            }
        }
        if low == 0 { Err(Error::Empty) } else { Ok(low) }
    }

    /// Returns the latest versions, newest first, at most `count`.
    ///
    /// # Errors
    /// [`Error::Empty`] if there is none; [`Error::Corrupt`] if a record is.
    pub fn log(&self, count: u64) -> Result<Vec<Version>> {
        let latest = self.latest()?;
        let numbers: Vec<u64> = (latest.saturating_sub(count) + 1..=latest).rev().collect();
        let names: Vec<String> = numbers.iter().map(|v| layout::version_path(*v)).collect();
        let records = self.remote.texts::<Record>(&names)?;
        let checked = numbers.iter().zip(&names).zip(records).map(|((number, name), record)| {
            let record = record.ok_or_else(|| Error::Missing { path: name.clone() })?.check(name, *number)?;
            Ok(Version {
                version: record.version,
                created_ms: record.created_ms,
                bytes: record.bytes,
                delta_bytes: record.delta.as_deref().map(layout::size),
                anchor_bytes: record.anchor.as_deref().map(layout::size),
                codec: record.codec,
                touched: record.touched,
                state: record.state,
                meta: record.meta,
            })
        });
        checked.collect()
    }

    /// Returns the names of the tensors of a version.
    ///
    /// # Errors
    /// [`Error::Missing`] if there is no such version; [`Error::Corrupt`] if its record is.
    pub fn names(&self, version: u64) -> Result<Vec<String>> {
        let model = self.model(&self.record(version)?.model)?;
        Ok(model.infos.iter().map(|info| info.name.clone()).collect())
    }

    /// Returns the bytes transferred by this store so far.
    pub fn transferred(&self) -> u64 {
        self.remote.transferred()
    }

    /// Announces that the reader `name` holds a version: for `duration`, [`Store::gc`] keeps the deltas after
    /// it. A reader that pulls more often than the grace period needs none.
    ///
    /// # Errors
    /// [`Error::Input`] if the name is not made of ASCII letters, digits, `-` and `_`; [`Error::Transport`].
    pub fn lease(&self, name: &str, version: u64, duration: Duration) -> Result<()> {
        self.remote.replace(&lease_path(name)?, &LeaseText { version, seconds: duration.as_secs() })
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// As [`Self::lease`].
    pub fn release(&self, name: &str) -> Result<()> {
        self.remote.delete(&[lease_path(name)?])
    }

    /// Returns the settings of the store, which are written if it has none.
    fn create_settings(&self) -> Result<Settings> {
        if let Some(settings) = self.remote.text(layout::SETTINGS)? {
            return Ok(settings);
        }
        let settings = Settings { grace_ms: self.grace.as_millis() as u64 };
        match self.remote.create(layout::SETTINGS, &settings)? {
            true => Ok(settings),
            false => self.settings(),
        }
    }

    fn settings(&self) -> Result<Settings> {
        self.remote.text(layout::SETTINGS)?.ok_or(Error::Empty)
    }

    fn record(&self, version: u64) -> Result<Record> {
        let path = layout::version_path(version);
        let record = self.remote.texts::<Record>(std::slice::from_ref(&path))?.pop().flatten();
        record.ok_or_else(|| Error::Missing { path: path.clone() })?.check(&path, version)
    }

    /// Returns a replica with the record of its version.
    fn with_record(&self, replica: Replica) -> Result<(Replica, Record)> {
        let record = self.record(replica.version)?;
        Ok((replica, record))
    }

    /// Reads a table of tensors, unless it is the one that was read last.
    fn model(&self, object: &Object) -> Result<Arc<Model>> {
        let mut known = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = known.as_ref().filter(|model| model.object == *object) {
            return Ok(Arc::clone(model));
        }
        let limit = layout::MAX_TEXT;
        if object.size > limit {
            let (path, found) = (object.path.clone(), object.size);
            return Err(Error::Limit { path, what: "size of the table of tensors", found, limit });
        }
        let text = self.remote.fetch(&[object])?.pop().unwrap_or_default();
        let model = Model::parse(layout::from_text::<ModelText>(&text, &object.path)?, object)?;
        let limit = self.remote.options.max_weights;
        if model.bytes() > limit {
            let path = object.path.clone();
            return Err(Error::Limit { path, what: "bytes of weights", found: model.bytes(), limit });
        }
        Ok(Arc::clone(known.insert(Arc::new(model))))
    }
}

fn lease_path(name: &str) -> Result<String> {
    let is_plain =
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    match is_plain && name.len() <= 128 {
        true => Ok(format!("{}/{name}.json", layout::LEASES)),
        false => Err(Error::input(format!("{name:?} is no name of a lease: letters, digits, - and _"))),
    }
}

/// Returns the error of a conditional write, which a server may not implement.
fn unconditional(error: Error) -> Error {
    use object_store::Error as E;
    match error {
        Error::Transport { path, source: E::NotImplemented { .. } | E::NotSupported { .. } } => {
            Error::Unconditional { path }
        }
        // S3's code for a header that the server does not know.
        Error::Transport { path, source } if source.to_string().contains("NotImplemented") => {
            Error::Unconditional { path }
        }
        error => error,
    }
}

/// Makes a file in a folder and a link to it, and removes both.
fn check_links(
    folder: &std::path::Path,
    link: impl Fn(&std::path::Path, &std::path::Path) -> std::io::Result<()>,
) -> Result<()> {
    let nonce = publish::nonce();
    let [file, other] = ["link", "linked"].map(|name| folder.join(format!(".{nonce}-{name}")));
    let linked = std::fs::write(&file, []).and_then(|()| link(&file, &other));
    for path in [&file, &other] {
        // What could not be made cannot be removed.
        let _ = std::fs::remove_file(path);
    }
    let what = || format!("{}: publishing into a folder needs hard links", folder.display());
    linked.map_err(|source| Error::Io { what: what(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_hard_links_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let none =
            |_: &std::path::Path, _: &std::path::Path| Err(std::io::ErrorKind::PermissionDenied.into());
        let error = check_links(folder.path(), none).unwrap_err().to_string();
        assert!(error.contains("needs hard links: permission denied"), "{error}");
        let store = Store::open(folder.path().to_str().unwrap(), Options::default()).unwrap();
        store.check_links().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
