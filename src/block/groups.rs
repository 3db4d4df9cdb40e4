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

    /// Calls `f` as [`Self::for_each`] does, for the values in `range` of a scope of one tensor.
    pub(crate) fn for_each_in(self, range: Range<usize>, mut f: impl FnMut(usize, Range<usize>)) {
        let len = match self {
            Self::Block | Self::Tensor => usize::MAX,
            Self::Len(len) => usize::try_from(len).unwrap_or(usize::MAX),
        };
        let mut start = range.start;
        while start < range.end {
            let group = start / len;
            let end = group.saturating_add(1).saturating_mul(len).min(range.end);
            f(group, start..end);
            start = end;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_each_covers_all_values() {
        let mut seen = Vec::new();
        Groups::Len(3).for_each(7, &[], |g, r| seen.push((g, r)));
        assert_eq!(seen, [(0, 0..3), (1, 3..6), (2, 6..7)]);
        let mut seen = Vec::new();
        Groups::Len(3).for_each_in(2..7, |g, r| seen.push((g, r)));
        Groups::Block.for_each_in(2..7, |g, r| seen.push((g, r)));
        assert_eq!(seen, [(0, 2..3), (1, 3..6), (2, 6..7), (0, 2..7)]);
        let mut seen = Vec::new();
        Groups::Tensor.for_each(5, &[2, 0, 3], |g, r| seen.push((g, r)));
        assert_eq!(seen, [(0, 0..2), (1, 2..2), (2, 2..5)]);
    }
}
