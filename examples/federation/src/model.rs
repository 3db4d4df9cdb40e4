//! The network: one hidden layer, with its gradient written by hand.

use std::sync::Arc;

use gcodec::compress::random;
use gcodec::frame::{Manifest, TensorInfo};
use gcodec::{Dtype, TensorBuf};

use crate::Result;
use crate::data::{DIGITS, Digit, PIXELS};

/// Units of the hidden layer.
pub const HIDDEN: usize = 512;
/// Names and shapes of the tensors, as in PyTorch: `[outputs, inputs]`.
pub const SHAPES: [(&str, &[u64]); 4] = [
    ("hidden.weight", &[HIDDEN as u64, PIXELS as u64]),
    ("hidden.bias", &[HIDDEN as u64]),
    ("output.weight", &[DIGITS as u64, HIDDEN as u64]),
    ("output.bias", &[DIGITS as u64]),
];
/// Grid of weights and steps, 2^-32. Their differences, rounded or not, are multiples of it too, so none is
/// subnormal. XLA on a CPU flushes subnormal numbers to zero; PyTorch does not.
pub const GRID: f64 = 1.0 / (1u64 << 32) as f64;

/// Returns the manifest of the network's tensors.
///
/// # Errors
/// None: the tensors are fixed.
pub fn manifest() -> gcodec::Result<Arc<Manifest>> {
    let infos = SHAPES.iter().map(|(name, shape)| TensorInfo::new(*name, Dtype::F32, *shape));
    Ok(Arc::new(Manifest::new(infos.collect())?))
}

/// One number for each element of the network, in the order of [`SHAPES`]: weights, a gradient or a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers(pub [Vec<f32>; 4]);

/// Score of the network on digits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Mean cross entropy, in nats.
    pub loss: f64,
    /// Share of the digits that are recognised, 0 to 1.
    pub accuracy: f64,
}

/// Rounds to the grid; the result is never -0.
fn on_grid(x: f64) -> f32 {
    // A multiple of the grid with at most 24 bits is exact as an f32. Adding 0 turns -0 into 0.
    ((x / GRID).round() * GRID) as f32 + 0.0
}

impl Numbers {
    /// Returns zeros.
    pub fn zeros() -> Self {
        Self(SHAPES.map(|(_, shape)| vec![0.0; shape.iter().product::<u64>() as usize]))
    }

    /// Returns initial weights: uniform with variance 2 (hidden) and 1 (output) divided by the number of
    /// inputs; biases zero.
    pub fn random(seed: u64) -> Self {
        let mut numbers = Self::zeros();
        for (tensor, inputs, variance) in [(0, PIXELS, 2.0), (2, HIDDEN, 1.0)] {
            let width = (3.0 * variance / inputs as f64).sqrt();
            for (index, w) in numbers.0[tensor].iter_mut().enumerate() {
                let uniform =
                    f64::from(random::word(seed, tensor as u64, index as u64)) / 2f64.powi(31) - 1.0;
                *w = on_grid(width * uniform);
            }
        }
        numbers
    }

    /// Takes the tensors of the network's manifest, in its order.
    ///
    /// # Errors
    /// If names, shapes or types are not those of [`SHAPES`].
    pub fn from_tensors(tensors: &[TensorBuf]) -> Result<Self> {
        let mut numbers = Self::zeros();
        if tensors.len() != numbers.0.len() {
            return Err(format!("{} tensors, not {}", tensors.len(), numbers.0.len()).into());
        }
        for ((numbers, tensor), (name, shape)) in numbers.0.iter_mut().zip(tensors).zip(SHAPES) {
            if tensor.shape() != shape || tensor.dtype() != Dtype::F32 {
                return Err(format!("{name} is not f32 with shape {shape:?}").into());
            }
            *numbers = tensor.view().to_f32()?;
        }
        Ok(numbers)
    }

    /// Returns the tensors in the order of the manifest.
    ///
    /// # Errors
    /// None: the shapes are those of [`SHAPES`].
    pub fn to_tensors(&self) -> gcodec::Result<Vec<TensorBuf>> {
        let tensors = self.0.iter().zip(SHAPES);
        tensors.map(|(numbers, (_, shape))| TensorBuf::from_f32(shape.to_vec(), numbers)).collect()
    }

    /// Returns `rate` times these numbers, on the grid: the step to subtract from the weights.
    #[must_use]
    pub fn step(&self, rate: f32) -> Self {
        let scaled = |x: &f32| on_grid(f64::from(rate) * f64::from(*x));
        Self(std::array::from_fn(|t| self.0[t].iter().map(scaled).collect()))
    }

    /// Subtracts a step: one rounded operation for each element, the same bits in every library.
    pub fn subtract(&mut self, step: &Self) {
        for (w, s) in self.0.iter_mut().flatten().zip(step.0.iter().flatten()) {
            *w -= s;
        }
    }

    /// Whether all bits are the same.
    pub fn same_bits(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(&other.0)
            .all(|(a, b)| a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits())))
    }

    /// Returns the name of a tensor with an element that is not finite or whose magnitude exceeds `most`.
    pub fn beyond(&self, most: f32) -> Option<&'static str> {
        let found = self.0.iter().zip(SHAPES).find(|(x, _)| !x.iter().all(|x| x.abs() <= most));
        found.map(|(_, (name, _))| name)
    }

    /// Returns the hidden units and the probabilities of the digits.
    fn forward(&self, digit: &Digit) -> (Vec<f32>, [f32; DIGITS]) {
        let [w1, b1, w2, b2] = &self.0;
        let row = |w: &[f32], x: &[f32]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
        let units = w1.chunks_exact(PIXELS).zip(b1);
        let hidden: Vec<f32> = units.map(|(w, b)| (row(w, &digit.pixels) + b).max(0.0)).collect();
        let mut out: [f32; DIGITS] =
            std::array::from_fn(|k| row(&w2[k * HIDDEN..][..HIDDEN], &hidden) + b2[k]);
        let most = out.iter().copied().fold(f32::MIN, f32::max);
        out.iter_mut().for_each(|z| *z = (*z - most).exp());
        let sum: f32 = out.iter().sum();
        out.iter_mut().for_each(|z| *z /= sum);
        (hidden, out)
    }

    /// Returns the loss and the gradient of its mean over a batch, with these numbers as weights.
    pub fn gradient(&self, batch: &[Digit]) -> (f64, Self) {
        let (mut gradient, mut loss) = (Self::zeros(), 0.0);
        let [g1, gb1, g2, gb2] = &mut gradient.0;
        let share = 1.0 / batch.len().max(1) as f32;
        for digit in batch {
            let (hidden, mut delta) = self.forward(digit);
            let label = usize::from(digit.label);
            loss -= f64::from(delta[label].max(f32::MIN_POSITIVE)).ln() * f64::from(share);
            delta[label] -= 1.0;
            let mut back = vec![0.0f32; HIDDEN];
            for (k, d) in delta.iter().map(|d| d * share).enumerate() {
                gb2[k] += d;
                let rows = g2[k * HIDDEN..][..HIDDEN].iter_mut().zip(&self.0[2][k * HIDDEN..][..HIDDEN]);
                for ((h, b), (g, w)) in hidden.iter().zip(&mut back).zip(rows) {
                    *g += d * h;
                    *b += d * w;
                }
            }
            for (unit, d) in back.into_iter().enumerate().filter(|(unit, _)| hidden[*unit] > 0.0) {
                gb1[unit] += d;
                let row = g1[unit * PIXELS..][..PIXELS].iter_mut();
                row.zip(&digit.pixels).for_each(|(g, x)| *g += d * x);
            }
        }
        (loss, gradient)
    }

    /// Returns the loss and the accuracy on digits, with these numbers as weights.
    pub fn score(&self, digits: &[Digit]) -> Score {
        let (mut loss, mut right) = (0.0, 0);
        for digit in digits {
            let (_, p) = self.forward(digit);
            let label = usize::from(digit.label);
            loss -= f64::from(p[label].max(f32::MIN_POSITIVE)).ln();
            right += usize::from(p.iter().all(|&q| q <= p[label]));
        }
        let n = digits.len().max(1) as f64;
        Score { loss: loss / n, accuracy: right as f64 / n }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Digits;

    /// Central differences with h = 2^-7. The loss is about 2.5 and computed in f32, with a relative error
    /// of a sum of 512 products of about 1e-6, so the quotient is off by at most about 3e-4. A wrong term in
    /// the gradient is off by its own size, 1e-2 and more.
    #[test]
    fn the_gradient_is_that_of_the_loss() {
        let batch = Digits::read().expect("the digits").test()[..16].to_vec();
        let weights = Numbers::random(3);
        let (_, gradient) = weights.gradient(&batch);
        for tensor in 0..4 {
            let magnitudes = gradient.0[tensor].iter().map(|x| x.abs()).enumerate();
            let (largest, _) = magnitudes.max_by(|a, b| a.1.total_cmp(&b.1)).expect("an element");
            let h = 1.0 / 128.0;
            let moved = |by: f32| {
                let mut weights = weights.clone();
                weights.0[tensor][largest] += by;
                weights.score(&batch).loss
            };
            let difference = (moved(h) - moved(-h)) / f64::from(2.0 * h);
            let found = f64::from(gradient.0[tensor][largest]);
            assert!(found.abs() > 0.01, "tensor {tensor}: {found}");
            assert!(
                (difference - found).abs() < 1e-3 + 0.01 * found.abs(),
                "tensor {tensor}: {difference}, {found}"
            );
        }
    }

    #[test]
    fn steps_are_on_the_grid_and_so_are_the_weights_after_them() {
        let mut weights = Numbers::random(1);
        let step = Numbers::random(2).step(0.3);
        weights.subtract(&step);
        for x in weights.0.iter().chain(&step.0).flatten().map(|x| f64::from(*x) / GRID) {
            assert_eq!(x, x.round());
        }
        assert_eq!(Numbers::zeros().step(-1.0).0[1][0].to_bits(), 0, "no negative zero");
    }

    #[test]
    fn what_is_not_finite_is_found() {
        let mut numbers = Numbers::zeros();
        assert_eq!(numbers.beyond(1.0), None);
        numbers.0[2][7] = f32::NAN;
        assert_eq!(numbers.beyond(1.0), Some("output.weight"));
        numbers.0[2][7] = -2.0;
        assert_eq!(numbers.beyond(1.0), Some("output.weight"));
    }
}
