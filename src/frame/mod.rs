//! Frames of each kind, to and from bytes (spec, section 4). Works on slices, without IO.

mod end;
pub(crate) mod header;
mod index;
mod index_set;
mod manifest;
mod metadata;
mod model;
mod shards;
mod sums;
pub(crate) mod update;
mod zstandard;

pub use crate::digest::{Digest, tensor_digest};
pub(crate) use crate::digest::{digest_head, run_digest};
pub use crate::limits::Budget;
pub use end::End;
pub(crate) use header::{CHAINED_LEN, HEADER_LEN, PREAMBLE_LEN, SYNC};
pub use header::{FrameHeader, FrameKind, MAGIC, Preamble, VERSION_MAJOR, VERSION_MINOR};
pub use index::{Index, IndexedBlock, IndexedFrame, IndexedUpdate};
pub use index_set::IndexSet;
pub use manifest::{Manifest, ManifestId, Shard, TensorInfo};
pub use metadata::Metadata;
pub use model::{Model, Weights};
pub(crate) use sums::sample;
pub(crate) use update::{BlockOrder, UpdateWriter};
pub use update::{Delta, DeltaRuns, Reduction, UpdateHeader, UpdatePart};

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
    let size = zstandard::content_size(compressed).ok_or_else(wrong)?;
    // Not only found again at the end: a frame of one segment has a window of this size.
    if size.is_some_and(|size| size != len) {
        return Err(wrong());
    }
    // Reads one byte more than declared, to detect a frame that is longer.
    let (plain, rest) = zstandard::decode(compressed, len.saturating_add(1)).ok_or_else(wrong)?;
    if plain.len() as u64 != len || rest != 0 {
        return Err(wrong());
    }
    Ok(plain)
}

/// Decompresses a zstd frame of another project to at most `most` bytes, or one more if it has more. `None`:
/// it is no frame, it is corrupt, or bytes follow it. Memory grows with the decoded bytes.
pub fn zstd_frame(compressed: &[u8], most: u64) -> Option<Vec<u8>> {
    if zstd_window(compressed) > FOREIGN_WINDOW {
        return None;
    }
    let (plain, rest) = zstandard::decode(compressed, most.saturating_add(1))?;
    (rest == 0 || plain.len() as u64 > most).then_some(plain)
}

/// Largest window of other projects' frames, in bytes: that of zstd's own default limit.
const FOREIGN_WINDOW: u64 = 1 << 27;

/// Limit on decompressed bytes, and on zstd's window.
const INFLATED: &str = "max_inflated_bytes";

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

fn deflate(plain: &[u8]) -> Option<Vec<u8>> {
    zstandard::encode(plain).filter(|c| c.len() < plain.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zstd frame with a window of `2^(10 + exponent)` bytes and one raw block, which does not declare the
    /// number of its bytes.
    fn frame(exponent: u8, bytes: &[u8]) -> Vec<u8> {
        [&ZSTD_MAGIC, &[0, exponent << 3, 1 | (bytes.len() as u8) << 3, 0, 0][..], bytes].concat()
    }

    #[test]
    fn frames_of_other_projects_are_decoded_to_a_limit() {
        let whole = frame(0, b"abc");
        for (most, plain) in [(9, "abc"), (3, "abc"), (2, "abc"), (1, "ab"), (0, "a")] {
            // One byte more than allowed tells that there are more.
            assert_eq!(zstd_frame(&whole, most).as_deref(), Some(plain.as_bytes()), "{most}");
        }
        let followed = [&whole[..], &[0]].concat();
        assert_eq!(zstd_frame(&followed, 3), None);
        assert_eq!(zstd_frame(&followed, 2).as_deref(), Some(&b"abc"[..]));
        assert_eq!(zstd_frame(&whole[..whole.len() - 1], 3), None);
        assert_eq!(zstd_frame(b"abcdefgh", 8), None);
        assert!(zstd_frame(&frame(17, b"abc"), 3).is_some(), "a window of 128 MiB");
        assert_eq!(zstd_frame(&frame(18, b"abc"), 3), None, "a window of 256 MiB");
    }

    fn inflated(frame: &[u8], len: u64, most: u64) -> std::result::Result<Vec<u8>, (&'static str, u64)> {
        let limits = Limits::default().with_max_inflated_bytes(most);
        inflate(frame, 7, (len, 5), "text", &limits).map_err(|e| (e.name(), e.location().unwrap().offset))
    }

    #[test]
    fn a_zstd_frame_has_exactly_the_declared_bytes() {
        let wrong = Err(("length_mismatch", 7));
        assert_eq!(inflated(&frame(0, &[1, 2]), 2, 1 << 10), Ok(vec![1, 2]));
        assert_eq!(inflated(&frame(0, &[1, 2]), 1, 1 << 10), wrong);
        assert_eq!(inflated(&frame(0, &[1, 2]), 3, 1 << 10), wrong);
        assert_eq!(inflated(&[frame(0, &[1, 2]), vec![0]].concat(), 2, 1 << 10), wrong);
        assert_eq!(inflated(&frame(0, &[1, 2]), u64::MAX, u64::MAX), wrong);
        let empty = zstd::bulk::compress(&[], 1).unwrap();
        assert_eq!(inflated(&empty, 0, 0), Ok(vec![]));
        // A skippable frame without bytes.
        assert_eq!(inflated(&[0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0], 0, 0), wrong);
    }

    #[test]
    fn only_the_limit_restricts_the_window() {
        for exponent in [0, 17, 18] {
            let window = 1 << (10 + exponent);
            assert_eq!(inflated(&frame(exponent, &[3]), 1, window), Ok(vec![3]), "{exponent}");
            assert_eq!(inflated(&frame(exponent, &[3]), 1, window - 1), Err(("limit", 7)), "{exponent}");
        }
        assert_eq!(inflated(&frame(0, &[3]), 1 << 11, 1 << 10), Err(("limit", 5)));
        // RFC 8878, section 3.1.1.1.2: an exponent and eighths; none in a frame of a single segment.
        let window = |descriptor: u8, byte: u8| zstd_window(&[&ZSTD_MAGIC[..], &[descriptor, byte]].concat());
        assert_eq!([window(0, 0), window(0, 1), window(0, 8 << 3 | 7)], [1024, 1152, 15 << 15]);
        assert_eq!([window(0x20, 0x88), window(0x60, 0x88), window(0x40, 8)], [0, 0, 2048]);
        assert_eq!(zstd_window(&ZSTD_MAGIC), 0);
    }
}
