//! Device memory for programs that have none from a framework.
#![allow(unsafe_code)]

use gcodec::{Dtype, TensorBuf, TensorView};

use crate::device::{Device, Memory, Pinned};
use crate::error::{Error, Result, TensorError};
use crate::tensor::{DeviceTensor, Stream};

/// A tensor in device memory, owned.
#[derive(Debug)]
pub struct DeviceBuf {
    device: Device,
    memory: Memory,
    dtype: Dtype,
    shape: Vec<u64>,
}

/// Bytes that are copied at a time, through pinned memory.
const PART: u64 = 64 << 20;

impl DeviceBuf {
    /// Zeros.
    ///
    /// # Errors
    /// [`Error::Tensor`], [`Error::OutOfMemory`], [`Error::Call`].
    pub fn zeros(device: &Device, dtype: Dtype, shape: &[u64]) -> Result<Self> {
        let bytes = gcodec::tensor::elements(shape).and_then(|n| dtype.bytes_for(n));
        let bytes = bytes.ok_or(TensorError::Shape)?;
        let _current = device.enter()?;
        let memory = Memory::new(device, bytes)?;
        if bytes > 0 {
            memory.fill(0, 0, bytes, Stream::DEFAULT)?;
            device.synchronize(Stream::DEFAULT)?;
        }
        Ok(Self { device: device.clone(), memory, dtype, shape: shape.to_vec() })
    }

    /// A copy of a tensor of the host's.
    ///
    /// # Errors
    /// As [`Self::zeros`].
    pub fn from_host(device: &Device, tensor: TensorView<'_>) -> Result<Self> {
        let buffer = Self::zeros(device, tensor.dtype(), tensor.shape())?;
        let _current = device.enter()?;
        let mut part = Pinned::new(device, PART.min(tensor.data().len() as u64))?;
        for (bytes, at) in tensor.data().chunks(PART as usize).zip((0..).step_by(PART as usize)) {
            // SAFETY: every copy of it was waited for.
            unsafe { part.write(0, bytes) };
            buffer.memory.copy_from(at, &part, bytes.len() as u64, Stream::DEFAULT)?;
            device.synchronize(Stream::DEFAULT)?;
        }
        Ok(buffer)
    }

    /// A copy on the host, once what is in the default stream is done.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Call`].
    pub fn to_host(&self) -> Result<TensorBuf> {
        let _current = self.device.enter()?;
        let elements = gcodec::tensor::elements(&self.shape).unwrap_or(0);
        let bytes = self.dtype.bytes_for(elements).unwrap_or(0);
        let mut data = Vec::new();
        let mut part = Pinned::new(&self.device, PART.min(bytes))?;
        for at in (0..bytes).step_by(PART as usize) {
            let len = PART.min(bytes - at);
            self.memory.copy_to(at, &mut part, len, Stream::DEFAULT)?;
            self.device.synchronize(Stream::DEFAULT)?;
            // SAFETY: it was waited for.
            data.extend_from_slice(unsafe { part.bytes(len) });
        }
        TensorBuf::new(self.dtype, self.shape.clone(), data).map_err(Error::Codec)
    }

    /// The tensor, to compress it or to put blocks into it.
    ///
    /// # Errors
    /// [`Error::Tensor`] for element types that kernels do not take.
    pub fn tensor(&self) -> Result<DeviceTensor<'_>> {
        // SAFETY: the memory is as long as `self`, and was written and waited for. What `Scatter` writes to it is in a stream, which
        // its caller promises to order before other uses.
        unsafe { DeviceTensor::from_raw(&self.device, self.memory.address(), self.dtype, &self.shape) }
    }
}
