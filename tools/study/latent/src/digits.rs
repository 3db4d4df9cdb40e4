//! Real training by several workers: a convolutional network on the digits of `tools/study/digits`.

use std::path::Path;

use burn::tensor::activation::{log_softmax, relu};
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Int, Tensor, TensorData};
use gcodec::compress::random;

use crate::Result;

const PIXELS: usize = 64;
const RECORD: usize = PIXELS + 1;
const CLASSES: usize = 10;
/// Number of test records: the last ones.
const TEST: usize = 297;

/// Names and shapes of the parameters, in order.
pub const SHAPES: [(&str, &[usize]); 10] = [
    ("conv1.weight", &[16, 1, 3, 3]),
    ("conv1.bias", &[16]),
    ("conv2.weight", &[32, 16, 3, 3]),
    ("conv2.bias", &[32]),
    ("conv3.weight", &[64, 32, 3, 3]),
    ("conv3.bias", &[64]),
    ("fc1.weight", &[1024, 96]),
    ("fc1.bias", &[96]),
    ("fc2.weight", &[96, 10]),
    ("fc2.bias", &[10]),
];

/// The digits.
pub struct Digits {
    bytes: Vec<u8>,
}

impl Digits {
    /// Reads `tools/study/digits/digits.u8`.
    ///
    /// # Errors
    /// If the file is missing, or does not have records of 65 bytes with a label below 10.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let whole = bytes.len().is_multiple_of(RECORD) && bytes.len() / RECORD > TEST;
        if !whole || bytes.chunks(RECORD).any(|r| usize::from(r[PIXELS]) >= CLASSES) {
            return Err(format!("{}: not records of 64 pixels and a label", path.display()).into());
        }
        Ok(Self { bytes })
    }

    fn len(&self) -> usize {
        self.bytes.len() / RECORD
    }

    fn batch(&self, records: &[usize], device: &Device) -> (Tensor<4>, Tensor<2, Int>) {
        let record = |&r: &usize| &self.bytes[r * RECORD..][..RECORD];
        let pixels = records.iter().flat_map(|r| &record(r)[..PIXELS]).map(|&p| f32::from(p) / 8.0 - 1.0);
        let labels = records.iter().map(|r| i32::from(record(r)[PIXELS]));
        let x = TensorData::new(pixels.collect::<Vec<f32>>(), [records.len(), 1, 8, 8]);
        let y = TensorData::new(labels.collect::<Vec<i32>>(), [records.len(), 1]);
        (Tensor::from_data(x, device), Tensor::from_data(y, device))
    }
}

/// A network and its momentum.
pub struct Net {
    /// Parameters in the order of [`SHAPES`].
    pub parameters: Vec<Vec<f32>>,
    momentum: Vec<Vec<f32>>,
}

impl Net {
    /// Returns random weights, uniform with variance 2 / fan-in, and zero biases.
    pub fn new(seed: u64) -> Self {
        let parameters: Vec<Vec<f32>> = SHAPES
            .iter()
            .enumerate()
            .map(|(t, (name, shape))| {
                let count = shape.iter().product();
                if name.ends_with("bias") {
                    return vec![0.0; count];
                }
                let fan: usize = if shape.len() == 4 { shape[1..].iter().product() } else { shape[0] };
                let bound = (6.0 / fan as f32).sqrt();
                let number = |i| (random::word(seed, t as u64, i) >> 8) as f32 / 8_388_608.0 - 1.0;
                (0..count as u64).map(|i| number(i) * bound).collect()
            })
            .collect();
        let momentum = parameters.iter().map(|p| vec![0.0; p.len()]).collect();
        Self { parameters, momentum }
    }

    fn tensor<const D: usize>(&self, t: usize, device: &Device) -> Tensor<D> {
        let shape: [usize; D] = std::array::from_fn(|d| SHAPES[t].1[d]);
        Tensor::from_data(TensorData::new(self.parameters[t].clone(), shape), device)
    }

    /// Returns the gradients of one worker's batch of 32 at a step, and its mean loss.
    ///
    /// # Errors
    /// If burn returns no gradient for a parameter.
    pub fn gradients(
        &self,
        digits: &Digits,
        worker: u64,
        step: u64,
        seed: u64,
    ) -> Result<(Vec<Vec<f32>>, f64)> {
        let device = Device::flex().autodiff();
        let train = digits.len() - TEST;
        let draw = |i| random::word(seed, 1 << 40 | step << 8 | worker, i) as usize % train;
        let records: Vec<usize> = (0..32).map(draw).collect();
        let (x, labels) = digits.batch(&records, &device);
        let kernels: [Tensor<4>; 3] = [0, 2, 4].map(|t| self.tensor(t, &device).require_grad());
        let matrices: [Tensor<2>; 2] = [6, 8].map(|t| self.tensor(t, &device).require_grad());
        let biases: [Tensor<1>; 5] = [1, 3, 5, 7, 9].map(|t| self.tensor(t, &device).require_grad());
        let scores = forward(x, &kernels, &matrices, &biases);
        let loss = log_softmax(scores, 1).gather(1, labels).mean().neg();
        let value: Vec<f32> = loss.to_data().try_into_vec().map_err(|e| format!("{e:?}"))?;
        let all = loss.backward();
        let mut gradients = vec![Vec::new(); SHAPES.len()];
        let mut put = |t: usize, data: Option<TensorData>| -> Result<()> {
            let data = data.ok_or_else(|| format!("no gradient of {}", SHAPES[t].0))?;
            gradients[t] = data.try_into_vec().map_err(|e| format!("{e:?}"))?;
            Ok(())
        };
        for (i, tensor) in kernels.iter().enumerate() {
            put(2 * i, tensor.grad(&all).map(Tensor::into_data))?;
        }
        for (i, tensor) in matrices.iter().enumerate() {
            put(6 + 2 * i, tensor.grad(&all).map(Tensor::into_data))?;
        }
        for (i, tensor) in biases.iter().enumerate() {
            put(2 * i + 1, tensor.grad(&all).map(Tensor::into_data))?;
        }
        Ok((gradients, f64::from(value[0])))
    }

    /// Takes a step of gradient descent with momentum 0.9.
    pub fn step(&mut self, gradients: &[Vec<f32>], rate: f32) {
        for ((parameters, momentum), gradient) in
            self.parameters.iter_mut().zip(&mut self.momentum).zip(gradients)
        {
            for ((p, m), g) in parameters.iter_mut().zip(momentum).zip(gradient) {
                *m = 0.9 * *m + g;
                *p -= rate * *m;
            }
        }
    }

    /// Returns the accuracy on the test digits, 0 to 1.
    ///
    /// # Errors
    /// If burn's elements are not f32.
    pub fn accuracy(&self, digits: &Digits) -> Result<f64> {
        let device = Device::flex();
        let records: Vec<usize> = (digits.len() - TEST..digits.len()).collect();
        let (x, _) = digits.batch(&records, &device);
        let kernels = [0, 2, 4].map(|t| self.tensor(t, &device));
        let matrices = [6, 8].map(|t| self.tensor(t, &device));
        let biases = [1, 3, 5, 7, 9].map(|t| self.tensor(t, &device));
        let scores = forward(x, &kernels, &matrices, &biases);
        let scores: Vec<f32> = scores.into_data().try_into_vec().map_err(|e| format!("{e:?}"))?;
        let right = records.iter().zip(scores.chunks(CLASSES)).filter(|(r, scores)| {
            let best = (0..CLASSES).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
            best == Some(usize::from(digits.bytes[*r * RECORD + PIXELS]))
        });
        Ok(right.count() as f64 / records.len() as f64)
    }
}

fn forward(
    x: Tensor<4>,
    kernels: &[Tensor<4>; 3],
    matrices: &[Tensor<2>; 2],
    biases: &[Tensor<1>; 5],
) -> Tensor<2> {
    let mut x = x;
    for (i, kernel) in kernels.iter().enumerate() {
        let stride = if i == 2 { 2 } else { 1 };
        let options = ConvOptions::new([stride; 2], [1; 2], [1; 2], 1);
        x = relu(conv2d(x, kernel.clone(), Some(biases[i].clone()), options));
    }
    let [samples, ..] = x.dims();
    let x = x.reshape([samples, 1024]);
    let x = relu(x.matmul(matrices[0].clone()) + biases[3].clone().unsqueeze());
    x.matmul(matrices[1].clone()) + biases[4].clone().unsqueeze()
}
