//! Integer codes: frequency tables, rANS segments, coded integers (spec, section 7).

use super::walk::{Result, Stop, Walk};

/// A frequency table.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    /// The symbol that owns each of the 4096 slots.
    slots: Vec<u8>,
    freq: [u32; 256],
    start: [u32; 256],
}

/// Notes a frequency table.
pub(crate) fn table(w: &mut Walk<'_>, bytes: &[u8], name: &str) -> Result<Table> {
    let mut at = 0usize;
    let mut take = |width: usize| -> Result<u32> {
        let mut value = 0;
        for i in 0..width {
            let byte = bytes.get((at + i) / 8).ok_or(Stop("a frequency table is truncated".into()))?;
            value |= u32::from(byte >> ((at + i) % 8) & 1) << i;
        }
        at += width;
        Ok(value)
    };
    let first = take(8)? as usize;
    let last = first + take(8)? as usize;
    let rest = first + take(8)? as usize;
    if last > 255 || rest > last {
        return Err(Stop("a frequency table goes beyond symbol 255".into()));
    }
    let mut freq = [0u32; 256];
    let mut sum = 0;
    for symbol in (first..=last).filter(|&s| s != rest) {
        let x = take(4)?;
        if x > 12 {
            return Err(Stop("a frequency beyond 4095".into()));
        }
        if x > 0 {
            let e = x - 1;
            let y = take(e.min(3) as usize)?;
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
    w.bytes(at.div_ceil(8), name, |_| (symbols, meaning))?;
    Ok(Table { slots, freq, start })
}

/// Notes `ints(N)`.
pub(crate) fn ints(w: &mut Walk<'_>, body: &[u8], n: u64, what: &str, tables: &[Table]) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    w.under(format_args!("{what}: ints({n})"), |w| {
        let coding = w.u8("coding", |c| match c {
            0 => "packed",
            1 => "tokens",
            2 => "symbols",
            3 => "referenced",
            _ => "unknown",
        })?;
        match coding {
            0 => {
                let width = w.u8("width", |b| format!("{b} bits each"))?;
                let bits = u128::from(n) * u128::from(width);
                let len = u64::try_from(bits.div_ceil(8)).map_err(|_| Stop("too many integers".into()))?;
                w.payload(len, "fields", format_args!("{n} fields of {width} bits"))?;
                Ok(())
            }
            1 => entropy(w, body, n, true, tables),
            2 => entropy(w, body, n, false, tables),
            3 => {
                let row_len = w.varint("row_len", |_| "integers in a row")?;
                let flags = w.u8("flags", |f| match f {
                    0 => "rows",
                    1 => "rows and columns",
                    2 => "rows, zero apart",
                    3 => "rows and columns, zero apart",
                    _ => "reserved bits",
                })?;
                if row_len == 0 {
                    return Err(Stop("rows of no integers".into()));
                }
                let rows = n.div_ceil(row_len);
                w.under(format_args!("row references: entropy({rows})"), |w| {
                    entropy(w, body, rows, false, tables)
                })?;
                if flags & 1 != 0 {
                    w.under(format_args!("column references: entropy({row_len})"), |w| {
                        entropy(w, body, row_len, false, tables)
                    })?;
                }
                w.under(format_args!("residuals: entropy({n})"), |w| entropy(w, body, n, false, tables))
            }
            other => Err(Stop(format!("unknown coding {other}"))),
        }
    })
}

/// Notes `entropy(N)`.
pub(crate) fn entropy(w: &mut Walk<'_>, body: &[u8], n: u64, tokens: bool, tables: &[Table]) -> Result<()> {
    let log = w.u8("segment_log", |s| match s {
        0 => "one segment".to_owned(),
        s => format!("segments of 2^{s} integers"),
    })?;
    if log == 0 {
        return segment(w, body, n, tokens, tables);
    }
    if log > 24 {
        return Err(Stop(format!("segment_log {log}")));
    }
    let each = 1u64 << log;
    for number in 0..n.div_ceil(each) {
        let count = each.min(n - number * each);
        w.under(format_args!("segment {number}"), |w| {
            let len = w.varint("length", |_| "bytes of the segment")?;
            let len = usize::try_from(len).map_err(|_| Stop("a segment is too long".into()))?;
            w.inside(len, |w| segment(w, body, count, tokens, tables))
        })?;
    }
    Ok(())
}

fn segment(w: &mut Walk<'_>, body: &[u8], n: u64, tokens: bool, tables: &[Table]) -> Result<()> {
    let number = w.varint("table", |t| match t {
        0 => "its own, which follows".to_owned(),
        t => format!("shared table {}", t - 1),
    })?;
    let table = match number {
        0 => {
            let ahead = &body[w.at()..w.at() + w.rest()];
            &table(w, ahead, "frequency table")?
        }
        j => {
            let shared = usize::try_from(j - 1).ok().and_then(|j| tables.get(j));
            shared.ok_or(Stop(format!("there is no shared table {}", j - 1)))?
        }
    };
    let lanes_log = w.u8("lanes_log", |l| format!("{} lanes", 1u64.checked_shl(l.into()).unwrap_or(0)))?;
    if !matches!(lanes_log, 0 | 2 | 5) {
        return Err(Stop(format!("lanes_log {lanes_log}")));
    }
    let word_count = w.varint("word_count", |_| "")?;
    let lanes = 1u64 << lanes_log;
    let states = w.payload(4 * lanes, "states", "a u32 for each lane")?;
    let word_bytes = word_count.checked_mul(2).ok_or(Stop("too many words".into()))?;
    let words = w.payload(word_bytes, "words", format_args!("{word_count} u16 of rANS"))?;
    if tokens {
        let bits = raw_bits(table, n, states, words)?;
        w.payload(bits.div_ceil(8), "raw bits", format_args!("{bits} bits below the tokens"))?;
    }
    Ok(())
}

/// Returns the number of raw bits of a segment's tokens, which must be decoded to know it.
fn raw_bits(table: &Table, n: u64, states: &[u8], words: &[u8]) -> Result<u64> {
    let raw_of = |symbol: u8| u64::from(symbol / 2).saturating_sub(1);
    if let Some(only) = (0..=255u8).find(|&s| table.freq[usize::from(s)] == 4096) {
        return n.checked_mul(raw_of(only)).ok_or(Stop("too many integers".into()));
    }
    let mut states: Vec<u32> = states.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let mut words = words.as_chunks::<2>().0.iter().map(|b| u32::from(u16::from_le_bytes(*b)));
    let mut bits = 0u64;
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
        bits += raw_of(symbol);
    }
    Ok(bits)
}
