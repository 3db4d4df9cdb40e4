//! Tensors to streams: the encoder, and codecs by their specification.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::time::Instant;

use gcodec::Codec;
use gcodec::block::Profile;
use gcodec::frame::Metadata;
use gcodec::stream::{EncodeOptions, Output};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::Failure;
use crate::feedback::{Dgc, Feedback};
use crate::named::{Given, borrow, views};
use crate::update::{Arguments, Compressed, Memory, Prepared};
use crate::{errors, threads};

/// Parses a codec's specification.
pub(crate) fn parse(py: Python<'_>, spec: &str) -> PyResult<Codec> {
    spec.parse().map_err(|e: gcodec::compress::SpecError| errors::input(py, &e.to_string()))
}

/// Returns a codec's specification in canonical form.
#[pyfunction]
pub(crate) fn canonical(py: Python<'_>, spec: &str) -> PyResult<String> {
    Ok(parse(py, spec)?.to_string())
}

/// Whether decoded values may differ from the encoded ones.
#[pyfunction]
pub(crate) fn is_lossy(py: Python<'_>, spec: &str) -> PyResult<bool> {
    Ok(parse(py, spec)?.is_lossy())
}

/// Runs the library's own `encode`, the reference for benchmarks of the package. Returns the bytes, if
/// `keep`, and the seconds.
#[pyfunction]
pub(crate) fn library_encode<'py>(
    py: Python<'py>,
    tensors: Given<'py>,
    codec: &str,
    keep: bool,
) -> PyResult<(Option<Bound<'py, PyBytes>>, f64)> {
    let codec = parse(py, codec)?;
    let mut tensors = borrow(tensors)?;
    let encoded = threads::run(py, || {
        let views = views(&mut tensors)?;
        let start = Instant::now();
        let bytes = gcodec::encode(&views, &codec)?;
        Ok((bytes, start.elapsed().as_secs_f64()))
    })?;
    let (bytes, seconds) = encoded.map_err(|e| errors::raise(py, e, None))?;
    Ok((keep.then(|| PyBytes::new(py, &bytes)), seconds))
}

/// Encoded frames with the buffer protocol, for a file or a socket, without a copy.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct Encoded {
    bytes: Vec<u8>,
    seconds: (f64, f64),
}

impl Encoded {
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, seconds: (0.0, 0.0) }
    }
}

#[pymethods]
impl Encoded {
    /// Seconds that compressing took, and that coding the blocks took. Without sender state, dense codecs
    /// compress large tensors while they code them.
    #[getter]
    fn seconds(&self) -> (f64, f64) {
        self.seconds
    }

    /// # Safety
    /// `view` is a buffer view that the interpreter wants filled.
    #[expect(unsafe_code, reason = "the buffer protocol fills a C structure")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        // SAFETY: the view is read-only and holds a reference to `slf`, which is frozen. So the bytes stay in
        // place and unchanged until the view is released.
        let filled = unsafe {
            let data = bytes.as_ptr().cast_mut().cast();
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data, bytes.len() as ffi::Py_ssize_t, 1, flags)
        };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// An encoder of a stream.
#[pyclass(module = "gcodec._native")]
pub(crate) struct Encoder {
    inner: gcodec::stream::Encoder,
}

#[pymethods]
impl Encoder {
    /// `profile`: the name of a profile of the format.
    #[new]
    #[pyo3(signature = (part_bytes, index, compress, profile="full"))]
    fn new(py: Python<'_>, part_bytes: u64, index: bool, compress: bool, profile: &str) -> PyResult<Self> {
        let unknown = || errors::input(py, &format!("unknown profile {profile:?}: full or core"));
        let profile = Profile::from_name(profile).ok_or_else(unknown)?;
        let options = EncodeOptions::default().with_part_bytes(part_bytes).with_profile(profile);
        Ok(Self { inner: gcodec::stream::Encoder::new(options.with_index(index).with_compress(compress)) })
    }

    /// Encodes an update. `finish`: and the end of the stream.
    #[pyo3(signature = (update, finish=false))]
    fn update(&mut self, py: Python<'_>, update: Arguments<'_>, finish: bool) -> PyResult<Encoded> {
        let (mut bytes, update) = (Vec::new(), Prepared::new(py, update)?);
        let seconds = self.run(py, update, &mut bytes, finish)?;
        Ok(Encoded { bytes, seconds })
    }

    /// Encodes an update and the end of the stream as a `bytes` object.
    fn whole<'py>(&mut self, py: Python<'py>, update: Arguments<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let update = Prepared::new(py, update)?;
        let mut bytes = update.reserve(py);
        self.run(py, update, &mut bytes, true)?;
        bytes.finish(py)
    }

    /// Encodes an update, and calls `put` with each part before it makes the next. After an exception of
    /// `put`, the encoder is as it was before the update.
    fn write(&mut self, py: Python<'_>, update: Arguments<'_>, put: Py<PyAny>) -> PyResult<()> {
        let Prepared { mut contents, feedback, dgc, remember } = Prepared::new(py, update)?;
        let senders = Senders { feedback: feedback.as_deref(), dgc: dgc.as_deref(), remember };
        let pool = threads::pool()?;
        let (inner, mut known) = (&mut self.inner, None);
        let result = py.detach(|| {
            let (mut update, mut head) = (None, None);
            // The state is locked for the first part only, because `put` may use it.
            let first = senders.with(|memory| {
                pool.install(|| {
                    let update = update.insert(contents.update(&mut known)?);
                    let Compressed { header, manifest, blocks, .. } = update.compressed(memory)?;
                    let (header, manifest) = head.insert((header, manifest));
                    let (mut parts, mut part) = (inner.parts(header, manifest, blocks)?, Vec::new());
                    let more = parts.write_next(&mut part)?;
                    Ok::<_, Failure>((parts, part, more))
                })
            });
            let (mut parts, mut part, mut more) = first?;
            loop {
                // Called on this thread, while those of the pool are free: it may wait for a reader in this
                // process, which needs them. Signals and context variables are those of this thread, too.
                Python::attach(|py| put.call1(py, (Encoded::of(part),)))?;
                if !more {
                    break;
                }
                part = Vec::new();
                more = pool.install(|| parts.write_next(&mut part))?;
            }
            parts.finish();
            if let Some(update) = update {
                update.keep();
            }
            Ok(())
        });
        result.map_err(|e| errors::raise_failure(py, e, known.as_deref()))
    }

    /// Encodes a metadata frame.
    fn metadata(&mut self, entries: BTreeMap<String, String>) -> Encoded {
        let mut out = Vec::new();
        self.inner.metadata(&mut out, &Metadata { entries });
        Encoded::of(out)
    }

    /// Encodes the end of the stream.
    fn finish(&mut self) -> Encoded {
        let mut out = Vec::new();
        self.inner.finish(&mut out);
        Encoded::of(out)
    }
}

impl Encoder {
    /// Encodes an update. Returns the seconds that compressing and coding took.
    fn run(
        &mut self,
        py: Python<'_>,
        update: Prepared<'_>,
        out: &mut dyn Output,
        finish: bool,
    ) -> PyResult<(f64, f64)> {
        let Prepared { mut contents, feedback, dgc, remember } = update;
        let senders = Senders { feedback: feedback.as_deref(), dgc: dgc.as_deref(), remember };
        let pool = threads::pool()?;
        let (inner, mut known) = (&mut self.inner, None);
        let result = py.detach(|| {
            senders.with(|memory| {
                pool.install(|| {
                    let start = Instant::now();
                    let mut update = contents.update(&mut known)?;
                    let Compressed { header, manifest, blocks, time } = update.compressed(memory)?;
                    inner.update(out, &header, &manifest, blocks)?;
                    update.keep();
                    if finish {
                        inner.finish(out);
                    }
                    let coding = start.elapsed().saturating_sub(time);
                    Ok((time.as_secs_f64(), coding.as_secs_f64()))
                })
            })
        });
        result.map_err(|e| errors::raise_failure(py, e, known.as_deref()))
    }
}

/// The sender state that an update names.
struct Senders<'a> {
    feedback: Option<&'a Feedback>,
    dgc: Option<&'a Dgc>,
    /// Whether the feedback holds residuals.
    remember: bool,
}

impl Senders<'_> {
    /// Locks the state for some work.
    fn with<T>(&self, work: impl FnOnce(Memory<'_>) -> T) -> T {
        // Locked on this thread instead of a thread of the pool, which takes up other work while it waits
        // for its own: that work may need the same lock.
        let (mut feedback, mut dgc) = (self.feedback.map(Feedback::lock), self.dgc.map(Dgc::lock));
        work(match (feedback.as_deref_mut(), dgc.as_deref_mut()) {
            (_, Some(dgc)) => Memory::Dgc(dgc),
            (Some(kept), None) if self.remember => Memory::Feedback(kept),
            (Some(kept), None) => Memory::Work(kept),
            (None, None) => Memory::None,
        })
    }
}
