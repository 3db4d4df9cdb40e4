//! The division of an update's tensors into blocks.

use std::ops::Range;

use crate::block::{Groups, Scope};
use crate::tensor::Dtype;

/// Returns the runs of inputs that one block may hold together. The inputs of a run are consecutive in the
/// manifest, and have one element type and one codec. `of` returns the number and element type of an input.
pub(super) fn alike<C: PartialEq>(codecs: &[C], of: impl Fn(usize) -> (u64, Dtype)) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for i in 0..codecs.len() {
        match runs.last_mut() {
            Some(run) if of(i) == (of(i - 1).0 + 1, of(i - 1).1) && codecs[i] == codecs[i - 1] => {
                run.end = i + 1;
            }
            _ => runs.push(i..i + 1),
        }
    }
    runs
}

/// Most elements of tensors that share a sparse block, unless it is one tensor: whoever reads one of them
/// holds them all. Such blocks are less than 0.1 % larger than one block of all.
pub(super) const JOINED: u64 = 16 << 20;

/// Divides a run of tensors into those that share a block: with lengths of at most `most` together, or one
/// tensor. `len` returns the length of a tensor, in elements or in bytes.
pub(super) fn divide(run: Range<usize>, most: u64, len: impl Fn(usize) -> u64) -> Vec<Range<usize>> {
    let mut blocks: Vec<Range<usize>> = Vec::new();
    let mut together = 0u64;
    for i in run {
        together = together.saturating_add(len(i));
        match blocks.last_mut() {
            Some(block) if together <= most => block.end = i + 1,
            _ => {
                blocks.push(i..i + 1);
                together = len(i);
            }
        }
    }
    blocks
}

/// Returns the scope of `count` >= 1 whole tensors.
pub(super) fn whole(first: u64, count: usize) -> Scope {
    match count {
        1 => Scope::Tensor(first),
        _ => Scope::Tensors { first, count: count as u64 },
    }
}

/// Consecutive elements of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index of the tensor in the list of tensors.
    pub input: usize,
    /// Index of the first element in the tensor.
    pub start: u64,
    /// Number of elements.
    pub len: u64,
}

/// The span of one dense block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Extent {
    /// Whole tensors of a run.
    Whole(Range<usize>),
    /// Elements of one tensor of a run.
    Slice(usize, Range<u64>),
}

impl Extent {
    /// Returns the scope of the extent. `tensor` returns the number in the manifest of a tensor of the run.
    pub(super) fn scope(&self, tensor: impl Fn(usize) -> u64) -> Scope {
        match self {
            Self::Whole(run) => whole(tensor(run.start), run.len()),
            Self::Slice(i, range) => {
                Scope::Range { tensor: tensor(*i), start: range.start, len: range.end - range.start }
            }
        }
    }

    /// Returns the tensors of the run that the extent covers.
    pub(super) fn tensors(&self) -> Range<usize> {
        match self {
            Self::Whole(run) => run.clone(),
            Self::Slice(i, _) => *i..*i + 1,
        }
    }

    /// Returns the elements that the extent covers if they are of one tensor of the run.
    ///
    /// `lens`: the lengths of its tensors.
    pub(super) fn span(&self, lens: &[u64]) -> Option<(usize, Range<usize>)> {
        match self {
            Self::Whole(run) if run.len() > 1 => None,
            Self::Whole(run) => Some((run.start, 0..lens[run.start] as usize)),
            Self::Slice(i, range) => Some((*i, range.start as usize..range.end as usize)),
        }
    }
}

/// Tensors with fewer elements than this are small. Neighbouring small tensors share a block: one of its own
/// takes as long as some thousand elements to write and to read.
const SMALL: u64 = 1 << 14;
/// From this number of elements on, small tensors share a block only with those of the same length, which are
/// likely to be alike. A table for unlike ones would cost more than it saves.
const LIKE: u64 = 1 << 12;
/// The largest number of elements of small tensors in one block.
const SMALL_BLOCK: u64 = 1 << 17;

/// Which small neighbours share a block.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sharing {
    /// No tensor shares a block.
    None,
    /// All small neighbours share one.
    All,
    /// Neighbours share a block if their groups of so many elements are its groups, too ([`groups`]).
    Grouped(u64),
}

/// The small tensors that share a block so far.
#[derive(Debug, Clone, Copy)]
struct Shared {
    elements: u64,
    /// The length of each of them, from [`LIKE`] on.
    like: Option<u64>,
    /// Whether groups of one tensor end with it.
    is_whole: bool,
    /// Whether each tensor is one group, or part of one.
    is_one: bool,
}

impl Shared {
    fn new(sharing: Sharing, len: u64) -> Self {
        let (is_whole, is_one) = match sharing {
            Sharing::Grouped(group) => (len.is_multiple_of(group), len <= group),
            Sharing::None | Sharing::All => (true, true),
        };
        Self { elements: len, like: (len >= LIKE).then_some(len), is_whole, is_one }
    }

    /// Returns the block with one more tensor of these elements; `None` if it has to have another one.
    fn with(self, next: Self, most: u64) -> Option<Self> {
        let elements = self.elements + next.elements;
        let is_one = self.is_one && next.is_one;
        let fits = elements <= most && self.like == next.like && (self.is_whole || is_one);
        fits.then_some(Self { elements, is_whole: self.is_whole && next.is_whole, is_one, ..self })
    }
}

/// Returns how the values of tensors of these lengths are grouped in the block that they share
/// ([`Sharing::Grouped`]): as those of one tensor if each but the last ends with a group, else by tensor.
pub(super) fn groups(lens: &[u64], group: u64) -> Groups {
    match lens.split_last() {
        Some((_, before)) if before.iter().any(|len| !len.is_multiple_of(group)) => Groups::Tensor,
        _ => Groups::Len(group),
    }
}

/// Divides a run of tensors of these lengths into dense blocks. Large tensors are divided into pieces of
/// `block_len` elements.
pub(super) fn extents(lens: &[u64], block_len: u64, sharing: Sharing) -> Vec<Extent> {
    let mut extents = Vec::new();
    let mut shared = None;
    for (i, &len) in lens.iter().enumerate() {
        if len > block_len {
            extents.extend(
                (0..len)
                    .step_by(block_len as usize)
                    .map(|start| Extent::Slice(i, start..len.min(start.saturating_add(block_len)))),
            );
            shared = None;
            continue;
        }
        let is_small = !matches!(sharing, Sharing::None) && len < SMALL.min(block_len);
        let own = is_small.then(|| Shared::new(sharing, len));
        let with = shared.zip(own).and_then(|(s, own): (Shared, _)| s.with(own, SMALL_BLOCK.min(block_len)));
        match extents.last_mut() {
            Some(Extent::Whole(range)) if with.is_some() => range.end = i + 1,
            _ => extents.push(Extent::Whole(i..i + 1)),
        }
        shared = with.or(own);
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_share_a_block_up_to_its_size() {
        let divided = |lens: &[u64]| divide(0..lens.len(), 10, |i| lens[i]);
        assert_eq!(divided(&[]), []);
        assert_eq!(divided(&[4, 6, 0, 1, 9, 1]), [0..3, 3..5, 5..6]);
        // A larger tensor is alone, and not even an empty one joins it.
        assert_eq!(divided(&[11, 0, 3, u64::MAX, 0]), [0..1, 1..3, 3..4, 4..5]);
        assert_eq!(divide(7..9, 10, |i| i as u64), [7..8, 8..9]);
    }
}
