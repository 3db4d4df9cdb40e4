//! Tensors of a replica: in memory, or in a file that is mapped.

use std::fmt;

use bytes::Bytes;
use gcodec::{Dtype, TensorBuf, TensorView};

/// A tensor of a [`Replica`](crate::Replica). Its elements are in memory or in a mapped file. Clones share
/// them.
#[derive(Clone)]
pub struct Tensor {
    dtype: Dtype,
    shape: Vec<u64>,
    data: Bytes,
}

impl Tensor {
    /// Returns a tensor whose elements `owner` has: little-endian, row-major. They must not change.
    ///
    /// # Errors
    /// [`gcodec::Error::Input`] if the elements are not as many bytes as type and shape need.
    pub fn new(
        dtype: Dtype,
        shape: Vec<u64>,
        owner: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> gcodec::Result<Self> {
        Self::of_bytes(dtype, shape, Bytes::from_owner(owner))
    }

    pub(crate) fn of_bytes(dtype: Dtype, shape: Vec<u64>, data: Bytes) -> gcodec::Result<Self> {
        TensorView::new(dtype, &shape, &data)?;
        Ok(Self { dtype, shape, data })
    }

    /// Returns the elements.
    pub fn view(&self) -> TensorView<'_> {
        match TensorView::new(self.dtype, &self.shape, &self.data) {
            Ok(view) => view,
            Err(_) => unreachable!("the length was checked when the tensor was made"),
        }
    }

    /// Returns a tensor with the elements of `view`, in the memory of this one if nothing else refers to it.
    pub(crate) fn replaced(self, view: TensorView<'_>) -> Self {
        let data = match self.data.try_into_mut() {
            Ok(mut memory) if memory.len() == view.data().len() => {
                memory.copy_from_slice(view.data());
                memory.freeze()
            }
            _ => Bytes::copy_from_slice(view.data()),
        };
        Self { data, ..self }
    }

    /// Returns a tensor like `view` with the elements in `data`, a copy.
    pub(crate) fn of_view(view: TensorView<'_>, data: Bytes) -> Self {
        Self { dtype: view.dtype(), shape: view.shape().to_vec(), data }
    }
}

impl From<TensorBuf> for Tensor {
    fn from(tensor: TensorBuf) -> Self {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        Self { dtype, shape, data: Bytes::from(tensor.into_data()) }
    }
}

impl From<Tensor> for TensorBuf {
    /// Copies the elements, unless they are in memory and nothing else refers to them.
    fn from(tensor: Tensor) -> Self {
        match TensorBuf::new(tensor.dtype, tensor.shape, tensor.data.into()) {
            Ok(tensor) => tensor,
            Err(_) => unreachable!("the length was checked when the tensor was made"),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}
