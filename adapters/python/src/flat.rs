//! Tensors of one flat buffer, such as the gradients in a bucket of DistributedDataParallel: borrowed, and
//! replaced by their means, at once, because a call of Python for each takes longer than its bytes.

use gcodec::error::InputErrorKind;
use gcodec::frame::TensorInfo;
use gcodec::reduce::Precision;
use gcodec::{Dtype, Limits};
use pyo3::prelude::*;

use crate::decode::Bytes;
use crate::dlpack::{Borrowed, Writable, is_row_major};
use crate::limits::PyLimits;
use crate::named::Named;
use crate::reduce::{Fault, broken, gathered, is_finite};
use crate::{errors, threads};

const SHORT: &str = "the buffer is shorter than its tensors, or not row-major";

/// Names, shapes and strides of the tensors in a flat buffer, and their places, in elements.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct Layout {
    places: Vec<Place>,
}

struct Place {
    name: String,
    shape: Vec<u64>,
    strides: Vec<i64>,
    start: u64,
    row_major: bool,
}

#[pymethods]
impl Layout {
    /// `places`: name, shape, strides in elements and first element of each tensor.
    #[new]
    fn new(places: Vec<(String, Vec<u64>, Vec<i64>, u64)>) -> Self {
        let place = |(name, shape, strides, start): (_, Vec<u64>, Vec<i64>, _)| {
            let row_major = is_row_major(&shape, &strides);
            Place { name, shape, strides, start, row_major }
        };
        Self { places: places.into_iter().map(place).collect() }
    }

    /// Replaces the elements of the buffer `flat` by the mean of the last updates of whole streams. Returns
    /// whether it is finite. After an error the elements are arbitrary.
    fn mean(
        &self,
        py: Python<'_>,
        flat: &Bound<'_, PyAny>,
        streams: Vec<Bound<'_, PyAny>>,
        limits: PyLimits,
    ) -> PyResult<bool> {
        let streams = streams.iter().map(Bytes::new).collect::<PyResult<Vec<_>>>()?;
        let (mut memory, limits) = (Writable::new(flat)?, limits.get());
        let mean = threads::run(py, || {
            let streams: Vec<&[u8]> = streams.iter().map(Bytes::as_slice).collect();
            let dtype = memory.dtype();
            self.put_mean(&streams, &limits, dtype, memory.bytes())
        })?;
        mean.map_err(|(stream, e)| errors::raise_in(py, e, stream))
    }
}

impl Layout {
    /// Borrows the tensors of the buffer `flat`.
    pub(crate) fn borrow(&self, flat: &Bound<'_, PyAny>) -> PyResult<Vec<Named>> {
        let whole = Borrowed::new(flat, None)?;
        let named = self.places.iter().map(|place| {
            let part = whole.part(place.start, &place.shape, &place.strides);
            Some(Named { name: place.name.clone(), tensor: part? })
        });
        named.collect::<Option<_>>().ok_or_else(|| errors::input(flat.py(), SHORT))
    }

    fn put_mean(
        &self,
        streams: &[&[u8]],
        limits: &Limits,
        dtype: Dtype,
        flat: &mut [u8],
    ) -> Result<bool, Fault> {
        let weights = vec![1.0; streams.len()];
        let Some((sum, manifest)) = gathered(streams, &weights, Precision::F32, false, limits)? else {
            return Err(refused("there is no update"));
        };
        let is_at = |(place, info): (&Place, &TensorInfo)| {
            place.name == info.name && place.shape == info.shape && dtype == info.dtype
        };
        let infos = manifest.tensors();
        if infos.len() != self.places.len() || !self.places.iter().zip(infos).all(is_at) {
            return Err(refused("the updates have other tensors than the buffer"));
        }
        let fault = |e| broken(streams, limits).unwrap_or((None, e));
        let mut pieces = sum.into_pieces(true).map_err(fault)?;
        let mut finite = true;
        while let Some(piece) = pieces.next() {
            let (number, start) = piece.as_ref().map_or((0, 0), |piece| (piece.tensor, piece.start));
            let elements = piece.and_then(|piece| piece.into_elements()).map_err(fault)?;
            let place = &self.places[number as usize];
            finite &= is_finite(dtype, &elements);
            let put = place.put(flat, dtype.bits() as usize / 8, start, &elements);
            put.ok_or_else(|| refused("the buffer is shorter than its tensors"))?;
            pieces.reuse(elements);
        }
        Ok(finite)
    }
}

fn refused(why: &'static str) -> Fault {
    (None, InputErrorKind::CannotReduce { why, sender: None }.into())
}

impl Place {
    /// Writes the elements from `start` on, of so many bytes each, to the buffer that has the tensor; `None`
    /// if it is too short.
    fn put(&self, flat: &mut [u8], width: usize, start: u64, elements: &[u8]) -> Option<()> {
        let byte = |element: u64| usize::try_from(element).ok()?.checked_mul(width);
        if self.row_major {
            let out = flat.get_mut(byte(self.start.checked_add(start)?)?..)?;
            out.get_mut(..elements.len())?.copy_from_slice(elements);
            return Some(());
        }
        for (number, element) in (start..).zip(elements.chunks_exact(width)) {
            let (mut at, mut rest) = (self.start, number);
            for (&n, &stride) in self.shape.iter().zip(&self.strides).rev() {
                at = at.checked_add(u64::try_from(stride).ok()?.checked_mul(rest % n)?)?;
                rest /= n;
            }
            flat.get_mut(byte(at)?..)?.get_mut(..width)?.copy_from_slice(element);
        }
        Some(())
    }
}
