//! Recovery: the intact frames of a corrupt stream, as a new stream.

use std::io::Write;
use std::ops::ControlFlow;

use crate::error::Result;
use crate::frame::{FrameHeader, FrameKind, HEADER_LEN, IndexedUpdate, PREAMBLE_LEN, SYNC};
use crate::limits::{Limits, in_memory};
use crate::stream::{Body, EncodeOptions, Encoder, Event, Fault, Finding, salvage_frames};

/// Result of [`recover`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered<W> {
    /// The sink with the new stream: every intact frame, then a new index and end.
    pub stream: W,
    /// Frames that were kept.
    pub frames_kept: u64,
    /// Updates that were kept.
    pub updates_kept: u64,
    /// Intact frames that were dropped: their manifest, index set or other parts are lost, their kind is
    /// critical and unknown, or they exceed the limits.
    pub frames_dropped: u64,
    /// Bytes outside intact frames.
    pub bytes_lost: u64,
    /// Whether the stream had its end frame. If not, more may have followed.
    pub had_end: bool,
}

/// Recovers a corrupt or truncated stream: keeps every frame whose checksums match and whose references
/// exist. Frames of unknown ancillary kinds are kept, and frames that exceed the limits are dropped.
///
/// Each frame goes to `sink` when it was read, and an update when its last part was. Memory holds none of them.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) from `sink`.
pub fn recover<W: Write>(bytes: &[u8], limits: &Limits, sink: W) -> Result<Recovered<W>> {
    let saved = Recovered {
        stream: sink,
        frames_kept: 0,
        updates_kept: 0,
        frames_dropped: 0,
        bytes_lost: 0,
        had_end: false,
    };
    let encoder = Encoder::new(EncodeOptions::default());
    let mut recovery =
        Recovery { bytes, saved, encoder, head: Vec::new(), open: Vec::new(), is_spoiled: false };
    let mut written = Ok(());
    salvage_frames(bytes, limits, |finding| {
        written = match finding {
            Finding::Event(event) => recovery.keep(event),
            Finding::Fault(fault) => {
                recovery.leave_out(&fault);
                Ok(())
            }
        };
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    written?;
    recovery.finish()
}

struct Recovery<'a, W> {
    bytes: &'a [u8],
    saved: Recovered<W>,
    encoder: Encoder,
    /// Bytes of one header, or of index and end.
    head: Vec<u8>,
    /// Parts of an update, which are kept when its last part is found.
    open: Vec<Kept<'a>>,
    /// Whether a part of the update does not decode: its other parts are dropped.
    is_spoiled: bool,
}

/// A frame to keep.
struct Kept<'a> {
    header: FrameHeader,
    body: &'a [u8],
    update: Option<IndexedUpdate>,
}

impl<'a, W: Write> Recovery<'a, W> {
    /// Keeps an intact frame.
    fn keep(&mut self, event: Event<'_>) -> Result<()> {
        let Event::Frame(info, body) = event else { return Ok(()) };
        let header = info.header;
        let (start, end) = (info.offset, info.offset + info.len());
        self.see_end(&header, end);
        let bytes: &'a [u8] = &self.bytes[in_memory(start) + HEADER_LEN..in_memory(end)];
        let Body::Update(part) = body else {
            return match header.kind {
                FrameKind::INDEX | FrameKind::END => Ok(()),
                _ => self.write(Kept { header, body: bytes, update: None }),
            };
        };
        if part.part == 0 {
            self.drop_open();
            self.is_spoiled = false;
        }
        // A frame with right checksums can still have wrong content.
        self.is_spoiled = self.is_spoiled || part.decode_all().is_err();
        self.open.push(Kept { header, body: bytes, update: Some(IndexedUpdate::of(&part, bytes)) });
        if self.is_spoiled {
            self.drop_open();
        } else if part.last {
            self.saved.updates_kept += 1;
            return std::mem::take(&mut self.open).into_iter().try_for_each(|part| self.write(part));
        }
        Ok(())
    }

    /// Counts bytes or a frame that is left out.
    fn leave_out(&mut self, fault: &Fault<'_>) {
        match fault.frame.filter(|frame| frame.header.check_body(frame.body, 0).is_ok()) {
            Some(frame) => {
                self.see_end(&frame.header, fault.offset + fault.len);
                let is_rewritten = matches!(frame.header.kind, FrameKind::INDEX | FrameKind::END);
                self.saved.frames_dropped += u64::from(!is_rewritten);
            }
            None => {
                let behind = self.bytes.get(PREAMBLE_LEN..).filter(|_| fault.offset == 0);
                let is_preamble = behind.is_some_and(|b| b.is_empty() || b.starts_with(&SYNC));
                // The preamble is written again: it is not lost.
                let rewritten = if is_preamble { PREAMBLE_LEN as u64 } else { 0 };
                self.saved.bytes_lost += fault.len.saturating_sub(rewritten);
            }
        }
    }

    /// Records whether the intact frame that ends at `end` is the end of the stream.
    fn see_end(&mut self, header: &FrameHeader, end: u64) {
        self.saved.had_end = header.kind == FrameKind::END && end == self.bytes.len() as u64;
    }

    fn drop_open(&mut self) {
        self.saved.frames_dropped += self.open.drain(..).len() as u64;
    }

    fn write(&mut self, frame: Kept<'_>) -> Result<()> {
        self.saved.frames_kept += 1;
        self.head.clear();
        self.encoder.copy(&mut self.head, frame.header, frame.update);
        self.saved.stream.write_all(&self.head)?;
        Ok(self.saved.stream.write_all(frame.body)?)
    }

    fn finish(mut self) -> Result<Recovered<W>> {
        self.drop_open();
        self.head.clear();
        self.encoder.finish(&mut self.head);
        self.saved.stream.write_all(&self.head)?;
        self.saved.stream.flush()?;
        Ok(self.saved)
    }
}
