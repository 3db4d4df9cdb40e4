use crate::error::Result;
use crate::frame::{FrameHeader, FrameKind, HEADER_LEN, IndexedUpdate, SYNC, UpdatePart};
use crate::limits::Limits;
use crate::stream::{Body, EncodeOptions, Encoder, Event, Parser, Progress};

/// Result of [`recover`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// New stream: every intact frame, then a new index and end.
    pub stream: Vec<u8>,
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
/// exist. Frames of unknown ancillary kinds are kept.
///
/// # Errors
/// None at present. Frames that exceed the limits are dropped.
pub fn recover(bytes: &[u8], limits: &Limits) -> Result<Recovered> {
    let mut saved = Recovered::default();
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut out = Vec::new();
    let mut parser = Parser::recovering(limits.clone());
    // The parts of an update are kept when its last part is found.
    let mut open: Vec<Whole<'_>> = Vec::new();
    let mut at = 0;
    // A body with a wrong checksum is searched for frames, because bytes may be missing in it. Bodies can
    // overlap: this is the number of bytes of such bodies to search before they are skipped whole, so that
    // time stays linear.
    let mut patience = bytes.len().saturating_mul(4);
    while at < bytes.len() {
        let candidate = candidate_frame(&bytes[at..]);
        let whole = candidate.filter(|(header, body)| header.check_body(body, 0).is_ok());
        let Some((header, body)) = whole else {
            let in_vain = candidate.map_or(0, |(_, body)| body.len());
            let from = if in_vain <= patience { at + 1 } else { at + HEADER_LEN + in_vain };
            patience = patience.saturating_sub(in_vain);
            let next = bytes[from..].windows(SYNC.len()).position(|w| w == SYNC);
            let skipped = next.map_or(bytes.len(), |n| from + n) - at;
            // The preamble is written again: it is not lost.
            if at > 0 || skipped != crate::frame::PREAMBLE_LEN {
                saved.bytes_lost += skipped as u64;
            }
            at += skipped;
            continue;
        };
        let whole = Whole { header, body, indexed: None };
        at += HEADER_LEN + whole.body.len();
        saved.had_end = whole.header.kind == FrameKind::END && at == bytes.len();
        if matches!(whole.header.kind, FrameKind::INDEX | FrameKind::END) {
            continue;
        }
        // Every frame is read as if it were the first of its stream: offsets do not matter here.
        let frame = &bytes[at - HEADER_LEN - whole.body.len()..at];
        let mut read = parser.recover_frame(frame);
        if read.is_err() && whole.header.kind == FrameKind::UPDATE && !open.is_empty() {
            // The rest of the update before may be lost, and this frame the first of the next update.
            let suspended = parser.suspend_update();
            read = parser.recover_frame(frame);
            if read.is_ok() {
                saved.frames_dropped += open.len() as u64;
                open.clear();
            } else {
                // The frame belongs to no update: it is a repeated part, or the parts before it are lost.
                parser.resume_update(suspended);
            }
        }
        let Ok(Progress::Ready { event: Event::Frame(_, body), .. }) = read else {
            saved.frames_dropped += 1;
            continue;
        };
        match body {
            Body::Update(part) => {
                let indexed = IndexedUpdate::of(&part, whole.body);
                let last = part.last;
                if decodes(&part) {
                    open.push(Whole { indexed: Some(indexed), ..whole });
                } else {
                    saved.frames_dropped += 1 + open.len() as u64;
                    open.clear();
                    parser.suspend_update();
                    continue;
                }
                if last {
                    saved.updates_kept += 1;
                    for part in open.drain(..) {
                        saved.frames_kept += 1;
                        encoder.copy(&mut out, &part.header, part.body, part.indexed);
                    }
                }
            }
            _ => {
                saved.frames_kept += 1;
                encoder.copy(&mut out, &whole.header, whole.body, None);
            }
        }
    }
    saved.frames_dropped += open.len() as u64;
    encoder.finish(&mut out);
    saved.stream = out;
    Ok(saved)
}

/// A frame whose checksums match.
struct Whole<'a> {
    header: FrameHeader,
    body: &'a [u8],
    indexed: Option<IndexedUpdate>,
}

/// Returns header and body of a possible frame. The header's checksum matches; the body's is not checked yet.
fn candidate_frame(bytes: &[u8]) -> Option<(FrameHeader, &[u8])> {
    let header = FrameHeader::read(bytes.first_chunk()?, 0).ok()?;
    let len = usize::try_from(header.body_len).ok()?.checked_add(HEADER_LEN)?;
    Some((header, bytes.get(HEADER_LEN..len)?))
}

/// Whether all blocks decode: a frame with right checksums can still have wrong content.
fn decodes(part: &UpdatePart<'_>) -> bool {
    part.decode_all().is_ok()
}
