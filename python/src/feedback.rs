//! Senders' state: the residuals of error feedback, and Deep Gradient Compression.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gcodec::TensorBuf;
use gcodec::compress::{self, DgcOptions};
use pyo3::prelude::*;

use crate::encode::parse;
use crate::named::{Given, borrow, views};
use crate::tensor::Tensor;
use crate::{errors, threads};

/// Tensors from Python as the library's own.
pub(crate) fn owned(py: Python<'_>, given: Given<'_>) -> PyResult<Vec<(String, TensorBuf)>> {
    let mut named = borrow(given)?;
    let owned = threads::run(py, || {
        let views = views(&mut named)?;
        let copy = |(name, view): (&str, gcodec::TensorView<'_>)| {
            let tensor = TensorBuf::new(view.dtype(), view.shape().to_vec(), view.data().to_vec())?;
            Ok((name.to_owned(), tensor))
        };
        views.into_iter().map(copy).collect::<gcodec::Result<Vec<_>>>()
    })?;
    owned.map_err(|e| errors::raise(py, e, None))
}

pub(crate) fn given_out(tensors: Vec<(String, TensorBuf)>) -> Vec<(String, Tensor)> {
    tensors.into_iter().map(|(name, tensor)| (name, Tensor::of(tensor))).collect()
}

#[pyclass(frozen, module = "gcodec._native")]
#[derive(Default)]
pub(crate) struct Feedback(Mutex<gcodec::Feedback>);

impl Feedback {
    /// The residuals. A panic while they were held left them as they were: they change at the end of a call, at once.
    pub(crate) fn lock(&self) -> MutexGuard<'_, gcodec::Feedback> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Feedback {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn norm(&self, py: Python<'_>) -> f64 {
        py.detach(|| self.lock().norm())
    }

    fn reset(&self, py: Python<'_>) {
        py.detach(|| self.lock().reset());
    }

    fn save(&self, py: Python<'_>) -> Vec<(String, Tensor)> {
        given_out(py.detach(|| self.lock().save()))
    }

    fn load(&self, py: Python<'_>, tensors: Given<'_>) -> PyResult<()> {
        let loaded = gcodec::Feedback::load(owned(py, tensors)?).map_err(|e| errors::raise(py, e, None))?;
        py.detach(|| *self.lock() = loaded);
        Ok(())
    }
}

/// The attributes of a `gcodec.Dgc`.
#[derive(FromPyObject)]
pub(crate) struct Settings {
    density: f64,
    warm_up: Vec<f64>,
    warm_up_steps: u64,
    momentum: f32,
    clip: Option<f32>,
    workers: u64,
    /// What is sent of an element, and how positions are written, as a codec says it.
    codec: String,
}

impl Settings {
    fn options(self, py: Python<'_>) -> PyResult<DgcOptions> {
        let mut options = DgcOptions::default();
        if let gcodec::Codec::TopK { values, positions, .. } = parse(py, &self.codec)? {
            options.values = values;
            options.positions = positions;
        }
        options.density = self.density;
        options.warm_up = self.warm_up;
        options.warm_up_steps = self.warm_up_steps;
        options.momentum = self.momentum;
        options.clip = self.clip;
        options.workers = self.workers;
        Ok(options)
    }
}

#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct Dgc(Mutex<compress::Dgc>);

impl Dgc {
    pub(crate) fn lock(&self) -> MutexGuard<'_, compress::Dgc> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Dgc {
    #[new]
    fn new(py: Python<'_>, settings: Settings) -> PyResult<Self> {
        let dgc = compress::Dgc::new(settings.options(py)?).map_err(|e| errors::raise(py, e, None))?;
        Ok(Self(Mutex::new(dgc)))
    }

    fn codec(&self, py: Python<'_>) -> String {
        py.detach(|| self.lock().codec().to_string())
    }

    fn steps(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.lock().steps())
    }

    fn norm(&self, py: Python<'_>) -> f64 {
        py.detach(|| self.lock().residuals().norm())
    }

    fn save(&self, py: Python<'_>) -> Vec<(String, Tensor)> {
        given_out(py.detach(|| self.lock().save()))
    }

    fn load(&self, py: Python<'_>, settings: Settings, steps: u64, tensors: Given<'_>) -> PyResult<()> {
        let loaded = compress::Dgc::load(settings.options(py)?, steps, owned(py, tensors)?);
        let loaded = loaded.map_err(|e| errors::raise(py, e, None))?;
        py.detach(|| *self.lock() = loaded);
        Ok(())
    }
}
