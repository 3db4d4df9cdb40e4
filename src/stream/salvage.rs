//! Reads a corrupt stream to its end: what is whole, and every fault.

use std::io::Read;
use std::ops::ControlFlow;

use crate::error::{Error, FormatErrorKind, Result};
use crate::frame::{FrameHeader, FrameKind, HEADER_LEN, PREAMBLE_LEN, SYNC};
use crate::limits::{Limits, in_memory};
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
    let parser = Parser::new(limits.clone());
    let buffer = Buffer { inner, bytes: Vec::new(), start: 0, at_end: false };
    Salvage { parser, buffer, visit, patience: PATIENCE, suspended: None, after_fault: false }.run()
}

/// Bytes per call of the inner reader.
const CHUNK: usize = 1 << 18;
/// Bytes of refused bodies that are searched for frames besides four times the bytes read. Bodies can
/// overlap: this keeps the time linear.
const PATIENCE: u64 = 1 << 20;

/// Unread bytes.
struct Buffer<R> {
    inner: R,
    bytes: Vec<u8>,
    start: usize,
    at_end: bool,
}

impl<R: Read> Buffer<R> {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Reads until `len` bytes are there, or the input ends.
    fn fill(&mut self, len: u64) -> Result<()> {
        while (self.rest().len() as u64) < len && !self.at_end {
            if self.start > self.bytes.len() / 2 {
                self.bytes.drain(..self.start);
                self.start = 0;
            }
            let missing = in_memory(len) - self.rest().len();
            let old = self.bytes.len();
            // At most a chunk more than has arrived: a length that a frame declares allocates nothing.
            self.bytes.resize(old + missing.clamp(1, CHUNK), 0);
            let read = loop {
                match self.inner.read(&mut self.bytes[old..]) {
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    read => break read,
                }
            };
            self.bytes.truncate(old + read.as_ref().map_or(0, |read| *read));
            self.at_end = read? == 0;
        }
        Ok(())
    }

    fn consume(&mut self, len: usize) {
        self.start += len;
    }
}

/// Outcome of [`Salvage::step`].
enum Step {
    Goes,
    Ends,
}

struct Salvage<R, F> {
    parser: Parser,
    buffer: Buffer<R>,
    visit: F,
    patience: u64,
    /// An update whose last part has not come, and the error of the frame that may begin the next one.
    suspended: Option<(OpenUpdate, Error)>,
    /// Whether the last finding was a fault.
    after_fault: bool,
}

impl<R: Read, F: FnMut(Finding<'_>) -> ControlFlow<()>> Salvage<R, F> {
    fn run(mut self) -> Result<()> {
        while let Step::Goes = self.step()? {}
        Ok(())
    }

    /// Reads the next event or fault.
    fn step(&mut self) -> Result<Step> {
        self.buffer.fill(HEADER_LEN.max(PREAMBLE_LEN) as u64)?;
        let needed = self.parser.needed(self.buffer.rest());
        self.buffer.fill(needed)?;
        let rest = &self.buffer.bytes[self.buffer.start..];
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
                self.buffer.consume(consumed);
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
        self.buffer.fill((PREAMBLE_LEN + SYNC.len()) as u64)?;
        let has_frame = self.buffer.rest().get(PREAMBLE_LEN..PREAMBLE_LEN + SYNC.len()) == Some(&SYNC);
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
        let bytes = self.buffer.rest();
        let header = bytes.first_chunk().and_then(|h| FrameHeader::read(h, self.parser.offset()).ok());
        let Some(header) = header else { return self.search(error) };
        let len = header.body_len.saturating_add(HEADER_LEN as u64);
        if matches!(error, Error::Limit(e) if e.limit == "max_frame_bytes") {
            return self.skip(error, header, len);
        }
        self.buffer.fill(len.saturating_add(SYNC.len() as u64))?;
        let len = in_memory(len);
        let rest = self.buffer.rest();
        if rest.len() < len {
            // An unknown kind of frame is refused before its body has come.
            return self.search(error);
        }
        let in_place = rest.len() == len || rest[len..].starts_with(&SYNC);
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
            None if header.kind == FrameKind::UPDATE => _ = self.parser.suspend_update(),
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
        let body = self.buffer.bytes.get(self.buffer.start + HEADER_LEN..self.buffer.start + len);
        let number = self.parser.next_frame();
        let frame = header.map(|header| DamagedFrame { number, header, body: body.unwrap_or_default() });
        let fault = Fault { error, offset: self.parser.offset(), len: len as u64, frame };
        let flow = (self.visit)(Finding::Fault(fault));
        self.after_fault = true;
        self.parser.leave_out(len as u64, header.is_some());
        self.buffer.consume(len);
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
            self.buffer.fill(left.min(CHUNK as u64))?;
            let here = in_memory(left).min(self.buffer.rest().len());
            if here == 0 {
                break;
            }
            self.buffer.consume(here);
            left -= here as u64;
        }
        self.after_fault = true;
        self.parser.leave_out(len - left, true);
        Ok(if flow.is_break() { Step::Ends } else { Step::Goes })
    }

    /// Leaves out everything up to the next frame, which has a correct header.
    fn search(&mut self, error: Error) -> Result<Step> {
        let mut skipped = 1u64;
        self.buffer.consume(1);
        loop {
            self.buffer.fill(CHUNK as u64)?;
            let rest = self.buffer.rest();
            match rest.windows(SYNC.len()).position(|w| w == SYNC) {
                Some(at) => {
                    self.buffer.consume(at);
                    skipped += at as u64;
                    self.buffer.fill(HEADER_LEN as u64)?;
                    let header = self.buffer.rest().first_chunk();
                    if header.is_some_and(|h| FrameHeader::read(h, 0).is_ok()) {
                        break;
                    }
                    self.buffer.consume(1);
                    skipped += 1;
                }
                None => {
                    let keep = if self.buffer.at_end { 0 } else { SYNC.len() - 1 };
                    let len = rest.len().saturating_sub(keep);
                    self.buffer.consume(len);
                    skipped += len as u64;
                    if self.buffer.at_end {
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
mod tests {
    use super::*;
    use crate::bits::crc32;
    use crate::block::{Block, Floats, Scope, Stored, Support, Values};
    use crate::frame::{Manifest, TensorInfo, UpdateHeader};
    use crate::stream::{Body, EncodeOptions, Encoder, SliceReader};
    use crate::tensor::Dtype;
    use std::cell::Cell;
    use std::sync::Arc;

    /// A finding: for a frame its number, offset and step if it is an update; for a fault its error's name,
    /// its offset and length, and the number and the bytes of its frame's body.
    #[derive(Debug, Clone, PartialEq)]
    enum Found {
        Preamble,
        Frame(u64, u64, Option<u64>),
        Fault(&'static str, u64, u64, Option<(u64, usize)>),
    }

    fn found(finding: &Finding<'_>) -> Found {
        match finding {
            Finding::Event(Event::Preamble(_)) => Found::Preamble,
            Finding::Event(Event::Frame(info, body)) => {
                let step = if let Body::Update(part) = body { Some(part.header.step) } else { None };
                Found::Frame(info.number, info.offset, step)
            }
            Finding::Fault(fault) => {
                let frame = fault.frame.map(|frame| (frame.number, frame.body.len()));
                Found::Fault(fault.error.name(), fault.offset, fault.len, frame)
            }
        }
    }

    fn salvaged(bytes: &[u8], limits: &Limits) -> Vec<Found> {
        let mut all = Vec::new();
        let visit = |finding: Finding<'_>| {
            all.push(found(&finding));
            ControlFlow::Continue(())
        };
        salvage(bytes, limits, visit).unwrap();
        all
    }

    /// A frame with a correct header, of a kind that a reader skips.
    fn frame(body: &[u8]) -> Vec<u8> {
        of_kind(0xf001, body)
    }

    fn of_kind(kind: u16, body: &[u8]) -> Vec<u8> {
        [&FrameHeader::of(FrameKind(kind), 0, body).to_bytes()[..], body].concat()
    }

    /// Private frames with these bodies, an index and an end.
    fn stream(bodies: &[&[u8]]) -> Vec<u8> {
        let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
        bodies.iter().for_each(|body| encoder.private(&mut out, FrameKind(0xf001), body).unwrap());
        encoder.finish(&mut out);
        out
    }

    /// Two updates of three parts each, steps 1 and 2, without an index.
    fn updates() -> Vec<u8> {
        let infos = ["a", "b", "c"].map(|name| TensorInfo::new(name, Dtype::F32, [1]));
        let manifest = Arc::new(Manifest::new(infos.to_vec()).unwrap());
        let blocks = [0, 1, 2].map(|tensor| Block {
            scope: Scope::Tensor(tensor),
            add: false,
            support: Support::All,
            values: Values::Floats(Floats { stored: Stored::F32, bytes: vec![0; 4] }),
        });
        let options = EncodeOptions::default().with_part_bytes(1).with_index(false);
        let (mut encoder, mut out) = (Encoder::new(options), Vec::new());
        for step in [1, 2] {
            encoder.update(&mut out, &UpdateHeader::default().with_step(step), &manifest, &blocks).unwrap();
        }
        encoder.finish(&mut out);
        out
    }

    /// The first byte of each frame, and the end of the stream.
    fn offsets(stream: &[u8]) -> Vec<usize> {
        let offset = |event| match event {
            Event::Frame(info, _) => Some(info.offset as usize),
            Event::Preamble(_) => None,
        };
        let frames = SliceReader::new(stream, Limits::default()).filter_map(|event| offset(event.unwrap()));
        frames.chain([stream.len()]).collect()
    }

    fn flipped(stream: &[u8], at: usize) -> Vec<u8> {
        let mut out = stream.to_vec();
        out[at] ^= 1;
        out
    }

    /// `stream` with `bytes` instead of those from `start` to `end`.
    fn replaced(stream: &[u8], start: usize, end: usize, bytes: &[u8]) -> Vec<u8> {
        [&stream[..start], bytes, &stream[end..]].concat()
    }

    /// The findings that [`Found::Fault`] and the frames from number `frame` of a stream give, if the frames
    /// that follow the fault are numbered from `number` on, and moved by `moved` bytes.
    fn after(frames: &[usize], frame: usize, number: usize, moved: i64) -> Vec<Found> {
        let rest = frames[..frames.len() - 1].iter().enumerate().skip(frame);
        rest.map(|(i, &at)| Found::Frame((i - frame + number) as u64, (at as i64 + moved) as u64, None))
            .collect()
    }

    /// Corrupt streams of frames that are no updates, and what is found in them after the preamble and the
    /// first frame.
    fn corrupt() -> Vec<(&'static str, Vec<u8>, Vec<Found>)> {
        let whole = stream(&[b"first", b"second", b"third"]);
        let at = offsets(&whole);
        let (from, to, len) = (at[1], at[2], (at[2] - at[1]) as u64);
        let fault = |name, offset: usize, len: u64, frame| Found::Fault(name, offset as u64, len, frame);
        let (end, end_len) = (at[4], whole.len() - at[4]);
        let with = |fault: Found, rest: Vec<Found>| [vec![fault], rest].concat();
        let false_sync = [&SYNC[..], &[0; 30]].concat();
        let unknown = of_kind(0x0123, &frame(b"inner"));
        let cut = replaced(&whole, from, whole.len(), &of_kind(0x0123, &[1; 100])[..34]);
        vec![
            ("nothing", whole.clone(), after(&at, 1, 1, 0)),
            (
                "a body",
                flipped(&whole, to - 1),
                with(fault("checksum_mismatch", from, len, Some((1, 6))), after(&at, 2, 2, 0)),
            ),
            (
                "a header",
                flipped(&whole, from + 5),
                with(fault("checksum_mismatch", from, len, None), after(&at, 2, 1, 0)),
            ),
            (
                "a missing byte",
                replaced(&whole, to - 1, to, b""),
                with(fault("checksum_mismatch", from, len - 1, None), after(&at, 2, 1, -1)),
            ),
            (
                "bytes between frames",
                replaced(&whole, from, from, b"between"),
                with(fault("bad_sync", from, 7, None), after(&at, 1, 1, 7)),
            ),
            (
                "a false sync word",
                replaced(&whole, from, from, &false_sync),
                with(fault("checksum_mismatch", from, 34, None), after(&at, 1, 1, 34)),
            ),
            (
                "a false sync word after a byte",
                replaced(&whole, from, from, &[b"x", &false_sync[..]].concat()),
                with(fault("bad_sync", from, 35, None), after(&at, 1, 1, 35)),
            ),
            (
                "an unknown frame with a frame inside, and bytes behind it",
                replaced(&whole, from, from, &[&unknown[..], b"??"].concat()),
                [
                    vec![
                        fault(
                            "unsupported",
                            from,
                            unknown.len() as u64,
                            Some((1, unknown.len() - HEADER_LEN)),
                        ),
                        fault("bad_sync", from + unknown.len(), 2, None),
                    ],
                    after(&at, 1, 2, unknown.len() as i64 + 2),
                ]
                .concat(),
            ),
            ("an unknown frame that is cut", cut, vec![fault("unsupported", from, 34, None)]),
            (
                "the end",
                flipped(&whole, whole.len() - 1),
                [
                    after(&at[..5], 1, 1, 0),
                    vec![fault("checksum_mismatch", end, end_len as u64, Some((4, end_len - HEADER_LEN)))],
                ]
                .concat(),
            ),
            (
                "no end",
                whole[..end].to_vec(),
                [after(&at[..5], 1, 1, 0), vec![fault("truncated", end, 0, None)]].concat(),
            ),
            (
                "a body, and no end",
                flipped(&whole[..end], to - 1),
                [
                    vec![fault("checksum_mismatch", from, len, Some((1, 6)))],
                    after(&at[..5], 2, 2, 0),
                    vec![fault("truncated", end, 0, None)],
                ]
                .concat(),
            ),
            (
                "a part of the end",
                whole[..whole.len() - 2].to_vec(),
                [after(&at[..5], 1, 1, 0), vec![fault("truncated", end, end_len as u64 - 2, None)]].concat(),
            ),
            (
                "bytes behind the end",
                [&whole[..], b"xy", &SYNC, b"12345"].concat(),
                [after(&at, 1, 1, 0), vec![fault("bad_sync", whole.len(), 11, None)]].concat(),
            ),
        ]
    }

    #[test]
    fn faults_and_the_frames_around_them_have_their_places() {
        for (what, bytes, expected) in corrupt() {
            let start = vec![Found::Preamble, Found::Frame(0, PREAMBLE_LEN as u64, None)];
            let expected = [start, expected].concat();
            assert_eq!(salvaged(&bytes, &Limits::default()), expected, "{what}");
        }
    }

    #[test]
    fn a_corrupt_preamble_hides_no_frame() {
        let whole = stream(&[b"first", b"second"]);
        let start = vec![Found::Fault("checksum_mismatch", 0, 16, None)];
        let expected = [start, after(&offsets(&whole), 0, 0, 0)].concat();
        assert_eq!(salvaged(&flipped(&whole, 9), &Limits::default()), expected);
        // Another version, and other files: nothing is searched for.
        let mut other = [&whole[..8], &[2, 0, 0, 0]].concat();
        other.extend(crc32(&other).to_le_bytes());
        other.extend(&whole[PREAMBLE_LEN..]);
        for (bytes, name) in
            [(&other[..], "unsupported"), (b"another kind of file, without frames", "bad_magic")]
        {
            assert_eq!(salvaged(bytes, &Limits::default()), [Found::Fault(name, 0, 0, None)]);
        }
    }

    #[test]
    fn a_lost_part_hides_only_its_update() {
        let whole = updates();
        let at = offsets(&whole);
        let parts = |frames: std::ops::Range<usize>, moved: i64| -> Vec<Found> {
            let step = |i: usize| Some(1 + (i as u64 - 1) / 3).filter(|step| *step < 3);
            let step = |i: usize| if i == 0 { None } else { step(i) };
            let frame = |i: usize| (at[i] as i64 + moved) as u64;
            frames.map(|i| Found::Frame(i as u64, frame(i), step(i))).collect()
        };
        let renumbered = |found: Vec<Found>, by: i64| -> Vec<Found> {
            let renumber = |found| match found {
                Found::Frame(number, offset, step) => Found::Frame((number as i64 + by) as u64, offset, step),
                other => other,
            };
            found.into_iter().map(renumber).collect()
        };
        let len = |i: usize| at[i + 1] - at[i];
        let fault = |name, offset: usize, len: usize, number: Option<u64>| {
            let frame = number.map(|number| (number, len - HEADER_LEN));
            vec![Found::Fault(name, offset as u64, len as u64, frame)]
        };
        let other = flipped(&frame(b"other"), HEADER_LEN);
        let moved = other.len() as i64;
        let back = -(len(3) as i64);
        for (what, bytes, expected) in [
            (
                "the last part is lost",
                replaced(&whole, at[3], at[4], b""),
                [parts(0..3, 0), fault("misplaced", at[3], 0, None), renumbered(parts(4..8, back), -1)],
            ),
            (
                "a part is corrupt",
                flipped(&whole, at[3] - 1),
                [
                    parts(0..2, 0),
                    [
                        fault("checksum_mismatch", at[2], len(2), Some(2)),
                        fault("misplaced", at[3], len(3), Some(3)),
                    ]
                    .concat(),
                    parts(4..8, 0),
                ],
            ),
            (
                "a part is repeated",
                replaced(&whole, at[3], at[3], &whole[at[2]..at[3]]),
                [
                    parts(0..3, 0),
                    fault("misplaced", at[3], len(2), Some(3)),
                    renumbered(parts(3..8, len(2) as i64), 1),
                ],
            ),
            (
                "a corrupt frame stands between two parts",
                replaced(&whole, at[2], at[2], &other),
                [
                    parts(0..2, 0),
                    fault("checksum_mismatch", at[2], other.len(), Some(2)),
                    renumbered(parts(2..8, moved), 1),
                ],
            ),
        ] {
            let expected = [vec![Found::Preamble], expected.concat()].concat();
            assert_eq!(salvaged(&bytes, &Limits::default()), expected, "{what}");
        }
    }

    /// Frames longer than the limit, of several chunks and of one byte more than a chunk.
    #[test]
    fn a_frame_beyond_the_limit_is_not_held_in_memory() {
        let limits = Limits::default().with_max_frame_bytes(1000);
        let whole = stream(&[b"first", b"second"]);
        let at = offsets(&whole);
        for len in [1025, CHUNK + 1, 4 * CHUNK] {
            let long = frame(&vec![0; len - HEADER_LEN]);
            let bytes = replaced(&whole, at[1], at[1], &long);
            let start = vec![
                Found::Preamble,
                Found::Frame(0, at[0] as u64, None),
                Found::Fault("limit", at[1] as u64, len as u64, Some((1, 0))),
            ];
            let expected = [start, after(&at, 1, 2, len as i64)].concat();
            assert_eq!(salvaged(&bytes, &limits), expected, "{len}");
            // A cut inside it is the same fault.
            assert_eq!(salvaged(&bytes[..at[1] + len - 10], &limits), expected[..3], "{len}");

            let mut salvage = begin(&bytes[..], &limits, PATIENCE, |_| ControlFlow::Continue(()));
            let mut most = 0;
            while let Step::Goes = salvage.step().unwrap() {
                most = most.max(salvage.buffer.bytes.capacity());
            }
            assert!(most < 3 * CHUNK, "{most} bytes");
        }
    }

    fn begin<R: Read, F: FnMut(Finding<'_>) -> ControlFlow<()>>(
        inner: R,
        limits: &Limits,
        patience: u64,
        visit: F,
    ) -> Salvage<R, F> {
        let buffer = Buffer { inner, bytes: Vec::new(), start: 0, at_end: false };
        let parser = Parser::new(limits.clone());
        Salvage { parser, buffer, visit, patience, suspended: None, after_fault: false }
    }

    #[test]
    fn frames_are_found_at_the_end_of_what_is_read_at_once() {
        let whole = stream(&[b"first", b"second"]);
        let at = offsets(&whole);
        for len in [CHUNK - 10, CHUNK - 4, CHUNK - 2, CHUNK, CHUNK + 5] {
            let bytes = replaced(&whole, at[1], at[1], &vec![0; len]);
            let start = vec![
                Found::Preamble,
                Found::Frame(0, at[0] as u64, None),
                Found::Fault("bad_sync", at[1] as u64, len as u64, None),
            ];
            let expected = [start, after(&at, 1, 1, len as i64)].concat();
            assert_eq!(salvaged(&bytes, &Limits::default()), expected, "{len}");
        }
    }

    #[test]
    fn the_visitor_ends_it_at_any_finding() {
        let lost = updates();
        let at = offsets(&lost);
        let lost = replaced(&lost, at[3], at[4], b"");
        let long = stream(&[b"first", &[0; 1001], b"third"]);
        let limits = Limits::default().with_max_frame_bytes(1000);
        for bytes in corrupt().into_iter().map(|(_, bytes, _)| bytes).chain([lost, long]) {
            let all = salvaged(&bytes, &limits);
            for most in 1..=all.len() {
                let mut visited = Vec::new();
                let visit = |finding: Finding<'_>| {
                    visited.push(found(&finding));
                    if visited.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                };
                salvage(&bytes[..], &limits, visit).unwrap();
                assert_eq!(visited, all[..most]);
            }
        }
    }

    /// Each body of a missing byte is searched while four times the bytes read, and what is left of the first
    /// allowance, are not less than its frame.
    #[test]
    fn the_search_in_refused_bodies_is_bounded_by_the_bytes_read() {
        let missing = |len: usize| frame(&vec![7; len]).split_last().unwrap().1.to_vec();
        let (first, next) = (frame(b"first"), frame(b"next"));
        let preamble = &stream(&[])[..PREAMBLE_LEN];
        // Returns whether the frames behind the two damaged ones are found.
        let finds = |patience: u64, lens: [usize; 2]| {
            let [one, two] = lens.map(missing);
            let bytes = [preamble, &first, &one, &next, &two, &next].concat();
            let places = [PREAMBLE_LEN + first.len() + one.len(), bytes.len() - next.len()];
            let mut offsets = Vec::new();
            let visit = |finding: Finding<'_>| {
                if let Finding::Event(Event::Frame(info, _)) = finding {
                    offsets.push(info.offset as usize);
                }
                ControlFlow::Continue(())
            };
            begin(&bytes[..], &Limits::default(), patience, visit).run().unwrap();
            places.map(|place| offsets.contains(&place))
        };
        let one = 1000;
        let enough = (one + HEADER_LEN - 4 * (PREAMBLE_LEN + first.len())) as u64;
        // The allowance is spent on the first damaged frame, then grows by that and the frame behind it.
        let two = 4 * (one + HEADER_LEN - 1 + next.len()) - HEADER_LEN;
        assert_eq!(finds(enough, [one, two]), [true, true]);
        assert_eq!(finds(enough, [one, two + 1]), [true, false]);
        assert!(!finds(enough - 1, [one, 0])[0]);
    }

    /// Counts the bytes that are taken from a slice. Every other call is interrupted.
    struct Counted<'a> {
        rest: &'a [u8],
        taken: &'a Cell<u64>,
        interrupt: bool,
    }

    impl Read for Counted<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.interrupt = !self.interrupt;
            if self.interrupt {
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            let read = self.rest.read(out)?;
            self.taken.set(self.taken.get() + read as u64);
            Ok(read)
        }
    }

    #[test]
    fn no_more_is_read_than_the_next_event_needs() {
        let whole = stream(&[b"first", &[0; 2000], b""]);
        let taken = Cell::new(0);
        let mut ends = Vec::new();
        let visit = |finding: Finding<'_>| {
            let Finding::Event(Event::Frame(info, _)) = finding else { return ControlFlow::Continue(()) };
            assert_eq!(taken.get(), info.offset + info.len());
            ends.push(taken.get());
            ControlFlow::Continue(())
        };
        salvage(Counted { rest: &whole, taken: &taken, interrupt: false }, &Limits::default(), visit)
            .unwrap();
        assert_eq!((ends.len(), ends.last()), (5, Some(&(whole.len() as u64))));
    }

    #[test]
    fn consumed_bytes_leave_the_buffer() {
        let inner = std::io::repeat(7);
        let mut buffer = Buffer { inner, bytes: Vec::new(), start: 0, at_end: false };
        for _ in 0..100 {
            buffer.fill(100).unwrap();
            buffer.consume(100);
            assert!(buffer.bytes.len() <= 200, "{} bytes", buffer.bytes.len());
        }
    }
}
