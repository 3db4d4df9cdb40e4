//! Windows of signals: convolutions do not depend on the position, so a batch need not hold whole signals.

use ndarray::{Array2, s};

use super::{Signals, TrainerOptions, random};

/// Signals of one step, divided by their root mean square, which does not change what a model without biases
/// computes.
#[derive(Debug, Clone)]
pub(super) struct Scaled {
    pub(super) leader: usize,
    pub(super) values: Vec<Vec<f32>>,
    innovations: Vec<Vec<f32>>,
}

impl Scaled {
    /// Returns nothing for signals without a value other than zero.
    pub(super) fn of(signals: &Signals, innovation: f64) -> Option<Self> {
        let values = || signals.values.iter().flatten();
        let count = values().count();
        let power = values().map(|x| f64::from(*x).powi(2)).sum::<f64>() / count.max(1) as f64;
        if power <= 0.0 {
            return None;
        }
        let scale = power.sqrt();
        let scaled = |row: &Vec<f32>| row.iter().map(|x| (f64::from(*x) / scale) as f32).collect();
        Some(Self::restored(signals.leader, signals.values.iter().map(scaled).collect(), innovation))
    }

    /// Returns the signals with these values, which were divided before.
    pub(super) fn restored(leader: usize, values: Vec<Vec<f32>>, innovation: f64) -> Self {
        let innovations = values.iter().map(|row| innovation_of(row, innovation)).collect();
        Self { leader, values, innovations }
    }

    /// Returns the power of what the innovations lack, whose mean over all values is 1 without any.
    pub(super) fn lacking(&self) -> f64 {
        let rows = self.values.iter().zip(&self.innovations);
        let lost = |(row, kept): (&Vec<f32>, &Vec<f32>)| -> f64 {
            row.iter().zip(kept).map(|(x, k)| f64::from(x - k).powi(2)).sum()
        };
        let count: usize = self.values.iter().map(Vec::len).sum();
        rows.map(lost).sum::<f64>() / count.max(1) as f64
    }
}

/// Returns the largest values at their places and zero elsewhere: the innovation of a
/// [`Worker`](crate::protocol::Worker).
fn innovation_of(values: &[f32], part: f64) -> Vec<f32> {
    let mut dense = vec![0.0; values.len()];
    crate::protocol::largest(values, part).into_iter().for_each(|i| dense[i] = values[i]);
    dense
}

/// A batch: samples of worker 0, then those of worker 1, and so on.
pub(super) struct Window {
    /// Worker that leads in each sample.
    leaders: Vec<usize>,
    pub(super) values: Array2<f32>,
    pub(super) innovations: Array2<f32>,
}

/// Returns the batch of an iteration. A signal shorter than a window is followed by zeros.
pub(super) fn draw(signals: &[Scaled], settings: &TrainerOptions, iteration: u64) -> Window {
    let (batch, window) = (settings.batch, settings.window);
    let workers = signals[0].values.len();
    let mut drawn = Window {
        leaders: Vec::with_capacity(batch),
        values: Array2::zeros((1, workers * batch * window)),
        innovations: Array2::zeros((1, workers * batch * window)),
    };
    for sample in 0..batch {
        let word = |i| random::word(settings.seed, 1 << 32 | iteration, (2 * sample + i) as u64) as usize;
        let signal = &signals[word(0) % signals.len()];
        let len = signal.values[0].len();
        let start = word(1) % (len.saturating_sub(window) + 1);
        let end = len.min(start + window);
        for w in 0..workers {
            let place = (w * batch + sample) * window;
            for i in start..end {
                drawn.values[[0, place + i - start]] = signal.values[w][i];
                drawn.innovations[[0, place + i - start]] = signal.innovations[w][i];
            }
        }
        drawn.leaders.push(signal.leader);
    }
    drawn
}

impl Window {
    /// Returns the codes of each sample's leader; `len`: columns of a sample.
    pub(super) fn of_leaders(&self, codes: &Array2<f32>, len: usize) -> Array2<f32> {
        let batch = self.leaders.len();
        let mut common = Array2::zeros((codes.nrows(), batch * len));
        for (sample, leader) in self.leaders.iter().enumerate() {
            let from = (leader * batch + sample) * len;
            let of_leader = codes.slice(s![.., from..from + len]);
            common.slice_mut(s![.., sample * len..(sample + 1) * len]).assign(&of_leader);
        }
        common
    }

    /// Adds a gradient of [`Self::of_leaders`] to that of all codes.
    pub(super) fn to_leaders(&self, common: &Array2<f32>, len: usize, batch: usize, codes: &mut Array2<f32>) {
        for (sample, leader) in self.leaders.iter().enumerate() {
            let to = (leader * batch + sample) * len;
            let mut part = codes.slice_mut(s![.., to..to + len]);
            part += &common.slice(s![.., sample * len..(sample + 1) * len]);
        }
    }
}
