//! A fixed number of positions in each chunk (spec, supports/chunked.md).

use crate::bits::{Cursor, PlaneReader, PlaneWriter, packed_bytes, put_varint};
use crate::block::Support;
use crate::block::support::SupportId;
use crate::codes::Decoder;
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

const MAX_CHUNK: u64 = 1 << 32;

/// Kept positions of a chunk that has `len` elements.
pub(super) fn kept_in(len: u64, kept: u64) -> u64 {
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

pub(super) fn check(chunk_len: u64, kept: u64, positions: &[u32], n: u64) -> Result<()> {
    let wrong = || Error::inconsistent("chunked positions do not fit the index space");
    if !(1..=MAX_CHUNK).contains(&chunk_len) || !(1..=chunk_len).contains(&kept) {
        return Err(Error::bad_option("chunk_len or kept of a chunked support"));
    }
    if total(chunk_len, kept, n) != Some(positions.len() as u64) {
        return Err(wrong());
    }
    for_each_chunk(chunk_len, kept, positions, n, |len, chunk| {
        let fits = chunk.is_sorted_by(|a, b| a < b) && chunk.last().is_none_or(|&p| u64::from(p) < len);
        if fits { Ok(()) } else { Err(wrong()) }
    })
}

pub(super) fn write(
    out: &mut Vec<u8>,
    chunk_len: u64,
    kept: u64,
    positions: &[u32],
    n: u64,
) -> Result<SupportId> {
    check(chunk_len, kept, positions, n)?;
    put_varint(out, chunk_len);
    put_varint(out, kept);
    let mut plane = PlaneWriter::new(out);
    positions.iter().for_each(|&p| plane.put(p.into(), width(chunk_len)));
    plane.finish();
    Ok(SupportId::CHUNKED)
}

/// The fields, and the plane of positions with its offset.
struct Plane<'a> {
    chunk_len: u64,
    kept: u64,
    count: u64,
    bytes: &'a [u8],
    offset: u64,
}

fn read_plane<'a>(cursor: &mut Cursor<'a>, n: u64) -> Result<Plane<'a>> {
    let chunk_len = cursor.varint_in("chunk_len", 1, MAX_CHUNK)?;
    let kept = cursor.varint_in("kept", 1, chunk_len)?;
    let offset = cursor.offset();
    let too_long = || Error::format(FormatErrorKind::LengthMismatch { field: "chunked positions" }, offset);
    let count = total(chunk_len, kept, n).ok_or_else(too_long)?;
    let bytes = cursor.take(packed_bytes(count, width(chunk_len)).ok_or_else(too_long)?)?;
    Ok(Plane { chunk_len, kept, count, bytes, offset })
}

/// How many positions there are.
pub(super) fn skim(cursor: &mut Cursor<'_>, n: u64) -> Result<u64> {
    Ok(read_plane(cursor, n)?.count)
}

pub(super) fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, n: u64) -> Result<Support> {
    let Plane { chunk_len, kept, count, bytes, offset } = read_plane(cursor, n)?;
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
    Ok(Support::Chunked { chunk_len, kept, positions })
}
