//! The time of a training step, from measured parts: what a codec costs on this machine, and what an exchange
//! moves over which links. It knows no tensors and no codecs; `tools/scale` includes this file by its path.

use serde::{Deserialize, Serialize};

/// Share of a link's rate that is payload: 1448 bytes of TCP in an Ethernet frame of 1514.
pub(crate) const PAYLOAD: f64 = 1448.0 / 1514.0;
/// The buckets of DistributedDataParallel, which NCCL exchanges one after another.
pub(crate) const BUCKETS: Buckets = Buckets { bytes: 25.0 * 1024.0 * 1024.0, at_once: 1 };
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

/// Parts of the gradients that are exchanged as soon as they are there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Buckets {
    /// Bytes of the plain gradients of a bucket.
    pub(crate) bytes: f64,
    /// Buckets that are exchanged at once: their latencies pass together.
    pub(crate) at_once: u64,
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
    /// Buckets whose exchange begins while the backward pass still runs, in whose thread they are coded.
    /// `None`: all gradients are exchanged after it.
    pub(crate) overlap: Option<Buckets>,
    /// All-gathers of a few bytes in each exchange of updates: sizes, and whether all workers have decoded
    /// them.
    pub(crate) control: u64,
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
    let buckets = fleet.overlap.map_or(1.0, |each| (parts.plain / each.bytes).ceil().max(1.0));
    let at_once = fleet.overlap.map_or(1.0, |each| each.at_once.max(1) as f64);
    let cost = whole(fleet, exchange, parts);
    // Each bucket is an exchange of its own, and those of one worker follow one another.
    let latencies = (buckets / at_once).ceil() * cost.latency;
    let latency = latencies + cost.control;
    let every = fleet.every.max(1) as f64;
    // The first bucket is there after its share of the backward pass, which waits while buckets are coded,
    // and the last one when the pass ends. So all shares but one hide: of the links, or of the pass if it is
    // shorter.
    let early = 1.0 - 1.0 / buckets;
    let encode = if exchange.is_plain() { 0.0 } else { parts.encode };
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
        return between(fleet.workers as f64, &fleet.link, exchange, parts, fleet.control);
    };
    let members = groups.size.min(fleet.workers) as f64;
    // The plain gradients of a group are reduced inside; one of its workers exchanges them with other groups,
    // and sends the result to all inside.
    let inside = ring(members, &groups.link, parts.plain);
    let back = Cost {
        bandwidth: groups.link.seconds(parts.plain),
        latency: members.log2().ceil() * groups.link.latency,
        received: parts.plain,
        ..Cost::default()
    };
    let outside =
        between((fleet.workers as f64 / members).ceil(), &fleet.link, exchange, parts, fleet.control);
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
fn between(n: f64, link: &Link, exchange: Exchange, parts: &Parts, controls: u64) -> Cost {
    if n < 2.0 {
        return Cost::default();
    }
    let hops = n.log2().ceil();
    match exchange {
        Exchange::Ring => ring(n, link, parts.plain),
        Exchange::Tree => Cost {
            bandwidth: link.seconds(2.0 * parts.plain),
            latency: 2.0 * hops * link.latency,
            sent: 2.0 * parts.plain,
            received: 2.0 * parts.plain,
            ..Cost::default()
        },
        Exchange::Gather => Cost {
            coding: parts.encode + n * parts.add + parts.sum,
            bandwidth: link.seconds((n - 1.0) * parts.update),
            latency: (n - 1.0) * link.latency,
            control: control(n, link, controls),
            sent: (n - 1.0) * parts.update,
            received: (n - 1.0) * parts.update,
        },
        Exchange::SharedSet => shared_set(n, link, parts, controls),
        Exchange::Aggregator => aggregator(n, link, parts),
        Exchange::Shards => {
            // Each worker sends a share of its update to each other one, and a share of the sum back.
            let others = (n - 1.0) / n;
            let moved = others * (parts.update + parts.sum_bytes(n));
            Cost {
                coding: parts.encode + parts.add + (parts.sum + parts.answer) / n + parts.add + parts.sum,
                bandwidth: link.seconds(moved),
                latency: 2.0 * link.latency,
                sent: moved,
                received: moved,
                ..Cost::default()
            }
        }
    }
}

/// Returns the costs of an all-reduce: `2 (n - 1)` hops of one part of `n`, each in two segments. While one
/// travels, the other one is sent, which hides latency behind half of a part in all hops but the last.
fn ring(n: f64, link: &Link, bytes: f64) -> Cost {
    let hops = 2.0 * (n - 1.0);
    let part = link.seconds(bytes / n);
    let hidden = (hops - 1.0).max(0.0) * link.latency.min(part / 2.0);
    Cost {
        bandwidth: hops * part,
        latency: hops * link.latency - hidden,
        sent: hops * bytes / n,
        received: hops * bytes / n,
        ..Cost::default()
    }
}

/// Returns the latency of small all-gathers around the ring.
fn control(n: f64, link: &Link, count: u64) -> f64 {
    count as f64 * (n - 1.0) * link.latency
}

fn shared_set(n: f64, link: &Link, parts: &Parts, controls: u64) -> Cost {
    let Some(set) = &parts.set else { return Cost::default() };
    let values = ring(n, link, set.values);
    Cost {
        // The leader chooses, while the others wait for its positions.
        coding: parts.encode + parts.add + parts.sum,
        bandwidth: values.bandwidth + link.seconds(set.positions),
        latency: values.latency + n.log2().ceil() * link.latency,
        control: control(n, link, controls),
        sent: values.sent + set.positions / n,
        received: values.received + set.positions,
    }
}

fn aggregator(n: f64, link: &Link, parts: &Parts) -> Cost {
    let sum = parts.sum_bytes(n);
    let arriving = link.seconds(n * parts.update);
    Cost {
        // Updates are added while others arrive. The last one, the sum and its encoding come after them, and
        // each worker decodes the answer.
        coding: parts.encode
            + (n * parts.add - arriving).max(parts.add)
            + parts.sum
            + parts.answer
            + parts.add
            + parts.sum,
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
    let near = candidates.iter().enumerate().filter(|(_, one)| one.seconds <= NEARLY * fastest);
    let order = |one: &Candidate| (one.relative_l2, one.seconds);
    let best = near.min_by(|(_, a), (_, b)| {
        let (a, b) = (order(a), order(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    best.map(|(number, _)| number)
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
        Fleet { workers, link, groups: None, compute: 0.5, every: 1, overlap: None, control: 0 }
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
        assert!(close(gather.latency, 0.03));
        let controlled = Fleet { control: 2, ..fleet(4) };
        assert!(close(step(&controlled, Exchange::Gather, &parts()).unwrap().latency, 0.09));
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
        let overlapped = Fleet { overlap: Some(BUCKETS), ..fleet(4) };
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
        let overlapped = Fleet { overlap: Some(BUCKETS), ..said };
        let hops = 3.0 * said.link.latency;
        let latency = |fleet: &Fleet| step(fleet, Exchange::Gather, &parts()).unwrap().latency;
        assert!(close(latency(&said), (1.0 + 3.0) * hops));
        assert!(close(latency(&overlapped), (4.0 + 3.0) * hops));
        let at_once = Buckets { at_once: 3, ..BUCKETS };
        assert!(close(latency(&Fleet { overlap: Some(at_once), ..said }), (2.0 + 3.0) * hops));
    }
}
