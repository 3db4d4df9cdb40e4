use super::*;
use crate::bits::{put_packed, put_varint};
use crate::codes::count;
use crate::error::FormatError;
use crate::limits::Limits;

/// Writes a segment with a table of its own. Symbols below 4 are tokens without raw bits, too.
fn segment(symbols: &[u8], lanes_log: u8) -> Vec<u8> {
    let counts = count(symbols);
    let table = Table::from_counts(&counts).unwrap();
    let mut out = vec![0];
    table.write(&mut out);
    let part = rans::Part { symbols, counts: &counts, table: &table, lanes_log };
    rans::write(&mut out, part, &mut Vec::new());
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

/// INT-3.
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

/// INT-4, INT-5.
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
    for (log, segments, ahead) in
        [(10, 9, 8 << 10), (10, 1, (1 << 10) + 1), (18, 5, 4 << 18), (21, 3, 0), (24, 2, 0)]
    {
        // The last of the segments has one symbol more.
        let n = (segments << log) + 1;
        let parts = vec![segment(&[7], 0); segments as usize + 1];
        let bytes = joined(log, &parts);
        let mut reader =
            EntropyReader::new(&mut Cursor::new(&bytes, 0, "ints"), SegmentKind::Rans, &[], n).unwrap();
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

/// Joined integers of every segmentation come back, whole and piece by piece; INT-6 holds in each way.
#[test]
fn integers_come_back_from_their_symbols() {
    for (per, lanes_log) in [(2u8, 5), (4, 2), (8, 0)] {
        let width = 8 / u32::from(per);
        let len = 3 * PIECE + 2 * usize::from(per) - 1;
        let values: Vec<u8> =
            (0..len as u64).map(|i| (crate::random::word(9, 0, i) >> (32 - width)) as u8).collect();
        let mut symbols = Vec::new();
        put_packed(&mut symbols, &values, width);
        let n = values.len() as u64;
        let expected = widened(&values);
        for entropy in [joined(0, &[segment(&symbols, lanes_log)]), segmented(&symbols, 10, lanes_log)] {
            let bytes = with_coding(JOINED, &with_coding(per, &entropy));
            assert!(in_each_way(&bytes, n, &[]).into_iter().all(|read| read.unwrap() == expected), "{per}");
            validated(&bytes, n, &[]).unwrap();
            assert!(in_each_way(&bytes, n + u64::from(per), &[]).iter().all(Result::is_err));
        }
        *symbols.last_mut().unwrap() |= 0x80;
        let bytes = with_coding(JOINED, &with_coding(per, &joined(0, &[segment(&symbols, lanes_log)])));
        for read in in_each_way(&bytes, n, &[]) {
            assert_eq!(read.unwrap_err().name(), "nonzero_padding", "{per}");
        }
        // The last symbol has no padding.
        assert!(in_each_way(&bytes, n + 1, &[]).into_iter().all(|read| read.is_ok()));
    }
    // An integer more than 2^10 whole symbols is in a second segment.
    let bytes = with_coding(JOINED, &with_coding(2, &segmented(&[0; 1025], 10, 0)));
    validated(&bytes, 2049, &[]).unwrap();
    for per in [0, 1, 3, 5, 16] {
        let bytes = with_coding(JOINED, &with_coding(per, &joined(0, &[segment(&[1; 4], 0)])));
        assert!(in_each_way(&bytes, 4, &[]).into_iter().all(|read| outside(read).is_some()), "{per}");
        assert!(outside(validated(&bytes, 4, &[])).is_some());
    }
}

#[test]
fn codings_beyond_the_core_profile_are_named() {
    let named = |bytes: &[u8], n| beyond_core(&Cursor::new(bytes, 0, "ints"), n).map_err(|e| e.name());
    assert_eq!(named(&[], 0), Ok(None));
    assert!(named(&[], 1).is_err());
    for (coding, name) in [
        (PACKED, None),
        (TOKENS, None),
        (SYMBOLS, None),
        (REFERENCED, Some("referenced integers")),
        (JOINED, Some("joined integers")),
        (TREE, Some("integers in trees")),
    ] {
        assert_eq!(named(&[coding], 1), Ok(name), "{coding}");
    }
}

/// Symbols in trees come back, whole and piece by piece, and are skipped.
#[test]
fn symbols_come_back_from_trees() {
    let symbols: Vec<u8> =
        (0..3 * PIECE as u64 + 5).map(|i| 90 + crate::random::word(10, 0, i).leading_zeros() as u8).collect();
    let tree_of = |symbols: &[u8]| {
        let table = Table::from_counts(&count(symbols)).unwrap();
        let mut out = vec![0];
        table.write(&mut out);
        tree::write(&mut out, &table, symbols, &mut Default::default());
        out
    };
    let n = symbols.len() as u64;
    let trees: Vec<_> = symbols.chunks(1 << 10).map(tree_of).collect();
    for entropy in [joined(0, &[tree_of(&symbols)]), joined(10, &trees)] {
        let plain = [&[TREE, SYMBOLS], entropy.as_slice()].concat();
        assert!(in_each_way(&plain, n, &[]).into_iter().all(|read| read.unwrap() == widened(&symbols)));
        validated(&plain, n, &[]).unwrap();
        let rows = joined(0, &[segment(&[10], 0)]);
        let referenced = [&[TREE, REFERENCED], [0x85, 0x60].as_slice(), &[0], &rows, &entropy].concat();
        let more: Vec<u64> = symbols.iter().map(|&s| u64::from(s) + 10).collect();
        assert!(in_each_way(&referenced, n, &[]).into_iter().all(|read| read.unwrap() == more));
        validated(&referenced, n, &[]).unwrap();
    }
    for inner in [PACKED, TOKENS, JOINED, TREE, 255] {
        let bytes = [&[TREE, inner], joined(0, &[tree_of(&symbols)]).as_slice()].concat();
        assert!(in_each_way(&bytes, n, &[]).into_iter().all(|read| outside(read) == Some(inner.into())));
        assert_eq!(outside(validated(&bytes, n, &[])), Some(inner.into()));
    }
}
