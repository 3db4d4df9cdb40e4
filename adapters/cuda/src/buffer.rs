//! Device tensors for programs without a framework.

use gcodec::{Dtype, TensorBuf, TensorView};

use crate::device::Device;
use crate::error::{Error, Result, TensorError};
use crate::memory::{Memory, Pinned};
use crate::tensor::{DeviceTensor, DeviceView, Stream};

/// A tensor in device memory, owned.
#[derive(Debug)]
pub struct DeviceBuf {
    device: Device,
    memory: Memory,
    dtype: Dtype,
    shape: Vec<u64>,
}

/// Bytes copied at a time, through pinned memory.
const PART_BYTES: u64 = 64 << 20;

impl DeviceBuf {
    /// Allocates a tensor of zeros.
    ///
    /// # Errors
    /// [`Error::Tensor`], [`Error::OutOfMemory`], [`Error::Call`].
    pub fn zeros(device: &Device, dtype: Dtype, shape: &[u64]) -> Result<Self> {
        let bytes = gcodec::internal::elements(shape).and_then(|n| dtype.bytes_for(n));
        let bytes = bytes.ok_or(TensorError::Shape)?;
        let _current = device.enter()?;
        let memory = Memory::new(device, bytes)?;
        if bytes > 0 {
            memory.fill(0, 0, bytes, Stream::DEFAULT)?;
            device.synchronize(Stream::DEFAULT)?;
        }
        Ok(Self { device: device.clone(), memory, dtype, shape: shape.to_vec() })
    }

    /// Copies a tensor from the host.
    ///
    /// # Errors
    /// As [`Self::zeros`].
    #[expect(unsafe_code, reason = "writes pinned memory that the device reads")]
    pub fn from_host(device: &Device, tensor: TensorView<'_>) -> Result<Self> {
        let buffer = Self::zeros(device, tensor.dtype(), tensor.shape())?;
        let _current = device.enter()?;
        let mut part = Pinned::new(device, PART_BYTES.min(tensor.data().len() as u64))?;
        for (bytes, at) in tensor.data().chunks(PART_BYTES as usize).zip((0..).step_by(PART_BYTES as usize)) {
            // SAFETY: every copy from it was waited for.
            unsafe { part.write(0, bytes) };
            buffer.memory.copy_from(at, &part, bytes.len() as u64, Stream::DEFAULT)?;
            device.synchronize(Stream::DEFAULT)?;
        }
        Ok(buffer)
    }

    /// Copies the tensor to the host, after the work in the default stream.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Call`].
    #[expect(unsafe_code, reason = "reads pinned memory that the device wrote")]
    pub fn to_host(&self) -> Result<TensorBuf> {
        let _current = self.device.enter()?;
        let elements = gcodec::internal::elements(&self.shape).unwrap_or(0);
        let bytes = self.dtype.bytes_for(elements).unwrap_or(0);
        let mut data = Vec::new();
        let mut part = Pinned::new(&self.device, PART_BYTES.min(bytes))?;
        for at in (0..bytes).step_by(PART_BYTES as usize) {
            let len = PART_BYTES.min(bytes - at);
            self.memory.copy_to(at, &mut part, len, Stream::DEFAULT)?;
            self.device.synchronize(Stream::DEFAULT)?;
            // SAFETY: the copy to it was waited for.
            data.extend_from_slice(unsafe { part.bytes(len) });
        }
        TensorBuf::new(self.dtype, self.shape.clone(), data).map_err(Error::Codec)
    }

    /// Borrows the tensor, to compress it or to write blocks into it.
    ///
    /// # Errors
    /// [`Error::Tensor`] for element types other than f32, f16 and bf16.
    #[expect(unsafe_code, reason = "borrows device memory")]
    pub fn tensor(&self) -> Result<DeviceTensor<'_>> {
        // SAFETY: the memory stays allocated as long as `self` lives, and its content was waited for. The
        // caller of `Scatter` promises to order later writes before other uses.
        unsafe { DeviceTensor::from_raw(&self.device, self.memory.address(), self.dtype, &self.shape) }
    }

    /// Borrows a part of the tensor, to read it. `first`: the index of its first element, in row-major order;
    /// `strides`: as for [`DeviceView::from_raw`].
    ///
    /// # Errors
    /// [`Error::Tensor`] if the part is not inside, or for an element type of less than a byte.
    #[expect(unsafe_code, reason = "borrows device memory")]
    pub fn part<'a>(&'a self, first: u64, shape: &'a [u64], strides: &'a [i64]) -> Result<DeviceView<'a>> {
        let start = self.memory.address();
        let address =
            first.checked_mul(u64::from(self.dtype.bits() / 8)).and_then(|at| start.checked_add(at));
        let address = address.ok_or(TensorError::Shape)?;
        // SAFETY: the memory stays allocated as long as `self` lives, and its content was waited for. That
        // the part is inside of it is checked before anyone reads it.
        let view = unsafe { DeviceView::from_raw(&self.device, address, self.dtype, shape, strides) }?;
        let is_inside = |ends: [u64; 2]| ends[0] >= start && ends[1] < start + self.memory.len();
        if view.elements() > 0 && !view.ends().is_some_and(is_inside) {
            return Err(TensorError::Bounds { address }.into());
        }
        Ok(view)
    }
}
