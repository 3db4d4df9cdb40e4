//! Random access to finished streams.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use gcodec::file::Map;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use self_cell::self_cell;

use crate::decode::{Bytes, bases, given_out, header_dict, is_wanted};
use crate::limits::PyLimits;
use crate::named::Given;
use crate::tensor::Tensor;
use crate::{errors, threads};

/// The bytes of a file.
enum Source {
    Mapped(Map),
    Given(Bytes),
}

impl Source {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Given(bytes) => bytes.as_slice(),
        }
    }
}

type Index<'a> = gcodec::file::File<'a>;

self_cell! {
    /// A file and the bytes that it borrows.
    struct Opened {
        owner: Source,
        #[covariant]
        dependent: Index,
    }
}

/// A finished stream.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct File {
    opened: Opened,
}

#[pymethods]
impl File {
    /// Opens a path, or an object with the buffer protocol.
    #[new]
    fn new(py: Python<'_>, source: &Bound<'_, PyAny>, is_path: bool, limits: PyLimits) -> PyResult<Self> {
        let source = match is_path {
            true => {
                let path: PathBuf = source.extract()?;
                let map = py.detach(|| Map::open(&path));
                Source::Mapped(map.map_err(|e| errors::raise(py, e.into(), None))?)
            }
            false => Source::Given(Bytes::new(source)?),
        };
        let limits = limits.get();
        let opened = py
            .detach(|| Opened::try_new(source, |source| gcodec::file::File::open(source.as_slice(), limits)));
        Ok(Self { opened: opened.map_err(|e| errors::raise(py, e, None))? })
    }

    /// Returns the number of updates.
    fn count(&self) -> usize {
        self.opened.borrow_dependent().updates().len()
    }

    /// Returns an update's header, its tensors (name, element type, shape), and the size of its frames in
    /// bytes.
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn update<'py>(
        &self,
        py: Python<'py>,
        number: usize,
    ) -> PyResult<(Bound<'py, PyDict>, Vec<(String, &'static str, Vec<u64>)>, u64)> {
        let update = self.opened.borrow_dependent().updates().get(number);
        let update = update.ok_or_else(|| errors::input(py, "the file has no update of this number"))?;
        let tensors = update.manifest.tensors().iter();
        let tensors = tensors.map(|t| (t.name.clone(), t.dtype.name(), t.shape.clone())).collect();
        Ok((header_dict(py, &update.header)?, tensors, update.bytes))
    }

    /// Returns the number of the last update of a step.
    #[pyo3(signature = (step))]
    fn find(&self, step: Option<u64>) -> Option<usize> {
        self.opened.borrow_dependent().find(step)
    }

    /// Decodes tensors of an update. `names`: `None` is all.
    fn tensors(
        &self,
        py: Python<'_>,
        number: usize,
        names: Option<HashSet<String>>,
        base: Given<'_>,
    ) -> PyResult<Vec<(String, Tensor)>> {
        let base = bases(py, base)?;
        let file = self.opened.borrow_dependent();
        let decoded = threads::run(py, || {
            let base: gcodec::Result<BTreeMap<_, _>> =
                base.iter().map(|n| Ok((n.name.clone(), n.tensor.view()?))).collect();
            file.tensors(number, |name| is_wanted(names.as_ref(), name), &base?)
        })?;
        let manifest = file.updates().get(number).map(|u| &u.manifest);
        let tensors = decoded.map_err(|e| errors::raise(py, e, manifest.map(Arc::as_ref)))?;
        Ok(manifest.map_or_else(Vec::new, |manifest| given_out(manifest, tensors)))
    }
}
