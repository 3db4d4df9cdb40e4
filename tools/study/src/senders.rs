//! Senders: one worker's compression of its update. A new compressor is a codec's name, or a [`Sender`].

use gcodec::block::CodedBlock;
use gcodec::compress::senders::{DeMo, Dgc, DgcOptions, SbcSender, mask_momenta};
use gcodec::compress::{Feedback, Input, Options, compress};
use gcodec::{Codec, TensorBuf};

use crate::Result;
use crate::optim::Optimiser;

/// Round and worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) round: u64,
    pub(crate) worker: u64,
    pub(crate) workers: u64,
}

/// One worker's compressor and its state.
pub(crate) trait Sender {
    /// Returns the blocks of a round's update. `local`: the worker's own optimiser, for schemes that modify
    /// it.
    fn send(
        &mut self,
        turn: Turn,
        update: &[(String, TensorBuf)],
        local: &mut Optimiser,
    ) -> Result<Vec<CodedBlock>>;
}

/// Returns a compressor's inputs for named tensors.
pub(crate) fn inputs(update: &[(String, TensorBuf)]) -> Vec<Input<'_>> {
    update
        .iter()
        .enumerate()
        .map(|(i, u)| Input { tensor: i as u64, name: &u.0, view: u.1.view(), base: None })
        .collect()
}

/// A codec, with error feedback or without.
pub(crate) struct ByCodec {
    codec: Codec,
    feedback: Option<Feedback>,
    /// Rounds that are sent as `raw` before.
    dense: u64,
}

impl ByCodec {
    pub(crate) fn new(codec: Codec, feedback: bool) -> Self {
        Self { codec, feedback: feedback.then(Feedback::new), dense: 0 }
    }

    /// Sends the first rounds as `raw`.
    pub(crate) fn after(self, dense: u64) -> Self {
        Self { dense, ..self }
    }
}

impl Sender for ByCodec {
    fn send(
        &mut self,
        turn: Turn,
        update: &[(String, TensorBuf)],
        _: &mut Optimiser,
    ) -> Result<Vec<CodedBlock>> {
        // New random numbers for each round, and for each worker unless workers must agree.
        let later = match self.codec {
            Codec::RandK { .. } => turn.round,
            _ => turn.round * turn.workers + turn.worker,
        };
        let codec = if turn.round < self.dense { Codec::Raw } else { self.codec.later(later) };
        let codecs = vec![codec; update.len()];
        Ok(compress(&inputs(update), &codecs, &Options::default(), self.feedback.as_mut())?)
    }
}

/// Sparse Binary Compression with momentum masking. Its delay is the number of local steps, whose sum it
/// receives.
pub(crate) struct BySbc(pub(crate) SbcSender);

impl Sender for BySbc {
    fn send(
        &mut self,
        _: Turn,
        update: &[(String, TensorBuf)],
        local: &mut Optimiser,
    ) -> Result<Vec<CodedBlock>> {
        let blocks = self.0.step(&inputs(update), &Options::default())?.ok_or("a delay of its own")?;
        mask_momenta(&blocks, &mut local.momenta())?;
        Ok(blocks)
    }
}

/// DeMo's decoupled momentum.
pub(crate) struct ByDeMo(pub(crate) DeMo);

impl Sender for ByDeMo {
    fn send(
        &mut self,
        _: Turn,
        update: &[(String, TensorBuf)],
        _: &mut Optimiser,
    ) -> Result<Vec<CodedBlock>> {
        Ok(self.0.step(&inputs(update), &Options::default())?)
    }
}

/// Deep Gradient Compression.
pub(crate) struct ByDgc(pub(crate) Dgc);

impl ByDgc {
    pub(crate) fn new(options: DgcOptions) -> Result<Self> {
        Ok(Self(Dgc::new(options)?))
    }
}

impl Sender for ByDgc {
    fn send(
        &mut self,
        _: Turn,
        update: &[(String, TensorBuf)],
        _: &mut Optimiser,
    ) -> Result<Vec<CodedBlock>> {
        Ok(self.0.step(&inputs(update), &Options::default())?)
    }
}
