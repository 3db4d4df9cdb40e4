//! All workers and the receiver in one process.

use std::sync::Arc;

use gcodec::TensorBuf;
use gcodec::frame::Manifest;
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};

use super::{Begun, Outcome, ProtocolOptions, Receiver, Worker};
use crate::error::{Error, Result};
use crate::model::Model;

/// All workers and a receiver in one process, which exchange real frames: for studies, for tests, and to
/// collect an autoencoder's training values from stored gradients.
pub struct Group {
    manifest: Arc<Manifest>,
    workers: Vec<Worker>,
    receiver: Receiver,
}

impl Group {
    /// Returns a group of `world` workers without residuals or model.
    ///
    /// # Errors
    /// The errors of [`Worker::new`] and [`Receiver::new`].
    pub fn new(manifest: &Arc<Manifest>, settings: &ProtocolOptions, world: u64) -> Result<Self> {
        let receiver = Receiver::new(manifest, settings.clone(), world)?;
        let workers = (0..world).map(|rank| Worker::new(manifest, settings.clone(), rank, world));
        Ok(Self { manifest: Arc::clone(manifest), workers: workers.collect::<Result<_>>()?, receiver })
    }

    /// Gives a model to all workers and to the receiver.
    ///
    /// # Errors
    /// The errors of [`Worker::set_model`].
    pub fn set_model(&mut self, model: &Arc<Model>) -> Result<()> {
        self.workers.iter_mut().try_for_each(|w| w.set_model(Arc::clone(model)))?;
        self.receiver.add_model(Arc::clone(model))
    }

    /// Returns the workers.
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// Takes a step with the gradients of each worker, one for each tensor of the manifest. Returns the
    /// outcome, and the bytes of all frames in streams that already have the manifest and the model.
    ///
    /// # Errors
    /// The errors of the calls of [`Worker`] and [`Receiver`]. The step is then given up by all.
    pub fn step(&mut self, step: u64, gradients: &[Vec<TensorBuf>]) -> Result<(Outcome, u64)> {
        let taken = self.try_step(step, gradients);
        if taken.is_err() {
            self.workers.iter_mut().for_each(Worker::abort);
            self.receiver.abort();
        }
        taken
    }

    fn try_step(&mut self, step: u64, gradients: &[Vec<TensorBuf>]) -> Result<(Outcome, u64)> {
        if gradients.len() != self.workers.len() {
            return Err(Error::Input("gradients of another number of workers"));
        }
        let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
        let mut out = Vec::new();
        encoder.manifest(&mut out, &self.manifest);
        let before = encoder.offset();
        let mut set = None;
        for (worker, tensors) in self.workers.iter_mut().zip(gradients) {
            let views: Vec<_> = tensors.iter().map(TensorBuf::view).collect();
            if let Begun::Leader(own) = worker.begin(step, &views)? {
                set = Some(own);
            }
        }
        if let Some(set) = &set {
            let id = encoder.index_set(&mut out, set, &self.manifest, Default::default())?;
            self.workers.iter_mut().try_for_each(|w| w.take_set(set, id))?;
        }
        self.workers.iter().try_for_each(|w| w.send(&mut encoder, &mut out))?;
        let bytes = encoder.offset() - before;
        encoder.finish(&mut out);
        self.receiver.begin(step)?;
        let mut reader = SliceReader::new(&out, gcodec::Limits::default());
        while let Some(event) = reader.next_event()? {
            match event {
                Event::Frame(_, Body::IndexSet(set, id, _)) => self.receiver.take_set(&set, id)?,
                Event::Frame(_, Body::Update(part)) => self.receiver.take(&part)?,
                _ => {}
            }
        }
        let outcome = self.receiver.finish()?;
        self.workers.iter_mut().try_for_each(|w| w.finish_with(&outcome))?;
        Ok((outcome, bytes))
    }
}
