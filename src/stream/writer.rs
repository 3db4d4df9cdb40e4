//! A stream written to any sink.

use std::io::Write;
use std::sync::Arc;

use crate::block::{BlockOptions, PendingBlock, SetId};
use crate::error::{Error, Result};
use crate::frame::{FrameKind, IndexSet, Manifest, Metadata, Model, UpdateHeader};
use crate::stream::{EncodeOptions, Encoder};

/// Writes a stream to any [`Write`]: a thin adapter over [`Encoder`]. It never seeks.
///
/// A failed write may leave half a frame in the sink: every later call fails then.
///
/// Dropping it without [`Writer::finish`] leaves a stream that readers report as truncated. All of its frames
/// can be recovered.
pub struct Writer<W> {
    encoder: Encoder,
    inner: W,
    buffer: Vec<u8>,
    /// Whether some bytes of a failed call reached `inner`.
    is_broken: bool,
}

impl<W: Write> Writer<W> {
    /// Returns a writer at the beginning of a stream.
    pub fn new(inner: W, options: EncodeOptions) -> Self {
        Self::with_encoder(inner, Encoder::new(options))
    }

    pub(crate) fn with_encoder(inner: W, encoder: Encoder) -> Self {
        Self { encoder, inner, buffer: Vec::new(), is_broken: false }
    }

    fn put<T>(&mut self, encode: impl FnOnce(&mut Encoder, &mut Vec<u8>) -> Result<T>) -> Result<T> {
        self.check()?;
        self.buffer.clear();
        let value = encode(&mut self.encoder, &mut self.buffer)?;
        self.is_broken = true;
        self.inner.write_all(&self.buffer)?;
        self.is_broken = false;
        Ok(value)
    }

    /// Refuses to continue a stream that was written in part.
    fn check(&self) -> Result<()> {
        match self.is_broken {
            true => Err(Error::Io(std::io::Error::other("an earlier write to this stream failed"))),
            false => Ok(()),
        }
    }

    /// Writes a manifest as [`Encoder::manifest`] does.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn manifest(&mut self, manifest: &Arc<Manifest>) -> Result<()> {
        self.put(|encoder, out| {
            encoder.manifest(out, manifest);
            Ok(())
        })
    }

    /// Writes an update as [`Encoder::update`] does, part by part: it holds the bytes of one part at a time.
    ///
    /// # Errors
    /// The errors of [`Encoder::update`], and [`Error::Io`]. An error before the first part is written leaves
    /// the stream as it was. After a later one, the stream cannot continue.
    pub fn update<'a, B>(
        &mut self,
        header: &UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: impl IntoIterator<Item = B>,
    ) -> Result<()>
    where
        B: TryInto<PendingBlock<'a>, Error: Into<Error>>,
    {
        self.check()?;
        self.buffer.clear();
        let mut parts = self.encoder.parts(header, manifest, blocks)?;
        loop {
            let more = parts.write_next(&mut self.buffer)?;
            self.is_broken = true;
            self.inner.write_all(&self.buffer)?;
            self.buffer.clear();
            if !more {
                break;
            }
        }
        parts.finish();
        self.is_broken = false;
        Ok(())
    }

    /// Writes an index set as [`Encoder::index_set`] does.
    ///
    /// # Errors
    /// The errors of [`Encoder::index_set`], and [`Error::Io`].
    pub fn index_set(
        &mut self,
        set: &IndexSet,
        manifest: &Arc<Manifest>,
        options: BlockOptions,
    ) -> Result<SetId> {
        self.put(|encoder, out| encoder.index_set(out, set, manifest, options))
    }

    /// Writes a model as [`Encoder::model`] does.
    ///
    /// # Errors
    /// [`Error::Io`], and as [`Encoder::model`].
    pub fn model(&mut self, model: &Model) -> Result<()> {
        self.put(|encoder, out| encoder.model(out, model))
    }

    /// Writes metadata as [`Encoder::metadata`] does.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn metadata(&mut self, metadata: &Metadata) -> Result<()> {
        self.put(|encoder, out| {
            encoder.metadata(out, metadata);
            Ok(())
        })
    }

    /// Writes a private frame as [`Encoder::private`] does.
    ///
    /// # Errors
    /// The errors of [`Encoder::private`], and [`Error::Io`].
    pub fn private(&mut self, kind: FrameKind, body: &[u8]) -> Result<()> {
        self.put(|encoder, out| encoder.private(out, kind, body))
    }

    /// Flushes the inner writer. Does not end the stream.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn flush(&mut self) -> Result<()> {
        Ok(self.inner.flush()?)
    }

    /// Returns the inner writer.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    /// Ends the stream and returns the inner writer, flushed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(mut self) -> Result<W> {
        self.put(|encoder, out| {
            encoder.finish(out);
            Ok(())
        })?;
        self.inner.flush()?;
        Ok(self.inner)
    }
}
