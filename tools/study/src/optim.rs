//! Optimisers over plain numbers.

use crate::model::Tensors;

/// Update rule of the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rule {
    /// Stochastic gradient descent with momentum, 0 for none; optionally Nesterov's.
    Sgd { momentum: f32, nesterov: bool },
    /// Adam (arXiv 1412.6980) with decay 0.9 and 0.99.
    Adam,
    /// Steps of constant length, against the sign of the gradient.
    Sign,
}

/// SGD without momentum.
pub(crate) const PLAIN: Rule = Rule::Sgd { momentum: 0.0, nesterov: false };
/// SGD with momentum, as in the papers on image networks.
pub(crate) const MOMENTUM: Rule = Rule::Sgd { momentum: 0.9, nesterov: false };

/// A rule and its state.
#[derive(Debug, Clone)]
pub(crate) struct Optimiser {
    rule: Rule,
    first: Tensors,
    second: Tensors,
    steps: i32,
}

impl Optimiser {
    pub(crate) fn new(rule: Rule, weights: &Tensors) -> Self {
        let zeros = || weights.iter().map(|w| vec![0.0; w.len()]).collect();
        let second = if rule == Rule::Adam { zeros() } else { Vec::new() };
        Self { rule, first: zeros(), second, steps: 0 }
    }

    /// Moves the weights along a negative gradient.
    pub(crate) fn step(&mut self, weights: &mut Tensors, gradient: &Tensors, rate: f32) {
        self.steps += 1;
        for (t, (w, g)) in weights.iter_mut().zip(gradient).enumerate() {
            let first = &mut self.first[t];
            match self.rule {
                Rule::Sgd { momentum, nesterov } => {
                    for ((w, g), m) in w.iter_mut().zip(g).zip(first) {
                        *m = momentum * *m + g;
                        *w -= rate * if nesterov { g + momentum * *m } else { *m };
                    }
                }
                Rule::Sign => {
                    let sign = |g: f32| if g == 0.0 { 0.0 } else { g.signum() };
                    w.iter_mut().zip(g).for_each(|(w, &g)| *w -= rate * sign(g));
                }
                Rule::Adam => {
                    let (a, b) = (0.9f32, 0.99f32);
                    let (bias, bias2) = (1.0 - a.powi(self.steps), 1.0 - b.powi(self.steps));
                    for (((w, g), m), v) in w.iter_mut().zip(g).zip(first).zip(&mut self.second[t]) {
                        *m = a * *m + (1.0 - a) * g;
                        *v = b * *v + (1.0 - b) * g * g;
                        *w -= rate * (*m / bias) / ((*v / bias2).sqrt() + 1e-8);
                    }
                }
            }
        }
    }

    /// Momentum of each tensor, by its number.
    pub(crate) fn momenta(&mut self) -> Vec<(u64, &mut [f32])> {
        (0..).zip(self.first.iter_mut().map(Vec::as_mut_slice)).collect()
    }
}

/// Returns the factor of the learning rate at a step: it rises over the first twentieth, then falls to a
/// twentieth along a cosine.
pub(crate) fn schedule(step: u64, steps: u64) -> f32 {
    let (step, steps) = (step as f32, steps as f32);
    let warm = (steps / 20.0).max(1.0);
    if step < warm {
        return (step + 1.0) / warm;
    }
    let way = (step - warm) / (steps - warm).max(1.0);
    0.05 + 0.95 * 0.5 * (1.0 + (std::f32::consts::PI * way).cos())
}
