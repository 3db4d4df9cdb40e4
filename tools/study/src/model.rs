//! The networks: functions of their weights, which are stored as plain numbers.

use burn::tensor::activation::{gelu, log_softmax, relu, softmax};
use burn::tensor::module::{conv2d, embedding, layer_norm, linear, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use gcodec::compress::random;

use crate::data::{Digits, PIXELS, Text, shuffled};

/// Elements of each of a network's tensors, row-major.
pub(crate) type Tensors = Vec<Vec<f32>>;

/// One tensor of weights.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    init: Init,
}

/// Initialisation of weights.
#[derive(Debug, Clone, Copy)]
enum Init {
    Constant(f32),
    /// Uniform, with this standard deviation.
    Uniform(f32),
}

impl Parameter {
    fn new(name: impl Into<String>, shape: &[usize], init: Init) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), init }
    }

    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Returns the initial weights, a function of the seed.
pub(crate) fn initial(parameters: &[Parameter], seed: u64) -> Tensors {
    let tensor = |(number, p): (usize, &Parameter)| {
        let element = |i: usize| match p.init {
            Init::Constant(c) => c,
            Init::Uniform(deviation) => {
                let unit = random::word(seed, number as u64, i as u64) as f32 / 2f32.powi(31) - 1.0;
                unit * deviation * 3f32.sqrt()
            }
        };
        (0..p.elements()).map(element).collect()
    };
    parameters.iter().enumerate().map(tensor).collect()
}

/// Score of weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Score {
    /// Mean cross-entropy of the test set, in nats.
    pub(crate) loss: f64,
    /// Accuracy on the test set, 0 to 1.
    pub(crate) accuracy: f64,
}

/// A network and its data.
pub(crate) trait Task: Send + Sync {
    fn parameters(&self) -> &[Parameter];
    /// Number of examples in one worker's step.
    fn batch_len(&self) -> usize;
    /// Returns the loss of one worker's batch at step `step`, and its gradient.
    fn gradient(&self, weights: &Tensors, at: At) -> (f32, Tensors);
    fn test(&self, weights: &Tensors) -> Score;
}

/// Worker and step of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) seed: u64,
    pub(crate) worker: usize,
    pub(crate) workers: usize,
    pub(crate) step: u64,
}

/// Returns the weights as burn's tensors.
struct Leaves<'a> {
    parameters: &'a [Parameter],
    weights: &'a Tensors,
    device: Device,
    next: usize,
    d1: Vec<(usize, Tensor<1>)>,
    d2: Vec<(usize, Tensor<2>)>,
    d4: Vec<(usize, Tensor<4>)>,
}

impl<'a> Leaves<'a> {
    fn new(parameters: &'a [Parameter], weights: &'a Tensors, train: bool) -> Self {
        let device = if train { Device::flex().autodiff() } else { Device::flex() };
        Self { parameters, weights, device, next: 0, d1: Vec::new(), d2: Vec::new(), d4: Vec::new() }
    }

    /// Returns the next parameter in order.
    fn take<const D: usize>(&mut self) -> (usize, Tensor<D>) {
        let number = self.next;
        self.next += 1;
        let shape = self.parameters[number].shape.clone();
        let leaf = Tensor::from_data(TensorData::new(self.weights[number].clone(), shape), &self.device);
        let leaf = if self.device.is_autodiff() { leaf.require_grad() } else { leaf };
        (number, leaf)
    }

    fn vector(&mut self) -> Tensor<1> {
        let leaf = self.take();
        self.d1.push(leaf.clone());
        leaf.1
    }

    fn matrix(&mut self) -> Tensor<2> {
        let leaf = self.take();
        self.d2.push(leaf.clone());
        leaf.1
    }

    fn kernel(&mut self) -> Tensor<4> {
        let leaf = self.take();
        self.d4.push(leaf.clone());
        leaf.1
    }

    /// Returns the gradients in the order of the parameters.
    fn gradients(&self, loss: &Tensor<1>) -> Tensors {
        let gradients = loss.backward();
        let mut all = vec![Vec::new(); self.parameters.len()];
        collect(&self.d1, &gradients, &mut all);
        collect(&self.d2, &gradients, &mut all);
        collect(&self.d4, &gradients, &mut all);
        all
    }
}

fn collect<const D: usize>(leaves: &[(usize, Tensor<D>)], gradients: &Gradients, all: &mut Tensors) {
    for (number, leaf) in leaves {
        let gradient = leaf.grad(gradients).expect("every parameter is used");
        all[*number] = numbers(gradient);
    }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().as_slice::<f32>().expect("burn's default float is f32").to_vec()
}

/// Returns the cross-entropy of rows of logits, summed and divided by the number of rows.
fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let [rows, _] = logits.dims();
    log_softmax(logits, 1).gather(1, targets.reshape([rows, 1])).mean().neg()
}

/// Returns the number of rows with their largest logit at their target.
fn right(logits: Tensor<2>, targets: &[i32]) -> usize {
    let [rows, classes] = logits.dims();
    let logits = numbers(logits);
    let best = |row: &[f32]| (0..classes).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    (0..rows).filter(|&r| best(&logits[r * classes..][..classes]) == Some(targets[r] as usize)).count()
}

fn integers<const D: usize>(values: Vec<i32>, shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// A convolutional network for digits: three convolutions of 3 x 3 with 32, 64 and 128 channels, two
/// poolings, a dense layer of 512.
pub(crate) struct Convolutional {
    digits: Digits,
    parameters: Vec<Parameter>,
}

impl Convolutional {
    pub(crate) fn new(digits: Digits) -> Self {
        // He et al., arXiv 1502.01852: the variance before a rectifier is 2 / inputs.
        let he = |inputs: usize| Init::Uniform((2.0 / inputs as f32).sqrt());
        let zero = Init::Constant(0.0);
        let parameters = vec![
            Parameter::new("conv1.weight", &[32, 1, 3, 3], he(9)),
            Parameter::new("conv1.bias", &[32], zero),
            Parameter::new("conv2.weight", &[64, 32, 3, 3], he(288)),
            Parameter::new("conv2.bias", &[64], zero),
            Parameter::new("conv3.weight", &[128, 64, 3, 3], he(576)),
            Parameter::new("conv3.bias", &[128], zero),
            Parameter::new("dense1.weight", &[512, 512], he(512)),
            Parameter::new("dense1.bias", &[512], zero),
            Parameter::new("dense2.weight", &[512, 10], he(512)),
            Parameter::new("dense2.bias", &[10], zero),
        ];
        Self { digits, parameters }
    }

    fn logits(leaves: &mut Leaves<'_>, images: &[[u8; PIXELS]]) -> Tensor<2> {
        let n = images.len();
        let pixels = images.iter().flatten().map(|&p| f32::from(p) / 8.0 - 1.0);
        let data = TensorData::new(pixels.collect::<Vec<f32>>(), [n, 1, 8, 8]);
        let mut x: Tensor<4> = Tensor::from_data(data, &leaves.device);
        for pool in [true, false, true] {
            let (kernel, bias) = (leaves.kernel(), leaves.vector());
            x = relu(conv2d(x, kernel, Some(bias), ConvOptions::new([1, 1], [1, 1], [1, 1], 1)));
            if pool {
                x = max_pool2d(x, MaxPoolOptions::new([2, 2]));
            }
        }
        let (weight, bias) = (leaves.matrix(), leaves.vector());
        let x = relu(linear(x.reshape([n, 512]), weight, Some(bias)));
        let (weight, bias) = (leaves.matrix(), leaves.vector());
        linear(x, weight, Some(bias))
    }
}

/// Marks the random numbers of [`shifted`].
const SHIFTS: u64 = 1 << 32;

/// Shifts the image by at most a pixel in each direction. Without shifts, a network of this size memorises
/// its thousand digits after some passes, and no gradient is left to compress.
fn shifted(image: &[u8; PIXELS], draw: u32) -> [u8; PIXELS] {
    let (down, right) = ((draw % 3) as usize, (draw / 3 % 3) as usize);
    std::array::from_fn(|p| {
        let (row, column) = (p / 8 + down, p % 8 + right);
        match (1..9).contains(&row) && (1..9).contains(&column) {
            true => image[(row - 1) * 8 + column - 1],
            false => 0,
        }
    })
}

impl Task for Convolutional {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn batch_len(&self) -> usize {
        16
    }

    fn gradient(&self, weights: &Tensors, at: At) -> (f32, Tensors) {
        // A worker's own digits, in a new order in each pass over them.
        let shard: Vec<_> = self.digits.train.iter().skip(at.worker).step_by(at.workers).collect();
        let batches = (shard.len() / self.batch_len()).max(1) as u64;
        let stream = 1 + (at.step / batches) * at.workers as u64 + at.worker as u64;
        let order = shuffled(shard.len(), at.seed, stream);
        let from = (at.step % batches) as usize * self.batch_len();
        let batch: Vec<_> = order.iter().skip(from).take(self.batch_len()).map(|&i| shard[i]).collect();
        let draw = |i: usize| random::word(at.seed, SHIFTS | at.worker as u64, at.step << 16 | i as u64);
        let images: Vec<_> =
            batch.iter().enumerate().map(|(i, (image, _))| shifted(image, draw(i))).collect();
        let mut leaves = Leaves::new(&self.parameters, weights, true);
        let targets = batch.iter().map(|(_, label)| i32::from(*label)).collect();
        let targets = integers(targets, [batch.len()], &leaves.device);
        let loss = cross_entropy(Self::logits(&mut leaves, &images), targets);
        let gradients = leaves.gradients(&loss);
        (numbers(loss)[0], gradients)
    }

    fn test(&self, weights: &Tensors) -> Score {
        let mut leaves = Leaves::new(&self.parameters, weights, false);
        let images: Vec<_> = self.digits.test.iter().map(|(image, _)| *image).collect();
        let targets: Vec<i32> = self.digits.test.iter().map(|(_, label)| i32::from(*label)).collect();
        let logits = Self::logits(&mut leaves, &images);
        let accuracy = right(logits.clone(), &targets) as f64 / images.len() as f64;
        let loss = cross_entropy(logits, integers(targets, [images.len()], &leaves.device));
        Score { loss: f64::from(numbers(loss)[0]), accuracy }
    }
}

/// A transformer that predicts the next byte of text.
pub(crate) struct Language {
    text: Text,
    parameters: Vec<Parameter>,
}

const WIDTH: usize = 128;
const HEADS: usize = 4;
const LAYERS: usize = 2;
const CONTEXT: usize = 64;
const BYTES: usize = 256;
/// Number of test windows, spread evenly over the text.
const TEST_WINDOWS: usize = 256;

impl Language {
    pub(crate) fn new(text: Text) -> Self {
        let small = Init::Uniform(0.02);
        // GPT-2: smaller initial weights where a layer adds to the residual stream, since each layer adds
        // twice.
        let added = Init::Uniform(0.02 / (2.0 * LAYERS as f32).sqrt());
        let (zero, one) = (Init::Constant(0.0), Init::Constant(1.0));
        let mut parameters = vec![
            Parameter::new("embedding", &[BYTES, WIDTH], small),
            Parameter::new("positions", &[CONTEXT, WIDTH], small),
        ];
        for layer in 0..LAYERS {
            let mut add = |name: &str, shape: &[usize], init| {
                parameters.push(Parameter::new(format!("layer{layer}.{name}"), shape, init));
            };
            add("norm1.scale", &[WIDTH], one);
            add("norm1.shift", &[WIDTH], zero);
            add("attention.in.weight", &[WIDTH, 3 * WIDTH], small);
            add("attention.in.bias", &[3 * WIDTH], zero);
            add("attention.out.weight", &[WIDTH, WIDTH], added);
            add("attention.out.bias", &[WIDTH], zero);
            add("norm2.scale", &[WIDTH], one);
            add("norm2.shift", &[WIDTH], zero);
            add("dense.in.weight", &[WIDTH, 4 * WIDTH], small);
            add("dense.in.bias", &[4 * WIDTH], zero);
            add("dense.out.weight", &[4 * WIDTH, WIDTH], added);
            add("dense.out.bias", &[WIDTH], zero);
        }
        parameters.extend([
            Parameter::new("norm.scale", &[WIDTH], one),
            Parameter::new("norm.shift", &[WIDTH], zero),
            Parameter::new("head.weight", &[WIDTH, BYTES], small),
        ]);
        Self { text, parameters }
    }

    /// Returns the logits of each byte's successor, for windows of [`CONTEXT`] bytes.
    fn logits(leaves: &mut Leaves<'_>, windows: &[&[u8]]) -> Tensor<2> {
        let n = windows.len();
        let device = leaves.device.clone();
        let bytes = windows.iter().flat_map(|w| &w[..CONTEXT]).map(|&b| i32::from(b)).collect();
        let positions = (0..CONTEXT as i32).collect();
        let x = embedding(leaves.matrix(), integers(bytes, [n, CONTEXT], &device));
        let mut x = x + embedding(leaves.matrix(), integers(positions, [1, CONTEXT], &device));
        let later = (0..CONTEXT * CONTEXT).map(|i| if i % CONTEXT > i / CONTEXT { -1e9 } else { 0.0 });
        let later = TensorData::new(later.collect::<Vec<f32>>(), [1, 1, CONTEXT, CONTEXT]);
        let later: Tensor<4> = Tensor::from_data(later, &device);
        for _ in 0..LAYERS {
            let (scale, shift) = (leaves.vector(), leaves.vector());
            let normed = layer_norm(x.clone(), scale, Some(shift), 1e-5);
            let (weight, bias) = (leaves.matrix(), leaves.vector());
            let all = linear(normed, weight, Some(bias)).reshape([n, CONTEXT, 3 * HEADS, WIDTH / HEADS]);
            let all = all.swap_dims(1, 2);
            let part = |i: usize| all.clone().narrow(1, i * HEADS, HEADS);
            let scores = part(0).matmul(part(1).swap_dims(2, 3)) / ((WIDTH / HEADS) as f32).sqrt();
            let mixed = softmax(scores + later.clone(), 3).matmul(part(2));
            let mixed = mixed.swap_dims(1, 2).reshape([n, CONTEXT, WIDTH]);
            let (weight, bias) = (leaves.matrix(), leaves.vector());
            x = x + linear(mixed, weight, Some(bias));
            let (scale, shift) = (leaves.vector(), leaves.vector());
            let normed = layer_norm(x.clone(), scale, Some(shift), 1e-5);
            let (weight, bias) = (leaves.matrix(), leaves.vector());
            let inner = gelu(linear(normed, weight, Some(bias)));
            let (weight, bias) = (leaves.matrix(), leaves.vector());
            x = x + linear(inner, weight, Some(bias));
        }
        let (scale, shift) = (leaves.vector(), leaves.vector());
        let x = layer_norm(x, scale, Some(shift), 1e-5).reshape([n * CONTEXT, WIDTH]);
        x.matmul(leaves.matrix())
    }

    fn targets(windows: &[&[u8]]) -> Vec<i32> {
        windows.iter().flat_map(|w| &w[1..]).map(|&b| i32::from(b)).collect()
    }
}

impl Task for Language {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn batch_len(&self) -> usize {
        4
    }

    fn gradient(&self, weights: &Tensors, at: At) -> (f32, Tensors) {
        // Each worker has its own part of the text, and draws random windows from it.
        let share = self.text.train.len() / at.workers;
        let shard = &self.text.train[at.worker * share..][..share];
        let windows: Vec<&[u8]> = (0..self.batch_len() as u64)
            .map(|i| {
                let draw = random::word(at.seed, 1 + at.worker as u64, at.step * self.batch_len() as u64 + i);
                &shard[draw as usize % (share - CONTEXT)..][..CONTEXT + 1]
            })
            .collect();
        let mut leaves = Leaves::new(&self.parameters, weights, true);
        let targets = integers(Self::targets(&windows), [windows.len() * CONTEXT], &leaves.device);
        let loss = cross_entropy(Self::logits(&mut leaves, &windows), targets);
        let gradients = leaves.gradients(&loss);
        (numbers(loss)[0], gradients)
    }

    fn test(&self, weights: &Tensors) -> Score {
        let (mut loss, mut hits) = (0.0, 0);
        let stride = (self.text.test.len() - CONTEXT - 1) / TEST_WINDOWS;
        let windows: Vec<&[u8]> =
            (0..TEST_WINDOWS).map(|i| &self.text.test[i * stride..][..CONTEXT + 1]).collect();
        for windows in windows.chunks(32) {
            let mut leaves = Leaves::new(&self.parameters, weights, false);
            let logits = Self::logits(&mut leaves, windows);
            let targets = Self::targets(windows);
            hits += right(logits.clone(), &targets);
            let targets = integers(targets, [windows.len() * CONTEXT], &leaves.device);
            loss += f64::from(numbers(cross_entropy(logits, targets))[0]) * windows.len() as f64;
        }
        let n = TEST_WINDOWS as f64;
        Score { loss: loss / n, accuracy: hits as f64 / (n * CONTEXT as f64) }
    }
}
