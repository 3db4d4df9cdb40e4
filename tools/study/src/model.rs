//! The networks: functions of their weights, which are stored as plain numbers.

use gcodec::compress::random;
use ndarray::{Array2, ArrayView1};

use crate::data::{Digits, HeldOut, PIXELS, Text, shuffled};
use crate::tape::{Heads, Images, Tape, Var};

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
    /// Mean cross-entropy, in nats.
    pub(crate) loss: f64,
    /// Accuracy, 0 to 1.
    pub(crate) accuracy: f64,
}

/// A network and its data.
pub(crate) trait Task: Send + Sync {
    fn parameters(&self) -> &[Parameter];
    /// Number of examples in one worker's step.
    fn batch_len(&self) -> usize;
    /// Returns the loss of one worker's batch at step `step`, and its gradient.
    fn gradient(&self, weights: &Tensors, at: At) -> (f32, Tensors);
    /// Returns the score of weights on data that no step has seen.
    fn score(&self, weights: &Tensors, part: HeldOut) -> Score;
}

/// Worker and step of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) seed: u64,
    pub(crate) worker: usize,
    pub(crate) workers: usize,
    pub(crate) step: u64,
}

/// Weights on a tape, taken in the order of the parameters.
struct Leaves<'a> {
    parameters: &'a [Parameter],
    weights: &'a Tensors,
    tape: Tape,
    taken: Vec<Var>,
}

impl<'a> Leaves<'a> {
    fn new(parameters: &'a [Parameter], weights: &'a Tensors) -> Self {
        Self { parameters, weights, tape: Tape::default(), taken: Vec::new() }
    }

    /// Returns the next parameter: a row for each place of its first dimension; a vector is one row.
    fn take(&mut self) -> Var {
        let number = self.taken.len();
        let rows = match self.parameters[number].shape.as_slice() {
            [] | [_] => 1,
            [rows, ..] => *rows,
        };
        let leaf = self.tape.leaf(matrix(rows, self.weights[number].clone()));
        self.taken.push(leaf);
        leaf
    }

    /// Returns a layer of the next two parameters, weight and bias.
    fn linear(&mut self, x: Var) -> Var {
        let (weight, bias) = (self.take(), self.take());
        self.tape.linear(x, weight, bias)
    }

    /// Returns a normalisation with the next two parameters, scale and shift.
    fn norm(&mut self, x: Var) -> Var {
        let (scale, shift) = (self.take(), self.take());
        self.tape.layer_norm(x, scale, shift)
    }

    /// Returns a loss, and its gradients in the order of the parameters.
    fn gradients(self, loss: Var) -> (f32, Tensors) {
        assert_eq!(self.taken.len(), self.parameters.len(), "every parameter is used");
        (self.tape.value(loss)[[0, 0]], self.tape.gradients(loss, &self.taken))
    }
}

fn matrix(rows: usize, numbers: Vec<f32>) -> Array2<f32> {
    let columns = numbers.len() / rows.max(1);
    Array2::from_shape_vec((rows, columns), numbers).expect("whole rows")
}

/// Returns the number of rows with their largest logit at their target.
fn right(logits: &Array2<f32>, targets: &[usize]) -> usize {
    let best = |row: ArrayView1<'_, f32>| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    logits.rows().into_iter().zip(targets).filter(|(row, target)| best(*row) == Some(**target)).count()
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

    fn logits(leaves: &mut Leaves<'_>, images: &[[u8; PIXELS]]) -> Var {
        let pixels = images.iter().flatten().map(|&p| f32::from(p) / 8.0 - 1.0).collect();
        let var = leaves.tape.leaf(matrix(1, pixels));
        let mut x = Images { var, samples: images.len(), side: 8 };
        for pool in [true, false, true] {
            let (kernel, bias) = (leaves.take(), leaves.take());
            x = leaves.tape.conv(x, kernel, bias);
            x.var = leaves.tape.relu(x.var);
            if pool {
                x = leaves.tape.max_pool(x);
            }
        }
        let x = leaves.tape.flatten(x);
        let x = leaves.linear(x);
        let x = leaves.tape.relu(x);
        leaves.linear(x)
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
        let targets = batch.iter().map(|(_, label)| usize::from(*label)).collect();
        let mut leaves = Leaves::new(&self.parameters, weights);
        let logits = Self::logits(&mut leaves, &images);
        let loss = leaves.tape.cross_entropy(logits, targets);
        leaves.gradients(loss)
    }

    fn score(&self, weights: &Tensors, part: HeldOut) -> Score {
        let digits = self.digits.held_out(part);
        let mut leaves = Leaves::new(&self.parameters, weights);
        let images: Vec<_> = digits.iter().map(|(image, _)| *image).collect();
        let targets: Vec<usize> = digits.iter().map(|(_, label)| usize::from(*label)).collect();
        let logits = Self::logits(&mut leaves, &images);
        let accuracy = right(leaves.tape.value(logits), &targets) as f64 / images.len() as f64;
        let loss = leaves.tape.cross_entropy(logits, targets);
        Score { loss: f64::from(leaves.tape.value(loss)[[0, 0]]), accuracy }
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
/// Number of windows of a score, spread evenly over the text.
const SCORED_WINDOWS: usize = 256;

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
    fn logits(leaves: &mut Leaves<'_>, windows: &[&[u8]]) -> Var {
        let bytes = windows.iter().flat_map(|w| &w[..CONTEXT]).map(|&b| usize::from(b)).collect();
        let places = windows.iter().flat_map(|_| 0..CONTEXT).collect();
        let (embedding, positions) = (leaves.take(), leaves.take());
        let (bytes, places) = (leaves.tape.rows(embedding, bytes), leaves.tape.rows(positions, places));
        let mut x = leaves.tape.add(bytes, places);
        let heads = Heads { samples: windows.len(), context: CONTEXT, heads: HEADS, width: WIDTH / HEADS };
        for _ in 0..LAYERS {
            let normed = leaves.norm(x);
            let all = leaves.linear(normed);
            let mixed = leaves.tape.attention(all, heads);
            let mixed = leaves.linear(mixed);
            x = leaves.tape.add(x, mixed);
            let normed = leaves.norm(x);
            let inner = leaves.linear(normed);
            let inner = leaves.tape.gelu(inner);
            let inner = leaves.linear(inner);
            x = leaves.tape.add(x, inner);
        }
        let x = leaves.norm(x);
        let head = leaves.take();
        leaves.tape.product(x, head)
    }

    fn targets(windows: &[&[u8]]) -> Vec<usize> {
        windows.iter().flat_map(|w| &w[1..]).map(|&b| usize::from(b)).collect()
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
        let mut leaves = Leaves::new(&self.parameters, weights);
        let logits = Self::logits(&mut leaves, &windows);
        let loss = leaves.tape.cross_entropy(logits, Self::targets(&windows));
        leaves.gradients(loss)
    }

    fn score(&self, weights: &Tensors, part: HeldOut) -> Score {
        let text = self.text.held_out(part);
        let (mut loss, mut hits) = (0.0, 0);
        let stride = (text.len() - CONTEXT - 1) / SCORED_WINDOWS;
        let windows: Vec<&[u8]> = (0..SCORED_WINDOWS).map(|i| &text[i * stride..][..CONTEXT + 1]).collect();
        for windows in windows.chunks(32) {
            let mut leaves = Leaves::new(&self.parameters, weights);
            let logits = Self::logits(&mut leaves, windows);
            let targets = Self::targets(windows);
            hits += right(leaves.tape.value(logits), &targets);
            let mean = leaves.tape.cross_entropy(logits, targets);
            loss += f64::from(leaves.tape.value(mean)[[0, 0]]) * windows.len() as f64;
        }
        let n = SCORED_WINDOWS as f64;
        Score { loss: loss / n, accuracy: hits as f64 / (n * CONTEXT as f64) }
    }
}
