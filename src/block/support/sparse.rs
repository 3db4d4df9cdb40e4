//! Sparse positions as gaps by Rice, gaps by tokens, or a bitmap (spec, supports/gaps-rice.md,
//! gaps-tokens.md, bitmap.md).

use crate::arch::pages;
use crate::arch::threads::{SHARE, each};
use crate::bits::{Cursor, put_varint, varint_len};
use crate::block::Sets;
use crate::block::space::Surroundings;
use crate::block::support::{Facts, Kind, SupportId, Validated, classed, is_ascending};
use crate::codes::{
    Coder, Decoder, Profile, RiceRun, Role, best_parameter, cost_of_counts, count_tokens,
    read_entropy_tokens, read_run, token_cost, validate_entropy_tokens, validate_run, write_entropy_tokens,
    write_run,
};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

/// The elements at some positions. [`Positions`] chooses between gaps by Rice, gaps by tokens and a bitmap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sparse {
    /// The positions, strictly ascending, each < n.
    pub positions: Vec<u64>,
}

impl Sparse {
    pub(super) const GAPS_RICE: SupportId = SupportId(2);
    pub(super) const GAPS_TOKENS: SupportId = SupportId(3);
    pub(super) const BITMAP: SupportId = SupportId(4);
}

impl Kind for Sparse {
    fn facts(&self) -> Facts {
        let len = self.positions.len() as u64;
        Facts { weight: 2 * len, memory: size_of_val(self.positions.as_slice()) as u64 }
    }

    fn check(&self, n: u64) -> Result<()> {
        match is_ascending(&self.positions, n) {
            true => Ok(()),
            false => Err(Error::inconsistent("positions are not ascending or exceed the index space")),
        }
    }

    fn count(&self, _: &Surroundings<'_>) -> Result<u64> {
        Ok(self.positions.len() as u64)
    }

    fn write(
        &self,
        out: &mut Vec<u8>,
        coder: &mut Coder<'_>,
        around: &Surroundings<'_>,
        positions: Positions,
    ) -> Result<SupportId> {
        let by_class = positions == Positions::Classed
            || positions == Positions::Auto && self.positions.len() >= FEW_FOR_CLASSES;
        if !by_class || coder.profile == Profile::Core {
            return write(out, coder, &self.positions, around.space.len(), positions);
        }
        let forced = positions == Positions::Classed;
        let gaps = gaps(&self.positions);
        let tokens = token_cost(&gaps);
        let mark = coder.recorded();
        let mut classed = Vec::new();
        let most = if forced { u64::MAX } else { tokens };
        let useful = classed::write_matrix(&mut classed, coder, &self.positions, around.space, most);
        let many = self.positions.len() >= classed::MANY;
        if useful && (forced || many && classed.len() as u64 * 8 < (tokens >> 16) / 16 * 15) {
            out.append(&mut classed);
            return Ok(SupportId::CLASSED);
        }
        let counts = coder.take_recorded(mark);
        let start = out.len();
        let id = write_smallest(out, coder, &self.positions, &gaps, tokens, around.space.len())?;
        if !useful || out.len() - start <= classed.len() {
            return Ok(id);
        }
        coder.take_recorded(mark);
        coder.record_all(counts);
        out.truncate(start);
        out.append(&mut classed);
        Ok(SupportId::CLASSED)
    }

    fn read(
        cursor: &mut Cursor<'_>,
        decoder: &mut Decoder<'_>,
        id: SupportId,
        around: &Surroundings<'_>,
    ) -> Result<Self> {
        Ok(Self { positions: read(cursor, decoder, id, around.space.len())? })
    }

    fn validate(cursor: &mut Cursor<'_>, id: SupportId, around: &Surroundings<'_>) -> Result<Validated> {
        let count = validate(cursor, id, around.space.len())?;
        Ok(Validated::new(count, count.saturating_mul(2)))
    }

    fn for_each_run(&self, _: u64, _: &Sets, f: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        self.positions.iter().try_for_each(|&p| f(p, 1))
    }
}

/// How sparse positions are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Positions {
    /// The smallest form.
    #[default]
    Auto,
    /// Gaps by Rice, in the chunk length that gives the fewest bytes.
    Rice,
    /// Gaps by Rice with one parameter for the whole block, as in Sparse Binary Compression (arXiv
    /// 1805.08768).
    RiceOne,
    /// Gaps by entropy-coded tokens.
    Tokens,
    /// A bit for each element.
    Bitmap,
    /// Gaps inside classes: by rows and columns, or in a delta by the base's elements. The smallest other
    /// form if no classes are useful, and in the core profile.
    Classed,
}

impl Positions {
    /// Each choice with its name on the command line.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Auto, "auto"),
        (Self::Rice, "rice"),
        (Self::RiceOne, "rice-one"),
        (Self::Tokens, "tokens"),
        (Self::Bitmap, "bitmap"),
        (Self::Classed, "classed"),
    ];

    /// The choice's name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(p, _)| *p == self).map_or("auto", |(_, name)| name)
    }
}

/// Fewest positions for which the smallest form may be one by classes.
const FEW_FOR_CLASSES: usize = 128;

/// Binary logarithms of the chunk lengths that a writer tries.
const CHUNK_LOGS: [u8; 4] = [7, 8, 10, 13];

/// Appends ascending positions below `n` and returns the kind that was chosen.
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
    let gaps = gaps(positions);
    match choice {
        Positions::RiceOne => write_rice(out, &gaps, 0),
        Positions::Rice => write_rice(out, &gaps, best_chunks(&gaps).0),
        Positions::Tokens => write_tokens(out, coder, &gaps),
        _ => write_smallest(out, coder, positions, &gaps, token_cost(&gaps), n),
    }
}

/// Appends positions in the smallest form that has no classes. `gaps` are theirs, and `token_cost` is the
/// cost of these.
fn write_smallest(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    positions: &[u64],
    gaps: &[u64],
    token_cost: u64,
    n: u64,
) -> Result<SupportId> {
    let (chunk_log, rice_bytes) = match is_rice_larger(gaps) {
        true => (0, u64::MAX),
        false => best_chunks(gaps),
    };
    let start = out.len();
    // An estimate comes first: tokens are written only if they may be smaller.
    if token_cost >> 19 < rice_bytes.saturating_mul(9) / 8 + 16 || !coder.tables.is_empty() {
        write_tokens(out, coder, gaps)?;
    }
    let tokens = (out.len() - start) as u64;
    let tokens_fit = tokens > 0 && tokens < rice_bytes;
    if n.div_ceil(8) < if tokens_fit { tokens } else { rice_bytes } {
        out.truncate(start);
        return write_bitmap(out, positions, n);
    }
    if tokens_fit {
        return Ok(SupportId::GAPS_TOKENS);
    }
    out.truncate(start);
    write_rice(out, gaps, chunk_log)
}

/// Returns the numbers of elements between positions.
fn gaps(positions: &[u64]) -> Vec<u64> {
    let mut gaps = pages::zeros(positions.len());
    let shares = gaps.chunks_mut(SHARE).zip(positions.chunks(SHARE)).enumerate();
    each(shares, |(i, (gaps, share))| {
        let mut next = (i * SHARE).checked_sub(1).map_or(0, |last| positions[last] + 1);
        for (gap, position) in gaps.iter_mut().zip(share) {
            *gap = position - next;
            next = position + 1;
        }
    });
    gaps
}

/// Reads positions below `n` of kind `id`.
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

/// Checks positions without decoding their gaps, and returns their number.
pub(super) fn validate(cursor: &mut Cursor<'_>, id: SupportId, n: u64) -> Result<u64> {
    match id {
        SupportId::GAPS_RICE => validate_rice(cursor, n),
        SupportId::GAPS_TOKENS => {
            let count = read_count(cursor, n)?;
            validate_entropy_tokens(cursor, count)?;
            Ok(count)
        }
        _ => Ok(ones(take_bitmap(cursor, n)?)),
    }
}

/// Bytes of gaps by Rice in chunks of `2^chunk_log` gaps, or in one chunk if `chunk_log` is 0.
fn rice_bytes(gaps: &[u64], chunk_log: u8) -> u64 {
    let header = varint_len(gaps.len() as u64) + u64::from(!gaps.is_empty());
    let chunks = gaps.chunks(if chunk_log == 0 { gaps.len().max(1) } else { 1 << chunk_log });
    let one = |chunk: &[u64]| {
        let (k, unary) = best_parameter(chunk);
        let low = (chunk.len() as u64 * u64::from(k)).div_ceil(8);
        let unary = u64::try_from(unary.div_ceil(8)).unwrap_or(u64::MAX);
        let table = if chunk_log == 0 { 1 } else { 1 + varint_len(unary) + varint_len(span(chunk)) };
        table.saturating_add(low).saturating_add(unary)
    };
    chunks.map(one).fold(header, u64::saturating_add)
}

/// The distance from the last position before a chunk to the chunk's last position.
fn span(gaps: &[u64]) -> u64 {
    gaps.iter().sum::<u64>() + gaps.len() as u64
}

/// Returns the binary logarithm of the chunk length that gives the fewest bytes, and the number of bytes.
fn best_chunks(gaps: &[u64]) -> (u8, u64) {
    let several = CHUNK_LOGS.into_iter().filter(|&log| gaps.len() > 1 << log);
    let all = std::iter::once(0).chain(several).map(|log| (log, rice_bytes(gaps, log)));
    all.min_by_key(|&(_, bytes)| bytes).unwrap_or((0, 0))
}

/// Whether a sample of many gaps takes more bytes by Rice than by tokens. To compare all of them takes longer
/// than to write either.
fn is_rice_larger(gaps: &[u64]) -> bool {
    const PIECE: usize = 1 << 12;
    const PIECES: usize = 4;
    if gaps.len() < 4 * PIECES * PIECE {
        return false;
    }
    let pieces = gaps.chunks_exact(PIECE).step_by(gaps.len() / (PIECES * PIECE));
    let rice: u64 = pieces.clone().map(|piece| best_chunks(piece).1).sum();
    let mut counts = [0; 256];
    for piece in pieces {
        counts.iter_mut().zip(count_tokens(piece)).for_each(|(sum, n)| *sum += n);
    }
    rice > cost_of_counts(&counts) >> 19
}

fn write_rice(out: &mut Vec<u8>, gaps: &[u64], chunk_log: u8) -> Result<SupportId> {
    put_varint(out, gaps.len() as u64);
    if gaps.is_empty() {
        return Ok(SupportId::GAPS_RICE);
    }
    out.push(chunk_log);
    if chunk_log == 0 {
        let (k, _) = best_parameter(gaps);
        out.push(k);
        write_run(out, gaps, k);
        return Ok(SupportId::GAPS_RICE);
    }
    let mut planes = Vec::new();
    for chunk in gaps.chunks(1 << chunk_log) {
        let (k, _) = best_parameter(chunk);
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

/// The Rice runs of a support. Each comes with the position after its last one, where the table declares it,
/// and with the offset of its table entry.
struct Runs {
    count: u64,
    runs: Vec<(RiceRun, Option<u64>, u64)>,
}

/// Reads the fields before the planes. `reserve` takes the number of positions and an offset.
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
    // Every position takes at least one bit.
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
        // The chunk's positions tell whether a span beyond the space is wrong (RIC-2, RIC-5).
        base = base
            .checked_add(span)
            .ok_or(Error::format(FormatErrorKind::CountMismatch { field: "span" }, offset))?;
        runs.push((run, Some(base), offset));
    }
    Ok(Runs { count, runs })
}

fn validate_rice(cursor: &mut Cursor<'_>, n: u64) -> Result<u64> {
    // The bytes present bound the number of runs, and no memory is taken for positions: no budget is needed.
    let in_bits = |count, offset| match usize::try_from(count) {
        Ok(len) => Ok(len),
        Err(_) => Err(Error::format(FormatErrorKind::LengthMismatch { field: "positions" }, offset)),
    };
    let Runs { count, runs } = read_runs(cursor, n, in_bits)?;
    runs.iter().try_for_each(|(run, ..)| validate_run(cursor, run))?;
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

fn write_tokens(out: &mut Vec<u8>, coder: &mut Coder<'_>, gaps: &[u64]) -> Result<SupportId> {
    put_varint(out, gaps.len() as u64);
    write_entropy_tokens(out, coder, Role::Gaps, gaps);
    Ok(SupportId::GAPS_TOKENS)
}

fn read_tokens(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, n: u64) -> Result<Vec<u64>> {
    let count = read_count(cursor, n)?;
    let offset = cursor.offset();
    let mut positions = read_entropy_tokens(cursor, decoder, count)?;
    add_up(&mut positions, n, offset)?;
    Ok(positions)
}

/// Replaces gaps by their positions, which must be below `n`. `offset`: where the gaps are, for errors.
fn add_up(gaps: &mut [u64], n: u64, offset: u64) -> Result<()> {
    let span = |gaps: &[u64]| {
        let (bits, sum) =
            gaps.iter().fold((0, 0u64), |(bits, sum), &gap| (bits | gap, sum.wrapping_add(gap)));
        // The sum of a share of small gaps is exact, and needs no branches.
        match bits >> 32 {
            0 => sum + gaps.len() as u64,
            _ => gaps.iter().fold(gaps.len() as u64, |sum, &gap| sum.saturating_add(gap)),
        }
    };
    let mut end = 0u64;
    let starts = each(gaps.chunks(SHARE), span).into_iter().map(|span| {
        let start = end;
        end = end.saturating_add(span);
        start
    });
    let starts: Vec<u64> = starts.collect();
    // A sum that is too large ends at the largest number.
    if end > n || end == u64::MAX {
        let mut next = 0u64;
        for &gap in &*gaps {
            let position = next.saturating_add(gap);
            if position >= n {
                return Err(Error::format(FormatErrorKind::PositionOutOfRange { position, len: n }, offset));
            }
            next = position + 1;
        }
    }
    each(gaps.chunks_mut(SHARE).zip(starts), |(gaps, mut next)| {
        for gap in gaps {
            *gap += next;
            next = *gap + 1;
        }
    });
    Ok(())
}

fn write_bitmap(out: &mut Vec<u8>, positions: &[u64], n: u64) -> Result<SupportId> {
    let start = out.len();
    let len = usize::try_from(n.div_ceil(8)).map_err(|_| Error::too_large("bitmap of the index space"))?;
    out.resize(start + len, 0);
    for &p in positions {
        out[start + in_memory(p / 8)] |= 1 << (p % 8);
    }
    Ok(SupportId::BITMAP)
}

/// Takes a bit for each of `n` elements.
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

#[cfg(test)]
mod tests;
