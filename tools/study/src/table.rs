//! A decoder of small tables, conditioned on the tensor and on the leader's value.

use std::ops::Range;

/// Classes of the leader's magnitude, relative to the mean in its tensor: below 1, 2, 4, and above.
const CLASSES: usize = 4;

/// Samples that a context needs, for each of its entries, to have entries of its own.
const ENOUGH: usize = 64;

/// Followers' values by context, relative to the leader's mean magnitude in the tensor and, where that is a
/// condition, to the leader's sign.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    values: Vec<Vec<f32>>,
    condition: Condition,
}

/// Entries of each context: a tensor and a class of the leader's magnitude.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Table {
    entries: Vec<Vec<f32>>,
    condition: Condition,
}

/// Condition of the tables: the facts that select an entry beside a follower's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The tensor, and the leader's mean magnitude there.
    Tensor,
    /// Also sign and class of the leader's value.
    Leader,
}

/// Returns the context of each of the leader's values, and the unit of the follower's values there.
fn contexts(condition: Condition, leader: &[f32], ranges: &[Range<usize>]) -> Vec<(usize, f32)> {
    let mut contexts = Vec::with_capacity(leader.len());
    for (tensor, range) in ranges.iter().enumerate() {
        let values = &leader[range.clone()];
        let sum: f64 = values.iter().map(|x| f64::from(x.abs())).sum();
        let unit = (sum / values.len().max(1) as f64) as f32;
        contexts.extend(values.iter().map(|x| {
            let class = [1.0, 2.0, 4.0].iter().filter(|&&limit| x.abs() >= limit * unit).count();
            match condition {
                Condition::Tensor => (tensor * CLASSES, unit),
                Condition::Leader => (tensor * CLASSES + class, unit.copysign(*x)),
            }
        }));
    }
    contexts
}

impl Samples {
    /// Returns no samples of this many tensors.
    pub(crate) fn of(tensors: usize, condition: Condition) -> Self {
        Self { values: vec![Vec::new(); tensors * CLASSES], condition }
    }

    /// Adds a follower's values.
    pub(crate) fn add(&mut self, own: &[f32], leader: &[f32], ranges: &[Range<usize>]) {
        for (x, (context, unit)) in own.iter().zip(contexts(self.condition, leader, ranges)) {
            if unit != 0.0 {
                self.values[context].push(x / unit);
            }
        }
    }

    /// Returns a table of this many entries for each context.
    pub(crate) fn table(&self, levels: usize) -> Table {
        let all = fitted(self.values.concat(), levels);
        let of = |samples: &Vec<f32>| match samples.len() >= ENOUGH * levels {
            true => fitted(samples.clone(), levels),
            false => all.clone(),
        };
        Table { entries: self.values.iter().map(of).collect(), condition: self.condition }
    }
}

/// Returns the ascending entries of a quantiser of least squared error, by Lloyd's algorithm from quantiles.
fn fitted(mut samples: Vec<f32>, levels: usize) -> Vec<f32> {
    samples.sort_by(f32::total_cmp);
    let quantile = |i: usize| samples.get((2 * i + 1) * samples.len() / (2 * levels)).copied().unwrap_or(0.0);
    let mut entries: Vec<f32> = (0..levels).map(quantile).collect();
    for _ in 0..50 {
        let mut start = 0;
        for i in 0..levels {
            let end = match entries.get(i + 1) {
                Some(next) => samples.partition_point(|x| *x < (entries[i] + next) / 2.0).max(start),
                None => samples.len(),
            };
            let mine = &samples[start..end];
            if !mine.is_empty() {
                entries[i] = (mine.iter().map(|x| f64::from(*x)).sum::<f64>() / mine.len() as f64) as f32;
            }
            start = end;
        }
    }
    entries
}

impl Table {
    pub(crate) fn levels(&self) -> usize {
        self.entries.first().map_or(0, Vec::len)
    }

    /// Returns for each of a follower's values the number of the nearest entry.
    pub(crate) fn codes(&self, own: &[f32], leader: &[f32], ranges: &[Range<usize>]) -> Vec<u8> {
        let nearest = |(x, (context, unit)): (&f32, (usize, f32))| {
            let distance = |entry: &f32| (entry * unit - x).abs();
            let entries = self.entries[context].iter().enumerate();
            entries.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1))).map_or(0, |(code, _)| code as u8)
        };
        own.iter().zip(contexts(self.condition, leader, ranges)).map(nearest).collect()
    }

    /// Returns the values of codes below [`Self::levels`].
    pub(crate) fn values(&self, codes: &[u8], leader: &[f32], ranges: &[Range<usize>]) -> Vec<f32> {
        let value =
            |(&code, (context, unit)): (&u8, (usize, f32))| self.entries[context][usize::from(code)] * unit;
        codes.iter().zip(contexts(self.condition, leader, ranges)).map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_depend_on_the_leaders_value() {
        // Both tensors have a leader of magnitudes 1 and 7: classes 0 and 1. Followers have the leader's sign
        // times 1 or 3 at small ones, and times -2 or 8 at large ones.
        let leader: Vec<f32> = (0..2000).map(|i| [1.0, -1.0, 7.0, -7.0][i % 4]).collect();
        let follower = |i: usize| {
            let pair = if i % 4 < 2 { [1.0, 3.0] } else { [-2.0, 8.0] };
            pair[i / 4 % 2] * leader[i].signum()
        };
        let own: Vec<f32> = (0..2000).map(follower).collect();
        let ranges = [0..1000, 1000..2000];
        let mut samples = Samples::of(2, Condition::Leader);
        samples.add(&own, &leader, &ranges);
        let table = samples.table(2);
        let codes = table.codes(&own, &leader, &ranges);
        let decoded = table.values(&codes, &leader, &ranges);
        assert!(own.iter().zip(&decoded).all(|(x, y)| (x - y).abs() < 1e-5), "two values in each context");
        let other: Vec<f32> = leader.iter().map(|x| -x).collect();
        assert!(table.values(&codes, &other, &ranges) != decoded, "signs are relative to the leader's");
    }

    #[test]
    fn without_a_condition_only_the_leaders_mean_counts() {
        let own: Vec<f32> = (0..400).map(|i| if i % 2 == 0 { -1.0 } else { 2.0 }).collect();
        let mut samples = Samples::of(1, Condition::Tensor);
        samples.add(&own, &[3.0; 400], &[0..400, 400..400]);
        let table = samples.table(2);
        let leader: Vec<f32> = (0..400).map(|i| if i < 200 { -5.0 } else { 1.0 }).collect();
        let codes = table.codes(&own, &leader, &[0..400, 400..400]);
        let decoded = table.values(&codes, &leader, &[0..400, 400..400]);
        assert!(own.iter().zip(&decoded).all(|(x, y)| (x - y).abs() < 1e-5), "{:?}", &decoded[..4]);
    }

    #[test]
    fn a_context_of_few_samples_has_the_entries_of_all() {
        let mut samples = Samples::of(2, Condition::Leader);
        let own: Vec<f32> = (0..400).map(|i| if i % 2 == 0 { 1.0 } else { 2.0 }).collect();
        samples.add(&own, &[1.0; 400], &[0..397, 397..400]);
        let table = samples.table(2);
        assert_eq!(table.entries[1], [1.0, 2.0]);
        assert_eq!(table.entries[5], table.entries[1], "three samples of the second tensor");
    }

    #[test]
    fn entries_are_means_of_their_samples() {
        assert_eq!(fitted(vec![5.0, 0.0, 1.0, 4.0, 6.0, -1.0], 2), [0.0, 5.0]);
        assert_eq!(fitted(Vec::new(), 2), [0.0, 0.0]);
    }
}
