//! Random access to finished streams.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use gcodec::file::{Map, Pieces, Place};
use gcodec::frame::Manifest;
use gcodec::{Dtype, TensorBuf, TensorView};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use self_cell::self_cell;

use crate::decode::{Bytes, bases, given_out, header_dict, is_wanted, views_by_name};
use crate::dlpack::Writable;
use crate::limits::PyLimits;
use crate::named::{Given, Named};
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

type Views<'a> = BTreeMap<String, TensorView<'a>>;

self_cell! {
    /// A file, and the bases of its deltas by name.
    struct Based {
        owner: (Arc<Opened>, Arc<Vec<Named>>),
        #[covariant]
        dependent: Views,
    }
}

type InPieces<'a> = Pieces<'a, 'a>;

self_cell! {
    struct Walk {
        owner: Based,
        #[not_covariant]
        dependent: InPieces,
    }
}

/// The tensors of an update, one after another.
#[pyclass(module = "gcodec._native")]
pub(crate) struct Tensors {
    walk: Walk,
    manifest: Arc<Manifest>,
}

#[pymethods]
impl Tensors {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<(String, Tensor)>> {
        let (walk, manifest) = (&mut self.walk, &self.manifest);
        let found = threads::run(py, || walk.with_dependent_mut(|_, pieces| next_tensor(pieces, manifest)))?;
        let found = found.map_err(|e| errors::raise(py, e, Some(manifest)))?;
        Ok(found.map(|(name, tensor)| (name, Tensor::of(tensor))))
    }
}

/// Returns the next whole tensor, and its name.
fn next_tensor(
    pieces: &mut Pieces<'_, '_>,
    manifest: &Manifest,
) -> gcodec::Result<Option<(String, TensorBuf)>> {
    let Some(mut piece) = pieces.next().transpose()? else { return Ok(None) };
    let info = &manifest.tensors()[piece.tensor as usize];
    while (piece.data.len() as u64) < info.bytes()
        && let Some(more) = pieces.next().transpose()?
    {
        piece.data.extend_from_slice(&more.data);
        pieces.reuse(more.data);
    }
    Ok(Some((info.name.clone(), TensorBuf::new(info.dtype, info.shape.clone(), piece.data)?)))
}

/// A finished stream.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct File {
    opened: Arc<Opened>,
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
        Ok(Self { opened: Arc::new(opened.map_err(|e| errors::raise(py, e, None))?) })
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

    /// Returns the tensors of an update one after another: each is decoded when it is asked for.
    fn walk(&self, py: Python<'_>, number: usize, base: Given<'_>) -> PyResult<Tensors> {
        let base = bases(py, base)?;
        let update = self.opened.borrow_dependent().updates().get(number);
        let update = update.ok_or_else(|| errors::input(py, "the file has no update of this number"))?;
        let manifest = Arc::clone(&update.manifest);
        let made = threads::run(py, || {
            let based = Based::try_new((Arc::clone(&self.opened), base), |(_, base)| views_by_name(base))?;
            Walk::try_new(based, |based| {
                let (opened, _) = based.borrow_owner();
                opened.borrow_dependent().pieces(number, |_| true, based.borrow_dependent())
            })
        })?;
        let walk = made.map_err(|e| errors::raise(py, e, Some(&manifest)))?;
        Ok(Tensors { walk, manifest })
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
            file.tensors(number, |name| is_wanted(names.as_ref(), name), &views_by_name(&base)?)
        })?;
        let manifest = file.updates().get(number).map(|u| &u.manifest);
        let tensors = decoded.map_err(|e| errors::raise(py, e, manifest.map(Arc::as_ref)))?;
        Ok(manifest.map_or_else(Vec::new, |manifest| given_out(manifest, tensors)))
    }

    /// Returns the metadata before an update, and behind the one before.
    fn metadata(&self, py: Python<'_>, number: usize) -> PyResult<BTreeMap<String, String>> {
        let found = py.detach(|| self.opened.borrow_dependent().metadata(number));
        Ok(found.map_err(|e| errors::raise(py, e, None))?.entries)
    }

    /// Decodes elements of tensors into new memory. For each: the name, the first element, and the shape of
    /// the result; `None` is the whole tensor.
    #[expect(clippy::type_complexity, reason = "a tuple from Python")]
    fn elements(
        &self,
        py: Python<'_>,
        number: usize,
        wanted: Vec<(String, Option<(u64, Vec<u64>)>)>,
    ) -> PyResult<Vec<Tensor>> {
        let file = self.opened.borrow_dependent();
        let mut shapes = Vec::with_capacity(wanted.len());
        let mut ranges = Vec::with_capacity(wanted.len());
        for (name, part) in wanted {
            let (tensor, dtype, whole) = self.tensor(py, number, &name)?;
            let (start, shape) = part.unwrap_or_else(|| (0, whole.to_vec()));
            let len = gcodec::internal::elements(&shape).and_then(|len| start.checked_add(len));
            let end = len.ok_or_else(|| errors::input(py, "the elements are too many"))?;
            ranges.push((tensor, start..end));
            shapes.push((dtype, shape));
        }
        let found = threads::run(py, || {
            let buffers = file
                .elements(number, &ranges, &BTreeMap::new(), &|range| self.forget(range))?
                .into_iter()
                .zip(shapes);
            buffers
                .map(|(data, (dtype, shape))| TensorBuf::new(dtype, shape, data).map(Tensor::of))
                .collect::<gcodec::Result<Vec<_>>>()
        })?;
        found.map_err(|e| self.raise(py, number, e))
    }

    /// Decodes elements of tensors into given memory. For each: the name, the first element, and an object
    /// with `__dlpack__` on the host, whose bytes are all written.
    fn fill(
        &self,
        py: Python<'_>,
        number: usize,
        wanted: Vec<(String, u64, Bound<'_, PyAny>)>,
    ) -> PyResult<()> {
        let file = self.opened.borrow_dependent();
        let mut memory = Vec::with_capacity(wanted.len());
        for (name, start, object) in wanted {
            let (tensor, ..) = self.tensor(py, number, &name)?;
            memory.push((tensor, start, Writable::new(&object)?));
        }
        if !Writable::disjoint(memory.iter().map(|(.., writable)| writable)) {
            return Err(errors::input(py, "two of the given tensors have memory in common"));
        }
        let filled = threads::run(py, || {
            let places = memory.iter_mut();
            let mut places: Vec<Place<'_>> = places
                .map(|(tensor, start, writable)| Place {
                    tensor: *tensor,
                    start: *start,
                    data: writable.bytes(),
                })
                .collect();
            file.fill(number, &mut places, &BTreeMap::new(), &|range| self.forget(range))
        })?;
        filled.map_err(|e| self.raise(py, number, e))
    }
}

impl File {
    /// Returns the number, the element type and the shape of a tensor.
    fn tensor(&self, py: Python<'_>, number: usize, name: &str) -> PyResult<(u64, Dtype, &[u64])> {
        let update = self.opened.borrow_dependent().updates().get(number);
        let found = update.and_then(|update| {
            let tensor = update.manifest.find(name)?;
            let info = update.manifest.tensors().get(usize::try_from(tensor).ok()?)?;
            Some((tensor, info.dtype, &*info.shape))
        });
        found.ok_or_else(|| errors::input(py, &format!("the file has no tensor {name:?}")))
    }

    /// Takes what was read out of this process's memory, if the file is mapped.
    fn forget(&self, range: Range<u64>) {
        if let Source::Mapped(map) = self.opened.borrow_owner() {
            map.forget(range);
        }
    }

    fn raise(&self, py: Python<'_>, number: usize, error: gcodec::Error) -> PyErr {
        let update = self.opened.borrow_dependent().updates().get(number);
        errors::raise(py, error, update.map(|update| &*update.manifest))
    }
}
