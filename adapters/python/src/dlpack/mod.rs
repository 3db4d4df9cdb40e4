//! DLPack: tensors of other libraries as bytes without a copy, and tensors of this module for them.
//!
//! The structures are those of `dlpack.h` 1.1, without a library (CONTRIBUTING.md says why). Both capsules
//! are supported, `dltensor_versioned` and the older `dltensor`. The code checks what a capsule declares
//! before using it, except that the declared memory exists, which no consumer can check.

mod export;
mod import;
mod strides;

use std::ffi::{CStr, c_void};

use gcodec::Dtype;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

pub(crate) use export::{Buffer, export};
pub(crate) use import::{Borrowed, Keeper, OnDevice, Writable};
pub(crate) use strides::{is_row_major, row_major};

/// DLPack's device type of host memory.
pub(crate) const CPU: i32 = 1;
/// DLPack's device type of CUDA devices.
const CUDA: i32 = 2;
/// Device types whose memory the host can read: CPU, and the pinned memory of CUDA and ROCm.
const HOST: [i32; 3] = [CPU, 3, 11];
/// Flag of a tensor that must not be written to.
const READ_ONLY: u64 = 1;
/// The largest number of dimensions that is accepted.
pub(crate) const MAX_RANK: usize = 32;
const VERSION_MAJOR: u32 = 1;

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const USED_LEGACY: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

/// `DLDevice`.
#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
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

/// `DLManagedTensor`.
#[repr(C)]
struct Legacy {
    tensor: RawTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: RawTensor,
}

/// DLPack's type code, bits, and the element type. Codes: 0 int, 1 unsigned, 2 float, 4 bfloat, 6 bool, 10 to
/// 13 8-bit floats.
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
            "gcodec has no element type for DLPack's code {code} with {bits} bits and {lanes} lanes: view the tensor as \
             unsigned integers"
        ))
    })
}

fn code_of(dtype: Dtype) -> Option<DataType> {
    let found = TYPES.iter().find(|(_, _, of)| *of == dtype);
    found.map(|&(code, bits, _)| DataType { code, bits, lanes: 1 })
}
