//! The division of an update's tensors into blocks.

use std::ops::Range;

use crate::block::Scope;
use crate::tensor::Dtype;

/// Returns the runs of inputs that one block may hold together. The inputs of a run are consecutive in the
/// manifest, and have one element type and one codec. `of` returns the number and element type of an input.
pub(super) fn runs<C: PartialEq>(codecs: &[C], of: impl Fn(usize) -> (u64, Dtype)) -> Vec<Range<usize>> {
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

/// Tensors with fewer elements than this are small. Neighbouring small tensors share a block.
const SMALL: u64 = 4096;
/// The largest number of elements of small tensors in one block.
const SMALL_BLOCK: u64 = 1 << 16;

/// Divides a run of tensors of these lengths into dense blocks. If `merge` is set, small neighbours share a
/// block. Large tensors are divided into pieces of `block_len` elements.
pub(super) fn extents(lens: &[u64], block_len: u64, merge: bool) -> Vec<Extent> {
    let mut extents = Vec::new();
    let mut merged = None;
    for (i, &len) in lens.iter().enumerate() {
        if len > block_len {
            extents.extend(
                (0..len)
                    .step_by(block_len as usize)
                    .map(|start| Extent::Slice(i, start..len.min(start.saturating_add(block_len)))),
            );
            merged = None;
            continue;
        }
        let small = merge && len < SMALL.min(block_len);
        match (extents.last_mut(), &mut merged) {
            (Some(Extent::Whole(range)), Some(total))
                if small && *total + len <= SMALL_BLOCK.min(block_len) =>
            {
                range.end = i + 1;
                *total += len;
            }
            _ => {
                extents.push(Extent::Whole(i..i + 1));
                merged = small.then_some(len);
            }
        }
    }
    extents
}
