//! Exchange within a group of workers: through real bytes, written by encoders and read by decoders.

use std::sync::Arc;
use std::time::Duration;

use gcodec::block::{Block, BlockOptions, CodedBlock, Scope, Sets};
use gcodec::compress::Options;
use gcodec::compress::senders::{onebit, scalecom};
use gcodec::frame::{Manifest, Reduction, TensorInfo, UpdateHeader};
use gcodec::reduce::{self, Sum, SumOptions};
use gcodec::stream::{Body, Decoder, EncodeOptions, Encoder, Event};
use gcodec::{Dtype, Limits, TensorBuf};

use crate::Result;
use crate::clock;
use crate::learned::Learned;
use crate::model::{Parameter, Tensors};
use crate::optim::Optimiser;
use crate::senders::{Sender, Turn, inputs};
use crate::trouble::{self, Fate, Trouble};

/// Traffic and time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traffic {
    /// Bytes that each worker sent: whole frames, with preamble, manifest and end.
    pub(crate) sent: Vec<u64>,
    /// Bytes that one worker received.
    pub(crate) received: u64,
    /// Time of compressing and encoding, for all workers.
    pub(crate) encoding: Duration,
    /// Time of decoding and summing, for all receivers.
    pub(crate) decoding: Duration,
}

impl Traffic {
    pub(crate) fn of(workers: usize) -> Self {
        Self { sent: vec![0; workers], ..Self::default() }
    }

    /// Returns the mean bytes that a worker sent.
    pub(crate) fn sent_each(&self) -> f64 {
        self.sent.iter().sum::<u64>() as f64 / self.sent.len() as f64
    }
}

/// Workers that exchange updates. A protocol of several messages is its own `Group`.
pub(crate) trait Group {
    /// Runs one round: takes each worker's update, returns the mean as each receiver decodes it.
    fn round(&mut self, updates: Vec<Tensors>, locals: &mut [Optimiser]) -> Result<Vec<Tensors>>;

    /// Returns the traffic so far.
    fn traffic(&self) -> &Traffic;

    /// Ends the streams and checks that every receiver has read them to their ends.
    fn finish(&mut self) -> Result<()>;

    /// Returns the results of an autoencoder, if there is one.
    fn learned(&self) -> Option<Learned> {
        None
    }
}

/// Returns the manifest of a network's tensors.
pub(crate) fn manifest(parameters: &[Parameter]) -> Result<Arc<Manifest>> {
    let info = |p: &Parameter| {
        TensorInfo::new(&p.name, Dtype::F32, p.shape.iter().map(|&d| d as u64).collect::<Vec<_>>())
    };
    Ok(Arc::new(Manifest::new(parameters.iter().map(info).collect())?))
}

/// A stream over a connection needs no index, which serves files.
pub(crate) fn encoder() -> Encoder {
    Encoder::new(EncodeOptions::default().with_index(false))
}

pub(crate) fn named(manifest: &Manifest, update: &Tensors) -> Result<Vec<(String, TensorBuf)>> {
    let tensor = |(info, values): (&TensorInfo, &Vec<f32>)| {
        Ok((info.name.clone(), TensorBuf::from_f32(info.shape.clone(), values)?))
    };
    manifest.tensors().iter().zip(update).map(tensor).collect()
}

pub(crate) fn numbers(tensors: &[TensorBuf]) -> Tensors {
    let f32s = |t: &TensorBuf| t.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    tensors.iter().map(f32s).collect()
}

/// Feeds a decoder in pieces of `piece` bytes, and passes each event to `take`.
pub(crate) fn receive(
    decoder: &mut Decoder,
    bytes: &[u8],
    piece: usize,
    mut take: impl FnMut(Body<'_>) -> Result<()>,
) -> Result<()> {
    for piece in bytes.chunks(piece) {
        decoder.feed(piece);
        while let Some(event) = decoder.next_event()? {
            if let Event::Frame(_, body) = event {
                take(body)?;
            }
        }
    }
    Ok(())
}

/// Returns the size of a receiver's pieces: one receiver gets all bytes at once, others in pieces of odd
/// sizes.
pub(crate) fn piece(receiver: usize) -> usize {
    if receiver == 0 { usize::MAX } else { 1021 * receiver }
}

/// Checks that all receivers have the same bits.
pub(crate) fn agree(means: &[Tensors], round: u64) -> Result<()> {
    let bits = |t: &Tensors| t.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    if means.iter().any(|mean| bits(mean) != bits(&means[0])) {
        return Err(format!("round {round}: two receivers have different sums").into());
    }
    Ok(())
}

/// Every worker sends its stream to every other one, and each sums what it receives.
pub(crate) struct Gather {
    manifest: Arc<Manifest>,
    senders: Vec<Box<dyn Sender>>,
    encoders: Vec<Encoder>,
    /// Decoders: for each receiver one per sender's stream.
    receivers: Vec<Vec<Decoder>>,
    /// Set if a server sums sparse blocks and sends one stream back to all.
    server: Option<(Encoder, Decoder)>,
    trouble: Option<Trouble>,
    /// Streams of the last round that arrive in the next one, with their senders.
    late: Vec<(usize, Vec<u8>)>,
    /// The lost updates, which their workers add to the next ones.
    owed: Vec<Option<Tensors>>,
    round: u64,
    traffic: Traffic,
}

impl Gather {
    pub(crate) fn new(
        manifest: &Arc<Manifest>,
        senders: Vec<Box<dyn Sender>>,
        receivers: usize,
        server: bool,
        trouble: Option<Trouble>,
    ) -> Self {
        let workers = senders.len();
        let decoders = || senders.iter().map(|_| Decoder::new(Limits::default())).collect();
        Self {
            manifest: Arc::clone(manifest),
            encoders: senders.iter().map(|_| encoder()).collect(),
            receivers: (0..receivers).map(|_| decoders()).collect(),
            server: server.then(|| (encoder(), Decoder::new(Limits::default()))),
            trouble,
            late: Vec::new(),
            owed: vec![None; workers],
            senders,
            round: 0,
            traffic: Traffic::of(workers),
        }
    }

    fn header(&self) -> UpdateHeader {
        UpdateHeader::default().with_step(self.round).with_world(self.senders.len() as u64)
    }

    /// Returns the bytes of a server's answer.
    fn merge(&mut self, blocks: &[Vec<CodedBlock>]) -> Result<()> {
        let header = self.header().with_contributors(blocks.len() as u64).with_reduction(Reduction::Sum);
        let Some((encoder, decoder)) = &mut self.server else { return Ok(()) };
        let mut merged = Vec::new();
        for i in 0..blocks[0].len() {
            let same: Vec<&Block> = blocks.iter().map(|b| &b[i].block).collect();
            merged.push(reduce::merge(&same, &self.manifest.space(same[0].scope, 0)?)?);
        }
        let mut out = Vec::new();
        encoder.update(&mut out, &header, &self.manifest, &merged)?;
        self.traffic.received += out.len() as u64;
        receive(decoder, &out, usize::MAX, |_| Ok(()))
    }
}

impl Gather {
    /// Returns the update that receivers decode from these blocks.
    fn decoded(&self, blocks: &[CodedBlock], header: &UpdateHeader) -> Result<Tensors> {
        let (mut out, mut sum) = (Vec::new(), Sum::new(&self.manifest, SumOptions::default()));
        encoder().update(&mut out, header, &self.manifest, blocks)?;
        receive(&mut Decoder::new(Limits::default()), &out, usize::MAX, |body| match body {
            Body::Update(part) => Ok(sum.add(&part, 1.0)?),
            _ => Ok(()),
        })?;
        Ok(numbers(&sum.finish(false)?.tensors()?))
    }

    /// Returns the mean over all workers of the streams that receiver `r` gets: late ones of the last round,
    /// and those of this one.
    fn mean(&mut self, r: usize, late: &[(usize, Vec<u8>)], streams: &[(usize, Vec<u8>)]) -> Result<Tensors> {
        if self.trouble.is_none() {
            return self.sum(r, streams, true);
        }
        let mut total = self.sum(r, late, false)?;
        trouble::add(&mut total, &self.sum(r, streams, false)?);
        let share = 1.0 / self.senders.len() as f32;
        total.iter_mut().flatten().for_each(|x| *x *= share);
        Ok(total)
    }

    /// Returns the sum or mean of the streams of a round, as receiver `r` decodes them.
    fn sum(&mut self, r: usize, streams: &[(usize, Vec<u8>)], mean: bool) -> Result<Tensors> {
        let mut sum = Sum::new(&self.manifest, SumOptions::default());
        // Streams arrive in any order.
        let order = (0..streams.len()).map(|i| if r.is_multiple_of(2) { i } else { streams.len() - 1 - i });
        for (sender, stream) in order.map(|i| &streams[i]) {
            receive(&mut self.receivers[r][*sender], stream, piece(r), |body| {
                match body {
                    Body::Update(part) => sum.add(&part, 1.0)?,
                    Body::Manifest(_) => {}
                    other => return Err(format!("an unexpected frame: {other:?}").into()),
                }
                Ok(())
            })?;
        }
        if streams.is_empty() {
            return Ok(self.manifest.tensors().iter().map(|t| vec![0.0; t.elements() as usize]).collect());
        }
        Ok(numbers(&sum.finish(mean)?.tensors()?))
    }
}

impl Group for Gather {
    fn round(&mut self, updates: Vec<Tensors>, locals: &mut [Optimiser]) -> Result<Vec<Tensors>> {
        let begin = clock::now();
        let (mut streams, mut late, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        let workers = self.senders.len() as u64;
        for (w, mut update) in updates.into_iter().enumerate() {
            let fate = self.trouble.map_or(Fate::OnTime, |trouble| trouble.fate(self.round, w));
            if fate == Fate::Gone {
                continue;
            }
            if let Some(owed) = self.owed[w].take() {
                trouble::add(&mut update, &owed);
            }
            let turn = Turn { round: self.round, worker: w as u64, workers };
            let update = named(&self.manifest, &update)?;
            let sender = &mut self.senders[w];
            let blocks = sender.send(turn, &update, &mut locals[w])?;
            let mut out = Vec::new();
            let header = self.header().with_sender(w as u64);
            self.encoders[w].update(&mut out, &header, &self.manifest, &blocks)?;
            self.traffic.sent[w] += out.len() as u64;
            match fate {
                Fate::Late => late.push((w, out)),
                Fate::Lost if self.trouble.is_some_and(|trouble| trouble.taken_back) => {
                    self.owed[w] = Some(self.decoded(&blocks, &header)?);
                }
                Fate::Lost => {}
                _ => streams.push((w, out)),
            }
            sent.push(blocks);
        }
        let encoded = clock::now();
        let before = std::mem::replace(&mut self.late, late);
        let receivers = 0..self.receivers.len();
        let means = receivers.map(|r| self.mean(r, &before, &streams)).collect::<Result<Vec<_>>>()?;
        self.traffic.decoding += clock::now().saturating_sub(encoded);
        self.traffic.encoding += encoded.saturating_sub(begin);
        match self.server {
            Some(_) => self.merge(&sent)?,
            None => self.traffic.received += streams.iter().skip(1).map(|(_, s)| s.len() as u64).sum::<u64>(),
        }
        agree(&means, self.round)?;
        self.round += 1;
        Ok(means)
    }

    fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    fn finish(&mut self) -> Result<()> {
        // Receivers without all frames of a stream cannot compare its end.
        match self.trouble {
            Some(_) => Ok(()),
            None => finish_all(&mut self.encoders, &mut self.receivers, &mut self.traffic.sent),
        }
    }
}

/// ScaleCom: the leader's set and all workers' values on it go to a server, which adds them without
/// expanding them and sends the set and the sum to all.
pub(crate) struct ScaleCom {
    manifest: Arc<Manifest>,
    workers: Vec<scalecom::ScaleComWorker>,
    up: Vec<(Encoder, Decoder)>,
    down: Encoder,
    receivers: Vec<Decoder>,
    scope: Scope,
    round: u64,
    traffic: Traffic,
}

impl ScaleCom {
    pub(crate) fn new(
        manifest: &Arc<Manifest>,
        workers: usize,
        receivers: usize,
        settings: scalecom::ScaleComOptions,
    ) -> Result<Self> {
        let scope = Scope::Tensors { first: 0, count: manifest.tensors().len() as u64 };
        let worker = |rank| scalecom::ScaleComWorker::new(manifest, scope, rank, workers as u64, settings);
        // One set for each round, all in one segment.
        let limits = Limits::default().with_max_definitions(1 << 20);
        let decoder = || Decoder::new(limits.clone());
        Ok(Self {
            manifest: Arc::clone(manifest),
            workers: (0..workers as u64).map(worker).collect::<gcodec::Result<_>>()?,
            up: (0..workers).map(|_| (encoder(), decoder())).collect(),
            down: encoder(),
            receivers: (0..receivers).map(|_| decoder()).collect(),
            scope,
            round: 0,
            traffic: Traffic::of(workers),
        })
    }
}

impl Group for ScaleCom {
    fn round(&mut self, updates: Vec<Tensors>, _: &mut [Optimiser]) -> Result<Vec<Tensors>> {
        let (begin, options) = (clock::now(), BlockOptions::default());
        let header = UpdateHeader::default().with_step(self.round).with_world(self.workers.len() as u64);
        let mut down = Vec::new();
        // Every worker begins; the leader's set goes to the server, and from there to all.
        let mut led = None;
        for (w, update) in updates.iter().enumerate() {
            let update = named(&self.manifest, update)?;
            let views: Vec<_> = update.iter().map(|(_, t)| t.view()).collect();
            if let scalecom::Role::Leader(set) = self.workers[w].begin(self.round, &views)? {
                led = Some((w, set));
            }
        }
        let (leader, set) = led.ok_or("no worker leads")?;
        let (mut out, mut found) = (Vec::new(), None);
        self.up[leader].0.index_set(&mut out, &set, &self.manifest, options)?;
        self.traffic.sent[leader] += out.len() as u64;
        receive(&mut self.up[leader].1, &out, usize::MAX, |body| {
            if let Body::IndexSet(set, id, _) = body {
                found = Some((set, id));
            }
            Ok(())
        })?;
        let (set, id) = found.ok_or("the index set did not arrive")?;
        self.down.index_set(&mut down, &set, &self.manifest, options)?;
        let mut blocks: Vec<Block> = Vec::new();
        let mut sets = Sets::new();
        for (w, worker) in self.workers.iter_mut().enumerate() {
            let (encoder, decoder) = &mut self.up[w];
            worker.take_set(&set, id)?;
            if w != leader {
                encoder.add_index_set(id, &set, &self.manifest)?;
                decoder.add_index_set(id, &set, &self.manifest)?;
            }
            let (block, header) = (worker.values()?, header.clone().with_sender(w as u64));
            worker.finish()?;
            let mut out = Vec::new();
            encoder.update(&mut out, &header, &self.manifest, &[(&block, options)])?;
            self.traffic.sent[w] += out.len() as u64;
            receive(decoder, &out, usize::MAX, |body| {
                if let Body::Update(part) = body {
                    blocks.extend(part.decode_all()?);
                    sets = part.sets().clone();
                }
                Ok(())
            })?;
        }
        let space = self.manifest.space(self.scope, 0)?;
        let mut sum = blocks.first().ok_or("no worker's values arrived")?.clone();
        for block in &blocks[1..] {
            sum = reduce::add(&sum, block, &space, &sets)?;
        }
        let header = header.with_contributors(blocks.len() as u64).with_reduction(Reduction::Sum);
        self.down.update(&mut down, &header, &self.manifest, &[(&sum, options)])?;
        self.traffic.received += down.len() as u64;
        let encoded = clock::now();
        let mut means = Vec::new();
        for (r, decoder) in self.receivers.iter_mut().enumerate() {
            let mut sum = Sum::new(&self.manifest, SumOptions::default());
            receive(decoder, &down, piece(r), |body| match body {
                Body::Update(part) => Ok(sum.add(&part, 1.0)?),
                _ => Ok(()),
            })?;
            means.push(numbers(&sum.finish(true)?.tensors()?));
        }
        self.traffic.encoding += encoded.saturating_sub(begin);
        self.traffic.decoding += clock::now().saturating_sub(encoded);
        agree(&means, self.round)?;
        self.round += 1;
        Ok(means)
    }

    fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    fn finish(&mut self) -> Result<()> {
        for (w, (encoder, decoder)) in self.up.iter_mut().enumerate() {
            finish(encoder, [decoder], &mut self.traffic.sent[w])?;
        }
        finish(&mut self.down, &mut self.receivers, &mut self.traffic.received)
    }
}

/// 1-bit Adam: the workers' updates go to a server, whose compressed answer goes to all. The result of a
/// round is a weight change rather than a mean of gradients.
pub(crate) struct OneBit {
    manifest: Arc<Manifest>,
    workers: Vec<onebit::OneBitWorker>,
    server: onebit::OneBitServer,
    up: Vec<(Encoder, Decoder)>,
    down: Encoder,
    receivers: Vec<Decoder>,
    round: u64,
    traffic: Traffic,
}

impl OneBit {
    pub(crate) fn new(
        manifest: &Arc<Manifest>,
        workers: usize,
        receivers: usize,
        settings: onebit::OneBitOptions,
    ) -> Result<Self> {
        let decoder = || Decoder::new(Limits::default());
        Ok(Self {
            manifest: Arc::clone(manifest),
            workers: vec![onebit::OneBitWorker::new(settings)?; workers],
            server: onebit::OneBitServer::new(settings)?,
            up: (0..workers).map(|_| (encoder(), decoder())).collect(),
            down: encoder(),
            receivers: (0..receivers).map(|_| decoder()).collect(),
            round: 0,
            traffic: Traffic::of(workers),
        })
    }

    /// Returns the sum, or the mean, of the updates in `streams`, equal on every machine.
    fn decoded(
        &mut self,
        streams: &[(usize, &[u8])],
        receiver: Option<usize>,
    ) -> Result<Vec<(String, TensorBuf)>> {
        let mut sum = Sum::new(&self.manifest, SumOptions::default());
        for (from, bytes) in streams {
            let decoder = match receiver {
                Some(r) => &mut self.receivers[r],
                None => &mut self.up[*from].1,
            };
            receive(decoder, bytes, piece(receiver.unwrap_or(0)), |body| match body {
                Body::Update(part) => Ok(sum.add(&part, 1.0)?),
                _ => Ok(()),
            })?;
        }
        let tensors = sum.finish(true)?.tensors()?;
        Ok(self.manifest.tensors().iter().map(|info| info.name.clone()).zip(tensors).collect())
    }
}

impl Group for OneBit {
    fn round(&mut self, updates: Vec<Tensors>, _: &mut [Optimiser]) -> Result<Vec<Tensors>> {
        let (begin, options) = (clock::now(), Options::default());
        let header = UpdateHeader::default().with_step(self.round).with_world(self.workers.len() as u64);
        let mut streams = Vec::new();
        for (w, update) in updates.iter().enumerate() {
            let update = named(&self.manifest, update)?;
            let blocks = self.workers[w].message(&inputs(&update), &options)?;
            let mut out = Vec::new();
            let header = header.clone().with_sender(w as u64);
            self.up[w].0.update(&mut out, &header, &self.manifest, &blocks)?;
            self.traffic.sent[w] += out.len() as u64;
            streams.push(out);
        }
        let borrowed: Vec<(usize, &[u8])> = streams.iter().map(Vec::as_slice).enumerate().collect();
        let means = self.decoded(&borrowed, None)?;
        let blocks = self.server.message(&inputs(&means), &options)?;
        let mut down = Vec::new();
        // The server's own update, which is none of the workers'.
        let header = header.with_sender(self.workers.len() as u64);
        self.down.update(&mut down, &header, &self.manifest, &blocks)?;
        self.traffic.received += down.len() as u64;
        let encoded = clock::now();
        let (mut moves, mut answer) = (Vec::new(), Vec::new());
        for r in 0..self.receivers.len() {
            answer = self.decoded(&[(0, &down)], Some(r))?;
            moves.push(self.workers[r].apply(&inputs(&answer))?);
        }
        // The other workers would decode the same bits.
        for worker in &mut self.workers[self.receivers.len()..] {
            worker.apply(&inputs(&answer))?;
        }
        self.traffic.encoding += encoded.saturating_sub(begin);
        self.traffic.decoding += clock::now().saturating_sub(encoded);
        agree(&moves, self.round)?;
        self.round += 1;
        Ok(moves)
    }

    fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    fn finish(&mut self) -> Result<()> {
        for (w, (encoder, decoder)) in self.up.iter_mut().enumerate() {
            finish(encoder, [decoder], &mut self.traffic.sent[w])?;
        }
        finish(&mut self.down, &mut self.receivers, &mut self.traffic.received)
    }
}

/// Ends a stream and checks that all readers have read it to its end.
pub(crate) fn finish<'d>(
    encoder: &mut Encoder,
    decoders: impl IntoIterator<Item = &'d mut Decoder>,
    bytes: &mut u64,
) -> Result<()> {
    let mut out = Vec::new();
    encoder.finish(&mut out);
    *bytes += out.len() as u64;
    for decoder in decoders {
        receive(decoder, &out, usize::MAX, |_| Ok(()))?;
        decoder.finish()?;
    }
    Ok(())
}

/// Ends the streams of all senders. Each of the receivers has a decoder for each sender.
pub(crate) fn finish_all(
    encoders: &mut [Encoder],
    receivers: &mut [Vec<Decoder>],
    sent: &mut [u64],
) -> Result<()> {
    for (s, (encoder, sent)) in encoders.iter_mut().zip(sent).enumerate() {
        finish(encoder, receivers.iter_mut().map(|decoders| &mut decoders[s]), sent)?;
    }
    Ok(())
}
