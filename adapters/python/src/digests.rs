//! Digests that a sender of deltas keeps from one update to the next, and sum digests of tensors.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gcodec::Dtype;
use gcodec::digest::SumDigest;
use pyo3::prelude::*;

use crate::errors;
use crate::named::{Given, borrow, views};
use crate::threads;

/// Digests of the tensors of the last update, by their numbers. They are the bases of the next.
#[pyclass(frozen, module = "gcodec._native")]
#[derive(Default)]
pub(crate) struct Digests(Mutex<gcodec::compress::Digests>);

impl Digests {
    /// Returns a copy, which an update changes and [`Self::keep`] takes if it succeeds.
    pub(crate) fn copied(&self) -> gcodec::compress::Digests {
        self.lock().clone()
    }

    pub(crate) fn keep(&self, digests: gcodec::compress::Digests) {
        *self.lock() = digests;
    }

    fn lock(&self) -> MutexGuard<'_, gcodec::compress::Digests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Digests {
    #[new]
    fn new() -> Self {
        Self::default()
    }
}

/// The four numbers of a sum digest.
pub(crate) type Lanes = (u32, u32, u32, u32);

pub(crate) fn lanes(sum: SumDigest) -> Lanes {
    let bytes = sum.to_bytes();
    let [a, b, c, d] =
        std::array::from_fn(|lane| u32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * lane + byte])));
    (a, b, c, d)
}

/// Returns the element type of a part of a tensor, which has the whole tensor's name, and its share in a sum
/// over several tensors. `shape`: of the whole tensor; `offsets`: first indices of the part.
#[pyfunction]
pub(crate) fn sum_share<'py>(
    py: Python<'py>,
    part: (String, Bound<'py, PyAny>, Option<String>),
    shape: Vec<u64>,
    offsets: Vec<u64>,
) -> PyResult<(&'static str, Lanes)> {
    let given: Given<'py> = vec![part];
    let mut named = borrow(given)?;
    let found = threads::run(py, || {
        let views = views(&mut named)?;
        let of = |(name, view): (&str, gcodec::TensorView<'_>)| {
            let sum = SumDigest::of_shard(view, &offsets)?;
            Ok((view.dtype().name(), lanes(sum.weighted(name, view.dtype(), &shape))))
        };
        views.into_iter().map(of).next().unwrap_or(Ok(("", (0, 0, 0, 0))))
    })?;
    found.map_err(|e| errors::raise(py, e, None))
}

/// Returns the weight of a tensor in a sum over several tensors.
#[pyfunction]
pub(crate) fn sum_weight(py: Python<'_>, name: &str, dtype: &str, shape: Vec<u64>) -> PyResult<Lanes> {
    let dtype = Dtype::from_name(dtype)
        .ok_or_else(|| errors::input(py, &format!("gcodec has no element type {dtype:?}")))?;
    let one = SumDigest::from_bytes(std::array::from_fn(|byte| u8::from(byte % 4 == 0)));
    Ok(lanes(one.unwrap_or_default().weighted(name, dtype, &shape)))
}
