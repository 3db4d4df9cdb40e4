//! Tensors of this module for other libraries: the shared buffer, and DLPack capsules of it.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use gcodec::{Dtype, TensorBuf};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::strides::row_major;
use super::{CPU, DataType, Device, LEGACY, Legacy, RawTensor, VERSION_MAJOR, VERSIONED, Versioned, code_of};

/// A buffer that other libraries may share, read and write through DLPack. Rust code holds no reference into
/// it.
pub(crate) struct Buffer {
    start: *mut u8,
    len: usize,
    /// The owner of the bytes, through which nothing reaches them.
    _owner: Box<dyn Send + Sync>,
}

#[expect(unsafe_code, reason = "the raw pointer hides that this is memory only")]
// SAFETY: the buffer is memory, without thread-bound state. A program that writes to it in one thread and
// reads it in another does so through another library, with the same rules as for that library's tensors.
unsafe impl Send for Buffer {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes over the bytes of a tensor.
    pub(crate) fn new(mut tensor: TensorBuf) -> Arc<Self> {
        let data = tensor.data_mut();
        // The bytes keep their address when their owner is moved.
        let (start, len) = (data.as_mut_ptr(), data.len());
        Arc::new(Self { start, len, _owner: Box::new(tensor) })
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.start.addr()
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies the bytes to `out`, up to the shorter length.
    #[expect(unsafe_code, reason = "the buffer is known by its address only")]
    pub(crate) fn copy_to(&self, out: &mut [u8]) {
        let len = self.len().min(out.len());
        // SAFETY: the buffer has `len` initialised bytes, `out` has room for `len`, and they do not overlap.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping(self.start, len) };
    }

    /// Returns a copy of the buffer.
    pub(crate) fn copied(&self) -> Arc<Self> {
        let mut out = vec![0; self.len()];
        self.copy_to(&mut out);
        let (start, len) = (out.as_mut_ptr(), out.len());
        Arc::new(Self { start, len, _owner: Box::new(out) })
    }
}

/// The contents of an exported capsule. The pointers of `managed` lead to the lists.
struct Export<M> {
    managed: M,
    _lists: [Vec<i64>; 2],
    _buffer: Arc<Buffer>,
}

fn raw_tensor(buffer: &Buffer, dtype: DataType, lists: &mut [Vec<i64>; 2]) -> RawTensor {
    let [shape, strides] = lists;
    RawTensor {
        data: if buffer.len == 0 { std::ptr::null_mut() } else { buffer.start.cast() },
        device: Device { kind: CPU, id: 0 },
        ndim: shape.len() as i32,
        dtype,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    }
}

/// The deleter of a legacy capsule's tensor.
#[expect(unsafe_code, reason = "DLPack calls it with a raw pointer")]
unsafe extern "C" fn delete_legacy(managed: *mut Legacy) {
    if !managed.is_null() {
        // SAFETY: `context` is the box that `export` made, and DLPack calls a deleter once.
        drop(unsafe { Box::from_raw((*managed).context.cast::<Export<Legacy>>()) });
    }
}

/// The deleter of a versioned capsule's tensor.
#[expect(unsafe_code, reason = "as above")]
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    if !managed.is_null() {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw((*managed).context.cast::<Export<Versioned>>()) });
    }
}

/// Frees the tensor of a legacy capsule that no consumer took.
#[expect(unsafe_code, reason = "the interpreter calls it with a raw pointer")]
unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter passes a capsule that `capsule` made. A consumer that took the tensor has
    // renamed it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) == 1 {
            delete_legacy(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
        }
    }
}

/// Frees the tensor of a versioned capsule that no consumer took.
#[expect(unsafe_code, reason = "as above")]
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// Returns a capsule of `buffer`, versioned if the consumer's `max_version` allows it.
pub(crate) fn export<'py>(
    py: Python<'py>,
    buffer: Arc<Buffer>,
    dtype: Dtype,
    shape: &[u64],
    max_version: Option<&Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    let code = code_of(dtype).ok_or_else(|| {
        PyBufferError::new_err(format!("DLPack has no element type for {dtype}: take bits(), the bytes"))
    })?;
    let dims: Result<Vec<i64>, _> = shape.iter().map(|&d| i64::try_from(d)).collect();
    let dims =
        dims.map_err(|_| PyBufferError::new_err("a dimension exceeds 63 bits, which DLPack allows"))?;
    let strides = row_major(shape);
    let mut lists = [dims, strides];
    let wanted = match max_version {
        Some(version) => version.get_item(0)?.extract::<u32>()?,
        None => 0,
    };
    // Moving `lists` into a box below leaves the contents of the vectors where they are.
    let tensor = raw_tensor(&buffer, code, &mut lists);
    match wanted >= VERSION_MAJOR {
        true => versioned_capsule(py, tensor, lists, buffer),
        false => legacy_capsule(py, tensor, lists, buffer),
    }
}

#[expect(unsafe_code, reason = "a capsule holds a raw pointer")]
fn versioned_capsule(
    py: Python<'_>,
    tensor: RawTensor,
    lists: [Vec<i64>; 2],
    buffer: Arc<Buffer>,
) -> PyResult<Bound<'_, PyAny>> {
    let managed = Versioned {
        major: VERSION_MAJOR,
        minor: 0,
        context: std::ptr::null_mut(),
        deleter: Some(delete_versioned),
        flags: 0,
        tensor,
    };
    let export = Box::into_raw(Box::new(Export { managed, _lists: lists, _buffer: buffer }));
    // SAFETY: `export` is a live box made above; `managed` keeps its address until the deleter frees the box.
    unsafe {
        (*export).managed.context = export.cast();
        capsule(py, (&raw mut (*export).managed).cast(), VERSIONED, drop_versioned)
            .inspect_err(|_| drop(Box::from_raw(export)))
    }
}

#[expect(unsafe_code, reason = "as above")]
fn legacy_capsule(
    py: Python<'_>,
    tensor: RawTensor,
    lists: [Vec<i64>; 2],
    buffer: Arc<Buffer>,
) -> PyResult<Bound<'_, PyAny>> {
    let managed = Legacy { tensor, context: std::ptr::null_mut(), deleter: Some(delete_legacy) };
    let export = Box::into_raw(Box::new(Export { managed, _lists: lists, _buffer: buffer }));
    // SAFETY: as above.
    unsafe {
        (*export).managed.context = export.cast();
        capsule(py, (&raw mut (*export).managed).cast(), LEGACY, drop_legacy)
            .inspect_err(|_| drop(Box::from_raw(export)))
    }
}

/// Makes a capsule.
///
/// # Safety
/// `destructor` may be called once with the capsule, and frees `pointer`.
#[expect(unsafe_code, reason = "a capsule holds a raw pointer")]
unsafe fn capsule<'py>(
    py: Python<'py>,
    pointer: *mut c_void,
    name: &'static CStr,
    destructor: ffi::PyCapsule_Destructor,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the pointer is not null, the name is static, and the result is a new reference, or null with an
    // exception.
    unsafe {
        let capsule = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}
