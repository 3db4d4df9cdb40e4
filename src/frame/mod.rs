//! Frames of each kind, to and from bytes (spec, section 4). Works on slices, without IO.

mod end;
mod header;
mod index;
mod index_set;
mod manifest;
mod metadata;
mod model;
mod shards;
mod update;

pub use crate::limits::Budget;
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
pub use update::{
    AttributeId, Delta, Digest, Reduction, UpdateHeader, UpdatePart, run_digest, tensor_digest,
};
pub(crate) use update::{BlockOrder, Part, Unwritten, digest_head, write_parts};

use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::{Limits, check};

/// Decompresses the zstd frame at `offset` to exactly `len` bytes (MET-2, MOD-1), the length declared at
/// `len_offset`.
fn inflate(
    compressed: &[u8],
    offset: u64,
    (len, len_offset): (u64, u64),
    field: &'static str,
    limits: &Limits,
) -> Result<Vec<u8>> {
    check(INFLATED, len, limits.max_inflated_bytes, len_offset)?;
    let wrong = || Error::format(FormatErrorKind::LengthMismatch { field }, offset);
    if !compressed.starts_with(&ZSTD_MAGIC) {
        return Err(wrong());
    }
    check(INFLATED, zstd_window(compressed), limits.max_inflated_bytes, offset)?;
    let size = zstd::zstd_safe::get_frame_content_size(compressed).map_err(|_| wrong())?;
    if size.is_some_and(|size| size != len) {
        return Err(wrong());
    }
    let mut plain = Vec::new();
    let mut decoder =
        zstd::stream::read::Decoder::with_buffer(compressed).map_err(|_| wrong())?.single_frame();
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(|_| wrong())?;
    // Reads one byte more than declared, to detect a frame that is longer. Memory grows with the decompressed
    // bytes.
    std::io::Read::read_to_end(&mut std::io::Read::take(&mut decoder, len.saturating_add(1)), &mut plain)
        .map_err(|_| wrong())?;
    if plain.len() as u64 != len || !decoder.finish().is_empty() {
        return Err(wrong());
    }
    Ok(plain)
}

/// Limit on decompressed bytes, and on zstd's window.
const INFLATED: &str = "max_inflated_bytes";

/// Largest window that zstd accepts on this machine; [`INFLATED`] limits the window of each frame.
const ZSTD_WINDOW_LOG_MAX: u32 = if usize::BITS < 64 { 30 } else { 31 };

/// Magic of a zstd frame; a skippable frame has another.
const ZSTD_MAGIC: [u8; 4] = 0xfd2f_b528u32.to_le_bytes();

/// Returns the window size that a zstd frame requires, in bytes (RFC 8878, section 3.1.1.1.2); 0 if it equals
/// the content.
fn zstd_window(frame: &[u8]) -> u64 {
    let single_segment = |descriptor: u8| descriptor & 1 << 5 != 0;
    match frame {
        [_, _, _, _, descriptor, window, ..] if !single_segment(*descriptor) => {
            let base = 1u64 << (10 + (window >> 3));
            base + base / 8 * u64::from(window & 7)
        }
        _ => 0,
    }
}

/// zstd level for metadata and models, which are small and sent once.
const ZSTD_LEVEL: i32 = 9;

fn deflate(plain: &[u8]) -> Option<Vec<u8>> {
    zstd::bulk::compress(plain, ZSTD_LEVEL).ok().filter(|c| c.len() < plain.len())
}
