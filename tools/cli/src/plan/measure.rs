//! Measurements of a codec's sizes, times and error on a user's own gradients and machine.

use super::measured::Measured;
use super::model::{Growth, Parts, SharedSet};
use crate::assign::{self, fitting};
use crate::bench;
use crate::fail::{Failure, Result};
use crate::tensors::{Dump, NamedTensor};
use gcodec::compress::{Input, Kept, NonFinite, Options, pending};
use gcodec::frame::{Manifest, UpdateHeader, UpdatePart};
use gcodec::internal::element::decode_f32s;
use gcodec::reduce::{Reduced, Sum, SumOptions};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Limits, TensorBuf};
use std::sync::Arc;
use std::time::Instant;

/// Updates of a sum whose time is measured; the same ones again if there are fewer gradients.
const ADDED: usize = 4;
/// Share of nonzero elements from which on a sum is sent by the codec itself: its exact values would not be
/// smaller than the plain gradient.
const DENSE: f64 = 0.25;
/// Sends the nonzero elements of a sum unchanged. Smaller ones would be of no consequence.
const EXACT: &str = "threshold:at=1e-37";

/// Returns the costs of gradients that are not compressed.
pub(super) fn plain(dumps: &[Dump]) -> Measured {
    let plain = bench::bytes(&dumps[0]) as f64;
    let (encode, add, sum, answer) = (0.0, 0.0, 0.0, 0.0);
    let growth = Growth(vec![(1.0, 1.0), (2.0, 1.0)]);
    let parts = Parts { plain, update: plain, encode, add, sum, answer, growth, set: None };
    Measured { codec: None, relative_l2: 0.0, parts }
}

/// Measures a codec on the gradients of one step, a dump for each worker, all with the same tensors.
pub(super) fn measure(dumps: &[Dump], codec: Codec, runs: u32) -> Result<Measured> {
    let first = bench::measure(&dumps[0], codec, runs)?;
    let plain = bench::bytes(&dumps[0]) as f64;
    let manifest = assign::manifest_of(dumps[0].tensors.iter().map(|t| (t.name(), t.view())))?;
    let world = ADDED.max(dumps.len());
    let streams: Vec<Stream> = (0..world)
        .map(|sender| {
            // Workers round and draw independently. One sampled set of positions is the same for all.
            let own = if matches!(codec, Codec::RandK(_)) { codec } else { codec.later(sender as u64) };
            Stream::of(&dumps[sender % dumps.len()], own, sender, world)
        })
        .collect::<Result<_>>()?;
    let update =
        streams[..dumps.len()].iter().map(|stream| stream.update as f64).sum::<f64>() / dumps.len() as f64;
    let (one, of_one) = timed(runs, || sum(&manifest, &streams[..1]))?;
    let (_, of_added) = timed(runs, || sum(&manifest, &streams[..ADDED]))?;
    let add = ((of_added - of_one) / (ADDED - 1) as f64).max(0.0);
    let kept = nonzero(&one.tensors()?)?;
    let answers = Answers {
        manifest: &manifest,
        dumps,
        codec,
        is_exact: kept.len() as f64 <= DENSE * kept.elements as f64,
    };
    let (growth, answer) = answers.measure(&streams[..dumps.len()], runs)?;
    Ok(Measured {
        codec: Some(codec.to_string()),
        relative_l2: first.relative_l2,
        parts: Parts {
            plain,
            update,
            encode: plain / 1e9 / first.encode_gb_per_s,
            add,
            sum: (of_one - add).max(0.0),
            answer,
            growth,
            set: shared_set(dumps, codec, &kept, streams[0].update as f64)?,
        },
    })
}

/// One worker's update in a stream of its own.
struct Stream {
    bytes: Vec<u8>,
    /// Bytes of the update, without preamble, manifest and end, which a connection has once.
    update: u64,
}

impl Stream {
    fn of(dump: &Dump, codec: Codec, sender: usize, world: usize) -> Result<Self> {
        let manifest = assign::manifest_of(dump.tensors.iter().map(|t| (t.name(), t.view())))?;
        let inputs: Vec<Input<'_>> = (0u64..)
            .zip(&dump.tensors)
            .map(|(tensor, t)| Input { tensor, name: t.name(), view: t.view(), base: None })
            .collect();
        let codecs: Vec<Codec> = inputs.iter().map(|input| fitting(codec, &input.view)).collect();
        let options = Options::default().with_non_finite(NonFinite::Zero);
        let explained = |e| assign::explain(e, &manifest);
        let header = UpdateHeader::default().with_sender(sender as u64).with_world(world as u64);
        let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
        let mut bytes = Vec::new();
        encoder.manifest(&mut bytes, &manifest);
        let before = encoder.offset();
        let blocks = pending(&inputs, &codecs, &options).map_err(explained)?;
        encoder.update(&mut bytes, &header, &manifest, blocks).map_err(explained)?;
        let update = encoder.offset() - before;
        encoder.finish(&mut bytes);
        Ok(Self { bytes, update })
    }
}

fn limits() -> Limits {
    Limits::default().with_max_alloc_bytes(u64::MAX).with_max_frame_bytes(u64::MAX)
}

/// Returns the mean of updates.
fn sum(manifest: &Arc<Manifest>, streams: &[Stream]) -> Result<Reduced> {
    let mut sum = Sum::new(manifest, SumOptions::default().with_limits(limits()));
    let mut add = |part: &UpdatePart<'_>| sum.add(part, 1.0);
    for stream in streams {
        for event in SliceReader::new(&stream.bytes, limits()) {
            if let Event::Frame(_, Body::Update(part)) = event? {
                add(&part)?;
            }
        }
    }
    Ok(sum.finish(true)?)
}

/// Returns the last result and the shortest seconds.
fn timed<T>(runs: u32, mut run: impl FnMut() -> Result<T>) -> Result<(T, f64)> {
    let mut once = || {
        let start = Instant::now();
        let result = run()?;
        Ok::<_, Failure>((result, start.elapsed().as_secs_f64()))
    };
    let (mut result, mut shortest) = once()?;
    for _ in 1..runs {
        let took;
        (result, took) = once()?;
        shortest = shortest.min(took);
    }
    Ok((result, shortest))
}

/// The sums that an aggregator sends to all workers.
struct Answers<'a> {
    manifest: &'a Arc<Manifest>,
    dumps: &'a [Dump],
    codec: Codec,
    /// Whether the sum is sent exactly, with the positions of all updates. Otherwise the codec compresses it
    /// again.
    is_exact: bool,
}

impl Answers<'_> {
    /// Returns the growth of sums, and the seconds to encode that of all gradients.
    fn measure(&self, streams: &[Stream], runs: u32) -> Result<(Growth, f64)> {
        let mut points = Vec::new();
        let mut seconds = 0.0;
        let mut counts: Vec<usize> = (0..).map(|e| 1 << e).take_while(|n| *n < streams.len()).collect();
        counts.push(streams.len());
        for count in counts {
            let dump = self.dump(sum(self.manifest, &streams[..count])?.into_tensors()?);
            let codec = match self.is_exact {
                true => EXACT.parse().map_err(Failure::usage)?,
                false => self.codec,
            };
            let (stream, took) = timed(runs, || Stream::of(&dump, codec, 0, 1))?;
            points.push((count as f64, stream.update as f64));
            seconds = took;
        }
        let first = points[0].1;
        let mut growth: Vec<_> = points.into_iter().map(|(n, bytes)| (n, bytes / first)).collect();
        if !self.is_exact {
            growth = vec![(1.0, 1.0), (2.0, 1.0)];
        }
        Ok((Growth(growth), seconds))
    }

    fn dump(&self, tensors: Vec<TensorBuf>) -> Dump {
        let mut dump = Dump::default();
        let named = self.dumps[0].tensors.iter().zip(tensors);
        dump.tensors = named.map(|(like, tensor)| NamedTensor::new(like.name().to_owned(), tensor)).collect();
        dump
    }
}

/// Positions of nonzero elements in the row of all tensors.
struct Nonzero {
    positions: Vec<u64>,
    elements: u64,
}

impl Nonzero {
    fn len(&self) -> usize {
        self.positions.len()
    }
}

fn nonzero(tensors: &[TensorBuf]) -> Result<Nonzero> {
    let (mut positions, mut elements) = (Vec::new(), 0u64);
    for tensor in tensors {
        let view = tensor.view();
        each(view, |at, x| {
            if x != 0.0 {
                positions.push(elements + at);
            }
        });
        elements += view.elements();
    }
    Ok(Nonzero { positions, elements })
}

/// Calls `take` with the place and value of each element of a float tensor.
fn each(view: gcodec::TensorView<'_>, mut take: impl FnMut(u64, f32)) {
    let mut values = [0f32; 4096];
    for start in (0..view.elements()).step_by(values.len()) {
        let len = (view.elements() - start).min(values.len() as u64) as usize;
        // Integers are not compressed with loss, and have no part in errors.
        if !view.dtype().is_float()
            || decode_f32s(view.dtype(), view.data(), start, &mut values[..len]).is_err()
        {
            return;
        }
        for (at, value) in (start..).zip(&values[..len]) {
            take(at, *value);
        }
    }
}

/// Returns the costs of the first worker's positions for all workers. Only `topk` with f32 values can use
/// them here, and the error of the others needs their gradients.
fn shared_set(dumps: &[Dump], codec: Codec, kept: &Nonzero, update: f64) -> Result<Option<SharedSet>> {
    let is_exact = matches!(codec, Codec::TopK(topk) if topk.values == Kept::F32);
    if !is_exact || dumps.len() < 2 || kept.len() == 0 {
        return Ok(None);
    }
    let (mut lost, mut total) = (0f64, 0f64);
    for dump in &dumps[1..] {
        let (mut base, mut next) = (0, kept.positions.iter().peekable());
        for tensor in &dump.tensors {
            each(tensor.view(), |at, x| {
                let square = if x.is_finite() { f64::from(x) * f64::from(x) } else { 0.0 };
                total += square;
                if next.next_if(|position| **position == base + at).is_none() {
                    lost += square;
                }
            });
            base += tensor.view().elements();
        }
    }
    let values = 4.0 * kept.len() as f64;
    let relative_l2 = if total == 0.0 { 0.0 } else { (lost / total).sqrt() };
    Ok(Some(SharedSet { positions: (update - values).max(0.0), values, relative_l2 }))
}
