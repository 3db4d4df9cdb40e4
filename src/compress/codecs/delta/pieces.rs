//! Pieces of tensors with their bases, compared in steps.

use crate::arch::masks::Ones;
use crate::arch::{self, Kernel};
use crate::block::{ROWS, STEP};
use crate::compress::extents::{Span, divide};
use crate::compress::options::Input;
use crate::digest::SumChange;
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{TensorInfo, sample};
use crate::limits::in_memory;
use crate::tensor::element::{Ranks, bits_at, bits_of};
use crate::tensor::{Dtype, TensorView};

/// Most elements of a tensor in one block, so that several threads write and read a large tensor. A multiple
/// of [`STEP`].
const PIECE: u64 = 16 << 20;

/// Most bytes of tensors that share a block and a digest, unless it is one tensor. Whoever reads one tensor
/// of them needs the base of all.
pub(in crate::compress) const RUN_BYTES: usize = 8 << 20;

/// Divides consecutive tensors of these numbers of elements into those that share a block, and a large tensor
/// into parts that have a block each.
pub(in crate::compress) fn division(dtype: Dtype, lens: &[u64]) -> Vec<Vec<Span>> {
    let bytes = |i: usize| dtype.bytes_for(lens[i]).unwrap_or(u64::MAX);
    let mut blocks = Vec::new();
    for together in divide(0..lens.len(), RUN_BYTES as u64, bytes) {
        if together.len() == 1 {
            let (input, len) = (together.start, lens[together.start]);
            let starts = (0..len.max(1)).step_by(in_memory(PIECE));
            blocks.extend(starts.map(|start| vec![Span { input, start, len: PIECE.min(len - start) }]));
        } else {
            blocks.push(together.map(|input| Span { input, start: 0, len: lens[input] }).collect());
        }
    }
    blocks
}

/// A tensor with its base, or consecutive elements of it.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    new: TensorView<'a>,
    base: TensorView<'a>,
    /// First element.
    start: u64,
    /// Number of elements.
    pub(super) len: u64,
}

impl<'a> Piece<'a> {
    pub(super) fn whole(input: &Input<'a>) -> Result<Self> {
        let Input { tensor, view: new, base, .. } = *input;
        let base = base.ok_or(Error::input(InputErrorKind::MissingBase).in_tensor(tensor))?;
        if new.dtype() != base.dtype() || new.shape() != base.shape() {
            let what = "shapes or element types of tensor and base";
            return Err(Error::input(InputErrorKind::Mismatch { what }).in_tensor(tensor));
        }
        Ok(Self { new, base, start: 0, len: new.elements() })
    }

    /// The elements of a span of the tensor.
    pub(super) fn part(&self, Span { start, len, .. }: Span) -> Self {
        Self { start, len, ..*self }
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.new.dtype()
    }

    /// Returns no change of the tensor's sum digest; `None` if `info` is of another tensor.
    pub(super) fn no_change(&self, info: &TensorInfo) -> Option<SumChange> {
        let is_own = info.dtype == self.dtype() && info.shape == self.new.shape();
        info.sum_change().ok().filter(|_| is_own)
    }

    /// Returns about the number of changed elements, by a sample of about this many KiB.
    pub(super) fn expected(&self, sampled: usize) -> u64 {
        let byte = |element| in_memory(self.dtype().bytes_for(element).unwrap_or(u64::MAX));
        let range = byte(self.start)..byte(self.start + self.len);
        let (changed, words) = sample(&self.base.data()[range.clone()], &self.new.data()[range], sampled);
        self.len.saturating_mul(changed as u64) / (words as u64).max(1)
    }
}

/// Consecutive elements before and after a change.
pub(super) struct Step<'a> {
    pub(super) dtype: Dtype,
    /// Number of elements before the step in all pieces.
    pub(super) position: u64,
    /// Number of its piece.
    pub(super) piece: usize,
    /// Number of its first element in the piece's tensor.
    pub(super) first: u64,
    pub(super) new: &'a [u8],
    pub(super) base: &'a [u8],
    /// Number of elements, at most [`STEP`].
    pub(super) len: usize,
    /// Bytes of the next step.
    pub(super) ahead: [&'a [u8]; 2],
}

/// Calls `f` with each step of consecutive pieces whose number `wanted` accepts.
pub(super) fn for_each_step<'a>(
    pieces: &[Piece<'a>],
    wanted: impl Fn(u64) -> bool,
    mut f: impl FnMut(Step<'a>),
) {
    let (mut position, mut number) = (0, 0);
    for (index, piece) in pieces.iter().enumerate() {
        let dtype = piece.dtype();
        let byte = |element| in_memory(dtype.bytes_for(element).unwrap_or(u64::MAX));
        let mut at = 0;
        while at < piece.len {
            let len = in_memory(piece.len - at).min(STEP);
            if wanted(number) {
                let range = byte(piece.start + at)..byte(piece.start + at + len as u64);
                let ahead = range.end..(range.end + range.len()).min(piece.new.data().len());
                let ahead = [&piece.new.data()[ahead.clone()], &piece.base.data()[ahead]];
                let (new, base) = (&piece.new.data()[range.clone()], &piece.base.data()[range]);
                let (position, first) = (position + at, piece.start + at);
                f(Step { dtype, position, piece: index, first, new, base, len, ahead });
            }
            number += 1;
            at += len as u64;
        }
        position += piece.len;
    }
}

/// Memory for the changed elements of a step.
pub(super) struct Changed {
    masks: [u64; ROWS],
    ones: Ones,
}

impl Changed {
    pub(super) fn new() -> Self {
        Self { masks: [0; ROWS], ones: [0; _] }
    }
}

impl Step<'_> {
    /// Finds the elements that change, and returns their numbers in ascending order.
    pub(super) fn changed<'c>(&self, changed: &'c mut Changed) -> &'c [u16] {
        if self.new == self.base {
            return &[];
        }
        let Changed { masks, ones } = changed;
        if self.dtype.bits() == 16 {
            let rows = self.len.div_ceil(64);
            masks[rows..].fill(0);
            let [new, base] = [self.new, self.base].map(|bytes| bytes.as_chunks().0);
            arch::masks::unequal(arch::widest(), new, base, &mut masks[..rows]);
            return arch::masks::ones(arch::widest(), masks, ones);
        }
        let mut flags = [0; STEP];
        let used = &mut flags[..self.len];
        match self.dtype.bits() {
            8 => differ::<1>(self.new, self.base, used),
            32 => differ::<4>(self.new, self.base, used),
            64 => differ::<8>(self.new, self.base, used),
            _ => used.iter_mut().zip(0..).for_each(|(flag, at)| {
                *flag = u8::from(bits_at(self.dtype, self.new, at) != bits_at(self.dtype, self.base, at));
            }),
        }
        arch::masks::nonzero(arch::widest(), &flags, masks);
        arch::masks::ones(arch::widest(), masks, ones)
    }

    /// Adds the changes of these elements to the sum of those of its piece.
    pub(super) fn note(&self, changed: &[u16], sum: &mut SumChange) {
        sum.add_elements(self.first, changed, self.base, self.new);
    }

    /// Appends the changes of these elements in units of the last place.
    pub(super) fn append_diffs_at(&self, changed: &[u16], diffs: &mut Vec<i64>) {
        match self.dtype.bits() {
            16 => self.append_diffs_at_of::<2>(changed, diffs),
            32 => self.append_diffs_at_of::<4>(changed, diffs),
            _ => diffs.extend(changed.iter().map(|&at| self.diff(at.into()))),
        }
    }

    fn append_diffs_at_of<const SIZE: usize>(&self, changed: &[u16], diffs: &mut Vec<i64>) {
        let [new, base] = [self.new, self.base].map(|bytes| bytes.as_chunks::<SIZE>().0);
        let ranks = Ranks::new(self.dtype);
        let bits = |elements: &[[u8; SIZE]], at: &u16| bits_of(&elements[usize::from(*at)]);
        diffs.extend(changed.iter().map(|at| ranks.diff(bits(base, at), bits(new, at))));
    }

    /// The change of an element in units of the last place.
    pub(super) fn diff(&self, at: usize) -> i64 {
        let bits = |data| bits_at(self.dtype, data, at as u64).unwrap_or(0);
        Ranks::new(self.dtype).diff(bits(self.base), bits(self.new))
    }

    /// Appends the changes of all elements in units of the last place.
    pub(super) fn append_diffs(&self, diffs: &mut Vec<i64>) {
        match self.dtype.bits() {
            16 => self.append_diffs_of::<2>(diffs),
            32 => self.append_diffs_of::<4>(diffs),
            _ => diffs.extend((0..self.len).map(|at| self.diff(at))),
        }
    }

    fn append_diffs_of<const SIZE: usize>(&self, diffs: &mut Vec<i64>) {
        let [new, base] = [self.new, self.base].map(|bytes| bytes.as_chunks::<SIZE>().0);
        arch::run(AppendDiffs { ranks: Ranks::new(self.dtype), new, base, diffs });
    }

    /// The bits of a new element.
    pub(super) fn new_bits(&self, at: usize) -> u64 {
        bits_at(self.dtype, self.new, at as u64).unwrap_or(0)
    }
}

/// Appends the change of each element.
struct AppendDiffs<'a, const SIZE: usize> {
    ranks: Ranks,
    new: &'a [[u8; SIZE]],
    base: &'a [[u8; SIZE]],
    diffs: &'a mut Vec<i64>,
}

impl<const SIZE: usize> Kernel for AppendDiffs<'_, SIZE> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { ranks, new, base, diffs } = self;
        diffs.extend(new.iter().zip(base).map(|(new, base)| ranks.diff(bits_of(base), bits_of(new))));
    }
}

fn differ<const SIZE: usize>(new: &[u8], base: &[u8], flags: &mut [u8]) {
    arch::run(Differ { new: new.as_chunks::<SIZE>().0, base: base.as_chunks::<SIZE>().0, flags });
}

/// Sets the flag of each element that differs.
struct Differ<'a, const SIZE: usize> {
    new: &'a [[u8; SIZE]],
    base: &'a [[u8; SIZE]],
    flags: &'a mut [u8],
}

impl<const SIZE: usize> Kernel for Differ<'_, SIZE> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for ((flag, new), base) in self.flags.iter_mut().zip(self.new).zip(self.base) {
            *flag = u8::from(new != base);
        }
    }
}
