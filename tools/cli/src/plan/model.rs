//! The time of a training step, from measured parts: what a codec costs on this machine, and what an exchange
//! moves over which links. It knows no tensors and no codecs; `tools/scale` includes this file by its path.

use serde::{Deserialize, Serialize};

/// Share of a link's rate that is payload: 1448 bytes of TCP in an Ethernet frame of 1514.
pub(crate) const PAYLOAD: f64 = 1448.0 / 1514.0;
/// Bytes of a bucket of DistributedDataParallel.
pub(crate) const BUCKET: f64 = 25.0 * 1024.0 * 1024.0;
/// All-gathers of a few bytes in each exchange of updates of `gcodec.torch.Average`: the ranks' tensors, the
/// sizes of updates, and whether all ranks have decoded them.
pub(crate) const AVERAGE_CONTROL: u64 = 3;
/// The same of the hook of DistributedDataParallel, whose buckets bring their sizes along.
pub(crate) const HOOK_CONTROL: u64 = 1;
/// Share of the compute that a bucket's exchange can hide behind: the backward pass, two of three parts.
const BACKWARD: f64 = 2.0 / 3.0;

/// A link of a machine, with the same rate in both directions at once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// Rate in bits per second.
    pub(crate) bits_per_second: f64,
    /// Seconds from one machine to another.
    pub(crate) latency: f64,
}

impl Link {
    /// Returns the seconds that payload takes at the full rate.
    fn seconds(&self, bytes: f64) -> f64 {
        8.0 * bytes / (self.bits_per_second * PAYLOAD)
    }
}

/// Machines on a fast network of their own, such as those of one data centre. A group has one link to others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Groups {
    /// Workers of a group.
    pub(crate) size: u64,
    /// Link of a worker inside.
    pub(crate) link: Link,
}

/// Library that carries the messages of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Backend {
    /// Latencies of a message: 2 if it waits for a notice of its receiver.
    pub(crate) latencies: u64,
    /// Buckets that are exchanged at once: their latencies pass together.
    pub(crate) at_once: u64,
    /// Most bytes of a message of a ring, of which two are on their way at once. `None`: half of a part.
    pub(crate) segment: Option<u64>,
}

impl Backend {
    pub(crate) const NCCL: Self = Self { latencies: 1, at_once: 1, segment: None };
    pub(crate) const GLOO: Self = Self { latencies: 2, at_once: 2, segment: Some(1 << 20) };
}

/// The workers of a training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fleet {
    /// Number of workers, at least 2.
    pub(crate) workers: u64,
    /// Link of each worker, or of each group, to the others; a server's too.
    pub(crate) link: Link,
    /// Groups, if there are any.
    pub(crate) groups: Option<Groups>,
    /// Seconds of the forward and backward passes of a step.
    pub(crate) compute: f64,
    /// Steps from one exchange to the next.
    pub(crate) every: u64,
    /// Bytes of plain gradients of a bucket whose exchange begins while the backward pass still runs, in
    /// whose thread it is coded. `None`: all gradients are exchanged after it.
    pub(crate) bucket: Option<f64>,
    /// All-gathers of a few bytes in each exchange of updates: sizes, and whether all workers have decoded
    /// them.
    pub(crate) control: u64,
    /// Library of the exchanges between workers.
    pub(crate) backend: Backend,
    /// Workers that share the cores of a machine, and so code as many times as long.
    pub(crate) sharing: u64,
}

impl Fleet {
    /// Returns a link as messages between workers use it.
    fn between_workers(&self, link: &Link) -> Link {
        Link { latency: self.backend.latencies as f64 * link.latency, ..*link }
    }
}

/// How workers exchange updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Exchange {
    /// Plain gradients, reduced and gathered in a ring.
    Ring,
    /// Plain gradients, reduced and sent back along two binary trees in small pieces.
    Tree,
    /// Every worker's update goes around a ring, and each worker adds all of them.
    Gather,
    /// One worker's positions go to all, then the values there are reduced in a ring: ScaleCom, shared sets.
    SharedSet,
    /// One machine adds all updates and sends the sum to each worker: a parameter server, an aggregator.
    Aggregator,
    /// Every worker is the aggregator of an equal share of the elements.
    Shards,
}

impl Exchange {
    /// All of them, with their names.
    pub(crate) const ALL: [(Self, &str); 6] = [
        (Self::Ring, "ring"),
        (Self::Tree, "tree"),
        (Self::Gather, "gather"),
        (Self::SharedSet, "shared-set"),
        (Self::Aggregator, "aggregator"),
        (Self::Shards, "shards"),
    ];

    /// Returns its name.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(exchange, _)| *exchange == self).map_or("", |(_, name)| name)
    }

    /// Whether it moves plain gradients, not a codec's updates.
    pub(crate) fn is_plain(self) -> bool {
        matches!(self, Self::Ring | Self::Tree)
    }
}

/// Sizes of the sum of several updates, relative to one update: points measured on real gradients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Growth(
    /// Numbers of updates, ascending, with the factor.
    pub(crate) Vec<(f64, f64)>,
);

impl Growth {
    /// Returns the factor for a number of updates: between points along a line in logarithms, beyond the last
    /// one as steep as before it. From one point alone it is proportional to the number, as if no two updates
    /// had a position in common.
    pub(crate) fn at(&self, updates: f64) -> f64 {
        let points = &self.0;
        let next = points.iter().position(|(n, _)| *n >= updates).unwrap_or(points.len());
        let (low, high) = match (points.get(next.wrapping_sub(1)), points.get(next)) {
            (None, Some(first)) => return first.1,
            (Some(low), Some(high)) => (*low, *high),
            (Some(last), None) => match points.get(next.wrapping_sub(2)) {
                Some(before) => (*before, *last),
                None => return last.1 * updates / last.0,
            },
            (None, None) => return updates,
        };
        let slope = (high.1 / low.1).ln() / (high.0 / low.0).ln();
        low.1 * (updates / low.0).powf(slope)
    }
}

/// A set of positions that all workers share for a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct SharedSet {
    /// Bytes of the positions.
    pub(crate) positions: f64,
    /// Bytes of one worker's values.
    pub(crate) values: f64,
    /// Relative L2 error of the workers that did not choose the positions.
    pub(crate) relative_l2: f64,
}

/// Sizes and times of a codec's updates of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parts {
    /// Bytes of the plain gradient.
    pub(crate) plain: f64,
    /// Bytes of one worker's update.
    pub(crate) update: f64,
    /// Seconds to make it.
    pub(crate) encode: f64,
    /// Seconds to decode one update and add it to a sum.
    pub(crate) add: f64,
    /// Seconds of a sum beside its updates: zeroed accumulators, the mean.
    pub(crate) sum: f64,
    /// Seconds to encode the sum, where it is sent.
    pub(crate) answer: f64,
    /// Size of the sum.
    pub(crate) growth: Growth,
    /// A shared set, if the codec can use one.
    pub(crate) set: Option<SharedSet>,
}

impl Parts {
    /// Returns the parts of a model that is `factor` times as large: sizes and times in proportion.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        let set = self.set.map(|set| SharedSet {
            positions: factor * set.positions,
            values: factor * set.values,
            ..set
        });
        Self {
            plain: factor * self.plain,
            update: factor * self.update,
            encode: factor * self.encode,
            add: factor * self.add,
            sum: factor * self.sum,
            answer: factor * self.answer,
            growth: self.growth.clone(),
            set,
        }
    }

    /// Returns the bytes of the sum of this many updates: at most those of the plain gradient.
    pub(crate) fn sum_bytes(&self, updates: f64) -> f64 {
        (self.update * self.growth.at(updates)).min(self.plain.max(self.update))
    }
}

/// Costs of one exchange to a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cost {
    coding: f64,
    bandwidth: f64,
    latency: f64,
    /// Latencies of a step, not of each of its buckets.
    control: f64,
    sent: f64,
    received: f64,
}

/// The largest share of a step's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Bottleneck {
    /// The forward and backward passes.
    Compute,
    /// Encoding, decoding and adding.
    Coding,
    /// Rates of links.
    Bandwidth,
    /// Latencies of links.
    Latency,
}

/// One step of a worker, as a mean over the steps from one exchange to the next.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Seconds in all.
    pub(crate) seconds: f64,
    /// Seconds of encoding, decoding and adding, before any overlap.
    pub(crate) coding: f64,
    /// Seconds at the rates of links, before any overlap.
    pub(crate) bandwidth: f64,
    /// Seconds of latencies, before any overlap.
    pub(crate) latency: f64,
    /// Seconds of the exchange that hide behind the backward pass.
    pub(crate) hidden: f64,
    /// Bytes that a worker sends.
    pub(crate) sent: f64,
    /// Bytes that a worker receives.
    pub(crate) received: f64,
    /// The largest part of the time.
    pub(crate) bottleneck: Bottleneck,
}

/// Returns a step's time and traffic; `None` if the codec cannot use the exchange.
pub(crate) fn step(fleet: &Fleet, exchange: Exchange, parts: &Parts) -> Option<Step> {
    if exchange == Exchange::SharedSet && parts.set.is_none() {
        return None;
    }
    let buckets = fleet.bucket.map_or(1.0, |bytes| (parts.plain / bytes).ceil().max(1.0));
    let at_once = fleet.backend.at_once.max(1) as f64;
    let cost = whole(fleet, exchange, parts);
    // Each bucket is an exchange of its own, and those of one worker follow one another.
    let of_bucket = whole(fleet, exchange, &parts.scaled(1.0 / buckets));
    let latencies = (buckets / at_once).ceil() * of_bucket.latency;
    let latency = latencies + cost.control;
    let every = fleet.every.max(1) as f64;
    // The first bucket is there after its share of the backward pass, which waits while buckets are coded,
    // and the last one when the pass ends. So all shares but one hide: of the links, or of the pass if it is
    // shorter.
    let early = 1.0 - 1.0 / buckets;
    let encode = if exchange.is_plain() { 0.0 } else { fleet.sharing as f64 * parts.encode };
    let hidden = early * (cost.bandwidth + latencies).min(fleet.compute * BACKWARD + encode);
    let all = cost.coding + cost.bandwidth + latency;
    let each = [
        (fleet.compute, Bottleneck::Compute),
        (cost.coding / every, Bottleneck::Coding),
        (cost.bandwidth / every, Bottleneck::Bandwidth),
        (latency / every, Bottleneck::Latency),
    ];
    let largest = each.iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or(Bottleneck::Compute, |most| most.1);
    Some(Step {
        seconds: fleet.compute + (all - hidden) / every,
        coding: cost.coding / every,
        bandwidth: cost.bandwidth / every,
        latency: latency / every,
        hidden: hidden / every,
        sent: cost.sent / every,
        received: cost.received / every,
        bottleneck: largest,
    })
}

/// Returns the costs of an exchange between all workers, on one level or two.
fn whole(fleet: &Fleet, exchange: Exchange, parts: &Parts) -> Cost {
    let Some(groups) = fleet.groups.filter(|groups| groups.size > 1) else {
        return between(fleet.workers as f64, fleet, exchange, parts);
    };
    let members = groups.size.min(fleet.workers) as f64;
    // The plain gradients of a group are reduced inside; one of its workers exchanges them with other groups,
    // and sends the result to all inside.
    let inside = ring(members, &fleet.between_workers(&groups.link), parts.plain, fleet.backend);
    let back = Cost {
        bandwidth: groups.link.seconds(parts.plain),
        latency: members.log2().ceil() * fleet.between_workers(&groups.link).latency,
        received: parts.plain,
        ..Cost::default()
    };
    let outside = between((fleet.workers as f64 / members).ceil(), fleet, exchange, parts);
    [inside, outside, back].iter().fold(Cost::default(), |sum, cost| Cost {
        coding: sum.coding + cost.coding,
        bandwidth: sum.bandwidth + cost.bandwidth,
        latency: sum.latency + cost.latency,
        control: sum.control + cost.control,
        sent: sum.sent + cost.sent,
        received: sum.received + cost.received,
    })
}

/// Returns the costs of an exchange between `n` workers with the same links.
fn between(n: f64, fleet: &Fleet, exchange: Exchange, parts: &Parts) -> Cost {
    if n < 2.0 {
        return Cost::default();
    }
    let hops = n.log2().ceil();
    let link = &fleet.between_workers(&fleet.link);
    let sharing = fleet.sharing as f64;
    match exchange {
        Exchange::Ring => ring(n, link, parts.plain, fleet.backend),
        Exchange::Tree => Cost {
            bandwidth: link.seconds(2.0 * parts.plain),
            latency: 2.0 * hops * link.latency,
            sent: 2.0 * parts.plain,
            received: 2.0 * parts.plain,
            ..Cost::default()
        },
        Exchange::Gather => Cost {
            coding: sharing * (parts.encode + n * parts.add + parts.sum),
            bandwidth: link.seconds((n - 1.0) * parts.update),
            latency: waits(n - 1.0, link, parts.update / 2.0),
            control: control(n, link, fleet.control),
            sent: (n - 1.0) * parts.update,
            received: (n - 1.0) * parts.update,
        },
        Exchange::SharedSet => shared_set(n, fleet, parts),
        Exchange::Aggregator => aggregator(n, fleet, parts),
        Exchange::Shards => {
            // Each worker sends a share of its update to each other one, and a share of the sum back.
            let others = (n - 1.0) / n;
            let moved = others * (parts.update + parts.sum_bytes(n));
            let coding = parts.encode + parts.add + (parts.sum + parts.answer) / n + parts.add + parts.sum;
            Cost {
                coding: sharing * coding,
                bandwidth: link.seconds(moved),
                latency: 2.0 * link.latency,
                sent: moved,
                received: moved,
                ..Cost::default()
            }
        }
    }
}

/// Returns the costs of an all-reduce: `2 (n - 1)` hops of one part of `n`, each in two segments or more.
fn ring(n: f64, link: &Link, bytes: f64, backend: Backend) -> Cost {
    let hops = 2.0 * (n - 1.0);
    let part = bytes / n;
    let segments = backend.segment.map_or(2.0, |most| (part / most as f64).ceil().max(2.0));
    Cost {
        bandwidth: hops * link.seconds(part),
        latency: waits(hops * segments / 2.0, link, part / segments),
        sent: hops * part,
        received: hops * part,
        ..Cost::default()
    }
}

/// Returns the latency of messages around a ring, of which two are on their way at once: one for each pair,
/// less what the time to send a message hides in all pairs but the last.
fn waits(pairs: f64, link: &Link, message: f64) -> f64 {
    pairs * link.latency - (pairs - 1.0).max(0.0) * link.latency.min(link.seconds(message))
}

/// Returns the latency of small all-gathers around the ring.
fn control(n: f64, link: &Link, count: u64) -> f64 {
    count as f64 * (n - 1.0) * link.latency
}

fn shared_set(n: f64, fleet: &Fleet, parts: &Parts) -> Cost {
    let Some(set) = &parts.set else { return Cost::default() };
    let link = &fleet.between_workers(&fleet.link);
    let values = ring(n, link, set.values, fleet.backend);
    Cost {
        // The leader chooses, while the others wait for its positions.
        coding: fleet.sharing as f64 * (parts.encode + parts.add + parts.sum),
        bandwidth: values.bandwidth + link.seconds(set.positions),
        latency: values.latency + n.log2().ceil() * link.latency,
        control: control(n, link, fleet.control),
        sent: values.sent + set.positions / n,
        received: values.received + set.positions,
    }
}

fn aggregator(n: f64, fleet: &Fleet, parts: &Parts) -> Cost {
    let link = &fleet.link;
    let sum = parts.sum_bytes(n);
    let arriving = link.seconds(n * parts.update);
    // Updates are added while others arrive. The last one, the sum and its encoding come after them, and each
    // worker decodes the answer. The aggregator has a machine of its own.
    let of_aggregator = (n * parts.add - arriving).max(parts.add) + parts.sum + parts.answer;
    let of_worker = parts.encode + parts.add + parts.sum;
    Cost {
        coding: fleet.sharing as f64 * of_worker + of_aggregator,
        // All updates and all answers pass the aggregator's own link.
        bandwidth: arriving + link.seconds(n * sum),
        latency: 2.0 * link.latency,
        sent: parts.update,
        received: sum,
        ..Cost::default()
    }
}

/// A codec that needs at most this much more time than the fastest is as good.
pub(crate) const NEARLY: f64 = 1.1;
/// Compression that saves less than this share of a step is not worth its error.
const WORTH: f64 = 0.05;

/// An exchange of a codec.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Exchanged {
    pub(crate) exchange: Exchange,
    /// Error of an update.
    pub(crate) relative_l2: f64,
    pub(crate) step: Step,
}

/// Returns the best of some exchanges: the smallest error of those that are nearly as fast as the fastest.
/// `relative_l2`: error of the codec's own update.
pub(crate) fn best(
    fleet: &Fleet,
    exchanges: impl Iterator<Item = Exchange>,
    parts: &Parts,
    relative_l2: f64,
) -> Option<Exchanged> {
    let with_step = |exchange| {
        let set = parts.set.filter(|_| exchange == Exchange::SharedSet);
        let relative_l2 = set.map_or(relative_l2, |set| set.relative_l2);
        Some(Exchanged { exchange, relative_l2, step: step(fleet, exchange, parts)? })
    };
    let all: Vec<Exchanged> = exchanges.filter_map(with_step).collect();
    let candidates = all.iter().map(|one| (one.step.seconds, one.relative_l2));
    all.get(smallest_error(candidates)?).copied()
}

/// Returns the number of the smallest error of those that are nearly as fast as the fastest; candidates have
/// seconds and errors.
fn smallest_error(candidates: impl Iterator<Item = (f64, f64)> + Clone) -> Option<usize> {
    let fastest = candidates.clone().map(|(seconds, _)| seconds).fold(f64::INFINITY, f64::min);
    let near = candidates.enumerate().filter(|(_, (seconds, _))| *seconds <= NEARLY * fastest);
    let best = near.min_by(|(_, a), (_, b)| a.1.total_cmp(&b.1).then(a.0.total_cmp(&b.0)));
    best.map(|(number, _)| number)
}

/// A codec, or plain gradients, with the time of its step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    /// Seconds of a step.
    pub(crate) seconds: f64,
    /// Error of an update.
    pub(crate) relative_l2: f64,
    /// Whether it is plain gradients, also as updates.
    pub(crate) is_plain: bool,
}

/// Returns the number of the recommended candidate: plain gradients, if compression saves little, and
/// otherwise the smallest error of those that are nearly as fast as the fastest.
pub(crate) fn recommend(candidates: &[Candidate]) -> Option<usize> {
    let fastest = candidates.iter().map(|one| one.seconds).fold(f64::INFINITY, f64::min);
    let plain = candidates.iter().enumerate().filter(|(_, one)| one.is_plain);
    let plain = plain.min_by(|(_, a), (_, b)| a.seconds.total_cmp(&b.seconds));
    if let Some((number, _)) = plain.filter(|(_, plain)| fastest >= plain.seconds * (1.0 - WORTH)) {
        return Some(number);
    }
    smallest_error(candidates.iter().map(|one| (one.seconds, one.relative_l2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Parts {
        Parts {
            plain: 1e8,
            update: 1e6,
            encode: 0.02,
            add: 0.001,
            sum: 0.003,
            answer: 0.01,
            growth: Growth(vec![(1.0, 1.0), (2.0, 1.8), (4.0, 3.0)]),
            set: Some(SharedSet { positions: 2e5, values: 8e5, relative_l2: 0.9 }),
        }
    }

    fn fleet(workers: u64) -> Fleet {
        let link = Link { bits_per_second: 1e9 / PAYLOAD, latency: 0.01 };
        let (groups, bucket, backend) = (None, None, Backend::NCCL);
        Fleet { workers, link, groups, compute: 0.5, every: 1, bucket, control: 0, backend, sharing: 1 }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs()
    }

    #[test]
    fn a_ring_moves_each_byte_almost_twice() {
        let ring = step(&fleet(4), Exchange::Ring, &parts()).unwrap();
        assert!(close(ring.sent, 1.5e8) && close(ring.received, 1.5e8));
        // Parts of 0.2 s hide all latencies but the last.
        assert!(close(ring.bandwidth, 1.2) && close(ring.latency, 0.01));
        assert!(close(ring.seconds, 0.5 + 1.2 + 0.01));
        assert_eq!(ring.bottleneck, Bottleneck::Bandwidth);
        // Parts of 2 ms hide 1 ms of each.
        let small = Parts { plain: 1e6, ..parts() };
        assert!(close(step(&fleet(4), Exchange::Ring, &small).unwrap().latency, 6.0 * 0.01 - 5.0 * 0.001));
        // Of two workers, each sends the half that the other adds, and the sum of its own half.
        assert!(close(step(&fleet(2), Exchange::Ring, &parts()).unwrap().sent, 1e8));
    }

    #[test]
    fn exchanges_of_updates_count_what_they_move_and_add() {
        let of = |exchange| step(&fleet(4), exchange, &parts()).unwrap();
        let gather = of(Exchange::Gather);
        assert!(close(gather.received, 3e6) && close(gather.coding, 0.02 + 4.0 * 0.001 + 0.003));
        // Half of an update takes 4 ms, and hides as much of two of three latencies.
        assert!(close(gather.latency, 0.03 - 2.0 * 0.004));
        let controlled = Fleet { control: 2, ..fleet(4) };
        assert!(close(step(&controlled, Exchange::Gather, &parts()).unwrap().latency, 0.022 + 0.06));
        let aggregator = of(Exchange::Aggregator);
        assert!(close(aggregator.sent, 1e6) && close(aggregator.received, 3e6));
        assert!(close(aggregator.bandwidth, 8.0 * (4e6 + 12e6) / 1e9));
        assert!(close(aggregator.latency, 0.02));
        let set = of(Exchange::SharedSet);
        assert!(close(set.received, 2e5 + 1.5 * 8e5));
        // Shares of three other workers, both ways.
        assert!(close(of(Exchange::Shards).sent, 0.75 * (1e6 + 3e6)));
        let none = Parts { set: None, ..parts() };
        assert_eq!(step(&fleet(4), Exchange::SharedSet, &none), None);
    }

    #[test]
    fn a_sum_grows_as_measured_and_never_beyond_the_plain_gradient() {
        let growth = parts().growth;
        assert_eq!([1.0, 2.0, 4.0].map(|n| growth.at(n)), [1.0, 1.8, 3.0]);
        assert!(growth.at(3.0) > 1.8 && growth.at(3.0) < 3.0);
        // The last slope goes on: 3.0 / 1.8 for each doubling.
        assert!(close(growth.at(8.0), 5.0));
        assert!(close(Growth(vec![(1.0, 1.0)]).at(64.0), 64.0));
        assert!(close(Growth(vec![(1.0, 1.0), (2.0, 1.0)]).at(64.0), 1.0));
        assert_eq!(parts().sum_bytes(1e9), 1e8);
    }

    #[test]
    fn rare_exchanges_and_groups_cost_less() {
        let often = step(&fleet(64), Exchange::Gather, &parts()).unwrap();
        let rare = step(&Fleet { every: 10, ..fleet(64) }, Exchange::Gather, &parts()).unwrap();
        assert!(close(rare.seconds - 0.5, (often.seconds - 0.5) / 10.0));
        let inside = Link { bits_per_second: 1e11, latency: 0.0 };
        let grouped = Fleet { groups: Some(Groups { size: 8, link: inside }), ..fleet(64) };
        let plain = |fleet: &Fleet| step(fleet, Exchange::Ring, &parts()).unwrap();
        assert!(plain(&grouped).latency < 0.2 * plain(&fleet(64)).latency);
        // One group alone has no use for the slow link.
        let one = Fleet { groups: Some(Groups { size: 64, link: inside }), ..fleet(64) };
        assert!(plain(&one).bandwidth < 0.03);
    }

    #[test]
    fn overlap_hides_the_links_of_all_buckets_but_the_last() {
        let overlapped = Fleet { bucket: Some(BUCKET), ..fleet(4) };
        let whole = step(&fleet(4), Exchange::Ring, &parts()).unwrap();
        // Four buckets; the backward pass is shorter than their exchange.
        let ring = step(&overlapped, Exchange::Ring, &parts()).unwrap();
        assert!(close(ring.hidden, 0.75 * 0.5 * 2.0 / 3.0));
        assert!(close(ring.latency, 4.0 * whole.latency));
        // Three of its four parts hide if it is the longer one.
        let long = Fleet { compute: 30.0, ..overlapped };
        let ring = step(&long, Exchange::Ring, &parts()).unwrap();
        assert!(close(ring.hidden, 0.75 * (ring.bandwidth + ring.latency)));
        // Coding is not hidden, and gives the links more time.
        let slow = Parts { encode: 0.4, update: 1e9, ..parts() };
        let gather = step(&overlapped, Exchange::Gather, &slow).unwrap();
        assert!(close(gather.hidden, 0.75 * (0.5 * 2.0 / 3.0 + 0.4)));
        assert!(close(
            gather.seconds,
            0.5 + gather.coding + gather.bandwidth + gather.latency - gather.hidden
        ));
        // Nothing hides behind one bucket.
        let small = Parts { plain: 1e6, ..parts() };
        assert_eq!(step(&overlapped, Exchange::Ring, &small).unwrap().hidden, 0.0);
    }

    #[test]
    fn buckets_share_what_a_step_says_once() {
        let said = Fleet { control: 3, ..fleet(4) };
        let overlapped = Fleet { bucket: Some(BUCKET), ..said };
        // Three latencies, of which 8 ms are hidden, or 2 ms by a quarter of the update, and three small
        // all-gathers.
        let (whole, own, said_once) = (0.022, 0.028, 0.09);
        let latency = |fleet: &Fleet| step(fleet, Exchange::Gather, &parts()).unwrap().latency;
        assert!(close(latency(&said), whole + said_once));
        assert!(close(latency(&overlapped), 4.0 * own + said_once));
        let at_once = Backend { at_once: 3, ..Backend::NCCL };
        assert!(close(latency(&Fleet { backend: at_once, ..overlapped }), 2.0 * own + said_once));
    }

    #[test]
    fn gloo_takes_two_latencies_between_workers_and_one_to_an_aggregator() {
        let gloo = Fleet { backend: Backend::GLOO, control: 1, ..fleet(4) };
        let nccl = Fleet { backend: Backend::NCCL, ..gloo };
        let latency =
            |fleet: &Fleet, exchange| step(fleet, exchange, &parts()).map_or(0.0, |step| step.latency);
        for exchange in [Exchange::Tree, Exchange::Shards] {
            assert!(close(latency(&gloo, exchange), 2.0 * latency(&nccl, exchange)), "{exchange:?}");
        }
        assert!(close(latency(&gloo, Exchange::Aggregator), latency(&nccl, Exchange::Aggregator)));
    }

    #[test]
    fn the_exchange_of_the_smaller_error_is_taken_where_it_is_nearly_as_fast() {
        let exchange = |values: f64| {
            let set = SharedSet { positions: 2e5, values, relative_l2: 0.9 };
            let parts = Parts { set: Some(set), ..parts() };
            let exchanges = [Exchange::SharedSet, Exchange::Gather].into_iter();
            let best = best(&fleet(4), exchanges, &parts, 0.8).unwrap();
            (best.exchange, best.relative_l2)
        };
        // Seconds of the step: 0.57 with all updates; 0.60 and 3.1 with a shared set.
        assert_eq!(exchange(8e5), (Exchange::Gather, 0.8));
        assert_eq!(exchange(2e8), (Exchange::Gather, 0.8));
        let slow = Fleet { link: Link { bits_per_second: 1e6, latency: 0.0 }, ..fleet(64) };
        let best = best(&slow, [Exchange::Gather, Exchange::SharedSet].into_iter(), &parts(), 0.8).unwrap();
        assert_eq!((best.exchange, best.relative_l2), (Exchange::SharedSet, 0.9));
    }

    #[test]
    fn a_ring_of_small_segments_waits_for_each_two() {
        let short = Fleet { backend: Backend { segment: Some(5_000_000), ..Backend::NCCL }, ..fleet(4) };
        let latency = |fleet: &Fleet| step(fleet, Exchange::Ring, &parts()).map_or(0.0, |step| step.latency);
        // Six hops of 25 MB, 0.2 s each: two segments hide all latencies but the last, and so do five of
        // 40 ms. Where a latency is 0.1 s, each pair of these waits for 60 ms of it, and the last for all.
        assert!(close(latency(&fleet(4)), 0.01) && close(latency(&short), 0.01));
        let link = Link { latency: 0.1, ..short.link };
        assert!(close(latency(&Fleet { link, ..fleet(4) }), 0.1));
        assert!(close(latency(&Fleet { link, ..short }), 14.0 * 0.06 + 0.1));
    }

    #[test]
    fn workers_that_share_cores_code_longer() {
        let shared = Fleet { sharing: 8, ..fleet(4) };
        let coding =
            |fleet: &Fleet, exchange| step(fleet, exchange, &parts()).map_or(0.0, |step| step.coding);
        for exchange in [Exchange::Gather, Exchange::SharedSet, Exchange::Shards] {
            assert!(close(coding(&shared, exchange), 8.0 * coding(&fleet(4), exchange)), "{exchange:?}");
        }
        // Not the aggregator, whose machine is its own: the last update, the sum and its encoding.
        let alone = coding(&fleet(4), Exchange::Aggregator);
        assert!(close(coding(&shared, Exchange::Aggregator), 8.0 * (alone - 0.014) + 0.014));
        assert!(close(coding(&shared, Exchange::Ring), 0.0));
    }
}
