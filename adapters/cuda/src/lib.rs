//! gcodec on CUDA devices: gradients are compressed in device memory, and only the compressed data leaves the
//! GPU.
//!
//! [`Compressor`] does on a device what [`gcodec::compress::compress()`] does on the host, and makes the same
//! blocks and residuals, bit for bit. It supports the codecs that select by magnitude (`topk`, `stc`,
//! `threshold`, `sbc`, `sidco`) and those that quantise every element (`natural`, `qsgd`, `dither`,
//! `terngrad`, `int8`, `sign`), for f32, f16 and bf16. [`DeltaCompressor`] does the same for `delta`, and
//! computes the digests that an update of deltas carries. [`Scatter`] writes decoded blocks into device
//! tensors.
//!
//! [`Device::open`] loads the driver at run time. Everything builds and starts without a driver or a device;
//! the call then returns an error that says what is missing.
//!
//! ```no_run
//! use gcodec::compress::Options;
//! use gcodec::Dtype;
//! use gcodec_cuda::{Compressor, Device, DeviceTensor, Input, Stream};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (address, stream) = (0u64, 0usize);
//! let device = Device::open(0)?;
//! let mut compressor = Compressor::new(&device)?;
//! // SAFETY: 1000 x 1000 floats begin at `address`, and are not written before `compress` returns.
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
//! # The cost of an update
//!
//! The number of copies, launches and waits does not depend on the number of tensors (the tests named
//! `an_update_is_three_copies_..` and `calls_do_not_depend_on_the_number_of_tensors` count them). Pinned
//! memory and device memory are kept for the next update.
//!
//! | | codecs that select | codecs that quantise |
//! |---|---|---|
//! | copies to the device | one small table; with error feedback one more | one small table |
//! | kernel launches | 8; `sbc` 3 more; with error feedback one more | at most 6 |
//! | copies to the host | the counts, then the kept elements | the counts, then scales and bit planes |
//! | waits of the host | 2; it does not wait for the work of error feedback | 2 |
//! | reads of a tensor | once | once; twice if more than 8192 elements share a scale |
//! | bytes to the host | 8 for each kept element; `sbc` 4 for each on its larger side | the codes of the wire |
//!
//! Codes cross the bus as the bit planes of the wire (spec, section 7.1). Levels, integers and signs are as
//! wide as their range, exponents of `natural` as wide as those of their block require. Signs of `natural`
//! take one bit for each element; the host drops those of zeros when it writes the frame. Quantisers use up
//! to 2 bytes of work memory for each element, and the size of the copy to the host.
//!
//! `sidco` fits its thresholds on the host, which computes the logarithms. The device takes sums in the order
//! that the library defines: of a sample, of the candidates, or of whole tensors. Each fit is one wait and
//! one launch for all tensors together. It copies 48 bytes for each 2^18 summands and 72 for each tensor to
//! the host, and 24 for each tensor to the device. The guard takes at most 7 fits to samples and 7 to
//! candidates, and reads the tensors once, or twice if the estimate from the sample was wrong. A fixed number
//! of stages takes one fit for each stage; each fit reads the tensors once more.
//!
//! [`Compressor::compress_wire`] takes four launches and one fill more. The device writes the positions with
//! `rice` in wire form, and the uncoded positions stay there. The host does not wait for the size of the
//! coded positions: it copies as much as they can take at most. At a density of 0.001 this is 13 bits for
//! each position, where random positions take 11.52 (`docs/measurements.md`).
//!
//! [`DeltaCompressor`] finds the changes of a base in three steps. Each has one table to the device, one copy
//! to the host and one wait:
//!
//! | | launches | to the host |
//! |---|---|---|
//! | keys of a sample, from which the host chooses classes | 1 | 9 KiB for each block |
//! | changes of each class and tile | 2 | 4 bytes for each class |
//! | ranks and values of the changes; hashes | 1; with hashes 2 more | 6 bytes for each changed 16-bit element, 8 for each 32-bit one; 16 for each hash |
//!
//! Sums are a step of their own, before the others: one launch, and 32 bytes of each to the host.
//! [`SumDigester`] computes them for tensors of any strides; each unit is read once.
//!
//! The first step is left out if values are `ulp` and `positions` neither `auto` nor `classed`. The sample
//! is all elements of a block of less than 2^21 elements, else one in 16. The second step reads both tensors
//! once, the third only tiles of 8192 elements that have changes. With `values=overwrite`, if more than a
//! quarter of the sample changes, all elements cross the bus, as they do on the wire.
//!
//! # Why the device codes positions by Rice but not by tokens
//!
//! A selection of 2^28 elements at a density of 0.001 keeps 268,435. `cargo bench --bench speed -- --only
//! sbc:density=0.001,positions=rice` (or `tokens`) wrote the 67,109 positions of 2^26 elements on one host
//! thread in 1.37 ms by Rice, which tries five chunk lengths and six parameters for each, and in 0.42 ms by
//! tokens: 5.5 ms and 1.7 ms for 268,435. The uncoded positions are 1.07 MB, about 0.02 ms of a bus of 50
//! GB/s (published for PCIe 5 x16, not measured here); coded by Rice they are 0.39 MB.
//!
//! - Rice is slow on the host and needs only prefix sums on the device, so the device codes it.
//! - Tokens with rANS on the device would save 1.7 ms and 0.02 ms. They are smaller than Rice by 0.05 bits a
//!   position where positions are independent (`docs/measurements.md`), which is 1.5 KB an update, and by 3.2
//!   bits in the best clustered case seen (12.0 to 8.8, a ResNet at 0.1 % of each tensor), which is 107 KB.
//!   107 KB take 1.7 ms at 0.5 Gbit/s. On a faster network the frame with Rice arrives sooner than one that
//!   the host codes by tokens. On a slower one the frame of 295 KB takes at least 4.7 ms, during which one
//!   host thread can code the next. A device coder would gain at most a third there, and nothing elsewhere.
//!
//! # What has run where
//!
//! The kernels in `adapters/cuda/kernels` are compiled for sm_80 and sm_90. Every test runs their source on
//! the CPU, in the emulator of `adapters/cuda/cpu_emulator`, behind the mock driver of
//! `adapters/cuda/mock_driver`. On an H200, `tools/gpu-check` found
//! the same bytes as on the host, and compute-sanitizer no fault (`docs/cuda.md`).

mod abi;
mod buffer;
mod compressor;
mod delta;
mod dense;
mod device;
mod driver;
mod error;
mod memory;
mod residuals;
mod rice;
mod scatter;
mod select;
mod sums;
mod tensor;

pub use buffer::DeviceBuf;
pub use compressor::{Compressor, Input, takes};
pub use delta::{DeltaCompressor, DeltaInput};
pub use device::Device;
pub use driver::{Driver, why_not};
pub use error::{Error, Result, TensorError};
pub use scatter::{Scatter, Target, TargetedBlock};
pub use sums::{SumDigester, SumInput};
pub use tensor::{DeviceTensor, DeviceView, Stream};
