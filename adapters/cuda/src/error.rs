//! Errors: what failed, and whether machine, memory, tensor or codec is at fault.

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine has no CUDA driver.
    #[error("no CUDA driver: {why}")]
    NoDriver {
        /// The loader's message.
        why: String,
    },
    /// The driver supports an older version of CUDA than the kernels are built with.
    #[error("the driver supports CUDA {}, the kernels need {}", version(*.found), version(*.needed))]
    OldDriver {
        /// The driver's version: 1000 major + 10 minor.
        found: i32,
        /// The required version.
        needed: i32,
    },
    /// The driver finds no device.
    #[error("the CUDA driver finds no device")]
    NoDevice,
    /// No device has this number.
    #[error("no CUDA device {ordinal}: the driver finds {count}")]
    NoSuchDevice {
        /// The number.
        ordinal: i32,
        /// The number of devices.
        count: i32,
    },
    /// The device is older than the kernels support.
    #[error("the device has compute capability {}.{}, the kernels need 8.0", .capability.0, .capability.1)]
    OldDevice {
        /// Its compute capability, major and minor.
        capability: (i32, i32),
    },
    /// An allocation failed. State is unchanged.
    #[error("cannot allocate {bytes} bytes of {}", if *.pinned { "pinned host memory" } else { "device memory" })]
    OutOfMemory {
        /// Whether it was pinned memory of the host, else memory of the device.
        pinned: bool,
        /// The size of the allocation, in bytes.
        bytes: u64,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {name} ({code})")]
    Call {
        /// The function.
        call: &'static str,
        /// The code that it returned.
        code: i32,
        /// The name of the code.
        name: String,
    },
    /// A tensor of the caller cannot be used.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An error of the library.
    #[error(transparent)]
    Codec(#[from] gcodec::Error),
}

/// Why a tensor of the caller cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The element type is none of f32, f16 and bf16.
    #[error("element type {0} is not supported on a device: use f32, f16 or bf16")]
    Dtype(gcodec::Dtype),
    /// Elements of this type are no whole bytes.
    #[error("elements of type {0} are no whole bytes: copy the tensor to the host")]
    Packed(gcodec::Dtype),
    /// There is not one offset, or one stride, for each dimension.
    #[error("a shard has an offset and a stride for each dimension")]
    Offsets,
    /// The tensor has more than 32 dimensions.
    #[error("the tensor has {rank} dimensions, and no tensor of a stream more than 32")]
    Rank {
        /// The number of its dimensions.
        rank: usize,
    },
    /// The address is not a multiple of the element's size.
    #[error("address {address:#x} is not aligned to the element type")]
    Alignment {
        /// The address.
        address: u64,
    },
    /// The shape has more elements than memory can hold.
    #[error("the shape has more elements than memory can hold")]
    Shape,
    /// The first or the last byte is not device memory known to the driver.
    #[error("address {address:#x} is not in device memory")]
    Bounds {
        /// The address of that byte.
        address: u64,
    },
    /// The tensor is on another device.
    #[error("the tensor is on device {found}, not {expected}")]
    Device {
        /// The number of its device.
        found: i32,
        /// The number of the device in use.
        expected: i32,
    },
    /// One call has more tensors, or pieces of tensors, than a launch takes.
    #[error("more than {most} tensors at once")]
    TooMany {
        /// The most that a launch takes.
        most: usize,
    },
}

impl From<gcodec::error::InputErrorKind> for Error {
    fn from(kind: gcodec::error::InputErrorKind) -> Self {
        Self::Codec(kind.into())
    }
}

/// The error for results of a device that contradict each other.
pub(crate) fn inconsistent() -> Error {
    gcodec::error::InputErrorKind::InconsistentBlock { what: "results of the device" }.into()
}

/// Prints a version of CUDA, which is 1000 major + 10 minor.
fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}
