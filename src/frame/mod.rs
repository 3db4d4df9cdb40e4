//! One frame of each kind, to and from bytes (spec, section 4). Over slices; no IO.

mod end;
mod header;
mod index;
mod index_set;
mod manifest;
mod metadata;
mod model;
mod update;

pub use end::End;
pub(crate) use header::CHAINED_LEN;
pub use header::{
    FrameHeader, FrameKind, HEADER_LEN, MAGIC, PREAMBLE_LEN, Preamble, SYNC, VERSION_MAJOR, VERSION_MINOR,
};
pub use index::{Index, IndexedBlock, IndexedFrame, IndexedUpdate};
pub use index_set::IndexSet;
pub use manifest::{Manifest, ManifestId, Shard, TensorInfo};
pub use metadata::Metadata;
pub use model::{Model, Weights};
pub use update::{AttributeId, Delta, Digest, Reduction, UpdateHeader, UpdatePart, tensor_digest};
pub(crate) use update::{BlockOrder, Part, write_parts};

use crate::error::{Error, FormatErrorKind, Result};

/// Grows a zstd frame to exactly `len` bytes (MET-2, MOD-1). `len` has been checked against the limits.
fn inflate(compressed: &[u8], len: u64, field: &'static str, offset: u64) -> Result<Vec<u8>> {
    let wrong = || Error::format(FormatErrorKind::LengthMismatch { field }, offset);
    let mut plain = Vec::new();
    let mut decoder =
        zstd::stream::read::Decoder::with_buffer(compressed).map_err(|_| wrong())?.single_frame();
    // One byte more than declared, so that a frame that grows beyond it is noticed; memory follows what comes out.
    std::io::Read::read_to_end(&mut std::io::Read::take(&mut decoder, len.saturating_add(1)), &mut plain)
        .map_err(|_| wrong())?;
    if plain.len() as u64 != len || !decoder.finish().is_empty() {
        return Err(wrong());
    }
    Ok(plain)
}

/// zstd's level for metadata and models: they are small, and sent once.
const ZSTD_LEVEL: i32 = 9;

fn deflate(plain: &[u8]) -> Option<Vec<u8>> {
    zstd::bulk::compress(plain, ZSTD_LEVEL).ok().filter(|c| c.len() < plain.len())
}
