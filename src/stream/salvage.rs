//! Reads a corrupt stream to its end: what is whole, and every fault.

use std::io::Read;
use std::ops::ControlFlow;

use crate::error::{Error, FormatErrorKind, Result};
use crate::frame::{FrameHeader, FrameKind, HEADER_LEN, PREAMBLE_LEN, SYNC};
use crate::limits::{Limits, in_memory};
use crate::stream::byte_queue::{ByteQueue, CHUNK};
use crate::stream::{Event, OpenUpdate, Parser, Progress};

/// A finding of [`salvage`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Finding<'a> {
    /// An event, read from intact bytes.
    Event(Event<'a>),
    /// Bytes that cannot be read.
    Fault(Fault<'a>),
}

/// Bytes that [`salvage`] leaves out.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fault<'a> {
    /// Error that reading these bytes gave, with its place.
    pub error: Error,
    /// Offset of the first byte that is left out.
    pub offset: u64,
    /// Number of bytes that are left out; for a frame that is too large, the number that its header declares,
    /// although the input may end before.
    pub len: u64,
    /// The frame, if its header and its length are correct.
    pub frame: Option<DamagedFrame<'a>>,
}

/// A frame with a correct header whose body is refused.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct DamagedFrame<'a> {
    /// Number of the frame. Lost frames before it are not counted.
    pub number: u64,
    /// Header of the frame.
    pub header: FrameHeader,
    /// Body of the frame; empty if it exceeds [`Limits::max_frame_bytes`].
    pub body: &'a [u8],
}

/// Reads a stream from its beginning to its end. Calls `visit` with every event, and with a fault where no
/// event can be read. After a fault, it searches for the sync word of the next frame. A stream without faults
/// gives the events of [`Reader`](crate::stream::Reader).
///
/// After a fault, the counts and checksums of an index and of an end are not compared with what was read,
/// since they list what is missing. A missing end is a fault.
///
/// It buffers one frame at a time, as [`Decoder`](crate::stream::Decoder) does, and takes linear time.
/// `visit` can end it early.
///
/// # Errors
/// [`Error::Io`] from `inner`.
pub fn salvage(
    inner: impl Read,
    limits: &Limits,
    visit: impl FnMut(Finding<'_>) -> ControlFlow<()>,
) -> Result<()> {
    Salvage::new(Parser::new(limits.clone()), Input::read(inner), visit).run()
}

/// Finds every intact frame in `bytes`, without copying them. Compared with [`salvage`], a frame with a wrong
/// checksum is searched for frames even if another stands behind it; so is one that is too large. A damaged
/// part does not end its update, since an intact copy may follow. An index and an end are [`Body::Unknown`].
///
/// [`Body::Unknown`]: crate::stream::Body::Unknown
pub(crate) fn salvage_frames(
    bytes: &[u8],
    limits: &Limits,
    visit: impl FnMut(Finding<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let input = Input::<std::io::Empty>::Whole(bytes);
    Salvage::new(Parser::recovering(limits.clone()), input, visit).run()
}

/// Bytes of refused bodies that are searched for frames besides four times the bytes read. Bodies can
/// overlap: this keeps the time linear.
const PATIENCE: u64 = 1 << 20;

/// The bytes that are not read.
enum Input<'a, R> {
    Whole(&'a [u8]),
    Read { inner: R, queue: ByteQueue, at_end: bool },
}

impl<R: Read> Input<'_, R> {
    fn read(inner: R) -> Self {
        Self::Read { inner, queue: ByteQueue::default(), at_end: false }
    }

    fn rest(&self) -> &[u8] {
        match self {
            Self::Whole(rest) => rest,
            Self::Read { queue, .. } => queue.rest(),
        }
    }

    /// Whether there is nothing behind the rest.
    fn is_at_end(&self) -> bool {
        matches!(self, Self::Whole(_) | Self::Read { at_end: true, .. })
    }

    /// Reads until `len` bytes are there, or the input ends.
    fn fill(&mut self, len: u64) -> Result<()> {
        let Self::Read { inner, queue, at_end } = self else { return Ok(()) };
        while (queue.rest().len() as u64) < len && !*at_end {
            let missing = in_memory(len) - queue.rest().len();
            *at_end = queue.read(inner, missing.min(CHUNK))? == 0;
        }
        Ok(())
    }

    fn consume(&mut self, len: usize) {
        match self {
            Self::Whole(rest) => *rest = &rest[len..],
            Self::Read { queue, .. } => queue.consume(len),
        }
    }
}

/// Outcome of [`Salvage::step`].
enum Step {
    Goes,
    Ends,
}

struct Salvage<'a, R, F> {
    parser: Parser,
    input: Input<'a, R>,
    visit: F,
    patience: u64,
    /// An update whose last part has not come, and the error of the frame that may begin the next one.
    suspended: Option<(OpenUpdate, Error)>,
    /// Whether the last finding was a fault.
    after_fault: bool,
}

impl<'a, R: Read, F: FnMut(Finding<'_>) -> ControlFlow<()>> Salvage<'a, R, F> {
    fn new(parser: Parser, input: Input<'a, R>, visit: F) -> Self {
        Self { parser, input, visit, patience: PATIENCE, suspended: None, after_fault: false }
    }

    fn run(mut self) -> Result<()> {
        while let Step::Goes = self.step()? {}
        Ok(())
    }

    /// Reads the next event or fault.
    fn step(&mut self) -> Result<Step> {
        self.input.fill(HEADER_LEN.max(PREAMBLE_LEN) as u64)?;
        let needed = self.parser.needed(self.input.rest());
        self.input.fill(needed)?;
        let rest = self.input.rest();
        if rest.is_empty() {
            // A fault at the end explains why there is no end frame.
            if let (Err(error), false) = (self.parser.finish(0), self.after_fault) {
                let fault = Fault { error, offset: self.parser.offset(), len: 0, frame: None };
                _ = (self.visit)(Finding::Fault(fault));
            }
            return Ok(Step::Ends);
        }
        let offset = self.parser.offset();
        match self.parser.try_advance(rest) {
            Ok(Progress::Ready { consumed, event }) => {
                let mut flow = ControlFlow::Continue(());
                if let Some((_, error)) = self.suspended.take() {
                    flow = (self.visit)(Finding::Fault(Fault { error, offset, len: 0, frame: None }));
                }
                if flow.is_continue() {
                    flow = (self.visit)(Finding::Event(event));
                }
                self.after_fault = false;
                self.input.consume(consumed);
                self.patience = self.patience.saturating_add(4 * consumed as u64);
                Ok(if flow.is_break() { Step::Ends } else { Step::Goes })
            }
            Ok(Progress::NeedMore) => {
                let len = rest.len();
                let error = self.parser.finish(len).err();
                let cut = Error::format(FormatErrorKind::Truncated, self.parser.offset() + len as u64);
                self.search(error.unwrap_or(cut))
            }
            Err(error) if self.parser.is_at_start() => self.leave_preamble(error),
            Err(error) => self.leave_frame(error),
        }
    }

    /// Leaves out a preamble that is wrong, if frames follow it.
    fn leave_preamble(&mut self, error: Error) -> Result<Step> {
        self.input.fill((PREAMBLE_LEN + SYNC.len()) as u64)?;
        let has_frame = self.input.rest().get(PREAMBLE_LEN..PREAMBLE_LEN + SYNC.len()) == Some(&SYNC);
        if has_frame && matches!(error, Error::Format(_)) {
            return self.leave(error, PREAMBLE_LEN, None);
        }
        // No stream at all: nothing in it is searched for.
        let fault = Fault { error, offset: 0, len: 0, frame: None };
        _ = (self.visit)(Finding::Fault(fault));
        Ok(Step::Ends)
    }

    /// Leaves out a frame that is refused.
    fn leave_frame(&mut self, error: Error) -> Result<Step> {
        let bytes = self.input.rest();
        let header = bytes.first_chunk().and_then(|h| FrameHeader::read(h, self.parser.offset()).ok());
        let Some(header) = header else { return self.search(error) };
        let len = header.body_len.saturating_add(HEADER_LEN as u64);
        let recovering = self.parser.is_recovering;
        if !recovering && matches!(error, Error::Limit(e) if e.limit == "max_frame_bytes") {
            return self.skip(error, header, len);
        }
        self.input.fill(len.saturating_add(SYNC.len() as u64))?;
        let len = in_memory(len);
        let rest = self.input.rest();
        if rest.len() < len {
            // An unknown kind of frame is refused before its body has come.
            return self.search(error);
        }
        let in_place = !recovering && (rest.len() == len || rest[len..].starts_with(&SYNC));
        let is_whole = header.check_body(&rest[HEADER_LEN..len], 0).is_ok();
        let misplaced =
            matches!(&error, Error::Format(e) if matches!(e.kind, FormatErrorKind::Misplaced { .. }));
        if misplaced
            && self.suspended.is_none()
            && let Some(open) = self.parser.suspend_update()
        {
            // The rest of the update before may be lost, and this frame the first of the next one.
            self.suspended = Some((open, error));
            self.parser.leave_out(0, false);
            return Ok(Step::Goes);
        }
        match self.suspended.take() {
            // A part that belongs to no update, such as a repeated one.
            Some((open, _)) => self.parser.resume_update(Some(open)),
            None if header.kind == FrameKind::UPDATE && !recovering => _ = self.parser.suspend_update(),
            None => {}
        }
        if !is_whole && !in_place && self.patience >= len as u64 {
            // Bytes may be missing in this body, and the next frame stand in it.
            self.patience -= len as u64;
            return self.search(error);
        }
        self.leave(error, len, Some(header))
    }

    /// Reports the next `len` bytes as a fault.
    fn leave(&mut self, error: Error, len: usize, header: Option<FrameHeader>) -> Result<Step> {
        let body = self.input.rest().get(HEADER_LEN..len);
        let number = self.parser.next_frame();
        let frame = header.map(|header| DamagedFrame { number, header, body: body.unwrap_or_default() });
        let fault = Fault { error, offset: self.parser.offset(), len: len as u64, frame };
        let flow = (self.visit)(Finding::Fault(fault));
        self.after_fault = true;
        self.parser.leave_out(len as u64, header.is_some());
        self.input.consume(len);
        Ok(if flow.is_break() { Step::Ends } else { Step::Goes })
    }

    /// Leaves out a frame that is too long to be held in memory.
    fn skip(&mut self, error: Error, header: FrameHeader, len: u64) -> Result<Step> {
        let number = self.parser.next_frame();
        let frame = Some(DamagedFrame { number, header, body: &[] });
        let fault = Fault { error, offset: self.parser.offset(), len, frame };
        let flow = (self.visit)(Finding::Fault(fault));
        let mut left = len;
        while left > 0 {
            self.input.fill(left.min(CHUNK as u64))?;
            let here = in_memory(left).min(self.input.rest().len());
            if here == 0 {
                break;
            }
            self.input.consume(here);
            left -= here as u64;
        }
        self.after_fault = true;
        self.parser.leave_out(len - left, true);
        Ok(if flow.is_break() { Step::Ends } else { Step::Goes })
    }

    /// Leaves out everything up to the next frame, which has a correct header.
    fn search(&mut self, error: Error) -> Result<Step> {
        let mut skipped = 1u64;
        self.input.consume(1);
        loop {
            self.input.fill(CHUNK as u64)?;
            let rest = self.input.rest();
            match rest.windows(SYNC.len()).position(|w| w == SYNC) {
                Some(at) => {
                    self.input.consume(at);
                    skipped += at as u64;
                    self.input.fill(HEADER_LEN as u64)?;
                    let header = self.input.rest().first_chunk();
                    if header.is_some_and(|h| FrameHeader::read(h, 0).is_ok()) {
                        break;
                    }
                    self.input.consume(1);
                    skipped += 1;
                }
                None => {
                    let keep = if self.input.is_at_end() { 0 } else { SYNC.len() - 1 };
                    let len = rest.len().saturating_sub(keep);
                    self.input.consume(len);
                    skipped += len as u64;
                    if self.input.is_at_end() {
                        break;
                    }
                }
            }
        }
        let fault = Fault { error, offset: self.parser.offset(), len: skipped, frame: None };
        let flow = (self.visit)(Finding::Fault(fault));
        self.patience = self.patience.saturating_add(4 * skipped);
        self.after_fault = true;
        self.parser.leave_out(skipped, false);
        Ok(if flow.is_break() { Step::Ends } else { Step::Goes })
    }
}

#[cfg(test)]
mod tests;
