//! Tensors as selectors and quantisers read them: 32-bit floats plus the residual, in one pass, run by run.
//! The floats of a run stay in the first-level cache.

use std::ops::{Deref, Range};

use rayon::prelude::*;

use super::feedback::Feedback;
use super::options::{Input, NonFinite, Options};
use super::state::CodecState;
pub(super) use super::sums::{CHUNK, RUN};
use crate::arch::floats::floats;
use crate::arch::pages;
use crate::arch::prefetch::prefetch;
use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::Dtype;
use crate::tensor::element::{decode_f32s, max_finite, round_f32s};

/// The input of a codec for one tensor.
pub(super) struct Source<'a> {
    pub(super) tensor: u64,
    pub(super) dtype: Dtype,
    pub(super) len: usize,
    data: &'a [u8],
    residual: Option<&'a [f32]>,
    zero_non_finite: bool,
    /// With feedback: after a scan the sum of tensor and residual, at the end the new residual.
    pub(super) residual_after: Option<Vec<f32>>,
    /// The state that the codec keeps for the tensor. It goes back to the feedback with the residual.
    pub(super) state: CodecState,
}

impl<'a> Source<'a> {
    /// Returns the input of a codec that is `lossy` or not.
    pub(super) fn new(
        input: &Input<'a>,
        lossy: bool,
        options: &Options,
        feedback: Option<&'a Feedback>,
    ) -> Result<Self> {
        let view = input.view;
        if lossy && !view.dtype().is_float() {
            return Err(Error::input(InputErrorKind::WrongDtype { what: "a lossy codec" }));
        }
        let len = usize::try_from(view.elements()).map_err(|_| Error::too_large("tensor"))?;
        let residual = match feedback.filter(|_| lossy) {
            Some(feedback) => feedback.of(input.name, view.shape())?,
            None => None,
        };
        Ok(Self {
            tensor: input.tensor,
            dtype: view.dtype(),
            len,
            data: view.data(),
            residual,
            zero_non_finite: options.non_finite == NonFinite::Zero,
            residual_after: (feedback.is_some() && lossy).then(|| pages::zeros(len)),
            state: feedback.filter(|_| lossy).map(|f| f.state(input.name)).unwrap_or_default(),
        })
    }

    /// Returns the elements where they are, if they are 32-bit floats that [`Self::read`] would not change.
    fn floats(&self) -> Option<&'a [f32]> {
        let is_plain = self.dtype == Dtype::F32 && self.residual.is_none() && !self.zero_non_finite;
        floats(self.data.as_chunks().0).filter(|_| is_plain)
    }

    /// Returns a function from the index of an element to the element.
    pub(super) fn elements(&self) -> impl Fn(usize) -> f32 {
        let floats = self.floats();
        move |index| match floats {
            Some(floats) => floats[index],
            None => {
                let mut x = [0.0];
                self.read(index, &mut x);
                x[0]
            }
        }
    }

    /// Reads the elements from `start` on into `out`.
    pub(super) fn read(&self, start: usize, out: &mut [f32]) {
        let read = decode_f32s(self.dtype, self.data, start as u64, out);
        debug_assert!(read.is_ok(), "the type is a float and the range lies inside the tensor");
        if let Some(residual) = self.residual {
            for (x, r) in out.iter_mut().zip(&residual[start..]) {
                *x += r;
            }
            // A sum beyond the range of a narrow type cannot be sent, and is not worth keeping.
            if !matches!(self.dtype, Dtype::F32 | Dtype::F64) {
                let max = max_finite(self.dtype);
                for x in out.iter_mut().filter(|x| x.is_finite()) {
                    *x = x.clamp(-max, max);
                }
            }
        }
        if self.zero_non_finite {
            // A finite number beyond f32 stays infinite here, so that it is refused: 0 is no value of it.
            let is_wide = self.dtype == Dtype::F64;
            for (i, x) in out.iter_mut().enumerate() {
                *x = if x.is_finite() || (is_wide && self.beyond(start + i).is_some()) { *x } else { 0.0 };
            }
        }
    }

    /// Returns an element of binary64 that is finite, and infinite as f32.
    fn beyond(&self, index: usize) -> Option<f64> {
        let bytes = self.data.as_chunks().0.get(index).filter(|_| self.dtype == Dtype::F64)?;
        let value = f64::from_le_bytes(*bytes);
        (value.is_finite() && (value as f32).is_infinite()).then_some(value)
    }

    /// Asks for the bytes of the run that begins at `start`.
    pub(super) fn prefetch(&self, start: usize) {
        let bytes = |elements: usize| elements * self.dtype.bits() as usize / 8;
        let end = bytes(start + RUN).min(self.data.len());
        prefetch(self.data.get(bytes(start)..end).unwrap_or_default());
    }

    /// Returns all elements: with feedback in [`Self::residual_after`], otherwise in `scratch` or where they
    /// are.
    pub(super) fn read_all<'s>(&'s mut self, scratch: &'s mut Vec<f32>) -> &'s [f32] {
        let mut after = self.residual_after.take();
        match (&mut after, self.floats()) {
            (Some(after), _) => self.read(0, after),
            (None, Some(floats)) => return floats,
            (None, None) => {
                scratch.resize(self.len, 0.0);
                self.read(0, scratch);
            }
        }
        self.residual_after = after;
        self.residual_after.as_deref().unwrap_or(scratch)
    }

    /// Visits the elements of `range` in chunks of `step`, in parallel. Returns the results in the order of
    /// the chunks. With feedback the sums of each chunk stay in [`Self::residual_after`].
    pub(super) fn scan<T: Send>(
        &mut self,
        range: Range<usize>,
        step: usize,
        visit: impl Fn(Chunk<'_, '_>) -> T + Sync,
    ) -> Vec<T> {
        let places = vec![(); range.len().div_ceil(step)];
        self.scan_into(range, step, places, |chunk, ()| visit(chunk))
    }

    /// Visits like [`Self::scan`], with one of `places` for the output of each chunk.
    pub(super) fn scan_into<P: Send, T: Send>(
        &mut self,
        range: Range<usize>,
        step: usize,
        places: Vec<P>,
        visit: impl Fn(Chunk<'_, '_>, P) -> T + Sync,
    ) -> Vec<T> {
        let mut after = self.residual_after.take();
        let shared: &Self = self;
        let chunk = |i: usize, after| {
            let start = range.start + i * step;
            Chunk { source: shared, start, len: step.min(range.end - start), after }
        };
        let places = places.into_par_iter().enumerate();
        let results = match &mut after {
            Some(after) => places
                .zip(after[range.clone()].par_chunks_mut(step))
                .map(|((i, place), after)| visit(chunk(i, Some(after)), place))
                .collect(),
            None => places.map(|(i, place)| visit(chunk(i, None), place)).collect(),
        };
        self.residual_after = after;
        results
    }

    /// Subtracts the values that the receiver gets at `positions` from the residual.
    pub(super) fn subtract(&mut self, positions: &[u64], decoded: &[f32]) -> Result<()> {
        if let Some(after) = &mut self.residual_after {
            let mut decoded = decoded.to_vec();
            round_f32s(self.dtype, &mut decoded)?;
            for (&position, x) in positions.iter().zip(decoded) {
                after[position as usize] -= x;
            }
        }
        Ok(())
    }

    /// Returns the error for the first element that is NaN or infinite as f32.
    pub(super) fn non_finite(&self) -> Error {
        let mut run = [0.0; RUN];
        for start in (0..self.len).step_by(RUN) {
            let run = &mut run[..RUN.min(self.len - start)];
            self.read(start, run);
            if let Some(at) = run.iter().position(|x| !x.is_finite()) {
                let index = (start + at) as u64;
                let kind = match self.beyond(start + at) {
                    Some(value) => InputErrorKind::BeyondF32 { index, bits: value.to_bits() },
                    None => InputErrorKind::NonFinite { index },
                };
                return Error::input(kind).in_tensor(self.tensor);
            }
        }
        Error::input(InputErrorKind::NonFinite { index: 0 }).in_tensor(self.tensor)
    }
}

/// Whether no value is NaN or infinite.
pub(super) fn all_finite(values: &[f32]) -> bool {
    // One more in the exponent carries into the sign where all of its bits are set. Integers, and no end
    // before the last one: processors then look at many at a time.
    let carry = |x: &f32| x.abs().to_bits() + (1 << 23);
    values.iter().fold(0, |any, x| any | carry(x)) >> 31 == 0
}

/// Returns the elements of an f32 tensor without residual. NaN and infinity are handled as `options` say.
pub(super) fn checked_f32s(input: &Input<'_>, options: &Options, what: &'static str) -> Result<Vec<f32>> {
    let in_tensor = |e: Error| e.in_tensor(input.tensor);
    if input.view.dtype() != Dtype::F32 {
        return Err(in_tensor(Error::input(InputErrorKind::WrongDtype { what })));
    }
    let mut values = vec![0.0; input.view.elements() as usize];
    decode_f32s(Dtype::F32, input.view.data(), 0, &mut values).map_err(in_tensor)?;
    for (index, x) in values.iter_mut().enumerate().filter(|(_, x)| !x.is_finite()) {
        match options.non_finite {
            NonFinite::Zero => *x = 0.0,
            NonFinite::Reject => {
                return Err(in_tensor(Error::input(InputErrorKind::NonFinite { index: index as u64 })));
            }
        }
    }
    Ok(values)
}

/// Consecutive elements of a tensor, for one call of a visitor.
pub(super) struct Chunk<'s, 'a> {
    pub(super) source: &'s Source<'a>,
    pub(super) start: usize,
    pub(super) len: usize,
    after: Option<&'s mut [f32]>,
}

impl Chunk<'_, '_> {
    /// Calls `visit` with the index of each run's first element in the tensor, and with the run.
    pub(super) fn runs(self, mut visit: impl FnMut(usize, Piece<'_>)) {
        self.pieces(RUN, |start, run| {
            visit(start, run);
            true
        });
    }

    /// As [`Self::runs`], with longer runs where nothing has to be read into a buffer.
    pub(super) fn parts(self, mut visit: impl FnMut(usize, Piece<'_>)) {
        let step = if self.after.is_none() && self.source.floats().is_some() { self.len } else { RUN };
        self.pieces(step, |start, part| {
            visit(start, part);
            true
        });
    }

    /// Calls `visit` with the index of each piece's first element in the tensor, and with the piece: `step`
    /// elements, or fewer at the end. Stops where `visit` returns false, and returns whether it never did.
    pub(super) fn pieces(self, step: usize, mut visit: impl FnMut(usize, Piece<'_>) -> bool) -> bool {
        let Self { source, start, len, after } = self;
        let pieces = || (0..len).step_by(step).map(|at| (at, step.min(len - at)));
        if let Some(after) = after {
            return pieces().all(|(at, len)| {
                let piece = &mut after[at..at + len];
                source.read(start + at, piece);
                source.prefetch(start + at + len);
                visit(start + at, Piece::Kept(piece))
            });
        }
        if let Some(floats) = source.floats() {
            let floats = &floats[start..start + len];
            return pieces().all(|(at, len)| visit(start + at, Piece::Read(&floats[at..at + len])));
        }
        let mut scratch = vec![0.0; step.min(len)];
        pieces().all(|(at, len)| {
            let piece = &mut scratch[..len];
            source.read(start + at, piece);
            // The beginning of the next piece arrives while this one is visited; the rest follows from it.
            source.prefetch(start + at + len);
            visit(start + at, Piece::Read(piece))
        })
    }

    /// Calls `visit` with the index of the chunk's first element in the tensor, and with all elements.
    pub(super) fn whole<T>(self, visit: impl FnOnce(usize, &[f32]) -> T) -> T {
        let Self { source, start, len, after } = self;
        let mut scratch = Vec::new();
        let values = match (after, source.floats()) {
            (None, Some(floats)) => &floats[start..start + len],
            (after, _) => {
                let values = after.unwrap_or_else(|| {
                    scratch.resize(len, 0.0);
                    &mut scratch
                });
                source.read(start, values);
                &*values
            }
        };
        visit(start, values)
    }
}

/// Consecutive elements of a chunk, for a visitor.
pub(super) enum Piece<'r> {
    Read(&'r [f32]),
    /// With feedback: what the visitor leaves there becomes the residual.
    Kept(&'r mut [f32]),
}

impl Piece<'_> {
    /// Returns the elements if the visitor's changes to them become the residual.
    pub(super) fn kept(&mut self) -> Option<&mut [f32]> {
        match self {
            Self::Read(_) => None,
            Self::Kept(elements) => Some(elements),
        }
    }
}

impl Deref for Piece<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Read(elements) => elements,
            Self::Kept(elements) => elements,
        }
    }
}
