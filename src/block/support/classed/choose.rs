//! The writer's choice of levels for rows and columns: integers and IEEE operations only, so that every
//! machine makes the same choices.

use crate::arch::threads;
use crate::block::IndexSpace;
use crate::block::views::{Grid, View};
use crate::codes::log2;
use crate::limits::in_memory;

use super::gaps::MAX_CLASSES;
use super::matrix::{Levels, Matrix};

/// Symbol of a row or column of its tensor's density. A smaller symbol is a density half as large.
const MIDDLE: i32 = 6;
/// Number of symbols.
const SYMBOLS: usize = 13;
/// Smallest binary logarithm of a tensor's density that has a class of its own.
const MIN_LEVEL: i32 = -20;
/// Added to a tensor's level, so that classes begin at 0 for the sparsest row and column. The densest class
/// of a tensor then has number 44: 20 for [`MIN_LEVEL`], and twice 12 for its row and column.
const OFFSET: i32 = -MIN_LEVEL + 2 * MIDDLE;
/// Fewest positions of a tensor whose rows and columns are looked at.
const FEW: usize = 24;

/// Returns levels that should make `positions` small, and about their cost in 1/65536 bit; `None` if no
/// tensor has useful rows or columns. `rounds`: times that the symbols of rows and columns are chosen anew,
/// given those before.
pub(super) fn choose(positions: &[u64], space: &IndexSpace, rounds: usize) -> Option<(Matrix, u128)> {
    let mut tensors = Vec::with_capacity(space.lens.len());
    let (mut useful, mut cost) = (false, 0);
    let (mut start, mut rest) = (0u64, positions);
    for (i, &len) in space.lens.iter().enumerate() {
        let (own, after) = rest.split_at(rest.partition_point(|&p| p < start + len));
        let (levels, own_cost) = best(own, start, space, i, rounds)?;
        cost += own_cost;
        useful |= levels.grid.view != View::NONE;
        tensors.push(levels);
        (start, rest) = (start + len, after);
    }
    if !useful {
        return None;
    }
    // Tensors without rows and columns are classed by density alone. Unused classes at both ends are cut off.
    let lowest = tensors.iter().map(|t| t.level).min()?;
    tensors.iter_mut().for_each(|t| t.level -= lowest);
    let largest = |list: &[u8]| list.iter().copied().max().unwrap_or(0);
    let highest = tensors.iter().map(|t| t.level + largest(&t.rows) + largest(&t.columns)).max()?;
    (highest < MAX_CLASSES).then(|| (Matrix { classes: highest + 1, tensors }, cost))
}

/// Returns the cheapest levels of one tensor, and about their cost in 1/65536 bit.
///
/// Prices each way to divide the tensor into rows and columns, with symbols a factor of two or four of
/// density apart. The symbols come from counts ([`first`]), and in each round again from counts and the
/// frequencies of the symbols before ([`cheaper`]). Each result is priced with both lists and with either
/// alone ([`costs`]). The tensor keeps one density if no list pays.
fn best(
    positions: &[u64],
    start: u64,
    space: &IndexSpace,
    i: usize,
    rounds: usize,
) -> Option<(Levels, u128)> {
    let len = space.lens[i];
    let flat = Grid::new(space, i, View::NONE, 0).ok()?;
    let density = ratio_log2(positions.len() as u64, len).clamp(MIN_LEVEL, 0);
    let level = |lists: i32| (density + OFFSET - lists * MIDDLE) as u8;
    let mut best = Levels { grid: flat, level: level(0), rows: Vec::new(), columns: Vec::new() };
    let mut least = entropy(positions.len() as u64, len);
    if positions.len() < FEW {
        return Some((best, least));
    }
    for grid in Grid::candidates(space, i) {
        // Rows and columns are stored in 32 bits.
        if u32::try_from(grid.rows.max(grid.columns)).is_err() {
            continue;
        }
        let Places { in_row, in_column, placed } = Places::new(&grid, positions, start);
        for step in [1, 2] {
            let (mut rows, mut columns) = (first(&in_row, step), first(&in_column, step));
            for round in 0..=rounds {
                if round > 0 {
                    rows = cheaper(&in_row, &rows, step);
                    columns = cheaper(&in_column, &columns, step);
                }
                let costs = costs(&grid, [&rows, &columns], [&in_row, &in_column], &placed);
                for (cost, (has_rows, has_columns)) in
                    costs.into_iter().zip([(true, true), (true, false), (false, true)])
                {
                    if cost < least {
                        least = cost;
                        let view = grid.view.with_flags(has_rows, has_columns);
                        best = Levels {
                            grid: Grid { view, ..grid },
                            level: level(i32::from(has_rows) + i32::from(has_columns)),
                            rows: if has_rows { rows.clone() } else { Vec::new() },
                            columns: if has_columns { columns.clone() } else { Vec::new() },
                        };
                    }
                }
            }
        }
    }
    Some((best, least))
}

/// Where positions are in a grid.
#[derive(Default)]
struct Places {
    /// Number of positions in each row and column.
    in_row: Vec<u32>,
    in_column: Vec<u32>,
    /// Row and column of each position of a sample.
    placed: Vec<(u32, u32)>,
}

impl Places {
    /// Counts positions of a tensor that begins at `start`.
    fn new(grid: &Grid, positions: &[u64], start: u64) -> Self {
        let sample = Sample::new(positions.len());
        let lists = in_memory(grid.rows.saturating_add(grid.columns));
        // Each share has counts of its own.
        let shares = if lists < positions.len() / 8 { threads::count() } else { 1 };
        let len = positions.len().div_ceil(shares).max(1);
        let mut shares = threads::each(positions.chunks(len).enumerate(), |(share, positions)| {
            let mut all = Self {
                in_row: vec![0; in_memory(grid.rows)],
                in_column: vec![0; in_memory(grid.columns)],
                placed: Vec::with_capacity(positions.len() / in_memory(sample.step.into()) + 1),
            };
            let places = grid.places(positions.iter().map(|position| position - start));
            for (i, (row, column)) in places.enumerate() {
                all.in_row[in_memory(row)] += 1;
                all.in_column[in_memory(column)] += 1;
                if sample.contains(share * len + i) {
                    all.placed.push((row as u32, column as u32));
                }
            }
            all
        })
        .into_iter();
        let first = shares.next().unwrap_or_default();
        shares.fold(first, |mut sum, share| {
            sum.in_row.iter_mut().zip(share.in_row).for_each(|(sum, n)| *sum += n);
            sum.in_column.iter_mut().zip(share.in_column).for_each(|(sum, n)| *sum += n);
            sum.placed.extend(share.placed);
            sum
        })
    }
}

/// Returns the symbol of each row or column by the number of positions in it.
///
/// A few positions say little about a density. [`PRIOR`] moves ratios of small numbers towards 1, and an
/// empty row away from 0: it counts as 1/4 as dense where one position is expected, and 1/16 where five are.
fn first(counts: &[u32], step: i32) -> Vec<u8> {
    let expected = counts.iter().map(|&n| f64::from(n)).sum::<f64>() / counts.len() as f64;
    by_count(counts, |n| symbol((f64::from(n) + PRIOR) / (expected + PRIOR), step))
}

/// Positions that each row or column is taken to have in addition, and to be expected to have.
const PRIOR: f64 = 0.3;

/// Returns the symbol of each row or column by a function of its number of positions, which is called once
/// for each small number.
fn by_count(counts: &[u32], symbol: impl Fn(u32) -> u8) -> Vec<u8> {
    let mut known = [None; 256];
    let of = |&n: &u32| match known.get_mut(in_memory(n.into())) {
        Some(known) => *known.get_or_insert_with(|| symbol(n)),
        None => symbol(n),
    };
    counts.iter().map(of).collect()
}

/// Returns symbols that need fewer bits than `own`: those of the list itself, and those of the positions,
/// whose numbers are taken to follow a Poisson distribution. `counts` are the numbers of positions in the
/// rows or columns.
///
/// Where `m` positions are expected, `n` have probability `m^n exp(-m) / n!`. As `m` is `rate * 2^symbol`,
/// the bits that depend on the symbol are `m log2(exp(1)) - n symbol`.
fn cheaper(counts: &[u32], own: &[u8], step: i32) -> Vec<u8> {
    let power = |symbol: usize| f64::from(1u32 << symbol);
    let sum = |list: &[u8]| list.iter().map(|&s| power(usize::from(s))).sum::<f64>();
    let total: f64 = counts.iter().map(|&n| f64::from(n)).sum();
    // Expected number of positions in a row with symbol 0.
    let rate = total / sum(own).max(1.0);
    let mut used = [0u64; SYMBOLS];
    own.iter().for_each(|&s| used[usize::from(s)] += 1);
    let bits = |n: u64| f64::from(log2(n.max(1))) / 65536.0;
    let list: [f64; SYMBOLS] = std::array::from_fn(|s| bits(own.len() as u64 + 1) - bits(used[s] + 1));
    let tried: Vec<usize> = (0..SYMBOLS).filter(|&s| (s as i32 - MIDDLE) % step == 0).collect();
    by_count(counts, |n| {
        let cost =
            |&s: &usize| list[s] + rate * power(s) * std::f64::consts::LOG2_E - f64::from(n) * s as f64;
        tried.iter().copied().min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0) as u8
    })
}

/// The positions whose rows and columns are looked at together.
struct Sample {
    /// One in this many.
    step: u32,
}

impl Sample {
    /// Fewest positions of which a sample is taken.
    const MANY: usize = 1 << 15;

    fn new(positions: usize) -> Self {
        Self { step: u32::try_from(positions / Self::MANY).unwrap_or(u32::MAX).max(1) }
    }

    /// Whether a position is in the sample, by its number.
    #[inline]
    fn contains(&self, number: usize) -> bool {
        // A hash, because positions may be periodic.
        let hash = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.step == 1 || (hash as u32).is_multiple_of(self.step)
    }
}

/// Returns the costs in 1/65536 bit with rows and columns, rows alone, and columns alone: the lists, and the
/// positions given the classes. `lists` are the symbols of rows and columns, `hits` the numbers of positions
/// in them, and `placed` a sample of the positions.
///
/// For example, of 40 rows with 64 elements each, three rows have all 192 positions. Without rows, the
/// positions cost 984 bits, the entropy of 192 in 2,560. With rows they cost nothing, because all elements of
/// one class have positions, and none of the other. The list of rows costs 15 bits, the entropy of three in
/// 40, and the allowances [`LIST`] and [`MARGIN`] add 36.
fn costs(grid: &Grid, lists: [&[u8]; 2], hits: [&[u32]; 2], placed: &[(u32, u32)]) -> [u128; 3] {
    let [rows, columns] = lists;
    let mut both = [[0u64; SYMBOLS]; SYMBOLS];
    for &(row, column) in placed {
        let (row, column) = (rows[in_memory(row.into())], columns[in_memory(column.into())]);
        both[usize::from(row)][usize::from(column)] += 1;
    }
    let total: u64 = hits[0].iter().map(|&n| u64::from(n)).sum();
    let sampled = (placed.len() as u64).max(1);
    let scaled = |n: u64| {
        // Most pairs of symbols have no positions, and most tensors too few for a sample.
        if n == 0 || sampled == total {
            return n;
        }
        (u128::from(n) * u128::from(total) / u128::from(sampled)) as u64
    };
    // The numbers of lines, and of positions in them, by symbol.
    let by_symbol = |list: &[u8], hits: &[u32]| {
        let mut counts = [(0u64, 0u64); SYMBOLS];
        for (&symbol, &hits) in list.iter().zip(hits) {
            let (lines, sum) = &mut counts[usize::from(symbol)];
            *lines += 1;
            *sum += u64::from(hits);
        }
        counts
    };
    let (of_rows, of_columns) = (by_symbol(rows, hits[0]), by_symbol(columns, hits[1]));
    let list = |counts: &[(u64, u64); SYMBOLS]| {
        let total: u64 = counts.iter().map(|(lines, _)| lines).sum();
        nats(total) - counts.iter().map(|&(lines, _)| nats(lines)).sum::<u128>() + LIST
    };
    let mut classes = [(0u64, 0u64); 2 * SYMBOLS];
    for (r, &(rows, _)) in of_rows.iter().enumerate() {
        for (c, &(columns, _)) in of_columns.iter().enumerate() {
            classes[r + c].0 += scaled(both[r][c]);
            classes[r + c].1 += rows * columns * grid.cell;
        }
    }
    let positions =
        |classes: &[(u64, u64)]| classes.iter().map(|&(hits, len)| entropy(hits.min(len), len)).sum();
    let alone = |counts: &[(u64, u64); SYMBOLS], line: u64| -> u128 {
        let classes = counts.map(|(lines, hits)| (hits, lines * line));
        positions(&classes)
    };
    let (row_list, column_list) = (list(&of_rows), list(&of_columns));
    [
        positions(&classes) + row_list + column_list + MARGIN,
        alone(&of_rows, grid.row_len()) + row_list + MARGIN,
        alone(&of_columns, grid.rows * grid.cell) + column_list + MARGIN,
    ]
}

/// Allowance for the number of a list's table and for its share of the tables, in 1/65536 bit. The lists of
/// all tensors share at most 16 tables of at least 24 bits ([`Table::bits`](crate::codes::Table)), which are
/// chosen after the lists, so the exact number is not known here.
const LIST: u128 = 20 << 16;
/// Gain below which lists are not worth it, in 1/65536 bit. A view and a level take at most a byte each, and
/// the costs are estimates: of a sample, by rounded logarithms.
const MARGIN: u128 = 16 << 16;

/// Returns the symbol of a row or column whose density is `ratio` times its tensor's, in steps of
/// `2^step`.
fn symbol(ratio: f64, step: i32) -> u8 {
    // The exponent of the ratio to the power 2 / step, halved and rounded.
    let exponent = |x: f64| ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let rounded = (exponent(ratio * ratio) + step).div_euclid(2 * step) * step;
    (rounded + MIDDLE).clamp(0, SYMBOLS as i32 - 1) as u8
}

/// The binary logarithm of a / b, rounded; of a quarter if `a` is 0.
fn ratio_log2(a: u64, b: u64) -> i32 {
    let scaled = log2(a.max(1)) as i32 - log2(b.max(1)) as i32 - if a == 0 { 2 << 16 } else { 0 };
    (scaled + (1 << 15)) >> 16
}

/// `n log2 n` in 1/65536 bit.
fn nats(n: u64) -> u128 {
    u128::from(n) * u128::from(log2(n.max(1)))
}

/// Bits that tell `hits` of `len` elements from the others, in 1/65536 bit.
fn entropy(hits: u64, len: u64) -> u128 {
    (nats(len).saturating_sub(nats(hits))).saturating_sub(nats(len.saturating_sub(hits)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Scope;
    use crate::frame::{Manifest, TensorInfo};
    use crate::tensor::Dtype;

    /// The space of two matrices of 40 rows and 64 columns.
    fn space() -> IndexSpace {
        let infos = ["a", "b"].map(|name| TensorInfo::new(name, Dtype::F32, [40, 64]));
        Manifest::new(infos.to_vec()).unwrap().space(Scope::Tensors { first: 0, count: 2 }, 0).unwrap()
    }

    #[test]
    fn symbols_are_rounded_logarithms() {
        let fine = [(1.0, 6), (1.41, 6), (1.42, 7), (0.71, 6), (0.70, 5), (4.0, 8), (1e9, 12), (1e-9, 0)];
        fine.iter().for_each(|&(ratio, expected)| assert_eq!(symbol(ratio, 1), expected, "{ratio}"));
        let coarse = [(1.0, 6), (1.9, 6), (2.1, 8), (0.51, 6), (0.49, 4), (7.9, 8), (8.1, 10)];
        coarse.iter().for_each(|&(ratio, expected)| assert_eq!(symbol(ratio, 2), expected, "{ratio}"));
    }

    #[test]
    fn entropy_is_that_of_a_binomial() {
        assert_eq!(entropy(50, 100), 100 << 16);
        assert_eq!(entropy(0, 100), 0);
        let exact = 1000.0 * -(0.1 * 0.1f64.log2() + 0.9 * 0.9f64.log2());
        assert!((entropy(100, 1000) as f64 / 65536.0 - exact).abs() < 0.1);
    }

    #[test]
    fn each_tensor_has_levels_for_its_own_positions() {
        // All elements of three rows of the second tensor.
        let dense = [3, 17, 30];
        let positions: Vec<u64> =
            dense.iter().flat_map(|row| (0..64).map(move |i| 2560 + row * 64 + i)).collect();
        let (matrix, _) = choose(&positions, &space(), 2).unwrap();
        let [first, second] = &matrix.tensors[..] else { panic!("{matrix:?}") };
        assert_eq!((first.grid.view, second.grid.view.has_rows()), (View::NONE, true));
        let (most, least) = (second.rows.iter().max(), second.rows.iter().min());
        for (row, symbol) in second.rows.iter().enumerate() {
            assert_eq!(Some(symbol), if dense.contains(&(row as u64)) { most } else { least }, "{row}");
        }
    }

    #[test]
    fn few_positions_have_no_useful_levels() {
        assert_eq!(choose(&[1, 500, 2561, 3000], &space(), 2), None);
    }
}
