//! Layers whose rows are samples.

use ndarray::{Array1, Array2, Axis, Zip};

use super::{ROW_MAJOR, Tape, Var};

impl Tape {
    /// Returns the sum of two matrices of one shape.
    pub(crate) fn add(&mut self, a: Var, b: Var) -> Var {
        let sum = self.value(a) + self.value(b);
        self.computed(sum, move |_, dy, gradients| {
            gradients.add(a, dy.clone());
            gradients.add(b, dy.clone());
        })
    }

    /// Returns the matrix product of two matrices.
    pub(crate) fn product(&mut self, a: Var, b: Var) -> Var {
        let product = self.value(a).dot(self.value(b));
        self.computed(product, move |values, dy, gradients| {
            gradients.add(a, dy.dot(&values[b].t()));
            gradients.add(b, values[a].t().dot(dy));
        })
    }

    /// Returns `x` times the weights, plus the bias in each row.
    pub(crate) fn linear(&mut self, x: Var, weight: Var, bias: Var) -> Var {
        let y = self.value(x).dot(self.value(weight)) + self.value(bias);
        self.computed(y, move |values, dy, gradients| {
            gradients.add(x, dy.dot(&values[weight].t()));
            gradients.add(weight, values[x].t().dot(dy));
            gradients.add(bias, dy.sum_axis(Axis(0)).insert_axis(Axis(0)));
        })
    }

    /// Returns the positive elements, and 0 for the others.
    pub(crate) fn relu(&mut self, x: Var) -> Var {
        let y = self.value(x).mapv(|x| x.max(0.0));
        self.computed(y, move |values, dy, gradients| {
            gradients
                .add(x, Zip::from(dy).and(&values[x]).map_collect(|&d, &x| if x > 0.0 { d } else { 0.0 }));
        })
    }

    /// Returns x P(N <= x) of a normal N (arXiv 1606.08415), with the error function rather than its
    /// approximation.
    pub(crate) fn gelu(&mut self, x: Var) -> Var {
        let below = self.value(x).mapv(|x| 0.5 * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)));
        let y = self.value(x) * &below;
        let density = 1.0 / std::f32::consts::TAU.sqrt();
        self.computed(y, move |values, dy, gradients| {
            let dx = |&d: &f32, &x: &f32, &below: &f32| d * (below + x * density * (-0.5 * x * x).exp());
            gradients.add(x, Zip::from(dy).and(&values[x]).and(&below).map_collect(dx));
        })
    }

    /// Returns the rows of a table with these numbers.
    pub(crate) fn rows(&mut self, table: Var, numbers: Vec<usize>) -> Var {
        let rows = self.value(table).select(Axis(0), &numbers);
        self.computed(rows, move |values, dy, gradients| {
            let mut sums = Array2::zeros(values[table].raw_dim());
            for (&number, dy) in numbers.iter().zip(dy.rows()) {
                let mut row = sums.row_mut(number);
                row += &dy;
            }
            gradients.add(table, sums);
        })
    }

    /// Returns each row with the mean 0 and the variance 1, times `scale`, plus `shift` (arXiv 1607.06450).
    pub(crate) fn layer_norm(&mut self, x: Var, scale: Var, shift: Var) -> Var {
        const EPSILON: f32 = 1e-5;
        let mut normed = self.value(x).clone();
        let mut inverses = Array1::zeros(normed.nrows());
        for (mut row, inverse) in normed.rows_mut().into_iter().zip(&mut inverses) {
            let n = row.len() as f32;
            let mean = row.sum() / n;
            row -= mean;
            *inverse = (row.iter().map(|x| x * x).sum::<f32>() / n + EPSILON).sqrt().recip();
            row *= *inverse;
        }
        let y = &normed * self.value(scale) + self.value(shift);
        self.computed(y, move |values, dy, gradients| {
            gradients.add(scale, (dy * &normed).sum_axis(Axis(0)).insert_axis(Axis(0)));
            gradients.add(shift, dy.sum_axis(Axis(0)).insert_axis(Axis(0)));
            let mut dx = dy * &values[scale];
            // The mean and the variance of a row depend on all its elements: what they take away is the part
            // of the gradient along the constant row and along the row itself.
            for ((mut d, normed), inverse) in dx.rows_mut().into_iter().zip(normed.rows()).zip(&inverses) {
                let n = d.len() as f32;
                let (mean, along) = (d.sum() / n, d.dot(&normed) / n);
                d.zip_mut_with(&normed, |d, x| *d = (*d - mean - x * along) * inverse);
            }
            gradients.add(x, dx);
        })
    }

    /// Returns the mean cross-entropy of rows of logits in nats, 1 x 1.
    pub(crate) fn cross_entropy(&mut self, logits: Var, targets: Vec<usize>) -> Var {
        let mut odds = self.value(logits).clone();
        let mut sum = 0.0;
        for (mut row, &target) in odds.rows_mut().into_iter().zip(&targets) {
            let logit = row[target];
            let (largest, total) = soft_max(row.as_slice_mut().expect(ROW_MAJOR));
            sum += f64::from(total.ln() + largest - logit);
        }
        let mean = (sum / targets.len() as f64) as f32;
        self.computed(Array2::from_elem((1, 1), mean), move |_, dy, gradients| {
            let weight = dy[[0, 0]] / targets.len() as f32;
            let mut d = &odds * weight;
            targets.iter().enumerate().for_each(|(row, &target)| d[[row, target]] -= weight);
            gradients.add(logits, d);
        })
    }
}

/// Replaces logits by their probabilities. Returns the largest logit, and the sum of the exponentials of the
/// logits minus the largest.
pub(super) fn soft_max(row: &mut [f32]) -> (f32, f32) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let total: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= total);
    (largest, total)
}
