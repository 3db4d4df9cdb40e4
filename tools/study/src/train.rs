//! One training run.

use std::time::Duration;

use crate::Result;
use crate::clock;
use crate::data::HeldOut;
use crate::group::{self, Traffic};
use crate::learned::Learned;
use crate::model::{At, Score, Task, Tensors, initial};
use crate::optim::{Optimiser, PLAIN, schedule};
use crate::runs::Run;

/// Settings that all runs of a study share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) steps: u64,
    pub(crate) workers: usize,
    /// Number of receivers that decode every stream and hold their own weights; others would do the same.
    pub(crate) receivers: usize,
    /// Maximum learning rate, before a run's own factor.
    pub(crate) rate: f32,
}

/// Steps of the shortest run that is scored after each tenth of them. A score of the language model takes as
/// long as five steps.
const SCORED_OFTEN: u64 = 100;

/// Results of a run.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// Mean loss of the workers' batches at each step.
    pub(crate) losses: Vec<f32>,
    /// Mean bytes that a worker has sent after each step.
    pub(crate) sent: Vec<f64>,
    /// Score on the validation data after each tenth of the steps, or of a short run at its end.
    pub(crate) validation: Vec<Score>,
    /// Score of the last weights on the test data.
    pub(crate) test: Score,
    pub(crate) traffic: Traffic,
    /// Time of forward and backward passes, for all workers.
    pub(crate) training: Duration,
    /// Results of an autoencoder.
    pub(crate) learned: Option<Learned>,
    /// BLAKE3 hash of the weights, equal on all receivers.
    pub(crate) digest: String,
    /// Step at which the loss was not finite, which ended the run.
    pub(crate) diverged: Option<u64>,
}

impl Outcome {
    /// Returns the mean training loss of the last twentieth of the steps.
    pub(crate) fn final_loss(&self) -> f64 {
        let last = (self.losses.len() / 20).max(1);
        self.losses[self.losses.len() - last..].iter().map(|&l| f64::from(l)).sum::<f64>() / last as f64
    }

    /// Returns the score of the last weights on the validation data.
    pub(crate) fn validated(&self) -> Score {
        self.validation.last().copied().unwrap_or(Score { loss: f64::NAN, accuracy: f64::NAN })
    }

    /// Returns the mean bytes that a worker sent in each of the second half of the steps.
    pub(crate) fn late_bytes(&self) -> f64 {
        let half = self.sent.len() / 2;
        match (self.sent.get(half.wrapping_sub(1)), self.sent.last()) {
            (Some(before), Some(after)) => (after - before) / (self.sent.len() - half) as f64,
            _ => f64::NAN,
        }
    }
}

/// Trains from the first step. The seed determines the first weights and the batches, equally for all runs.
pub(crate) fn train(task: &dyn Task, run: &Run, setting: Setting, seed: u64) -> Result<Outcome> {
    let manifest = group::manifest(task.parameters())?;
    let mut group = run.group(&manifest, setting)?;
    let first = initial(task.parameters(), seed);
    let mut weights = vec![first.clone(); setting.receivers];
    let mut outer = vec![Optimiser::new(run.outer, &first); setting.receivers];
    let mut locals = vec![Optimiser::new(run.local.map_or(PLAIN, |l| l.rule), &first); setting.workers];
    let mut own: Vec<Tensors> = Vec::new();
    let (mut losses, mut sent, mut training) = (Vec::new(), Vec::new(), Duration::ZERO);
    let mut validation = Vec::new();
    let mut diverged = None;
    'steps: for step in 0..setting.steps {
        let rate = setting.rate * run.rate * schedule(step, setting.steps);
        let begin = clock::now();
        if own.is_empty() {
            own = (0..setting.workers).map(|w| weights[w % setting.receivers].clone()).collect();
        }
        let (mut loss, mut updates) = (0.0, Vec::new());
        for worker in 0..setting.workers {
            let at = At { seed, worker, workers: setting.workers, step };
            let (l, mut gradient) = task.gradient(&own[worker], at);
            if !l.is_finite() {
                diverged = Some(step);
                break 'steps;
            }
            if let Some(norm) = run.clip {
                clip(&mut gradient, norm);
            }
            loss += l / setting.workers as f32;
            match run.local {
                Some(_) => locals[worker].step(&mut own[worker], &gradient, rate),
                None => updates.push(gradient),
            }
        }
        training += clock::now().saturating_sub(begin);
        losses.push(loss);
        let every = run.local.map_or(1, |l| l.every);
        if (step + 1) % every == 0 || step + 1 == setting.steps {
            if run.local.is_some() {
                let way = |w: usize| difference(&weights[w % setting.receivers], &own[w]);
                updates = (0..setting.workers).map(way).collect();
            }
            let means = group.round(updates, &mut locals)?;
            let rate = if run.local.is_some() { run.outer_rate } else { rate };
            for ((w, outer), mean) in weights.iter_mut().zip(&mut outer).zip(&means) {
                outer.step(w, mean, rate);
            }
            own.clear();
        }
        sent.push(group.traffic().sent_each());
        let ends_a_tenth = 10 * (step + 1) / setting.steps > 10 * step / setting.steps;
        if step + 1 == setting.steps || ends_a_tenth && setting.steps >= SCORED_OFTEN {
            validation.push(task.score(&weights[0], HeldOut::Validation));
        }
    }
    group.finish()?;
    let digests: Vec<String> = weights.iter().map(digest).collect();
    if digests.iter().any(|d| *d != digests[0]) {
        return Err(format!("{}: receivers ended with different weights", run.name).into());
    }
    let traffic = group.traffic().clone();
    let (test, digest) = (task.score(&weights[0], HeldOut::Test), digests[0].clone());
    let learned = group.learned();
    Ok(Outcome { losses, sent, validation, test, traffic, training, learned, digest, diverged })
}

/// Returns `from - to`: a pseudo-gradient.
fn difference(from: &Tensors, to: &Tensors) -> Tensors {
    let tensor = |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).map(|(a, b)| a - b).collect();
    from.iter().zip(to).map(tensor).collect()
}

fn clip(gradient: &mut Tensors, norm: f32) {
    let squares: f64 = gradient.iter().flatten().map(|&x| f64::from(x) * f64::from(x)).sum();
    let factor = (f64::from(norm) / squares.sqrt()).min(1.0) as f32;
    gradient.iter_mut().flatten().for_each(|x| *x *= factor);
}

fn digest(weights: &Tensors) -> String {
    let mut hash = blake3::Hasher::new();
    for x in weights.iter().flatten() {
        hash.update(&x.to_le_bytes());
    }
    hash.finalize().to_hex()[..16].to_owned()
}
