//! Ranks of the groups of a classed support, as gaps (spec, supports/classed.md, "Ranks" and "Gaps").

use std::borrow::Cow;

use crate::arch::{self, Kernel, pages};
use crate::bits::{Cursor, PlaneReader, PlaneWriter, put_varint};
use crate::codes::{
    Coder, Counts, Decoder, Role, Table, TokenPlan, count_tokens, entropy_tokens, log2, raw_cost,
    read_entropy_tokens,
};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

/// Largest number of classes.
pub(super) const MAX_CLASSES: u8 = 64;

const TOKENS: u8 = 1 << 6;
const SHIFT: u8 = TOKENS - 1;

/// The gaps of consecutive classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    gaps: Vec<u64>,
    /// For each class, the number of gaps whose first element is in it.
    counts: Vec<usize>,
}

impl Group {
    /// Makes a group of classes from the ranks of their positions inside each class, and their numbers of
    /// elements.
    pub(super) fn new(ranks: &[Vec<u64>], elements: &[u64]) -> Self {
        if let [ranks] = ranks {
            return Self::of_class(ranks);
        }
        let count = ranks.iter().map(Vec::len).sum();
        let mut group = Self { gaps: pages::with_room(count), counts: vec![0; ranks.len()] };
        // The element after the last position, and its class with this class's end.
        let (mut next, mut class, mut end) = (0u64, 0, elements[0]);
        let mut start = 0;
        for (ranks, len) in ranks.iter().zip(elements) {
            for rank in ranks {
                while end <= next {
                    class += 1;
                    end += elements[class];
                }
                group.counts[class] += 1;
                group.gaps.push(start + rank - next);
                next = start + rank + 1;
            }
            start += len;
        }
        group
    }

    /// Makes a group of one class.
    fn of_class(ranks: &[u64]) -> Self {
        let mut gaps = pages::with_room(ranks.len());
        gaps.extend(ranks.first());
        arch::run(Between { ranks, gaps: &mut gaps });
        Self { counts: vec![gaps.len()], gaps }
    }

    /// The gaps that begin in each class, and how many places a shift is smaller there.
    fn by_class(&self) -> impl Iterator<Item = (u8, &[u64])> {
        let mut rest = self.gaps.as_slice();
        self.counts.iter().zip(0u8..).map(move |(&count, class)| {
            let (own, after) = rest.split_at(count);
            rest = after;
            (class, own)
        })
    }

    /// The gaps shifted right.
    fn quotients(&self, shift: u8) -> Cow<'_, [u64]> {
        if shift == 0 {
            return Cow::Borrowed(&self.gaps);
        }
        let mut quotients = pages::with_room(self.gaps.len());
        for (class, gaps) in self.by_class() {
            let shift = shift.saturating_sub(class);
            quotients.extend(gaps.iter().map(|gap| gap >> shift));
        }
        Cow::Owned(quotients)
    }
}

/// Appends the numbers of elements between positions.
struct Between<'a> {
    ranks: &'a [u64],
    gaps: &'a mut Vec<u64>,
}

impl Kernel for Between<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.gaps.extend(self.ranks.array_windows().map(|[before, rank]| rank - before - 1));
    }
}

/// Numbers of gaps by token, which also tell those of all gaps shifted right.
struct TokenCounts {
    counts: Box<Counts>,
    gaps: u64,
    /// Sum of the rounded binary logarithms.
    logs: u64,
}

impl TokenCounts {
    fn new(gaps: &[u64]) -> Self {
        let counts = Box::new(count_tokens(gaps));
        Self { counts, gaps: gaps.len() as u64, logs: arch::run(Logs(gaps)) }
    }

    /// Adds the numbers of the tokens of the gaps shifted right by `shift`.
    fn add_shifted(&self, shift: u8, sums: &mut Counts) {
        for (token, &count) in self.counts[..TOKEN_COUNT].iter().enumerate() {
            sums[shifted_token(token, shift.into())] += count;
        }
    }
}

/// Number of tokens.
const TOKEN_COUNT: usize = 128;

/// The sum of the rounded binary logarithms of numbers above these.
struct Logs<'a>(&'a [u64]);

impl Kernel for Logs<'_> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        self.0.iter().map(|gap| u64::from(63 - (gap + 1).leading_zeros())).sum()
    }
}

/// Returns the token of a value with this token, shifted right.
fn shifted_token(token: usize, shift: usize) -> usize {
    match (token / 2).checked_sub(shift) {
        _ if shift == 0 => token,
        Some(1..) => token - 2 * shift,
        Some(0) if token >= 2 => 1,
        _ => 0,
    }
}

/// Fields of a group before its codes.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupHead {
    pub(super) classes: u8,
    pub(super) count: u64,
    shift: u8,
    tokens: bool,
}

/// How a group is written.
struct Plan {
    head: GroupHead,
    tokens: Option<TokenPlan>,
}

/// Number of shifts that are tried.
const SHIFTS: usize = 5;
/// Bits of a segment besides table and symbols, for estimates: `segment_log`, the table's number and the
/// number of lanes take a byte each, the number of words two, and the state of one lane four (spec, section
/// 7.3).
const SEGMENT_BITS: u64 = 72;

impl Plan {
    /// Finds the smallest form of a group: a shift by estimates, then unary or tokens by their costs.
    ///
    /// A class is about twice as dense as the one before, so its gaps are half as long. With gaps of about 64
    /// in class 0 and 32 in class 1, shift 6 gives quotients of about 1 in both, because a shift is one
    /// smaller in class 1.
    fn new(coder: &Coder<'_>, group: &Group) -> Self {
        let count = group.gaps.len() as u64;
        let mut head = GroupHead { classes: group.counts.len() as u8, count, shift: 0, tokens: false };
        if count == 0 {
            return Self { head, tokens: None };
        }
        let counts: Vec<(u8, TokenCounts)> = group
            .by_class()
            .filter(|(_, gaps)| !gaps.is_empty())
            .map(|(class, gaps)| (class, TokenCounts::new(gaps)))
            .collect();
        // The mean logarithm of gaps, as if all were in the first class: about the shift that makes quotients
        // near 1, which unary codes need. Tokens cope with larger ones, so smaller shifts are tried, too.
        let normal: u64 = counts.iter().map(|(class, c)| c.logs + c.gaps * u64::from(*class)).sum();
        let middle = (normal / count).min(u64::from(SHIFT)) as u8;
        let first = middle.saturating_sub(3);
        let tried = (first..=(middle + 1).min(SHIFT)).zip(unary_sums(group, first));
        let cost = |(shift, sum): (u8, u64)| {
            let unary = count.saturating_add(sum);
            let mut tokens: Counts = [0; 256];
            let mut low = 0;
            for (class, counts) in &counts {
                let shift = shift.saturating_sub(*class);
                counts.add_shifted(shift, &mut tokens);
                low += counts.gaps * u64::from(shift);
            }
            let coded = Table::from_counts(&tokens).and_then(|t| Some(t.cost(&tokens)? + (t.bits() << 16)));
            let coded = (coded.unwrap_or(0) >> 16) + raw_cost(&tokens) + SEGMENT_BITS;
            (low + unary.min(coded), coded < unary)
        };
        let (best, sum) = tried.min_by_key(|&tried| cost(tried)).unwrap_or((0, 0));
        head.shift = best;
        let quotients = group.quotients(best);
        let tokens = TokenPlan::new(coder, &quotients);
        head.tokens = tokens.cost() >> 16 < count.saturating_add(sum);
        Self { head, tokens: head.tokens.then_some(tokens) }
    }
}

/// Returns the sums of the quotients with [`SHIFTS`] shifts from `first` on.
fn unary_sums(group: &Group, first: u8) -> [u64; SHIFTS] {
    let mut sums = [0u64; SHIFTS];
    for (class, gaps) in group.by_class() {
        let shifts: [u8; SHIFTS] = std::array::from_fn(|i| (first + i as u8).saturating_sub(class).min(63));
        // The quotients are at most the elements of the group, so their sum fits.
        let of_class = arch::run(Shifted { gaps, shifts });
        sums.iter_mut().zip(of_class).for_each(|(sum, n)| *sum = sum.saturating_add(n));
    }
    sums
}

/// Sums of numbers shifted right.
struct Shifted<'a> {
    gaps: &'a [u64],
    shifts: [u8; SHIFTS],
}

impl Kernel for Shifted<'_> {
    type Output = [u64; SHIFTS];

    #[inline(always)]
    fn call(self) -> [u64; SHIFTS] {
        let mut sums = [0u64; SHIFTS];
        for gap in self.gaps {
            sums.iter_mut().zip(self.shifts).for_each(|(sum, shift)| *sum += gap >> shift);
        }
        sums
    }
}

/// Appends all groups: their number, their heads, the quotients and the low bits. `group` makes a group from
/// its number: once for its plan, and once more for its codes if it is not held.
pub(super) fn write_groups(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    groups: usize,
    group: impl Fn(usize) -> Group,
) {
    let mut room = HELD;
    let planned = (0..groups).map(|number| {
        let group = group(number);
        let plan = Plan::new(coder, &group);
        let is_held = plan.head.count <= room;
        room -= if is_held { plan.head.count } else { 0 };
        (plan, is_held.then_some(group))
    });
    let planned: Vec<(Plan, Option<Group>)> = planned.collect();
    put_varint(out, groups as u64);
    for (Plan { head, .. }, _) in &planned {
        put_varint(out, head.classes.into());
        put_varint(out, head.count);
        if head.count > 0 {
            out.push(head.shift | if head.tokens { TOKENS } else { 0 });
        }
    }
    let mut low_bytes = Vec::new();
    let mut low = PlaneWriter::new(&mut low_bytes);
    let mut held = Vec::new();
    for (number, (plan, own)) in planned.into_iter().enumerate().filter(|(_, (plan, _))| plan.head.count > 0)
    {
        match own {
            Some(group) => held.push((plan, group)),
            None => {
                write_some(out, coder, &mut low, std::mem::take(&mut held));
                write_some(out, coder, &mut low, vec![(plan, group(number))]);
            }
        }
    }
    write_some(out, coder, &mut low, held);
    low.finish();
    out.append(&mut low_bytes);
}

/// Most gaps that are held until they are written (4 MiB): those of all groups may take much more memory.
const HELD: u64 = 1 << 19;

/// Appends the quotients of groups to `out`, and their low bits to `low`.
fn write_some(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    low: &mut PlaneWriter<'_>,
    groups: Vec<(Plan, Group)>,
) {
    let quotients: Vec<Cow<'_, [u64]>> =
        groups.iter().map(|(plan, group)| group.quotients(plan.head.shift)).collect();
    let coded = groups.iter().zip(&quotients);
    let coded = coded.filter_map(|((plan, _), quotients)| Some((plan.tokens.as_ref()?, &**quotients)));
    let mut coded = entropy_tokens(coder, Role::Quotients, &coded.collect::<Vec<_>>()).into_iter();
    for ((Plan { head, tokens }, group), quotients) in groups.iter().zip(&quotients) {
        match tokens.as_ref().and_then(|_| coded.next()) {
            Some(mut bytes) => out.append(&mut bytes),
            None => {
                let mut plane = PlaneWriter::new(out);
                plane.put_all_unary(quotients, 0);
                plane.finish();
            }
        }
        for (class, gaps) in group.by_class() {
            low.put_all(gaps, head.shift.saturating_sub(class).into());
        }
    }
}

/// Reads the heads of all groups, whose classes sum to `classes`.
pub(super) fn read_heads(cursor: &mut Cursor<'_>, classes: u8, n: u64) -> Result<Vec<GroupHead>> {
    let mismatch = |field, offset| Error::format(FormatErrorKind::CountMismatch { field }, offset);
    let groups = cursor.varint_in("number of groups", 1, classes.into())?;
    let (mut heads, mut left, mut total) = (Vec::new(), u64::from(classes), 0u64);
    for _ in 0..groups {
        let offset = cursor.offset();
        let own = cursor.varint_in("classes of a group", 1, classes.into())?;
        left = left.checked_sub(own).ok_or_else(|| mismatch("number of classes", offset))?;
        let offset = cursor.offset();
        let count = cursor.varint()?;
        total = total
            .checked_add(count)
            .filter(|&t| t <= n)
            .ok_or_else(|| mismatch("number of positions", offset))?;
        let mut head = GroupHead { classes: own as u8, count, shift: 0, tokens: false };
        if count > 0 {
            let code = cursor.flags("code of a group", TOKENS | SHIFT)?;
            (head.shift, head.tokens) = (code & SHIFT, code & TOKENS != 0);
        }
        heads.push(head);
    }
    match left {
        0 => Ok(heads),
        _ => Err(mismatch("number of classes", cursor.offset())),
    }
}

/// Reads the ranks of all groups up to the end of the cursor. `ends` are, for each group and each
/// of its classes, the number of elements in its classes up to this one, inclusive.
pub(super) fn read_ranks(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    heads: &[GroupHead],
    ends: &[Vec<u64>],
) -> Result<Vec<Vec<u64>>> {
    let offset = cursor.offset();
    let mut groups =
        heads.iter().map(|head| read_quotients(cursor, decoder, head)).collect::<Result<Vec<_>>>()?;
    let low_offset = cursor.offset();
    let mut low = PlaneReader::new(cursor.take_rest(), low_offset);
    for ((ranks, head), ends) in groups.iter_mut().zip(heads).zip(ends) {
        let len = ends.last().copied().unwrap_or(0);
        let outside = |position| Error::format(FormatErrorKind::PositionOutOfRange { position, len }, offset);
        if ends.len() == 1 && head.shift == 0 {
            sum_gaps(ranks, len).map_err(outside)?;
            continue;
        }
        let (mut next, mut class) = (0u64, 0);
        for rank in ranks {
            while ends.get(class).is_some_and(|&end| end <= next) {
                class += 1;
            }
            let width = u32::from(head.shift).saturating_sub(class as u32);
            if *rank > len >> width {
                return Err(outside(u64::MAX));
            }
            let here = next.checked_add(*rank << width | low.get(width)).filter(|&r| r < len);
            *rank = here.ok_or_else(|| outside(next))?;
            next = *rank + 1;
        }
    }
    low.finish("low bits")?;
    Ok(groups)
}

/// Replaces gaps by the ranks that they give, which are to be below `len`. If one is not, returns the
/// position that an error names.
fn sum_gaps(gaps: &mut [u64], len: u64) -> Result<(), u64> {
    let mut next = 0u64;
    for gap in gaps {
        let outside = || if *gap > len { u64::MAX } else { next };
        let rank = next.checked_add(*gap).filter(|&rank| rank < len).ok_or_else(outside)?;
        *gap = rank;
        next = rank + 1;
    }
    Ok(())
}

fn read_quotients(cursor: &mut Cursor<'_>, decoder: &Decoder<'_>, head: &GroupHead) -> Result<Vec<u64>> {
    if head.tokens {
        return read_entropy_tokens(cursor, decoder, head.count);
    }
    let offset = cursor.offset();
    // Each quotient takes at least one bit.
    if head.count > (cursor.remaining() as u64).saturating_mul(8) {
        return Err(Error::format(FormatErrorKind::LengthMismatch { field: "quotients" }, offset));
    }
    let len = decoder.budget.reserve_items::<u64>(head.count, offset)?;
    let mut quotients = Vec::with_capacity(len);
    let mut zeros = 0u64;
    while quotients.len() < len {
        let byte = cursor.u8()?;
        let (mut bits, mut from) = (byte, 0);
        while bits != 0 {
            let one = u64::from(bits.trailing_zeros());
            if quotients.len() == len {
                return Err(Error::format(FormatErrorKind::NonzeroPadding, cursor.offset() - 1));
            }
            quotients.push(zeros + one - from);
            (zeros, from) = (0, one + 1);
            bits &= bits - 1;
        }
        zeros += 8 - from;
    }
    Ok(quotients)
}

/// Cuts classes into groups, so that each group's quotients share a distribution. `ranks` are those inside
/// each class.
///
/// Returns the first class of each group.
pub(super) fn cut(ranks: &[Vec<u64>]) -> Vec<usize> {
    let gaps = |ranks: &[u64]| TokenCounts::new(&Group::of_class(ranks).gaps);
    let used: Vec<(u64, TokenCounts)> =
        (0u64..).zip(ranks).filter(|(_, r)| !r.is_empty()).map(|(class, r)| (class, gaps(r))).collect();
    let (Some(&(lowest, _)), total) = (used.first(), used.iter().map(|(_, c)| c.gaps).sum::<u64>()) else {
        return vec![0];
    };
    let normal: u64 = used.iter().map(|(class, c)| c.logs + c.gaps * class).sum();
    let middle = (normal / total.max(1)).max(lowest);
    let tried = middle.saturating_sub(3)..=middle + 1;
    let plans = tried.map(|shift| {
        let shift_of = |class: u64| shift.saturating_sub(class).min(63) as u8;
        // Counts of tokens of each used class.
        let counts: Vec<Counts> = used
            .iter()
            .map(|(class, gaps)| {
                let mut counts = [0; 256];
                gaps.add_shifted(shift_of(*class), &mut counts);
                counts
            })
            .collect();
        let low: u64 = used.iter().map(|(class, c)| c.gaps * u64::from(shift_of(*class))).sum();
        // Of the 256 tokens, a tenth occurs.
        let last = |counts: &Counts| counts.iter().rposition(|&count| count > 0);
        let tokens = counts.iter().filter_map(last).max().map_or(0, |last| last + 1);
        // The cheapest way to cut the first classes, by dynamic programming.
        let mut best: Vec<(u64, Vec<usize>)> = vec![(0, Vec::new())];
        for end in 1..=used.len() {
            let mut sum: Counts = [0; 256];
            let mut cheapest: Option<(u64, Vec<usize>)> = None;
            for start in (0..end).rev() {
                let sum = &mut sum[..tokens];
                sum.iter_mut().zip(&counts[start]).for_each(|(s, c)| *s += c);
                let cost = best[start].0 + group_bits(sum);
                if cheapest.as_ref().is_none_or(|(c, _)| cost < *c) {
                    let mut cuts = best[start].1.clone();
                    cuts.push(if start == 0 { 0 } else { in_memory(used[start].0) });
                    cheapest = Some((cost, cuts));
                }
            }
            best.extend(cheapest);
        }
        let (cost, cuts) = best.pop().unwrap_or_default();
        (cost + low, cuts)
    });
    plans.min_by_key(|(cost, _)| *cost).map_or_else(|| vec![0], |(_, cuts)| cuts)
}

/// About the bits of a group with these counts of its first tokens, and no others. It has about 100 for the
/// segment ([`SEGMENT_BITS`]) and the first 24 of its table, and 6 for each frequency, which takes 4 to 7
/// ([`Table::bits`]).
fn group_bits(counts: &[u64]) -> u64 {
    let total: u64 = counts.iter().sum();
    let nats = |n: u64| n * u64::from(log2(n));
    let used = counts.iter().copied().filter(|&c| c > 0);
    let entropy = nats(total) - used.clone().map(nats).sum::<u64>();
    (entropy >> 16) + raw_cost(counts) + 100 + 6 * used.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::{Entropy, token, write_entropy_tokens};
    use crate::limits::{Budget, Limits};
    use crate::random::word;

    /// A group: for each class, the ranks of its positions, and the number of its elements.
    type Classes = Vec<(Vec<u64>, u64)>;

    fn read(bytes: &[u8], classes: u8, n: u64, ends: &[Vec<u64>]) -> Result<Vec<Vec<u64>>> {
        let budget = Budget::new(&Limits::default());
        let mut cursor = Cursor::new(bytes, 0, "groups");
        let heads = read_heads(&mut cursor, classes, n)?;
        read_ranks(&mut cursor, &Decoder { tables: &[], budget: &budget }, &heads, ends)
    }

    #[test]
    fn tokens_of_shifted_values_follow_from_those_of_the_values() {
        let values = (0..2000).chain((0..63).flat_map(|e| [1u64 << e, 3 << e >> 1, (1 << e) - 1]));
        for value in values {
            for shift in 0..64u8 {
                let expected = usize::from(token(value >> shift));
                assert_eq!(shifted_token(token(value).into(), shift.into()), expected, "{value} {shift}");
            }
        }
    }

    #[test]
    fn gaps_are_counted_by_token_with_the_sum_of_their_logarithms() {
        let gaps: Vec<u64> = (0..700).chain([0, 0, 255, 256, 1 << 40]).collect();
        let counts = TokenCounts::new(&gaps);
        let mut expected = [0; 256];
        gaps.iter().for_each(|&gap| expected[usize::from(token(gap))] += 1);
        assert_eq!((*counts.counts, counts.gaps), (expected, 705));
        assert_eq!(counts.logs, gaps.iter().map(|gap| u64::from((gap + 1).ilog2())).sum::<u64>());
    }

    #[test]
    fn ranks_of_few_many_and_far_positions_come_back() {
        // Ascending ranks with gaps up to a number.
        let ranks = |count: u64, most: u64| -> Vec<u64> {
            let gap = |i| (u64::from(word(1, 2, i)) * most) >> 32;
            (0..count).scan(0, |next, i| Some(std::mem::replace(next, *next + 1 + gap(i)))).collect()
        };
        // The best shift is about 64 here: one more than a head can have.
        let mut late: Classes = vec![(vec![], 1); 64];
        late[34] = (ranks(100, 12 << 28), 1 << 40);
        let streams: [Vec<Classes>; 6] = [
            vec![vec![(vec![4], 9)]],
            vec![vec![(vec![], 3), (vec![2], 5)]],
            vec![vec![(vec![1], 4)], vec![(vec![], 3)], vec![(vec![0], 1), (vec![0], 1)]],
            vec![vec![(vec![1 << 63], u64::MAX)]],
            vec![vec![(ranks(300, 900), 1 << 20), (ranks(300, 300), 1 << 20)], vec![(ranks(2000, 2), 9000)]],
            vec![late],
        ];
        for groups in streams {
            let (mut given, mut expected, mut all_ends) = (Vec::new(), Vec::new(), Vec::new());
            let (mut n, mut classes) = (0u64, 0);
            for group in &groups {
                let (ranks, elements): (Vec<Vec<u64>>, Vec<u64>) = group.iter().cloned().unzip();
                let ends: Vec<u64> = elements
                    .iter()
                    .scan(0, |sum, n| {
                        *sum += n;
                        Some(*sum)
                    })
                    .collect();
                let starts = [0].iter().chain(&ends);
                let of_group =
                    ranks.iter().zip(starts).flat_map(|(r, start)| r.iter().map(move |r| start + r));
                expected.push(of_group.collect::<Vec<u64>>());
                n = n.saturating_add(elements.iter().sum());
                classes += elements.len() as u8;
                given.push((ranks, elements));
                all_ends.push(ends);
            }
            let mut bytes = Vec::new();
            let mut coder = Coder::new(Entropy::Auto, &[], None);
            write_groups(&mut bytes, &mut coder, given.len(), |i| Group::new(&given[i].0, &given[i].1));
            assert_eq!(read(&bytes, classes, n, &all_ends).unwrap(), expected);
        }
    }

    #[test]
    fn heads_fit_the_classes_and_the_elements() {
        let heads = |bytes: &[u8]| -> Result<Vec<u64>> {
            let heads = read_heads(&mut Cursor::new(bytes, 0, "heads"), 2, 4)?;
            Ok(heads.iter().map(|head| head.count).collect())
        };
        assert_eq!(heads(&[1, 2, 4, 0]).unwrap(), [4]);
        assert_eq!(heads(&[2, 1, 0, 1, 4, 0]).unwrap(), [0, 4]);
        let wrong: [(&[u8], &str, u64); 9] = [
            (&[0], "out_of_range", 0),
            (&[3], "out_of_range", 0),
            (&[1, 0, 0], "out_of_range", 1),
            (&[1, 3, 0], "out_of_range", 1),
            (&[2, 2, 0, 1, 0], "count_mismatch", 3),
            (&[1, 1, 0], "count_mismatch", 3),
            (&[1, 2, 5, 0], "count_mismatch", 2),
            (&[2, 1, 3, 0, 1, 2, 0], "count_mismatch", 5),
            (&[1, 2, 1, 0x80], "reserved_bits", 3),
        ];
        for (bytes, name, offset) in wrong {
            let e = heads(bytes).unwrap_err();
            assert_eq!((e.name(), e.location().unwrap().offset), (name, offset), "{bytes:?}");
        }
    }

    #[test]
    fn ranks_beyond_their_group_are_refused() {
        // Two classes of one element each, and a shift of 1: quotients in unary, then low bits.
        let unary = |count, quotients: u8, low: &[u8]| {
            read(&[&[1, 2, count, 1, quotients], low].concat(), 2, 4, &[vec![1, 2]])
        };
        assert_eq!(unary(1, 0b1, &[1]).unwrap(), [[1]]);
        assert_eq!(unary(2, 0b11, &[0]).unwrap(), [[0, 1]]);
        for (count, quotients) in [(1, 0b10), (2, 0b101), (3, 0b111)] {
            assert_eq!(
                unary(count, quotients, &[0]).unwrap_err().name(),
                "position_out_of_range",
                "{quotients:b}"
            );
        }
        for low in [&[][..], &[1, 0]] {
            assert_eq!(unary(1, 0b1, low).unwrap_err().name(), "length_mismatch", "{low:?}");
        }
        // This quotient has no room for its low bit in 64 bits.
        let mut bytes = vec![1, 1, 1, TOKENS | 1];
        let mut coder = Coder::new(Entropy::Auto, &[], None);
        write_entropy_tokens(&mut bytes, &mut coder, Role::Quotients, &[1 << 63]);
        bytes.push(0);
        assert_eq!(read(&bytes, 1, 1 << 62, &[vec![1 << 62]]).unwrap_err().name(), "position_out_of_range");
    }
}
