//! Shared sets: the leader's positions, every worker's own values, in streams from every worker to every
//! other one.

use std::sync::Arc;

use gcodec::block::{BlockOptions, Scope};
use gcodec::compress::senders::shared_set::{Role, SharedSetOptions, SharedSetWorker};
use gcodec::frame::{Manifest, UpdateHeader};
use gcodec::reduce::{Sum, SumOptions};
use gcodec::stream::{Body, Decoder, Encoder};
use gcodec::{Codec, Limits, TensorBuf};

use crate::Result;
use crate::clock;
use crate::group::{Group, Traffic, agree, encoder, finish_all, named, numbers, piece, receive};
use crate::model::Tensors;
use crate::optim::Optimiser;
use crate::senders::inputs;

/// Workers of a shared set. They send the first steps as `raw`.
pub(crate) struct SharedSets {
    manifest: Arc<Manifest>,
    dense: u64,
    workers: Vec<SharedSetWorker>,
    encoders: Vec<Encoder>,
    /// Decoders: for each receiver one per worker's stream.
    receivers: Vec<Vec<Decoder>>,
    round: u64,
    traffic: Traffic,
}

impl SharedSets {
    pub(crate) fn new(
        manifest: &Arc<Manifest>,
        workers: usize,
        receivers: usize,
        dense: u64,
        settings: SharedSetOptions,
    ) -> Result<Self> {
        let scope = Scope::Tensors { first: 0, count: manifest.tensors().len() as u64 };
        let worker = |rank| SharedSetWorker::new(manifest, scope, rank, workers as u64, settings);
        // One set for each round, all in one segment.
        let limits = Limits::default().with_max_definitions(1 << 20);
        let decoders = |_| (0..workers).map(|_| Decoder::new(limits.clone())).collect();
        Ok(Self {
            manifest: Arc::clone(manifest),
            dense,
            workers: (0..workers as u64).map(worker).collect::<gcodec::Result<_>>()?,
            encoders: (0..workers).map(|_| encoder()).collect(),
            receivers: (0..receivers).map(decoders).collect(),
            round: 0,
            traffic: Traffic::of(workers),
        })
    }

    /// Returns what each worker sends in this round, and the leader.
    fn send(&mut self, updates: &[Tensors]) -> Result<(Vec<Vec<u8>>, usize)> {
        let header = UpdateHeader::default().with_step(self.round).with_world(self.workers.len() as u64);
        let (manifest, options) = (Arc::clone(&self.manifest), BlockOptions::default());
        let mut streams = vec![Vec::new(); updates.len()];
        let updates = updates.iter().map(|update| named(&manifest, update)).collect::<Result<Vec<_>>>()?;
        let mut led = None;
        if self.round >= self.dense {
            for (w, (worker, update)) in self.workers.iter_mut().zip(&updates).enumerate() {
                let views: Vec<_> = update.iter().map(|(_, t): &(String, TensorBuf)| t.view()).collect();
                if let Role::Leader(set) = worker.begin(self.round, &views)? {
                    let id = self.encoders[w].index_set(&mut streams[w], &set, &manifest, options)?;
                    led = Some((w, set, id));
                }
            }
        }
        for (w, update) in updates.iter().enumerate() {
            let header = header.clone().with_sender(w as u64);
            let (encoder, out) = (&mut self.encoders[w], &mut streams[w]);
            if let Some((leader, set, id)) = &led {
                if w != *leader {
                    encoder.add_index_set(*id, set, &manifest)?;
                }
                self.workers[w].take_set(set, *id)?;
                let block = self.workers[w].values()?;
                self.workers[w].finish()?;
                encoder.update(out, &header, &manifest, &[(&block, options)])?;
            } else {
                let raw = vec![Codec::Raw; update.len()];
                let blocks = gcodec::compress::compress(&inputs(update), &raw, &Default::default(), None)?;
                encoder.update(out, &header, &manifest, &blocks)?;
            }
            self.traffic.sent[w] += out.len() as u64;
        }
        Ok((streams, led.map_or(0, |(leader, ..)| leader)))
    }
}

impl Group for SharedSets {
    fn round(&mut self, updates: Vec<Tensors>, _: &mut [Optimiser]) -> Result<Vec<Tensors>> {
        let begin = clock::now();
        let (streams, leader) = self.send(&updates)?;
        let encoded = clock::now();
        let mut means = Vec::new();
        for (r, decoders) in self.receivers.iter_mut().enumerate() {
            let mut sum = Sum::new(&self.manifest, SumOptions::default());
            let mut found = None;
            // The leader's stream has the set; the others arrive in any order after it.
            let others = (0..streams.len()).filter(|&s| s != leader);
            let others: Vec<usize> = if r % 2 == 0 { others.collect() } else { others.rev().collect() };
            for s in std::iter::once(leader).chain(others) {
                if let Some((set, id)) = found.as_ref().filter(|_| s != leader) {
                    decoders[s].add_index_set(*id, set, &self.manifest)?;
                }
                receive(&mut decoders[s], &streams[s], piece(r), |body| {
                    match body {
                        Body::Update(part) => sum.add(&part, 1.0)?,
                        Body::IndexSet(set, id, _) => found = Some((*set, id)),
                        _ => {}
                    }
                    Ok(())
                })?;
            }
            means.push(numbers(&sum.finish(true)?.tensors()?));
        }
        self.traffic.decoding += clock::now().saturating_sub(encoded);
        self.traffic.encoding += encoded.saturating_sub(begin);
        self.traffic.received += streams[1..].iter().map(|s| s.len() as u64).sum::<u64>();
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
}
