use std::collections::BTreeSet;

use super::*;
use crate::block::Scope;
use crate::codes::Entropy;
use crate::frame::{Manifest, TensorInfo};
use crate::limits::{Budget, Limits};
use crate::random::word;
use crate::tensor::Dtype;

/// Returns gaps, each below a number that depends on its own.
fn gaps_of(count: u64, most: impl Fn(u64) -> u64) -> Vec<u64> {
    (0..count).map(|i| u64::from(word(1, 0, i)) % most(i)).collect()
}

/// Returns gaps below `most` of each piece of 2000 gaps, in turn.
fn gaps_below<const N: usize>(count: usize, most: [u64; N]) -> Vec<u64> {
    gaps_of(count as u64, |i| most[i as usize / 2000 % N])
}

fn positions_of(gaps: &[u64]) -> Vec<u64> {
    gaps.iter().scan(0, |next, gap| Some(std::mem::replace(next, *next + gap + 1) + gap)).collect()
}

#[test]
fn chunks_of_gaps_come_back_from_the_bytes_that_were_counted() {
    let gaps = gaps_below(20_001, [4, 4000]);
    let positions = positions_of(&gaps);
    let next = positions.last().map_or(0, |last| last + 1);
    let budget = Budget::new(&Limits::default());
    let mut sizes = Vec::new();
    for chunk_log in [0, 7, 8, 10, 13, 16] {
        let mut out = Vec::new();
        // The reader refuses chunks that are not shorter than all gaps.
        if chunk_log < 15 {
            assert_eq!(write_rice(&mut out, &gaps, chunk_log).unwrap(), SupportId::GAPS_RICE);
            assert_eq!(out.len() as u64, rice_bytes(&gaps, chunk_log), "{chunk_log}");
            let mut cursor = Cursor::new(&out, 0, "positions");
            assert_eq!(validate_rice(&mut cursor, next).unwrap(), 20_001);
            let mut cursor = Cursor::new(&out, 0, "positions");
            let mut decoder = Decoder { tables: &[], budget: &budget };
            assert_eq!(read_rice(&mut cursor, &mut decoder, next).unwrap(), positions);
            cursor.finish().unwrap();
            sizes.push((out.len() as u64, chunk_log));
        }
    }
    let (bytes, chunk_log) = sizes.into_iter().min().unwrap();
    assert_eq!(best_chunks(&gaps), (chunk_log, bytes));
    assert!(chunk_log > 0, "chunks have parameters of their own");
}

#[test]
fn gaps_of_several_shares_add_up_or_name_the_first_position_that_is_too_large() {
    let gaps = gaps_below(2 * SHARE + 100, [9]);
    let positions = positions_of(&gaps);
    let next = positions.last().map_or(0, |p| p + 1);
    assert_eq!(super::gaps(&positions), gaps);
    for n in [next, next + 1, u64::MAX] {
        let mut sums = gaps.clone();
        add_up(&mut sums, n, 7).unwrap();
        assert_eq!(sums, positions);
    }
    for (at, gap, n) in [(5, 0, 3), (SHARE + 3, next, next), (SHARE, u64::MAX, next), (9, u64::MAX, u64::MAX)]
    {
        let mut sums = gaps.clone();
        sums[at] += gap.saturating_sub(sums[at]);
        let first = positions.iter().position(|&p| p >= n).unwrap_or(at).min(at);
        let before = first.checked_sub(1).map_or(0, |last| positions[last] + 1);
        let position = before.saturating_add(sums[first]);
        let kind = FormatErrorKind::PositionOutOfRange { position, len: n };
        let (error, expected) = (add_up(&mut sums, n, 7).unwrap_err(), Error::format(kind, 7));
        assert_eq!(error.to_string(), expected.to_string(), "{at}, {gap}, {n}");
    }
}

#[test]
fn a_sample_tells_which_code_of_many_gaps_is_smaller() {
    let tokens = |gaps: &[u64]| token_cost(gaps) >> 19;
    for most in [[3, 3], [1000, 1000], [3, 1000]] {
        let gaps = gaps_below(1 << 19, most);
        // Where neither is clearly smaller, both are compared.
        if is_rice_larger(&gaps) {
            assert!(best_chunks(&gaps).1 > tokens(&gaps), "{most:?}");
        } else {
            assert!(best_chunks(&gaps).1 < tokens(&gaps) / 100 * 101, "{most:?}");
        }
    }
    let few = gaps_below(1 << 15, [3, 3]);
    assert!(!is_rice_larger(&few), "few gaps are compared exactly");
    assert!(is_rice_larger(&few.repeat(4)), "one bit for each gap and more");
}

/// Returns the kind that a choice gives without classes, and the bytes that follow `before` others.
fn written(positions: &[u64], n: u64, choice: Positions, before: usize) -> (SupportId, Vec<u8>) {
    let mut out = vec![0; before];
    let mut coder = Coder::new(Entropy::Auto, &[], None);
    let id = write(&mut out, &mut coder, positions, n, choice).unwrap();
    (id, out.split_off(before))
}

fn read_back(bytes: &[u8], id: SupportId, n: u64) -> Result<Vec<u64>> {
    let budget = Budget::new(&Limits::default());
    let mut cursor = Cursor::new(bytes, 0, "positions");
    let positions = read(&mut cursor, &mut Decoder { tables: &[], budget: &budget }, id, n)?;
    cursor.finish()?;
    Ok(positions)
}

#[test]
fn the_smallest_form_is_no_larger_than_any_other() {
    let even = (0..100)
        .map(|hits| -> Vec<u64> { (0..800).filter(|&i| u64::from(word(7, hits, i)) % 100 < hits).collect() });
    let runs = [5u64, 20, 60]
        .map(|len| positions_of(&gaps_of(600, |i| if i.is_multiple_of(len) { 1000 } else { 1 })));
    // Every chunk of 128 gaps has a Rice parameter of its own.
    let chunks = [4, 6].map(|kinds| positions_of(&gaps_of(1280, |i| 1 << (2 * (i / 128 % kinds)))));
    let mut ids = BTreeSet::new();
    for positions in even.chain(runs).chain(chunks) {
        let n = positions.last().map_or(0, |last| last + 1).max(800);
        let smallest = written(&positions, n, Positions::Auto, 0);
        ids.insert(smallest.0);
        assert_eq!(written(&positions, n, Positions::Auto, 1000), smallest, "other bytes before");
        let (id, bytes) = smallest;
        for (choice, kind) in [
            (Positions::Rice, SupportId::GAPS_RICE),
            (Positions::RiceOne, SupportId::GAPS_RICE),
            (Positions::Tokens, SupportId::GAPS_TOKENS),
            (Positions::Bitmap, SupportId::BITMAP),
        ] {
            let (other, longer) = written(&positions, n, choice, 0);
            assert_eq!(other, kind);
            assert!(bytes.len() <= longer.len(), "{id} takes more than {other}: {positions:?}");
            assert_eq!(read_back(&longer, other, n).unwrap(), positions, "{other}");
        }
        assert_eq!(read_back(&bytes, id, n).unwrap(), positions, "{id}");
    }
    assert_eq!(ids.len(), 3, "{ids:?}");
}

#[test]
fn bytes_of_few_gaps_are_counted_exactly() {
    for count in [0, 1, 2, 5, 9, 33, 128, 129, 130, 257, 300] {
        for most in [1, 3, 20, 999] {
            let gaps = gaps_of(count, |_| most);
            for chunk_log in [0, 7, 8].into_iter().filter(|&log| log == 0 || count > 1 << log) {
                let mut out = Vec::new();
                write_rice(&mut out, &gaps, chunk_log).unwrap();
                assert_eq!(out.len() as u64, rice_bytes(&gaps, chunk_log), "{count} {most} {chunk_log}");
            }
        }
    }
}

#[test]
fn rice_parameters_beyond_63_are_refused() {
    for fields in [&[0, 64][..], &[7, 64, 0, 0]] {
        // 129 positions, and enough bytes for them.
        let bytes = [&[0x81, 1], fields, &[0; 40]].concat();
        let e = read_back(&bytes, SupportId::GAPS_RICE, 1000).unwrap_err();
        assert_eq!((e.name(), e.location().unwrap().offset), ("out_of_range", 3), "{fields:?}");
    }
}

/// Writes positions of a matrix after `before` bytes. Returns the kind, the bytes, and the roles of the
/// segments that shared tables are chosen for.
fn in_matrix(
    shape: [u64; 2],
    positions: &[u64],
    choice: Positions,
    before: usize,
) -> (SupportId, Vec<u8>, Vec<Role>) {
    let info = TensorInfo::new("w", Dtype::F32, shape);
    let space = Manifest::new(vec![info]).unwrap().space(Scope::Tensor(0), 0).unwrap();
    let sets = Sets::new();
    let around = Surroundings { space: &space, manifest: [0; 32], scope: Scope::Tensor(0), sets: &sets };
    let (mut out, mut record) = (vec![0; before], Vec::new());
    let mut coder = Coder::new(Entropy::Auto, &[], Some(&mut record));
    let sparse = Sparse { positions: positions.to_vec() };
    let id = sparse.write(&mut out, &mut coder, &around, choice).unwrap();
    (id, out.split_off(before), record.into_iter().map(|(role, _)| role).collect())
}

#[test]
fn classes_are_written_if_they_are_smaller_or_asked_for() {
    let in_rows = |[rows, columns]: [u64; 2], base: u32, extra: u32| -> Vec<u64> {
        let most = |i: u64| base + if (i / columns).is_multiple_of(8) { extra } else { 0 };
        (0..rows * columns).filter(|&i| word(0, 0, i) % 1000 < most(i)).collect()
    };
    let weak = [120, 160, 200, 240, 300].map(|extra| ([64, 100], in_rows([64, 100], 40, extra)));
    let strong = ([100, 1000], in_rows([100, 1000], 20, 200));
    // Many runs in some rows, each row's at other columns: gaps tell more than rows and columns do.
    let in_run = |i: &u64| (i / 1000).is_multiple_of(2) && ((i + i / 1000 * 13) / 25).is_multiple_of(2);
    let runs = (0..68_000).filter(in_run).collect();
    let (mut ids, mut are_recorded) = (BTreeSet::new(), false);
    for (shape, positions) in weak.into_iter().chain([strong, ([68, 1000], runs)]) {
        let of = |choice| in_matrix(shape, &positions, choice, 0);
        let (classed, auto) = (of(Positions::Classed), of(Positions::Auto));
        assert_eq!(classed.0, SupportId::CLASSED, "{shape:?}");
        let others = [of(Positions::Tokens), of(Positions::Rice)].map(|(_, bytes, _)| bytes.len());
        assert_eq!(Some(auto.1.len()), others.into_iter().chain([classed.1.len()]).min(), "{shape:?}");
        assert_eq!(in_matrix(shape, &positions, Positions::Auto, 1000), auto, "other bytes before");
        if auto.0 == SupportId::CLASSED {
            assert_eq!(auto, classed);
        }
        are_recorded |= auto.2.contains(&Role::Quotients);
        ids.insert(auto.0);
    }
    assert_eq!(ids, BTreeSet::from([SupportId::GAPS_RICE, SupportId::GAPS_TOKENS, SupportId::CLASSED]));
    assert!(are_recorded);
}

/// Gaps whose sum wraps are beyond every number of elements.
#[test]
fn sums_of_large_gaps_do_not_wrap() {
    for gaps in [vec![1 << 63; 2], vec![u64::MAX; 3], [vec![1 << 32; 5], vec![u64::MAX << 32; 2]].concat()] {
        let error = add_up(&mut gaps.clone(), 1 << 40, 7).unwrap_err();
        let Error::Format(e) = error else { panic!("{error}") };
        assert!(
            matches!(e.kind, FormatErrorKind::PositionOutOfRange { len: 0x100_0000_0000, .. }),
            "{gaps:?}"
        );
    }
    let mut gaps = [1 << 32, 0, 1 << 33];
    add_up(&mut gaps, 1 << 40, 7).unwrap();
    assert_eq!(gaps, [1 << 32, (1 << 32) + 1, (3 << 32) + 2]);
}
