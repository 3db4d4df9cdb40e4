//! gcodec on CUDA devices: a gradient is selected from where it is, and only what is kept of it crosses the bus.
//!
//! [`Device::open`] loads the driver at run time and says why it cannot: without a driver or a device everything builds, and nothing
//! panics. [`Compressor`] does on a device what [`gcodec::compress::compress()`] does on the host, for the codecs that select by magnitude
//! (`topk`, `stc`, `threshold`, `sbc`, `sidco`) and for those that quantise every element (`natural`, `qsgd`, `dither`, `terngrad`,
//! `int8`, `sign`), and makes the same blocks of it, to the bit, error feedback included. [`Scatter`] puts decoded blocks into device
//! tensors.
//!
//! ```no_run
//! use gcodec::block::BlockOptions;
//! use gcodec::compress::Options;
//! use gcodec::Dtype;
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
//! the side with the larger one, by three launches more.
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
//! # Why positions by Rice come from the device, and entropy-coded tokens do not
//!
//! Of 2^28 elements at a density of 0.001, 268,435 are kept. On one thread of the host here, `cargo bench --bench speed -- --only
//! sbc:density=0.001,positions=rice` (or `tokens`) wrote the 67,109 positions of 2^26 elements in 1.37 ms by Rice, which tries five lengths of
//! chunks and six parameters for each, and in 0.42 ms by tokens: 5.5 ms and 1.7 ms for 268,435. Their places are 1.07 MB, about 0.02 ms of a
//! bus of 50 GB/s (others' figure for PCIe 5 x16, not measured here); as Rice planes they are 0.39 MB.
//!
//! - Rice is what the host is slow at, and its planes need prefix sums only: it comes from the device.
//! - Tokens by rANS on the device would save those 1.7 ms, and the 0.02 ms. They are 0.05 bits a position smaller than Rice where positions are
//!   independent (`docs/measurements.md`), 1.5 KB an update; where they cluster, 3.2 bits in the best case seen (12.0 to 8.8, a ResNet at 0.1 % of
//!   each tensor), 107 KB. 107 KB take 1.7 ms at 0.5 Gbit/s: on a faster network the frame by Rice, from the device, is there sooner
//!   than one that the host codes by tokens; on a slower one the frame of 295 KB is under way for 4.7 ms or more, beside which one host
//!   thread can code the next. A device coder would gain at most a third there, and nothing elsewhere while Rice is at hand: it does
//!   not pay, until a use shows up whose host has no 1.7 ms.
//!
//! # What has run where
//!
//! The kernels in `adapters/cuda/kernels` are compiled for sm_80 and sm_90, and run on the host, by `adapters/cuda/cpu_emulator`, in every test. This crate's
//! tests use a mock driver (`adapters/cuda/mock_driver`) with that. Neither is a GPU.

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
