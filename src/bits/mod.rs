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

use crate::arch::threads;
use crate::error::{Error, FormatErrorKind, Result};

/// Computes the CRC-32 (IEEE 802.3) of `bytes`.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    hasher_of(bytes).finalize()
}

/// Bytes from which threads share the computation of a checksum.
const SHARED: usize = 1 << 20;

/// Returns a hasher that has seen `bytes`. Threads share long ones.
pub(crate) fn hasher_of(bytes: &[u8]) -> crc32fast::Hasher {
    let whole = |bytes: &[u8]| {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(bytes);
        hasher
    };
    if bytes.len() < SHARED || threads::count() == 1 {
        return whole(bytes);
    }
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let (mut first, second) = rayon::join(|| hasher_of(first), || hasher_of(second));
    first.combine(&second);
    first
}

/// The CRC-32 of several parts, and of all of them together. Each byte of a long part is read once.
#[derive(Default)]
pub(crate) struct Checksums(crc32fast::Hasher);

impl Checksums {
    /// Bytes from which combining two checksums is faster than reading a part again.
    const LONG: usize = 1 << 14;

    /// Computes the CRC-32 of the next part.
    pub(crate) fn part(&mut self, bytes: &[u8]) -> u32 {
        self.hashed(bytes, hasher_of(bytes))
    }

    /// Returns the CRC-32 of the next part, which `part` has seen already.
    pub(crate) fn hashed(&mut self, bytes: &[u8], part: crc32fast::Hasher) -> u32 {
        match bytes.len() {
            Self::LONG.. => self.0.combine(&part),
            _ => self.0.update(bytes),
        }
        part.finalize()
    }

    /// Returns the CRC-32 of all parts.
    pub(crate) fn whole(self) -> u32 {
        self.0.finalize()
    }
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

/// Prints a hash in hexadecimal digits.
macro_rules! debug_as_hex {
    ($($id:ident)*) => { $(
        impl std::fmt::Display for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
        impl std::fmt::Debug for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({self})", stringify!($id))
            }
        }
    )* };
}
pub(crate) use debug_as_hex;

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
    fn checksums_of_parts_and_of_all() {
        let bytes: Vec<u8> = (0..40_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        for cuts in [vec![], vec![0], vec![5, 5, 9], vec![1, 16_385, 16_400, 39_999], vec![20_000, 40_000]] {
            let mut checksums = Checksums::default();
            let starts = [0].into_iter().chain(cuts.clone());
            for (start, end) in starts.zip(cuts.iter().copied().chain([bytes.len()])) {
                assert_eq!(checksums.part(&bytes[start..end]), crc32(&bytes[start..end]), "{cuts:?}");
            }
            assert_eq!(checksums.whole(), crc32(&bytes), "{cuts:?}");
        }
    }

    #[test]
    fn threads_share_long_checksums() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let bytes: Vec<u8> = (0..5_000_001u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        for len in [SHARED - 1, SHARED, 3 * SHARED + 1, bytes.len()] {
            let bytes = &bytes[..len];
            let expected = crc32fast::hash(bytes);
            assert_eq!((crc32(bytes), pool.install(|| crc32(bytes))), (expected, expected), "{len}");
        }
    }

    #[test]
    fn crc_of_the_check_string() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
