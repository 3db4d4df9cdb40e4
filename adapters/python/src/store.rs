//! Stores of versions.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gcodec::{TensorBuf, TensorView};
use gcodec_store::{Collection, Error, Options, Policy, Publisher, Replica as Held, Staged};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rayon::prelude::*;

use crate::encode::parse;
use crate::named::{Given, borrow, views};
use crate::patches::{Parts, Patch};
use crate::tensor::Tensor;
use crate::{errors, threads};

pub(crate) fn raise(py: Python<'_>, error: Error) -> PyErr {
    let class = match &error {
        Error::Stream { source: gcodec::Error::Limit(_), .. } => "LimitError",
        Error::Limit { .. } => "LimitError",
        Error::Conflict { .. } => "ConflictError",
        Error::Newer { .. } => "UnsupportedError",
        error => match error.fault() {
            "store" => "FormatError",
            "caller" => "InputError",
            _ => "IoError",
        },
    };
    let kind = match &error {
        Error::Conflict { .. } => "conflict",
        Error::Empty => "empty",
        Error::NoVersion { .. } => "no-version",
        Error::Missing { .. } => "missing",
        Error::Unreachable { .. } => "unreachable",
        Error::TooSlow { .. } => "too-slow",
        Error::Unconditional { .. } => "no-conditional-writes",
        _ => "store",
    };
    let exception = || -> PyResult<PyErr> {
        let keys = PyDict::new(py);
        keys.set_item("kind", kind)?;
        keys.set_item("fault", error.fault())?;
        let class = py.import("gcodec.errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call((error.to_string(),), Some(&keys))?))
    };
    exception().unwrap_or_else(|e| e)
}

/// A store and the version that its publisher published last.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct Store {
    store: gcodec_store::Store,
    policy: Policy,
    last: Mutex<Option<Held>>,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (address, anchor_every, group_bytes, transfers, memory, attempts, cache, scratch, grace, codec))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python class")]
    fn new(
        py: Python<'_>,
        address: &str,
        anchor_every: u64,
        group_bytes: u64,
        transfers: usize,
        memory: u64,
        attempts: u32,
        cache: Option<std::path::PathBuf>,
        scratch: Option<std::path::PathBuf>,
        grace: f64,
        codec: &str,
    ) -> PyResult<Self> {
        let options = Options::default()
            .with_transfers(transfers)
            .with_memory(memory)
            .with_attempts(attempts)
            .with_cache(cache)
            .with_scratch(scratch);
        let grace = Duration::try_from_secs_f64(grace).map_err(|e| errors::input(py, &e.to_string()))?;
        let store = gcodec_store::Store::open(address, options).map_err(|e| raise(py, e))?.with_grace(grace);
        let policy = Policy::default()
            .with_anchor_every(anchor_every.max(1))
            .with_codec(parse(py, codec)?)
            .with_group_bytes(group_bytes);
        Ok(Self { store, policy, last: Mutex::new(None) })
    }

    /// Publishes tensors, after `base` if it is given. Returns the version, the number of touched tensors,
    /// and the bytes of weights, delta and anchor.
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn publish(
        &self,
        py: Python<'_>,
        tensors: Given<'_>,
        meta: BTreeMap<String, String>,
    ) -> PyResult<(u64, u64, u64, Option<u64>, Option<u64>)> {
        let mut tensors = borrow(tensors)?;
        let published = threads::run(py, || {
            let views = views(&mut tensors).map_err(Error::Codec)?;
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let mut publisher = Publisher::with_base(&self.store, self.policy.clone(), last.take())?;
            let published = publisher.publish(&views, meta);
            *last = publisher.base().cloned();
            published
        })?;
        let p = published.map_err(|e| raise(py, e))?;
        Ok((p.version, p.touched, p.bytes, p.delta_bytes, p.anchor_bytes))
    }

    /// Returns the names of the tensors of a version.
    fn names(&self, py: Python<'_>, version: u64) -> PyResult<Vec<String>> {
        py.detach(|| self.store.names(version)).map_err(|e| raise(py, e))
    }

    /// Returns a replica of tensors that the caller has, after comparing them with the version's digest.
    fn hold(&self, py: Python<'_>, version: u64, tensors: Given<'_>) -> PyResult<Replica> {
        let mut tensors = borrow(tensors)?;
        let held = threads::run(py, || {
            let views = views(&mut tensors).map_err(Error::Codec)?;
            let copy = |(name, view): (&str, TensorView<'_>)| {
                let tensor = TensorBuf::new(view.dtype(), view.shape().to_vec(), view.data().to_vec());
                Ok((name.to_owned(), tensor.map_err(Error::Codec)?))
            };
            self.store.hold(version, views.into_iter().map(copy).collect::<Result<_, Error>>()?)
        })?;
        Ok(Replica { held: held.map_err(|e| raise(py, e))? })
    }

    /// Stages and verifies a version.
    fn stage(
        &self,
        py: Python<'_>,
        held: Option<PyRef<'_, Replica>>,
        version: Option<u64>,
    ) -> PyResult<Version> {
        let held = held.map(|held| held.held.clone());
        let verified = threads::run(py, || {
            let staged = self.store.stage(held.as_ref(), version)?;
            let (bytes, steps) = (staged.bytes(), staged.steps());
            Staged::verify(staged).map(|verified| (verified, bytes, steps))
        })?;
        let (verified, bytes, steps) = verified.map_err(|e| raise(py, e))?;
        let touched = verified.touched().map(|(name, _)| name.to_owned()).collect();
        // Nothing fails: the touched tensors go to no sink here.
        let replica = verified.commit_to(&mut |_: &str, _: TensorView<'_>| Ok::<(), String>(()));
        let replica = replica.map_err(|e| errors::input(py, &e.to_string()))?;
        Ok(Version::new(held.map(|held| held.version()), replica, touched, bytes, steps))
    }

    /// Returns the number of the latest version, 0 if there is none.
    fn latest(&self, py: Python<'_>) -> PyResult<u64> {
        match py.detach(|| self.store.latest()) {
            Err(Error::Empty) => Ok(0),
            latest => latest.map_err(|e| raise(py, e)),
        }
    }

    /// Returns the latest versions, newest first.
    fn log<'py>(&self, py: Python<'py>, count: u64) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let versions = py.detach(|| self.store.log(count)).map_err(|e| raise(py, e))?;
        let entry = |v: gcodec_store::Version| {
            let entry = PyDict::new(py);
            entry.set_item("version", v.version)?;
            entry.set_item("created_ms", v.created_ms)?;
            entry.set_item("meta", v.meta)?;
            entry.set_item("bytes", v.bytes)?;
            entry.set_item("delta_bytes", v.delta_bytes)?;
            entry.set_item("codec", v.codec)?;
            entry.set_item("anchor_bytes", v.anchor_bytes)?;
            entry.set_item("touched", v.touched)?;
            entry.set_item("state", v.state)?;
            Ok(entry)
        };
        versions.into_iter().map(entry).collect()
    }

    /// Stores one delta in the place of several. Returns its bytes and those of the deltas.
    fn fold(&self, py: Python<'_>, first: u64, last: u64) -> PyResult<(u64, u64)> {
        let folded = threads::run(py, || self.store.fold(first, last))?.map_err(|e| raise(py, e))?;
        Ok((folded.bytes, folded.replay_bytes))
    }

    /// Deletes what no reader needs. Returns the oldest version kept, and objects kept, deleted, and bytes.
    fn gc(&self, py: Python<'_>, keep: u64, dry_run: bool) -> PyResult<(u64, u64, u64, u64)> {
        let what = Collection::default().with_keep(keep).with_dry_run(dry_run);
        let c = py.detach(|| self.store.gc(&what)).map_err(|e| raise(py, e))?;
        Ok((c.oldest, c.kept, c.deleted, c.bytes))
    }

    fn lease(&self, py: Python<'_>, name: &str, version: u64, seconds: u64) -> PyResult<()> {
        py.detach(|| self.store.lease(name, version, Duration::from_secs(seconds))).map_err(|e| raise(py, e))
    }

    fn release(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        py.detach(|| self.store.release(name)).map_err(|e| raise(py, e))
    }

    /// Downloads one tensor of a version.
    fn tensor(&self, py: Python<'_>, version: Option<u64>, name: &str) -> PyResult<Tensor> {
        let tensor = threads::run(py, || self.store.tensor(version, name))?;
        tensor.map(|tensor| Tensor::of(tensor.into())).map_err(|e| raise(py, e))
    }
}

/// A version that was verified and not committed.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct Version {
    held: Option<u64>,
    #[pyo3(get)]
    touched: Vec<String>,
    #[pyo3(get)]
    bytes: u64,
    #[pyo3(get)]
    steps: usize,
    replica: Mutex<Option<Held>>,
}

impl Version {
    /// `held`: version of the replica that it replaces.
    pub(crate) fn new(
        held: Option<u64>,
        replica: Held,
        touched: Vec<String>,
        bytes: u64,
        steps: usize,
    ) -> Self {
        Self { held, touched, bytes, steps, replica: Mutex::new(Some(replica)) }
    }
}

#[pymethods]
impl Version {
    /// Returns the version as a replica, once. `held`: version of the replica that it replaces.
    fn commit(&self, py: Python<'_>, held: Option<u64>) -> PyResult<Replica> {
        if held != self.held {
            return Err(errors::input(py, "the version was staged for another replica"));
        }
        let replica = self.replica.lock().unwrap_or_else(PoisonError::into_inner).take();
        let held = replica.ok_or_else(|| errors::input(py, "the version was committed before"))?;
        Ok(Replica { held })
    }
}

/// A version that is held in memory.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct Replica {
    pub(crate) held: Held,
}

#[pymethods]
impl Replica {
    #[getter]
    fn version(&self) -> u64 {
        self.held.version()
    }

    #[getter]
    fn meta(&self) -> BTreeMap<String, String> {
        self.held.meta().clone()
    }

    fn names(&self) -> Vec<String> {
        self.held.tensors().map(|(name, _)| name.to_owned()).collect()
    }

    /// Returns what changes `old` into this version: patches of the named tensors.
    fn patches(&self, py: Python<'_>, old: PyRef<'_, Replica>, names: Vec<String>) -> PyResult<Vec<Parts>> {
        let old = &old.held;
        let patch = |name: &String| match self.held.get(name) {
            Some(new) => Patch::replacing(name, new, old.get(name)).transpose(),
            None => None,
        };
        let found = threads::run(py, || {
            names.par_iter().filter_map(patch).collect::<Result<Vec<_>, gcodec::Error>>()
        })?;
        let found = found.map_err(|e| errors::raise(py, e, None))?;
        Ok(found.into_iter().map(Patch::into_parts).collect())
    }

    /// Returns copies of tensors. `names`: `None` is all.
    fn tensors(&self, py: Python<'_>, names: Option<Vec<String>>) -> PyResult<Vec<(String, Tensor)>> {
        let names = names.map(|names| names.into_iter().collect::<std::collections::HashSet<_>>());
        let wanted = self.held.tensors().filter(|(name, _)| names.as_ref().is_none_or(|n| n.contains(*name)));
        let copied = wanted.map(|(name, view)| {
            let tensor = TensorBuf::new(view.dtype(), view.shape().to_vec(), view.data().to_vec());
            Ok((name.to_owned(), Tensor::of(tensor.map_err(|e| errors::raise(py, e, None))?)))
        });
        copied.collect()
    }
}
