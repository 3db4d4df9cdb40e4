//! Random access.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use gcodec::file::Map;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::decode::{Bytes, bases, given_out, header_dict, is_wanted};
use crate::limits::PyLimits;
use crate::named::Given;
use crate::stay::{Stay, extend};
use crate::tensor::Tensor;
use crate::{errors, threads};

/// Where a file's bytes are.
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

#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct File {
    file: Stay<gcodec::File<'static>, Source>,
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
        let (source, limits) = (Arc::new(source), limits.get());
        let opened = py.detach(|| {
            // SAFETY: `Stay` drops the file before the source.
            let bytes: &'static [u8] = unsafe { extend(source.as_slice()) };
            gcodec::File::open(bytes, limits).map(|file| Stay::new(file, Arc::clone(&source)))
        });
        Ok(Self { file: opened.map_err(|e| errors::raise(py, e, None))? })
    }

    /// How many updates there are.
    fn count(&self) -> usize {
        self.file.get().updates().len()
    }

    /// An update's header, its tensors (name, element type, shape), and the bytes of its frames.
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn update<'py>(
        &self,
        py: Python<'py>,
        number: usize,
    ) -> PyResult<(Bound<'py, PyDict>, Vec<(String, &'static str, Vec<u64>)>, u64)> {
        let update = self.file.get().updates().get(number);
        let update = update.ok_or_else(|| errors::input(py, "no update has this number"))?;
        let tensors = update.manifest.tensors().iter();
        let tensors = tensors.map(|t| (t.name.clone(), t.dtype.name(), t.shape.clone())).collect();
        Ok((header_dict(py, &update.header)?, tensors, update.bytes))
    }

    #[pyo3(signature = (step))]
    fn find(&self, step: Option<u64>) -> Option<usize> {
        self.file.get().find(step)
    }

    /// Tensors of an update: those of `names`, or all.
    fn tensors(
        &self,
        py: Python<'_>,
        number: usize,
        names: Option<HashSet<String>>,
        base: Given<'_>,
    ) -> PyResult<Vec<(String, Tensor)>> {
        let base = bases(py, base)?;
        let file = self.file.get();
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
