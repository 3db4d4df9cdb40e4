use std::io::Read;
use std::sync::Arc;

use crate::block::SetId;
use crate::error::Result;
use crate::frame::{IndexSet, Manifest};
use crate::limits::Limits;
use crate::stream::{Decoder, Event, Parser, Progress};

/// Reads events from anything that implements [`Read`]: a thin adapter over [`Decoder`].
pub struct Reader<R> {
    decoder: Decoder,
    inner: R,
    chunk: Vec<u8>,
    at_end: bool,
}

/// Bytes asked of the inner reader at once.
const CHUNK: usize = 1 << 18;

impl<R: Read> Reader<R> {
    /// A reader at the beginning of a stream.
    pub fn new(inner: R, limits: Limits) -> Self {
        Self { decoder: Decoder::new(limits), inner, chunk: vec![0; CHUNK], at_end: false }
    }

    /// The decoder, to make definitions known.
    pub fn decoder_mut(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// The next event; `None` at the end of a complete stream.
    ///
    /// # Errors
    /// As [`Decoder::next_event`] and [`Decoder::finish`], and [`Error::Io`](crate::Error::Io) with what the inner reader said. Nothing
    /// that was read is lost by that: after a socket's timeout the next call waits again, for the rest of a frame too.
    /// A reader that ends within a stream is an error of the kind [`Truncated`](crate::error::FormatErrorKind::Truncated).
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        while self.decoder.needed() > 0 && !self.at_end {
            let read = match self.inner.read(&mut self.chunk) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            self.at_end = read == 0;
            self.decoder.feed(&self.chunk[..read]);
        }
        if self.decoder.needed() > 0 {
            self.decoder.finish()?;
            return Ok(None);
        }
        self.decoder.next_event()
    }

    /// Gives back the inner reader. Bytes that were read ahead are lost.
    pub fn into_inner(self) -> R {
        self.inner
    }
}

/// Reads events from a slice, for instance a mapped file, without copying: what the events hold points into the slice.
pub struct SliceReader<'a> {
    parser: Parser,
    rest: &'a [u8],
    failed: bool,
}

impl<'a> SliceReader<'a> {
    /// A reader at the beginning of a stream.
    pub fn new(bytes: &'a [u8], limits: Limits) -> Self {
        Self { parser: Parser::new(limits), rest: bytes, failed: false }
    }

    /// Makes a manifest known that the stream refers to without sending it.
    pub fn add_manifest(&mut self, manifest: Arc<Manifest>) {
        self.parser.add_manifest(manifest);
    }

    /// Makes an index set known that the stream refers to by that id without sending it.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if the set does not fit `manifest`, or refers to another set.
    pub fn add_index_set(&mut self, id: SetId, set: &IndexSet, manifest: &Manifest) -> Result<()> {
        self.parser.add_index_set(id, set.checked(manifest)?);
        Ok(())
    }

    /// Offset of the next byte to be read.
    pub fn offset(&self) -> u64 {
        self.parser.offset()
    }

    /// The next event; `None` at the end of a complete stream.
    ///
    /// # Errors
    /// As [`Decoder::next_event`] and [`Decoder::finish`].
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

    /// The next event; after an error, none.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let event = self.next_event();
        self.failed = event.is_err();
        event.transpose()
    }
}
