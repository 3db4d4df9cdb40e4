//! Reads coded integers (spec, section 7.1).

use std::borrow::Cow;

use crate::arch::{self, pages, threads};
use crate::bits::{Cursor, PlaneReader, packed_bytes, unpack};
use crate::codes::ints::{BY_GROUP, JOINED, PACKED, REFERENCED, SYMBOLS, SegmentKind, TOKENS, TREE};
use crate::codes::joined::{JoinedReader, read_per};
use crate::codes::rans;
use crate::codes::reference::References;
use crate::codes::table::Table;
use crate::codes::{tokens, tree};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::{Budget, in_memory};

/// Context of a decoder of integers.
pub(crate) struct Decoder<'a> {
    /// Frequency tables shared by the update.
    pub(crate) tables: &'a [Table],
    /// Memory that may be allocated.
    pub(crate) budget: &'a Budget,
}

/// The most symbols that are decoded ahead.
const AHEAD: usize = 4 << 20;

/// Number of segments of `len` symbols that are decoded in turn: as many as [`rans::fill_all`] takes
/// together; of long ones half as many, so that their symbols stay in the second-level cache.
fn side_by_side(len: usize) -> usize {
    if len <= 1 << 17 { rans::MOST } else { rans::MOST / 2 }
}

/// Symbols of `entropy(N)` that are decoded piece by piece.
pub(super) struct EntropyReader<'a> {
    /// The segments that were not begun.
    rest: Cursor<'a>,
    kind: SegmentKind,
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
    pub(super) fn new<'c: 'a>(
        cursor: &mut Cursor<'c>,
        kind: SegmentKind,
        tables: &'a [Table],
        n: u64,
    ) -> Result<Self> {
        let offset = cursor.offset();
        let log = cursor.u8()?;
        let of = |rest, segment_len, left| Self {
            rest,
            kind,
            tables,
            segment_len,
            left,
            current: None,
            ahead: Vec::new(),
            read: 0,
        };
        let rest = cursor.clone();
        match log {
            0 => {
                let current = Some((Segment::read(cursor, kind, tables, n)?, n));
                Ok(Self { current, ..of(rest, n, 0) })
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
                Ok(of(rest, segment_len, n))
            }
            other => Err(Error::out_of_range("segment_log", other.into(), offset)),
        }
    }

    /// Decodes the next symbols: a multiple of 32, or the last ones.
    pub(super) fn fill(&mut self, mut out: &mut [u8]) -> Result<()> {
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
            segment.fill(part)?;
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
        let several = self.kind == SegmentKind::Rans && self.left > self.segment_len;
        let most = side_by_side(in_memory(self.segment_len));
        if !several || self.segment_len > (AHEAD / most) as u64 {
            return Ok(false);
        }
        let mut segments = Vec::with_capacity(most);
        let mut symbols = 0;
        while segments.len() < most && self.left > 0 {
            let (Segment::Rans(segment), len) = self.next_segment()? else { break };
            segments.push(*segment);
            symbols += in_memory(len);
        }
        self.ahead.resize(symbols, 0);
        self.read = 0;
        let mut outs: Vec<&mut [u8]> = self.ahead.chunks_mut(in_memory(self.segment_len)).collect();
        rans::fill_all(&mut segments, &mut outs);
        segments.into_iter().try_for_each(rans::Segment::finish)?;
        Ok(true)
    }

    fn next_segment(&mut self) -> Result<(Segment<'a>, u64)> {
        let symbols = self.segment_len.min(self.left);
        self.left -= symbols;
        let len = self.rest.varint()?;
        let mut cursor = self.rest.sub(len, "segment")?;
        let segment = Segment::read(&mut cursor, self.kind, self.tables, symbols)?;
        cursor.finish()?;
        Ok((segment, symbols))
    }
}

/// A segment that is decoded piece by piece.
enum Segment<'a> {
    Rans(Box<rans::Segment<'a>>),
    Tree(tree::Segment<'a>),
}

impl<'a> Segment<'a> {
    /// Reads the table of a segment of `n` symbols, and what follows it.
    fn read(cursor: &mut Cursor<'a>, kind: SegmentKind, tables: &[Table], n: u64) -> Result<Self> {
        Ok(match kind {
            SegmentKind::Rans => Self::Rans(Box::new(read_rans(cursor, tables)?)),
            SegmentKind::Tree => {
                let table = read_table(cursor, tables)?;
                Self::Tree(tree::Segment::read(cursor, &table, n)?)
            }
        })
    }

    /// Decodes the next symbols: a multiple of 32, or the last ones of the segment.
    fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        match self {
            Self::Rans(segment) => segment.fill(out),
            Self::Tree(segment) => return segment.fill(out),
        }
        Ok(())
    }

    /// Checks that the segment ends after the symbols decoded so far.
    fn finish(self) -> Result<()> {
        match self {
            Self::Rans(segment) => segment.finish(),
            Self::Tree(segment) => segment.finish(),
        }
    }
}

fn read_rans<'a>(cursor: &mut Cursor<'a>, tables: &[Table]) -> Result<rans::Segment<'a>> {
    let slots = rans::slots(read_table(cursor, tables)?.as_ref());
    rans::Segment::read(cursor, slots)
}

/// Reads a table, or the number of a shared one.
fn read_table<'t>(cursor: &mut Cursor<'_>, tables: &'t [Table]) -> Result<Cow<'t, Table>> {
    let offset = cursor.offset();
    let Some(number) = cursor.varint()?.checked_sub(1) else { return Table::read(cursor).map(Cow::Owned) };
    let table = usize::try_from(number).ok().and_then(|i| tables.get(i)).map(Cow::Borrowed);
    table.ok_or(Error::format(FormatErrorKind::UnknownReference { field: "table" }, offset))
}

/// Reads `entropy(N)` of `symbols.len()` symbols, and an item for each. `items_of` is called with each
/// segment's symbols, the cursor after its words, and the place of its items. `groups` are the lengths of the
/// segments that groups of positions may have.
///
/// The bytes have one of three forms (spec, section 7.1): one segment; one for each group that has symbols;
/// or segments of 2^log symbols, each after its length in bytes. In the third form, the lengths alone lead
/// from segment to segment, so each thread takes several of them and decodes these in turn: a state
/// of rANS depends on the one before, and while one segment waits for it the processor works on another.
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
        let mut segment = read_rans(cursor, tables)?;
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
            let len = 1 << log;
            if symbols.len() <= len {
                return Err(Error::format(FormatErrorKind::NotCanonical { field: "segment_log" }, offset));
            }
            let mut places = symbols.chunks_mut(len).zip(items.chunks_mut(len));
            let in_turn = side_by_side(len);
            loop {
                let batch = places.by_ref().take(in_turn * threads::count());
                let batch = batch.map(|(symbols, items)| {
                    let len = cursor.varint()?;
                    Ok((cursor.sub(len, "segment")?, symbols, items))
                });
                let mut batch = batch.collect::<Result<Vec<_>>>()?;
                if batch.is_empty() {
                    return Ok(());
                }
                let read = threads::each(batch.chunks_mut(in_turn), |several| {
                    let mut segments = several
                        .iter_mut()
                        .map(|(cursor, ..)| read_rans(cursor, tables))
                        .collect::<Result<Vec<_>>>()?;
                    let mut outs: Vec<&mut [u8]> =
                        several.iter_mut().map(|(_, symbols, _)| &mut **symbols).collect();
                    rans::fill_all(&mut segments, &mut outs);
                    segments.into_iter().try_for_each(rans::Segment::finish)?;
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
        let bits = tokens::raw_len(symbols);
        let mut plane = PlaneReader::new(cursor.take(bits.div_ceil(8))?, offset);
        arch::run(tokens::Read { tokens: symbols, raw: &mut plane, values });
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
    Joined(JoinedReader<'a>),
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
            Source::Joined(joined) => joined.fill(out)?,
            Source::Decoded(symbols, at) => {
                out.copy_from_slice(&symbols[*at..*at + out.len()]);
                *at += out.len();
            }
        }
        // The maximum has vector instructions; the search for the first symbol has none.
        let largest = if self.max < u8::MAX { out.iter().fold(0, |largest, &s| s.max(largest)) } else { 0 };
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
        let (kind, coding) = read_coding(&mut ahead)?;
        match coding {
            SYMBOLS => {
                *cursor = ahead;
                Ok(Self::Symbols(EntropyReader::new(cursor, kind, decoder.tables, n)?))
            }
            REFERENCED => {
                *cursor = ahead;
                let references = read_references(cursor, decoder, n)?;
                Ok(Self::Referenced(references, EntropyReader::new(cursor, kind, decoder.tables, n)?))
            }
            JOINED => {
                *cursor = ahead;
                Ok(Self::Joined(JoinedReader::new(cursor, decoder.tables, n)?))
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

/// Reads the coding of integers, that inside if it is [`TREE`], and returns it with the kind of the segments
/// of all integers.
fn read_coding(cursor: &mut Cursor<'_>) -> Result<(SegmentKind, u8)> {
    match cursor.u8()? {
        TREE => Ok((SegmentKind::Tree, cursor.u8_in("inner", SYMBOLS, REFERENCED)?)),
        coding => Ok((SegmentKind::Rans, coding)),
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
        let mut reader = EntropyReader::new(cursor, SegmentKind::Rans, decoder.tables, count)?;
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
fn validate_entropy(
    cursor: &mut Cursor<'_>,
    kind: SegmentKind,
    n: u64,
    raw: bool,
    groups: &[u64],
) -> Result<()> {
    let segment = |cursor: &mut Cursor<'_>| {
        let offset = cursor.offset();
        if cursor.varint()? != 0 {
            return Err(Error::format(FormatErrorKind::UnknownReference { field: "table" }, offset));
        }
        Table::read(cursor)?;
        match kind {
            SegmentKind::Rans => rans::validate(cursor)?,
            SegmentKind::Tree => {
                tree::take_planes(cursor)?;
            }
        }
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
    if n == 0 { Ok(()) } else { validate_entropy(cursor, SegmentKind::Rans, n, true, &[]) }
}

/// Skips `ints(N)` without decoding, as [`validate_entropy`] does.
pub(crate) fn validate_ints(cursor: &mut Cursor<'_>, n: u64) -> Result<()> {
    validate_grouped_ints(cursor, n, &[])
}

/// Returns the coding of `ints(N)` at the cursor, if it is not of the core profile.
pub(crate) fn beyond_core(cursor: &Cursor<'_>, n: u64) -> Result<Option<&'static str>> {
    if n == 0 {
        return Ok(None);
    }
    Ok(match cursor.clone().u8()? {
        REFERENCED => Some("referenced integers"),
        JOINED => Some("joined integers"),
        TREE => Some("integers in trees"),
        _ => None,
    })
}

/// Skips as [`validate_ints`], where groups may have a segment each.
pub(crate) fn validate_grouped_ints(cursor: &mut Cursor<'_>, n: u64, groups: &[u64]) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    let offset = cursor.offset();
    let (kind, coding) = read_coding(cursor)?;
    // Groups have no trees.
    let groups = if kind == SegmentKind::Rans { groups } else { &[] };
    match coding {
        PACKED => take_packed(cursor, n).map(drop),
        TOKENS => validate_entropy(cursor, kind, n, true, groups),
        SYMBOLS => validate_entropy(cursor, kind, n, false, groups),
        REFERENCED => {
            let row_len = cursor.varint_in("row_len", 1, n)?;
            let flags = cursor.flags("reference flags", 0b11)?;
            validate_entropy(cursor, SegmentKind::Rans, n.div_ceil(row_len), false, &[])?;
            if flags & 1 != 0 {
                validate_entropy(cursor, SegmentKind::Rans, row_len, false, &[])?;
            }
            validate_entropy(cursor, kind, n, false, &[])
        }
        JOINED => {
            let per = read_per(cursor)?;
            validate_entropy(cursor, kind, n.div_ceil(per.into()), false, &[])
        }
        other => Err(Error::unsupported("coding", other.into(), offset)),
    }
}

#[cfg(test)]
mod tests;
