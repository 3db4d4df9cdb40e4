//! Positions coded by the class of each element, which the receiver knows or the stream carries (spec,
//! supports/classed.md).

mod based;
mod choose;
mod gaps;
mod matrix;

pub use based::{BaseElements, Based};
pub(crate) use based::{ROWS, Ranker, STEP, Selector, fill_keys, steps};

use crate::bits::Cursor;
use crate::block::IndexSpace;
use crate::block::space::Surroundings;
use crate::block::support::{Sparse, Support, SupportId, Validated};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, Result};
use crate::limits::Budget;
use gaps::{Group, MAX_CLASSES};

pub(super) const ID: SupportId = SupportId(9);

pub(super) const BASE: u8 = 1;
const MATRIX: u8 = 2;

/// Appends ascending positions with classes by rows and columns; false, and nothing appended, if no rows or
/// columns are useful. `most` is the cost of another form in 1/65536 bit: if classes of many positions should
/// not be smaller, they are not useful.
pub(super) fn write_matrix(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    positions: &[u64],
    space: &IndexSpace,
    most: u64,
) -> bool {
    // The estimates of the choice are less exact for few positions, where tables are a large part.
    let many = positions.len() >= MANY;
    let tried = if many { &ROUNDS[..1] } else { &ROUNDS[..] };
    let mark = coder.recorded();
    let mut best: Option<(Vec<u8>, _)> = None;
    for &rounds in tried {
        let Some((matrix, cost)) = choose::choose(positions, space, rounds) else { continue };
        // The counts of even noise seem to be worth a little less than this, and to write classes takes long.
        if many && cost >= u128::from(most - most / 256) {
            continue;
        }
        let mut bytes = Vec::new();
        write_classes(&mut bytes, coder, &matrix, positions, space);
        let segments = coder.take_recorded(mark);
        if best.as_ref().is_none_or(|(best, _)| bytes.len() < best.len()) {
            best = Some((bytes, segments));
        }
    }
    let Some((mut bytes, segments)) = best else { return false };
    coder.record_all(segments);
    out.append(&mut bytes);
    true
}

/// Rounds of the choice of classes; where several are tried, the smallest result is written.
const ROUNDS: [usize; 2] = [2, 0];
/// Fewest positions for which the estimates of costs are believed.
pub(super) const MANY: usize = 1 << 14;

fn write_classes(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    matrix: &matrix::Matrix,
    positions: &[u64],
    space: &IndexSpace,
) {
    let ranks = matrix.ranks(positions, space);
    let elements = matrix.elements();
    let starts = gaps::cut(&ranks);
    let ends = starts.iter().skip(1).copied().chain([ranks.len()]);
    let groups: Vec<_> = starts.iter().zip(ends).map(|(&start, end)| start..end).collect();
    out.extend([MATRIX, matrix.classes]);
    matrix::write(out, coder, matrix);
    gaps::write_groups(out, coder, groups.len(), |i| {
        Group::new(&ranks[groups[i].clone()], &elements[groups[i].clone()])
    });
}

/// Divides the ranks of a group into those inside each class.
fn split(ranks: &[u64], ends: &[u64]) -> Vec<Vec<u64>> {
    let (mut rest, mut start) = (ranks, 0);
    let class = |&end: &u64| {
        let (own, after) = rest.split_at(rest.partition_point(|&r| r < end));
        let own = own.iter().map(|r| r - start).collect();
        (rest, start) = (after, end);
        own
    };
    ends.iter().map(class).collect()
}

/// Reads a support of either rule.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    around: &Surroundings<'_>,
) -> Result<Support> {
    let offset = cursor.offset();
    let rule = cursor.u8()?;
    if rule == BASE {
        let classes = cursor.u8_in("number of classes", 1, MAX_CLASSES)?;
        return Based::read_classes(cursor, decoder, classes, around.space.len()).map(Support::Based);
    }
    if rule != MATRIX {
        return Err(Error::unsupported("rule of classes", rule.into(), offset));
    }
    let classes = cursor.u8_in("number of classes", 1, MAX_CLASSES)?;
    let matrix = matrix::read(cursor, decoder, classes, around.space)?;
    let heads = gaps::read_heads(cursor, classes, around.space.len())?;
    let mut elements = matrix.elements().into_iter();
    let ends: Vec<Vec<u64>> = heads
        .iter()
        .map(|head| {
            let own = elements.by_ref().take(head.classes.into());
            own.scan(0, |sum, n| {
                *sum += n;
                Some(*sum)
            })
            .collect()
        })
        .collect();
    let count: u64 = heads.iter().map(|head| head.count).sum();
    // The ranks by class beside those by group, then the positions and the bits that sort them.
    decoder.budget.reserve_items::<[u64; 2]>(count, cursor.offset())?;
    let groups = gaps::read_ranks(cursor, decoder, &heads, &ends)?;
    let ranks: Vec<Vec<u64>> = groups.iter().zip(&ends).flat_map(|(r, ends)| split(r, ends)).collect();
    drop(groups);
    Ok(Support::Sparse(Sparse { positions: matrix.positions(&ranks, around.space) }))
}

/// Checks a support. Its classes are needed for that, so it is decoded.
pub(super) fn validate(
    cursor: &mut Cursor<'_>,
    around: &Surroundings<'_>,
    budget: &Budget,
) -> Result<Validated> {
    let support = read(cursor, &Decoder { tables: &[], budget }, around)?;
    Ok(Validated {
        count: support.count(around)?,
        weight: support.facts().weight,
        group_counts: support.group_counts(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Scope, Sets};
    use crate::codes::Entropy;
    use crate::frame::{Manifest, TensorInfo};
    use crate::limits::Limits;
    use crate::random::word;
    use crate::tensor::Dtype;

    fn space() -> IndexSpace {
        let info = TensorInfo::new("w", Dtype::F32, [64, 100]);
        Manifest::new(vec![info]).unwrap().space(Scope::Tensor(0), 0).unwrap()
    }

    /// Reads a support within `most` bytes of memory.
    fn read_within(bytes: &[u8], most: u64) -> Result<Support> {
        let (space, sets) = (space(), Sets::new());
        let around = Surroundings { space: &space, manifest: [0; 32], scope: Scope::Tensor(0), sets: &sets };
        let budget = Budget::new(&Limits::default().with_max_alloc_bytes(most));
        read(&mut Cursor::new(bytes, 0, "support"), &Decoder { tables: &[], budget: &budget }, &around)
    }

    #[test]
    fn both_rules_have_1_to_64_classes() {
        for rule in [BASE, MATRIX] {
            for classes in [0, 65] {
                let e = read_within(&[rule, classes], 1 << 20).unwrap_err();
                assert_eq!((e.name(), e.location().unwrap().offset), ("out_of_range", 1), "{rule} {classes}");
            }
        }
    }

    #[test]
    fn memory_for_sorting_counts_against_the_limit() {
        let is_dense = |i: &u64| (i / 100).is_multiple_of(8);
        let chosen = |i: &u64| word(1, 0, *i) % 64 < if is_dense(i) { 40 } else { 2 };
        let positions: Vec<u64> = (0..6400).filter(chosen).collect();
        let mut bytes = Vec::new();
        let mut coder = Coder::new(Entropy::Auto, &[], None);
        assert!(write_matrix(&mut bytes, &mut coder, &positions, &space(), u64::MAX));
        // Ranks by group; ranks by class; then positions and bits.
        let count = positions.len() as u64;
        assert_eq!(read_within(&bytes, 24 * count - 1).unwrap_err().name(), "limit");
        let support = Support::Sparse(Sparse { positions });
        assert_eq!(read_within(&bytes, 32 * count + 4096).unwrap(), support);
    }
}
