//! Values on a shared set that are predicted from the leader's: the leader sends its positions and its values
//! in powers of two, and every follower only what its own values lack of a prediction, in streams from every
//! worker to every other one. What is lost returns to the residuals.

use std::ops::Range;
use std::sync::Arc;

use gcodec::block::{
    Block, BlockOptions, Codebook, Floats, Groups, IndexSpace, ScaleFormat, Scales, Scope, Set, SetId, Sets,
    Sign, Stored, Support, Values,
};
use gcodec::compress::senders::scalecom::{Choice, Role, ScaleComOptions, ScaleComWorker};
use gcodec::compress::{Amount, Input, Options, compress};
use gcodec::frame::{Budget, IndexSet, Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::element::{decode_f32s, encode_f32s};
use gcodec::reduce::{Sum, SumOptions};
use gcodec::stream::{Body, Decoder, Encoder};
use gcodec::{Codec, Dtype, Limits, TensorBuf};

use crate::Result;
use crate::clock;
use crate::group::{Group, Traffic, agree, encoder, finish_all, named, numbers, piece, receive};
use crate::learned::Learned;
use crate::model::Tensors;
use crate::optim::Optimiser;
use crate::senders::inputs;
use crate::table::{Condition, Samples, Table};

/// How a follower's values are made of the leader's and of what the follower sends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Prediction {
    /// The leader's values times a coefficient for each tensor, which the follower fits and sends in bf16,
    /// plus a remainder in this form.
    Linear(Remainder),
    /// An entry of the table of a context; the follower sends which of this many entries. All fit the tables
    /// to the values of the second phase, which are powers of two.
    Table(usize, Condition),
}

/// Form of the remainders.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Remainder {
    Pow2,
    /// Signs, with the mean magnitude of each tensor.
    Sign,
}

/// Name of the tensor whose elements are a follower's coefficients.
const COEFFICIENTS: &str = "coefficients of the leader's values";

/// Workers of a shared set with prediction. They send the first steps as `raw`.
pub(crate) struct Predicted {
    /// The network's tensors, and one of coefficients.
    manifest: Arc<Manifest>,
    /// Index space of the network's tensors.
    scope: Scope,
    space: IndexSpace,
    prediction: Prediction,
    dense: u64,
    /// Steps of the second phase after them.
    settling: u64,
    choosers: Vec<ScaleComWorker>,
    /// Residuals of each worker, all tensors in one row.
    residuals: Vec<Vec<f32>>,
    samples: Samples,
    table: Option<Table>,
    encoders: Vec<Encoder>,
    /// Decoders: for each receiver one per worker's stream.
    receivers: Vec<Vec<Decoder>>,
    round: u64,
    learned: Learned,
    traffic: Traffic,
}

/// Bytes of each worker.
type Streams = Vec<Vec<u8>>;

/// The set of a step.
struct Chosen {
    leader: usize,
    set: IndexSet,
    positions: Vec<u64>,
    /// Places of each tensor's positions.
    ranges: Vec<Range<usize>>,
}

impl Predicted {
    /// `dense`, `settling`: steps of the first two phases.
    pub(crate) fn new(
        network: &Manifest,
        workers: usize,
        receivers: usize,
        (dense, settling): (u64, u64),
        density: f64,
        prediction: Prediction,
    ) -> Result<Self> {
        let count = network.tensors().len();
        let mut tensors = network.tensors().to_vec();
        tensors.push(TensorInfo::new(COEFFICIENTS, Dtype::F32, vec![count as u64]));
        let manifest = Arc::new(Manifest::new(tensors)?);
        let scope = Scope::Tensors { first: 0, count: count as u64 };
        let space = manifest.space(scope, 0)?;
        let settings = ScaleComOptions::new(Choice::TopKOfEach(Amount::Density(density)));
        let condition = match prediction {
            Prediction::Table(_, condition) => condition,
            Prediction::Linear(_) => Condition::Leader,
        };
        let chooser = |rank| ScaleComWorker::new(&manifest, scope, rank, workers as u64, settings);
        // One set for each round, all in one segment.
        let limits = Limits::default().with_max_definitions(1 << 20);
        let decoders = |_| (0..workers).map(|_| Decoder::new(limits.clone())).collect();
        Ok(Self {
            scope,
            prediction,
            dense,
            settling,
            choosers: (0..workers as u64).map(chooser).collect::<gcodec::Result<_>>()?,
            residuals: vec![vec![0.0; space.len() as usize]; workers],
            samples: Samples::of(count, condition),
            table: None,
            encoders: (0..workers).map(|_| encoder()).collect(),
            receivers: (0..receivers).map(decoders).collect(),
            round: 0,
            learned: Learned::default(),
            traffic: Traffic::of(workers),
            space,
            manifest,
        })
    }

    fn header(&self, sender: usize) -> UpdateHeader {
        let header = UpdateHeader::default().with_step(self.round).with_world(self.encoders.len() as u64);
        header.with_sender(sender as u64)
    }

    fn settles(&self) -> bool {
        self.round < self.dense + self.settling
    }

    /// Chooses the leader's set of its gradient plus residual.
    fn choose(&mut self, sums: &[Vec<f32>]) -> Result<Chosen> {
        let leader = (self.round % sums.len() as u64) as usize;
        let (mut tensors, mut rest) = (Vec::new(), sums[leader].as_slice());
        for info in &self.manifest.tensors()[..self.space.lens.len()] {
            let (mine, others) = rest.split_at(info.elements() as usize);
            tensors.push(TensorBuf::from_f32(info.shape.clone(), mine)?);
            rest = others;
        }
        let views: Vec<_> = tensors.iter().map(TensorBuf::view).collect();
        let role = self.choosers[leader].begin(self.round, &views)?;
        // The residuals are this group's own.
        self.choosers[leader].abort();
        let Role::Leader(set) = role else { return Err("no worker leads".into()) };
        let Support::Sparse(sparse) = &set.support else { return Err("a set of another kind".into()) };
        let positions = sparse.positions.clone();
        let (mut ranges, mut end) = (Vec::new(), 0);
        for &len in &self.space.lens {
            end += len;
            let from = ranges.last().map_or(0, |r: &Range<usize>| r.end);
            ranges.push(from..positions.partition_point(|&p| p < end));
        }
        Ok(Chosen { leader, positions, ranges, set })
    }

    /// Returns the blocks of a worker's values. `leader`: the leader's decoded values, for a follower.
    fn blocks(
        &self,
        id: SetId,
        chosen: &Chosen,
        worker: usize,
        own: &[f32],
        leader: Option<&[f32]>,
    ) -> Result<Vec<Block>> {
        let on_set =
            |values| Block { scope: self.scope, add: false, support: Support::Set(Set { id }), values };
        let seed = self.round * self.encoders.len() as u64 + worker as u64;
        let (Some(leader), false) = (leader, self.settles()) else {
            return Ok(vec![on_set(powers(own, seed)?)]);
        };
        match (self.prediction, &self.table) {
            (Prediction::Linear(form), _) => {
                let coefficients = rounded(&coefficients(own, leader, &chosen.ranges))?;
                let predicted = scaled(leader, &numbers_of(&coefficients)?, &chosen.ranges);
                let rest: Vec<f32> = own.iter().zip(&predicted).map(|(x, p)| x - p).collect();
                let rest = match form {
                    Remainder::Pow2 => powers(&rest, seed)?,
                    Remainder::Sign => signs(&rest, &chosen.ranges),
                };
                let scope = Scope::Tensor(self.space.lens.len() as u64);
                let values = Values::Floats(coefficients);
                Ok(vec![on_set(rest), Block { scope, add: false, support: Support::All, values }])
            }
            (Prediction::Table(..), Some(table)) => {
                let codes = table.codes(own, leader, &chosen.ranges);
                // Entries in their order; what they stand for depends on the leader's values.
                let entries = (0..table.levels()).map(|i| i as f32).collect();
                let groups = Groups::Block;
                let values = Codebook { table: entries, groups, scales: None, shifts: None, codes };
                Ok(vec![on_set(Values::Codebook(values))])
            }
            (Prediction::Table(..), None) => Err("no table after the second phase".into()),
        }
    }

    /// Returns a worker's values on the set from its blocks.
    fn decoded(
        &self,
        blocks: &[Block],
        sets: &Sets,
        leader: Option<&[f32]>,
        ranges: &[Range<usize>],
    ) -> Result<Vec<f32>> {
        let (Some(own), budget) = (blocks.first(), Budget::new(&Limits::default())) else {
            return Err("an update without values".into());
        };
        if let (Values::Codebook(codes), Some(table), Some(leader)) = (&own.values, &self.table, leader) {
            return Ok(table.values(&codes.codes, leader, ranges));
        }
        let mut values = own.numbers(&self.space, sets, &budget)?;
        if let (Some(Block { values: Values::Floats(coefficients), .. }), Some(leader)) =
            (blocks.get(1), leader)
        {
            let predicted = scaled(leader, &numbers_of(coefficients)?, ranges);
            values.iter_mut().zip(predicted).for_each(|(x, p)| *x += p);
        }
        Ok(values)
    }

    /// Sends a step on a set. Returns the streams, and each worker's values as its sender decodes them.
    fn send(&mut self, chosen: &Chosen, sums: &[Vec<f32>]) -> Result<(Streams, Vec<Vec<f32>>)> {
        let options = BlockOptions::default();
        let (mut streams, mut sent) = (vec![Vec::new(); sums.len()], vec![Vec::new(); sums.len()]);
        let leader = chosen.leader;
        let (encoder, out) = (&mut self.encoders[leader], &mut streams[leader]);
        let id = encoder.index_set(out, &chosen.set, &self.manifest, options)?;
        let support = Support::Sparse(match &chosen.set.support {
            Support::Sparse(sparse) => sparse.clone(),
            _ => return Err("a set of another kind".into()),
        });
        let followers = (0..sums.len()).filter(|&w| w != leader);
        for w in std::iter::once(leader).chain(followers) {
            let of_leader = (w != leader).then(|| sent[leader].clone());
            let own: Vec<f32> = chosen.positions.iter().map(|&p| sums[w][p as usize]).collect();
            let blocks = self.blocks(id, chosen, w, &own, of_leader.as_deref())?;
            // The sender's own view: the same blocks, on the positions instead of on the set's name.
            let mut plain = blocks.clone();
            plain[0].support = support.clone();
            sent[w] = self.decoded(&plain, &Sets::new(), of_leader.as_deref(), &chosen.ranges)?;
            let header = self.header(w);
            if w != leader {
                self.encoders[w].add_index_set(id, &chosen.set, &self.manifest)?;
            }
            let blocks: Vec<_> = blocks.iter().map(|block| (block, options)).collect();
            self.encoders[w].update(&mut streams[w], &header, &self.manifest, &blocks)?;
            if !self.settles() {
                own.iter().zip(&sent[w]).for_each(|(&x, &s)| self.learned.count(x, s));
            }
        }
        Ok((streams, sent))
    }

    /// Returns each worker's values on the set as a receiver decodes them.
    fn take(&mut self, r: usize, chosen: &Chosen, streams: &[Vec<u8>]) -> Result<Vec<Vec<f32>>> {
        let mut decoders = std::mem::take(&mut self.receivers[r]);
        let (mut taken, mut found) = (vec![Vec::new(); streams.len()], None);
        // The leader's stream has the set; the others arrive in any order after it.
        let others = (0..streams.len()).filter(|&s| s != chosen.leader);
        let others: Vec<usize> = if r.is_multiple_of(2) { others.collect() } else { others.rev().collect() };
        for s in std::iter::once(chosen.leader).chain(others) {
            if let Some((set, id)) = found.as_ref().filter(|_| s != chosen.leader) {
                decoders[s].add_index_set(*id, set, &self.manifest)?;
            }
            let of_leader = (s != chosen.leader).then(|| taken[chosen.leader].clone());
            receive(&mut decoders[s], &streams[s], piece(r), |body| {
                match body {
                    Body::Update(part) => {
                        let blocks = part.decode_all()?;
                        taken[s] =
                            self.decoded(&blocks, part.sets(), of_leader.as_deref(), &chosen.ranges)?;
                    }
                    Body::IndexSet(set, id, _) => found = Some((*set, id)),
                    _ => {}
                }
                Ok(())
            })?;
        }
        self.receivers[r] = decoders;
        Ok(taken)
    }

    /// Sends and receives a step as `raw`.
    fn dense(&mut self, updates: &[Tensors]) -> Result<Vec<Tensors>> {
        let mut streams = vec![Vec::new(); updates.len()];
        for (w, update) in updates.iter().enumerate() {
            let (header, update) = (self.header(w), named(&self.manifest, update)?);
            let raw = vec![Codec::Raw; update.len()];
            let blocks = compress(&inputs(&update), &raw, &Options::default(), None)?;
            self.encoders[w].update(&mut streams[w], &header, &self.manifest, &blocks)?;
        }
        self.count(&streams);
        let mut means = Vec::new();
        for (r, decoders) in self.receivers.iter_mut().enumerate() {
            let mut sum = Sum::new(&self.manifest, SumOptions::default());
            for (decoder, stream) in decoders.iter_mut().zip(&streams) {
                receive(decoder, stream, piece(r), |body| match body {
                    Body::Update(part) => Ok(sum.add(&part, 1.0)?),
                    _ => Ok(()),
                })?;
            }
            let mut mean = numbers(&sum.finish(true)?.tensors()?);
            mean.truncate(self.space.lens.len());
            means.push(mean);
        }
        Ok(means)
    }

    fn count(&mut self, streams: &[Vec<u8>]) {
        self.traffic.sent.iter_mut().zip(streams).for_each(|(sent, stream)| *sent += stream.len() as u64);
        self.traffic.received += streams[1..].iter().map(|s| s.len() as u64).sum::<u64>();
    }

    /// Returns the mean of the workers' values at their positions, and zeros elsewhere.
    fn mean(&self, chosen: &Chosen, values: &[Vec<f32>]) -> Tensors {
        let zeros = |&len: &u64| vec![0.0; len as usize];
        let mut mean: Tensors = self.space.lens.iter().map(zeros).collect();
        let mut base = 0;
        for (tensor, range) in mean.iter_mut().zip(&chosen.ranges) {
            for i in range.clone() {
                let sum: f64 = values.iter().map(|row| f64::from(row[i])).sum();
                tensor[(chosen.positions[i] - base) as usize] = (sum / values.len() as f64) as f32;
            }
            base += tensor.len() as u64;
        }
        mean
    }
}

impl Group for Predicted {
    fn round(&mut self, updates: Vec<Tensors>, _: &mut [Optimiser]) -> Result<Vec<Tensors>> {
        let begin = clock::now();
        if self.round < self.dense {
            let means = self.dense(&updates)?;
            self.traffic.encoding += clock::now().saturating_sub(begin);
            agree(&means, self.round)?;
            self.round += 1;
            return Ok(means);
        }
        if let (Prediction::Table(levels, _), false, None) = (self.prediction, self.settles(), &self.table) {
            self.table = Some(self.samples.table(levels));
        }
        let mut sums = std::mem::take(&mut self.residuals);
        for (sum, update) in sums.iter_mut().zip(&updates) {
            sum.iter_mut().zip(update.iter().flatten()).for_each(|(x, g)| *x += g);
        }
        let chosen = self.choose(&sums)?;
        let (streams, sent) = self.send(&chosen, &sums)?;
        self.count(&streams);
        let encoded = clock::now();
        let mut means = Vec::new();
        for r in 0..self.receivers.len() {
            let taken = self.take(r, &chosen, &streams)?;
            if taken != sent {
                return Err(format!("round {}: sender and receiver have different values", self.round).into());
            }
            means.push(self.mean(&chosen, &taken));
        }
        if self.settles() && matches!(self.prediction, Prediction::Table(..)) {
            let followers = (0..sent.len()).filter(|&w| w != chosen.leader);
            followers.for_each(|w| self.samples.add(&sent[w], &sent[chosen.leader], &chosen.ranges));
        }
        for (sum, sent) in sums.iter_mut().zip(&sent) {
            chosen.positions.iter().zip(sent).for_each(|(&p, s)| sum[p as usize] -= s);
        }
        self.residuals = sums;
        self.traffic.decoding += clock::now().saturating_sub(encoded);
        self.traffic.encoding += encoded.saturating_sub(begin);
        agree(&means, self.round)?;
        self.round += 1;
        Ok(means)
    }

    fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    fn finish(&mut self) -> Result<()> {
        finish_all(&mut self.encoders, &mut self.receivers, &mut self.traffic.sent)
    }

    fn learned(&self) -> Option<Learned> {
        Some(self.learned)
    }
}

/// Returns numbers in powers of two, rounded at random without bias.
fn powers(numbers: &[f32], seed: u64) -> Result<Values> {
    let tensor = TensorBuf::from_f32(vec![numbers.len() as u64], numbers)?;
    let input = Input { tensor: 0, name: "values", view: tensor.view(), base: None };
    let codec = "natural".parse::<Codec>()?.later(seed);
    let blocks = compress(&[input], &[codec], &Options::default(), None)?;
    let block = blocks.into_iter().next().ok_or("no powers of two")?;
    Ok(block.block.values)
}

/// Returns the signs of numbers, and their mean magnitude in each range.
fn signs(numbers: &[f32], ranges: &[Range<usize>]) -> Values {
    let scale = |range: &Range<usize>| {
        let sum: f64 = numbers[range.clone()].iter().map(|x| f64::from(x.abs())).sum();
        (sum / range.len().max(1) as f64) as f32
    };
    let scales: Vec<f32> = ranges.iter().map(scale).collect();
    let negative = numbers.iter().map(|x| x.is_sign_negative()).collect();
    Values::Sign(Sign {
        groups: Groups::Tensor,
        scales: Scales::from_f32s(ScaleFormat::F32, &scales),
        negative,
    })
}

/// Returns the factors of `leader` in each range that leave the smallest squared distance to `own`.
fn coefficients(own: &[f32], leader: &[f32], ranges: &[Range<usize>]) -> Vec<f32> {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum() };
    let fit = |range: &Range<usize>| {
        let (own, leader) = (&own[range.clone()], &leader[range.clone()]);
        match dot(leader, leader) {
            power if power > 0.0 => (dot(own, leader) / power) as f32,
            _ => 0.0,
        }
    };
    ranges.iter().map(fit).collect()
}

/// Returns numbers rounded to bf16.
fn rounded(numbers: &[f32]) -> Result<Floats> {
    let mut bytes = vec![0; 2 * numbers.len()];
    encode_f32s(Dtype::Bf16, numbers, 0, &mut bytes)?;
    Ok(Floats { stored: Stored::Bf16, bytes })
}

fn numbers_of(floats: &Floats) -> Result<Vec<f32>> {
    let mut numbers = vec![0.0; floats.bytes.len() / 2];
    decode_f32s(Dtype::Bf16, &floats.bytes, 0, &mut numbers)?;
    Ok(numbers)
}

/// Returns values times the factor of their range.
fn scaled(values: &[f32], factors: &[f32], ranges: &[Range<usize>]) -> Vec<f32> {
    let each = ranges.iter().zip(factors);
    each.flat_map(|(range, factor)| values[range.clone()].iter().map(move |x| factor * x)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKERS: usize = 3;

    fn group(prediction: Prediction) -> (Predicted, Vec<usize>) {
        let lens = [300, 100];
        let infos = lens.iter().enumerate();
        let info =
            |(i, &len): (usize, &usize)| TensorInfo::new(format!("t{i}"), Dtype::F32, vec![len as u64]);
        let manifest = Manifest::new(infos.map(info).collect()).unwrap();
        let group = Predicted::new(&manifest, WORKERS, 2, (1, 3), 0.1, prediction).unwrap();
        (group, lens.to_vec())
    }

    fn number(step: u64, worker: usize, i: usize) -> f32 {
        let word = |seed| gcodec::compress::random::word(seed, 0, i as u64) as i32 as f32 / 2f32.powi(31);
        word(step) + 0.5 * word(1000 + 10 * step + worker as u64)
    }

    #[test]
    fn what_is_not_sent_stays() {
        for prediction in [
            Prediction::Linear(Remainder::Pow2),
            Prediction::Linear(Remainder::Sign),
            Prediction::Table(4, Condition::Tensor),
            Prediction::Table(2, Condition::Leader),
        ] {
            let (mut group, lens) = group(prediction);
            let (mut wanted, mut got) = (vec![0.0; 400], vec![0.0; 400]);
            for step in 0..8 {
                let update = |w| -> Tensors {
                    let tensor = |(t, &len): (usize, &usize)| {
                        (0..len).map(|i| number(step, w, 1000 * t + i)).collect()
                    };
                    lens.iter().enumerate().map(tensor).collect()
                };
                let updates: Vec<Tensors> = (0..WORKERS).map(update).collect();
                for update in &updates {
                    wanted.iter_mut().zip(update.iter().flatten()).for_each(|(x, g)| *x += g);
                }
                let means = group.round(updates, &mut []).unwrap();
                got.iter_mut().zip(means[0].iter().flatten()).for_each(|(x, m)| *x += WORKERS as f32 * m);
            }
            group.finish().unwrap();
            for row in &group.residuals {
                got.iter_mut().zip(row).for_each(|(x, r)| *x += r);
            }
            assert!(wanted.iter().zip(&got).all(|(x, y)| (x - y).abs() < 1e-4), "{prediction:?}");
            let error = group.learned.error();
            assert!(error > 0.0 && error < 0.8, "{prediction:?}: {error}");
        }
    }

    #[test]
    fn a_multiple_of_the_leaders_values_needs_no_remainder() {
        for form in [Remainder::Pow2, Remainder::Sign] {
            let (mut group, lens) = group(Prediction::Linear(form));
            // The leader's values are powers of two, those of the others 3 times or 1.25 times as large.
            for step in 0..6 {
                let leader = (step % WORKERS as u64) as usize;
                let update = |w: usize| -> Tensors {
                    let factors = if w == leader { [1.0, 1.0] } else { [3.0, 1.25] };
                    let value =
                        |i: usize| 2f32.powi((i % 7) as i32) * if i.is_multiple_of(2) { 1.0 } else { -1.0 };
                    lens.iter()
                        .zip(factors)
                        .map(|(&len, f)| (0..len).map(|i| f * value(i)).collect())
                        .collect()
                };
                group.residuals.iter_mut().for_each(|row| row.fill(0.0));
                group.round((0..WORKERS).map(update).collect(), &mut []).unwrap();
            }
            assert_eq!(group.learned.error(), 0.0, "{form:?}");
        }
    }
}
