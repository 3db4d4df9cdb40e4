//! Digests that a sender of deltas keeps from one update to the next.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

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
