//! The paper's networks (arXiv 2103.08870), of any width.

use gcodec::compress::random;

use crate::layer::{Conv, Layer};
use crate::model::{Innovation, Model};
use crate::{Error, Result};

/// Size of a network, and its number of decoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Architecture {
    /// Channels of the encoder's first layer, 1 to 1024; 64 in the paper. The encoder's layers have 1, 2, 4,
    /// 1 times this number, those of a decoder 1/2, 1, 2, 1/2 times; the codes have 4 channels.
    pub width: usize,
    /// Number of decoders: one for each worker, or one for all.
    pub decoders: usize,
    /// The decoders' use of an innovation.
    pub innovation: Innovation,
    /// Whether layers have a bias, as the paper's do. Without biases, scaling a signal scales its codes and
    /// decoded values equally, so the model suits gradients of any magnitude. Default: no.
    pub bias: bool,
    /// Whether weights are stored as binary16. Default: no.
    pub half: bool,
}

/// Slope of the rectifiers for negative numbers.
const SLOPE: f32 = 0.01;
const CODE_CHANNELS: usize = 4;

impl Architecture {
    /// Returns the paper's architecture, width 64, without biases.
    pub fn new(decoders: usize, innovation: Innovation) -> Self {
        Self { width: 64, decoders, innovation, bias: false, half: false }
    }

    /// Sets [`Architecture::width`].
    #[must_use]
    pub fn with_width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Sets [`Architecture::bias`].
    #[must_use]
    pub fn with_bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// Sets [`Architecture::half`].
    #[must_use]
    pub fn with_half(mut self, half: bool) -> Self {
        self.half = half;
        self
    }

    /// Returns a model with random weights and biases, uniform up to 1 / sqrt(fan-in), as PyTorch's
    /// convolutions begin. As there, the fan-in of a transposed convolution is that of the convolution whose
    /// adjoint it is: the outputs times the taps.
    ///
    /// # Errors
    /// [`Error::Input`] for sizes out of range.
    pub fn init(&self, seed: u64) -> Result<Model> {
        if !(1..=1024).contains(&self.width) {
            return Err(Error::Input("width of an architecture"));
        }
        let mut draws = Draws { seed, tensor: 0 };
        let w = self.width;
        let mut encoder = Vec::new();
        for (inputs, outputs) in [(1, w), (w, 2 * w), (2 * w, 4 * w), (4 * w, w)] {
            encoder.push(Layer::Conv(self.conv(inputs, outputs, 2, inputs * 3, &mut draws)));
            encoder.push(Layer::LeakyRelu(SLOPE));
        }
        encoder.push(Layer::Conv(self.conv(w, CODE_CHANNELS, 1, w, &mut draws)));
        let narrow = w.div_ceil(2);
        let mut decoders = Vec::new();
        for _ in 0..self.decoders {
            let mut decoder = Vec::new();
            for (inputs, outputs) in [(CODE_CHANNELS, narrow), (narrow, w), (w, 2 * w), (2 * w, narrow)] {
                let conv = self.conv(inputs, outputs, 2, outputs * 3, &mut draws);
                decoder.push(Layer::Transposed(conv));
                decoder.push(Layer::LeakyRelu(SLOPE));
            }
            decoder.push(Layer::Crop);
            let mut last = narrow;
            if self.innovation != Innovation::None {
                decoder.push(Layer::Innovation);
                last += 1;
            }
            decoder.push(Layer::Conv(self.conv(last, 1, 1, last, &mut draws)));
            decoders.push(decoder);
        }
        Model::new(self.innovation, encoder, decoders)
    }

    /// Returns a layer of three taps with a stride, or of one tap without.
    fn conv(&self, inputs: usize, outputs: usize, stride: usize, fan: usize, draws: &mut Draws) -> Conv {
        let bound = 1.0 / (fan as f32).sqrt();
        let (kernel, before) = if stride == 2 { (3, 1) } else { (1, 0) };
        let weights = draws.uniform(inputs * outputs * kernel, bound);
        let bias = self.bias.then(|| draws.uniform(outputs, bound));
        Conv { inputs, outputs, kernel, stride, before, weights, bias, half: self.half }
    }
}

struct Draws {
    seed: u64,
    tensor: u64,
}

impl Draws {
    fn uniform(&mut self, count: usize, bound: f32) -> Vec<f32> {
        let mut words = vec![0; count];
        random::words(self.seed, self.tensor, 0, &mut words);
        self.tensor += 1;
        // 24 bits, so that each step is exact.
        words.iter().map(|w| ((w >> 8) as f32 / 8_388_608.0 - 1.0) * bound).collect()
    }
}
