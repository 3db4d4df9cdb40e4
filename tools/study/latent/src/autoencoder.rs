//! A model's networks in burn, their training, and the conversion back to a model.

use burn::module::{Module, Param};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::leaky_relu;
use burn::tensor::module::{conv_transpose1d, conv1d};
use burn::tensor::ops::{ConvOptions, ConvTransposeOptions};
use burn::tensor::{Device, Int, Tensor, TensorData};
use gcodec::compress::random;
use gcodec_latent::{Conv, Innovation, Layer, Model};

use crate::{Result, Signals};

/// Parameters of one network; the model knows its layers.
#[derive(Module, Debug)]
struct Numbers {
    weights: Vec<Param<Tensor<3>>>,
    biases: Vec<Param<Tensor<1>>>,
}

/// All networks of a model.
#[derive(Module, Debug)]
struct Networks {
    encoder: Numbers,
    decoders: Vec<Numbers>,
}

fn tensor<const D: usize>(numbers: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

fn numbers<const D: usize>(tensor: &Tensor<D>) -> Result<Vec<f32>> {
    tensor.to_data().try_into_vec().map_err(|e| format!("burn's tensor is not of f32: {e:?}").into())
}

impl Numbers {
    fn of(layers: &[Layer], device: &Device) -> Self {
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for layer in layers {
            let (conv, shape) = match layer {
                Layer::Conv(conv) => (conv, [conv.outputs, conv.inputs, conv.kernel]),
                Layer::Transposed(conv) => (conv, [conv.inputs, conv.outputs, conv.kernel]),
                _ => continue,
            };
            weights.push(Param::from_tensor(tensor(conv.weights.clone(), shape, device)));
            if let Some(bias) = &conv.bias {
                biases.push(Param::from_tensor(tensor(bias.clone(), [conv.outputs], device)));
            }
        }
        Self { weights, biases }
    }

    /// `x`: samples, channels, columns. A crop leaves `values` columns; the innovation has the same number.
    fn forward(
        &self,
        layers: &[Layer],
        mut x: Tensor<3>,
        values: usize,
        innovation: Option<&Tensor<3>>,
    ) -> Result<Tensor<3>> {
        let (mut weights, mut biases) = (self.weights.iter(), self.biases.iter());
        for layer in layers {
            x = match layer {
                Layer::Conv(conv) => {
                    let weight = weights.next().ok_or("a layer without weights")?.val();
                    let bias = conv.bias.as_ref().and_then(|_| biases.next()).map(Param::val);
                    let columns = x.dims()[2];
                    // Padding before the first column, and after the last one for the last tap.
                    let reach = (columns / conv.stride - 1) * conv.stride + conv.kernel;
                    let after = reach.saturating_sub(columns + conv.before);
                    let options =
                        ConvOptions::new_with_padding([conv.stride], [(conv.before, after)], [1], 1);
                    conv1d(x, weight, bias, options).narrow(2, 0, columns / conv.stride)
                }
                Layer::Transposed(conv) => {
                    let weight = weights.next().ok_or("a layer without weights")?.val();
                    let bias = conv.bias.as_ref().and_then(|_| biases.next()).map(Param::val);
                    let columns = x.dims()[2] * conv.stride;
                    // All columns that the taps reach, at least the kept ones.
                    let missing = (columns + conv.before).saturating_sub(columns - conv.stride + conv.kernel);
                    let options = ConvTransposeOptions::new([conv.stride], [0], [missing], [1], 1);
                    conv_transpose1d(x, weight, bias, options).narrow(2, conv.before, columns)
                }
                Layer::LeakyRelu(slope) => leaky_relu(x, (*slope).into()),
                Layer::Crop => x.narrow(2, 0, values),
                Layer::Innovation => {
                    let innovation = innovation.ok_or("a decoder without its innovation")?;
                    Tensor::cat(vec![x, innovation.clone()], 1)
                }
                _ => return Err("a layer that training does not know".into()),
            };
        }
        Ok(x)
    }

    /// Returns the layers with these parameters.
    fn export(&self, layers: &[Layer]) -> Result<Vec<Layer>> {
        let (mut weights, mut biases) = (self.weights.iter(), self.biases.iter());
        let mut with = |conv: &Conv| -> Result<Conv> {
            let weights = numbers(&weights.next().ok_or("a layer without weights")?.val())?;
            let bias = match &conv.bias {
                Some(_) => Some(numbers(&biases.next().ok_or("a layer without bias")?.val())?),
                None => None,
            };
            Ok(Conv { weights, bias, ..conv.clone() })
        };
        layers
            .iter()
            .map(|layer| {
                Ok(match layer {
                    Layer::Conv(conv) => Layer::Conv(with(conv)?),
                    Layer::Transposed(conv) => Layer::Transposed(with(conv)?),
                    other => other.clone(),
                })
            })
            .collect()
    }
}

impl Networks {
    fn of(model: &Model, device: &Device) -> Self {
        Self {
            encoder: Numbers::of(model.encoder().layers(), device),
            decoders: model.decoders().iter().map(|d| Numbers::of(d.layers(), device)).collect(),
        }
    }

    fn export(&self, model: &Model) -> Result<Model> {
        let decoders = self.decoders.iter().zip(model.decoders());
        let decoders = decoders.map(|(numbers, d)| numbers.export(d.layers())).collect::<Result<_>>()?;
        Ok(Model::new(model.innovation(), self.encoder.export(model.encoder().layers())?, decoders)?)
    }
}

/// Encodes and decodes values with burn: returns the codes and each decoder's values, for a comparison with
/// the model's own inference.
///
/// # Errors
/// If training does not support a layer.
pub fn burn_forward(
    model: &Model,
    values: &[f32],
    innovation: &[(usize, f32)],
) -> Result<(Vec<f32>, Vec<Vec<f32>>)> {
    let device = Device::flex();
    let networks = Networks::of(model, &device);
    let columns = values.len().next_multiple_of(UNIT);
    let mut padded = values.to_vec();
    padded.resize(columns, 0.0);
    let x = tensor(padded, [1, 1, columns], &device);
    let codes = networks.encoder.forward(model.encoder().layers(), x, 0, None)?;
    let mut dense = vec![0.0; values.len()];
    innovation.iter().for_each(|&(i, x)| dense[i] = x);
    let extra = tensor(dense, [1, 1, values.len()], &device);
    let mut decoded = Vec::new();
    for (decoder, of) in networks.decoders.iter().zip(model.decoders()) {
        let y = decoder.forward(of.layers(), codes.clone(), values.len(), Some(&extra))?;
        decoded.push(numbers(&y)?);
    }
    Ok((numbers(&codes)?, decoded))
}

/// Values per column of codes in the paper's architecture.
const UNIT: usize = 16;

/// Optimizer of the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Optimizer {
    /// Adam.
    Adam,
    /// Stochastic gradient descent, as in the paper.
    Sgd,
}

/// Settings of the training.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Training {
    /// Steps of the optimizer
    #[arg(long, default_value_t = 300)]
    pub iterations: u64,
    /// Windows of signals in a batch
    #[arg(long, default_value_t = 16)]
    pub batch: usize,
    /// Values of a window, a multiple of 16
    #[arg(long, default_value_t = 256)]
    pub window: usize,
    /// Learning rate; falls to a tenth along a cosine
    #[arg(long, default_value_t = 2e-3)]
    pub rate: f64,
    /// Optimizer; the paper uses sgd with a rate of 1e-3
    #[arg(long, value_enum, default_value_t = Optimizer::Adam)]
    pub optimizer: Optimizer,
    /// Weight of the reconstruction error
    #[arg(long, default_value_t = 0.5)]
    pub lambda_rec: f64,
    /// Weight of the distance between the workers' codes
    #[arg(long, default_value_t = 0.5)]
    pub lambda_sim: f64,
    /// Share of the values that is an innovation
    #[arg(long, default_value_t = 0.1)]
    pub innovation: f64,
    /// Seed of weights and windows
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for Training {
    fn default() -> Self {
        Self {
            iterations: 300,
            batch: 16,
            window: 256,
            rate: 2e-3,
            optimizer: Optimizer::Adam,
            lambda_rec: 0.5,
            lambda_sim: 0.5,
            innovation: 0.1,
            seed: 1,
        }
    }
}

/// Losses at one step of the optimizer, before weighting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loss {
    /// Mean squared error of the values over all decoders, relative to the mean square of all workers'
    /// values.
    pub rec: f64,
    /// Mean squared distance between the codes of two workers, over all pairs.
    pub sim: f64,
}

/// Trains a model's networks on signals (arXiv 2103.08870). The loss follows the only public code; see
/// `docs/latent.md`.
///
/// With several decoders, each worker's decoder decodes the leader's codes with that worker's innovation.
/// With one decoder, the mean of the workers' codes is decoded to the mean of their values, and the distance
/// of codes has no weight.
///
/// Convolutions are independent of position, so batches are windows of signals. Each window is divided by
/// the root mean square of its values, which does not affect a model without biases.
///
/// # Errors
/// If there are no signals, workers and decoders do not match, or the loss becomes non-finite.
pub fn train(
    model: &Model,
    signals: &[Signals],
    training: &Training,
    mut progress: impl FnMut(u64, Loss),
) -> Result<Model> {
    let device = Device::flex().autodiff();
    let workers = signals.first().ok_or("no signals to train on")?.values.len();
    let ring = model.decoders().len() == 1;
    if workers == 0 || signals.iter().any(|s| s.values.len() != workers || s.leader >= workers) {
        return Err("signals of different numbers of workers".into());
    }
    if !ring && model.decoders().len() != workers {
        return Err("not as many decoders as workers".into());
    }
    if training.window == 0 || !training.window.is_multiple_of(UNIT) || training.batch == 0 {
        return Err("a window is a multiple of 16, and a batch holds one at least".into());
    }
    let with_innovation = model.innovation() != Innovation::None;
    let innovations: Vec<Vec<Vec<f32>>> = signals
        .iter()
        .map(|s| s.values.iter().map(|v| innovation_of(v, training.innovation)).collect())
        .collect();
    let mut networks = Networks::of(model, &device);
    let mut optimizer: ModuleOptimizer = match training.optimizer {
        Optimizer::Adam => AdamConfig::new().with_epsilon(1e-8).init(),
        Optimizer::Sgd => SgdConfig::new().init(),
    };
    let (batch, window) = (training.batch, training.window);
    for iteration in 0..training.iterations {
        // Samples are grouped by worker: those of worker w begin at w * batch.
        let (mut x, mut extra) = (vec![0.0; workers * batch * window], vec![0.0; workers * batch * window]);
        let mut leaders = Vec::with_capacity(batch);
        for sample in 0..batch {
            let draw = |which| random::word(training.seed, 1 << 32 | iteration, (2 * sample + which) as u64);
            let number = draw(0) as usize % signals.len();
            let signal = &signals[number];
            let len = signal.values[0].len();
            let start = draw(1) as usize % (len.saturating_sub(window) + 1);
            let end = len.min(start + window);
            let squares = signal.values.iter().flat_map(|v| &v[start..end]);
            let power: f64 = squares.map(|v| f64::from(*v) * f64::from(*v)).sum();
            let scale = (power / (workers * (end - start)).max(1) as f64).sqrt().max(1e-30);
            for (w, (values, innovation)) in signal.values.iter().zip(&innovations[number]).enumerate() {
                let place = (w * batch + sample) * window;
                for i in start..end {
                    x[place + i - start] = (f64::from(values[i]) / scale) as f32;
                    extra[place + i - start] = (f64::from(innovation[i]) / scale) as f32;
                }
            }
            leaders.push((signal.leader * batch + sample) as i32);
        }
        let x: Tensor<3> = tensor(x, [workers * batch, 1, window], &device);
        let codes = networks.encoder.forward(model.encoder().layers(), x.clone(), 0, None)?;
        let of = |t: &Tensor<3>, w: usize| t.clone().narrow(0, w * batch, batch);
        let mut sim: Tensor<1> = tensor(vec![0.0], [1], &device);
        for a in 0..workers {
            for b in a + 1..workers {
                sim = sim + (of(&codes, a) - of(&codes, b)).square().mean();
            }
        }
        let mut rec: Tensor<1> = tensor(vec![0.0], [1], &device);
        if ring {
            let mut sum = of(&codes, 0);
            let mut target = of(&x, 0);
            for w in 1..workers {
                sum = sum + of(&codes, w);
                target = target + of(&x, w);
            }
            let mean = 1.0 / workers as f64;
            let layers = model.decoders()[0].layers();
            let y = networks.decoders[0].forward(layers, sum.mul_scalar(mean), window, None)?;
            rec = rec + (y - target.mul_scalar(mean)).square().mean();
        } else {
            let indices: Tensor<1, Int> = Tensor::from_data(TensorData::new(leaders, [batch]), &device);
            let common = codes.clone().select(0, indices);
            let extra: Tensor<3> = tensor(extra, [workers * batch, 1, window], &device);
            for (w, decoder) in networks.decoders.iter().enumerate() {
                let innovation = of(&extra, w);
                let layers = model.decoders()[w].layers();
                let y = decoder.forward(
                    layers,
                    common.clone(),
                    window,
                    with_innovation.then_some(&innovation),
                )?;
                let mut error = y - of(&x, w);
                if model.innovation() == Innovation::Replace {
                    // Where the innovation replaces decoded values, the error is zero.
                    error = error.mask_fill(innovation.not_equal_elem(0.0), 0.0);
                }
                rec = rec + error.square().mean();
            }
        }
        let loss = Loss { rec: scalar(&rec)?, sim: scalar(&sim)? };
        if !loss.rec.is_finite() || !loss.sim.is_finite() {
            return Err(format!("the loss is not finite after {iteration} steps: a smaller rate?").into());
        }
        progress(iteration, loss);
        let lambda_sim = if ring { 0.0 } else { training.lambda_sim };
        let total = rec.mul_scalar(training.lambda_rec) + sim.mul_scalar(lambda_sim);
        let gradients = GradientsParams::from_grads(total.backward(), &networks);
        let turn = iteration as f64 / training.iterations as f64 * std::f64::consts::PI;
        let rate = training.rate * (0.55 + 0.45 * turn.cos());
        networks = optimizer.step(rate, networks, gradients);
    }
    networks.export(model)
}

fn scalar(tensor: &Tensor<1>) -> Result<f64> {
    Ok(f64::from(numbers(tensor)?[0]))
}

/// Returns the largest values at their positions and zero elsewhere: the innovation of a
/// [`Worker`](gcodec_latent::protocol::Worker).
fn innovation_of(values: &[f32], part: f64) -> Vec<f32> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()));
    order.truncate((part * values.len() as f64).round() as usize);
    let mut dense = vec![0.0; values.len()];
    order.into_iter().for_each(|i| dense[i] = values[i]);
    dense
}
