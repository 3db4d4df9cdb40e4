//! The elements that are summed at a time.

use std::ops::Range;

use super::pieces::BLOCK_LEN;
use super::sum::Sum;
use crate::frame::Manifest;
use crate::limits::in_memory;

/// Bytes of tensors that are summed at a time; their accumulators may have more. With the update that is
/// added, they fit a cache. The same for any number of threads: limits bound the blocks of a window together.
/// The unit tests and fuzz targets sum few, to cut more.
pub(super) const BATCH: u64 = if cfg!(any(test, fuzzing)) { 5000 } else { 2 << 20 };

/// Tensors that are summed at a time, or a part of one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Window {
    /// Numbers of the tensors.
    pub(super) tensors: Range<usize>,
    /// The elements, if they are not all of one tensor.
    part: Option<Range<u64>>,
}

impl Window {
    pub(super) fn all(manifest: &Manifest) -> Self {
        Self { tensors: 0..manifest.tensors().len(), part: None }
    }

    pub(super) fn of(tensor: usize) -> Self {
        Self { tensors: tensor..tensor + 1, part: None }
    }

    /// First element in each tensor.
    pub(super) fn start(&self) -> u64 {
        self.part.as_ref().map_or(0, |part| part.start)
    }

    /// The elements of a tensor of the window, of the `len` that the tensor has.
    pub(super) fn within(&self, len: u64) -> Range<u64> {
        self.part.clone().unwrap_or(0..len)
    }

    /// Number of elements in a tensor of the window.
    pub(super) fn elements(&self, manifest: &Manifest, tensor: usize) -> u64 {
        let Range { start, end } = self.within(manifest.tensors()[tensor].elements());
        end - start
    }

    /// Returns those of some tensors that are in the window.
    pub(super) fn common(&self, tensors: Range<usize>) -> Range<usize> {
        tensors.start.max(self.tensors.start)..tensors.end.min(self.tensors.end)
    }

    /// Whether a block of whole tensors has all its elements in this window or those before.
    pub(super) fn ends(&self, manifest: &Manifest, tensors: &Range<usize>) -> bool {
        let is_last = |part: &Range<u64>| part.end == manifest.tensors()[self.tensors.start].elements();
        tensors.end < self.tensors.end
            || tensors.end == self.tensors.end && self.part.as_ref().is_none_or(is_last)
    }

    /// The places of its blocks: first tensor and first element of a block.
    pub(super) fn places(&self) -> Range<(usize, u64)> {
        match &self.part {
            Some(part) => (self.tensors.start, part.start)..(self.tensors.start, part.end),
            None => (self.tensors.start, 0)..(self.tensors.end, 0),
        }
    }
}

/// Cuts a manifest into windows that only those blocks cross that are added by their positions.
pub(super) struct Windows {
    /// First tensor that is in no window, and the windows of the one before.
    next: usize,
    parts: std::vec::IntoIter<Window>,
    /// Whether a block joins a tensor to the one before.
    joined: Vec<bool>,
    /// Whether large tensors are cut.
    cuts: bool,
}

impl Windows {
    pub(super) fn new(sum: &Sum<'_>) -> Self {
        let mut joined = vec![false; sum.manifest().tensors().len()];
        sum.scopes().for_each(|tensors| joined[tensors].iter_mut().skip(1).for_each(|j| *j = true));
        Self { next: 0, parts: Vec::new().into_iter(), joined, cuts: true }
    }

    /// Cuts no tensor.
    pub(super) fn whole(sum: &Sum<'_>) -> Self {
        Self { cuts: false, ..Self::new(sum) }
    }

    pub(super) fn next(&mut self, sum: &Sum<'_>) -> Option<Window> {
        if let Some(part) = self.parts.next() {
            return Some(part);
        }
        let infos = sum.manifest().tensors();
        let (start, mut end, mut bytes) = (self.next, self.next, 0u64);
        while end < infos.len() {
            let more = self.joined[end + 1..].iter().take_while(|joined| **joined).count();
            let group = end..end + 1 + more;
            let sum = infos[group.clone()].iter().map(|info| info.bytes()).fold(bytes, u64::saturating_add);
            if sum > BATCH && end > start {
                break;
            }
            (end, bytes) = (group.end, sum);
        }
        self.next = end;
        match end - start {
            0 => None,
            1 if self.cuts && infos[start].elements() > BLOCK_LEN => {
                self.parts = parts(sum, start).into_iter();
                self.parts.next()
            }
            _ => Some(Window { tensors: start..end, part: None }),
        }
    }

    /// Skips the windows that are left.
    pub(super) fn end(&mut self) {
        (self.next, self.parts) = (self.joined.len(), Vec::new().into_iter());
    }
}

/// Cuts a large tensor where no block crosses, at multiples of the length of a block. Its elements are within
/// the limits: they bound the cuts.
fn parts(sum: &Sum<'_>, tensor: usize) -> Vec<Window> {
    let n = sum.manifest().tensors()[tensor].elements();
    let mut is_crossed = vec![false; in_memory(n.div_ceil(BLOCK_LEN))];
    for elements in sum.scopes_of(tensor) {
        let (first, last) = (elements.start / BLOCK_LEN + 1, elements.end.div_ceil(BLOCK_LEN));
        is_crossed[in_memory(first.min(last))..in_memory(last)].fill(true);
    }
    let inner =
        (1..).zip(&is_crossed[1..]).filter(|(_, is_crossed)| !**is_crossed).map(|(i, _)| i * BLOCK_LEN);
    let mut start = 0;
    let mut part = |end| {
        let part = Some(std::mem::replace(&mut start, end)..end);
        Window { tensors: tensor..tensor + 1, part }
    };
    inner.chain([n]).map(&mut part).collect()
}
