//! A sequence of layers, checked once.

use crate::error::{Error, Result};
use crate::layer::{Conv, Layer, Signal};
use crate::model::{Innovation, Limits};

pub(crate) const MAX_LAYERS: usize = 64;
pub(crate) const MAX_CHANNELS: usize = 4096;
pub(crate) const MAX_KERNEL: usize = 15;
pub(crate) const MAX_STRIDE: usize = 8;
const MAX_UNIT: usize = 4096;

/// Layers that fit each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    pub(crate) layers: Vec<Layer>,
}

impl Network {
    /// Layers in the order of their application.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Checks an encoder; returns the product of its strides and the channels of its codes.
    pub(crate) fn encoder(layers: Vec<Layer>) -> Result<(Self, usize, usize), &'static str> {
        let (mut channels, mut unit) = (1, 1);
        for layer in &layers {
            match layer {
                Layer::Conv(conv) => {
                    channels = conv.check(channels)?;
                    unit *= conv.stride;
                    if unit > MAX_UNIT {
                        return Err("the encoder's strides multiply to more than 4096");
                    }
                }
                Layer::LeakyRelu(slope) => check_slope(*slope)?,
                _ => return Err("an encoder has convolutions and rectifiers only"),
            }
        }
        check_count(&layers)?;
        Ok((Self { layers }, unit, channels))
    }

    /// Checks a decoder of codes with this many channels.
    pub(crate) fn decoder(
        layers: Vec<Layer>,
        unit: usize,
        code_channels: usize,
        innovation: Innovation,
    ) -> Result<Self, &'static str> {
        let (mut channels, mut grown, mut cropped, mut joined) = (code_channels, 1, false, false);
        for layer in &layers {
            match layer {
                Layer::Conv(conv) if conv.stride == 1 => channels = conv.check(channels)?,
                Layer::Conv(_) => return Err("a convolution of a decoder with a stride"),
                Layer::Transposed(_) if cropped => return Err("a transposed convolution after the crop"),
                Layer::Transposed(conv) => {
                    channels = conv.check(channels)?;
                    grown *= conv.stride;
                    if grown > unit {
                        return Err("strides of encoder and decoder differ");
                    }
                }
                Layer::LeakyRelu(slope) => check_slope(*slope)?,
                Layer::Crop if cropped => return Err("a second crop"),
                Layer::Crop => cropped = true,
                Layer::Innovation if joined || !cropped => {
                    return Err("an innovation before the crop, or a second one");
                }
                Layer::Innovation => {
                    joined = true;
                    channels += 1;
                }
            }
        }
        check_count(&layers)?;
        if grown != unit {
            return Err("strides of encoder and decoder differ");
        }
        if !cropped || channels != 1 {
            return Err("a decoder ends without a crop, or with more than one channel");
        }
        if joined != (innovation != Innovation::None) {
            return Err("a decoder with an innovation that the model does not have, or without");
        }
        Ok(Self { layers })
    }

    /// Applies the layers. `innovation` has as many columns as there are values.
    pub(crate) fn run(&self, mut signal: Signal, innovation: &[f32], limits: &Limits) -> Result<Signal> {
        self.check_work(&signal, innovation.len(), limits)?;
        for layer in &self.layers {
            signal = layer.apply(signal, innovation)?;
        }
        Ok(signal)
    }

    /// Returns the cost of [`Self::run`] in advance.
    fn check_work(&self, signal: &Signal, values: usize, limits: &Limits) -> Result<()> {
        let (mut channels, mut columns, mut work) = (signal.channels, signal.columns, 0u64);
        for layer in &self.layers {
            match layer {
                Layer::Conv(conv) => {
                    columns /= conv.stride;
                    channels = conv.outputs;
                    work = work.saturating_add(conv.work(columns));
                }
                Layer::Transposed(conv) => {
                    work = work.saturating_add(conv.work(columns));
                    columns *= conv.stride;
                    channels = conv.outputs;
                }
                Layer::Crop => columns = values,
                Layer::Innovation => channels += 1,
                Layer::LeakyRelu(_) => {}
            }
            let elements = (channels as u64).saturating_mul(columns as u64);
            check("max_elements", elements, limits.max_elements)?;
        }
        check("max_multiplications", work, limits.max_multiplications)
    }
}

pub(crate) fn check(limit: &'static str, asked: u64, allowed: u64) -> Result<()> {
    if asked > allowed { Err(Error::Limit { limit, asked, allowed }) } else { Ok(()) }
}

fn check_count(layers: &[Layer]) -> Result<(), &'static str> {
    if (1..=MAX_LAYERS).contains(&layers.len()) { Ok(()) } else { Err("number of layers") }
}

fn check_slope(slope: f32) -> Result<(), &'static str> {
    if (0.0..=1.0).contains(&slope) { Ok(()) } else { Err("slope of a rectifier") }
}

impl Conv {
    fn check(&self, channels: usize) -> Result<usize, &'static str> {
        self.check_sizes()?;
        if self.inputs != channels {
            return Err("channels of two layers differ");
        }
        let fits = self.weights.len() == self.inputs * self.outputs * self.kernel
            && self.bias.as_ref().is_none_or(|b| b.len() == self.outputs);
        if !fits {
            return Err("number of weights");
        }
        if !self.weights.iter().chain(self.bias.iter().flatten()).all(|x| x.is_finite()) {
            return Err("a weight that is not finite");
        }
        Ok(self.outputs)
    }

    pub(crate) fn check_sizes(&self) -> Result<(), &'static str> {
        let channels = 1..=MAX_CHANNELS;
        let fits = channels.contains(&self.inputs)
            && channels.contains(&self.outputs)
            && (1..=MAX_KERNEL).contains(&self.kernel)
            && (1..=MAX_STRIDE).contains(&self.stride)
            && self.before < self.kernel;
        if fits { Ok(()) } else { Err("sizes of a convolution") }
    }
}
