//! Parts of a finished stream that is not in memory.

use std::ops::Range;

use super::open::{read_end, read_index};
use crate::error::{Error, FormatErrorKind, Result};
use crate::frame::{End, FrameKind, HEADER_LEN, PREAMBLE_LEN};

/// Bytes at the end of a finished stream that [`index_start`] reads.
pub const TAIL_LEN: usize = HEADER_LEN + End::BODY_LEN;

/// Returns the offset of the index of a finished stream. `bytes` has the stream's length; only its last
/// [`TAIL_LEN`] bytes are read.
///
/// # Errors
/// [`Error::Format`] if they are not the end of a stream with an index.
pub fn index_start(bytes: &[u8]) -> Result<u64> {
    let (_, offset, end) = read_end(bytes)?;
    match end.index_offset {
        start if start >= PREAMBLE_LEN as u64 && start < offset => Ok(start),
        value => Err(Error::format(FormatErrorKind::OutOfRange { field: "index_offset", value }, offset)),
    }
}

/// Returns the ranges that [`File`](super::File) reads to decode the tensors with these numbers: all but the
/// blocks of others.
/// `bytes` has the stream's length; only its index and what follows are read. Fetch the ranges into their
/// places, then open the file: it checks what it reads.
///
/// # Errors
/// [`Error::Format`] if the index is corrupt.
pub fn ranges(bytes: &[u8], tensors: &[u64]) -> Result<Vec<Range<u64>>> {
    let start = index_start(bytes)?;
    let index = read_index(bytes)?;
    let wrong = || Error::format(FormatErrorKind::LengthMismatch { field: "index" }, start);
    let mut updates = index.updates.iter();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut add = |range: Range<u64>| match ranges.last_mut() {
        _ if range.end > start || range.start > range.end => Err(wrong()),
        Some(last) if last.end == range.start => {
            last.end = range.end;
            Ok(())
        }
        _ => {
            ranges.push(range);
            Ok(())
        }
    };
    add(0..PREAMBLE_LEN as u64)?;
    for (offset, frame) in index.frame_offsets() {
        if frame.kind != FrameKind::UPDATE {
            add(offset..offset.saturating_add(frame.len))?;
            continue;
        }
        let update = updates.next().ok_or_else(wrong)?;
        let mut at = offset.saturating_add(HEADER_LEN as u64).saturating_add(update.head_len);
        add(offset..at)?;
        for block in &update.blocks {
            let end = at.saturating_add(block.len);
            // A block begins with its scope, which the file compares with the index.
            let scope = block.first..block.first.saturating_add(block.tensors);
            let is_wanted = tensors.iter().any(|n| scope.contains(n));
            add(at..if is_wanted { end } else { end.min(at.saturating_add(SCOPE_LEN)) })?;
            at = end;
        }
    }
    Ok(ranges)
}

/// Most bytes of a block's scope.
const SCOPE_LEN: u64 = 64;
