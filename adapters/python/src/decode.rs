//! The bytes of a stream to tensors.

use std::collections::HashSet;
use std::sync::Arc;

use gcodec::frame::{Reduction, UpdatePart};
use gcodec::{Assembler, Body, Event, Limits, Manifest, SliceReader, TensorBuf, UpdateHeader};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::limits::PyLimits;
use crate::named::{Given, Named, borrow};
use crate::stay::{Stay, extend};
use crate::tensor::Tensor;
use crate::{errors, threads};

/// A header's fields by the names of `gcodec.UpdateHeader`.
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
    out.set_item("delta", header.delta.is_some())?;
    Ok(out)
}

pub(crate) fn reduction_name(reduction: Reduction) -> &'static str {
    match reduction {
        Reduction::None => "none",
        Reduction::Sum => "sum",
        Reduction::Mean => "mean",
    }
}

/// Decoded tensors with their names.
pub(crate) fn given_out(manifest: &Manifest, tensors: Vec<(u64, TensorBuf)>) -> Vec<(String, Tensor)> {
    let name = |number: u64| manifest.tensors()[number as usize].name.clone();
    tensors.into_iter().map(|(number, tensor)| (name(number), Tensor::of(tensor))).collect()
}

/// Which tensors are wanted: all, or those of these names.
pub(crate) fn is_wanted(wanted: Option<&HashSet<String>>, name: &str) -> bool {
    wanted.is_none_or(|names| names.contains(name))
}

/// The bases of deltas, in order.
pub(crate) fn bases(py: Python<'_>, given: Given<'_>) -> PyResult<Arc<Vec<Named>>> {
    let mut named = borrow(given)?;
    py.detach(|| named.iter_mut().for_each(|n| n.tensor.gather()));
    Ok(Arc::new(named))
}

/// The bytes of an object with the buffer protocol.
pub(crate) struct Bytes {
    buffer: PyBuffer<u8>,
}

impl Bytes {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer: PyBuffer<u8> = PyBuffer::get(object)?;
        match buffer.is_c_contiguous() {
            true => Ok(Self { buffer }),
            false => Err(PyBufferError::new_err("the bytes do not lie together")),
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.buffer.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the view is contiguous, of bytes, and keeps the memory where it is as long as `self`. A program that
        // writes to a bytearray while another of its threads decodes it gets the value or the error of either state; every
        // length and offset is copied out before it is checked and used.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast(), self.buffer.len_bytes()) }
    }
}

/// An update whose last part has not come: it borrows the bases that it was begun with.
pub(crate) type Open = Stay<Assembler<'static>, Vec<Named>>;

/// Begins an update. What is not given as a base is not needed, or is missed when the update says so.
pub(crate) fn begin(
    part: &UpdatePart<'_>,
    limits: &Limits,
    wanted: Option<&HashSet<String>>,
    base: &Arc<Vec<Named>>,
) -> gcodec::Result<Open> {
    let mut assembler = Assembler::new(&part.manifest, limits, |name| is_wanted(wanted, name))?;
    if part.header.delta.is_some() {
        // SAFETY: the assembler is dropped, or consumed, with an `Arc` of the bases beside it; `Open` sees to that. Where
        // this function fails, it is dropped before the caller's.
        let bases: &'static Vec<Named> = unsafe { extend(base.as_ref()) };
        for named in bases {
            assembler.base(&named.name, named.tensor.view()?)?;
        }
    }
    Ok(Stay::new(assembler, Arc::clone(base)))
}

/// The tensors of the last update of a whole stream.
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
    let decoded = threads::run(py, || match names.is_none() && base.is_empty() {
        true => gcodec::decode_with(bytes.as_slice(), &limits),
        false => last_update(bytes.as_slice(), &limits, names.as_ref(), &base, &mut known),
    })?;
    let tensors = decoded.map_err(|e| errors::raise(py, e, known.as_deref()))?;
    Ok(tensors.into_iter().map(|(name, tensor)| (name, Tensor::of(tensor))).collect())
}

/// The number of the frame that the last update begins with; every frame is checked.
pub(crate) fn last_update_of(bytes: &[u8], limits: &Limits) -> gcodec::Result<u64> {
    let mut last = None;
    let mut reader = SliceReader::new(bytes, limits.clone());
    while let Some(event) = reader.next_event()? {
        if let Event::Frame(info, Body::Update(part)) = event
            && part.part == 0
        {
            last = Some(info.number);
        }
    }
    match last {
        Some(last) => Ok(last),
        // The library says what it says of a stream without an update.
        None => gcodec::decode_with(bytes, limits).map(|_| u64::MAX),
    }
}

/// What the library's `decode_with` gives, but of some tensors only, or on bases. Reads the stream twice: all of its frames
/// are checked and the last update is found before anything is decoded.
fn last_update(
    bytes: &[u8],
    limits: &Limits,
    names: Option<&HashSet<String>>,
    base: &Arc<Vec<Named>>,
    known: &mut Option<Arc<Manifest>>,
) -> gcodec::Result<Vec<(String, TensorBuf)>> {
    let last = last_update_of(bytes, limits)?;
    let mut open: Option<(Arc<Manifest>, Open)> = None;
    let mut reader = SliceReader::new(bytes, limits.clone());
    while let Some(event) = reader.next_event()? {
        let Event::Frame(info, Body::Update(part)) = event else { continue };
        if info.number < last {
            continue;
        }
        *known = Some(Arc::clone(&part.manifest));
        if part.part == 0 {
            open = Some((Arc::clone(&part.manifest), begin(&part, limits, names, base)?));
        }
        if let Some((_, open)) = &mut open {
            open.get_mut().apply(&part)?;
        }
    }
    let Some((manifest, open)) = open else { return Ok(Vec::new()) };
    let tensors = open.consume(Assembler::finish)?.into_iter();
    Ok(tensors.map(|(number, tensor)| (manifest.tensors()[number as usize].name.clone(), tensor)).collect())
}

/// What a decoder found.
enum Found {
    Update(UpdateHeader, Arc<Manifest>, Vec<(u64, TensorBuf)>),
    Metadata(std::collections::BTreeMap<String, String>),
    End,
}

#[pyclass(module = "gcodec._native")]
pub(crate) struct Decoder {
    inner: gcodec::Decoder,
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
        let inner = gcodec::Decoder::new(limits.clone());
        Self { inner, limits, names, base: Arc::default(), open: None }
    }

    /// The bases of deltas that begin from now on.
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

    /// What comes next: `("update", (header, tensors))`, `("metadata", entries)`, `("end", None)`; `None` if more bytes are
    /// needed first.
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
                        let open = begin(&part, &self.limits, self.names.as_ref(), &self.base)?;
                        self.open = Some((part.header.clone(), Arc::clone(&part.manifest), open));
                    }
                    if let Some((_, _, open)) = &mut self.open {
                        open.get_mut().apply(&part)?;
                    }
                    if part.last
                        && let Some((header, manifest, open)) = self.open.take()
                    {
                        let tensors = open.consume(Assembler::finish)?;
                        return Ok(Some(Found::Update(header, manifest, tensors)));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }
}
