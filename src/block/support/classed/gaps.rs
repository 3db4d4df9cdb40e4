//! Ranks of the groups of a classed support, as gaps (spec, supports/classed.md, "Ranks" and "Gaps").

use crate::bits::{Cursor, PlaneReader, PlaneWriter, put_varint};
use crate::codes::{
    Coder, Counts, Decoder, Role, Table, entropy_token_cost, log2, raw_cost, read_entropy_tokens, token,
    write_entropy_tokens,
};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

/// Largest number of classes.
pub(super) const MAX_CLASSES: u8 = 64;

const TOKENS: u8 = 1 << 6;
const SHIFT: u8 = TOKENS - 1;

/// The positions of consecutive classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// For each class, the number of elements in the group's classes up to it, inclusive.
    pub(super) ends: Vec<u64>,
    /// Strictly ascending.
    pub(super) ranks: Vec<u64>,
}

impl Group {
    /// Calls `f` with each gap, and with the class of the element after the position before it.
    fn for_each_gap(&self, mut f: impl FnMut(u64, u8)) {
        let (mut next, mut class) = (0u64, 0u64);
        for &rank in &self.ranks {
            while self.ends.get(in_memory(class)).is_some_and(|&end| end <= next) {
                class += 1;
            }
            f(rank - next, class as u8);
            next = rank + 1;
        }
    }
}

/// Fields of a group before its codes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) classes: u8,
    pub(super) count: u64,
    shift: u8,
    tokens: bool,
}

/// How a group is written.
struct Plan {
    head: Head,
    quotients: Vec<u64>,
}

impl Plan {
    /// Finds the smallest form of a group.
    fn new(coder: &Coder<'_>, group: &Group) -> Self {
        let count = group.ranks.len() as u64;
        let mut head = Head { classes: group.ends.len() as u8, count, shift: 0, tokens: false };
        if count == 0 {
            return Self { head, quotients: Vec::new() };
        }
        let mut gaps = Vec::with_capacity(group.ranks.len());
        group.for_each_gap(|gap, class| gaps.push((gap, class)));
        // The shift of the first class gives small quotients in all classes.
        let normal: u64 =
            gaps.iter().map(|&(gap, class)| u64::from((gap + 1).ilog2()) + u64::from(class)).sum();
        let middle = (normal / count).min(u64::from(SHIFT)) as u8;
        let tried = middle.saturating_sub(3)..=(middle + 1).min(SHIFT);
        let cost = |shift: u8| {
            let quotient = |&(gap, class): &(u64, u8)| gap >> shift.saturating_sub(class);
            let low: u64 = gaps.iter().map(|(_, class)| u64::from(shift.saturating_sub(*class))).sum();
            let unary = gaps.iter().map(quotient).fold(count, u64::saturating_add);
            let mut counts: Counts = [0; 256];
            gaps.iter().for_each(|gap| counts[usize::from(token(quotient(gap)))] += 1);
            let coded = Table::from_counts(&counts).and_then(|t| Some(t.cost(&counts)? + (t.bits() << 16)));
            let coded = (coded.unwrap_or(0) >> 16) + raw_cost(&counts) + 72;
            (low + unary.min(coded), coded < unary)
        };
        let best = tried.min_by_key(|&shift| cost(shift)).unwrap_or(0);
        head.shift = best;
        let quotients: Vec<u64> =
            gaps.iter().map(|&(gap, class)| gap >> best.saturating_sub(class)).collect();
        let unary = quotients.iter().fold(count, |sum, q| sum.saturating_add(*q));
        head.tokens = entropy_token_cost(coder, &quotients) >> 16 < unary;
        Self { head, quotients }
    }
}

/// Appends all groups: their number, their heads, the quotients and the low bits.
pub(super) fn write_groups(out: &mut Vec<u8>, coder: &mut Coder<'_>, groups: &[Group]) {
    let plans: Vec<Plan> = groups.iter().map(|g| Plan::new(coder, g)).collect();
    put_varint(out, groups.len() as u64);
    for Plan { head, .. } in &plans {
        put_varint(out, head.classes.into());
        put_varint(out, head.count);
        if head.count > 0 {
            out.push(head.shift | if head.tokens { TOKENS } else { 0 });
        }
    }
    for Plan { head, quotients } in plans.iter().filter(|p| p.head.count > 0) {
        if head.tokens {
            write_entropy_tokens(out, coder, Role::Quotients, quotients);
        } else {
            let mut plane = PlaneWriter::new(out);
            quotients.iter().for_each(|&q| plane.put_unary(q));
            plane.finish();
        }
    }
    let mut low = PlaneWriter::new(out);
    for (group, Plan { head, .. }) in groups.iter().zip(&plans) {
        group.for_each_gap(|gap, class| {
            let bits = head.shift.saturating_sub(class);
            low.put(gap & ((1 << bits) - 1), bits.into());
        });
    }
    low.finish();
}

/// Reads the heads of all groups, whose classes sum to `classes`.
pub(super) fn read_heads(cursor: &mut Cursor<'_>, classes: u8, n: u64) -> Result<Vec<Head>> {
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
        let mut head = Head { classes: own as u8, count, shift: 0, tokens: false };
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

/// Reads the ranks of all groups up to the end of the cursor. `ends` are those of [`Group::ends`].
pub(super) fn read_ranks(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    heads: &[Head],
    ends: &[Vec<u64>],
) -> Result<Vec<Vec<u64>>> {
    let offset = cursor.offset();
    let mut groups =
        heads.iter().map(|head| read_quotients(cursor, decoder, head)).collect::<Result<Vec<_>>>()?;
    let low_offset = cursor.offset();
    let low_bytes = cursor.take_rest();
    let bits = low_bytes.len() as u64 * 8;
    let mut low = PlaneReader::new(low_bytes, low_offset);
    let mut used = 0u64;
    for ((ranks, head), ends) in groups.iter_mut().zip(heads).zip(ends) {
        let len = ends.last().copied().unwrap_or(0);
        let outside = |position| Error::format(FormatErrorKind::PositionOutOfRange { position, len }, offset);
        let (mut next, mut class) = (0u64, 0);
        for rank in ranks {
            while ends.get(class).is_some_and(|&end| end <= next) {
                class += 1;
            }
            let width = u32::from(head.shift).saturating_sub(class as u32);
            used += u64::from(width);
            if *rank > len >> width {
                return Err(outside(u64::MAX));
            }
            let here = next.checked_add(*rank << width | low.get(width)).filter(|&r| r < len);
            *rank = here.ok_or_else(|| outside(next))?;
            next = *rank + 1;
        }
    }
    if used > bits {
        return Err(Error::format(FormatErrorKind::LengthMismatch { field: "low bits" }, low_offset));
    }
    low.finish("low bits")?;
    Ok(groups)
}

fn read_quotients(cursor: &mut Cursor<'_>, decoder: &Decoder<'_>, head: &Head) -> Result<Vec<u64>> {
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

/// Cuts classes into groups, so that each group's quotients share a distribution. `gaps` are those inside
/// each class.
///
/// Returns the first class of each group.
pub(super) fn cut(classes: usize, gaps: &[Vec<u64>]) -> Vec<usize> {
    let used: Vec<usize> = (0..classes).filter(|&c| !gaps[c].is_empty()).collect();
    let (Some(&lowest), total) = (used.first(), gaps.iter().map(Vec::len).sum::<usize>() as u64) else {
        return vec![0];
    };
    let normal: u64 =
        used.iter().flat_map(|&c| gaps[c].iter().map(move |g| u64::from((g + 1).ilog2()) + c as u64)).sum();
    let middle = (normal / total.max(1)).max(lowest as u64);
    let tried = middle.saturating_sub(3)..=middle + 1;
    let plans = tried.map(|shift| {
        // Counts of tokens of each used class.
        let counts: Vec<Counts> = used
            .iter()
            .map(|&class| {
                let mut counts = [0; 256];
                let shift = shift.saturating_sub(class as u64).min(63);
                gaps[class].iter().for_each(|gap| counts[usize::from(token(gap >> shift))] += 1);
                counts
            })
            .collect();
        let low: u64 =
            used.iter().map(|&c| gaps[c].len() as u64 * shift.saturating_sub(c as u64).min(63)).sum();
        // The cheapest way to cut the first classes, by dynamic programming.
        let mut best: Vec<(u64, Vec<usize>)> = vec![(0, Vec::new())];
        for end in 1..=used.len() {
            let mut sum: Counts = [0; 256];
            let mut cheapest: Option<(u64, Vec<usize>)> = None;
            for start in (0..end).rev() {
                sum.iter_mut().zip(&counts[start]).for_each(|(s, c)| *s += c);
                let cost = best[start].0 + group_bits(&sum);
                if cheapest.as_ref().is_none_or(|(c, _)| cost < *c) {
                    let mut cuts = best[start].1.clone();
                    cuts.push(if start == 0 { 0 } else { used[start] });
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

/// About the bits of a group with these counts of tokens.
fn group_bits(counts: &Counts) -> u64 {
    let total: u64 = counts.iter().sum();
    let nats = |n: u64| n * u64::from(log2(n.max(1)));
    let entropy = nats(total) - counts.iter().map(|&c| nats(c)).sum::<u64>();
    let distinct = counts.iter().filter(|&&c| c > 0).count() as u64;
    (entropy >> 16) + raw_cost(counts) + 100 + 6 * distinct
}
