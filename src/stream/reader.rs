//! Events from any `Read`, and from bytes in memory.

use std::io::Read;
use std::sync::Arc;

use crate::block::SetId;
use crate::error::Result;
use crate::frame::{IndexSet, Manifest};
use crate::limits::Limits;
use crate::stream::{Decoder, Event, Parser, Progress};

/// Reads events from any [`Read`]: a thin adapter over [`Decoder`].
pub struct Reader<R> {
    decoder: Decoder,
    inner: R,
    at_end: bool,
}

impl<R: Read> Reader<R> {
    /// Returns a reader at the beginning of a stream.
    pub fn new(inner: R, limits: Limits) -> Self {
        Self { decoder: Decoder::new(limits), inner, at_end: false }
    }

    /// Returns the decoder, to add definitions.
    pub fn decoder_mut(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// Returns the next event; `None` at the end of a complete stream.
    ///
    /// # Errors
    /// The errors of [`Decoder::next_event`] and [`Decoder::finish`], and [`Error::Io`](crate::Error::Io)
    /// from the inner reader. An IO error loses no data: after a timeout of a socket, the next call
    /// continues, even inside a frame. An inner reader that ends inside a stream gives the kind
    /// [`Truncated`](crate::error::FormatErrorKind::Truncated).
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        while self.decoder.needed() > 0 && !self.at_end {
            self.at_end = self.decoder.read(&mut self.inner)? == 0;
        }
        if self.decoder.needed() > 0 {
            self.decoder.finish()?;
            return Ok(None);
        }
        self.decoder.next_event()
    }

    /// Returns the inner reader. Bytes that were read ahead are lost.
    pub fn into_inner(self) -> R {
        self.inner
    }
}

/// Reads events from a slice, for instance a mapped file, without copying: the events borrow from the slice.
pub struct SliceReader<'a> {
    parser: Parser,
    rest: &'a [u8],
    failed: bool,
}

impl<'a> SliceReader<'a> {
    /// Returns a reader at the beginning of a stream.
    pub fn new(bytes: &'a [u8], limits: Limits) -> Self {
        Self { parser: Parser::new(limits), rest: bytes, failed: false }
    }

    /// Adds a manifest that the stream refers to but does not contain.
    pub fn add_manifest(&mut self, manifest: Arc<Manifest>) {
        self.parser.add_manifest(manifest);
    }

    /// Adds an index set that the stream refers to by `id` but does not contain.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if the set does not fit `manifest`, or refers to another set.
    pub fn add_index_set(&mut self, id: SetId, set: &IndexSet, manifest: &Manifest) -> Result<()> {
        self.parser.add_index_set(id, set.checked(manifest)?);
        Ok(())
    }

    /// Returns the offset of the next unread byte.
    pub fn offset(&self) -> u64 {
        self.parser.offset()
    }

    /// Returns the next event; `None` at the end of a complete stream.
    ///
    /// # Errors
    /// The errors of [`Decoder::next_event`] and [`Decoder::finish`].
    pub fn next_event(&mut self) -> Result<Option<Event<'a>>> {
        if self.rest.is_empty() {
            self.parser.finish(0)?;
            return Ok(None);
        }
        match self.parser.advance(self.rest)? {
            Progress::NeedMore => {
                self.parser.finish(self.rest.len())?;
                Ok(None)
            }
            Progress::Ready { consumed, event } => {
                self.rest = &self.rest[consumed..];
                Ok(Some(event))
            }
        }
    }
}

impl<'a> Iterator for SliceReader<'a> {
    type Item = Result<Event<'a>>;

    /// Returns the next event; after an error, `None`.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let event = self.next_event();
        self.failed = event.is_err();
        event.transpose()
    }
}
