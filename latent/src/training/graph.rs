//! Networks of parameters, and the gradients of their layers.
//!
//! A convolution is a product of matrices with the columns that its taps meet; a transposed convolution is
//! its adjoint. Both directions of both layers are therefore made of [`gather`], its adjoint [`scatter`], and
//! products.

use ndarray::{Array1, Array2, Axis, s};

use crate::layer::{Conv, Layer};
use crate::{Error, Result};

/// Signals of several samples: a row for each channel, with the samples' columns one after the other.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    pub(super) samples: usize,
    pub(super) columns: usize,
    pub(super) rows: Array2<f32>,
}

impl Batch {
    pub(super) fn new(samples: usize, columns: usize, rows: Array2<f32>) -> Self {
        Self { samples, columns, rows }
    }

    fn with(&self, columns: usize, rows: Array2<f32>) -> Self {
        Self { samples: self.samples, columns, rows }
    }
}

/// Weights and biases of one layer. The rows of `weights` are a convolution's outputs, or a transposed
/// convolution's inputs.
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    pub(super) weights: Array2<f32>,
    pub(super) bias: Option<Array1<f32>>,
}

impl Numbers {
    fn of(conv: &Conv, rows: usize) -> Result<Self> {
        let columns = conv.weights.len() / rows.max(1);
        let weights = Array2::from_shape_vec((rows, columns), conv.weights.clone());
        let weights = weights.map_err(|_| Error::Input("number of weights"))?;
        Ok(Self { weights, bias: conv.bias.clone().map(Array1::from_vec) })
    }

    fn add_bias(&self, rows: &mut Array2<f32>) {
        if let Some(bias) = &self.bias {
            *rows += &bias.view().insert_axis(Axis(1));
        }
    }

    fn like(&self, weights: Array2<f32>, output: &Array2<f32>) -> Self {
        Self { weights, bias: self.bias.as_ref().map(|_| output.sum_axis(Axis(1))) }
    }
}

/// A network in training: its layers, and their parameters in the order of the layers that have some.
#[derive(Debug, Clone)]
pub(super) struct Graph {
    layers: Vec<Layer>,
    pub(super) numbers: Vec<Numbers>,
}

/// Inputs of the layers that their gradients need.
pub(super) struct Tape(Vec<Batch>);

impl Graph {
    pub(super) fn new(layers: &[Layer]) -> Result<Self> {
        let mut numbers = Vec::new();
        for layer in layers {
            match layer {
                Layer::Conv(conv) => numbers.push(Numbers::of(conv, conv.outputs)?),
                Layer::Transposed(conv) => numbers.push(Numbers::of(conv, conv.inputs)?),
                _ => {}
            }
        }
        Ok(Self { layers: layers.to_vec(), numbers })
    }

    /// Returns the layers with the present parameters.
    pub(super) fn layers(&self) -> Vec<Layer> {
        let mut numbers = self.numbers.iter();
        let mut layers = self.layers.clone();
        for layer in &mut layers {
            if let Layer::Conv(conv) | Layer::Transposed(conv) = layer
                && let Some(numbers) = numbers.next()
            {
                conv.weights = numbers.weights.iter().copied().collect();
                conv.bias = numbers.bias.as_ref().map(|bias| bias.to_vec());
            }
        }
        layers
    }

    /// Returns the output of the layers, and what [`Self::backward`] needs. The columns are a multiple of the
    /// encoder's unit, so that a crop leaves them all.
    pub(super) fn forward(&self, input: &Batch, innovation: Option<&Batch>) -> Result<(Batch, Tape)> {
        let (mut x, mut tape) = (input.clone(), Vec::with_capacity(self.layers.len()));
        let mut numbers = self.numbers.iter();
        let mut next = || numbers.next().ok_or(Error::Input("a layer without weights"));
        for layer in &self.layers {
            let y = match layer {
                Layer::Conv(conv) => {
                    let (numbers, columns) = (next()?, x.columns / conv.stride);
                    let mut rows = numbers.weights.dot(&gather(conv, &x, columns));
                    numbers.add_bias(&mut rows);
                    x.with(columns, rows)
                }
                Layer::Transposed(conv) => {
                    let numbers = next()?;
                    let taps = numbers.weights.t().dot(&x.rows);
                    let columns = x.columns * conv.stride;
                    let mut rows = scatter(conv, &x.with(x.columns, taps), columns);
                    numbers.add_bias(&mut rows);
                    x.with(columns, rows)
                }
                Layer::LeakyRelu(slope) => {
                    x.with(x.columns, x.rows.mapv(|v| if v < 0.0 { v * slope } else { v }))
                }
                Layer::Crop => x.clone(),
                Layer::Innovation => {
                    let extra = innovation.ok_or(Error::Input("a decoder without its innovation"))?;
                    let joined = ndarray::concatenate(Axis(0), &[x.rows.view(), extra.rows.view()]);
                    x.with(x.columns, joined.map_err(|_| Error::Input("length of an innovation"))?)
                }
            };
            tape.push(std::mem::replace(&mut x, y));
        }
        Ok((x, Tape(tape)))
    }

    /// Returns the gradient of the input, and those of the parameters, from the gradient of the output.
    pub(super) fn backward(&self, tape: &Tape, output: Batch) -> Result<(Batch, Vec<Numbers>)> {
        let (mut dy, mut gradients) = (output, Vec::with_capacity(self.numbers.len()));
        let mut numbers = self.numbers.iter().rev();
        let mut next = || numbers.next().ok_or(Error::Input("a layer without weights"));
        for (layer, x) in self.layers.iter().zip(&tape.0).rev() {
            dy = match layer {
                Layer::Conv(conv) => {
                    let numbers = next()?;
                    let weights = dy.rows.dot(&gather(conv, x, dy.columns).t());
                    gradients.push(numbers.like(weights, &dy.rows));
                    let taps = dy.with(dy.columns, numbers.weights.t().dot(&dy.rows));
                    x.with(x.columns, scatter(conv, &taps, x.columns))
                }
                Layer::Transposed(conv) => {
                    let numbers = next()?;
                    let taps = gather(conv, &dy, x.columns);
                    gradients.push(numbers.like(x.rows.dot(&taps.t()), &dy.rows));
                    x.with(x.columns, numbers.weights.dot(&taps))
                }
                Layer::LeakyRelu(slope) => {
                    let mut rows = dy.rows;
                    rows.zip_mut_with(&x.rows, |d, &x| *d = if x < 0.0 { *d * slope } else { *d });
                    x.with(x.columns, rows)
                }
                Layer::Crop => dy,
                Layer::Innovation => {
                    let kept = x.rows.nrows();
                    x.with(x.columns, dy.rows.slice(s![..kept, ..]).to_owned())
                }
            };
        }
        gradients.reverse();
        Ok((dy, gradients))
    }
}

/// Returns the elements that each tap meets: row c * kernel + k, column t of a sample has element
/// t * stride + k - before of channel c, or zero where there is none.
fn gather(conv: &Conv, x: &Batch, columns: usize) -> Array2<f32> {
    let mut taps = Array2::zeros((x.rows.nrows() * conv.kernel, x.samples * columns));
    for (row, mut to) in taps.outer_iter_mut().enumerate() {
        let (from, tap) = (x.rows.row(row / conv.kernel), row % conv.kernel);
        let (Some(from), Some(to)) = (from.as_slice(), to.as_slice_mut()) else { continue };
        for (from, to) in from.chunks_exact(x.columns).zip(to.chunks_exact_mut(columns)) {
            let (first, start) = first_column(conv, tap);
            let met = from.iter().skip(start).step_by(conv.stride);
            to.iter_mut().skip(first).zip(met).for_each(|(to, &x)| *to = x);
        }
    }
    taps
}

/// Returns the sum at each element over the taps that meet it: the adjoint of [`gather`].
fn scatter(conv: &Conv, taps: &Batch, columns: usize) -> Array2<f32> {
    let mut x = Array2::zeros((taps.rows.nrows() / conv.kernel, taps.samples * columns));
    for (row, from) in taps.rows.outer_iter().enumerate() {
        let tap = row % conv.kernel;
        let mut to = x.row_mut(row / conv.kernel);
        let from = from.as_standard_layout();
        let (Some(from), Some(to)) = (from.as_slice(), to.as_slice_mut()) else { continue };
        for (from, to) in from.chunks_exact(taps.columns).zip(to.chunks_exact_mut(columns)) {
            let (first, start) = first_column(conv, tap);
            let met = to.iter_mut().skip(start).step_by(conv.stride);
            met.zip(&from[first.min(from.len())..]).for_each(|(to, &x)| *to += x);
        }
    }
    x
}

/// Returns the first column whose tap meets an element, and this element.
fn first_column(conv: &Conv, tap: usize) -> (usize, usize) {
    let first = conv.before.saturating_sub(tap).div_ceil(conv.stride);
    (first, first * conv.stride + tap - conv.before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, Innovation};

    fn draw(seed: u64, rows: usize, columns: usize) -> Array2<f32> {
        let word = |i| gcodec::compress::random::word(seed, 0, i) as i32 as f32 / 2f32.powi(31);
        Array2::from_shape_fn((rows, columns), |(r, c)| word((r * columns + c) as u64))
    }

    /// Returns a network with biases, one sample batch for it, and an innovation.
    fn decoder() -> (Graph, Batch, Batch) {
        let architecture = Architecture::new(1, Innovation::Channel).with_width(4).with_bias(true);
        let model = architecture.init(3).unwrap();
        let mut graph = Graph::new(model.decoders()[0].layers()).unwrap();
        // PyTorch's initial weights make the gradients of early layers too small for a difference quotient.
        for (numbers, i) in graph.numbers.iter_mut().zip(10..) {
            numbers.weights = draw(i, numbers.weights.nrows(), numbers.weights.ncols());
        }
        (graph, Batch::new(2, 3, draw(1, 4, 6)), Batch::new(2, 48, draw(2, 1, 96)))
    }

    #[test]
    fn forward_is_the_inference() {
        let (graph, x, extra) = decoder();
        let (y, _) = graph.forward(&x, Some(&extra)).unwrap();
        let encoder = Architecture::new(1, Innovation::Channel).with_width(4).init(3).unwrap();
        let model =
            crate::Model::new(Innovation::Channel, encoder.encoder().layers().to_vec(), vec![graph.layers()])
                .unwrap();
        for sample in 0..2 {
            let codes: Vec<f32> = x.rows.slice(s![.., 3 * sample..3 * sample + 3]).iter().copied().collect();
            let innovation: Vec<(usize, f32)> =
                (0..48).map(|i| (i, extra.rows[[0, 48 * sample + i]])).collect();
            let expected = model.decode(0, &codes, 48, &innovation).unwrap();
            for (i, expected) in expected.iter().enumerate() {
                let got = y.rows[[0, 48 * sample + i]];
                assert!((got - expected).abs() <= 1e-4 * (1.0 + expected.abs()), "{got} {expected}");
            }
        }
    }
}
