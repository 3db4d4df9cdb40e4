//! Objects over the network: names, retries, resumed and parallel transfers.

use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use crate::error::{Error, Result};
use crate::layout::{self, MAX_TEXT, Object};
use crate::options::Options;
use crate::scratch::{self, Scratch};

/// Objects from this size on are uploaded in parts.
const WHOLE_PUT: usize = 64 << 20;
const PART: usize = 32 << 20;

/// An object store under a prefix, with blocking calls.
pub(crate) struct Remote {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    runtime: Runtime,
    pub(crate) options: Options,
    /// The folder of a store on this machine.
    pub(crate) folder: Option<PathBuf>,
    /// Bytes of objects transferred so far.
    transferred: AtomicU64,
    /// Bytes of objects transferred so far, and of those that will follow.
    expected: AtomicU64,
}

impl Remote {
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, prefix: Path, options: Options) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|source| Error::Io { what: "the runtime of transfers".into(), source })?;
        Ok(Self {
            objects,
            prefix,
            runtime,
            options,
            folder: None,
            transferred: AtomicU64::new(0),
            expected: AtomicU64::new(0),
        })
    }

    pub(crate) fn transferred(&self) -> u64 {
        self.transferred.load(Ordering::Relaxed)
    }

    /// Announces bytes to transfer.
    pub(crate) fn expect(&self, bytes: u64) {
        self.expected.fetch_add(bytes, Ordering::Relaxed);
    }

    fn path(&self, name: &str) -> Result<Path> {
        let whole = format!("{}/{name}", self.prefix);
        Path::parse(&whole).map_err(|e| Error::corrupt(name, e.to_string()))
    }

    /// Returns the name of an object without the prefix.
    fn name(&self, path: &Path) -> String {
        let whole = path.as_ref();
        let rest = whole.strip_prefix(self.prefix.as_ref()).unwrap_or(whole);
        rest.trim_start_matches('/').to_owned()
    }

    /// Repeats `attempt` with growing pauses while it fails for a reason that may pass.
    async fn retry<T, F>(&self, name: &str, patience: Patience, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut pause = self.options.backoff;
        let mut tries = 1;
        loop {
            let failure = match attempt().await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            if tries >= self.options.attempts.max(1) || !failure.may_pass(patience) {
                return Err(failure.into_error(name));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(10));
            tries += 1;
        }
    }

    /// Reads a text object; `None` if it does not exist.
    pub(crate) fn text<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        self.runtime.block_on(self.text_async(name, Patience::Text))
    }

    async fn text_async<T: DeserializeOwned>(&self, name: &str, patience: Patience) -> Result<Option<T>> {
        let path = self.path(name)?;
        let read = self.retry(name, patience, || async {
            let mut got = Scratch::Memory(Vec::new());
            self.read(&path, &mut got, None, MAX_TEXT).await?;
            // A text that was cut on its way is read again.
            layout::from_text(&got.finish()?, name).map_err(|e| match e {
                Error::Corrupt { what, .. } => Failure::Wrong(what),
                other => Failure::Final(other),
            })
        });
        match read.await {
            Err(Error::Missing { .. }) => Ok(None),
            read => read.map(Some),
        }
    }

    /// Reads text objects that exist, in parallel.
    pub(crate) fn texts<T: DeserializeOwned>(&self, names: &[String]) -> Result<Vec<Option<T>>> {
        let reads = stream::iter(names).map(|name| self.text_async(name, Patience::Data));
        self.runtime.block_on(reads.buffered(self.options.transfers.max(1)).try_collect())
    }

    /// Reads objects in parallel and checks their digests.
    pub(crate) fn fetch(&self, objects: &[&Object]) -> Result<Vec<Bytes>> {
        let reads = stream::iter(objects).map(|object| self.fetch_one(object));
        self.runtime.block_on(reads.buffered(self.options.transfers.max(1)).try_collect())
    }

    async fn fetch_one(&self, object: &Object) -> Result<Bytes> {
        let name = &object.path;
        let limit = self.options.limits.max_frame_bytes.saturating_mul(4);
        if object.size > limit {
            return Err(Error::Limit {
                path: name.clone(),
                what: "size of an object",
                found: object.size,
                limit,
            });
        }
        let cached = self.options.cache.as_ref().map(|folder| folder.join(&object.blake3));
        let cached_bytes = cached.as_ref().and_then(|file| self.found(file));
        let found = [cached_bytes, self.in_folder(object)].into_iter().flatten();
        if let Some(bytes) = found.into_iter().find(|bytes| is(object, bytes)) {
            self.count(object.size);
            return Ok(bytes);
        }
        let path = self.path(name)?;
        // Bytes that arrived before a cut stay; the next attempt asks for the rest.
        let got = tokio::sync::Mutex::new(self.scratch()?);
        let fetched = self.retry(name, Patience::Data, || async {
            let mut got = got.lock().await;
            self.read(&path, &mut got, Some(object.size), object.size).await?;
            let bytes = std::mem::replace(&mut *got, self.scratch()?).finish()?;
            match is(object, &bytes) {
                true => Ok(bytes),
                false => Err(Failure::Wrong("its BLAKE3 digest differs from the record's".into())),
            }
        });
        let bytes = fetched.await?;
        if let Some(file) = &cached {
            // A cache that cannot be written costs a later download only.
            let _ = std::fs::create_dir_all(file.parent().unwrap_or(file)).and_then(|()| {
                let mut out = gcodec::file::AtomicFile::create(file)?;
                std::io::Write::write_all(&mut out, &bytes)?;
                out.commit()
            });
        }
        Ok(bytes)
    }

    /// Returns no bytes, which grow in memory or in a temporary file.
    pub(crate) fn scratch(&self) -> Result<Scratch> {
        Scratch::new(self.options.scratch.as_deref())
    }

    /// Returns the bytes of an object of a folder where they are, if the store has temporary files instead of
    /// memory.
    pub(crate) fn in_folder(&self, object: &Object) -> Option<Bytes> {
        let folder = self.folder.as_ref().filter(|_| self.options.scratch.is_some())?;
        layout::parse_data(&object.path)?;
        self.found(&folder.join(&object.path)).filter(|bytes| bytes.len() as u64 == object.size)
    }

    /// Returns the bytes of a file, unless it cannot be read.
    fn found(&self, path: &std::path::Path) -> Option<Bytes> {
        match self.options.scratch {
            None => std::fs::read(path).ok().map(Bytes::from),
            Some(_) => {
                let file = std::fs::File::open(path).ok()?;
                scratch::mapped(&file, file.metadata().ok()?.len()).ok()
            }
        }
    }

    /// Appends an object's bytes from `got.len()` on. `whole`: its size, if a record declares it.
    async fn read(
        &self,
        path: &Path,
        got: &mut Scratch,
        whole: Option<u64>,
        limit: u64,
    ) -> Result<(), Failure> {
        let mut options = GetOptions::default();
        if got.len() > 0 {
            options.range = Some(GetRange::Offset(got.len()));
        }
        let result = match self.objects.get_opts(path, options).await {
            Ok(result) => result,
            Err(e) => {
                // A server without ranges: the next attempt begins anew.
                got.clear()?;
                return Err(Failure::Store(e));
            }
        };
        let size = result.meta.size;
        if whole.is_some_and(|whole| whole != size) {
            got.clear()?;
            return Err(Failure::Wrong(format!("it has {size} bytes, the record declares {limit}")));
        }
        if size > limit {
            let path = path.to_string();
            return Err(Failure::Final(Error::Limit { path, what: "size of an object", found: size, limit }));
        }
        if result.range.start != got.len() {
            got.clear()?;
            return Err(Failure::Wrong("the server sent another range than asked for".into()));
        }
        let mut chunks = result.into_stream();
        while let Some(chunk) = chunks.try_next().await.map_err(Failure::Store)? {
            if got.len() + chunk.len() as u64 > limit {
                got.clear()?;
                return Err(Failure::Wrong("it has more bytes than declared".into()));
            }
            got.put(&chunk)?;
            if whole.is_some() {
                self.count(chunk.len() as u64);
            }
        }
        match got.len() {
            len if len == size => Ok(()),
            len => Err(Failure::Wrong(format!("it is cut after {len} of {size} bytes"))),
        }
    }

    /// Reads ranges of an object.
    pub(crate) fn ranges(&self, object: &Object, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (name, path) = (&object.path, self.path(&object.path)?);
        let read = self.retry(name, Patience::Data, || async {
            let parts = self.objects.get_ranges(&path, ranges).await.map_err(Failure::Store)?;
            let fits = parts.len() == ranges.len()
                && parts.iter().zip(ranges).all(|(part, range)| part.len() as u64 == range.end - range.start);
            match fits {
                true => Ok(parts),
                false => Err(Failure::Wrong("the server sent other ranges than asked for".into())),
            }
        });
        let parts = self.runtime.block_on(read)?;
        self.count(parts.iter().map(|part| part.len() as u64).sum());
        Ok(parts)
    }

    /// Writes objects in parallel. One that exists with the same size and was written within `fresh` is not
    /// written again: its name contains its digest.
    pub(crate) fn upload(&self, objects: &[(Object, Bytes)], fresh: Duration) -> Result<()> {
        self.expect(objects.iter().map(|(object, _)| object.size).sum());
        let writes = stream::iter(objects).map(|(object, bytes)| self.upload_one(object, bytes, fresh));
        self.runtime.block_on(writes.buffer_unordered(self.options.transfers.max(1)).try_collect())
    }

    async fn upload_one(&self, object: &Object, bytes: &Bytes, fresh: Duration) -> Result<()> {
        let path = self.path(&object.path)?;
        if let Ok(meta) = self.objects.head(&path).await {
            let age = SystemTime::now().duration_since(meta.last_modified.into());
            if meta.size == object.size && age.is_ok_and(|age| age < fresh) {
                self.count(object.size);
                return Ok(());
            }
        }
        self.retry(&object.path, Patience::Text, || async {
            if bytes.len() < WHOLE_PUT {
                self.objects.put(&path, bytes.clone().into()).await.map_err(Failure::Store)?;
                return Ok(());
            }
            let mut upload = self.objects.put_multipart(&path).await.map_err(Failure::Store)?;
            let parts = (0..bytes.len()).step_by(PART).map(|at| bytes.slice(at..bytes.len().min(at + PART)));
            let writes: Vec<_> = parts.map(|part| upload.put_part(part.into())).collect();
            let written = stream::iter(writes).buffer_unordered(4).try_collect::<()>().await;
            let done = match written {
                Ok(()) => upload.complete().await.map(|_| ()),
                Err(e) => Err(e),
            };
            if done.is_err() {
                // The store removes parts of an upload that was not completed by its own rules otherwise.
                let _ = upload.abort().await;
            }
            done.map_err(Failure::Store)
        })
        .await?;
        self.count(object.size);
        Ok(())
    }

    /// Creates a text object if no object has its name. Returns whether this call created it.
    pub(crate) fn create(&self, name: &str, content: &impl Serialize) -> Result<bool> {
        let (path, text) = (self.path(name)?, Bytes::from(layout::to_text(content)?));
        let put = self.retry(name, Patience::Text, || async {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            match self.objects.put_opts(&path, PutPayload::from(text.clone()), options).await {
                Ok(_) => Ok(true),
                // The answer to an earlier attempt may have been lost.
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                    let mut got = Scratch::Memory(Vec::new());
                    self.read(&path, &mut got, None, MAX_TEXT).await?;
                    Ok(got.finish()? == text)
                }
                Err(e) => Err(Failure::Store(e)),
            }
        });
        self.runtime.block_on(put)
    }

    /// Writes a text object, whether or not it exists.
    pub(crate) fn replace(&self, name: &str, content: &impl Serialize) -> Result<()> {
        let (path, text) = (self.path(name)?, Bytes::from(layout::to_text(content)?));
        let put = self.retry(name, Patience::Text, || async {
            self.objects.put(&path, text.clone().into()).await.map(|_| ()).map_err(Failure::Store)
        });
        self.runtime.block_on(put)
    }

    /// Returns the time at which an object was written, by the store's clock; `None` if it does not exist.
    pub(crate) fn written(&self, name: &str) -> Result<Option<SystemTime>> {
        let path = self.path(name)?;
        let head = self.retry(name, Patience::Text, || async {
            self.objects.head(&path).await.map(|meta| meta.last_modified.into()).map_err(Failure::Store)
        });
        match self.runtime.block_on(head) {
            Err(Error::Missing { .. }) => Ok(None),
            written => written.map(Some),
        }
    }

    /// Returns the names, times and sizes of the objects under a prefix.
    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let path = self.path(prefix)?;
        let list = self.retry(prefix, Patience::Text, || async {
            let all: Vec<ObjectMeta> =
                self.objects.list(Some(&path)).try_collect().await.map_err(Failure::Store)?;
            Ok(all)
        });
        let all = self.runtime.block_on(list)?;
        let listed = all.into_iter().map(|meta| Listed {
            name: self.name(&meta.location),
            written: meta.last_modified.into(),
            size: meta.size,
        });
        Ok(listed.collect())
    }

    /// Deletes objects in parallel. One that does not exist is no error.
    pub(crate) fn delete(&self, names: &[String]) -> Result<()> {
        let deletes = stream::iter(names).map(|name| async move {
            let path = self.path(name)?;
            let deleted = self.retry(name, Patience::Text, || async {
                self.objects.delete(&path).await.map_err(Failure::Store)
            });
            match deleted.await {
                Err(Error::Missing { .. }) => Ok(()),
                deleted => deleted,
            }
        });
        self.runtime.block_on(deletes.buffer_unordered(self.options.transfers.max(1)).try_collect())
    }

    fn count(&self, bytes: u64) {
        let done = self.transferred.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = &self.options.progress {
            progress(done, self.expected.load(Ordering::Relaxed).max(done));
        }
    }
}

/// An object in a listing.
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) written: SystemTime,
    pub(crate) size: u64,
}

fn is(object: &Object, bytes: &[u8]) -> bool {
    bytes.len() as u64 == object.size && blake3::hash(bytes).to_hex().as_str() == object.blake3
}

/// Whether a missing object may appear later.
#[derive(Clone, Copy, PartialEq)]
enum Patience {
    /// The name may be unused.
    Text,
    /// A record refers to the object: stores that copy between regions may show it late.
    Data,
}

/// Reason why an attempt failed.
enum Failure {
    Store(object_store::Error),
    /// The bytes are wrong; another read may return the right ones.
    Wrong(String),
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

impl Failure {
    fn may_pass(&self, patience: Patience) -> bool {
        use object_store::Error as E;
        match self {
            Self::Store(E::NotFound { .. }) => patience == Patience::Data,
            Self::Store(e) => matches!(e, E::Generic { .. } | E::JoinError { .. }),
            Self::Wrong(_) => true,
            Self::Final(_) => false,
        }
    }

    fn into_error(self, name: &str) -> Error {
        match self {
            Self::Store(object_store::Error::NotFound { .. }) => Error::Missing { path: name.to_owned() },
            Self::Store(source) => Error::Transport { path: name.to_owned(), source },
            Self::Wrong(what) => Error::corrupt(name, what),
            Self::Final(e) => e,
        }
    }
}
