//! Integer codes: frequency tables, rANS segments, coded integers (spec, section 7).

use std::borrow::Cow;

use super::tree::Node;
use super::walk::{Result, Stop, Walk};

/// A frequency table.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    /// The symbol that owns each of the 4096 slots.
    slots: Vec<u8>,
    pub(super) freq: [u32; 256],
    start: [u32; 256],
}

/// Notes a frequency table.
pub(crate) fn table(w: &mut Walk<'_>, name: &str) -> Result<Table> {
    let mut bits = Bits { plane: w.ahead(), at: 0 };
    let first = bits.take(8)? as usize;
    let last = first + bits.take(8)? as usize;
    let rest = first + bits.take(8)? as usize;
    if last > 255 || rest > last {
        return Err(Stop("a frequency table goes beyond symbol 255".into()));
    }
    let mut freq = [0u32; 256];
    let mut sum = 0;
    for symbol in (first..=last).filter(|&s| s != rest) {
        let x = bits.take(4)? as u32;
        if x > 12 {
            return Err(Stop("a frequency beyond 4095".into()));
        }
        if x > 0 {
            let e = x - 1;
            let y = bits.take(e.min(3).into())? as u32;
            freq[symbol] = (1 << e) + (y << (e - e.min(3)));
            sum += freq[symbol];
        }
    }
    freq[rest] = 4096u32.checked_sub(sum).ok_or(Stop("frequencies sum to more than 4095".into()))?;
    let mut slots = Vec::with_capacity(4096);
    let mut start = [0; 256];
    for symbol in first..=last {
        start[symbol] = slots.len() as u32;
        slots.resize(slots.len() + freq[symbol] as usize, symbol as u8);
    }
    let used = freq.iter().filter(|&&f| f > 0).count();
    let meaning = match used {
        0..=6 => {
            let each = (first..=last).filter(|&s| freq[s] > 0).map(|s| format!("{s}: {}", freq[s]));
            format!("of 4096: {}", each.collect::<Vec<_>>().join(", "))
        }
        _ => format!("most frequent {rest}: {} of 4096", freq[rest]),
    };
    let symbols = format!("{used} symbol{} of {first}..{last}", if used == 1 { "" } else { "s" });
    w.bytes(bits.at.div_ceil(8) as usize, name, |_| (symbols, meaning))?;
    Ok(Table { slots, freq, start })
}

/// Surroundings of a code of integers.
#[derive(Clone, Copy)]
struct Code<'a> {
    /// The update's shared tables.
    tables: &'a [Table],
    /// For a support classed by the base, the number of integers of each group that has some.
    groups: &'a [u64],
    /// Whether the integers are wanted.
    kept: bool,
}

/// Notes `ints(N)`.
pub(crate) fn ints(w: &mut Walk<'_>, tables: &[Table], n: u64, what: &str) -> Result<()> {
    coded(w, Code { tables, groups: &[], kept: false }, n, what).map(drop)
}

/// Notes `ints(N)`, which can have a segment for each group.
pub(crate) fn grouped_ints(
    w: &mut Walk<'_>,
    tables: &[Table],
    n: u64,
    what: &str,
    groups: &[u64],
) -> Result<()> {
    coded(w, Code { tables, groups, kept: false }, n, what).map(drop)
}

/// Notes `ints(N)`, and decodes it. Nothing in the code bounds `n`: the caller does.
pub(crate) fn kept_ints(w: &mut Walk<'_>, tables: &[Table], n: u64, what: &str) -> Result<Vec<u64>> {
    coded(w, Code { tables, groups: &[], kept: true }, n, what)
}

/// Notes `entropy(N)`.
pub(crate) fn entropy(w: &mut Walk<'_>, tables: &[Table], n: u64, tokens: bool) -> Result<()> {
    let segment = if tokens { rans_of_tokens } else { rans };
    segments(w, Code { tables, groups: &[], kept: false }, n, segment).map(drop)
}

/// Notes `ints(N)`; returns the integers if they are wanted.
fn coded(w: &mut Walk<'_>, code: Code<'_>, n: u64, what: &str) -> Result<Vec<u64>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    w.under(format_args!("{what}: ints({n})"), |w| {
        let coding = w.u8("coding", |c| match c {
            0 => "packed",
            1 => "tokens",
            2 => "symbols",
            3 => "referenced",
            4 => "joined",
            5 => "tree",
            _ => "unknown",
        })?;
        match coding {
            0 => {
                let width = w.u8("width", |b| format!("{b} bits each"))?;
                let bits = u128::from(n) * u128::from(width);
                let len = u64::try_from(bits.div_ceil(8)).map_err(|_| Stop("too many integers".into()))?;
                let plane = w.payload(len, "fields", format_args!("{n} fields of {width} bits"))?;
                let mut bits = Bits { plane, at: 0 };
                (0..if code.kept { n } else { 0 }).map(|_| bits.take(width.into())).collect()
            }
            1 => segments(w, code, n, rans_of_tokens),
            2 => segments(w, code, n, rans),
            3 => referenced(w, Code { groups: &[], ..code }, n, rans),
            4 => joined(w, Code { groups: &[], ..code }, n),
            5 => {
                let code = Code { groups: &[], ..code };
                let inner = |c| if c == 2 { "symbols" } else { "referenced" };
                match w.u8("inner", inner)? {
                    2 => segments(w, code, n, tree),
                    3 => referenced(w, code, n, tree),
                    other => Err(Stop(format!("coding {other} in trees"))),
                }
            }
            other => Err(Stop(format!("unknown coding {other}"))),
        }
    })
}

/// Notes referenced symbols.
fn referenced(w: &mut Walk<'_>, code: Code<'_>, n: u64, segment: Segment) -> Result<Vec<u64>> {
    let row_len = w.varint("row_len", |_| "integers in a row")?;
    let flags = w.u8("flags", |f| match f {
        0 => "rows",
        1 => "rows and columns",
        2 => "rows, zero apart",
        3 => "rows and columns, zero apart",
        _ => "reserved bits",
    })?;
    if !(1..=n).contains(&row_len) {
        return Err(Stop(format!("rows of {row_len} integers")));
    }
    let mut list = |what: &str, count: u64, segment: Segment| {
        w.under(format_args!("{what}: entropy({count})"), |w| segments(w, code, count, segment))
    };
    let rows = list("row references", n.div_ceil(row_len), rans)?;
    let columns = if flags & 1 != 0 { list("column references", row_len, rans)? } else { Vec::new() };
    let residuals = list("residuals", n, segment)?;
    let at = |list: &[u64], i: u64| usize::try_from(i).ok().and_then(|i| list.get(i)).map_or(0, |&r| r);
    let whole = |(i, s): (u64, u64)| {
        let reference = at(&rows, i / row_len) + at(&columns, i % row_len);
        match (flags & 2 != 0, s) {
            (false, _) => (s + reference) % 256,
            (true, 0) => 0,
            (true, _) => 1 + (s - 1 + reference) % 255,
        }
    };
    Ok((0..).zip(residuals).map(whole).collect())
}

/// Notes joined integers.
fn joined(w: &mut Walk<'_>, code: Code<'_>, n: u64) -> Result<Vec<u64>> {
    let per = w.u8("per", |per| format!("{per} integers in a symbol"))?;
    if !matches!(per, 2 | 4 | 8) {
        return Err(Stop(format!("{per} integers in a symbol")));
    }
    let width = 8 / per;
    let symbols = segments(w, code, n.div_ceil(per.into()), rans)?;
    let fields = |symbol: u64| (0..per).map(move |i| symbol >> (width * i) & ((1 << width) - 1));
    let mut all: Vec<u64> = symbols.into_iter().flat_map(fields).collect();
    all.truncate(usize::try_from(n).unwrap_or(usize::MAX));
    Ok(all)
}

/// Notes a segment of some integers; returns them if they are wanted.
type Segment = fn(&mut Walk<'_>, Code<'_>, u64) -> Result<Vec<u64>>;

/// Notes `entropy(N)`; returns the integers if they are wanted.
fn segments(w: &mut Walk<'_>, code: Code<'_>, n: u64, segment: Segment) -> Result<Vec<u64>> {
    let log = w.u8("segment_log", |s| match s {
        0 => "one segment".to_owned(),
        1 => "a segment for each group".to_owned(),
        s => format!("segments of 2^{s} integers"),
    })?;
    match log {
        0 => segment(w, code, n),
        1 if code.groups.len() < 2 => Err(Stop("segments by group without groups".into())),
        1 => {
            for (number, &count) in code.groups.iter().enumerate() {
                w.under(format_args!("segment {number}: {count} integers"), |w| segment(w, code, count))?;
            }
            // Nobody wants integers of groups.
            Ok(Vec::new())
        }
        10..=24 => {
            let each = 1u64 << log;
            let mut all = Vec::new();
            for number in 0..n.div_ceil(each) {
                let count = each.min(n - number * each);
                w.under(format_args!("segment {number}"), |w| {
                    let len = w.varint("length", |_| "bytes of the segment")?;
                    let len = usize::try_from(len).map_err(|_| Stop("a segment is too long".into()))?;
                    all.append(&mut w.inside(len, |w| segment(w, code, count))?);
                    Ok(())
                })?;
            }
            Ok(all)
        }
        other => Err(Stop(format!("segment_log {other}"))),
    }
}

/// Notes the number of a table, and the table if it follows.
fn some_table<'t>(w: &mut Walk<'_>, tables: &'t [Table]) -> Result<Cow<'t, Table>> {
    let number = w.varint("table", |t| match t {
        0 => "its own, which follows".to_owned(),
        t => format!("shared table {}", t - 1),
    })?;
    let Some(shared) = number.checked_sub(1) else { return table(w, "frequency table").map(Cow::Owned) };
    let table = usize::try_from(shared).ok().and_then(|j| tables.get(j)).map(Cow::Borrowed);
    table.ok_or(Stop(format!("there is no shared table {shared}")))
}

fn rans(w: &mut Walk<'_>, code: Code<'_>, n: u64) -> Result<Vec<u64>> {
    rans_segment(w, code, n, false)
}

fn rans_of_tokens(w: &mut Walk<'_>, code: Code<'_>, n: u64) -> Result<Vec<u64>> {
    rans_segment(w, code, n, true)
}

/// Notes a segment whose symbols are in trees.
fn tree(w: &mut Walk<'_>, code: Code<'_>, n: u64) -> Result<Vec<u64>> {
    let table = some_table(w, code.tables)?;
    let len = w.varint("len", |_| "bytes of the planes")?;
    let planes = w.payload(len, "planes", format_args!("bits of the nodes of a tree, for {n} symbols"))?;
    if !code.kept {
        return Ok(Vec::new());
    }
    let (root, mut rest, mut symbols) = (Node::root(&table), planes, Vec::new());
    let mut left = n;
    while left > 0 {
        let count = left.min(1 << 15) as usize;
        symbols.extend(root.symbols(count, &mut rest)?.into_iter().map(u64::from));
        left -= count as u64;
    }
    Ok(symbols)
}

fn rans_segment(w: &mut Walk<'_>, code: Code<'_>, n: u64, tokens: bool) -> Result<Vec<u64>> {
    let table = &some_table(w, code.tables)?;
    let lanes_log = w.u8("lanes_log", |l| format!("{} lanes", 1u64.checked_shl(l.into()).unwrap_or(0)))?;
    if !matches!(lanes_log, 0 | 2 | 5) {
        return Err(Stop(format!("lanes_log {lanes_log}")));
    }
    let word_count = w.varint("word_count", |_| "")?;
    let lanes = 1u64 << lanes_log;
    let states = w.payload(4 * lanes, "states", "a u32 for each lane")?;
    let word_bytes = word_count.checked_mul(2).ok_or(Stop("too many words".into()))?;
    let words = w.payload(word_bytes, "words", format_args!("{word_count} u16 of rANS"))?;
    let mut symbols = Vec::new();
    if code.kept {
        decode(table, n, states, words, |symbol| symbols.push(symbol))?;
    }
    if !tokens {
        return Ok(symbols.into_iter().map(u64::from).collect());
    }
    let raw = raw_bits(table, n, states, words)?;
    let plane = w.payload(raw.div_ceil(8), "raw bits", format_args!("{raw} bits below the tokens"))?;
    let mut bits = Bits { plane, at: 0 };
    symbols.into_iter().map(|token| untoken(token, &mut bits)).collect()
}

/// Number of raw bits of a token.
fn raw_of(token: u8) -> u64 {
    u64::from(token / 2).saturating_sub(1)
}

/// Returns the integer of a token, whose raw bits come next.
fn untoken(token: u8, bits: &mut Bits<'_>) -> Result<u64> {
    match token {
        0 | 1 => Ok(token.into()),
        2..128 => {
            let e = token / 2;
            Ok(1 << e | u64::from(token & 1) << (e - 1) | bits.take(raw_of(token))?)
        }
        _ => Err(Stop(format!("token {token}"))),
    }
}

/// Returns the number of raw bits of a segment's tokens, which must be decoded to know it.
fn raw_bits(table: &Table, n: u64, states: &[u8], words: &[u8]) -> Result<u64> {
    if let Some(only) = (0..=255u8).find(|&s| table.freq[usize::from(s)] == 4096) {
        return n.checked_mul(raw_of(only)).ok_or(Stop("too many integers".into()));
    }
    let mut bits = 0;
    decode(table, n, states, words, |symbol| bits += raw_of(symbol))?;
    Ok(bits)
}

/// Calls `each` with every symbol of a segment.
fn decode(table: &Table, n: u64, states: &[u8], words: &[u8], mut each: impl FnMut(u8)) -> Result<()> {
    let mut states: Vec<u32> = states.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let mut words = words.as_chunks::<2>().0.iter().map(|b| u32::from(u16::from_le_bytes(*b)));
    let lanes = states.len() as u64;
    for i in 0..n {
        let state = &mut states[(i % lanes) as usize];
        let slot = *state % 4096;
        let symbol = table.slots.get(slot as usize).copied().ok_or(Stop("a slot without symbol".into()))?;
        let s = usize::from(symbol);
        *state = table.freq[s].wrapping_mul(*state / 4096).wrapping_add(slot - table.start[s]);
        if *state < 1 << 16 {
            let word = words.next().ok_or(Stop("rANS words are missing".into()))?;
            *state = *state << 16 | word;
        }
        each(symbol);
    }
    Ok(())
}

/// The bits of a plane from a position on.
struct Bits<'a> {
    plane: &'a [u8],
    at: u64,
}

impl Bits<'_> {
    /// Takes a field of `width` bits, at most 64.
    fn take(&mut self, width: u64) -> Result<u64> {
        let mut value = 0;
        for i in 0..width {
            let byte = usize::try_from((self.at + i) / 8).ok().and_then(|at| self.plane.get(at));
            let byte = byte.ok_or(Stop("a bit plane is truncated".into()))?;
            value |= u64::from(byte >> ((self.at + i) % 8) & 1)
                .checked_shl(i as u32)
                .ok_or(Stop(format!("a field of {width} bits")))?;
        }
        self.at += width;
        Ok(value)
    }
}
