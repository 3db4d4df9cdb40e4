//! Versions of slime and miles in folders.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gcodec::{TensorBuf, TensorView};
use gcodec_cli::versions::{Error, Run, difference};
use gcodec_store::Replica as Held;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::named::{Given, borrow, views};
use crate::store::{self, Replica, Version};
use crate::{errors, threads};

/// The folder that has the versions.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct Versions {
    run: Run,
}

#[pymethods]
impl Versions {
    #[new]
    fn new(folder: PathBuf, base: Option<PathBuf>) -> Self {
        Self { run: Run::new(folder, base) }
    }

    /// Returns the number of the newest complete version, 0 if there is none.
    fn latest(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.run.latest()).map_err(|e| raise(py, e))
    }

    /// Returns the names of the tensors of a version.
    fn names(&self, py: Python<'_>, version: u64) -> PyResult<Vec<String>> {
        let found = threads::run(py, || self.run.read(version, None))?.map_err(|e| raise(py, e))?;
        Ok(found.tensors.into_iter().map(|(name, _)| name).collect())
    }

    /// Returns a replica of tensors that the caller has, after comparing them with the version's.
    fn hold(&self, py: Python<'_>, version: u64, tensors: Given<'_>) -> PyResult<Replica> {
        let mut tensors = borrow(tensors)?;
        let found = threads::run(py, || self.run.read(version, None))?.map_err(|e| raise(py, e))?;
        let differs = threads::run(py, || Ok(difference(&found, views(&mut tensors)?.into_iter())))?;
        if let Some(what) = differs.map_err(|e| errors::raise(py, e, None))? {
            return Err(errors::input(
                py,
                &format!("the weights are not those of version {version}: {what}"),
            ));
        }
        let held = Held::of_tensors(version, meta(version), found.tensors);
        Ok(Replica { held: held.map_err(|e| store::raise(py, e))? })
    }

    /// Reads a version: from the replica, if differences lead from it.
    fn stage(
        &self,
        py: Python<'_>,
        held: Option<PyRef<'_, Replica>>,
        version: Option<u64>,
    ) -> PyResult<Version> {
        let held = held.map(|held| held.held.clone());
        let version = version.map_or_else(|| self.latest(py), Ok)?;
        let copy = |view: TensorView<'_>| {
            TensorBuf::new(view.dtype(), view.shape().to_vec(), view.data().to_vec()).ok()
        };
        let tensor = |name: &str| held.as_ref()?.get(name).and_then(copy);
        let from = held
            .as_ref()
            .map(|held| (held.version(), &tensor as &(dyn Fn(&str) -> Option<TensorBuf> + Sync)));
        let found = threads::run(py, || self.run.read(version, from))?.map_err(|e| raise(py, e))?;
        let (bytes, steps) = (found.bytes, found.steps);
        let made = threads::run(py, || match &held {
            Some(held) if !found.is_whole => held.with_changed(version, meta(version), found.tensors),
            _ => {
                let replica = Held::of_tensors(version, meta(version), found.tensors)?;
                let differs = |(name, view): &(&str, TensorView<'_>)| {
                    held.as_ref().and_then(|held| held.get(name)).as_ref() != Some(view)
                };
                let touched = replica.tensors().filter(differs).map(|(name, _)| name.to_owned()).collect();
                Ok((replica, touched))
            }
        })?;
        let (replica, touched) = made.map_err(|e| store::raise(py, e))?;
        Ok(Version::new(held.map(|held| held.version()), replica, touched, bytes, steps))
    }
}

/// Returns what a follower gets with a version.
fn meta(version: u64) -> BTreeMap<String, String> {
    BTreeMap::from([("version".to_owned(), version.to_string())])
}

fn raise(py: Python<'_>, error: Error) -> PyErr {
    let (class, kind) = match error.fault {
        "caller" => ("InputError", "missing"),
        "limits" => ("LimitError", "limit"),
        "store" => ("FormatError", "store"),
        _ => ("IoError", "unreachable"),
    };
    let exception = || -> PyResult<PyErr> {
        let keys = PyDict::new(py);
        keys.set_item("kind", kind)?;
        keys.set_item("fault", error.fault)?;
        let class = py.import("gcodec.errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call((error.message.as_str(),), Some(&keys))?))
    };
    exception().unwrap_or_else(|e| e)
}
