//! Division of an array of symbols into segments.

use std::mem;

use super::ints::{BY_GROUP, Coder, MORE_LANES, SegmentKind};
use super::{Counts, Effort, count_symbols, tokens};
use crate::arch::threads::each;
use crate::limits::in_memory;

/// Cost in units of 1/65536 bit.
pub(super) type Cost = u64;

pub(super) const fn bits(n: u64) -> Cost {
    n.saturating_mul(1 << 16)
}

/// Division of an array of symbols into segments, and its cost.
pub(crate) struct Cut {
    pub(super) segment_log: u8,
    pub(super) cost: Cost,
    /// Count of each symbol in each piece of `2^FINE_LOG` symbols, or in each group.
    pub(super) fine: Vec<[u32; 256]>,
    /// Lengths of the groups that have a segment each.
    pub(super) groups: Vec<usize>,
    /// The kind of all segments.
    pub(super) kind: SegmentKind,
}

/// Binary logarithm of the smallest segment that is considered.
pub(super) const FINE_LOG: u8 = 14;
pub(super) const COARSE_LOG: u8 = 16;
/// Binary logarithm of the longest segment. Readers decode several segments in turn, which is faster than one
/// segment of all symbols. This is worth 1/384 of the size.
const LONG_LOG: u8 = 18;

/// Counts of an array of symbols, from which its division is chosen.
pub(super) struct Tally {
    len: usize,
    /// Count of each symbol in each piece of `2^FINE_LOG` symbols.
    fine: Vec<[u32; 256]>,
    /// Lengths of the groups that may have a segment each, and the counts in each; none if there are not two.
    groups: Vec<usize>,
    of_groups: Vec<[u32; 256]>,
}

impl Tally {
    /// Counts `symbols`, which are divided into groups of these lengths, if there are any.
    pub(super) fn new(symbols: &[u8], groups: &[u64]) -> Self {
        let len = symbols.len();
        let mut groups: Vec<usize> =
            groups.iter().filter(|&&len| len > 0).map(|&len| in_memory(len)).collect();
        if groups.len() < 2 {
            groups.clear();
            let fine = each(symbols.chunks(1 << FINE_LOG), count_symbols);
            return Self { len, fine, groups, of_groups: Vec::new() };
        }
        let mut fine = vec![[0; 256]; len.div_ceil(1 << FINE_LOG)];
        let mut of_groups = vec![[0; 256]; groups.len()];
        debug_assert_eq!(groups.iter().sum::<usize>(), len);
        // What a piece and a group share is counted once, for both.
        let mut start = 0;
        for (group, sums) in groups.iter().zip(&mut of_groups) {
            let end = len.min(start + group);
            while start < end {
                let piece = start >> FINE_LOG;
                let part = start..end.min((piece + 1) << FINE_LOG);
                start = part.end;
                for (symbol, count) in count_symbols(&symbols[part]).into_iter().enumerate() {
                    sums[symbol] += count;
                    fine[piece][symbol] += count;
                }
            }
        }
        Self { len, fine, groups, of_groups }
    }

    /// Counts symbols that hold `per` of `len` integers each, of 8 / `per` bits. Returns the counts of the
    /// symbols and those of the integers.
    pub(super) fn joined(symbols: &[u8], per: u8, len: usize) -> (Self, Self) {
        let per = usize::from(per);
        let of_symbols = each(symbols.chunks((1 << FINE_LOG) / per), count_symbols);
        let mut fine: Vec<[u32; 256]> = of_symbols.iter().map(|counts| fields(counts, per)).collect();
        // Missing integers of the last symbol are zeros.
        if let Some(last) = fine.last_mut() {
            last[0] -= (symbols.len() * per - len) as u32;
        }
        let joined = of_symbols.chunks(per).map(|parts| sum(parts).map(|count| count as u32)).collect();
        let of = |len, fine| Self { len, fine, groups: Vec::new(), of_groups: Vec::new() };
        (of(symbols.len(), joined), of(len, fine))
    }

    /// Returns the counts of the tokens of these symbols.
    pub(super) fn of_tokens(&self) -> Self {
        let tokens = |counts: &[u32; 256]| {
            let mut tokens = [0; 256];
            let pairs = counts.iter().zip(0..);
            pairs.for_each(|(count, symbol)| tokens[usize::from(tokens::token(symbol))] += count);
            tokens
        };
        Self {
            len: self.len,
            fine: self.fine.iter().map(tokens).collect(),
            groups: self.groups.clone(),
            of_groups: self.of_groups.iter().map(tokens).collect(),
        }
    }
}

impl Cut {
    pub(super) fn new(coder: &Coder<'_>, symbols: &[u8]) -> Self {
        Self::cheapest(coder, Tally::new(symbols, &[]))
    }

    /// Divides `len` symbols with these counts.
    pub(super) fn of(coder: &Coder<'_>, fine: Vec<[u32; 256]>, len: usize) -> Self {
        let mut cut = Self { segment_log: 0, cost: 0, fine, groups: Vec::new(), kind: SegmentKind::Rans };
        if len == 0 {
            return cut;
        }
        cut.cost = coder.segment_cost(&sum(&cut.fine), len);
        // Each segment costs the time of a table.
        let logs: &[u8] = match coder.effort {
            Effort::Fast => &[LONG_LOG, COARSE_LOG],
            Effort::Default => &[LONG_LOG, COARSE_LOG, FINE_LOG],
        };
        for &log in logs {
            if len > 1 << log {
                let each = cut.fine.chunks(1 << (log - FINE_LOG)).zip((0..len).step_by(1 << log));
                // The length of a segment below 2 MiB is a varint of at most 3 bytes.
                let costs = each.map(|(counts, start)| {
                    coder.segment_cost(&sum(counts), (len - start).min(1 << log)) + bits(24)
                });
                let cost = costs.fold(0, Cost::saturating_add);
                let most = match log {
                    LONG_LOG => cut.cost.saturating_add(cut.cost / 384),
                    // Few lanes take several times as long: that they are smaller is no reason to have them,
                    // unless they are most of what there is, as for one symbol, which takes no time.
                    _ if cut.is_wide(coder, len)
                        && !coder.is_wide(1 << log, cost / (len as u64 >> log))
                        && cost > cut.cost_of_lanes(len) =>
                    {
                        cut.cost - cut.cost / 256 - cut.cost_of_lanes(len)
                    }
                    _ => cut.cost,
                };
                if cost < most {
                    (cut.segment_log, cut.cost) = (log, cost);
                }
            }
        }
        cut
    }

    /// The number of segments of `len` symbols.
    fn segments(&self, len: usize) -> usize {
        if self.segment_log == 0 { 1 } else { len.div_ceil(1 << self.segment_log) }
    }

    /// The cost of 32 lanes in place of 4 for `len` symbols.
    fn cost_of_lanes(&self, len: usize) -> Cost {
        MORE_LANES.saturating_mul(self.segments(len) as u64)
    }

    /// Whether the segments of `len` symbols have 32 lanes.
    fn is_wide(&self, coder: &Coder<'_>, len: usize) -> bool {
        let of_segment = if self.segment_log == 0 { len } else { 1 << self.segment_log };
        coder.is_wide(of_segment, self.cost / self.segments(len) as u64)
    }

    /// Finds the cheapest division.
    pub(super) fn cheapest(coder: &Coder<'_>, tally: Tally) -> Self {
        let Tally { len, fine, groups, of_groups } = tally;
        let whole = Self::of(coder, fine, len);
        let costs =
            of_groups.iter().zip(&groups).map(|(counts, &len)| coder.segment_cost(&sum(&[*counts]), len));
        let cost = costs.fold(0, Cost::saturating_add);
        match groups.is_empty() || cost >= whole.cost {
            true => whole,
            false => Self { segment_log: BY_GROUP, cost, fine: of_groups, groups, kind: SegmentKind::Rans },
        }
    }

    /// Puts the symbols in trees if this costs at most `more` than lanes.
    pub(super) fn prefer_trees(&mut self, coder: &Coder<'_>, more: Cost) {
        let pieces = match self.segment_log {
            0 => self.fine.len().max(1),
            log => 1 << (log - FINE_LOG),
        };
        let cost = self.fine.chunks(pieces).fold(0, |cost: Cost, counts| {
            // The length of a segment takes at most 3 bytes.
            cost.saturating_add(coder.tree_cost(&sum(counts)) + bits(24))
        });
        if cost <= self.cost.saturating_add(more) {
            (self.kind, self.cost) = (SegmentKind::Tree, cost);
        }
    }

    /// Returns the cost of the raw bits if the symbols are tokens.
    pub(super) fn raw_cost(&self) -> Cost {
        bits(tokens::raw_cost(&sum(&self.fine)))
    }
}

pub(super) fn sum(counts: &[[u32; 256]]) -> Counts {
    let mut total = [0; 256];
    counts.iter().for_each(|c| total.iter_mut().zip(c).for_each(|(t, n)| *t += u64::from(*n)));
    total
}

/// Returns the counts of the fields of symbols with these counts, which hold `per` fields each.
fn fields(symbols: &[u32; 256], per: usize) -> [u32; 256] {
    let mut counts = *symbols;
    // The fields are halved until they have their width.
    let mut width = 8;
    while width > 8 / per {
        width /= 2;
        let wide = mem::replace(&mut counts, [0; 256]);
        for (high, row) in wide[..1 << (2 * width)].chunks(1 << width).enumerate() {
            counts[high] += row.iter().sum::<u32>();
            row.iter().zip(&mut counts).for_each(|(n, count)| *count += n);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::Entropy;

    /// Counts of this many occurrences of each of these symbols.
    fn each(symbols: std::ops::Range<usize>, count: u32) -> [u32; 256] {
        let mut counts = [0; 256];
        counts[symbols].fill(count);
        counts
    }

    /// INT-1: an array that fits one segment is not divided. Segments of 2^18 symbols may cost 1/384 more
    /// than one segment, because readers decode several in turn; smaller ones must cost less.
    #[test]
    fn long_arrays_have_several_segments_if_these_cost_little() {
        let coder = Coder::new(Entropy::Auto, &[], None);
        let (noise, constant) = (each(0..128, 128), each(7..8, 1 << FINE_LOG));
        for (counts, len, segment_log) in [
            (noise, 1 << 18, 0),
            (noise, (1 << 18) + 1, LONG_LOG),
            (noise, 1 << 21, LONG_LOG),
            (constant, (1 << 20) + 1, 0),
        ] {
            let mut fine = vec![counts; len >> FINE_LOG];
            fine.extend((len % 2 == 1).then_some(each(7..8, 1)));
            let cut = Cut::of(&coder, fine, len);
            assert_eq!(cut.segment_log, segment_log, "{len}");
        }
    }

    #[test]
    fn counts_of_integers_follow_from_those_of_symbols() {
        for (per, len) in [(2, 40_001), (4, 70_000), (8, 140_003), (8, 5)] {
            let values: Vec<u8> = (0..len)
                .map(|i| (crate::random::word(4, 0, i) % 3) as u8 & u8::MAX >> (8 - 8 / per))
                .collect();
            let mut symbols = Vec::new();
            crate::bits::put_packed(&mut symbols, &values, (8 / per).into());
            let (joined, plain) = Tally::joined(&symbols, per, values.len());
            assert_eq!(joined.fine, Tally::new(&symbols, &[]).fine, "{per} {len}");
            assert_eq!(plain.fine, Tally::new(&values, &[]).fine, "{per} {len}");
            assert_eq!((joined.len, plain.len), (symbols.len(), values.len()));
        }
    }

    /// INT-3: at least two groups have positions.
    #[test]
    fn one_group_is_no_division() {
        for groups in [&[][..], &[5], &[0, 5, 0]] {
            assert_eq!(Tally::new(&[1; 5], groups).groups, [0; 0], "{groups:?}");
        }
        assert_eq!(Tally::new(&[1; 5], &[4, 0, 1]).groups, [4, 1]);
    }
}
