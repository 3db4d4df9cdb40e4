//! Bytes and bits: little-endian integers, varints, texts, bit planes, checksums (spec, section 1). This
//! layer knows nothing about tensors.

mod cursor;
mod output;
mod plane;
mod write;

pub(crate) use cursor::Cursor;
pub use output::Output;
pub(crate) use plane::{
    PlaneReader, PlaneWriter, gather_bits, pack_bits, packed_bytes, put_packed, scatter_bits, unpack,
};
pub(crate) use write::{put_f32, put_i16, put_text, put_u16, put_u32, put_u64, put_varint, varint_len};

use crate::error::{Error, FormatErrorKind, Result};

/// Computes the CRC-32 (IEEE 802.3) of `bytes`.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Whether checksums are verified in a fuzzing build.
#[cfg(fuzzing)]
pub static CHECKSUMS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Checks the CRC-32 stored at `offset`. All checksum comparisons are made here.
///
/// Under `cfg(fuzzing)` a wrong checksum passes, because a fuzzer cannot guess one, unless the target asks
/// for verification ([`CHECKSUMS`](crate::fuzzing::CHECKSUMS)).
pub(crate) fn check_crc(stored: u32, computed: u32, offset: u64) -> Result<()> {
    #[cfg(fuzzing)]
    if !CHECKSUMS.load(std::sync::atomic::Ordering::Relaxed) {
        return Ok(());
    }
    match stored == computed {
        true => Ok(()),
        false => Err(Error::format(FormatErrorKind::ChecksumMismatch { stored, computed }, offset)),
    }
}

/// Maps a signed integer to an unsigned one: 0, -1, 1, -2, .. become 0, 1, 2, 3, ..
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// Inverts [`zigzag`].
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zigzag_is_a_bijection() {
        for (signed, unsigned) in [(0, 0), (-1, 1), (1, 2), (i64::MIN, u64::MAX), (i64::MAX, u64::MAX - 1)] {
            assert_eq!((zigzag(signed), unzigzag(unsigned)), (unsigned, signed));
        }
        for unsigned in 0..=u64::from(u16::MAX) {
            assert_eq!(zigzag(unzigzag(unsigned)), unsigned);
            assert!(unzigzag(unsigned).unsigned_abs() <= unsigned.div_ceil(2));
        }
    }

    #[test]
    fn crc_of_the_check_string() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
