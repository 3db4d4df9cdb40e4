//! DLPack, by hand: tensors of other libraries as bytes without a copy, and ours for them.
//!
//! The structures are those of `dlpack.h` 1.1. Both capsules are taken, `dltensor_versioned` and the older `dltensor`; what
//! they declare is checked before it is used, except for what no consumer can check: that the memory is there.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use gcodec::{Dtype, TensorView};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

pub(crate) const CPU: i32 = 1;
pub(crate) const CUDA: i32 = 2;
/// Devices whose memory the host reads as its own: CPU, CUDA's and ROCm's pinned memory.
const HOST: [i32; 3] = [CPU, 3, 11];
const READ_ONLY: u64 = 1;
const MAX_RANK: usize = 32;
const VERSION_MAJOR: u32 = 1;

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const USED_LEGACY: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Legacy {
    tensor: RawTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: RawTensor,
}

/// DLPack's codes and ours. Codes: 0 int, 1 unsigned, 2 float, 4 bfloat, 6 bool, 10 to 13 the 8-bit floats.
const TYPES: [(u8, u8, Dtype); 17] = [
    (2, 64, Dtype::F64),
    (2, 32, Dtype::F32),
    (2, 16, Dtype::F16),
    (4, 16, Dtype::Bf16),
    (10, 8, Dtype::F8E4M3Fn),
    (11, 8, Dtype::F8E4M3Fnuz),
    (12, 8, Dtype::F8E5M2),
    (13, 8, Dtype::F8E5M2Fnuz),
    (0, 8, Dtype::I8),
    (0, 16, Dtype::I16),
    (0, 32, Dtype::I32),
    (0, 64, Dtype::I64),
    (1, 8, Dtype::U8),
    (1, 16, Dtype::U16),
    (1, 32, Dtype::U32),
    (1, 64, Dtype::U64),
    (6, 8, Dtype::Bool),
];

fn dtype_of(raw: DataType) -> PyResult<Dtype> {
    let found = TYPES.iter().find(|(code, bits, _)| (*code, *bits, 1) == (raw.code, raw.bits, raw.lanes));
    found.map(|(_, _, dtype)| *dtype).ok_or_else(|| {
        let DataType { code, bits, lanes } = raw;
        PyTypeError::new_err(format!(
            "gcodec has no element type for DLPack's code {code} with {bits} bits and {lanes} lanes; view the tensor as unsigned integers"
        ))
    })
}

fn code_of(dtype: Dtype) -> Option<DataType> {
    let found = TYPES.iter().find(|(_, _, of)| *of == dtype);
    found.map(|&(code, bits, _)| DataType { code, bits, lanes: 1 })
}

/// Whose deleter frees a borrowed tensor.
enum Managed {
    Legacy(NonNull<Legacy>),
    Versioned(NonNull<Versioned>),
}

impl Managed {
    /// What `object`, which has `__dlpack__`, gives; it is then ours. `stream`: on which it is to be ready, as DLPack numbers streams.
    fn of(object: &Bound<'_, PyAny>, stream: Option<usize>) -> PyResult<Self> {
        let py = object.py();
        let keys = PyDict::new(py);
        if let Some(stream) = stream {
            keys.set_item("stream", stream)?;
        }
        let versioned = keys.copy()?;
        versioned.set_item("max_version", (VERSION_MAJOR, 0))?;
        let capsule = match object.call_method("__dlpack__", (), Some(&versioned)) {
            Err(e) if e.is_instance_of::<PyTypeError>(py) => {
                object.call_method("__dlpack__", (), Some(&keys))?
            }
            capsule => capsule?,
        };
        let pointer = capsule.as_ptr();
        // SAFETY: `pointer` is a live object for as long as `capsule`; these calls accept any object, and a pointer that a
        // capsule of that name holds is what the protocol says. Renaming takes the tensor over, and cannot fail for a
        // capsule that was found valid; the names are static.
        let managed = unsafe {
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
        };
        managed.ok_or_else(|| PyBufferError::new_err("__dlpack__ gave no tensor"))
    }

    fn tensor(&self) -> PyResult<&RawTensor> {
        match self {
            // SAFETY: the tensor is ours until `self` is dropped.
            Self::Legacy(m) => Ok(unsafe { &m.as_ref().tensor }),
            Self::Versioned(m) => {
                // SAFETY: as above; the version stands first in every version.
                let major = unsafe { (&raw const (*m.as_ptr()).major).read() };
                if major != VERSION_MAJOR {
                    return Err(PyBufferError::new_err(format!(
                        "DLPack {major} is not DLPack {VERSION_MAJOR}"
                    )));
                }
                // SAFETY: as above.
                Ok(unsafe { &m.as_ref().tensor })
            }
        }
    }

    /// Whether the producer says that it must not be written to. The older capsule cannot say it.
    fn is_read_only(&self) -> bool {
        match self {
            Self::Legacy(_) => false,
            // SAFETY: as above.
            Self::Versioned(m) => unsafe { m.as_ref().flags & READ_ONLY != 0 },
        }
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // A producer's deleter may touch Python's objects. Where there is no interpreter any more, neither is the process.
        Python::try_attach(|_| match self {
            // SAFETY: the capsule was renamed, so this is the only owner, and this its only call.
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
        });
    }
}

/// A tensor borrowed from another library, as the library here sees tensors: row-major bytes on the host.
pub(crate) struct Borrowed {
    dtype: Dtype,
    shape: Vec<u64>,
    data: *const u8,
    /// Bytes, where the elements lie row-major.
    len: usize,
    /// In elements, where they do not.
    strides: Option<Vec<i64>>,
    /// The elements in order, once [`Borrowed::gather`] copied them.
    gathered: Option<Vec<u8>>,
    /// Keeps the memory.
    _managed: Managed,
}

// SAFETY: the memory belongs to the producer until `_managed` is dropped, from any thread; that attaches to the interpreter.
// It is only read. A program that writes to a tensor while another of its threads encodes it gets bytes of either state,
// as with every library that lets the interpreter run meanwhile.
unsafe impl Send for Borrowed {}
// SAFETY: as above; nothing changes through a shared reference.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// Borrows `object`, which has `__dlpack__`. `dtype`: what the elements are, where the other library has no name for
    /// that and gives unsigned integers as wide.
    pub(crate) fn new(object: &Bound<'_, PyAny>, dtype: Option<Dtype>) -> PyResult<Self> {
        let (device, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        check_device(device)?;
        let managed = Managed::of(object, None)?;
        let raw = managed.tensor()?;
        check_device(raw.device.kind)?;
        let parts = Parts::read(raw, dtype)?;
        let Parts { dtype, shape, data, len, strides } = parts;
        Ok(Self { dtype, shape, data, len, strides, gathered: None, _managed: managed })
    }

    /// Copies the elements into order, if they do not lie so.
    pub(crate) fn gather(&mut self) {
        let Some(strides) = self.strides.as_ref().filter(|_| self.gathered.is_none()) else { return };
        let width = (self.dtype.bits() / 8) as usize;
        let mut out = Vec::with_capacity(self.len);
        if self.len > 0 {
            // SAFETY: shape and strides are the producer's, who says that every element they lead to is there; there is at
            // least one.
            unsafe { copy_in_order(self.data, &self.shape, strides, width, &mut out) };
        }
        self.gathered = Some(out);
    }

    /// How many bytes its elements take row-major.
    pub(crate) fn bytes(&self) -> usize {
        self.len
    }

    /// The tensor; [`Borrowed::gather`] comes first.
    pub(crate) fn view(&self) -> gcodec::Result<TensorView<'_>> {
        let data: &[u8] = match (&self.gathered, &self.strides) {
            (Some(gathered), _) => gathered,
            (None, None) if self.len > 0 => {
                // SAFETY: the producer says that a row-major tensor of this shape begins at `data`, which is not null, and
                // `len`, at most isize::MAX, is its number of bytes; `_managed` keeps it as long as `self`.
                unsafe { std::slice::from_raw_parts(self.data, self.len) }
            }
            _ => &[],
        };
        TensorView::new(self.dtype, &self.shape, data)
    }
}

/// A tensor in the memory of a CUDA device, as another library says that it is: nothing of it was looked at.
pub(crate) struct OnDevice {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) address: u64,
    pub(crate) ordinal: i32,
    /// Whether the elements lie row-major.
    pub(crate) contiguous: bool,
    pub(crate) read_only: bool,
    #[expect(dead_code, reason = "dropped with it")]
    pub(crate) keeper: Keeper,
}

/// What keeps memory by being there.
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

// SAFETY: as for `Borrowed`; the address is a number here.
unsafe impl Send for OnDevice {}
// SAFETY: as above.
unsafe impl Sync for OnDevice {}

impl OnDevice {
    /// Borrows `object`, which has `__dlpack__` and is on a CUDA device; what has still to be done for it is before what is put into
    /// `stream`, by DLPack's number of it.
    pub(crate) fn new(object: &Bound<'_, PyAny>, stream: usize) -> PyResult<Self> {
        let managed = Managed::of(object, Some(stream))?;
        let raw = managed.tensor()?;
        if raw.device.kind != CUDA {
            let kind = raw.device.kind;
            return Err(PyBufferError::new_err(format!(
                "__dlpack__ gave a tensor on device {kind}, not on CUDA's"
            )));
        }
        let ordinal = raw.device.id;
        let Parts { dtype, shape, data, strides, .. } = Parts::read(raw, None)?;
        let (address, contiguous) = (data.addr() as u64, strides.is_none());
        let read_only = managed.is_read_only();
        let keeper = Keeper(Held::Capsule(managed));
        Ok(Self { dtype, shape, address, ordinal, contiguous, read_only, keeper })
    }
}

fn check_device(device: i32) -> PyResult<()> {
    match HOST.contains(&device) {
        true => Ok(()),
        false => Err(PyBufferError::new_err(format!(
            "the tensor is on DLPack device {device}, whose memory the host does not read"
        ))),
    }
}

/// What a DLPack tensor declares, checked.
struct Parts {
    dtype: Dtype,
    shape: Vec<u64>,
    data: *const u8,
    len: usize,
    strides: Option<Vec<i64>>,
}

impl Parts {
    fn read(raw: &RawTensor, declared: Option<Dtype>) -> PyResult<Self> {
        let wrong = |what: &str| PyBufferError::new_err(format!("malformed DLPack tensor: {what}"));
        let given = dtype_of(raw.dtype)?;
        let dtype = match declared {
            None => given,
            Some(dtype) if dtype == given => given,
            Some(dtype) if raw.dtype.code == 1 && dtype.bits() == given.bits() => dtype,
            Some(dtype) => {
                return Err(PyTypeError::new_err(format!(
                    "elements of type {given} cannot be taken for {dtype}"
                )));
            }
        };
        let rank = usize::try_from(raw.ndim).ok().filter(|&r| r <= MAX_RANK);
        let rank = rank.ok_or_else(|| wrong("more than 32 dimensions, or less than none"))?;
        let list = |pointer: *const i64| -> Option<Vec<i64>> {
            // SAFETY: not null, and the producer says that it has as many entries as there are dimensions.
            (!pointer.is_null()).then(|| unsafe { std::slice::from_raw_parts(pointer, rank) }.to_vec())
        };
        let shape = match rank {
            0 => Vec::new(),
            _ => list(raw.shape).ok_or_else(|| wrong("no shape"))?,
        };
        let shape: Result<Vec<u64>, _> = shape.into_iter().map(u64::try_from).collect();
        let shape = shape.map_err(|_| wrong("a negative dimension"))?;
        let bytes = gcodec::tensor::elements(&shape).and_then(|n| dtype.bytes_for(n));
        let len = bytes.and_then(|b| isize::try_from(b).ok()).ok_or_else(|| wrong("too many elements"))?;
        let strides = match rank {
            0 => None,
            _ => list(raw.strides).filter(|strides| !is_row_major(&shape, strides)),
        };
        let offset = isize::try_from(raw.byte_offset).map_err(|_| wrong("its offset"))?;
        if len > 0 && raw.data.is_null() {
            return Err(wrong("no data"));
        }
        if let Some(strides) = &strides {
            // The farthest element of each direction must be within reach of an address.
            let width = i64::from(dtype.bits() / 8);
            let reach = shape.iter().zip(strides).try_fold(0i64, |sum, (&n, &stride)| {
                let steps = i64::try_from(n.saturating_sub(1)).ok()?;
                sum.checked_add(steps.checked_mul(stride.checked_abs()?)?.checked_mul(width)?)
            });
            reach.ok_or_else(|| wrong("strides"))?;
        }
        let data = raw.data.cast::<u8>().wrapping_offset(offset);
        Ok(Self { dtype, shape, data, len: len as usize, strides })
    }
}

pub(crate) fn is_row_major(shape: &[u64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1i64;
    for (&n, &stride) in shape.iter().zip(strides).rev() {
        // A dimension of one element is never stepped along: its stride says nothing.
        if n != 1 && stride != expected {
            return false;
        }
        expected = expected.saturating_mul(n as i64);
    }
    true
}

/// Appends the elements in row-major order: runs that lie together at once.
///
/// # Safety
/// Every element that `shape` and `strides` lead to from `data` can be read; no dimension is 0.
unsafe fn copy_in_order(data: *const u8, shape: &[u64], strides: &[i64], width: usize, out: &mut Vec<u8>) {
    // The innermost dimensions that are row-major among themselves are one run.
    let mut inner = shape.len();
    while inner > 0 && is_row_major(&shape[inner - 1..], &strides[inner - 1..]) {
        inner -= 1;
    }
    let run = shape[inner..].iter().product::<u64>() as usize * width;
    let (shape, strides) = (&shape[..inner], &strides[..inner]);
    let (Some((&rows, outer)), Some((&step, outer_strides))) = (shape.split_last(), strides.split_last())
    else {
        // SAFETY: one run from the beginning.
        out.extend_from_slice(unsafe { std::slice::from_raw_parts(data, run) });
        return;
    };
    let mut at = vec![0u64; outer.len()];
    let step = step as isize * width as isize;
    loop {
        let offsets = at.iter().zip(outer_strides).map(|(&i, &s)| i as isize * s as isize);
        let mut from = data.wrapping_offset(offsets.sum::<isize>() * width as isize);
        // The widths are constants for the compiler: an element is moved as one word.
        // SAFETY: `rows` runs, `step` apart, all of them elements of the tensor.
        unsafe {
            match run {
                1 => copy_runs::<1>(&mut from, rows, step, out),
                2 => copy_runs::<2>(&mut from, rows, step, out),
                4 => copy_runs::<4>(&mut from, rows, step, out),
                8 => copy_runs::<8>(&mut from, rows, step, out),
                _ => {
                    for _ in 0..rows {
                        out.extend_from_slice(std::slice::from_raw_parts(from, run));
                        from = from.wrapping_offset(step);
                    }
                }
            }
        }
        // The next index of the outer dimensions, the last one fastest.
        let Some(d) = (0..outer.len()).rev().find(|&d| at[d] + 1 < outer[d]) else { return };
        at[d] += 1;
        at[d + 1..].fill(0);
    }
}

/// # Safety
/// `rows` runs of `N` bytes, `step` bytes apart from `from` on, can be read.
unsafe fn copy_runs<const N: usize>(from: &mut *const u8, rows: u64, step: isize, out: &mut Vec<u8>) {
    for _ in 0..rows {
        // SAFETY: the caller's promise; an array of bytes has no alignment.
        out.extend_from_slice(unsafe { &*from.cast::<[u8; N]>() });
        *from = from.wrapping_offset(step);
    }
}

/// A buffer of ours that others may hold, read and write: through DLPack only, so that Rust has no reference into it.
pub(crate) struct Buffer {
    /// From a `Vec<u8>`: pointer, length and capacity.
    parts: (*mut u8, usize, usize),
}

// SAFETY: it is memory and nothing else. Who writes to it while another thread reads does so from another library, which
// says the same of its own tensors.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(crate) fn new(data: Vec<u8>) -> Arc<Self> {
        let mut data = std::mem::ManuallyDrop::new(data);
        Arc::new(Self { parts: (data.as_mut_ptr(), data.len(), data.capacity()) })
    }

    pub(crate) fn address(&self) -> usize {
        self.parts.0.addr()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.1
    }

    /// Copies the bytes; `out` is as long as they are.
    pub(crate) fn copy_to(&self, out: &mut [u8]) {
        let len = self.len().min(out.len());
        // SAFETY: so many initialised bytes are there, and as many are in `out`, which is not the buffer.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping(self.parts.0, len) };
    }

    /// A copy of the buffer.
    pub(crate) fn copied(&self) -> Arc<Self> {
        let mut out = vec![0; self.len()];
        self.copy_to(&mut out);
        Self::new(out)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (pointer, len, capacity) = self.parts;
        // SAFETY: the parts of a `Vec<u8>` that was not dropped.
        drop(unsafe { Vec::from_raw_parts(pointer, len, capacity) });
    }
}

/// What an exported capsule owns; its dimensions lie behind the pointers of the tensor.
struct Export<M> {
    managed: M,
    _lists: [Vec<i64>; 2],
    _buffer: Arc<Buffer>,
}

fn raw_tensor(buffer: &Buffer, dtype: DataType, lists: &mut [Vec<i64>; 2]) -> RawTensor {
    let [shape, strides] = lists;
    RawTensor {
        data: if buffer.parts.1 == 0 { std::ptr::null_mut() } else { buffer.parts.0.cast() },
        device: Device { kind: CPU, id: 0 },
        ndim: shape.len() as i32,
        dtype,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    }
}

unsafe extern "C" fn delete_legacy(managed: *mut Legacy) {
    if !managed.is_null() {
        // SAFETY: `context` is the box that `export` made, and a deleter is called once.
        drop(unsafe { Box::from_raw((*managed).context.cast::<Export<Legacy>>()) });
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    if !managed.is_null() {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw((*managed).context.cast::<Export<Versioned>>()) });
    }
}

/// Frees a capsule's tensor if nobody took it.
unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with a capsule of ours; a taken one has another name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) == 1 {
            delete_legacy(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// A capsule of `buffer`, versioned if the consumer can take that.
pub(crate) fn export<'py>(
    py: Python<'py>,
    buffer: Arc<Buffer>,
    dtype: Dtype,
    shape: &[u64],
    max_version: Option<&Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    let code = code_of(dtype).ok_or_else(|| {
        PyBufferError::new_err(format!("DLPack has no element type for {dtype}; bits() gives the bytes"))
    })?;
    let dims: Result<Vec<i64>, _> = shape.iter().map(|&d| i64::try_from(d)).collect();
    let dims = dims.map_err(|_| PyBufferError::new_err("a dimension exceeds 63 bits"))?;
    let mut strides = vec![1i64; dims.len()];
    for d in (1..dims.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(dims[d].max(1));
    }
    let mut lists = [dims, strides];
    let wanted = match max_version {
        Some(version) => version.get_item(0)?.extract::<u32>()?,
        None => 0,
    };
    let tensor = raw_tensor(&buffer, code, &mut lists);
    // Moving `lists` into the box does not move what the vectors hold.
    if wanted >= VERSION_MAJOR {
        let managed = Versioned {
            major: VERSION_MAJOR,
            minor: 0,
            context: std::ptr::null_mut(),
            deleter: Some(delete_versioned),
            flags: 0,
            tensor,
        };
        let export = Box::into_raw(Box::new(Export { managed, _lists: lists, _buffer: buffer }));
        // SAFETY: `export` is a live box of ours; `managed` stays where it is until the deleter frees the box.
        unsafe {
            (*export).managed.context = export.cast();
            capsule(py, (&raw mut (*export).managed).cast(), VERSIONED, drop_versioned)
                .inspect_err(|_| drop(Box::from_raw(export)))
        }
    } else {
        let managed = Legacy { tensor, context: std::ptr::null_mut(), deleter: Some(delete_legacy) };
        let export = Box::into_raw(Box::new(Export { managed, _lists: lists, _buffer: buffer }));
        // SAFETY: as above.
        unsafe {
            (*export).managed.context = export.cast();
            capsule(py, (&raw mut (*export).managed).cast(), LEGACY, drop_legacy)
                .inspect_err(|_| drop(Box::from_raw(export)))
        }
    }
}

/// # Safety
/// `pointer` is what `destructor` frees.
unsafe fn capsule<'py>(
    py: Python<'py>,
    pointer: *mut c_void,
    name: &'static CStr,
    destructor: ffi::PyCapsule_Destructor,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the pointer is not null, the name is static, and the result is a new reference or null with an exception.
    unsafe {
        let capsule = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}
