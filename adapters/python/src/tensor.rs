//! `gcodec.Tensor`: a decoded tensor on the host.

use std::sync::Arc;

use gcodec::{Dtype, TensorBuf};
use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::dlpack::{self, Buffer};
use crate::errors;

/// A tensor whose buffer other libraries may share.
#[pyclass(frozen, module = "gcodec")]
pub(crate) struct Tensor {
    dtype: Dtype,
    shape: Vec<u64>,
    buffer: Arc<Buffer>,
}

impl Tensor {
    pub(crate) fn of(tensor: TensorBuf) -> Self {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        Self { dtype, shape, buffer: Buffer::new(tensor) }
    }
}

/// Calls a conversion of `gcodec/_tensors/dlpack.py`.
fn convert<'py>(tensor: Bound<'py, Tensor>, to: &str) -> PyResult<Bound<'py, PyAny>> {
    tensor.py().import("gcodec._tensors.dlpack")?.getattr(to)?.call1((tensor,))
}

#[pymethods]
impl Tensor {
    /// `data`: the elements as little-endian bytes, row-major.
    #[new]
    fn new(py: Python<'_>, dtype: &str, shape: Vec<u64>, data: &Bound<'_, PyBytes>) -> PyResult<Self> {
        let dtype = Dtype::from_name(dtype)
            .ok_or_else(|| errors::input(py, &format!("gcodec has no element type {dtype:?}")))?;
        let tensor = TensorBuf::new(dtype, shape, data.as_bytes().to_vec());
        Ok(Self::of(tensor.map_err(|e| errors::raise(py, e, None))?))
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[getter]
    fn size(&self) -> u64 {
        gcodec::internal::elements(&self.shape).unwrap_or(0)
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.dtype.bytes_for(self.size()).unwrap_or(0)
    }

    #[getter]
    fn data_ptr(&self) -> usize {
        self.buffer.address()
    }

    fn bits(&self) -> Self {
        let shape = match self.dtype.bits() {
            4 => vec![self.nbytes()],
            _ => self.shape.clone(),
        };
        let dtype = match self.dtype.bits() {
            16 => Dtype::U16,
            32 => Dtype::U32,
            64 => Dtype::U64,
            _ => Dtype::U8,
        };
        Self { dtype, shape, buffer: Arc::clone(&self.buffer) }
    }

    fn numpy<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        convert(slf, "to_numpy")
    }

    fn torch<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        convert(slf, "to_torch")
    }

    fn jax<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        convert(slf, "to_jax")
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Tensor({}, {})", self.dtype, self.shape(py)?.repr()?))
    }

    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, self.buffer.len(), |out| {
            self.buffer.copy_to(out);
            Ok(())
        })
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self
            .shape
            .first()
            .ok_or_else(|| PyIndexError::new_err("a tensor without dimensions has no length"))?;
        Ok(*first as usize)
    }

    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (&'static str, Vec<u64>, Bound<'py, PyBytes>))> {
        let class = py.import("gcodec")?.getattr("Tensor")?;
        Ok((class, (self.dtype.name(), self.shape.clone(), self.tobytes(py)?)))
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<Bound<'py, PyTuple>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // The host has no streams.
        let _ = stream;
        if dl_device.is_some_and(|device| device != (dlpack::CPU, 0)) {
            return Err(PyBufferError::new_err(
                "the tensor is on the host, and gcodec does not copy it to a device: use the other library's copy",
            ));
        }
        let buffer = match copy {
            Some(true) => self.buffer.copied(),
            _ => Arc::clone(&self.buffer),
        };
        dlpack::export(py, buffer, self.dtype, &self.shape, max_version.as_ref())
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }
}
