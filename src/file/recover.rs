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
/// Each frame goes to `sink` when it was read, and an update when its last part was. Memory holds none of
/// them.
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
    let mut recovery = Recovery { bytes, saved, encoder, open: Vec::new(), is_spoiled: false };
    let mut written = Ok(());
    salvage_frames(bytes, limits, |finding| {
        match finding {
            Finding::Event(event) => written = recovery.keep(event),
            Finding::Fault(fault) => recovery.leave_out(&fault),
        }
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    written?;
    recovery.drop_open();
    recovery.put(|encoder, out| encoder.finish(out))?;
    recovery.saved.stream.flush()?;
    Ok(recovery.saved)
}

/// A frame to keep: header, body, and its entry in the index if it is a part of an update.
type Kept<'a> = (FrameHeader, &'a [u8], Option<IndexedUpdate>);

struct Recovery<'a, W> {
    bytes: &'a [u8],
    saved: Recovered<W>,
    encoder: Encoder,
    /// Parts of an update, which are kept when its last part is found.
    open: Vec<Kept<'a>>,
    /// Whether a part of the update does not decode: its other parts are dropped.
    is_spoiled: bool,
}

impl<'a, W: Write> Recovery<'a, W> {
    /// Keeps an intact frame.
    fn keep(&mut self, event: Event<'_>) -> Result<()> {
        let Event::Frame(info, body) = event else { return Ok(()) };
        let (header, end) = (info.header, info.offset + info.len());
        let bytes: &'a [u8] = &self.bytes[in_memory(info.offset) + HEADER_LEN..in_memory(end)];
        let Body::Update(part) = body else {
            return if self.ends(&header, end) { Ok(()) } else { self.write((header, bytes, None)) };
        };
        if part.part == 0 {
            self.drop_open();
            self.is_spoiled = false;
        }
        // A frame with right checksums can still have wrong content.
        self.is_spoiled = self.is_spoiled || part.decode_all().is_err();
        self.open.push((header, bytes, Some(IndexedUpdate::of(&part, bytes))));
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
        let whole = fault.frame.filter(|frame| frame.header.check_body(frame.body, 0).is_ok());
        if let Some(frame) = whole {
            let is_dropped = !self.ends(&frame.header, fault.offset + fault.len);
            self.saved.frames_dropped += u64::from(is_dropped);
            return;
        }
        let behind = self.bytes.get(PREAMBLE_LEN..).filter(|_| fault.offset == 0);
        let has_preamble = behind.is_some_and(|bytes| bytes.is_empty() || bytes.starts_with(&SYNC));
        // The preamble is written again: it is not lost.
        let rewritten = if has_preamble { PREAMBLE_LEN as u64 } else { 0 };
        self.saved.bytes_lost += fault.len.saturating_sub(rewritten);
    }

    /// Returns whether the intact frame before byte `end` is an index or an end, which are made anew. Records
    /// the end of the whole stream.
    fn ends(&mut self, header: &FrameHeader, end: u64) -> bool {
        self.saved.had_end |= header.kind == FrameKind::END && end == self.bytes.len() as u64;
        matches!(header.kind, FrameKind::INDEX | FrameKind::END)
    }

    fn drop_open(&mut self) {
        self.saved.frames_dropped += self.open.drain(..).len() as u64;
    }

    fn write(&mut self, (header, body, update): Kept<'_>) -> Result<()> {
        self.saved.frames_kept += 1;
        self.put(|encoder, out| encoder.copy(out, header, update))?;
        Ok(self.saved.stream.write_all(body)?)
    }

    fn put(&mut self, encode: impl FnOnce(&mut Encoder, &mut Vec<u8>)) -> Result<()> {
        let mut out = Vec::new();
        encode(&mut self.encoder, &mut out);
        Ok(self.saved.stream.write_all(&out)?)
    }
}
