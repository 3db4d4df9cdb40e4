//! Groups of values that share a number (spec, section 5.1).

use std::ops::Range;

use crate::bits::{Cursor, put_varint};
use crate::block::space::ValueSpace;
use crate::error::{Error, Result};
use crate::limits::in_memory;

/// Which values share a scale, a norm or a zero point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Groups {
    /// All values of the block: one group.
    Block,
    /// The values of each tensor of the scope: one group per tensor, also for tensors without values.
    Tensor,
    /// Each run of this many consecutive values, at least 2; the last may be shorter.
    Len(u64),
}

impl Groups {
    /// The number of groups.
    pub(crate) fn count(self, space: &ValueSpace<'_>) -> u64 {
        match self {
            Self::Block => 1,
            Self::Tensor => space.tensors.unwrap_or(1),
            Self::Len(len) => space.count.div_ceil(len.max(1)),
        }
    }

    /// Calls `f` with the number of each group and the range of its values, in order.
    ///
    /// `tensor_counts` holds the number of values of each tensor of the scope; only [`Groups::Tensor`] needs
    /// it.
    pub(crate) fn for_each(
        self,
        count: usize,
        tensor_counts: &[u64],
        mut f: impl FnMut(usize, Range<usize>),
    ) {
        match self {
            Self::Block => f(0, 0..count),
            Self::Len(len) => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                for (group, start) in (0..count).step_by(len).enumerate() {
                    f(group, start..start.saturating_add(len).min(count));
                }
            }
            Self::Tensor => {
                let mut start = 0;
                for (group, &n) in tensor_counts.iter().enumerate() {
                    let end = start + in_memory(n);
                    f(group, start..end.min(count));
                    start = end;
                }
            }
        }
    }

    /// Returns the groups of values that are visited one after another. `lens`: the number of values of each
    /// tensor of the scope; only [`Groups::Tensor`] needs it.
    pub(crate) fn visit(self, lens: &[u64]) -> Visit<'_> {
        Visit { groups: self, lens, at: 0, group: 0, end: self.len_of(0, lens) }
    }

    /// The number of values of a group; of the last, or of all, it may be too large.
    fn len_of(self, group: usize, lens: &[u64]) -> usize {
        let len = match self {
            Self::Block => None,
            Self::Len(len) => Some(len.max(1)),
            Self::Tensor => lens.get(group).copied(),
        };
        len.and_then(|len| usize::try_from(len).ok()).unwrap_or(usize::MAX)
    }

    pub(super) fn write(self, out: &mut Vec<u8>, space: &ValueSpace<'_>) -> Result<()> {
        let number = match self {
            Self::Block => 0,
            Self::Tensor if space.tensors.is_some() => 1,
            Self::Len(len) if len >= 2 => len,
            _ => return Err(Error::inconsistent("groups")),
        };
        put_varint(out, number);
        Ok(())
    }

    pub(super) fn read(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let offset = cursor.offset();
        match cursor.varint()? {
            0 => Ok(Self::Block),
            1 if space.tensors.is_none() => Err(Error::out_of_range("groups", 1, offset)),
            1 => Ok(Self::Tensor),
            len => Ok(Self::Len(len)),
        }
    }
}

/// Groups of values that are visited one after another.
pub(crate) struct Visit<'l> {
    groups: Groups,
    lens: &'l [u64],
    /// The first value that was not visited.
    at: usize,
    /// Number of the group that was visited last, and its end.
    group: usize,
    end: usize,
}

impl Visit<'_> {
    /// Calls `f` with the number of each group of the next values, up to value `to`, and with those of its
    /// values that are among them.
    pub(crate) fn up_to(&mut self, to: usize, mut f: impl FnMut(usize, Range<usize>)) {
        while self.at < to {
            while self.at == self.end {
                self.group += 1;
                self.end = self.end.saturating_add(self.groups.len_of(self.group, self.lens));
            }
            let end = self.end.min(to);
            f(self.group, self.at..end);
            self.at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_each_covers_all_values() {
        let mut seen = Vec::new();
        Groups::Len(3).for_each(7, &[], |g, r| seen.push((g, r)));
        assert_eq!(seen, [(0, 0..3), (1, 3..6), (2, 6..7)]);
        let mut seen = Vec::new();
        Groups::Tensor.for_each(5, &[2, 0, 3], |g, r| seen.push((g, r)));
        assert_eq!(seen, [(0, 0..2), (1, 2..2), (2, 2..5)]);
    }

    #[test]
    fn a_visit_takes_up_a_group_where_it_stopped() {
        let visited = |groups: Groups, lens: &[u64], ends: &[usize]| {
            let (mut visit, mut seen) = (groups.visit(lens), Vec::new());
            ends.iter().for_each(|&end| visit.up_to(end, |g, r| seen.push((g, r))));
            seen
        };
        let by_len = visited(Groups::Len(3), &[], &[2, 7]);
        assert_eq!(by_len, [(0, 0..2), (0, 2..3), (1, 3..6), (2, 6..7)]);
        assert_eq!(visited(Groups::Block, &[4], &[2, 2, 7]), [(0, 0..2), (0, 2..7)]);
        let by_tensor = visited(Groups::Tensor, &[0, 2, 0, 0, 3, 0], &[1, 5]);
        assert_eq!(by_tensor, [(1, 0..1), (1, 1..2), (4, 2..5)]);
    }
}
