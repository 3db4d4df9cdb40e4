//! New segments of finished files.

use std::fs;
use std::io::{Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use crate::arch::map::Map;
use crate::error::{Error, FormatErrorKind, Result};
use crate::file::open::{read_end, read_index};
use crate::frame::{FrameKind, HEADER_LEN, IndexedFrame, Manifest};
use crate::limits::Limits;
use crate::stream::{EncodeOptions, Encoder, Writer};

/// Opens a finished file to append a segment.
///
/// Existing bytes are never overwritten: if the process dies before [`Writer::finish`], the file still has
/// its old content, and [`recover`](crate::file::recover) removes the rest. Index sets of earlier segments
/// must be registered or sent again.
///
/// # Errors
/// [`Error::Format`] if the file is not a finished stream with an index; [`Error::Io`].
pub fn append(path: &Path, options: EncodeOptions) -> Result<Writer<fs::File>> {
    let mut file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    if file.metadata()?.len() == 0 {
        return Err(Error::format(FormatErrorKind::Truncated, 0));
    }
    // Mapped, because only the end and the manifests are read, however long the file is.
    let bytes = Map::open(path)?;
    let (end_header, end_offset, end) = read_end(&bytes)?;
    let mut index = read_index(&bytes)?;
    let offset = bytes.len() as u64;
    index.frames.push(IndexedFrame { kind: FrameKind::INDEX, len: end_offset - end.index_offset });
    index.frames.push(IndexedFrame { kind: FrameKind::END, len: offset - end_offset });
    let manifests: Vec<_> = index.frame_offsets().filter(|(_, f)| f.kind == FrameKind::MANIFEST).collect();
    let mut encoder = Encoder::resume(options, end, end_header, offset, index);
    for (at, frame) in manifests {
        let body = usize::try_from(at).ok().zip(usize::try_from(frame.len).ok());
        let body = body.and_then(|(at, len)| bytes.get(at + HEADER_LEN..at + len));
        let body = body.ok_or(Error::format(FormatErrorKind::LengthMismatch { field: "index" }, at))?;
        let manifest = Manifest::read(body, at + HEADER_LEN as u64, &Limits::default())?;
        encoder.know_manifest(Arc::new(manifest));
    }
    file.seek(SeekFrom::End(0))?;
    Ok(Writer::with_encoder(file, encoder))
}
