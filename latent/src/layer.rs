//! Layers and their computation (spec, models/lgc-conv1d.md, "Computation").

use crate::error::{Error, Result};

/// A layer of a [`Network`](crate::Network).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Layer {
    /// A convolution. Output: columns / stride columns.
    Conv(Conv),
    /// A transposed convolution. Output: columns x stride columns.
    Transposed(Conv),
    /// Leaky rectifier: x where x >= 0, otherwise x times this slope, 0 to 1.
    LeakyRelu(f32),
    /// Crops to as many columns as there are values.
    Crop,
    /// Appends the innovation as a channel.
    Innovation,
}

/// Parameters of a convolution or a transposed convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    /// Input channels, 1 to 4096.
    pub inputs: usize,
    /// Output channels, 1 to 4096.
    pub outputs: usize,
    /// Kernel size in taps, 1 to 15.
    pub kernel: usize,
    /// Stride: columns between two applications, 1 to 8.
    pub stride: usize,
    /// Padding: taps before the first column, less than `kernel`.
    pub before: usize,
    /// Weights: `outputs x inputs x kernel` numbers, row-major; `inputs x outputs x kernel` for a transposed
    /// convolution.
    pub weights: Vec<f32>,
    /// Biases: `outputs` numbers, or none.
    pub bias: Option<Vec<f32>>,
    /// Whether the numbers are stored as binary16; their values are exact in it then.
    pub half: bool,
}

/// A matrix of channels and columns, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Signal {
    pub(crate) channels: usize,
    pub(crate) columns: usize,
    pub(crate) data: Vec<f32>,
}

impl Signal {
    pub(crate) fn channel(&self, i: usize) -> &[f32] {
        &self.data[i * self.columns..][..self.columns]
    }
}

impl Conv {
    /// Returns the maximum number of multiplications for this many columns of input.
    pub(crate) fn work(&self, columns: usize) -> u64 {
        (self.inputs * self.outputs * self.kernel) as u64 * columns as u64
    }

    fn start(&self, output: usize) -> f64 {
        self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[output]))
    }

    pub(crate) fn apply(&self, x: &Signal) -> Signal {
        let columns = x.columns / self.stride;
        let mut data = Vec::with_capacity(self.outputs * columns);
        let mut sums = vec![0.0f64; columns];
        for o in 0..self.outputs {
            sums.fill(self.start(o));
            for i in 0..self.inputs {
                let row = x.channel(i);
                for k in 0..self.kernel {
                    let w = f64::from(self.weights[(o * self.inputs + i) * self.kernel + k]);
                    // The first column whose tap exists: the least t with t * stride + k >= before.
                    let first = self.before.saturating_sub(k).div_ceil(self.stride);
                    let taps = row.iter().skip(first * self.stride + k - self.before).step_by(self.stride);
                    for (sum, &x) in sums.iter_mut().skip(first).zip(taps) {
                        *sum += w * f64::from(x);
                    }
                }
            }
            data.extend(sums.iter().map(|&sum| sum as f32));
        }
        Signal { channels: self.outputs, columns, data }
    }

    pub(crate) fn apply_transposed(&self, x: &Signal) -> Signal {
        let columns = x.columns * self.stride;
        let mut data = Vec::with_capacity(self.outputs * columns);
        let mut sums = vec![0.0f64; columns];
        for o in 0..self.outputs {
            sums.fill(self.start(o));
            for i in 0..self.inputs {
                let row = x.channel(i);
                for k in 0..self.kernel {
                    let w = f64::from(self.weights[(i * self.outputs + o) * self.kernel + k]);
                    // Column s of the input goes to s * stride + k - before; s starts at the first existing
                    // column.
                    // exists.
                    let first = self.before.saturating_sub(k).div_ceil(self.stride);
                    let places =
                        sums.iter_mut().skip(first * self.stride + k - self.before).step_by(self.stride);
                    for (sum, &x) in places.zip(row.iter().skip(first)) {
                        *sum += w * f64::from(x);
                    }
                }
            }
            data.extend(sums.iter().map(|&sum| sum as f32));
        }
        Signal { channels: self.outputs, columns, data }
    }
}

impl Layer {
    /// Returns the layer's output; `innovation` has as many columns as there are values.
    pub(crate) fn apply(&self, mut x: Signal, innovation: &[f32]) -> Result<Signal> {
        let y = match self {
            Self::Conv(conv) => conv.apply(&x),
            Self::Transposed(conv) => conv.apply_transposed(&x),
            Self::LeakyRelu(slope) => {
                x.data.iter_mut().filter(|x| **x < 0.0).for_each(|x| *x *= slope);
                x
            }
            Self::Crop => {
                let columns = innovation.len();
                let data = (0..x.channels).flat_map(|i| &x.channel(i)[..columns]).copied().collect();
                Signal { channels: x.channels, columns, data }
            }
            Self::Innovation => {
                x.data.extend_from_slice(innovation);
                x.channels += 1;
                x
            }
        };
        if y.data.iter().all(|x| x.is_finite()) { Ok(y) } else { Err(Error::NotFinite) }
    }
}
