//! gcodec on CUDA devices: a gradient is selected from where it is, and only what is kept of it crosses the bus.
//!
//! [`Device::open`] loads the driver at run time and says why it cannot: without a driver or a device everything builds, and nothing
//! panics. [`Compressor`] does on a device what [`gcodec::compress()`] does on the host, for the codecs that select by magnitude
//! (`topk`, `stc`, `threshold`, `sbc`, `sidco`) and for those that quantise every element (`natural`, `qsgd`, `dither`, `terngrad`,
//! `int8`, `sign`), and makes the same blocks of it, to the bit, error feedback included. [`Scatter`] puts decoded blocks into device
//! tensors.
//!
//! ```no_run
//! use gcodec::compress::Options;
//! use gcodec::{BlockOptions, Dtype};
//! use gcodec_cuda::{Compressor, Device, DeviceTensor, Input, Stream};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (address, stream) = (0u64, 0usize);
//! let device = Device::open(0)?;
//! let mut compressor = Compressor::new(&device)?;
//! // SAFETY: 1000 x 1000 floats begin at `address`, and nobody writes to them before `compress` returns.
//! let tensor = unsafe { DeviceTensor::from_raw(&device, address, Dtype::F32, &[1000, 1000]) }?;
//! let inputs = [Input { tensor: 0, name: "w", data: tensor }];
//! let codec = "topk:density=0.001".parse()?;
//! // SAFETY: `stream` is a stream of this device.
//! let stream = unsafe { Stream::from_raw(stream) };
//! let blocks = compressor.compress(&inputs, &[codec], &Options::default(), stream)?;
//! # Ok(())
//! # }
//! ```
//!
//! # What an update costs
//!
//! For what is selected, one copy of a small table to the device, one launch sequence whatever the number of tensors, one copy of
//! sizes and one of what was kept to the host, and a wait for each of these two; with error feedback one more copy to the device and
//! one launch, which nobody waits for. The tensors are read once.
//!
//! For what is quantised, again one copy to the device, one sequence of at most six launches, one copy of sizes, one of scales and bit
//! planes, and the two waits, with error feedback or without. Codes cross the bus as the bit planes of the wire (spec, section 7.1):
//! levels, integers and signs as wide as their range, exponents of `natural` as wide as those of their block are. The signs of `natural`
//! are a bit for each element; what is left out for zeros is left out by the host as it writes the frame. Tensors are read once, but
//! twice where one scale is shared by more than 8192 elements. Work memory on the device is up to 2 bytes for each element, and what
//! crosses the bus.
//!
//! Pinned memory and device memory are kept for the next update.
//!
//! What is kept is 8 bytes for each element. `sbc` takes both means on the device, and sends the 4 bytes of a position for each element of
//! the side with the larger one.
//!
//! `sidco` fits on the host, as the logarithms are its: the device takes the sums, in an order that the host keeps too, of a sample
//! or of what a threshold left. Each fit is one more wait, one launch, one copy of 48 bytes for each 2^18 summands and 72 for each tensor to
//! the host, and one of 24 bytes for each tensor to the device, for all tensors together. Its guard takes at most 7 fits of samples
//! and 7 of candidates, and reads the tensors once, or twice where the sample misled; with a number of stages there is a fit for
//! each, which reads the tensors once more.
//!
//! [`Compressor::compress_wire`] takes four launches and one fill more: gaps, parameters, chunks and both planes of
//! positions by Rice come from the device, and the positions themselves stay there. The host does not wait for the sizes of planes: the
//! copy is as long as they can be at most, which is 13 bits a position at a density of 0.001, where 11.52 are what random positions
//! take (`docs/measurements.md`).
//!
//! # What has run where
//!
//! The kernels in `cuda/kernels` are compiled for sm_80 and sm_90, and run on the host, by `cuda/shim`, in every test. This crate's
//! tests use a stand-in for the driver (`cuda/fake`) with that. Neither is a GPU.

mod buffer;
mod compressor;
mod dense;
mod device;
mod driver;
mod error;
mod plan;
mod rice;
mod scatter;
mod tensor;

pub use buffer::DeviceBuf;
pub use compressor::{Compressor, Input, takes};
pub use device::Device;
pub use driver::{Driver, why_not};
pub use error::{Error, Result, TensorError};
pub use scatter::{Part, Scatter, Target};
pub use tensor::{DeviceTensor, Stream};
