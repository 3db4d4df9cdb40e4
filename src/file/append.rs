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

/// Opens a finished file to append a segment to it.
///
/// Nothing that is in the file is written over: if the process dies before [`Writer::finish`], the file still holds all it
/// held, and its rest can be dropped by [`recover`](crate::file::recover). Index sets of earlier segments must be made
/// known or sent again.
///
/// # Errors
/// [`Error::Format`] if the file is not a finished stream with an index; [`Error::Io`].
pub fn append(path: &Path, options: EncodeOptions) -> Result<Writer<fs::File>> {
    let mut file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    if file.metadata()?.len() == 0 {
        return Err(Error::format(FormatErrorKind::Truncated, 0));
    }
    // Mapped: only its end and its manifests are read, however long it is.
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
