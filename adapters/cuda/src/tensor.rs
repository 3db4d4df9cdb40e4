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

    /// The strides of a row-major tensor, in elements.
    pub(crate) fn strides(shape: &[u64]) -> Vec<i64> {
        let mut strides = vec![1i64; shape.len()];
        for dim in (1..shape.len()).rev() {
            // A tensor in memory has no larger ones.
            strides[dim - 1] = strides[dim].saturating_mul(shape[dim].max(1) as i64);
        }
        strides
    }

    /// The same tensor. `strides`: those of its shape.
    pub(crate) fn view<'v>(&self, strides: &'v [i64]) -> DeviceView<'v>
    where
        'a: 'v,
    {
        let Self { address, dtype, shape, len, ordinal, .. } = *self;
        DeviceView { address, dtype, shape, strides, len, ordinal, borrowed: PhantomData }
    }

    pub(crate) fn check_device(&self, device: &Device) -> Result<()> {
        check_ordinal(self.ordinal, device)
    }
}

/// A tensor of any strides and of any element type of whole bytes in the memory of a device, borrowed to be
/// read.
#[derive(Debug, Clone, Copy)]
pub struct DeviceView<'a> {
    address: u64,
    dtype: Dtype,
    shape: &'a [u64],
    strides: &'a [i64],
    len: u64,
    ordinal: i32,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> DeviceView<'a> {
    /// Borrows the tensor whose first element is at `address`. `strides`: for each dimension, how many
    /// elements its next index is away; may be negative or 0.
    ///
    /// Checks the element type, the alignment, and that the lowest and the highest byte are memory of this
    /// device.
    ///
    /// # Errors
    /// [`Error::Tensor`](crate::Error::Tensor).
    ///
    /// # Safety
    /// As [`DeviceTensor::from_raw`].
    #[expect(unsafe_code, reason = "the caller has to promise that the elements exist")]
    pub unsafe fn from_raw(
        device: &Device,
        address: u64,
        dtype: Dtype,
        shape: &'a [u64],
        strides: &'a [i64],
    ) -> Result<Self> {
        if !dtype.bits().is_multiple_of(8) {
            return Err(TensorError::Packed(dtype).into());
        }
        if shape.len() != strides.len() {
            return Err(TensorError::Offsets.into());
        }
        // Keys of sum digests number the axes in five bits.
        if shape.len() > 32 {
            return Err(TensorError::Rank { rank: shape.len() }.into());
        }
        let len = gcodec::internal::elements(shape).ok_or(TensorError::Shape)?;
        let view =
            Self { address, dtype, shape, strides, len, ordinal: device.ordinal(), borrowed: PhantomData };
        if len > 0 {
            if !address.is_multiple_of(view.unit_bytes()) {
                return Err(TensorError::Alignment { address }.into());
            }
            let _current = device.enter()?;
            for address in view.ends().ok_or(TensorError::Shape)? {
                check_place(device, address)?;
            }
        }
        Ok(view)
    }

    /// The addresses of the lowest and of the highest byte; `None` if they are no addresses.
    pub(crate) fn ends(&self) -> Option<[u64; 2]> {
        let bytes = i64::from(self.dtype.bits() / 8);
        let (mut low, mut high) = (0i64, bytes - 1);
        for (&len, &stride) in self.shape.iter().zip(self.strides) {
            let reach = i64::try_from(len - 1).ok()?.checked_mul(stride)?.checked_mul(bytes)?;
            let end = if reach < 0 { &mut low } else { &mut high };
            *end = end.checked_add(reach)?;
        }
        Some([self.address.checked_add_signed(low)?, self.address.checked_add_signed(high)?])
    }

    pub(crate) fn shape(&self) -> &'a [u64] {
        self.shape
    }

    pub(crate) fn strides(&self) -> &'a [i64] {
        self.strides
    }

    pub(crate) fn elements(&self) -> u64 {
        self.len
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of a unit of a sum digest.
    pub(crate) fn unit_bytes(&self) -> u64 {
        if self.dtype.bits() == 8 { 1 } else { 2 }
    }

    /// Units of an element.
    pub(crate) fn units(&self) -> u64 {
        u64::from(self.dtype.bits() / 8) / self.unit_bytes()
    }

    pub(crate) fn check_device(&self, device: &Device) -> Result<()> {
        check_ordinal(self.ordinal, device)
    }
}

fn check_ordinal(found: i32, device: &Device) -> Result<()> {
    let expected = device.ordinal();
    if found == expected { Ok(()) } else { Err(TensorError::Device { found, expected }.into()) }
}

fn check_place(device: &Device, address: u64) -> Result<()> {
    check_ordinal(device.driver().device_of(address).ok_or(TensorError::Bounds { address })?, device)
}
