//! Training of a model's networks on the values that workers have on shared sets (arXiv 2103.08870).
//!
//! A [`Trainer`] takes the signals of each step of the second phase, and changes its networks by Adam. The
//! loss of a batch is
//!
//! ```text
//! lambda_rec x mean over decoders of |decoded - values|^2      values: of root mean square 1 in a signal
//! + lambda_sim x mean over pairs of |code a - code b|^2 / mean of |code|^2
//! ```
//!
//! With [`TrainerOptions::codes`], decoders see codes that were rounded as on the wire, and the gradient
//! passes the rounding unchanged (a straight-through estimator, arXiv 1308.3432).
//!
//! The second term is relative to the power of the codes, so that smaller codes do not reduce it. With one
//! decoder for all workers (a ring), the mean of the codes is decoded to the mean of the values, and the
//! second term is left out.
//!
//! Results repeat bit for bit on one machine. Another one may sum in another order.

mod batches;
mod graph;
mod state;

use gcodec::compress::random;
use ndarray::{Array1, Array2, s};

use crate::codes::CodeFormat;
use crate::model::{Innovation, Model};
use crate::{Error, Result};
use batches::Window;
use graph::{Batch, Graph, Numbers};

/// Values on the set of one step: what an autoencoder is trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct Signals {
    /// Worker that chose the set.
    pub leader: usize,
    /// Values of each worker, in the order of the positions; as many for each.
    pub values: Vec<Vec<f32>>,
}

/// Options of a [`Trainer`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TrainerOptions {
    /// Windows of signals in a batch, at least 1. Default: 16.
    pub batch: usize,
    /// Values of a window, a multiple of the model's values per column of codes. Default: 256.
    pub window: usize,
    /// Learning rate of Adam, more than 0. Default: 2e-3.
    pub rate: f64,
    /// Weight of the error of the decoded values. Default: 0.5, as in the paper.
    pub lambda_rec: f64,
    /// Weight of the distance between the workers' codes. Default: 0.5, as in the paper.
    pub lambda_sim: f64,
    /// Share of the values that is a worker's innovation, 0 to 1; the same as in
    /// [`protocol::ProtocolOptions`](crate::protocol::ProtocolOptions). Default: 0.1, as in the paper.
    pub innovation: f64,
    /// Storage of the codes that decoders are trained on. Scales are those of a window, while on the wire
    /// they are those of a whole signal. Default: f32, not rounded.
    pub codes: CodeFormat,
    /// Seed of the windows. Default: 1.
    pub seed: u64,
}

impl Default for TrainerOptions {
    fn default() -> Self {
        Self {
            batch: 16,
            window: 256,
            rate: 2e-3,
            lambda_rec: 0.5,
            lambda_sim: 0.5,
            innovation: 0.1,
            codes: CodeFormat::F32,
            seed: 1,
        }
    }
}

macro_rules! with {
    ($($name:ident $field:ident $type:ty)*) => { $(
        #[doc = concat!("Sets [`TrainerOptions::", stringify!($field), "`].")]
        #[must_use]
        pub fn $name(mut self, value: $type) -> Self {
            self.$field = value;
            self
        }
    )* };
}

impl TrainerOptions {
    with! {
        with_batch batch usize
        with_window window usize
        with_rate rate f64
        with_lambda_rec lambda_rec f64
        with_lambda_sim lambda_sim f64
        with_innovation innovation f64
        with_codes codes CodeFormat
        with_seed seed u64
    }

    fn check(&self, unit: usize) -> Result<()> {
        if self.batch == 0 || self.window == 0 || !self.window.is_multiple_of(unit) {
            return Err(Error::Input(
                "a window of the training is a multiple of the model's unit, a batch has one",
            ));
        }
        let numbers = [self.rate, self.lambda_rec, self.lambda_sim];
        if !numbers.iter().all(|x| x.is_finite() && *x >= 0.0) || self.rate == 0.0 {
            return Err(Error::Input("rate or weight of the training"));
        }
        if !(0.0..=1.0).contains(&self.innovation) {
            return Err(Error::Input("part of the values that is the innovation"));
        }
        Ok(())
    }
}

/// Loss of one batch, before its weights.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Loss {
    /// Mean over the decoders of the squared error, relative to the mean square of the workers' values. Zeros
    /// have the loss 1.
    pub rec: f64,
    /// Mean over pairs of workers of the squared distance of their codes, relative to the codes' mean square.
    /// Unrelated codes have the loss 2.
    pub sim: f64,
}

/// Networks in training.
///
/// Memory: 16 bytes for each weight, the signals that were pushed, and the layers' outputs for one batch.
#[derive(Debug, Clone)]
pub struct Trainer {
    settings: TrainerOptions,
    innovation: Innovation,
    encoder: Graph,
    decoders: Vec<Graph>,
    adam: Adam,
    signals: Vec<batches::Scaled>,
    workers: usize,
    iteration: u64,
}

impl Trainer {
    /// Returns a trainer that goes on from a model's weights.
    ///
    /// # Errors
    /// [`Error::Input`] for settings out of range.
    pub fn new(model: &Model, settings: TrainerOptions) -> Result<Self> {
        settings.check(model.unit())?;
        let encoder = Graph::new(model.encoder().layers())?;
        let decoders = model.decoders().iter().map(|d| Graph::new(d.layers())).collect::<Result<Vec<_>>>()?;
        let adam = Adam::new(std::iter::once(&encoder).chain(&decoders));
        let innovation = model.innovation();
        Ok(Self {
            settings,
            innovation,
            encoder,
            decoders,
            adam,
            signals: Vec::new(),
            workers: 0,
            iteration: 0,
        })
    }

    /// Adds the signals of a step. Signals without values are left out.
    ///
    /// # Errors
    /// [`Error::Input`] if the workers are not as many as in other steps or as the decoders, have different
    /// numbers of values, or a value is not finite.
    pub fn push(&mut self, signals: &Signals) -> Result<()> {
        let workers = signals.values.len();
        let known = self.workers == 0 || workers == self.workers;
        if !known || !self.trains(workers) {
            return Err(Error::Input("number of workers of the signals"));
        }
        let len = signals.values[0].len();
        if signals.leader >= workers || signals.values.iter().any(|v| v.len() != len) {
            return Err(Error::Input("leader or lengths of the signals"));
        }
        if !signals.values.iter().flatten().all(|x| x.is_finite()) {
            return Err(Error::Input("a signal that is not finite"));
        }
        self.workers = workers;
        if let Some(scaled) = batches::Scaled::of(signals, self.settings.innovation) {
            self.signals.push(scaled);
        }
        Ok(())
    }

    /// Whether the networks are for this number of workers.
    fn trains(&self, workers: usize) -> bool {
        workers > 0 && (self.decoders.len() == 1 || self.decoders.len() == workers)
    }

    /// Takes this many steps of the optimizer, and returns the mean loss of the last tenth of them. `part`:
    /// the part of the whole training that is done, 0 to 1, for each iteration; the learning rate falls to a
    /// tenth along a cosine.
    ///
    /// # Errors
    /// [`Error::Input`] without signals; [`Error::NotFinite`] if the loss becomes so.
    pub fn run(&mut self, iterations: u64, mut part: impl FnMut(u64) -> f64) -> Result<Loss> {
        if self.signals.is_empty() {
            return Err(Error::Input("no signals to train on"));
        }
        let counted = iterations.div_ceil(10).max(1);
        let mut mean = Loss::default();
        for iteration in 0..iterations {
            let windows = batches::draw(&self.signals, &self.settings, self.iteration);
            let (loss, gradients) = self.gradients(&windows)?;
            if !(loss.rec.is_finite() && loss.sim.is_finite()) {
                return Err(Error::NotFinite);
            }
            let turn = part(iteration).clamp(0.0, 1.0) * std::f64::consts::PI;
            let rate = self.settings.rate * (0.55 + 0.45 * turn.cos());
            let numbers = std::iter::once(&mut self.encoder).chain(&mut self.decoders);
            self.adam.step(rate as f32, numbers.flat_map(|g| &mut g.numbers), &gradients);
            self.iteration += 1;
            if iteration + counted >= iterations {
                mean.rec += loss.rec / counted as f64;
                mean.sim += loss.sim / counted as f64;
            }
        }
        Ok(mean)
    }

    /// Returns the number of steps whose signals it has.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.signals.len()
    }

    /// Returns the error that the innovations leave without codes, as [`Loss::rec`]: what a model has to
    /// improve on. 0 without signals.
    #[must_use]
    pub fn baseline(&self) -> f64 {
        self.signals.iter().map(batches::Scaled::lacking).sum::<f64>() / self.signals.len().max(1) as f64
    }

    /// Returns a model with the present weights.
    ///
    /// # Errors
    /// [`Error::Input`] if a weight is no longer finite.
    pub fn model(&self) -> Result<Model> {
        let decoders = self.decoders.iter().map(Graph::layers).collect();
        Model::new(self.innovation, self.encoder.layers(), decoders)
    }

    /// Returns the loss of a batch, and the gradients of all parameters in the order of encoder and decoders.
    fn gradients(&self, window: &Window) -> Result<(Loss, Vec<Numbers>)> {
        let (workers, batch) = (self.workers, self.settings.batch);
        let all = Batch::new(workers * batch, self.settings.window, window.values.clone());
        let (codes, tape) = self.encoder.forward(&all, None)?;
        let sent = rounded(&codes, self.settings.codes)?;
        let per_worker = codes.rows.ncols() / workers;
        let of =
            |rows: &Array2<f32>, w: usize, len: usize| rows.slice(s![.., w * len..(w + 1) * len]).to_owned();
        let mut d_codes = Array2::zeros(codes.rows.raw_dim());
        let mut loss = Loss::default();
        let mut gradients = Vec::new();
        let columns = batch * self.settings.window;
        let lambda = self.settings.lambda_rec as f32;
        if let [decoder] = self.decoders.as_slice() {
            let mut common = Array2::zeros((codes.rows.nrows(), per_worker));
            let mut target = Array2::zeros((1, columns));
            for w in 0..workers {
                common.scaled_add(1.0 / workers as f32, &of(&sent, w, per_worker));
                target.scaled_add(1.0 / workers as f32, &of(&window.values, w, columns));
            }
            let power = target.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().max(1e-30);
            let weight = (columns as f64 / power) as f32;
            let input = Batch::new(batch, codes.columns, common);
            // No innovation travels in a ring: its decoder has a channel of zeros, if any.
            let zeros = Batch::new(batch, self.settings.window, Array2::zeros((1, columns)));
            let (rec, d_input, numbers) = error(decoder, &input, &zeros, &target, weight * lambda, false)?;
            loss.rec = rec * f64::from(weight);
            gradients.extend(numbers);
            for w in 0..workers {
                let mut part = d_codes.slice_mut(s![.., w * per_worker..(w + 1) * per_worker]);
                part.scaled_add(1.0 / workers as f32, &d_input);
            }
        } else {
            let input = Batch::new(batch, codes.columns, window.of_leaders(&sent, codes.columns));
            for (w, decoder) in self.decoders.iter().enumerate() {
                let extra = of(&window.innovations, w, columns);
                let extra = Batch::new(batch, self.settings.window, extra);
                let replace = self.innovation == Innovation::Replace;
                let weight = lambda / workers as f32;
                let target = of(&window.values, w, columns);
                let (rec, d_input, numbers) = error(decoder, &input, &extra, &target, weight, replace)?;
                loss.rec += rec / workers as f64;
                gradients.extend(numbers);
                window.to_leaders(&d_input, codes.columns, batch, &mut d_codes);
            }
        }
        let weight = if self.decoders.len() == 1 { 0.0 } else { self.settings.lambda_sim };
        loss.sim = similarity(&codes.rows, workers, weight, &mut d_codes);
        let d_codes = Batch::new(codes.samples, codes.columns, d_codes);
        let mut encoder = self.encoder.backward(&tape, d_codes)?.1;
        encoder.extend(gradients);
        Ok((loss, encoder))
    }
}

/// Returns the codes as a reader gets them, each sample's as one signal's.
fn rounded(codes: &Batch, format: CodeFormat) -> Result<Array2<f32>> {
    let mut rows = codes.rows.clone();
    if format == CodeFormat::F32 {
        return Ok(rows);
    }
    let shape = (rows.nrows(), codes.columns);
    for sample in 0..codes.samples {
        let mut part = rows.slice_mut(s![.., sample * codes.columns..(sample + 1) * codes.columns]);
        let numbers: Vec<f32> = part.iter().copied().collect();
        let numbers = format.rounded(&numbers, [shape.0 as u64, shape.1 as u64])?;
        let numbers = Array2::from_shape_vec(shape, numbers);
        part.assign(&numbers.map_err(|_| Error::Input("number of codes"))?);
    }
    Ok(rows)
}

/// Returns the mean squared error of a decoder, the gradient of its input times `weight`, and those of its
/// parameters. With `replace`, elements with an innovation have no error.
fn error(
    decoder: &Graph,
    codes: &Batch,
    innovation: &Batch,
    target: &Array2<f32>,
    weight: f32,
    replace: bool,
) -> Result<(f64, Array2<f32>, Vec<Numbers>)> {
    let (decoded, tape) = decoder.forward(codes, Some(innovation))?;
    let mut error = decoded.rows - target;
    if replace {
        error.zip_mut_with(&innovation.rows, |e, &x| *e = if x == 0.0 { *e } else { 0.0 });
    }
    let n = error.len() as f32;
    let square = error.iter().map(|e| f64::from(*e).powi(2)).sum::<f64>() / f64::from(n);
    error *= 2.0 * weight / n;
    let (d_codes, numbers) = decoder.backward(&tape, Batch::new(decoded.samples, decoded.columns, error))?;
    Ok((square, d_codes.rows, numbers))
}

/// Returns the distance of the workers' codes relative to their power, and adds its gradient times `weight`.
///
/// The sum over pairs of |a - b|^2 is W times the sum of |c|^2 minus the square of the sum of c.
fn similarity(codes: &Array2<f32>, workers: usize, weight: f64, gradient: &mut Array2<f32>) -> f64 {
    if workers < 2 {
        return 0.0;
    }
    let len = codes.ncols() / workers;
    let mut sum: Array2<f32> = Array2::zeros((codes.nrows(), len));
    for w in 0..workers {
        sum += &codes.slice(s![.., w * len..(w + 1) * len]);
    }
    let square = |x: &Array2<f32>| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    let (n, power) = (workers as f64, square(codes).max(1e-30));
    // Mean over pairs by mean over codes: (n p - s) / (n (n - 1) / 2) / (p / n).
    let factor = 2.0 / (n - 1.0);
    let ratio = factor * (n - square(&sum) / power);
    // d ratio / dc = factor (2 s c / p^2 - 2 sum / p), where s is the square of the sum.
    let (of_code, of_sum) = (2.0 * square(&sum) / (power * power), 2.0 / power);
    for w in 0..workers {
        let range = s![.., w * len..(w + 1) * len];
        let mut part = gradient.slice_mut(range);
        part.scaled_add((weight * factor * of_code) as f32, &codes.slice(range));
        part.scaled_add((-weight * factor * of_sum) as f32, &sum);
    }
    ratio
}

/// Adam (arXiv 1412.6980), with its authors' constants.
#[derive(Debug, Clone)]
struct Adam {
    step: i32,
    /// Means of the gradients and of their squares.
    means: Vec<(Numbers, Numbers)>,
}

impl Adam {
    fn new<'g>(graphs: impl Iterator<Item = &'g Graph>) -> Self {
        let zeros = |n: &Numbers| Numbers {
            weights: Array2::zeros(n.weights.raw_dim()),
            bias: n.bias.as_ref().map(|b| Array1::zeros(b.raw_dim())),
        };
        let means = graphs.flat_map(|g| &g.numbers).map(|n| (zeros(n), zeros(n))).collect();
        Self { step: 0, means }
    }

    fn step<'n>(&mut self, rate: f32, numbers: impl Iterator<Item = &'n mut Numbers>, gradients: &[Numbers]) {
        self.step += 1;
        let (first, second) = (1.0 - 0.9f32.powi(self.step), 1.0 - 0.999f32.powi(self.step));
        let update = |x: &mut f32, m: &mut f32, v: &mut f32, g: f32| {
            *m += 0.1 * (g - *m);
            *v += 0.001 * (g * g - *v);
            *x -= rate * (*m / first) / ((*v / second).sqrt() + 1e-8);
        };
        for ((numbers, (m, v)), g) in numbers.zip(&mut self.means).zip(gradients) {
            let moments = m.weights.iter_mut().zip(&mut v.weights);
            for ((x, (m, v)), &g) in numbers.weights.iter_mut().zip(moments).zip(&g.weights) {
                update(x, m, v, g);
            }
            if let (Some(x), Some(m), Some(v), Some(g)) =
                (&mut numbers.bias, &mut m.bias, &mut v.bias, &g.bias)
            {
                for ((x, (m, v)), &g) in x.iter_mut().zip(m.iter_mut().zip(v)).zip(g) {
                    update(x, m, v, g);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::codes::{decode_latent, encode_latent};
    use crate::{Architecture, Models};

    fn number(seed: u64, i: usize) -> f32 {
        random::word(seed, 7, i as u64) as i32 as f32 / 2f32.powi(31)
    }

    /// Returns signals of workers that agree in part.
    pub(super) fn signals(step: u64, len: usize) -> Signals {
        let of = |w: u64| (0..len).map(|i| number(step, i) + 0.5 * number(step * 10 + w + 1, i)).collect();
        Signals { leader: step as usize % 3, values: (0..3).map(of).collect() }
    }

    pub(super) fn trainer(decoders: usize, innovation: Innovation, settings: TrainerOptions) -> Trainer {
        let architecture = Architecture::new(decoders, innovation).with_width(4).with_bias(true);
        let mut trainer = Trainer::new(&architecture.init(5).unwrap(), settings).unwrap();
        (0..4).for_each(|step| trainer.push(&signals(step, 100)).unwrap());
        trainer
    }

    #[test]
    fn gradients_are_difference_quotients() {
        for (decoders, innovation) in
            [(3, Innovation::Channel), (3, Innovation::Replace), (3, Innovation::None), (1, Innovation::None)]
        {
            let settings = TrainerOptions::default().with_batch(3).with_window(64).with_lambda_sim(0.3);
            let mut trainer = trainer(decoders, innovation, settings);
            // Weights of which no layer is lost in rounding.
            let graphs = std::iter::once(&mut trainer.encoder).chain(&mut trainer.decoders);
            graphs.flat_map(|g| &mut g.numbers).for_each(|n| n.weights *= 3.0);
            let windows = batches::draw(&trainer.signals, &trainer.settings, 0);
            let lambda_sim = if decoders == 1 { 0.0 } else { 0.3 };
            let total = |t: &Trainer| {
                let loss = t.gradients(&windows).unwrap().0;
                0.5 * loss.rec + lambda_sim * loss.sim
            };
            let (_, gradients) = trainer.gradients(&windows).unwrap();
            let mut compared = 0;
            for (place, gradient) in gradients.iter().enumerate() {
                // Along its own gradient, each layer's loss grows by the gradient's norm.
                let bias = || gradient.bias.iter().flatten();
                let square = |x: &f32| f64::from(*x).powi(2);
                let norm = (gradient.weights.iter().map(square).sum::<f64>()
                    + bias().map(square).sum::<f64>())
                .sqrt();
                let moved = |by: f64| {
                    let mut other = trainer.clone();
                    let graphs = std::iter::once(&mut other.encoder).chain(&mut other.decoders);
                    let numbers = graphs.flat_map(|g| &mut g.numbers).nth(place).unwrap();
                    let by = (by / norm) as f32;
                    numbers.weights.scaled_add(by, &gradient.weights);
                    if let (Some(to), Some(g)) = (&mut numbers.bias, &gradient.bias) {
                        to.scaled_add(by, g);
                    }
                    total(&other)
                };
                let quotient = (moved(5e-4) - moved(-5e-4)) / 1e-3;
                // The loss is a sum of binary32 numbers with the rectifiers' bends in it: a quotient is
                // exact to about 1e-3.
                compared += usize::from(norm > 0.01);
                assert!(
                    (quotient - norm).abs() <= 0.02 * norm + 1.5e-3,
                    "{decoders} {innovation:?}, layer {place}: {quotient} instead of {norm}"
                );
            }
            assert!(2 * compared > gradients.len(), "{compared} layers have gradients to compare");
        }
    }

    #[test]
    fn decoders_are_trained_on_rounded_codes() {
        let trainer = |codes| {
            let settings = TrainerOptions::default().with_batch(1).with_window(64).with_codes(codes);
            let model = Architecture::new(3, Innovation::None).with_width(4).init(5).unwrap();
            let mut trainer = Trainer::new(&model, settings).unwrap();
            trainer.push(&signals(1, 64)).unwrap();
            // Initial weights lose most of a signal: the decoded values hardly depend on the codes.
            let graphs = std::iter::once(&mut trainer.encoder).chain(&mut trainer.decoders);
            graphs.flat_map(|g| &mut g.numbers).for_each(|n| n.weights *= 3.0);
            trainer
        };
        let exact = trainer(CodeFormat::F32);
        let window = batches::draw(&exact.signals, &exact.settings, 0);
        let (model, leader) = (Arc::new(exact.model().unwrap()), exact.signals[0].leader);
        let rows = &exact.signals[0].values;
        // The error through the values of a block.
        let mut models = Models::new();
        models.add(Arc::clone(&model));
        let expected = |format| -> f64 {
            let values = encode_latent(&model, &rows[leader], format).unwrap();
            let errors = rows.iter().zip(0..).flat_map(|(row, sender)| {
                let decoded = decode_latent(&models, &values, row.len(), sender).unwrap();
                row.iter().zip(decoded).map(|(x, d)| f64::from(x - d).powi(2)).collect::<Vec<_>>()
            });
            errors.sum::<f64>() / (3.0 * 64.0)
        };
        let (exact_loss, exact_gradients) = exact.gradients(&window).unwrap();
        let (loss, gradients) = trainer(CodeFormat::Int8).gradients(&window).unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6 * b;
        assert!(close(loss.rec, expected(CodeFormat::Int8)), "{loss:?}");
        assert!(close(exact_loss.rec, expected(CodeFormat::F32)), "{exact_loss:?}");
        assert!(!close(loss.rec, exact_loss.rec), "{loss:?} {exact_loss:?}");
        // The encoder's gradients pass the rounding: they are about those without it.
        for (of, exact) in gradients.iter().zip(&exact_gradients).take(exact.encoder.numbers.len()) {
            let norm = |x: &Array2<f32>| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let distance = norm(&(&of.weights - &exact.weights));
            assert!(distance > 0.0 && distance < 0.1 * norm(&exact.weights), "{distance}");
        }
    }

    #[test]
    fn training_lowers_the_loss_and_repeats() {
        for (decoders, innovation) in [(3, Innovation::Channel), (1, Innovation::None)] {
            let settings = TrainerOptions::default().with_batch(4).with_window(96);
            let mut first = trainer(decoders, innovation, settings);
            let mut second = first.clone();
            let before = first.run(1, |_| 0.0).unwrap();
            let after = first.run(300, |_| 0.0).unwrap();
            assert!(after.rec < 0.9 * before.rec, "{before:?} {after:?}");
            second.run(301, |_| 0.0).unwrap();
            assert_eq!(first.model().unwrap().id(), second.model().unwrap().id());
        }
    }

    #[test]
    fn the_baseline_is_what_innovations_lack() {
        let lacking = |part: f64| {
            let settings = TrainerOptions::default().with_innovation(part);
            trainer(3, Innovation::Channel, settings).baseline()
        };
        assert!((lacking(0.0) - 1.0).abs() < 1e-6 && lacking(1.0) == 0.0);
        assert!(lacking(0.1) < 0.9 && lacking(0.1) > lacking(0.2));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let model = Architecture::new(3, Innovation::Channel).with_width(1).init(0).unwrap();
        let settings = TrainerOptions::default();
        for wrong in [
            settings.clone().with_batch(0),
            settings.clone().with_window(24),
            settings.clone().with_rate(f64::NAN),
            settings.clone().with_innovation(2.0),
        ] {
            assert!(matches!(Trainer::new(&model, wrong), Err(Error::Input(_))));
        }
        let mut trainer = Trainer::new(&model, settings).unwrap();
        assert!(matches!(trainer.run(1, |_| 0.0), Err(Error::Input(_))), "no signals");
        let mut two = signals(0, 9);
        two.values.pop();
        assert!(matches!(trainer.push(&two), Err(Error::Input(_))), "two workers, three decoders");
        let mut uneven = signals(0, 9);
        uneven.values[1].pop();
        assert!(matches!(trainer.push(&uneven), Err(Error::Input(_))));
        let mut infinite = signals(0, 9);
        infinite.values[1][0] = f32::INFINITY;
        assert!(matches!(trainer.push(&infinite), Err(Error::Input(_))));
        // Zeros have nothing to learn; one value is enough.
        let zeros = Signals { leader: 0, values: vec![vec![0.0; 5]; 3] };
        trainer.push(&zeros).unwrap();
        assert!(trainer.run(1, |_| 0.0).is_err());
        trainer.push(&signals(1, 1)).unwrap();
        trainer.run(1, |_| 0.0).unwrap();
    }
}
