//! Buffers of tensors that are being assembled.

use rayon::prelude::*;

use crate::arch::storage::Storage;
use crate::block::{RawBlock, Scope, Target};
use crate::frame::UpdatePart;
use crate::limits::in_memory;
use crate::tensor::Dtype;

/// Elements of a tensor that is being assembled.
pub(super) struct Buffer<'b> {
    pub(super) data: Storage,
    pub(super) dtype: Dtype,
    /// Elements of the base, of the same length as `data`; `None` for zeros.
    base: Option<&'b [u8]>,
    /// Number of leading elements that are initialised; the others hold arbitrary values.
    pub(super) ready: u64,
}

impl<'b> Buffer<'b> {
    /// Returns a buffer of which the first `ready` elements are zeros, and the others anything.
    pub(super) fn new(data: Storage, dtype: Dtype, ready: u64) -> Self {
        let mut buffer = Self { data, dtype, base: None, ready };
        if dtype.bits() < 8 {
            // Parts may begin inside a byte.
            buffer.prepare(u64::MAX, u64::MAX, false);
        }
        buffer
    }

    /// Initialises the elements before `end` to those of the base or to zero, except those from `start` on if
    /// the caller overwrites them.
    pub(super) fn prepare(&mut self, start: u64, end: u64, overwrite: bool) {
        let rest = self.ready..if overwrite { start } else { end };
        if rest.start < rest.end {
            let bytes = self.byte(rest.start)..self.byte(rest.end);
            match self.base {
                Some(base) => copy(&base[bytes.clone()], &mut self.data[bytes]),
                None => self.data[bytes].fill(0),
            }
        }
        self.ready = self.ready.max(end);
    }

    /// Begins anew with the elements of a base.
    pub(super) fn begin(&mut self, base: &'b [u8]) {
        (self.base, self.ready) = (Some(base), 0);
        if self.dtype.bits() < 8 {
            // Parts may begin inside a byte.
            self.prepare(u64::MAX, u64::MAX, false);
        }
    }

    /// Returns the first byte of an element of a type of whole bytes, or the end of the data.
    fn byte(&self, element: u64) -> usize {
        self.dtype.bytes_for(element).map_or(self.data.len(), in_memory).min(self.data.len())
    }

    /// Returns `len` elements of the base.
    pub(super) fn base_of(&self, start: u64, len: u64) -> Option<&'b [u8]> {
        Some(&self.base?[self.byte(start)..self.byte(start + len)])
    }
}

/// The elements of a tensor that no block has taken.
struct Rest<'t> {
    /// First element.
    from: u64,
    data: &'t mut [u8],
}

impl<'t> Rest<'t> {
    /// Takes elements from `start` >= `from` on, of a type of whole bytes.
    fn take(&mut self, dtype: Dtype, start: u64, len: u64) -> Target<'t> {
        let bytes = |elements| dtype.bytes_for(elements).map_or(usize::MAX, in_memory);
        let (_, data) = std::mem::take(&mut self.data).split_at_mut(bytes(start - self.from));
        let (data, after) = data.split_at_mut(bytes(len));
        *self = Self { from: start + len, data: after };
        Target { data, start: 0, len }
    }
}

/// Returns the elements of each of these blocks, which ascend and are disjoint, in tensors of whole bytes
/// that are all assembled.
pub(super) fn places<'t>(
    tensors: &'t mut [Option<Buffer<'_>>],
    part: &UpdatePart<'_>,
    batch: &[usize],
) -> Vec<Vec<Target<'t>>> {
    let scopes = || batch.iter().map(|&i| part.blocks[i].scope);
    let first = scopes().map(|scope| scope.first()).min().unwrap_or(0);
    let end = scopes().map(|scope| scope.first() + scope.tensors()).max().unwrap_or(0);
    let buffers = tensors[in_memory(first)..in_memory(end)].iter_mut();
    let data = |buffer: &'t mut Option<Buffer<'_>>| buffer.as_mut().map_or(&mut [][..], |b| &mut *b.data);
    let mut rests: Vec<Rest<'t>> = buffers.map(|buffer| Rest { from: 0, data: data(buffer) }).collect();
    let block = |&i: &usize| {
        let raw = &part.blocks[i];
        let (number, start, _) = span(raw);
        let rests = rests[number - in_memory(first)..].iter_mut().zip(&raw.space.lens);
        rests.map(|(rest, &len)| rest.take(raw.space.dtype, start, len)).collect()
    };
    batch.iter().map(block).collect()
}

/// Returns the first tensor of a block's scope, and the first element and number of elements of the scope.
pub(crate) fn span(raw: &RawBlock<'_>) -> (usize, u64, u64) {
    let start = match raw.scope {
        Scope::Range { start, .. } => start,
        _ => 0,
    };
    (in_memory(raw.scope.first()), start, raw.space.len())
}

/// Copies the bytes of a tensor, on several threads if there are many.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    /// Bytes that a thread copies at once.
    const SHARE: usize = 1 << 20;
    to.par_chunks_mut(SHARE).zip(from.par_chunks(SHARE)).for_each(|(to, from)| to.copy_from_slice(from));
}
