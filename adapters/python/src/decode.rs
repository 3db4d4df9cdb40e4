//! Streams to tensors.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use gcodec::file::File;
use gcodec::frame::{Manifest, Reduction, Shard, TensorInfo, UpdateHeader, UpdatePart};
use gcodec::stream::{Assembler, Body, Event};
use gcodec::{Limits, TensorBuf, TensorView};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use self_cell::self_cell;

use crate::limits::PyLimits;
use crate::named::{Given, Named, borrow};
use crate::tensor::Tensor;
use crate::{errors, threads};

/// Returns the fields of a header by their names in `gcodec.UpdateHeader`.
pub(crate) fn header_dict<'py>(py: Python<'py>, header: &UpdateHeader) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("step", header.step)?;
    out.set_item("round", header.round)?;
    out.set_item("sender", header.sender)?;
    out.set_item("world", header.world)?;
    out.set_item("contributors", header.contributors)?;
    out.set_item("inner_steps", header.inner_steps)?;
    out.set_item("reduction", reduction_name(header.reduction))?;
    out.set_item("label", &header.label)?;
    out.set_item("delta", header.is_delta())?;
    Ok(out)
}

/// Returns the name of a reduction in `gcodec.UpdateHeader`.
pub(crate) fn reduction_name(reduction: Reduction) -> &'static str {
    match reduction {
        Reduction::None => "none",
        Reduction::Sum => "sum",
        Reduction::Mean => "mean",
    }
}

/// Returns decoded tensors with their names.
pub(crate) fn given_out(manifest: &Manifest, tensors: Vec<(u64, TensorBuf)>) -> Vec<(String, Tensor)> {
    let name = |number: u64| manifest.tensors()[number as usize].name.clone();
    tensors.into_iter().map(|(number, tensor)| (name(number), Tensor::of(tensor))).collect()
}

/// Returns the places of the last update's tensors in larger ones: name, dimensions of the larger tensor,
/// first indices, and dimensions of the part. Tensors that are whole are left out.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a tuple for Python")]
pub(crate) fn shards(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    limits: PyLimits,
) -> PyResult<Vec<(String, Vec<u64>, Vec<u64>, Vec<u64>)>> {
    let bytes = Bytes::new(data)?;
    let limits = limits.get();
    let file = py.detach(|| File::scan(bytes.as_slice(), limits)).map_err(|e| errors::raise(py, e, None))?;
    let placed = file.updates().last().into_iter().flat_map(|update| update.manifest.tensors());
    let placed = placed.filter_map(|info| Some((info, info.shard.clone()?)));
    let part = |(info, shard): (&TensorInfo, Shard)| {
        (info.name.clone(), shard.global_shape, shard.offsets, info.shape.clone())
    };
    Ok(placed.map(part).collect())
}

/// Whether a tensor is wanted. `wanted`: names; `None` is all.
pub(crate) fn is_wanted(wanted: Option<&HashSet<String>>, name: &str) -> bool {
    wanted.is_none_or(|names| names.contains(name))
}

/// Borrows the bases of deltas, in row-major order.
pub(crate) fn bases(py: Python<'_>, given: Given<'_>) -> PyResult<Arc<Vec<Named>>> {
    let mut named = borrow(given)?;
    py.detach(|| named.iter_mut().for_each(|n| n.tensor.gather()));
    Ok(Arc::new(named))
}

/// Returns the elements of bases by their names.
pub(crate) fn views_by_name(bases: &[Named]) -> gcodec::Result<BTreeMap<String, TensorView<'_>>> {
    bases.iter().map(|named| Ok((named.name.clone(), named.tensor.view()?))).collect()
}

/// The bytes of a Python object with the buffer protocol.
pub(crate) struct Bytes {
    buffer: PyBuffer<u8>,
}

impl Bytes {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer: PyBuffer<u8> = PyBuffer::get(object)?;
        match buffer.is_c_contiguous() {
            true => Ok(Self { buffer }),
            false => {
                Err(PyBufferError::new_err("the buffer is not contiguous: give bytes, or a contiguous copy"))
            }
        }
    }

    #[expect(unsafe_code, reason = "the buffer protocol gives an address")]
    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.buffer.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the view is a contiguous range of bytes, and keeps its memory in place as long as `self`. A
        // program that writes to a bytearray while another thread decodes it gets the value or the error of
        // either state: the decoder copies each length and offset before it checks and uses it.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast(), self.buffer.len_bytes()) }
    }
}

/// `None` once the assembler has finished, which consumes it.
type Unfinished<'b> = Option<Assembler<'b>>;

self_cell! {
    /// An update whose last part has not come, with the bases that it borrows.
    pub(crate) struct Open {
        owner: Arc<Vec<Named>>,
        #[not_covariant]
        dependent: Unfinished,
    }
}

impl Open {
    /// Begins an update with its first part. A base that is missing is an error of the part that needs it.
    fn begin(
        part: &UpdatePart<'_>,
        limits: &Limits,
        wanted: Option<&HashSet<String>>,
        base: &Arc<Vec<Named>>,
    ) -> gcodec::Result<Self> {
        Self::try_new(Arc::clone(base), |base| {
            let mut assembler = Assembler::new(&part.manifest, limits, |name| is_wanted(wanted, name))?;
            if part.header.is_delta() {
                for named in base.iter() {
                    assembler.base(&named.name, named.tensor.view()?)?;
                }
            }
            Ok(Some(assembler))
        })
    }

    fn apply(&mut self, part: &UpdatePart<'_>) -> gcodec::Result<()> {
        self.with_dependent_mut(|_, unfinished| unfinished.as_mut().map_or(Ok(()), |a| a.apply(part)))
    }

    /// Returns the numbers of the tensors, and the tensors.
    fn finish(mut self) -> gcodec::Result<Vec<(u64, TensorBuf)>> {
        self.with_dependent_mut(|_, unfinished| unfinished.take().map_or(Ok(Vec::new()), Assembler::finish))
    }
}

/// Decodes the tensors of the last update of a whole stream.
#[pyfunction]
#[pyo3(signature = (data, limits, names, base))]
pub(crate) fn decode<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    limits: PyLimits,
    names: Option<HashSet<String>>,
    base: Given<'py>,
) -> PyResult<Vec<(String, Tensor)>> {
    let bytes = Bytes::new(data)?;
    let base = bases(py, base)?;
    let limits = limits.get();
    let mut known = None;
    let decoded = threads::run(py, || {
        let file = File::scan(bytes.as_slice(), limits)?;
        let last = file.last()?;
        let manifest = known.insert(Arc::clone(&file.updates()[last].manifest));
        let base = views_by_name(&base)?;
        let tensors = file.tensors(last, |name| is_wanted(names.as_ref(), name), &base)?;
        Ok(given_out(manifest, tensors))
    })?;
    decoded.map_err(|e| errors::raise(py, e, known.as_deref()))
}

/// An event of a stream that Python sees.
enum Found {
    Update(UpdateHeader, Arc<Manifest>, Vec<(u64, TensorBuf)>),
    Metadata(BTreeMap<String, String>),
    End,
}

/// A push decoder.
#[pyclass(module = "gcodec._native")]
pub(crate) struct Decoder {
    inner: gcodec::stream::Decoder,
    limits: Limits,
    names: Option<HashSet<String>>,
    base: Arc<Vec<Named>>,
    open: Option<(UpdateHeader, Arc<Manifest>, Open)>,
}

#[pymethods]
impl Decoder {
    #[new]
    fn new(limits: PyLimits, names: Option<HashSet<String>>) -> Self {
        let limits = limits.get();
        let inner = gcodec::stream::Decoder::new(limits.clone());
        Self { inner, limits, names, base: Arc::default(), open: None }
    }

    /// Sets the bases of later deltas.
    fn set_base(&mut self, py: Python<'_>, base: Given<'_>) -> PyResult<()> {
        self.base = bases(py, base)?;
        Ok(())
    }

    fn feed(&mut self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = Bytes::new(data)?;
        let inner = &mut self.inner;
        py.detach(|| inner.feed(bytes.as_slice()));
        Ok(())
    }

    fn needed(&self) -> u64 {
        self.inner.needed()
    }

    /// Returns the next event: `("update", (header, tensors))`, `("metadata", entries)` or `("end", None)`;
    /// `None` if more bytes are needed.
    fn next<'py>(&mut self, py: Python<'py>) -> PyResult<Option<(&'static str, Py<PyAny>)>> {
        let this = &mut *self;
        let mut known = None;
        let found = threads::run(py, || this.find(&mut known))?;
        let found = found.map_err(|e| errors::raise(py, e, known.as_deref()))?;
        Ok(match found {
            None => None,
            Some(Found::Update(header, manifest, tensors)) => {
                let update = (header_dict(py, &header)?, given_out(&manifest, tensors));
                Some(("update", update.into_pyobject(py)?.into_any().unbind()))
            }
            Some(Found::Metadata(entries)) => {
                Some(("metadata", entries.into_pyobject(py)?.into_any().unbind()))
            }
            Some(Found::End) => Some(("end", py.None())),
        })
    }

    /// Checks that the stream is complete.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.finish().map_err(|e| errors::raise(py, e, None))
    }
}

impl Decoder {
    fn find(&mut self, known: &mut Option<Arc<Manifest>>) -> gcodec::Result<Option<Found>> {
        while let Some(event) = self.inner.next_event()? {
            let Event::Frame(_, body) = event else { continue };
            match body {
                Body::Metadata(metadata) => return Ok(Some(Found::Metadata(metadata.entries))),
                Body::End(_) => return Ok(Some(Found::End)),
                Body::Update(part) => {
                    *known = Some(Arc::clone(&part.manifest));
                    if part.part == 0 {
                        let open = Open::begin(&part, &self.limits, self.names.as_ref(), &self.base)?;
                        self.open = Some((part.header.clone(), Arc::clone(&part.manifest), open));
                    }
                    if let Some((_, _, open)) = &mut self.open {
                        open.apply(&part)?;
                    }
                    if part.last
                        && let Some((header, manifest, open)) = self.open.take()
                    {
                        let tensors = open.finish()?;
                        return Ok(Some(Found::Update(header, manifest, tensors)));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }
}
