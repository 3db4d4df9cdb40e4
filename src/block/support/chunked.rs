//! A fixed number of positions in each chunk (spec, supports/chunked.md).

use crate::bits::{Cursor, PlaneReader, PlaneWriter, packed_bytes, put_varint};
use crate::block::Sets;
use crate::block::space::Surroundings;
use crate::block::support::{Facts, Kind, Positions, SupportId, Validated};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

/// Exactly `kept` elements of each chunk of `chunk_len`, or all elements of a last chunk that is shorter than
/// `kept`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunked {
    /// Elements in a chunk: 1 to 2^32.
    pub chunk_len: u64,
    /// Kept elements of a chunk: 1 to `chunk_len`.
    pub kept: u64,
    /// Positions inside their chunks, strictly ascending in each, one chunk after the other.
    pub positions: Vec<u32>,
}

const MAX_CHUNK: u64 = 1 << 32;

impl Chunked {
    pub(super) const ID: SupportId = SupportId(5);
}

impl Kind for Chunked {
    fn facts(&self) -> Facts {
        let len = self.positions.len() as u64;
        Facts { weight: 4 * len, memory: size_of_val(self.positions.as_slice()) as u64 }
    }

    fn check(&self, n: u64) -> Result<()> {
        let Self { chunk_len, kept, ref positions } = *self;
        let wrong = || Error::inconsistent("chunked positions do not fit the index space");
        if !(1..=MAX_CHUNK).contains(&chunk_len) || !(1..=chunk_len).contains(&kept) {
            return Err(Error::inconsistent("chunk_len or kept of a chunked support"));
        }
        if total(chunk_len, kept, n) != Some(positions.len() as u64) {
            return Err(wrong());
        }
        for_each_chunk(chunk_len, kept, positions, n, |len, chunk| {
            let fits = chunk.is_sorted_by(|a, b| a < b) && chunk.last().is_none_or(|&p| u64::from(p) < len);
            if fits { Ok(()) } else { Err(wrong()) }
        })
    }

    fn count(&self, _: &Surroundings<'_>) -> Result<u64> {
        Ok(self.positions.len() as u64)
    }

    fn write(
        &self,
        out: &mut Vec<u8>,
        _: &mut Coder<'_>,
        _: &Surroundings<'_>,
        _: Positions,
    ) -> Result<SupportId> {
        put_varint(out, self.chunk_len);
        put_varint(out, self.kept);
        let mut plane = PlaneWriter::new(out);
        self.positions.iter().for_each(|&p| plane.put(p.into(), width(self.chunk_len)));
        plane.finish();
        Ok(Self::ID)
    }

    fn read(
        cursor: &mut Cursor<'_>,
        decoder: &mut Decoder<'_>,
        _: SupportId,
        around: &Surroundings<'_>,
    ) -> Result<Self> {
        let n = around.space.len();
        let Plane { chunk_len, kept, count, bytes, offset } = Plane::take(cursor, n)?;
        let width = width(chunk_len);
        let mut plane = PlaneReader::new(bytes, offset);
        let len = decoder.budget.reserve_items::<u32>(count, offset)?;
        // At most 32 bits each.
        let positions: Vec<u32> = (0..len).map(|_| plane.get(width) as u32).collect();
        plane.finish("chunked positions")?;
        for_each_chunk(chunk_len, kept, &positions, n, |len, chunk| {
            if let Some(&position) = chunk.iter().find(|&&p| u64::from(p) >= len) {
                let kind = FormatErrorKind::PositionOutOfRange { position: position.into(), len };
                return Err(Error::format(kind, offset));
            }
            match chunk.is_sorted_by(|a, b| a < b) {
                true => Ok(()),
                false => Err(Error::format(FormatErrorKind::NotAscending, offset)),
            }
        })?;
        Ok(Self { chunk_len, kept, positions })
    }

    fn validate(cursor: &mut Cursor<'_>, _: SupportId, around: &Surroundings<'_>) -> Result<Validated> {
        let count = Plane::take(cursor, around.space.len())?.count;
        Ok(Validated::new(count, count.saturating_mul(4)))
    }

    fn for_each_run(&self, n: u64, _: &Sets, f: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        let mut rest = self.positions.as_slice();
        let mut start = 0;
        while start < n && !rest.is_empty() {
            let here = kept_in(self.chunk_len.min(n - start), self.kept).min(rest.len() as u64);
            let (chunk, others) = rest.split_at(in_memory(here));
            chunk.iter().try_for_each(|&p| f(start + u64::from(p), 1))?;
            rest = others;
            start += self.chunk_len;
        }
        Ok(())
    }
}

/// Kept positions of a chunk that has `len` elements.
fn kept_in(len: u64, kept: u64) -> u64 {
    kept.min(len)
}

/// Bits of a position inside its chunk.
fn width(chunk_len: u64) -> u32 {
    64 - (chunk_len - 1).leading_zeros()
}

/// Kept positions in all chunks of `n` elements.
fn total(chunk_len: u64, kept: u64, n: u64) -> Option<u64> {
    (n / chunk_len).checked_mul(kept)?.checked_add(kept_in(n % chunk_len, kept))
}

/// Calls `f` with the length of each chunk and its positions.
fn for_each_chunk(
    chunk_len: u64,
    kept: u64,
    positions: &[u32],
    n: u64,
    mut f: impl FnMut(u64, &[u32]) -> Result<()>,
) -> Result<()> {
    let mut rest = positions;
    let mut left = n;
    while left > 0 {
        let len = chunk_len.min(left);
        let (chunk, others) = rest.split_at((in_memory(kept_in(len, kept))).min(rest.len()));
        f(len, chunk)?;
        rest = others;
        left -= len;
    }
    Ok(())
}

/// The fields, with the plane of positions not decoded.
struct Plane<'a> {
    chunk_len: u64,
    kept: u64,
    /// Number of positions.
    count: u64,
    bytes: &'a [u8],
    /// Offset of `bytes`.
    offset: u64,
}

impl<'a> Plane<'a> {
    fn take(cursor: &mut Cursor<'a>, n: u64) -> Result<Self> {
        let chunk_len = cursor.varint_in("chunk_len", 1, MAX_CHUNK)?;
        let kept = cursor.varint_in("kept", 1, chunk_len)?;
        let offset = cursor.offset();
        let too_long =
            || Error::format(FormatErrorKind::LengthMismatch { field: "chunked positions" }, offset);
        let count = total(chunk_len, kept, n).ok_or_else(too_long)?;
        let bytes = cursor.take(packed_bytes(count, width(chunk_len)).ok_or_else(too_long)?)?;
        Ok(Self { chunk_len, kept, count, bytes, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_fit_their_chunks() {
        let check = |chunk_len, kept, positions: &[u32], n| {
            Chunked { chunk_len, kept, positions: positions.to_vec() }.check(n).is_ok()
        };
        // Chunks of 4, 4 and 1 elements.
        assert!(check(4, 2, &[0, 3, 1, 2, 0], 9));
        assert!(check(4, 4, &[0, 1, 2, 3, 0, 1, 2, 3, 0], 9));
        assert!(check(MAX_CHUNK, 1, &[u32::MAX], MAX_CHUNK));
        let wrong: [(u64, u64, &[u32], u64); 9] = [
            (0, 0, &[], 0),
            (4, 0, &[], 9),
            (4, 5, &[0, 1, 2, 3, 0, 1, 2, 3, 0], 9),
            (MAX_CHUNK + 1, 1, &[0], 1),
            (4, 2, &[0, 3, 1, 2], 9),
            (4, 2, &[0, 3, 1, 2, 0, 0], 9),
            (4, 2, &[0, 3, 2, 1, 0], 9),
            (4, 2, &[0, 3, 1, 1, 0], 9),
            (4, 2, &[0, 4, 1, 2, 0], 9),
        ];
        for (chunk_len, kept, positions, n) in wrong {
            assert!(!check(chunk_len, kept, positions, n), "{chunk_len} {kept} {positions:?}");
        }
        assert!(!check(4, 2, &[0, 3, 1, 2, 1], 9));
    }

    #[test]
    fn positions_of_chunks_count_from_the_start() {
        let chunked = Chunked { chunk_len: 4, kept: 2, positions: vec![0, 3, 1, 2, 0] };
        let mut seen = Vec::new();
        let mut note = |start, len| {
            seen.push((start, len));
            Ok(())
        };
        chunked.for_each_run(9, &Sets::new(), &mut note).unwrap();
        assert_eq!(seen, [(0, 1), (3, 1), (5, 1), (6, 1), (8, 1)]);
    }

    #[test]
    fn runs_end_with_the_space() {
        // More positions than the chunks keep, and fewer.
        for (n, expected) in [(8, vec![0, 3, 5, 6]), (9, vec![0, 3, 5, 6, 8]), (12, vec![0, 3, 5, 6, 8, 9])] {
            for extra in [&[][..], &[2, 3]] {
                let positions = [&[0, 3, 1, 2, 0, 1][..], extra].concat();
                let chunked = Chunked { chunk_len: 4, kept: 2, positions };
                let mut seen = Vec::new();
                let mut note = |start, _| {
                    seen.push(start);
                    Ok(())
                };
                chunked.for_each_run(n, &Sets::new(), &mut note).unwrap();
                assert_eq!(seen, expected, "{n}");
            }
        }
    }
}
