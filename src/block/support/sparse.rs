//! Sparse positions as gaps by Rice, gaps by tokens, or a bitmap (spec, supports/gaps-rice.md, gaps-tokens.md, bitmap.md).

use crate::bits::{Cursor, put_varint, varint_len};
use crate::block::support::SupportId;
use crate::codes::{
    Coder, Decoder, RiceRun, Role, best_parameter, read_entropy_tokens, read_run, run_bits,
    skim_entropy_tokens, skim_run, token_cost, write_entropy_tokens, write_run,
};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

/// How sparse positions are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Positions {
    /// Whatever is smallest.
    #[default]
    Auto,
    /// Gaps by Rice, in whichever chunks are smallest.
    Rice,
    /// Gaps by Rice with one parameter for the whole block: Sparse Binary Compression's own code.
    RiceOne,
    /// Gaps by entropy-coded tokens.
    Tokens,
    /// A bit for each element.
    Bitmap,
}

impl Positions {
    /// Each choice with its name on the command line.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Auto, "auto"),
        (Self::Rice, "rice"),
        (Self::RiceOne, "rice-one"),
        (Self::Tokens, "tokens"),
        (Self::Bitmap, "bitmap"),
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(p, _)| *p == self).map_or("auto", |(_, name)| name)
    }
}

/// Chunk lengths that a writer tries, as binary logarithms.
const CHUNK_LOGS: [u8; 4] = [7, 8, 10, 13];

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    positions: &[u64],
    n: u64,
    choice: Positions,
) -> Result<SupportId> {
    if choice == Positions::Bitmap {
        return write_bitmap(out, positions, n);
    }
    let gaps: Vec<u64> =
        positions.iter().scan(0, |next, &p| Some(p - std::mem::replace(next, p + 1))).collect();
    match choice {
        Positions::RiceOne => write_rice(out, &gaps, 0),
        Positions::Rice => write_rice(out, &gaps, best_chunks(&gaps).0),
        Positions::Tokens => write_tokens(out, coder, &gaps),
        _ => {
            let (chunk_log, rice_bytes) = best_chunks(&gaps);
            let mut tokens = Vec::new();
            // An estimate first: where Rice is far smaller the tokens need not be written to know it.
            if token_cost(gaps.iter().copied()) >> 19 < rice_bytes.saturating_mul(9) / 8 + 16
                || !coder.tables.is_empty()
            {
                write_tokens(&mut tokens, coder, &gaps)?;
            }
            let tokens_fit = !tokens.is_empty() && (tokens.len() as u64) < rice_bytes;
            let smaller = if tokens_fit { tokens.len() as u64 } else { rice_bytes };
            if n.div_ceil(8) < smaller {
                return write_bitmap(out, positions, n);
            }
            if tokens_fit {
                out.append(&mut tokens);
                return Ok(SupportId::GAPS_TOKENS);
            }
            write_rice(out, &gaps, chunk_log)
        }
    }
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    id: SupportId,
    n: u64,
) -> Result<Vec<u64>> {
    match id {
        SupportId::GAPS_RICE => read_rice(cursor, decoder, n),
        SupportId::GAPS_TOKENS => read_tokens(cursor, decoder, n),
        _ => read_bitmap(cursor, decoder, n),
    }
}

/// How many positions there are.
pub(super) fn skim(cursor: &mut Cursor<'_>, id: SupportId, n: u64) -> Result<u64> {
    match id {
        SupportId::GAPS_RICE => skim_rice(cursor, n),
        SupportId::GAPS_TOKENS => {
            let count = read_count(cursor, n)?;
            skim_entropy_tokens(cursor, count)?;
            Ok(count)
        }
        _ => Ok(ones(take_bitmap(cursor, n)?)),
    }
}

// Gaps by Rice.

/// Bytes of the positions in chunks of `2^chunk_log`, or in one chunk if that is 0.
fn rice_bytes(gaps: &[u64], chunk_log: u8) -> u64 {
    let header = varint_len(gaps.len() as u64) + u64::from(!gaps.is_empty());
    let chunks = gaps.chunks(if chunk_log == 0 { gaps.len().max(1) } else { 1 << chunk_log });
    let one = |chunk: &[u64]| {
        let k = best_parameter(chunk);
        let low = (chunk.len() as u64 * u64::from(k)).div_ceil(8);
        let unary = run_bits(chunk, k) - chunk.len() as u128 * u128::from(k);
        let unary = u64::try_from(unary.div_ceil(8)).unwrap_or(u64::MAX);
        let table = if chunk_log == 0 { 1 } else { 1 + varint_len(unary) + varint_len(span(chunk)) };
        table.saturating_add(low).saturating_add(unary)
    };
    chunks.map(one).fold(header, u64::saturating_add)
}

/// Positions from the last before a chunk to its own last.
fn span(gaps: &[u64]) -> u64 {
    gaps.iter().sum::<u64>() + gaps.len() as u64
}

/// The chunk length that gives the fewest bytes, as a binary logarithm, and the bytes.
fn best_chunks(gaps: &[u64]) -> (u8, u64) {
    let several = CHUNK_LOGS.into_iter().filter(|&log| gaps.len() > 1 << log);
    let all = std::iter::once(0).chain(several).map(|log| (log, rice_bytes(gaps, log)));
    all.min_by_key(|&(_, bytes)| bytes).unwrap_or((0, 0))
}

fn write_rice(out: &mut Vec<u8>, gaps: &[u64], chunk_log: u8) -> Result<SupportId> {
    put_varint(out, gaps.len() as u64);
    if gaps.is_empty() {
        return Ok(SupportId::GAPS_RICE);
    }
    out.push(chunk_log);
    if chunk_log == 0 {
        let k = best_parameter(gaps);
        out.push(k);
        write_run(out, gaps, k);
        return Ok(SupportId::GAPS_RICE);
    }
    let mut planes = Vec::new();
    for chunk in gaps.chunks(1 << chunk_log) {
        let k = best_parameter(chunk);
        let before = planes.len();
        write_run(&mut planes, chunk, k);
        let low = (chunk.len() * usize::from(k)).div_ceil(8);
        out.push(k);
        put_varint(out, (planes.len() - before - low) as u64);
        put_varint(out, span(chunk));
    }
    out.append(&mut planes);
    Ok(SupportId::GAPS_RICE)
}

fn read_count(cursor: &mut Cursor<'_>, n: u64) -> Result<u64> {
    let offset = cursor.offset();
    let count = cursor.varint()?;
    if count > n {
        return Err(Error::format(FormatErrorKind::CountMismatch { field: "number of positions" }, offset));
    }
    Ok(count)
}

/// The runs of a support that is not empty, each with the position after its last one, as far as that is declared, and the
/// offset of its entry in the table.
struct Runs {
    count: u64,
    runs: Vec<(RiceRun, Option<u64>, u64)>,
}

/// Reads the fields before the planes.
fn read_runs(
    cursor: &mut Cursor<'_>,
    n: u64,
    reserve: impl FnOnce(u64, u64) -> Result<usize>,
) -> Result<Runs> {
    let count = read_count(cursor, n)?;
    let mut runs = Vec::new();
    if count == 0 {
        return Ok(Runs { count, runs });
    }
    // Every position needs a bit of what is left.
    if count > (cursor.remaining() as u64).saturating_mul(8) {
        let kind = FormatErrorKind::LengthMismatch { field: "positions" };
        return Err(Error::format(kind, cursor.offset()));
    }
    let len = reserve(count, cursor.offset())?;
    let offset = cursor.offset();
    let chunk_log = match cursor.u8()? {
        0 => {
            let k = cursor.u8_in("rice parameter", 0, 63)?;
            runs.push((RiceRun { len, k, unary_len: None, base: 0, n }, None, offset));
            return Ok(Runs { count, runs });
        }
        log @ 7..=16 => log,
        other => return Err(Error::out_of_range("chunk_log", other.into(), offset)),
    };
    if len <= 1 << chunk_log {
        return Err(Error::format(FormatErrorKind::NotCanonical { field: "chunk_log" }, offset));
    }
    runs.reserve(len.div_ceil(1 << chunk_log).min(cursor.remaining() / 3 + 1));
    let mut base = 0u64;
    for start in (0..len).step_by(1 << chunk_log) {
        let offset = cursor.offset();
        let k = cursor.u8_in("rice parameter", 0, 63)?;
        let unary_len = Some(cursor.varint()?);
        let span = cursor.varint()?;
        let run = RiceRun { len: (len - start).min(1 << chunk_log), k, unary_len, base, n };
        // A span that leads beyond the space is right or wrong as its chunk's positions say (RIC-2, RIC-5).
        base = base
            .checked_add(span)
            .ok_or(Error::format(FormatErrorKind::CountMismatch { field: "span" }, offset))?;
        runs.push((run, Some(base), offset));
    }
    Ok(Runs { count, runs })
}

fn skim_rice(cursor: &mut Cursor<'_>, n: u64) -> Result<u64> {
    // Bounded by the bytes that are there: nothing is taken for the positions.
    let in_bits = |count, offset| match usize::try_from(count) {
        Ok(len) => Ok(len),
        Err(_) => Err(Error::format(FormatErrorKind::LengthMismatch { field: "positions" }, offset)),
    };
    let Runs { count, runs } = read_runs(cursor, n, in_bits)?;
    runs.iter().try_for_each(|(run, ..)| skim_run(cursor, run))?;
    Ok(count)
}

fn read_rice(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, n: u64) -> Result<Vec<u64>> {
    let reserve = |count, offset| decoder.budget.reserve_items::<u64>(count, offset);
    let mut positions = Vec::new();
    for (run, end, offset) in read_runs(cursor, n, reserve)?.runs {
        read_run(cursor, &run, &mut positions)?;
        if end.is_some_and(|end| positions.last().map(|p| p + 1) != Some(end)) {
            return Err(Error::format(FormatErrorKind::CountMismatch { field: "span" }, offset));
        }
    }
    Ok(positions)
}

// Gaps by tokens.

fn write_tokens(out: &mut Vec<u8>, coder: &mut Coder<'_>, gaps: &[u64]) -> Result<SupportId> {
    put_varint(out, gaps.len() as u64);
    write_entropy_tokens(out, coder, Role::Gaps, gaps);
    Ok(SupportId::GAPS_TOKENS)
}

fn read_tokens(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, n: u64) -> Result<Vec<u64>> {
    let count = read_count(cursor, n)?;
    let offset = cursor.offset();
    let mut positions = read_entropy_tokens(cursor, decoder, count)?;
    let mut next = 0u64;
    for position in &mut positions {
        let here = next.checked_add(*position).filter(|&p| p < n);
        let kind = FormatErrorKind::PositionOutOfRange { position: next.saturating_add(*position), len: n };
        *position = here.ok_or(Error::format(kind, offset))?;
        next = *position + 1;
    }
    Ok(positions)
}

// Bitmap.

fn write_bitmap(out: &mut Vec<u8>, positions: &[u64], n: u64) -> Result<SupportId> {
    let start = out.len();
    let len = usize::try_from(n.div_ceil(8))
        .map_err(|_| Error::bad_option("bitmap for so large an index space"))?;
    out.resize(start + len, 0);
    for &p in positions {
        out[start + in_memory(p / 8)] |= 1 << (p % 8);
    }
    Ok(SupportId::BITMAP)
}

/// A bit for each of `n` elements.
fn take_bitmap<'a>(cursor: &mut Cursor<'a>, n: u64) -> Result<&'a [u8]> {
    let offset = cursor.offset();
    let bytes = cursor.take(n.div_ceil(8))?;
    if !n.is_multiple_of(8) && bytes.last().is_some_and(|last| last >> (n % 8) != 0) {
        return Err(Error::format(FormatErrorKind::NonzeroPadding, offset + bytes.len() as u64 - 1));
    }
    Ok(bytes)
}

fn ones(bytes: &[u8]) -> u64 {
    bytes.iter().map(|b| u64::from(b.count_ones())).sum()
}

fn read_bitmap(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, n: u64) -> Result<Vec<u64>> {
    let offset = cursor.offset();
    let bytes = take_bitmap(cursor, n)?;
    let count = ones(bytes);
    let mut positions = Vec::with_capacity(decoder.budget.reserve_items::<u64>(count, offset)?);
    for (i, &byte) in bytes.iter().enumerate() {
        let mut bits = byte;
        while bits != 0 {
            positions.push(i as u64 * 8 + u64::from(bits.trailing_zeros()));
            bits &= bits - 1;
        }
    }
    Ok(positions)
}
