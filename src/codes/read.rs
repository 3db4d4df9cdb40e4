//! Reads coded integers (spec, section 7.1).

use crate::arch::{pages, threads};
use crate::bits::{Cursor, PlaneReader, packed_bytes, unpack};
use crate::codes::ints::{BY_GROUP, PACKED, REFERENCED, SYMBOLS, TOKENS};
use crate::codes::rans::{self, Segment};
use crate::codes::reference::References;
use crate::codes::table::Table;
use crate::codes::tokens;
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::{Budget, in_memory};

/// Context of a decoder of integers.
pub(crate) struct Decoder<'a> {
    /// Frequency tables shared by the update.
    pub(crate) tables: &'a [Table],
    /// Memory that may be allocated.
    pub(crate) budget: &'a Budget,
}

/// Segments that are decoded in turn.
const SIDE_BY_SIDE: usize = 4;
/// The most symbols that are decoded ahead.
const AHEAD: usize = 4 << 20;

/// Symbols of `entropy(N)` that are decoded piece by piece.
struct EntropyReader<'a> {
    /// The segments that were not begun.
    rest: Cursor<'a>,
    tables: &'a [Table],
    /// Number of symbols of a segment, except the last.
    segment_len: u64,
    /// Number of symbols in segments that were not begun.
    left: u64,
    /// The segment that was begun, and the number of its symbols that are left.
    current: Option<(Segment<'a>, u64)>,
    /// Symbols of several segments, and the number of those that were read.
    ahead: Vec<u8>,
    read: usize,
}

impl<'a> EntropyReader<'a> {
    /// Begins `entropy(N)`, and moves the cursor to its end.
    fn new<'c: 'a>(cursor: &mut Cursor<'c>, tables: &'a [Table], n: u64) -> Result<Self> {
        let offset = cursor.offset();
        let log = cursor.u8()?;
        let rest = cursor.clone();
        match log {
            0 => {
                let current = Some((read_segment(cursor, tables)?, n));
                Ok(Self { current, ..Self::of(rest, tables, n, 0) })
            }
            10..=24 => {
                let segment_len = 1 << log;
                if n <= segment_len {
                    let kind = FormatErrorKind::NotCanonical { field: "segment_log" };
                    return Err(Error::format(kind, offset));
                }
                // Each segment takes some bytes: a count that is too large ends at the end of the bytes.
                for _ in 0..n.div_ceil(segment_len) {
                    let len = cursor.varint()?;
                    cursor.sub(len, "segment")?;
                }
                Ok(Self::of(rest, tables, segment_len, n))
            }
            other => Err(Error::out_of_range("segment_log", other.into(), offset)),
        }
    }

    fn of(rest: Cursor<'a>, tables: &'a [Table], segment_len: u64, left: u64) -> Self {
        Self { rest, tables, segment_len, left, current: None, ahead: Vec::new(), read: 0 }
    }

    /// Decodes the next symbols: a multiple of 32, or the last ones.
    fn fill(&mut self, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            if self.current.is_none() && self.has_ahead()? {
                let ahead = &self.ahead[self.read..];
                let (part, later) = out.split_at_mut(out.len().min(ahead.len()));
                part.copy_from_slice(&ahead[..part.len()]);
                self.read += part.len();
                out = later;
                continue;
            }
            let (mut segment, left) = match self.current.take() {
                Some(begun) => begun,
                None => self.next_segment()?,
            };
            let here = out.len().min(in_memory(left));
            let (part, later) = out.split_at_mut(here);
            segment.fill(part);
            out = later;
            match left - here as u64 {
                0 => segment.finish()?,
                left => self.current = Some((segment, left)),
            }
        }
        Ok(())
    }

    /// Whether there are symbols in `ahead`, after decoding the next segments to it if there are several.
    fn has_ahead(&mut self) -> Result<bool> {
        if self.read < self.ahead.len() {
            return Ok(true);
        }
        if self.left <= self.segment_len || self.segment_len > (AHEAD / SIDE_BY_SIDE) as u64 {
            return Ok(false);
        }
        let mut segments = Vec::with_capacity(SIDE_BY_SIDE);
        let mut symbols = 0;
        while segments.len() < SIDE_BY_SIDE && self.left > 0 {
            let (segment, len) = self.next_segment()?;
            segments.push(segment);
            symbols += in_memory(len);
        }
        self.ahead.resize(symbols, 0);
        self.read = 0;
        let mut outs: Vec<&mut [u8]> = self.ahead.chunks_mut(in_memory(self.segment_len)).collect();
        rans::fill_all(&mut segments, &mut outs);
        segments.into_iter().try_for_each(Segment::finish)?;
        Ok(true)
    }

    fn next_segment(&mut self) -> Result<(Segment<'a>, u64)> {
        let symbols = self.segment_len.min(self.left);
        self.left -= symbols;
        let len = self.rest.varint()?;
        let mut cursor = self.rest.sub(len, "segment")?;
        let segment = read_segment(&mut cursor, self.tables)?;
        cursor.finish()?;
        Ok((segment, symbols))
    }
}

fn read_segment<'a>(cursor: &mut Cursor<'a>, tables: &[Table]) -> Result<Segment<'a>> {
    let offset = cursor.offset();
    let slots = match cursor.varint()? {
        0 => rans::slots(&Table::read(cursor)?),
        reference => {
            let table = usize::try_from(reference - 1).ok().and_then(|i| tables.get(i));
            rans::slots(
                table.ok_or(Error::format(FormatErrorKind::UnknownReference { field: "table" }, offset))?,
            )
        }
    };
    Segment::read(cursor, slots)
}

/// Reads `entropy(N)` of `symbols.len()` symbols, and an item for each. `items_of` is called with each
/// segment's symbols, the cursor after its words, and the place of its items. `groups` are the lengths of the
/// segments that groups of positions may have.
fn read_entropy<'c, T: Send>(
    cursor: &mut Cursor<'c>,
    tables: &[Table],
    groups: &[u64],
    symbols: &mut [u8],
    items: &mut [T],
    items_of: impl Fn(&mut Cursor<'c>, &[u8], &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    let offset = cursor.offset();
    let one = |cursor: &mut Cursor<'c>, symbols: &mut [u8], items: &mut [T]| {
        let mut segment = read_segment(cursor, tables)?;
        segment.fill(symbols);
        segment.finish()?;
        items_of(cursor, symbols, items)
    };
    match cursor.u8()? {
        0 => one(cursor, symbols, items),
        BY_GROUP if groups.iter().filter(|&&len| len > 0).count() > 1 => {
            let (mut symbols, mut items) = (symbols, items);
            groups.iter().filter(|&&len| len > 0).try_for_each(|&len| {
                let symbols = symbols.split_off_mut(..in_memory(len)).unwrap_or_default();
                let items = items.split_off_mut(..in_memory(len)).unwrap_or_default();
                one(cursor, symbols, items)
            })
        }
        log @ 10..=24 => {
            if symbols.len() <= 1 << log {
                return Err(Error::format(FormatErrorKind::NotCanonical { field: "segment_log" }, offset));
            }
            let mut places = symbols.chunks_mut(1 << log).zip(items.chunks_mut(1 << log));
            loop {
                let batch = places.by_ref().take(SIDE_BY_SIDE * threads::count());
                let batch = batch.map(|(symbols, items)| {
                    let len = cursor.varint()?;
                    Ok((cursor.sub(len, "segment")?, symbols, items))
                });
                let mut batch = batch.collect::<Result<Vec<_>>>()?;
                if batch.is_empty() {
                    return Ok(());
                }
                let read = threads::each(batch.chunks_mut(SIDE_BY_SIDE), |several| {
                    let mut segments = several
                        .iter_mut()
                        .map(|(cursor, ..)| read_segment(cursor, tables))
                        .collect::<Result<Vec<_>>>()?;
                    let mut outs: Vec<&mut [u8]> =
                        several.iter_mut().map(|(_, symbols, _)| &mut **symbols).collect();
                    rans::fill_all(&mut segments, &mut outs);
                    segments.into_iter().try_for_each(Segment::finish)?;
                    several.iter_mut().try_for_each(|(cursor, symbols, items)| {
                        items_of(cursor, symbols, items)?;
                        cursor.finish()
                    })
                });
                read.into_iter().collect::<Result<()>>()?;
            }
        }
        other => Err(Error::out_of_range("segment_log", other.into(), offset)),
    }
}

/// Reads `entropy(N)` over tokens.
pub(crate) fn read_entropy_tokens(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    n: u64,
) -> Result<Vec<u64>> {
    read_grouped_tokens(cursor, decoder, n, &[])
}

fn read_grouped_tokens(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    n: u64,
    groups: &[u64],
) -> Result<Vec<u64>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    let offset = cursor.offset();
    let len = decoder.budget.reserve_items::<[u64; 2]>(n, offset)?;
    let (mut symbols, mut values) = (pages::zeros(len), pages::zeros(len));
    read_entropy(cursor, decoder.tables, groups, &mut symbols, &mut values, |cursor, symbols, values| {
        let offset = cursor.offset();
        // The maximum has vector instructions; the search for the first token has none.
        if symbols.iter().fold(0, |largest, &s| s.max(largest)) >= tokens::TOKENS {
            let first = symbols.iter().find(|&&s| s >= tokens::TOKENS).copied().unwrap_or(tokens::TOKENS);
            return Err(Error::out_of_range("token", first.into(), offset));
        }
        let bits: u64 = symbols.iter().map(|&t| u64::from(tokens::raw_bits(t))).sum();
        let mut plane = PlaneReader::new(cursor.take(bits.div_ceil(8))?, offset);
        for (value, &token) in values.iter_mut().zip(symbols) {
            *value = tokens::value(token, plane.get(tokens::raw_bits(token)));
        }
        plane.finish("raw bits")
    })?;
    Ok(values)
}

/// Reads `entropy(N)` over symbols.
pub(crate) fn read_entropy_symbols(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    n: u64,
) -> Result<Vec<u8>> {
    read_grouped_symbols(cursor, decoder, n, &[])
}

fn read_grouped_symbols(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    n: u64,
    groups: &[u64],
) -> Result<Vec<u8>> {
    let mut symbols = pages::zeros(decoder.budget.reserve_items::<u8>(n, cursor.offset())?);
    let mut no_items = vec![(); symbols.len()];
    read_entropy(cursor, decoder.tables, groups, &mut symbols, &mut no_items, |_, _, _| Ok(()))?;
    Ok(symbols)
}

/// Reads `ints(N)`, each at most `max`.
pub(crate) fn read_ints(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    n: u64,
    max: u64,
) -> Result<Vec<u64>> {
    read_grouped_ints(cursor, decoder, n, max, &[])
}

/// Reads `ints(N)`, each at most `max`, which may have a segment for each group.
pub(crate) fn read_grouped_ints(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    n: u64,
    max: u64,
    groups: &[u64],
) -> Result<Vec<u64>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    let offset = cursor.offset();
    let values = match cursor.clone().u8()? {
        PACKED => {
            cursor.u8()?;
            let (width, bytes) = take_packed(cursor, n)?;
            let mut plane = PlaneReader::new(bytes, offset);
            let len = decoder.budget.reserve_items::<u64>(n, offset)?;
            (0..len).map(|_| plane.get(width)).collect()
        }
        TOKENS => {
            cursor.u8()?;
            read_grouped_tokens(cursor, decoder, n, groups)?
        }
        SYMBOLS if !groups.is_empty() => {
            cursor.u8()?;
            decoder.budget.reserve_items::<u64>(n, offset)?;
            widened(&read_grouped_symbols(cursor, decoder, n, groups)?)
        }
        _ => {
            decoder.budget.reserve_items::<u64>(n, offset)?;
            widened(&read_symbols(cursor, decoder, n, 255)?)
        }
    };
    match values.iter().find(|&&v| v > max) {
        Some(&value) => Err(Error::out_of_range("coded integer", value, offset)),
        None => Ok(values),
    }
}

fn widened(symbols: &[u8]) -> Vec<u64> {
    let mut values = pages::with_room(symbols.len());
    values.extend(symbols.iter().map(|&symbol| u64::from(symbol)));
    values
}

/// Symbols that are decoded at a time: a power of two, so that pieces fall on segments. They stay in the
/// first-level cache.
pub(crate) const PIECE: usize = 1 << 12;

/// The symbols of `ints(N)`, each at most a given number, decoded piece by piece.
pub(crate) struct SymbolReader<'a> {
    source: Source<'a>,
    max: u8,
    offset: u64,
}

enum Source<'a> {
    /// Fields of this width, at most 8 bits; the bytes that are left.
    Packed(u32, &'a [u8]),
    Symbols(EntropyReader<'a>),
    Referenced(References, EntropyReader<'a>),
    /// All symbols, and the number of those that were read.
    Decoded(Vec<u8>, usize),
}

impl<'a> SymbolReader<'a> {
    /// Begins `ints(N)`, each at most `max`, and moves the cursor to its end.
    pub(crate) fn new<'c: 'a>(
        cursor: &mut Cursor<'c>,
        decoder: &Decoder<'a>,
        n: u64,
        max: u8,
    ) -> Result<Self> {
        let offset = cursor.offset();
        let source = match n {
            0 => Source::Decoded(Vec::new(), 0),
            _ => Source::new(cursor, decoder, n, max)?,
        };
        Ok(Self { source, max, offset })
    }

    /// Decodes the next symbols: a multiple of [`PIECE`], or the last ones.
    pub(crate) fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        match &mut self.source {
            Source::Packed(width, bytes) => {
                let used = in_memory(packed_bytes(out.len() as u64, *width).unwrap_or(u64::MAX));
                let (here, rest) = bytes.split_at(used.min(bytes.len()));
                unpack(here, *width, out);
                *bytes = rest;
            }
            Source::Symbols(symbols) => symbols.fill(out)?,
            Source::Referenced(references, residuals) => {
                residuals.fill(out)?;
                references.add_to(out);
            }
            Source::Decoded(symbols, at) => {
                out.copy_from_slice(&symbols[*at..*at + out.len()]);
                *at += out.len();
            }
        }
        // The maximum has vector instructions; the search for the first symbol has none.
        let largest = out.iter().fold(0, |largest, &s| s.max(largest));
        if largest <= self.max {
            return Ok(());
        }
        let first = out.iter().find(|&&s| s > self.max).copied().unwrap_or(largest);
        Err(Error::out_of_range("coded integer", first.into(), self.offset))
    }
}

impl<'a> Source<'a> {
    fn new<'c: 'a>(cursor: &mut Cursor<'c>, decoder: &Decoder<'a>, n: u64, max: u8) -> Result<Self> {
        let offset = cursor.offset();
        let mut ahead = cursor.clone();
        match ahead.u8()? {
            SYMBOLS => {
                *cursor = ahead;
                Ok(Self::Symbols(EntropyReader::new(cursor, decoder.tables, n)?))
            }
            REFERENCED => {
                *cursor = ahead;
                let references = read_references(cursor, decoder, n)?;
                Ok(Self::Referenced(references, EntropyReader::new(cursor, decoder.tables, n)?))
            }
            PACKED if ahead.clone().u8()? <= 8 => {
                *cursor = ahead;
                let (width, bytes) = take_packed(cursor, n)?;
                Ok(Self::Packed(width, bytes))
            }
            PACKED | TOKENS => {
                // `read_ints` has checked them against `max`: the conversion is exact.
                let values = read_ints(cursor, decoder, n, max.into())?;
                decoder.budget.reserve_items::<u8>(n, offset)?;
                Ok(Self::Decoded(values.into_iter().map(|v| v as u8).collect(), 0))
            }
            other => Err(Error::unsupported("coding", other.into(), offset)),
        }
    }
}

/// Takes the width and the fields of packed integers.
fn take_packed<'a>(cursor: &mut Cursor<'a>, n: u64) -> Result<(u32, &'a [u8])> {
    let width = u32::from(cursor.u8_in("width", 0, 64)?);
    let offset = cursor.offset();
    let length = Error::format(FormatErrorKind::LengthMismatch { field: "packed integers" }, offset);
    let bytes = cursor.take(packed_bytes(n, width).ok_or(length)?)?;
    PlaneReader::check_padding(bytes, n, width, offset)?;
    Ok((width, bytes))
}

/// Reads `ints(N)`, each at most `max`, which is below 256.
pub(crate) fn read_symbols(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    n: u64,
    max: u8,
) -> Result<Vec<u8>> {
    let offset = cursor.offset();
    let mut reader = SymbolReader::new(cursor, decoder, n, max)?;
    let mut symbols = pages::zeros(decoder.budget.reserve_items::<u8>(n, offset)?);
    symbols.chunks_mut(PIECE).try_for_each(|piece| reader.fill(piece))?;
    Ok(symbols)
}

fn read_references(cursor: &mut Cursor<'_>, decoder: &Decoder<'_>, n: u64) -> Result<References> {
    let row_len = cursor.varint_in("row_len", 1, n)?;
    let flags = cursor.flags("reference flags", 0b11)?;
    let zero_apart = flags & 0b10 != 0;
    let mut references = |count| {
        let offset = cursor.offset();
        let mut reader = EntropyReader::new(cursor, decoder.tables, count)?;
        let mut references = vec![0; decoder.budget.reserve_items::<u8>(count, offset)?];
        reader.fill(&mut references)?;
        if zero_apart && references.contains(&255) {
            return Err(Error::out_of_range("reference", 255, offset));
        }
        Ok(references)
    };
    let rows = references(n.div_ceil(row_len))?;
    let columns = if flags & 1 != 0 { references(row_len)? } else { Vec::new() };
    Ok(References::new(in_memory(row_len), zero_apart, rows, columns))
}

/// Skips `entropy(N)` without decoding it. Where raw bits follow, only the symbols tell their number: the
/// rest of the cursor is skipped. Tables must be in the segment itself.
fn validate_entropy(cursor: &mut Cursor<'_>, n: u64, raw: bool, groups: &[u64]) -> Result<()> {
    let segment = |cursor: &mut Cursor<'_>| {
        let offset = cursor.offset();
        if cursor.varint()? != 0 {
            return Err(Error::format(FormatErrorKind::UnknownReference { field: "table" }, offset));
        }
        Table::read(cursor)?;
        rans::validate(cursor)?;
        if raw {
            cursor.take_rest();
        }
        Ok(())
    };
    let offset = cursor.offset();
    let grouped = groups.iter().filter(|&&len| len > 0).count();
    match cursor.u8()? {
        0 => segment(cursor),
        BY_GROUP if grouped > 1 && raw => segment(cursor),
        BY_GROUP if grouped > 1 => (0..grouped).try_for_each(|_| segment(cursor)),
        log @ 10..=24 => {
            if n <= 1 << log {
                return Err(Error::format(FormatErrorKind::NotCanonical { field: "segment_log" }, offset));
            }
            // Each segment takes some bytes: a count that is too large ends at the end of the bytes.
            for _ in 0..n.div_ceil(1 << log) {
                let len = cursor.varint()?;
                let mut inner = cursor.sub(len, "segment")?;
                segment(&mut inner)?;
                inner.finish()?;
            }
            Ok(())
        }
        other => Err(Error::out_of_range("segment_log", other.into(), offset)),
    }
}

/// Skips as [`validate_entropy`], over tokens.
pub(crate) fn validate_entropy_tokens(cursor: &mut Cursor<'_>, n: u64) -> Result<()> {
    if n == 0 { Ok(()) } else { validate_entropy(cursor, n, true, &[]) }
}

/// Skips `ints(N)` without decoding, as [`validate_entropy`] does.
pub(crate) fn validate_ints(cursor: &mut Cursor<'_>, n: u64) -> Result<()> {
    validate_grouped_ints(cursor, n, &[])
}

/// Skips as [`validate_ints`], where groups may have a segment each.
pub(crate) fn validate_grouped_ints(cursor: &mut Cursor<'_>, n: u64, groups: &[u64]) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    let offset = cursor.offset();
    match cursor.u8()? {
        PACKED => take_packed(cursor, n).map(drop),
        TOKENS => validate_entropy(cursor, n, true, groups),
        SYMBOLS => validate_entropy(cursor, n, false, groups),
        REFERENCED => {
            let row_len = cursor.varint_in("row_len", 1, n)?;
            let flags = cursor.flags("reference flags", 0b11)?;
            validate_entropy(cursor, n.div_ceil(row_len), false, &[])?;
            if flags & 1 != 0 {
                validate_entropy(cursor, row_len, false, &[])?;
            }
            validate_entropy(cursor, n, false, &[])
        }
        other => Err(Error::unsupported("coding", other.into(), offset)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::{put_packed, put_varint};
    use crate::error::FormatError;
    use crate::limits::Limits;

    /// Writes a segment with a table of its own. Symbols below 4 are tokens without raw bits, too.
    fn segment(symbols: &[u8], lanes_log: u8) -> Vec<u8> {
        let counts = rans::count(symbols);
        let table = Table::from_counts(&counts).unwrap();
        let mut out = vec![0];
        table.write(&mut out);
        rans::write(&mut out, symbols, &counts, &table, lanes_log, &mut Vec::new());
        out
    }

    /// Writes the segments of `entropy(N)`, with their lengths if there are several.
    fn joined(segment_log: u8, segments: &[Vec<u8>]) -> Vec<u8> {
        let mut out = vec![segment_log];
        for segment in segments {
            if segment_log > BY_GROUP {
                put_varint(&mut out, segment.len() as u64);
            }
            out.extend_from_slice(segment);
        }
        out
    }

    /// Writes `entropy(N)` in segments of `2^log` symbols. The library writes none as short.
    fn segmented(symbols: &[u8], log: u8, lanes_log: u8) -> Vec<u8> {
        let segments: Vec<_> = symbols.chunks(1 << log).map(|part| segment(part, lanes_log)).collect();
        joined(log, &segments)
    }

    fn with_coding(coding: u8, entropy: &[u8]) -> Vec<u8> {
        [&[coding], entropy].concat()
    }

    /// Reads all of `bytes` with this much memory.
    fn read_within<T>(
        memory: u64,
        bytes: &[u8],
        f: impl Fn(&mut Cursor<'_>, &Decoder<'_>) -> Result<T>,
    ) -> Result<T> {
        let budget = Budget::new(&Limits::default().with_max_alloc_bytes(memory));
        let mut cursor = Cursor::new(bytes, 0, "ints");
        let value = f(&mut cursor, &Decoder { tables: &[], budget: &budget })?;
        cursor.finish()?;
        Ok(value)
    }

    fn read<T>(bytes: &[u8], f: impl Fn(&mut Cursor<'_>, &Decoder<'_>) -> Result<T>) -> Result<T> {
        read_within(1 << 30, bytes, f)
    }

    /// Reads integers below 256 in each way: the whole array, by groups, and piece by piece.
    fn in_each_way(bytes: &[u8], n: u64, groups: &[u64]) -> [Result<Vec<u64>>; 3] {
        let pieces = |c: &mut Cursor<'_>, d: &Decoder<'_>| read_symbols(c, d, n, 255);
        [
            read(bytes, |c, d| read_ints(c, d, n, 255)),
            read(bytes, |c, d| read_grouped_ints(c, d, n, 255, groups)),
            read(bytes, pieces).map(|symbols| widened(&symbols)),
        ]
    }

    fn validated(bytes: &[u8], n: u64, groups: &[u64]) -> Result<()> {
        let mut cursor = Cursor::new(bytes, 0, "ints");
        validate_grouped_ints(&mut cursor, n, groups)?;
        cursor.finish()
    }

    /// Returns the value of an error `out_of_range`.
    fn outside<T>(result: Result<T>) -> Option<u64> {
        match result {
            Err(Error::Format(FormatError { kind: FormatErrorKind::OutOfRange { value, .. }, .. })) => {
                Some(value)
            }
            _ => None,
        }
    }

    #[test]
    fn segments_of_every_length_come_back() {
        let symbol = |i: usize| (crate::random::word(1, i as u64 >> 10, i as u64) >> 7 & 3) as u8;
        for log in 10..=13 {
            for n in [(1 << log) + 1, 5 << log, (5 << log) + 77] {
                let symbols: Vec<u8> = (0..n).map(symbol).collect();
                for (coding, lanes_log) in [(SYMBOLS, 0), (SYMBOLS, 2), (SYMBOLS, 5), (TOKENS, 2)] {
                    let bytes = with_coding(coding, &segmented(&symbols, log, lanes_log));
                    for back in in_each_way(&bytes, n as u64, &[5, n as u64 - 5]) {
                        assert_eq!(back.unwrap(), widened(&symbols), "{n} in segments of 2^{log}");
                    }
                    validated(&bytes, n as u64, &[]).unwrap();
                }
            }
        }
    }

    /// ANS-2, CNV-6: in each segment of one, four or five. One symbol leaves the states as they are stored.
    #[test]
    fn damage_in_any_segment_is_refused() {
        for (log, count) in [(0, 1), (BY_GROUP, 4), (10, 4), (10, 5)] {
            let n = 1024 * count as u64;
            let groups = vec![1024; count];
            let sound: Vec<Vec<u8>> = (0..count).map(|i| segment(&[i as u8 % 4; 1024], 2)).collect();
            for coding in [SYMBOLS, TOKENS] {
                let of = |segments: &[Vec<u8>]| with_coding(coding, &joined(log, segments));
                let each_way = |bytes: &[u8]| {
                    let [whole, grouped, pieces] = in_each_way(bytes, n, &groups);
                    if log == BY_GROUP { vec![grouped] } else { vec![whole, grouped, pieces] }
                };
                assert!(each_way(&of(&sound)).iter().all(Result::is_ok));
                for damaged in 0..count {
                    let mut segments = sound.clone();
                    let last_state = segments[damaged].len() - 4;
                    segments[damaged][last_state] ^= 1;
                    for read in each_way(&of(&segments)) {
                        assert_eq!(read.unwrap_err().name(), "bad_code", "{log}, {damaged}");
                    }
                    if log == 10 {
                        let mut segments = sound.clone();
                        segments[damaged].push(0);
                        for read in each_way(&of(&segments)) {
                            assert_eq!(read.unwrap_err().name(), "length_mismatch", "{log}, {damaged}");
                        }
                        // Only the symbols tell where raw bits end.
                        let checked = validated(&of(&segments), n, &[]).map_err(|e| e.name());
                        assert_eq!(checked, if coding == TOKENS { Ok(()) } else { Err("length_mismatch") });
                    }
                }
            }
        }
    }

    /// INT-1.
    #[test]
    fn one_segment_has_no_length() {
        for coding in [SYMBOLS, TOKENS] {
            for n in [1, 1000, 1024] {
                let bytes = with_coding(coding, &segmented(&vec![3; n as usize], 10, 0));
                for read in in_each_way(&bytes, n, &[1, n - 1]) {
                    assert_eq!(read.unwrap_err().name(), "not_canonical", "{n}");
                }
                assert_eq!(validated(&bytes, n, &[]).unwrap_err().name(), "not_canonical", "{n}");
            }
        }
    }

    /// INT-6.
    #[test]
    fn only_two_groups_or_more_have_segments() {
        for coding in [SYMBOLS, TOKENS] {
            let of = |segments: &[Vec<u8>]| with_coding(coding, &joined(BY_GROUP, segments));
            let (one, two) = (of(&[segment(&[3; 9], 0)]), of(&[segment(&[3; 4], 0), segment(&[2; 5], 0)]));
            for groups in [&[][..], &[9], &[9, 0], &[0, 9, 0]] {
                let read = read(&one, |c, d| read_grouped_ints(c, d, 9, 255, groups));
                assert_eq!(read.unwrap_err().name(), "out_of_range", "{groups:?}");
                assert_eq!(validated(&one, 9, groups).unwrap_err().name(), "out_of_range", "{groups:?}");
            }
            for groups in [&[4, 5][..], &[0, 4, 0, 5]] {
                let back = read(&two, |c, d| read_grouped_ints(c, d, 9, 255, groups)).unwrap();
                assert_eq!(back, [3, 3, 3, 3, 2, 2, 2, 2, 2], "{groups:?}");
                validated(&two, 9, groups).unwrap();
            }
        }
    }

    /// LIM-1: the memory that arrays take, also those that are freed soon.
    #[test]
    fn memory_is_reserved_for_every_array() {
        const N: u64 = 1000;
        let values = [3; N as usize];
        let packed = |width: u8| [vec![PACKED, width], vec![0; N as usize * usize::from(width) / 8]].concat();
        let [symbols, tokens] =
            [SYMBOLS, TOKENS].map(|coding| with_coding(coding, &joined(0, &[segment(&values, 0)])));
        let whole = |c: &mut Cursor<'_>, d: &Decoder<'_>| read_ints(c, d, N, 255).map(drop);
        let grouped =
            |c: &mut Cursor<'_>, d: &Decoder<'_>| read_grouped_ints(c, d, N, 255, &[1, N - 1]).map(drop);
        let pieces = |c: &mut Cursor<'_>, d: &Decoder<'_>| read_symbols(c, d, N, 255).map(drop);
        type Read<'a> = &'a dyn Fn(&mut Cursor<'_>, &Decoder<'_>) -> Result<()>;
        for (case, (bytes, read, memory)) in [
            (packed(3), &whole as Read<'_>, 8 * N),
            (symbols.clone(), &whole, 9 * N),
            (symbols.clone(), &grouped, 9 * N),
            (tokens.clone(), &whole, 16 * N),
            (symbols, &pieces, N),
            (packed(8), &pieces, N),
            (packed(16), &pieces, 10 * N),
            (tokens, &pieces, 18 * N),
        ]
        .into_iter()
        .enumerate()
        {
            read_within(memory, &bytes, read).unwrap();
            let refused = read_within(memory - 1, &bytes, read).unwrap_err();
            assert_eq!(refused.name(), "limit", "case {case}");
        }
    }

    /// INT-3, INT-4.
    #[test]
    fn the_first_integer_out_of_range_is_reported() {
        let symbols = joined(0, &[segment(&[7, 100, 200, 250], 0)]);
        let pieces = |max| read(&with_coding(SYMBOLS, &symbols), |c, d| read_symbols(c, d, 4, max));
        assert_eq!(
            (outside(pieces(100)), outside(pieces(200)), outside(pieces(249))),
            (Some(200), Some(250), Some(250))
        );
        assert_eq!(pieces(250).unwrap(), [7, 100, 200, 250]);
        for (tokens, first) in [([1, 128, 200], 128), ([1, 200, 128], 200)] {
            let bytes = joined(0, &[segment(&tokens, 0)]);
            assert_eq!(outside(read(&bytes, |c, d| read_entropy_tokens(c, d, 3))), Some(first));
        }
        // The largest token and 62 raw bits.
        let largest = [joined(0, &[segment(&[127], 0)]), vec![0xff; 7], vec![0x3f]].concat();
        assert_eq!(read(&largest, |c, d| read_entropy_tokens(c, d, 1)).unwrap(), [u64::MAX]);
    }

    #[test]
    fn zeros_need_no_other_symbol_to_be_allowed() {
        for entropy in [joined(0, &[segment(&[0; 9], 0)]), segmented(&[0; 1025], 10, 0)] {
            let n = if entropy[0] == 0 { 9 } else { 1025 };
            let zeros = read(&with_coding(SYMBOLS, &entropy), |c, d| read_symbols(c, d, n, 0)).unwrap();
            assert_eq!(zeros, vec![0; n as usize]);
        }
        let nothing = |c: &mut Cursor<'_>, d: &Decoder<'_>| SymbolReader::new(c, d, 0, 0)?.fill(&mut []);
        read(&[], nothing).unwrap();
    }

    #[test]
    fn packed_symbols_come_back_piece_by_piece() {
        let symbols: Vec<u8> =
            (0..2 * PIECE as u64 + 5).map(|i| crate::random::word(2, 0, i) as u8 & 7).collect();
        for width in [3, 8] {
            let mut bytes = vec![PACKED, width];
            put_packed(&mut bytes, &symbols, width.into());
            let back = read(&bytes, |c, d| read_symbols(c, d, symbols.len() as u64, 7)).unwrap();
            assert_eq!(back, symbols, "{width}");
        }
    }

    /// Symbols that are decoded ahead take memory that no limit counts.
    #[test]
    fn few_symbols_are_decoded_ahead() {
        for (log, segments, ahead) in [(10, 6, 4 << 10), (10, 1, (1 << 10) + 1), (21, 3, 0), (24, 2, 0)] {
            // The last of the segments has one symbol more.
            let n = (segments << log) + 1;
            let parts = vec![segment(&[7], 0); segments as usize + 1];
            let bytes = joined(log, &parts);
            let mut reader = EntropyReader::new(&mut Cursor::new(&bytes, 0, "ints"), &[], n).unwrap();
            let mut out = [0; 32];
            reader.fill(&mut out).unwrap();
            assert_eq!(out, [7; 32]);
            assert_eq!(reader.ahead.len(), ahead, "{n} symbols in segments of 2^{log}");
        }
    }

    #[test]
    fn references_have_segments_too() {
        // 1025 rows: two segments of references.
        let rows = segmented(&[3; 1025], 10, 0);
        let residuals = joined(0, &[segment(&[1; 2049], 0)]);
        let bytes = [&[REFERENCED, 2, 0], &rows[..], &residuals].concat();
        validated(&bytes, 2049, &[]).unwrap();
        assert_eq!(read(&bytes, |c, d| read_symbols(c, d, 2049, 255)).unwrap(), [4; 2049]);
    }
}
