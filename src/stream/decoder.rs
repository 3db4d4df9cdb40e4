//! Decoding of a stream that arrives in pieces.

use std::io::{self, Read};
use std::sync::Arc;

use crate::block::SetId;
use crate::error::Result;
use crate::frame::{IndexSet, Manifest};
use crate::limits::Limits;
use crate::stream::byte_queue::{ByteQueue, CHUNK};
use crate::stream::{Event, Parser, Progress};

/// Decodes a stream that arrives in pieces, without IO: feed it bytes, then take events.
///
/// It buffers one frame at a time. Memory grows with the bytes that have arrived, not with the length that a
/// frame declares. The events do not depend on how the bytes are split.
///
/// # Examples
/// ```
/// # fn main() -> gcodec::Result<()> {
/// use gcodec::stream::{Decoder, Event};
/// use gcodec::Limits;
/// let bytes = gcodec::stream::Writer::new(Vec::new(), Default::default()).finish().unwrap();
/// let mut decoder = Decoder::new(Limits::default());
/// for piece in bytes.chunks(7) {
///     decoder.feed(piece);
///     while let Some(event) = decoder.next_event()? {
///         if let Event::Frame(info, _body) = event {
///             assert!(matches!(info.header.kind.name(), Some("index" | "end")));
///         }
///     }
/// }
/// decoder.finish()
/// # }
/// ```
pub struct Decoder {
    parser: Parser,
    queue: ByteQueue,
}

impl Decoder {
    /// Returns a decoder at the beginning of a stream.
    pub fn new(limits: Limits) -> Self {
        Self { parser: Parser::new(limits), queue: ByteQueue::default() }
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

    /// Appends the next bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.queue.feed(bytes);
    }

    /// Appends what one read gives, and returns how many bytes that is; 0 at the end.
    pub(super) fn read(&mut self, inner: &mut impl Read) -> io::Result<usize> {
        self.queue.read(inner, CHUNK)
    }

    /// Returns the number of bytes missing for the next event; 0 if [`Self::next_event`] returns an event or
    /// an error.
    pub fn needed(&self) -> u64 {
        let rest = self.queue.rest();
        self.parser.needed(rest).saturating_sub(rest.len() as u64)
    }

    /// Returns the next event, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format), [`Error::Unsupported`](crate::Error::Unsupported) or
    /// [`Error::Limit`](crate::Error::Limit). Nothing more can be read then: every further call returns the
    /// same error.
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        let (rest, used) = self.queue.lend();
        match self.parser.advance(rest)? {
            Progress::NeedMore => Ok(None),
            Progress::Ready { consumed, event } => {
                *used += consumed;
                Ok(Some(event))
            }
        }
    }

    /// Checks that the stream is complete: the last byte fed was the last byte of an end frame.
    ///
    /// # Errors
    /// [`FormatErrorKind::Truncated`](crate::error::FormatErrorKind::Truncated) otherwise; after an error of
    /// [`Self::next_event`], that error.
    pub fn finish(&self) -> Result<()> {
        self.parser.finish(self.queue.rest().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameKind;
    use crate::stream::{EncodeOptions, Encoder};

    #[test]
    fn frames_that_were_read_leave_the_buffer() {
        let (mut encoder, mut decoder) =
            (Encoder::new(EncodeOptions::default()), Decoder::new(Limits::default()));
        let mut events = 0;
        for _ in 0..100 {
            let mut frame = Vec::new();
            encoder.private(&mut frame, FrameKind(0xf001), &[7; 100]).unwrap();
            decoder.feed(&frame);
            while decoder.next_event().unwrap().is_some() {
                events += 1;
            }
            assert!(decoder.queue.rest().is_empty());
        }
        assert_eq!(events, 101);
    }
}
