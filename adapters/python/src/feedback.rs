//! Sender state: the residuals of error feedback, and Deep Gradient Compression.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gcodec::compress::codecs::TopK;
use gcodec::compress::senders::DgcOptions;
use gcodec::internal::device::split_state_name;
use gcodec::{TensorBuf, compress};
use pyo3::prelude::*;

use crate::cuda::{self, Compressors};
use crate::encode::parse;
use crate::errors::Failure;
use crate::named::{Given, borrow, views};
use crate::tensor::Tensor;
use crate::{errors, threads};

/// Copies tensors from Python.
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

/// Returns named tensors for Python.
pub(crate) fn given_out(tensors: Vec<(String, TensorBuf)>) -> Vec<(String, Tensor)> {
    tensors.into_iter().map(|(name, tensor)| (name, Tensor::of(tensor))).collect()
}

/// Residuals on the host, and on the devices where their tensors were compressed.
#[derive(Default)]
pub(crate) struct Residuals {
    pub(crate) host: gcodec::compress::Feedback,
    pub(crate) compressors: Compressors,
    /// The device of each residual that is on one.
    homes: BTreeMap<String, i32>,
    /// The devices whose residuals the open update has changed.
    changed: Vec<i32>,
}

/// Returns the tensor to which a saved entry belongs; `None` for the state of a codec that does not run on
/// devices.
fn owner<'a>(entry: &'a str, all: &gcodec::compress::Feedback) -> Option<&'a str> {
    if all.get(entry).is_some() {
        return Some(entry);
    }
    let (tensor, codec) = split_state_name(entry)?;
    gcodec_cuda::takes(&codec).then_some(tensor)
}

impl Residuals {
    /// Returns all residuals and codec states, as they would be if all tensors had been on the host.
    fn all(&mut self) -> Result<gcodec::compress::Feedback, Failure> {
        if self.homes.is_empty() {
            return Ok(self.host.clone());
        }
        let mut tensors = self.host.save();
        for compressor in self.compressors.values_mut() {
            tensors.extend(compressor.residuals()?.save());
        }
        Ok(gcodec::compress::Feedback::load(tensors)?)
    }

    /// Moves each residual to the place of its tensor. Residuals of other tensors stay. An error leaves all
    /// in place.
    ///
    /// `places`: the device of each tensor in an update; `None` is the host.
    pub(crate) fn settle(&mut self, places: &[(&str, Option<i32>)]) -> Result<(), Failure> {
        let away = |&(name, place): &(&str, Option<i32>)| match self.homes.get(name) {
            Some(home) => place != Some(*home),
            None => place.is_some() && self.host.get(name).is_some(),
        };
        if !places.iter().any(away) {
            return Ok(());
        }
        let all = self.all()?;
        let places: BTreeMap<&str, Option<i32>> = places.iter().copied().collect();
        let home_of = |name: &str| places.get(name).copied().unwrap_or_else(|| self.homes.get(name).copied());
        let (mut on_host, mut on_devices, mut homes) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for (name, tensor) in all.save() {
            if all.get(&name).is_some()
                && let Some(home) = home_of(&name)
            {
                homes.insert(name.clone(), home);
            }
            match owner(&name, &all).and_then(home_of) {
                None => on_host.push((name, tensor)),
                Some(home) => on_devices.entry(home).or_insert_with(Vec::new).push((name, tensor)),
            }
        }
        let host = gcodec::compress::Feedback::load(on_host)?;
        let compressors = cuda::with_residuals(on_devices)?;
        *self = Self { host, compressors, homes, changed: Vec::new() };
        Ok(())
    }

    /// Begins an update that [`Self::undo`] can take back.
    pub(crate) fn begin(&mut self) {
        self.host.begin();
        self.changed.clear();
    }

    /// Accepts the last update.
    fn commit(&mut self) {
        self.host.commit();
        self.changed.clear();
    }

    /// Restores the residuals from before [`Self::begin`].
    fn undo(&mut self) {
        self.host.undo();
        cuda::undo(&mut self.compressors, &self.changed);
        self.changed.clear();
    }

    /// Records an update: the residuals of these tensors are on devices, and these devices changed.
    pub(crate) fn note<'a>(&mut self, places: impl Iterator<Item = (&'a str, i32)>, devices: Vec<i32>) {
        self.changed = devices;
        for (name, device) in places {
            if self.homes.get(name) != Some(&device) {
                self.homes.insert(name.to_owned(), device);
            }
        }
    }
}

/// The residuals of a `gcodec.Feedback`.
#[pyclass(frozen, module = "gcodec._native")]
#[derive(Default)]
pub(crate) struct Feedback(Mutex<Residuals>);

impl Feedback {
    /// Locks the residuals. A panic during a call leaves them unchanged, because they change in one step at
    /// its end.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Residuals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Feedback {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn norm(&self, py: Python<'_>) -> PyResult<f64> {
        let norm = py.detach(|| {
            let mut kept = self.lock();
            if kept.homes.is_empty() { Ok(kept.host.norm()) } else { kept.all().map(|all| all.norm()) }
        });
        norm.map_err(|e| errors::raise_failure(py, e, None))
    }

    fn reset(&self, py: Python<'_>) {
        py.detach(|| *self.lock() = Residuals::default());
    }

    /// Accepts a provisional update.
    fn commit(&self, py: Python<'_>) {
        py.detach(|| self.lock().commit());
    }

    /// Restores the residuals from before a provisional update.
    fn undo(&self, py: Python<'_>) {
        py.detach(|| self.lock().undo());
    }

    fn save(&self, py: Python<'_>) -> PyResult<Vec<(String, Tensor)>> {
        let all = py.detach(|| self.lock().all().map(|all| all.save()));
        Ok(given_out(all.map_err(|e| errors::raise_failure(py, e, None))?))
    }

    fn load(&self, py: Python<'_>, tensors: Given<'_>) -> PyResult<()> {
        let host =
            gcodec::compress::Feedback::load(owned(py, tensors)?).map_err(|e| errors::raise(py, e, None))?;
        py.detach(|| *self.lock() = Residuals { host, ..Residuals::default() });
        Ok(())
    }
}

/// The attributes of a `gcodec.Dgc`.
#[derive(FromPyObject)]
pub(crate) struct DgcSettings {
    density: f64,
    warm_up: Vec<f64>,
    warm_up_steps: u64,
    momentum: f32,
    clip: Option<f32>,
    workers: u64,
    /// A top-k specification with the encoding of values and positions.
    codec: String,
}

impl DgcSettings {
    fn options(self, py: Python<'_>) -> PyResult<DgcOptions> {
        let mut options = DgcOptions::default();
        if let gcodec::Codec::TopK(TopK { values, positions, .. }) = parse(py, &self.codec)? {
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

/// The state of a `gcodec.Dgc`.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct Dgc(Mutex<compress::senders::Dgc>);

impl Dgc {
    pub(crate) fn lock(&self) -> MutexGuard<'_, compress::senders::Dgc> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Dgc {
    #[new]
    fn new(py: Python<'_>, settings: DgcSettings) -> PyResult<Self> {
        let dgc =
            compress::senders::Dgc::new(settings.options(py)?).map_err(|e| errors::raise(py, e, None))?;
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

    /// Accepts a provisional step.
    fn commit(&self, py: Python<'_>) {
        py.detach(|| self.lock().commit());
    }

    /// Restores the state from before a provisional step.
    fn undo(&self, py: Python<'_>) {
        py.detach(|| self.lock().undo());
    }

    fn save(&self, py: Python<'_>) -> Vec<(String, Tensor)> {
        given_out(py.detach(|| self.lock().save()))
    }

    fn load(&self, py: Python<'_>, settings: DgcSettings, steps: u64, tensors: Given<'_>) -> PyResult<()> {
        let loaded = compress::senders::Dgc::load(settings.options(py)?, steps, owned(py, tensors)?);
        let loaded = loaded.map_err(|e| errors::raise(py, e, None))?;
        py.detach(|| *self.lock() = loaded);
        Ok(())
    }
}
