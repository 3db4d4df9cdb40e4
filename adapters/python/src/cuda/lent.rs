//! Tensors in device memory, borrowed from other libraries.

use gcodec::Dtype;
use gcodec_cuda::{Device, DeviceTensor, DeviceView, Stream};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{device, device_of};
use crate::dlpack::{Keeper, MAX_RANK, OnDevice, is_row_major, row_major};
use crate::errors;

/// A borrowed tensor in device memory, for work in one stream.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct Lent {
    tensor: OnDevice,
    stream: usize,
}

/// Returns the driver's number of a stream.
///
/// The legacy stream has the numbers 0 and 1. Number 2 is the calling thread's own stream, which another
/// thread cannot name. That stream synchronises with the legacy stream, as every blocking stream does, so the
/// work runs in the legacy stream.
fn raw_stream(number: usize) -> usize {
    if number <= 2 { 0 } else { number }
}

/// Returns the stream with a number.
#[expect(unsafe_code, reason = "streams come as numbers")]
pub(super) fn stream(raw: usize) -> Stream {
    // SAFETY: the Python program says that the stream exists, as with every CUDA library for Python.
    unsafe { Stream::from_raw(raw) }
}

/// Borrows `object`, which has `__dlpack__` or `__cuda_array_interface__`, for work in the stream `number`.
///
/// `device`: the device of a tensor without elements that does not name its own. `dtype`: the element type,
/// if the interface has no name for it and gives unsigned integers of its width.
#[pyfunction]
pub(crate) fn lend(
    object: &Bound<'_, PyAny>,
    number: usize,
    device: i32,
    dtype: Option<&str>,
) -> PyResult<Lent> {
    let py = object.py();
    let number = raw_stream(number);
    let mut tensor = match object.hasattr("__dlpack_device__")? {
        // DLPack numbers the legacy stream 1.
        true => OnDevice::new(object, number.max(1))?,
        false => by_array_interface(object, number, device, dtype.is_some())?,
    };
    if let Some(text) = dtype {
        let dtype = Dtype::from_name(text);
        let dtype =
            dtype.ok_or_else(|| errors::input(py, &format!("gcodec has no element type {text:?}")))?;
        let unsigned = matches!(tensor.dtype, Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64);
        if dtype != tensor.dtype && !(unsigned && dtype.bits() == tensor.dtype.bits()) {
            let given = tensor.dtype;
            return Err(PyTypeError::new_err(format!(
                "elements of type {given} cannot be taken for {dtype}"
            )));
        }
        tensor.dtype = dtype;
    }
    Ok(Lent { tensor, stream: number })
}

/// Borrows the tensor at an address, whose owner is `object`, for work in a stream in which its library has
/// put the work that writes it. `data`: address and element type; `strides`: in elements; `place`: numbers of
/// the device and of the stream.
///
/// For PyTorch's tensors in its current stream, which an export by DLPack would find anew for each.
#[pyfunction]
pub(crate) fn lend_at(
    object: &Bound<'_, PyAny>,
    data: (u64, String),
    shape: Vec<u64>,
    strides: Vec<i64>,
    place: (i32, usize),
) -> PyResult<Lent> {
    let ((address, dtype), (device, number)) = (data, place);
    let unknown = || errors::input(object.py(), &format!("gcodec has no element type {dtype:?}"));
    let dtype = Dtype::from_name(&dtype).ok_or_else(unknown)?;
    if shape.len() != strides.len() || shape.len() > MAX_RANK {
        let message = "a tensor's strides and its shape have different lengths, or its rank is above 32";
        return Err(PyBufferError::new_err(message));
    }
    let strides = Some(strides).filter(|strides| !is_row_major(&shape, strides));
    let keeper = Keeper::of(object.clone().unbind());
    let tensor = OnDevice { dtype, shape, address, ordinal: device, strides, read_only: false, keeper };
    Ok(Lent { tensor, stream: raw_stream(number) })
}

/// The fields of a `__cuda_array_interface__`.
struct Interface<'py>(Bound<'py, PyDict>);

impl<'py> Interface<'py> {
    fn field(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.get_item(name).map(|v| v.filter(|v| !v.is_none()))
    }

    fn needed<T: for<'a> FromPyObject<'a, 'py>>(&self, name: &str) -> PyResult<T> {
        let value = self.field(name)?.ok_or_else(|| wrong(&format!("it has no {name}")))?;
        value.extract().map_err(|_| wrong(&format!("its {name} has the wrong type")))
    }

    /// The strides in elements; `None` if the elements are row-major.
    fn strides(&self, shape: &[u64], dtype: Dtype) -> PyResult<Option<Vec<i64>>> {
        let width = i64::from(dtype.bits() / 8);
        if self.field("strides")?.is_none() {
            return Ok(None);
        }
        let bytes: Vec<i64> = self.needed("strides")?;
        if bytes.len() != shape.len() {
            return Err(wrong("its strides and its shape have different lengths"));
        }
        if bytes.iter().any(|b| b % width != 0) {
            return Err(wrong("its strides are no whole elements"));
        }
        let elements: Vec<i64> = bytes.iter().map(|b| b / width).collect();
        Ok(Some(elements).filter(|elements| !is_row_major(shape, elements)))
    }

    /// Returns the number of the stream that writes the tensor, if other streams must wait for it.
    fn producer(&self) -> PyResult<Option<usize>> {
        let producer = match self.field("stream")? {
            Some(_) => Some(self.needed("stream")?),
            // Version 2 has no such field. All blocking streams synchronise with the legacy default stream.
            None => (self.needed::<u32>("version")? < 3).then_some(1),
        };
        match producer {
            Some(0) => Err(wrong("its stream is 0, which does not tell which default stream")),
            producer => Ok(producer),
        }
    }
}

fn wrong(why: &str) -> PyErr {
    PyBufferError::new_err(format!("__cuda_array_interface__: {why}"))
}

/// Borrows a tensor through the CUDA Array Interface, version 2 or 3.
fn by_array_interface(
    object: &Bound<'_, PyAny>,
    number: usize,
    otherwise: i32,
    declared: bool,
) -> PyResult<OnDevice> {
    let py = object.py();
    let given = object.getattr("__cuda_array_interface__")?;
    let given = Interface(given.cast_into().map_err(|_| wrong("it is not a dict"))?);
    if given.field("mask")?.is_some() {
        return Err(wrong("it has a mask, which gcodec does not support"));
    }
    let shape: Vec<u64> = given.needed("shape")?;
    let (address, read_only): (u64, bool) = given.needed("data")?;
    let typestr: String = given.needed("typestr")?;
    let dtype = dtype_of(&typestr, declared)?;
    let strides = given.strides(&shape, dtype)?;
    let empty = shape.contains(&0);
    // A tensor without elements has no address.
    let ordinal = if empty { otherwise } else { device_of(py, address)? };
    if let Some(producer) = given.producer()?
        && !empty
    {
        // The number 2, this thread's own stream, is valid here, because this thread uses it.
        let earlier = stream(if producer == 1 { 0 } else { producer });
        let ordered = py.detach(|| device(ordinal)?.order(earlier, stream(number)));
        ordered.map_err(|e| errors::raise_cuda(py, e, None))?;
    }
    let keeper = Keeper::of(object.clone().unbind());
    Ok(OnDevice { dtype, shape, address, ordinal, strides, read_only, keeper })
}

/// Returns the element type of a `typestr`. `declared`: whether the caller knows the type of raw bytes.
fn dtype_of(typestr: &str, declared: bool) -> PyResult<Dtype> {
    let dtype = match typestr.trim_start_matches(['<', '|', '=']) {
        "f8" => Dtype::F64,
        "f4" => Dtype::F32,
        "f2" => Dtype::F16,
        "i1" => Dtype::I8,
        "i2" => Dtype::I16,
        "i4" => Dtype::I32,
        "i8" => Dtype::I64,
        "u1" => Dtype::U8,
        "u2" => Dtype::U16,
        "u4" => Dtype::U32,
        "u8" => Dtype::U64,
        "b1" => Dtype::Bool,
        // Raw bytes, whose type the caller knows.
        "V1" if declared => Dtype::U8,
        "V2" if declared => Dtype::U16,
        _ => return Err(PyTypeError::new_err(format!("gcodec has no element type for {typestr:?}"))),
    };
    Ok(dtype)
}

#[pymethods]
impl Lent {
    /// Number of the device.
    #[getter]
    fn device(&self) -> i32 {
        self.tensor.ordinal
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.tensor.dtype.name()
    }

    #[getter]
    fn shape(&self) -> Vec<u64> {
        self.tensor.shape.clone()
    }

    /// Whether the elements are row-major.
    #[getter]
    fn contiguous(&self) -> bool {
        self.tensor.strides.is_none()
    }

    #[getter]
    fn read_only(&self) -> bool {
        self.tensor.read_only
    }
}

impl Lent {
    /// Returns the element type and the shape.
    pub(crate) fn of(&self) -> (Dtype, &[u64]) {
        (self.tensor.dtype, &self.tensor.shape)
    }

    /// Returns the size of all elements in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let elements = gcodec::internal::elements(&self.tensor.shape).unwrap_or(0);
        self.tensor.dtype.bytes_for(elements).unwrap_or(0)
    }

    /// Returns the number of the device.
    pub(crate) fn ordinal(&self) -> i32 {
        self.tensor.ordinal
    }

    /// Returns the stream that the tensor was borrowed for.
    pub(super) fn stream(&self) -> Stream {
        stream(self.stream)
    }

    /// Returns the tensor, checked.
    #[expect(unsafe_code, reason = "device memory is known by its address only")]
    pub(crate) fn view(&self, device: &Device) -> gcodec_cuda::Result<DeviceTensor<'_>> {
        let OnDevice { address, dtype, shape, .. } = &self.tensor;
        // SAFETY: the producer says that a row-major tensor of this type and shape is at this address while
        // it is borrowed, and `lend` has put the work that writes it before the stream's work. A program that
        // writes to the tensor meanwhile gets bytes of either state, as with tensors on the host.
        unsafe { DeviceTensor::from_raw(device, *address, *dtype, shape) }
    }

    /// For each dimension, how many elements its next index is away.
    pub(super) fn strides(&self) -> Vec<i64> {
        let OnDevice { shape, strides, .. } = &self.tensor;
        strides.clone().unwrap_or_else(|| row_major(shape))
    }

    /// Returns the tensor with these strides, which are its own, checked, to be read.
    #[expect(unsafe_code, reason = "device memory is known by its address only")]
    pub(super) fn strided<'a>(
        &'a self,
        device: &Device,
        strides: &'a [i64],
    ) -> gcodec_cuda::Result<DeviceView<'a>> {
        let OnDevice { address, dtype, shape, .. } = &self.tensor;
        // SAFETY: as in `view`.
        unsafe { DeviceView::from_raw(device, *address, *dtype, shape, strides) }
    }
}
