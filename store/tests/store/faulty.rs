//! An object store whose calls fail on request.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use gcodec_store::object_store::path::Path;
use gcodec_store::object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Fault of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    /// The call fails and has no effect.
    Refused,
    /// The call has its effect, but its answer is lost.
    Unanswered,
    /// A read ends in the middle, with an error.
    Cut,
    /// A read ends in the middle, without an error.
    Short,
    /// A read has one wrong bit.
    Flipped,
    /// A read says that the object does not exist yet.
    Late,
    /// A write is done whatever its condition.
    Unconditional,
    /// The server does not know conditions of writes.
    NotImplemented,
}

type Choose = Box<dyn Fn(u64, &str) -> Fault + Send + Sync>;

/// A wrapper that asks `choose` about each call, by its number and the object's name.
pub(crate) struct Faulty {
    inner: Arc<dyn ObjectStore>,
    choose: Choose,
    calls: AtomicU64,
}

impl Faulty {
    pub(crate) fn new(
        inner: Arc<dyn ObjectStore>,
        choose: impl Fn(u64, &str) -> Fault + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner, choose: Box::new(choose), calls: AtomicU64::new(0) })
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn next(&self, name: &str) -> Fault {
        (self.choose)(self.calls.fetch_add(1, Ordering::Relaxed), name)
    }
}

fn broken(what: &str) -> Error {
    Error::Generic { store: "faulty", source: what.into() }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        match self.next(path.as_ref()) {
            Fault::None => self.inner.put_opts(path, payload, options).await,
            Fault::Unanswered => {
                self.inner.put_opts(path, payload, options).await?;
                Err(broken("the answer was lost"))
            }
            Fault::Unconditional => self.inner.put_opts(path, payload, PutOptions::default()).await,
            Fault::NotImplemented if options.mode == PutMode::Create => Err(broken(
                "<Code>NotImplemented</Code><Message>A header you provided implies functionality that is not \
                 implemented</Message>",
            )),
            Fault::NotImplemented => self.inner.put_opts(path, payload, options).await,
            _ => Err(broken("refused")),
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.next(path.as_ref());
        match fault {
            Fault::None | Fault::Unconditional | Fault::NotImplemented => {
                return self.inner.get_opts(path, options).await;
            }
            Fault::Refused | Fault::Unanswered => return Err(broken("refused")),
            Fault::Late => {
                return Err(Error::NotFound { path: path.to_string(), source: "late".into() });
            }
            _ => {}
        }
        let is_head = options.head;
        let result = self.inner.get_opts(path, options).await?;
        if is_head {
            return Ok(result);
        }
        let (meta, range, attributes, extensions) =
            (result.meta.clone(), result.range.clone(), result.attributes.clone(), result.extensions.clone());
        let mut bytes = result.bytes().await?.to_vec();
        let half = bytes.len() / 2;
        let mut chunks = match fault {
            Fault::Flipped => {
                if let Some(byte) = bytes.get_mut(half) {
                    *byte ^= 1;
                }
                vec![Ok(Bytes::from(bytes))]
            }
            _ => vec![Ok(Bytes::from(bytes[..half].to_vec()))],
        };
        if fault == Fault::Cut {
            chunks.push(Err(broken("cut")));
        }
        let payload = GetResultPayload::Stream(futures_util::stream::iter(chunks).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        match self.next(path.as_ref()) {
            Fault::None => self.inner.get_ranges(path, ranges).await,
            _ => Err(broken("refused")),
        }
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.next("delete") {
            Fault::None => self.inner.delete_stream(paths),
            Fault::Unanswered => {
                let deleted = self.inner.delete_stream(paths);
                deleted.map(|done| done.and_then(|_| Err(broken("the answer was lost")))).boxed()
            }
            _ => futures_util::stream::iter([Err(broken("refused"))]).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.next("list") {
            Fault::None => self.inner.list(prefix),
            _ => futures_util::stream::iter([Err(broken("refused"))]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
