//! What went wrong, and whose fault.

use std::fmt;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a device could not do what was asked for.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no CUDA driver on this machine.
    NoDriver {
        /// What the system said.
        why: String,
    },
    /// The driver has no CUDA of the version that the kernels are built with.
    OldDriver {
        /// The version it has: 1000 major + 10 minor.
        found: i32,
        /// The version it would need.
        needed: i32,
    },
    /// The driver finds no device.
    NoDevice,
    /// There is no device of this number.
    NoSuchDevice {
        /// The number.
        ordinal: i32,
        /// How many there are.
        count: i32,
    },
    /// The device is older than the kernels are built for.
    OldDevice {
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// There is too little memory; state is as it was.
    OutOfMemory {
        /// On the device, or pinned on the host.
        pinned: bool,
        /// How much was asked for, in bytes.
        bytes: u64,
    },
    /// A call of the driver failed.
    Call {
        /// Which.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// That code's name.
        name: String,
    },
    /// A tensor cannot be what it is said to be, or cannot be taken.
    Tensor(TensorError),
    /// What the codec says.
    Codec(gcodec::Error),
}

/// What is wrong with a tensor that the caller gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorError {
    /// Kernels take f32, f16 and bf16.
    Dtype(gcodec::Dtype),
    /// The address is not a multiple of the element's size.
    Alignment {
        /// The address.
        address: u64,
    },
    /// The shape has more elements than memory can.
    Shape,
    /// The first or the last byte is not device memory that the driver knows.
    Bounds {
        /// That byte's address.
        address: u64,
    },
    /// It is on another device.
    Device {
        /// Where it is.
        found: i32,
        /// Where it was to be.
        expected: i32,
    },
    /// More tensors than one launch takes.
    TooMany {
        /// How many it takes.
        most: usize,
    },
}

impl fmt::Display for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dtype(dtype) => {
                write!(f, "elements of type {dtype} are not taken on a device: f32, f16 and bf16 are")
            }
            Self::Alignment { address } => {
                write!(f, "address {address:#x} is not aligned to the element type")
            }
            Self::Shape => f.write_str("the shape has more elements than memory can hold"),
            Self::Bounds { address } => write!(f, "address {address:#x} is not in device memory"),
            Self::Device { found, expected } => write!(f, "the tensor is on device {found}, not {expected}"),
            Self::TooMany { most } => write!(f, "more than {most} tensors at once"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver { why } => write!(f, "there is no CUDA driver here: {why}"),
            Self::OldDriver { found, needed } => {
                let version = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
                write!(f, "the driver has CUDA {}, the kernels need {}", version(*found), version(*needed))
            }
            Self::NoDevice => f.write_str("the CUDA driver finds no device"),
            Self::NoSuchDevice { ordinal, count } => {
                write!(f, "there is no CUDA device {ordinal}: the driver finds {count}")
            }
            Self::OldDevice { capability: (major, minor) } => {
                write!(f, "the device has compute capability {major}.{minor}, the kernels need 8.0")
            }
            Self::OutOfMemory { pinned, bytes } => {
                let place = if *pinned { "pinned host memory" } else { "device memory" };
                write!(f, "{bytes} bytes of {place} are not to be had")
            }
            Self::Call { call, code, name } => write!(f, "{call} failed: {name} ({code})"),
            Self::Tensor(e) => write!(f, "{e}"),
            Self::Codec(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Codec(e) => Some(e),
            _ => None,
        }
    }
}

impl From<gcodec::Error> for Error {
    fn from(e: gcodec::Error) -> Self {
        Self::Codec(e)
    }
}

impl From<TensorError> for Error {
    fn from(e: TensorError) -> Self {
        Self::Tensor(e)
    }
}
