use super::*;
use crate::bits::Cursor;
use crate::codes::read::{Decoder, read_entropy_tokens, read_grouped_ints, read_ints, read_symbols};
use crate::error::Result;
use crate::limits::{Budget, Limits};
use proptest::prelude::*;

fn coder(tables: &[Table]) -> Coder<'_> {
    Coder::new(Entropy::Auto, tables, None)
}

fn read<T>(
    bytes: &[u8],
    tables: &[Table],
    f: impl Fn(&mut Cursor<'_>, &mut Decoder<'_>) -> Result<T>,
) -> Result<T> {
    let mut cursor = Cursor::new(bytes, 0, "ints");
    let value = f(&mut cursor, &mut Decoder { tables, budget: &Budget::new(&Limits::default()) })?;
    cursor.finish()?;
    Ok(value)
}

#[test]
fn references_win_on_a_matrix_with_scaled_rows() {
    let noise = |i: usize| (i.wrapping_mul(0x9e37_79b9) >> 16 & 3) as u8;
    let symbols: Vec<u8> = (0..200usize)
        .flat_map(|r| {
            (0..64usize).map(move |c| 60 + noise(r * 977) * 7 + noise(c * 31) * 5 + noise(r * 64 + c))
        })
        .collect();
    let mut plain = Vec::new();
    write_exponents(&mut plain, &mut coder(&[]), &symbols, &[]);
    let mut referenced = Vec::new();
    write_exponents(&mut referenced, &mut coder(&[]), &symbols, &[64]);
    assert_eq!(referenced[0], REFERENCED);
    assert!(referenced.len() < plain.len() * 3 / 4, "{} {}", referenced.len(), plain.len());
    for bytes in [plain, referenced] {
        let back = read(&bytes, &[], |c, d| read_symbols(c, d, symbols.len() as u64, 255)).unwrap();
        assert_eq!(back, symbols);
    }
}

#[test]
fn exponents_are_in_trees_with_little_effort_alone_and_keep_their_references() {
    let of_row = |i: u64| ((i / 1024).wrapping_mul(0x9e37_79b9) >> 8 & 15) as u32;
    // About those of products of two random numbers.
    let exponent = |i| {
        let zeros = [0, 1].map(|of| crate::random::word(4, of, i).leading_zeros());
        (100 + of_row(i) - zeros[0] - zeros[1]) as u8
    };
    let exponents: Vec<u8> = (0..1 << 17).map(exponent).collect();
    let write = |effort| {
        let mut bytes = Vec::new();
        let mut coder = coder(&[]);
        coder.effort = effort;
        write_exponents(&mut bytes, &mut coder, &exponents, &[1024]);
        assert_eq!(coder.effort, effort);
        let back = read(&bytes, &[], |c, d| read_symbols(c, d, exponents.len() as u64, 255)).unwrap();
        assert_eq!(back, exponents);
        bytes
    };
    let (usual, fast) = (write(Effort::Default), write(Effort::Fast));
    assert_eq!((usual[0], &fast[..2]), (REFERENCED, &[TREE, REFERENCED][..]));
    let (usual, fast, signs) = (usual.len(), fast.len(), exponents.len() / 8);
    assert!((usual..usual + (usual + signs) / 100).contains(&fast), "{usual} and {fast}");
}

#[test]
fn shared_tables_are_used_where_they_pay() {
    let values = [0, 1, 0, 2, 5, 0, 1, 9, 0, 0, 3];
    let mut counts = [0; 256];
    values.iter().for_each(|&v| counts[tokens::token(v) as usize] += 100);
    let tables = [Table::from_counts(&counts).unwrap()];
    let mut own = Vec::new();
    write_entropy_tokens(&mut own, &mut coder(&[]), Role::Gaps, &values);
    let mut shared = Vec::new();
    write_entropy_tokens(&mut shared, &mut coder(&tables), Role::Gaps, &values);
    assert!(shared.len() < own.len());
    assert_eq!(read(&shared, &tables, |c, d| read_entropy_tokens(c, d, 11)).unwrap(), values);
    assert_eq!(
        read(&shared, &[], |c, d| read_entropy_tokens(c, d, 11)).unwrap_err().name(),
        "unknown_reference"
    );
}

/// The columns differ more and more. At first, references cost more than they save.
#[test]
fn references_are_written_only_where_they_save_bytes() {
    let random = |seed, below, i: usize| (crate::random::word(seed, 0, i as u64) % below) as u8;
    let mut referenced = 0;
    for effect in 1..80 {
        let symbol = |i: usize| 60 + random(1, 8, i) + random(2, effect, i % 24);
        let symbols: Vec<u8> = (0..40 * 24).map(symbol).collect();
        let [plain, best] = [&[][..], &[24]].map(|row_lens| {
            let mut bytes = Vec::new();
            write_exponents(&mut bytes, &mut coder(&[]), &symbols, row_lens);
            bytes
        });
        assert!(best.len() <= plain.len(), "{effect}: {} and {} bytes", best.len(), plain.len());
        referenced += usize::from(best[0] == REFERENCED);
    }
    assert!((1..79).contains(&referenced), "{referenced}");
}

#[test]
fn long_rows_are_cut_where_their_statistics_change() {
    let values: Vec<u64> = (0..60_000u64).map(|i| if i < 32_768 { i % 3 } else { 1000 + i % 7 }).collect();
    let mut bytes = Vec::new();
    write_entropy_tokens(&mut bytes, &mut coder(&[]), Role::Gaps, &values);
    assert_eq!(bytes[0], FINE_LOG);
    assert!((bytes.len() as u64 * 8).abs_diff(token_bits(&coder(&[]), &values)) < 2000);
    assert_eq!(read(&bytes, &[], |c, d| read_entropy_tokens(c, d, 60_000)).unwrap(), values);
}

#[test]
fn limits_hold_before_memory_is_taken() {
    let mut bytes = Vec::new();
    write_entropy_tokens(&mut bytes, &mut coder(&[]), Role::Gaps, &[0; 10]);
    let e = read(&bytes, &[], |c, d| read_entropy_tokens(c, d, 1 << 50)).unwrap_err();
    assert_eq!(e.name(), "limit");
}

/// Independent integers below `below`, the first of them much likelier.
fn skewed(below: u32, len: u64) -> Vec<u8> {
    let word = |i| crate::random::word(3, 0, i);
    (0..len).map(|i| (word(i) % below * u32::from(word(i + len).is_multiple_of(3))) as u8).collect()
}

#[test]
fn many_integers_of_few_bits_are_joined() {
    let cases = [(2, 4, 300_003), (3, 4, 800_002), (3, 2, 100_001), (4, 2, 300_001), (7, 2, 200_001)];
    for (below, per, len) in cases {
        let values = skewed(below, len);
        let (mut of_ints, mut of_symbols) = (Vec::new(), Vec::new());
        write_small_ints(&mut of_ints, &mut coder(&[]), Role::Levels, &values);
        write_symbols(&mut of_symbols, &mut coder(&[]), Role::Codes, &values);
        assert!(of_ints == of_symbols);
        assert_eq!(of_ints[..2], [JOINED, per], "{below}");
        let mut plain = Vec::new();
        write_entropy_symbols(&mut plain, &mut coder(&[]), Role::Codes, &values);
        assert!(of_ints.len() <= plain.len() + plain.len() / 1000 * 3, "{} {}", of_ints.len(), plain.len());
        assert!(read(&of_ints, &[], |c, d| read_symbols(c, d, len, 255)).unwrap() == values);
        // Too few for another table, and more bits than symbols have room for.
        for values in [&values[..4_000], &[values.as_slice(), &[16]].concat()] {
            let mut bytes = Vec::new();
            write_small_ints(&mut bytes, &mut coder(&[]), Role::Levels, values);
            assert_ne!(bytes[0], JOINED, "{below} {}", values.len());
        }
    }
}

/// Equal patterns cost nothing joined, and bits for each integer otherwise.
#[test]
fn joined_integers_have_a_table_of_their_combinations() {
    let values: Vec<u8> = (0..20_000).map(|i| (i % 4) as u8).collect();
    let mut bytes = Vec::new();
    write_small_ints(&mut bytes, &mut coder(&[]), Role::Levels, &values);
    assert_eq!((&bytes[..2], bytes.len() < 40), (&[JOINED, 4][..], true));
    let values: Vec<u8> = (0..20_000).map(|i| (i % 8 / 7) as u8).collect();
    bytes.clear();
    write_small_ints(&mut bytes, &mut coder(&[]), Role::Levels, &values);
    assert_eq!((&bytes[..2], bytes.len() < 40), (&[JOINED, 8][..], true));
    let mut packed = Vec::new();
    write_small_ints(&mut packed, &mut Coder::new(Entropy::Packed, &[], None), Role::Levels, &values);
    assert_eq!(packed[..2], [PACKED, 1]);
}

/// Integers that cost their bits in every code are packed.
#[test]
fn joined_integers_save_bits() {
    for bits in [1, 2, 4] {
        let values: Vec<u8> =
            (0..300_000).map(|i| (crate::random::word(5, 0, i) >> (32 - bits)) as u8).collect();
        let mut bytes = Vec::new();
        write_small_ints(&mut bytes, &mut coder(&[]), Role::Levels, &values);
        assert_eq!(bytes[..2], [PACKED, bits as u8]);
    }
}

/// Trees cost some hundredths of a bit for each symbol: little beside the other bytes of an element, much for
/// symbols of which one is likelier than all others.
#[test]
fn symbols_are_in_trees_where_they_cost_little() {
    let halving = |len: u64| -> Vec<u8> {
        (0..len).map(|i| 100 + crate::random::word(6, 0, i).leading_zeros() as u8).collect()
    };
    let mostly_one: Vec<u8> =
        (0..20_000).map(|i| u8::from(crate::random::word(7, 0, i).is_multiple_of(16))).collect();
    let coding = |symbols: &[u8], row_lens: &[u64], beside, change: &dyn Fn(&mut Coder<'_>)| {
        let mut coder = coder(&[]);
        change(&mut coder);
        let mut plan = SymbolPlan::new(&mut coder, symbols, row_lens);
        plan.prefer_trees(&coder, symbols, beside);
        let mut out = Vec::new();
        plan.write(&mut out, &mut coder, Role::Plane(0), symbols);
        let n = symbols.len() as u64;
        assert!(read(&out, &[], |c, d| read_symbols(c, d, n, 255)).unwrap() == symbols);
        out
    };
    let few = halving(20_000);
    assert_eq!(coding(&few, &[], 0, &|_| ())[..2], [TREE, SYMBOLS]);
    // One of three symbols is likelier than both others: two hundredths more.
    let spread: Vec<u8> =
        (0..20_000).map(|i| [0, 0, 0, 40, 80][(crate::random::word(9, 0, i) % 5) as usize]).collect();
    let (lanes, trees) = (coding(&spread, &[], 0, &|_| ()), coding(&spread, &[], 60_000, &|_| ()));
    assert_eq!((lanes[0], trees[0]), (SYMBOLS, TREE));
    let (lanes, trees) = (lanes.len(), trees.len());
    assert!(trees > lanes && trees <= lanes + (lanes + 60_000) / 1000 * 4, "{trees} {lanes}");
    assert_eq!(coding(&mostly_one, &[], 20_000, &|_| ())[0], SYMBOLS);
    assert_eq!(coding(&mostly_one, &[], 1 << 30, &|_| ())[0], TREE);
    assert_eq!(coding(&halving(1000), &[], 1 << 30, &|_| ())[0], SYMBOLS);
    assert_eq!(coding(&few, &[], 1 << 30, &|coder| coder.profile = Profile::Core)[0], SYMBOLS);
    // Divided arrays keep their segments, and symbols of rows their references.
    let changing: Vec<u8> =
        (0..300_000u32).map(|i| few[i as usize % 20_000] + (i >> 16) as u8 * 20).collect();
    assert_eq!(coding(&changing, &[], 1 << 30, &|_| ())[..2], [TREE, SYMBOLS]);
    let in_rows: Vec<u8> =
        few.iter().zip(0u64..).map(|(s, i)| s - 90 + crate::random::word(8, 0, i / 64) as u8 % 200).collect();
    assert_eq!(coding(&in_rows, &[64], 1 << 30, &|_| ())[..2], [TREE, REFERENCED]);
}

/// Returns runs of symbols, each of a symbol and its number.
fn runs(of: &[(u8, usize)]) -> Vec<u8> {
    of.iter().flat_map(|&(symbol, len)| std::iter::repeat_n(symbol, len)).collect()
}

/// One symbol leaves the states of its segment unchanged, so there are no words and the cost is exact,
/// except for varints: the estimate is two bytes for the number of words, three for a segment's length.
#[test]
fn segments_of_one_symbol_cost_their_bytes() {
    const PIECE: usize = 1 << FINE_LOG;
    let ten: Vec<(u8, usize)> = (0..10).map(|i| (i % 2 * 200, PIECE)).collect();
    for of in [
        &[(7, 1)][..],
        &[(0, 255)],
        &[(255, 256)],
        &[(3, 1 << 16), (3, 1 << 16)],
        &[(1, PIECE), (200, PIECE)],
        &[(1, PIECE), (200, PIECE), (9, 1)],
        &[(1, PIECE), (200, PIECE), (9, 100)],
        &ten,
    ] {
        let (symbols, mut bytes) = (runs(of), Vec::new());
        write_entropy_symbols(&mut bytes, &mut coder(&[]), Role::Codes, &symbols);
        let longer = of.len() * if of.len() > 1 { 3 } else { 1 };
        let cost = Cut::new(&coder(&[]), &symbols).cost;
        assert_eq!(cost, bits(8 * (bytes.len() - 1 + longer) as u64), "{of:?}");
    }
}

#[test]
fn raw_bits_are_part_of_the_cost() {
    // One token, each with 8 raw bits.
    let values: Vec<u64> = (512..612).collect();
    let (plan, mut bytes) = (TokenPlan::new(&coder(&[]), &values), Vec::new());
    plan.write(&mut bytes, &mut coder(&[]), Role::Gaps, &values);
    assert_eq!(plan.cost(), bits(8 * bytes.len() as u64));
}

#[test]
fn nothing_costs_nothing() {
    let (plan, mut bytes) = (TokenPlan::new(&coder(&[]), &[]), Vec::new());
    plan.write(&mut bytes, &mut coder(&[]), Role::Gaps, &[]);
    write_entropy_symbols(&mut bytes, &mut coder(&[]), Role::Codes, &[]);
    assert_eq!((plan.cost(), Cut::new(&coder(&[]), &[]).cost, bytes.len()), (0, 0, 0));
}

/// INT-3: groups without positions have no segments.
#[test]
fn groups_have_segments_of_their_own_where_these_are_smaller() {
    // Values of one token for each group, with raw bits and without.
    let wide: Vec<u64> = [512..1012, 1 << 22..(1 << 22) + 700, 40..41].into_iter().flatten().collect();
    let small: Vec<u64> = runs(&[(3, 500), (200, 700), (9, 1)]).into_iter().map(u64::from).collect();
    for (values, coding) in [(wide, TOKENS), (small, SYMBOLS)] {
        for groups in [&[500, 700][..], &[500, 700, 1], &[0, 500, 0, 700, 1, 0]] {
            let values = &values[..groups.iter().sum::<u64>() as usize];
            let mut bytes = Vec::new();
            write_grouped_ints(&mut bytes, &mut coder(&[]), Role::Ulps, Integers::Plain(values), groups);
            assert_eq!(bytes[..2], [coding, BY_GROUP], "{groups:?}");
            let len = values.len() as u64;
            let back =
                |groups: &[u64]| read(&bytes, &[], |c, d| read_grouped_ints(c, d, len, u64::MAX, groups));
            assert_eq!(back(groups).unwrap(), values);
            assert_eq!(back(&[]).unwrap_err().name(), "out_of_range");
            if coding == SYMBOLS {
                let symbols: Vec<u8> = values.iter().map(|&v| v as u8).collect();
                let cut = Cut::cheapest(&coder(&[]), Tally::new(&symbols, groups));
                let segments = groups.iter().filter(|&&len| len > 0).count();
                assert_eq!(cut.cost, bits(8 * (bytes.len() - 2 + segments) as u64));
            }
        }
    }
}

/// Where several codings have as many bits, packed fields are written, then symbols: they are faster to
/// read.
#[test]
fn a_code_is_written_from_the_first_bit_that_it_saves() {
    // Values of one token: 11 bytes and its raw bits.
    let from = |first: u64, n: u64| -> Vec<u64> { (first..first + n).collect() };
    let cases: [(Vec<u64>, u8); 5] = [
        (from(512, 40), PACKED),
        (from(512, 41), TOKENS),
        (from(128, 40), PACKED),
        (from(128, 41), TOKENS),
        (vec![1; 300], SYMBOLS),
    ];
    for (values, coding) in cases {
        for (entropy, coding) in [(Entropy::Auto, coding), (Entropy::Packed, PACKED)] {
            let (mut bytes, mut coder) = (Vec::new(), coder(&[]));
            coder.entropy = entropy;
            write_ints(&mut bytes, &mut coder, Role::Ulps, &values);
            assert_eq!(bytes[0], coding, "{} from {}, {entropy:?}", values.len(), values[0]);
            let back = read(&bytes, &[], |c, d| read_ints(c, d, values.len() as u64, u64::MAX));
            assert_eq!(back.unwrap(), values);
        }
    }
    // One symbol: 11 bytes, against fields of 8 or 3 bits and their width.
    for (symbol, len, coding) in [(255, 10, PACKED), (255, 11, SYMBOLS), (7, 26, PACKED), (7, 27, SYMBOLS)] {
        let mut bytes = Vec::new();
        write_symbols(&mut bytes, &mut coder(&[]), Role::Codes, &vec![symbol; len]);
        assert_eq!(bytes[0], coding, "{len} x {symbol}");
    }
}

#[test]
fn fields_have_the_width_of_the_largest_integer() {
    for (values, expected) in [
        (&[0; 5][..], &[PACKED, 0][..]),
        (&[0, 1], &[PACKED, 1, 0b10]),
        (&[255, 0, 3], &[PACKED, 8, 255, 0, 3]),
        (&[256, 0], &[PACKED, 9, 0, 1, 0]),
    ] {
        for entropy in [Entropy::Auto, Entropy::Packed] {
            let (mut bytes, mut coder) = (Vec::new(), coder(&[]));
            coder.entropy = entropy;
            write_ints(&mut bytes, &mut coder, Role::Levels, values);
            assert_eq!(bytes, expected, "{entropy:?}");
        }
    }
}

#[test]
fn dry_segments_are_about_as_long_as_real_ones() {
    let values: Vec<u64> = (0..50_000).map(|i| u64::from(crate::random::word(8, 0, i)) >> (i % 30)).collect();
    for len in [1, 300, 5000, 50_000] {
        let [real, dry] = [false, true].map(|dry| {
            let (mut out, mut record) = (Vec::new(), Vec::new());
            let mut coder = Coder::new(Entropy::Auto, &[], Some(&mut record));
            coder.dry = dry;
            write_entropy_tokens(&mut out, &mut coder, Role::Gaps, &values[..len]);
            (out.len(), record)
        });
        assert!(real.0.abs_diff(dry.0) <= 16 + real.0 / 200, "{len}: {} and {}", real.0, dry.0);
        assert!(real.1 == dry.1 && !dry.1.is_empty());
    }
}

#[test]
fn segments_are_recorded_until_they_are_taken() {
    let mut record = Vec::new();
    let mut coder = Coder::new(Entropy::Auto, &[], Some(&mut record));
    write_entropy_symbols(&mut Vec::new(), &mut coder, Role::Codes, &[1; 9]);
    let mark = coder.recorded();
    write_entropy_symbols(&mut Vec::new(), &mut coder, Role::Ulps, &[2; 9]);
    assert_eq!((mark, coder.recorded()), (1, 2));
    let taken = coder.take_recorded(mark);
    assert_eq!((taken.len(), coder.recorded()), (1, 1));
    coder.record_all(taken);
    let recorded: Vec<_> = record.iter().map(|(role, counts)| (*role, counts[1], counts[2])).collect();
    assert_eq!(recorded, [(Role::Codes, 9, 0), (Role::Ulps, 0, 9)]);
}

#[test]
fn a_code_pays_if_it_saves_more_than_a_256th() {
    // 2^16 bytes, of which tables for 256 symbols are less than 1/256.
    let bytes = |kinds: u32| -> Vec<u8> { (0..1 << 16).map(|i| (i % kinds) as u8).collect() };
    for (kinds, expected) in [(256, false), (240, false), (200, true), (16, true), (1, true)] {
        assert_eq!(pays(&coder(&[]), &bytes(kinds)), expected, "{kinds} symbols");
    }
}

/// A matrix: the number of rows, their length, and the symbol at a row and column.
type Matrix = (usize, usize, fn(usize, usize) -> u8);

/// References are estimated from a part of the symbols; there are at least two rows, of four or more.
#[test]
fn references_fit_the_matrix() {
    fn random(seed: u64, below: u32, i: usize) -> u8 {
        (crate::random::word(seed, 0, i as u64) % below) as u8
    }
    let two_rows: Matrix = (2, 400, |r, c| 20 + 100 * r as u8 + random(1, 8, r * 400 + c));
    let short: Matrix = (400, 4, |r, _| 1 + random(2, 200, r));
    let rows: Matrix = (100, 48, |r, c| 60 + random(3, 100, r) + random(4, 4, r * 48 + c));
    let by_64: Matrix = (40, 64, rows.2);
    let columns: Matrix =
        (100, 50, |r, c| 60 + random(5, 40, r) + random(6, 40, c) + random(7, 2, r * 50 + c));
    let large: Matrix = (300, 256, |r, c| 60 + random(8, 100, r) + random(9, 4, r * 256 + c));
    let noise: Matrix = (40, 64, |r, c| random(10, 4, r * 64 + c));
    // Smaller with the mean subtracted, because the symbols are neighbours modulo 256.
    let one_row: Matrix = (1, 120, |_, c| if c % 8 == 7 { 2 } else { 254 + (c % 2) as u8 });
    for (case, ((row_count, row_len, symbol), row_lens, expected)) in [
        (two_rows, &[400][..], Some((400, 0))),
        (short, &[4], Some((4, 0))),
        (rows, &[48], Some((48, 0))),
        (rows, &[48, 6], Some((48, 0))),
        (rows, &[6, 48], Some((48, 0))),
        (by_64, &[], Some((64, 0))),
        (columns, &[50], Some((50, 1))),
        (large, &[256], Some((256, 0))),
        (noise, &[64], None),
        (one_row, &[120, 200], None),
    ]
    .into_iter()
    .enumerate()
    {
        let symbols: Vec<u8> = (0..row_count * row_len).map(|i| symbol(i / row_len, i % row_len)).collect();
        let mut bytes = Vec::new();
        write_exponents(&mut bytes, &mut coder(&[]), &symbols, row_lens);
        let mut cursor = Cursor::new(&bytes[1..], 0, "ints");
        let written = (bytes[0] == REFERENCED).then(|| (cursor.varint().unwrap(), cursor.u8().unwrap()));
        assert_eq!(written, expected, "case {case}");
        let back = read(&bytes, &[], |c, d| read_symbols(c, d, symbols.len() as u64, 255));
        assert_eq!(back.unwrap(), symbols, "case {case}");
    }
}

proptest! {
    #[test]
    fn ints_come_back(values in proptest::collection::vec(prop_oneof![0u64..10, 0u64..300, any::<u64>()], 0..200), packed: bool) {
        let mut bytes = Vec::new();
        let mut coder = coder(&[]);
        coder.entropy = if packed { Entropy::Packed } else { Entropy::Auto };
        write_ints(&mut bytes, &mut coder, Role::Ulps, &values);
        prop_assert_eq!(read(&bytes, &[], |c, d| read_ints(c, d, values.len() as u64, u64::MAX)).unwrap(), values);
    }

    #[test]
    fn small_ints_are_written_as_ints(
        values in proptest::collection::vec(prop_oneof![0u8..4, 0u8..40, any::<u8>()], 0..300),
        packed: bool,
    ) {
        let (mut small, mut wide) = (Vec::new(), Vec::new());
        let mut coder = coder(&[]);
        coder.entropy = if packed { Entropy::Packed } else { Entropy::Auto };
        write_small_ints(&mut small, &mut coder, Role::Levels, &values);
        let values: Vec<u64> = values.into_iter().map(u64::from).collect();
        write_ints(&mut wide, &mut coder, Role::Levels, &values);
        prop_assert_eq!(small, wide);
    }

    #[test]
    fn symbols_come_back(symbols in proptest::collection::vec(any::<u8>(), 0..300), mask: u8, row_len in 1u64..40) {
        let symbols: Vec<u8> = symbols.into_iter().map(|s| s & mask).collect();
        let mut bytes = Vec::new();
        write_exponents(&mut bytes, &mut coder(&[]), &symbols, &[row_len]);
        prop_assert_eq!(read(&bytes, &[], |c, d| read_symbols(c, d, symbols.len() as u64, 255)).unwrap(), symbols);
    }

    #[test]
    fn any_bytes_are_handled(bytes in proptest::collection::vec(any::<u8>(), 0..80), n in 0u64..5000) {
        let _ = read(&bytes, &[], |c, d| read_ints(c, d, n, 1 << 40));
        let _ = read(&bytes, &[], |c, d| read_symbols(c, d, n, 200));
    }
}
