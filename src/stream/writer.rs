use std::io::Write;
use std::sync::Arc;

use crate::block::{BlockOptions, Coded, PendingBlock, SetId, WireBlock};
use crate::error::Result;
use crate::frame::{FrameKind, IndexSet, Manifest, Metadata, Model, UpdateHeader};
use crate::stream::{EncodeOptions, Encoder};

/// Writes a stream to any [`Write`]: a thin adapter over [`Encoder`]. It never seeks.
///
/// Dropping it without [`Writer::finish`] leaves a stream that readers report as truncated. All of its frames
/// can be recovered.
pub struct Writer<W> {
    encoder: Encoder,
    inner: W,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Returns a writer at the beginning of a stream.
    pub fn new(inner: W, options: EncodeOptions) -> Self {
        Self::with_encoder(inner, Encoder::new(options))
    }

    pub(crate) fn with_encoder(inner: W, encoder: Encoder) -> Self {
        Self { encoder, inner, buffer: Vec::new() }
    }

    fn put<T>(&mut self, encode: impl FnOnce(&mut Encoder, &mut Vec<u8>) -> Result<T>) -> Result<T> {
        self.buffer.clear();
        let value = encode(&mut self.encoder, &mut self.buffer)?;
        self.inner.write_all(&self.buffer)?;
        Ok(value)
    }

    /// Writes a manifest as [`Encoder::manifest`] does.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io).
    pub fn manifest(&mut self, manifest: &Arc<Manifest>) -> Result<()> {
        self.put(|encoder, out| {
            encoder.manifest(out, manifest);
            Ok(())
        })
    }

    /// Writes an update as [`Encoder::update`] does.
    ///
    /// # Errors
    /// The errors of [`Encoder::update`], and [`Error::Io`](crate::Error::Io).
    pub fn update<B: Coded>(
        &mut self,
        header: &UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: &[B],
    ) -> Result<()> {
        self.put(|encoder, out| encoder.update(out, header, manifest, blocks))
    }

    /// Writes an update as [`Encoder::update_wire`] does.
    ///
    /// # Errors
    /// The errors of [`Encoder::update_wire`], and [`Error::Io`](crate::Error::Io).
    pub fn update_wire(
        &mut self,
        header: &UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: &[(WireBlock<'_>, BlockOptions)],
    ) -> Result<()> {
        self.put(|encoder, out| encoder.update_wire(out, header, manifest, blocks))
    }

    /// Writes an update as [`Encoder::update_pending`] does.
    ///
    /// # Errors
    /// The errors of [`Encoder::update_pending`], and [`Error::Io`](crate::Error::Io).
    pub fn update_pending(
        &mut self,
        header: &UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: &[PendingBlock<'_>],
    ) -> Result<()> {
        self.put(|encoder, out| encoder.update_pending(out, header, manifest, blocks))
    }

    /// Writes an index set as [`Encoder::index_set`] does.
    ///
    /// # Errors
    /// The errors of [`Encoder::index_set`], and [`Error::Io`](crate::Error::Io).
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
    /// [`Error::Io`](crate::Error::Io).
    pub fn model(&mut self, model: &Model) -> Result<()> {
        self.put(|encoder, out| {
            encoder.model(out, model);
            Ok(())
        })
    }

    /// Writes metadata as [`Encoder::metadata`] does.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io).
    pub fn metadata(&mut self, metadata: &Metadata) -> Result<()> {
        self.put(|encoder, out| {
            encoder.metadata(out, metadata);
            Ok(())
        })
    }

    /// Writes a private frame as [`Encoder::private`] does.
    ///
    /// # Errors
    /// The errors of [`Encoder::private`], and [`Error::Io`](crate::Error::Io).
    pub fn private(&mut self, kind: FrameKind, body: &[u8]) -> Result<()> {
        self.put(|encoder, out| encoder.private(out, kind, body))
    }

    /// Flushes the inner writer. Does not end the stream.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io).
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
    /// [`Error::Io`](crate::Error::Io).
    pub fn finish(mut self) -> Result<W> {
        self.put(|encoder, out| {
            encoder.finish(out);
            Ok(())
        })?;
        self.inner.flush()?;
        Ok(self.inner)
    }
}
