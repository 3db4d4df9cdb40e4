//! Streams and tensors of the caller.

use std::marker::PhantomData;

use gcodec::Dtype;

use crate::device::Device;
use crate::error::{Result, TensorError};

/// A CUDA stream: its work is done in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Stream(usize);

impl Stream {
    /// The legacy default stream, which synchronises with every blocking stream.
    pub const DEFAULT: Self = Self(0);

    /// Wraps a `CUstream` or `cudaStream_t`: 0 and 1 are the legacy default stream, 2 is the thread's own.
    ///
    /// # Safety
    /// The stream belongs to the primary context of the device that it is used with, and is not destroyed
    /// before that use ends.
    #[expect(unsafe_code, reason = "the caller has to promise that the stream exists")]
    pub const unsafe fn from_raw(stream: usize) -> Self {
        Self(stream)
    }

    pub(crate) fn raw(self) -> usize {
        self.0
    }
}

/// A row-major tensor of f32, f16 or bf16 in the memory of a device, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct DeviceTensor<'a> {
    address: u64,
    dtype: Dtype,
    shape: &'a [u64],
    len: u64,
    ordinal: i32,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> DeviceTensor<'a> {
    /// Borrows the tensor at `address`.
    ///
    /// Checks the element type, the alignment, and that the first and the last byte are memory of this
    /// device.
    ///
    /// # Errors
    /// [`Error::Tensor`](crate::Error::Tensor).
    ///
    /// # Safety
    /// The elements stay allocated during `'a`. They are written before the tensor is used, in the order of
    /// the stream that uses it, and not again until that use is over.
    #[expect(unsafe_code, reason = "the caller has to promise that the elements exist")]
    pub unsafe fn from_raw(device: &Device, address: u64, dtype: Dtype, shape: &'a [u64]) -> Result<Self> {
        if !matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
            return Err(TensorError::Dtype(dtype).into());
        }
        let len = gcodec::internal::elements(shape).ok_or(TensorError::Shape)?;
        let bytes = dtype.bytes_for(len).filter(|&b| i64::try_from(b).is_ok()).ok_or(TensorError::Shape)?;
        if bytes > 0 {
            if !address.is_multiple_of(u64::from(dtype.bits() / 8)) {
                return Err(TensorError::Alignment { address }.into());
            }
            let last = address.checked_add(bytes - 1).ok_or(TensorError::Bounds { address })?;
            let _current = device.enter()?;
            for address in [address, last] {
                check_place(device, address)?;
            }
        }
        Ok(Self { address, dtype, shape, len, ordinal: device.ordinal(), borrowed: PhantomData })
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The dimensions.
    pub fn shape(&self) -> &'a [u64] {
        self.shape
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.len
    }

    /// The address of the first element.
    pub fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn check_device(&self, device: &Device) -> Result<()> {
        let (found, expected) = (self.ordinal, device.ordinal());
        if found == expected { Ok(()) } else { Err(TensorError::Device { found, expected }.into()) }
    }
}

fn check_place(device: &Device, address: u64) -> Result<()> {
    let ordinal = device.driver().device_of(address).ok_or(TensorError::Bounds { address })?;
    let expected = device.ordinal();
    if ordinal == expected { Ok(()) } else { Err(TensorError::Device { found: ordinal, expected }.into()) }
}
