//! Short lists of symbols with a few tables for all of them, in one rANS lane (spec, supports/classed.md).

use crate::bits::{Cursor, put_u32, put_varint};
use crate::codes::count::count;
use crate::codes::rans::{self, INITIAL};
use crate::codes::table::{Counts, Table};
use crate::codes::{Coder, Decoder, Role, read_ints, write_ints};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

/// Largest number of tables.
pub(crate) const MAX_TABLES: usize = 16;

/// Numbers of tables that the writer tries, for few lists and for many.
const TRIED: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, MAX_TABLES];
const TRIED_FOR_MANY: [usize; 3] = [2, 6, MAX_TABLES];
/// Number of lists from which on there are many.
const MANY: usize = 100;

/// Rounds of assigning lists to tables.
const ROUNDS: usize = 6;

/// Tables for lists, and the number of each list's table.
struct Shared {
    tables: Vec<Table>,
    numbers: Vec<u64>,
}

/// Appends the number of tables, the tables, the number of each list's table, and the symbols.
pub(crate) fn write_lists(out: &mut Vec<u8>, coder: &mut Coder<'_>, lists: &[&[u8]]) {
    let all: Vec<Used> = lists.iter().map(|list| used_of(&count(list))).collect();
    let tried: &[usize] = if lists.len() < MANY { &TRIED } else { &TRIED_FOR_MANY };
    let mut tried: Vec<usize> = tried.iter().map(|&tables| tables.min(lists.len())).collect();
    tried.dedup();
    let order = by_entropy(&all);
    let shared = tried.into_iter().map(|tables| share(&all, &order, tables)).min_by_key(|(_, cost)| *cost);
    let Shared { tables, numbers } = shared.map_or(Shared { tables: vec![], numbers: vec![] }, |s| s.0);
    out.push(tables.len() as u8);
    tables.iter().for_each(|table| table.write(out));
    write_ints(out, coder, Role::Views, &numbers);
    if lists.is_empty() {
        return;
    }
    let steps: Vec<_> = tables.iter().map(rans::steps).collect();
    let mut state = INITIAL;
    let mut words = Vec::new();
    for (list, &number) in lists.iter().zip(&numbers).rev() {
        for &symbol in list.iter().rev() {
            rans::put_one(&mut state, &steps[in_memory(number)][usize::from(symbol)], &mut words);
        }
    }
    put_varint(out, words.len() as u64);
    put_u32(out, state);
    out.extend(words.iter().rev().flatten());
}

/// The symbols of a list with their counts. Of 256, a list has a few.
type Used = Vec<(u8, u64)>;

fn used_of(counts: &Counts) -> Used {
    (0..=255).zip(*counts).filter(|&(_, count)| count > 0).collect()
}

/// Returns the numbers of the lists in the order of their entropy.
fn by_entropy(lists: &[Used]) -> Vec<usize> {
    let entropy = |list: &Used| {
        let mut counts = [0; 256];
        list.iter().for_each(|&(symbol, count)| counts[usize::from(symbol)] = count);
        let symbols = counts.iter().sum::<u64>().max(1);
        Table::from_counts(&counts).and_then(|t| t.cost_of(list)).unwrap_or(0) / symbols
    };
    let mut order: Vec<usize> = (0..lists.len()).collect();
    order.sort_by_cached_key(|&i| entropy(&lists[i]));
    order
}

/// Groups lists, which have this order by entropy, around `count` tables. Returns them with their cost in
/// 1/65536 bit.
fn share(lists: &[Used], order: &[usize], count: usize) -> (Shared, u64) {
    // Lists of similar entropy begin together.
    let mut numbers = vec![0; lists.len()];
    order.iter().enumerate().for_each(|(rank, &i)| numbers[i] = rank * count / lists.len());
    let mut tables = Vec::new();
    for _ in 0..ROUNDS {
        let mut sums = vec![[0u64; 256]; count];
        for (list, &number) in lists.iter().zip(&numbers) {
            list.iter().for_each(|&(symbol, count)| sums[number][usize::from(symbol)] += count);
        }
        tables = sums.iter().filter_map(Table::from_counts).collect();
        numbers = lists.iter().map(|list| cheapest(&tables, list)).collect();
    }
    // Assigning again may have left a table without lists.
    let used: Vec<usize> = (0..tables.len()).filter(|t| numbers.contains(t)).collect();
    let numbers: Vec<u64> =
        numbers.iter().map(|n| used.iter().position(|u| u == n).unwrap_or(0) as u64).collect();
    let tables: Vec<Table> = used.iter().map(|&t| tables[t].clone()).collect();
    let symbols: u64 = lists
        .iter()
        .zip(&numbers)
        .filter_map(|(list, &n)| tables.get(in_memory(n))?.cost_of(list))
        .fold(0, u64::saturating_add);
    let width = u64::from(usize::BITS - tables.len().saturating_sub(1).leading_zeros());
    let bits = tables.iter().map(|t| t.bits().next_multiple_of(8)).sum::<u64>() + width * lists.len() as u64;
    (Shared { tables, numbers }, symbols.saturating_add(bits << 16))
}

fn cheapest(tables: &[Table], list: &Used) -> usize {
    let cost = |t: &Table| t.cost_of(list).unwrap_or(u64::MAX);
    (0..tables.len()).min_by_key(|&t| cost(&tables[t])).unwrap_or(0)
}

/// Reads lists of these lengths. The caller has reserved memory for them.
pub(crate) fn read_lists(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    lens: &[usize],
) -> Result<Vec<Vec<u8>>> {
    let offset = cursor.offset();
    let count = cursor.u8_in("number of tables", 0, MAX_TABLES as u8)?;
    if lens.is_empty() != (count == 0) {
        return Err(Error::format(FormatErrorKind::CountMismatch { field: "number of tables" }, offset));
    }
    let tables = (0..count).map(|_| Ok(rans::slots(&Table::read(cursor)?))).collect::<Result<Vec<_>>>()?;
    let numbers = read_ints(cursor, decoder, lens.len() as u64, u64::from(count.saturating_sub(1)))?;
    if lens.is_empty() {
        return Ok(Vec::new());
    }
    let offset = cursor.offset();
    let bad = || Error::format(FormatErrorKind::BadCode, offset);
    let word_count = cursor.varint()?;
    let mut state = cursor.u32()?;
    if state < INITIAL {
        return Err(bad());
    }
    let words = cursor.take(word_count.saturating_mul(2))?;
    let mut taken = 0;
    let mut lists = Vec::with_capacity(lens.len());
    for (&len, &number) in lens.iter().zip(&numbers) {
        let slots = &tables[in_memory(number)];
        lists.push((0..len).map(|_| rans::get(&mut state, slots, words, &mut taken)).collect());
    }
    match taken == words.len() && state == INITIAL {
        true => Ok(lists),
        false => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::Entropy;
    use crate::limits::{Budget, Limits};
    use proptest::prelude::*;

    fn written(lists: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        write_lists(&mut out, &mut Coder::new(Entropy::Auto, &[], None), lists);
        out
    }

    fn read(bytes: &[u8], lens: &[usize]) -> Result<Vec<Vec<u8>>> {
        let budget = Budget::new(&Limits::default());
        let mut cursor = Cursor::new(bytes, 0, "lists");
        let lists = read_lists(&mut cursor, &Decoder { tables: &[], budget: &budget }, lens)?;
        cursor.finish()?;
        Ok(lists)
    }

    #[test]
    fn unlike_lists_take_tables_of_their_own() {
        let (even, skewed): (Vec<u8>, Vec<u8>) = (
            (0..2000).map(|i| (i * 7 % 8) as u8).collect(),
            (0..2000).map(|i| u8::from(i % 50 == 0)).collect(),
        );
        let bytes = written(&[&even, &skewed, &even, &skewed]);
        assert_eq!(bytes[0], 2);
        // 3 bits a symbol of two lists, 0.14 of the others.
        assert!(bytes.len() < 2 * (750 + 50) + 40, "{}", bytes.len());
        assert_eq!(read(&bytes, &[2000; 4]).unwrap(), [even.clone(), skewed.clone(), even, skewed]);
    }

    #[test]
    fn damaged_lists_are_refused() {
        let bytes = written(&[&[1, 2, 3, 4], &[4, 4]]);
        assert_eq!(read(&bytes, &[]).unwrap_err().name(), "count_mismatch");
        assert_eq!(read(&bytes, &[4]).unwrap_err().name(), "bad_code");
        assert_eq!(read(&[17], &[4]).unwrap_err().name(), "out_of_range");
        assert_eq!(read(&bytes[..bytes.len() - 1], &[4, 2]).unwrap_err().name(), "length_mismatch");
    }

    #[test]
    fn lists_of_one_symbol_cost_their_tables_and_numbers() {
        let counts: Vec<Used> = (0..16).map(|i| used_of(&count(&[if i < 8 { 3 } else { 200 }; 9]))).collect();
        for (lists, tables, bits) in [(&counts[..], 2, 2 * 24 + 16), (&counts[..8], 1, 24)] {
            let (shared, cost) = share(lists, &by_entropy(lists), 2);
            assert_eq!((shared.tables.len(), cost), (tables, bits << 16));
        }
    }

    /// ANS-1, CLS-10: one table of one symbol, one list of it.
    #[test]
    fn wrong_numbers_and_states_are_refused() {
        let table = [1, 7, 0, 0];
        for (number, state, words, expected) in [
            (&[0, 0][..], INITIAL, &[][..], Ok(vec![vec![7]])),
            (&[0, 1, 0], INITIAL, &[], Ok(vec![vec![7]])),
            (&[0, 1, 1], INITIAL, &[], Err("out_of_range")),
            // With this word, the state becomes the initial one.
            (&[0, 0], 1, &[0, 0], Err("bad_code")),
            (&[0, 0], INITIAL + 1, &[], Err("bad_code")),
        ] {
            let count = [words.len() as u8 / 2];
            let bytes = [&table, number, &count, &state.to_le_bytes(), words].concat();
            assert_eq!(read(&bytes, &[1]).map_err(|e| e.name()), expected, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn lists_round_trip(lists in prop::collection::vec(prop::collection::vec(0u8..20, 0..60), 0..40)) {
            let slices: Vec<&[u8]> = lists.iter().map(Vec::as_slice).collect();
            if slices.iter().any(|l| !l.is_empty()) || slices.is_empty() {
                let lens: Vec<usize> = lists.iter().map(Vec::len).collect();
                prop_assert_eq!(read(&written(&slices), &lens).unwrap(), lists);
            }
        }
    }
}
