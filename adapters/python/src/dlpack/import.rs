//! Tensors of other libraries: their capsules, what these declare, and the bytes.

use std::ptr::NonNull;
use std::sync::Arc;

use gcodec::{Dtype, TensorView};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

use super::strides::{copy_in_order, is_row_major};
use super::{
    CUDA, HOST, LEGACY, Legacy, MAX_RANK, READ_ONLY, RawTensor, USED_LEGACY, USED_VERSIONED, VERSION_MAJOR,
    VERSIONED, Versioned, dtype_of,
};

/// A tensor taken out of a capsule. Dropping it calls the deleter of its producer.
enum Managed {
    Legacy(NonNull<Legacy>),
    Versioned(NonNull<Versioned>),
}

#[expect(unsafe_code, reason = "the structure of the producer is behind a pointer")]
// SAFETY: this object owns the structure, which is only read. Any thread may drop it, since dropping attaches
// to the interpreter.
unsafe impl Send for Managed {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above; nothing changes through a shared reference.
unsafe impl Sync for Managed {}

impl Managed {
    /// Takes over the tensor that `object` exports through `__dlpack__`.
    ///
    /// `stream`: the stream on which the tensor must be ready, by DLPack's number of it.
    fn of(object: &Bound<'_, PyAny>, stream: Option<usize>) -> PyResult<Self> {
        let py = object.py();
        let keys = PyDict::new(py);
        if let Some(stream) = stream {
            keys.set_item("stream", stream)?;
        }
        let versioned = keys.copy()?;
        versioned.set_item("max_version", (VERSION_MAJOR, 0))?;
        // Producers before DLPack 1.0 do not know `max_version`.
        let capsule = match object.call_method("__dlpack__", (), Some(&versioned)) {
            Err(e) if e.is_instance_of::<PyTypeError>(py) => {
                object.call_method("__dlpack__", (), Some(&keys))?
            }
            capsule => capsule?,
        };
        Self::take(&capsule).ok_or_else(|| PyBufferError::new_err("__dlpack__ returned no DLPack capsule"))
    }

    /// Takes over a plain tensor of PyTorch, whose methods of DLPack are in Python and take ten times as long
    /// as its function in C, which asks nothing but whether the tensor has a history; `None` for other
    /// objects.
    fn of_torch(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        static TORCH: PyOnceLock<(Py<PyType>, Py<PyAny>)> = PyOnceLock::new();
        let py = object.py();
        let (tensor, to_dlpack) = match TORCH.get(py) {
            Some(torch) => torch,
            None if object.get_type().name()? == "Tensor" && object.get_type().module()? == "torch" => TORCH
                .get_or_try_init(py, || {
                    let to_dlpack = py.import("torch.utils.dlpack")?.getattr("to_dlpack")?;
                    Ok::<_, PyErr>((object.get_type().unbind(), to_dlpack.unbind()))
                })?,
            None => return Ok(None),
        };
        match object.get_type().is(tensor) {
            true => Ok(Self::take(&to_dlpack.bind(py).call1((object,))?)),
            false => Ok(None),
        }
    }

    /// Takes the tensor out of a capsule, and renames the capsule, as DLPack requires.
    #[expect(unsafe_code, reason = "capsules are reached through the interpreter's C functions")]
    fn take(capsule: &Bound<'_, PyAny>) -> Option<Self> {
        let pointer = capsule.as_ptr();
        // SAFETY: `pointer` is a live object while `capsule` is. These functions accept any object. The
        // pointer in a valid capsule of that name has the type that DLPack gives it. Renaming takes the
        // tensor over, and cannot fail for a valid capsule; the names are static.
        unsafe {
            if ffi::PyCapsule_IsValid(pointer, VERSIONED.as_ptr()) == 1 {
                let tensor = ffi::PyCapsule_GetPointer(pointer, VERSIONED.as_ptr()).cast::<Versioned>();
                ffi::PyCapsule_SetName(pointer, USED_VERSIONED.as_ptr());
                NonNull::new(tensor).map(Self::Versioned)
            } else if ffi::PyCapsule_IsValid(pointer, LEGACY.as_ptr()) == 1 {
                let tensor = ffi::PyCapsule_GetPointer(pointer, LEGACY.as_ptr()).cast::<Legacy>();
                ffi::PyCapsule_SetName(pointer, USED_LEGACY.as_ptr());
                NonNull::new(tensor).map(Self::Legacy)
            } else {
                None
            }
        }
    }

    #[expect(unsafe_code, reason = "the producer's structure is behind a pointer")]
    fn tensor(&self) -> PyResult<&RawTensor> {
        match self {
            // SAFETY: this object owns the tensor, which lives until the deleter is called in `drop`.
            Self::Legacy(m) => Ok(unsafe { &m.as_ref().tensor }),
            Self::Versioned(m) => {
                // SAFETY: as above; in every version of DLPack the version stands first.
                let major = unsafe { (&raw const (*m.as_ptr()).major).read() };
                if major != VERSION_MAJOR {
                    let message =
                        format!("the tensor has DLPack version {major}; gcodec reads {VERSION_MAJOR}");
                    return Err(PyBufferError::new_err(message));
                }
                // SAFETY: as above.
                Ok(unsafe { &m.as_ref().tensor })
            }
        }
    }

    /// Whether the producer forbids writing. A legacy capsule cannot tell.
    #[expect(unsafe_code, reason = "the producer's structure is behind a pointer")]
    fn is_read_only(&self) -> bool {
        match self {
            Self::Legacy(_) => false,
            // SAFETY: as above.
            Self::Versioned(m) => unsafe { m.as_ref().flags & READ_ONLY != 0 },
        }
    }
}

impl Drop for Managed {
    #[expect(unsafe_code, reason = "the producer's deleter is a C function")]
    fn drop(&mut self) {
        // A deleter may use Python objects, so it needs the interpreter. Without one the process is ending.
        Python::try_attach(|_| {
            let [mut kind, mut value, mut trace] = [std::ptr::null_mut(); 3];
            // SAFETY: the interpreter is attached, and fills the three pointers.
            unsafe { ffi::PyErr_Fetch(&mut kind, &mut value, &mut trace) };
            match self {
                // SAFETY: the capsule was renamed, so this object is the only owner, and calls the deleter
                // once.
                Self::Legacy(m) => unsafe {
                    if let Some(delete) = m.as_ref().deleter {
                        delete(m.as_ptr());
                    }
                },
                // SAFETY: as above.
                Self::Versioned(m) => unsafe {
                    if let Some(delete) = m.as_ref().deleter {
                        delete(m.as_ptr());
                    }
                },
            }
            // A tensor may be dropped while an exception propagates, and a deleter in Python fails if one is
            // set. SAFETY: the pointers come from `PyErr_Fetch`, which gave up its references.
            unsafe { ffi::PyErr_Restore(kind, value, trace) };
        });
    }
}

/// A tensor borrowed from another library: row-major bytes on the host.
pub(crate) struct Borrowed {
    dtype: Dtype,
    shape: Vec<u64>,
    data: *const u8,
    /// Bytes of all elements in row-major order.
    len: usize,
    /// Strides in elements; `None` if the elements are row-major.
    strides: Option<Vec<i64>>,
    /// The elements in row-major order, after [`Borrowed::gather`] has copied them.
    gathered: Option<Vec<u8>>,
    /// Keeps the memory alive.
    managed: Arc<Managed>,
}

#[expect(unsafe_code, reason = "the raw pointer leads to the producer's memory")]
// SAFETY: the producer's memory lives until `managed` is dropped. The memory is only read. A program that
// writes to a tensor while another thread encodes it gets bytes of either state, as with every library that
// releases the interpreter meanwhile.
unsafe impl Send for Borrowed {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above; nothing changes through a shared reference.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// Borrows `object`, which has `__dlpack__`. A tensor of PyTorch is on the host.
    ///
    /// `dtype`: the element type, if the other library has no name for it and exports unsigned integers of
    /// its width.
    pub(crate) fn new(object: &Bound<'_, PyAny>, dtype: Option<Dtype>) -> PyResult<Self> {
        let managed = match Managed::of_torch(object)? {
            Some(managed) => managed,
            None => {
                let (device, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
                check_device(device)?;
                Managed::of(object, None)?
            }
        };
        let raw = managed.tensor()?;
        check_device(raw.device.kind)?;
        let parts = Parts::read(raw, dtype)?;
        let Parts { dtype, shape, data, len, strides } = parts;
        Ok(Self { dtype, shape, data, len, strides, gathered: None, managed: Arc::new(managed) })
    }

    /// Returns a part of a row-major tensor: the elements that a shape and strides lead to from element
    /// `start` on; `None` if the tensor lacks some of them, or has other elements than whole bytes.
    pub(crate) fn part(&self, start: u64, shape: &[u64], strides: &[i64]) -> Option<Self> {
        let width = u64::from(self.dtype.bits() / 8);
        let count = gcodec::internal::elements(shape)?;
        let steps = shape.iter().zip(strides);
        let last = steps.filter(|_| count > 0).try_fold(start, |at, (&n, &stride)| {
            at.checked_add((n - 1).checked_mul(u64::try_from(stride).ok()?)?)
        })?;
        let end = if count > 0 { last.checked_add(1)? } else { start };
        let fits = self.strides.is_none() && shape.len() == strides.len() && shape.len() <= MAX_RANK;
        let fits = fits && width > 0 && end.checked_mul(width)? <= self.len as u64;
        let len = usize::try_from(count.checked_mul(width)?).ok()?;
        fits.then(|| Self {
            dtype: self.dtype,
            shape: shape.to_vec(),
            data: self.data.wrapping_add((start * width) as usize),
            len,
            strides: (!is_row_major(shape, strides)).then(|| strides.to_vec()),
            gathered: None,
            managed: Arc::clone(&self.managed),
        })
    }

    /// Copies the elements into row-major order if they are not.
    #[expect(unsafe_code, reason = "the producer's elements are behind a pointer")]
    pub(crate) fn gather(&mut self) {
        let Some(strides) = self.strides.as_ref().filter(|_| self.gathered.is_none()) else { return };
        let width = (self.dtype.bits() / 8) as usize;
        let mut out = Vec::with_capacity(self.len);
        if self.len > 0 {
            // SAFETY: the producer says that every element which shape and strides lead to can be read, and
            // there is at least one element, so no dimension is 0.
            unsafe { copy_in_order(self.data, &self.shape, strides, width, &mut out) };
        }
        self.gathered = Some(out);
    }

    /// Bytes of all elements in row-major order.
    pub(crate) fn bytes(&self) -> usize {
        self.len
    }

    /// Returns the tensor. Call [`Borrowed::gather`] first.
    #[expect(unsafe_code, reason = "the producer's elements are behind a pointer")]
    pub(crate) fn view(&self) -> gcodec::Result<TensorView<'_>> {
        let data: &[u8] = match (&self.gathered, &self.strides) {
            (Some(gathered), _) => gathered,
            (None, None) if self.len > 0 => {
                // SAFETY: the producer says that a row-major tensor of this shape begins at `data`, which is
                // not null, and a part of one lies inside it. `len` is the number of bytes, at most
                // isize::MAX. `managed` keeps the memory as long as `self`.
                unsafe { std::slice::from_raw_parts(self.data, self.len) }
            }
            _ => &[],
        };
        TensorView::new(self.dtype, &self.shape, data)
    }
}

/// Memory of a tensor on the host that is written to: row-major elements.
pub(crate) struct Writable {
    dtype: Dtype,
    data: *mut u8,
    len: usize,
    /// Keeps the memory alive.
    _managed: Managed,
}

#[expect(unsafe_code, reason = "the raw pointer leads to the producer's memory")]
// SAFETY: as for `Borrowed`; whoever has this object writes to the memory, and no other object of this module
// does meanwhile (`disjoint`).
unsafe impl Send for Writable {}

impl Writable {
    /// Borrows `object`, which has `__dlpack__`.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let managed = Managed::of(object, None)?;
        let raw = managed.tensor()?;
        check_device(raw.device.kind)?;
        let Parts { dtype, data, len, strides, .. } = Parts::read(raw, None)?;
        match (managed.is_read_only(), strides) {
            (true, _) => Err(PyBufferError::new_err("the memory is read-only")),
            (_, Some(_)) => Err(PyBufferError::new_err("the memory is not row-major")),
            _ => Ok(Self { dtype, data: data.cast_mut(), len, _managed: managed }),
        }
    }

    /// The type of the elements.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Whether no two of these have a byte in common.
    pub(crate) fn disjoint<'w>(all: impl Iterator<Item = &'w Self>) -> bool {
        let mut ranges: Vec<_> = all.filter(|w| w.len > 0).map(|w| (w.data.addr(), w.len)).collect();
        ranges.sort_unstable();
        ranges.windows(2).all(|pair| pair[1].0 - pair[0].0 >= pair[0].1)
    }

    /// The bytes, of which no other of these has any.
    #[expect(unsafe_code, reason = "the producer's elements are behind a pointer")]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the producer says that a row-major tensor of `len` bytes, which may be written to, begins
        // at `data`, which is not null. `_managed` keeps the memory as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }
}

/// A tensor in the memory of a CUDA device, as its library describes it. The memory has not been accessed.
pub(crate) struct OnDevice {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) address: u64,
    /// Number of the device.
    pub(crate) ordinal: i32,
    /// For each dimension, how many elements its next index is away; `None` if the elements are row-major.
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) read_only: bool,
    #[expect(dead_code, reason = "dropped with it")]
    pub(crate) keeper: Keeper,
}

/// The owner of borrowed device memory.
pub(crate) struct Keeper(#[expect(dead_code, reason = "dropped with it")] Held);

enum Held {
    Capsule(#[expect(dead_code, reason = "as above")] Managed),
    Object(#[expect(dead_code, reason = "as above")] Py<PyAny>),
}

impl Keeper {
    pub(crate) fn of(object: Py<PyAny>) -> Self {
        Self(Held::Object(object))
    }
}

#[expect(unsafe_code, reason = "the owner of the memory is behind a pointer")]
// SAFETY: as for `Borrowed`; the address is a number here.
unsafe impl Send for OnDevice {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above.
unsafe impl Sync for OnDevice {}

impl OnDevice {
    /// Borrows `object`, which has `__dlpack__` and is on a CUDA device.
    ///
    /// `stream`: DLPack's number of the stream that waits for the work which still writes the tensor.
    pub(crate) fn new(object: &Bound<'_, PyAny>, stream: usize) -> PyResult<Self> {
        let managed = Managed::of(object, Some(stream))?;
        let raw = managed.tensor()?;
        if raw.device.kind != CUDA {
            let kind = raw.device.kind;
            let message = format!("__dlpack__ returned a tensor on DLPack device {kind} instead of CUDA");
            return Err(PyBufferError::new_err(message));
        }
        let ordinal = raw.device.id;
        let Parts { dtype, shape, data, strides, .. } = Parts::read(raw, None)?;
        let address = data.addr() as u64;
        let read_only = managed.is_read_only();
        let keeper = Keeper(Held::Capsule(managed));
        Ok(Self { dtype, shape, address, ordinal, strides, read_only, keeper })
    }
}

fn check_device(device: i32) -> PyResult<()> {
    match HOST.contains(&device) {
        true => Ok(()),
        false => Err(PyBufferError::new_err(format!(
            "the tensor is on DLPack device {device}, whose memory the host cannot read"
        ))),
    }
}

/// The declarations of a DLPack tensor, checked.
struct Parts {
    dtype: Dtype,
    shape: Vec<u64>,
    data: *const u8,
    len: usize,
    strides: Option<Vec<i64>>,
}

impl Parts {
    /// `declared`: the element type, if the producer exports unsigned integers of its width.
    fn read(raw: &RawTensor, declared: Option<Dtype>) -> PyResult<Self> {
        let dtype = element_type(raw, declared)?;
        let rank = usize::try_from(raw.ndim).ok().filter(|&r| r <= MAX_RANK);
        let rank = rank.ok_or_else(|| malformed("its rank is not 0 to 32"))?;
        let shape = match rank {
            0 => Vec::new(),
            _ => list(raw.shape, rank).ok_or_else(|| malformed("it has no shape"))?,
        };
        let shape: Result<Vec<u64>, _> = shape.into_iter().map(u64::try_from).collect();
        let shape = shape.map_err(|_| malformed("a dimension is negative"))?;
        let bytes = gcodec::internal::elements(&shape).and_then(|n| dtype.bytes_for(n));
        let len = bytes.and_then(|b| isize::try_from(b).ok()).ok_or_else(|| malformed("it is too large"))?;
        let strides = match rank {
            0 => None,
            _ => list(raw.strides, rank).filter(|strides| !is_row_major(&shape, strides)),
        };
        let offset = isize::try_from(raw.byte_offset).map_err(|_| malformed("its offset is too large"))?;
        if len > 0 && raw.data.is_null() {
            return Err(malformed("it has no data"));
        }
        if let Some(strides) = &strides {
            check_reach(&shape, strides, i64::from(dtype.bits() / 8))?;
        }
        let data = raw.data.cast::<u8>().wrapping_offset(offset);
        Ok(Self { dtype, shape, data, len: len as usize, strides })
    }
}

fn malformed(why: &str) -> PyErr {
    PyBufferError::new_err(format!("malformed DLPack tensor: {why}"))
}

fn element_type(raw: &RawTensor, declared: Option<Dtype>) -> PyResult<Dtype> {
    let given = dtype_of(raw.dtype)?;
    match declared {
        None => Ok(given),
        Some(dtype) if dtype == given => Ok(given),
        Some(dtype) if raw.dtype.code == 1 && dtype.bits() == given.bits() => Ok(dtype),
        Some(dtype) => {
            Err(PyTypeError::new_err(format!("elements of type {given} cannot be taken for {dtype}")))
        }
    }
}

/// Copies a list with one entry for each dimension; `None` if there is none.
#[expect(unsafe_code, reason = "the producer's lists are behind pointers")]
fn list(pointer: *const i64, rank: usize) -> Option<Vec<i64>> {
    // SAFETY: the pointer is not null, and the producer says that it leads to one entry for each dimension.
    (!pointer.is_null()).then(|| unsafe { std::slice::from_raw_parts(pointer, rank) }.to_vec())
}

/// Checks that the distance to the farthest element, in bytes, fits an address. `width`: bytes of an element.
fn check_reach(shape: &[u64], strides: &[i64], width: i64) -> PyResult<()> {
    let reach = shape.iter().zip(strides).try_fold(0i64, |sum, (&n, &stride)| {
        let steps = i64::try_from(n.saturating_sub(1)).ok()?;
        sum.checked_add(steps.checked_mul(stride.checked_abs()?)?.checked_mul(width)?)
    });
    reach.map(drop).ok_or_else(|| malformed("its strides are too large"))
}
