//! What one worker does with its update before it becomes bytes. A new compressor is a codec's name, or a [`Sender`].

use gcodec::compress::{Dgc, DgcOptions, Input, Options};
use gcodec::{Block, Codec, Feedback, Positions, Scope, Support, TensorBuf, compress};

use crate::Result;
use crate::optim::Optimiser;

/// Which round of which worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) round: u64,
    pub(crate) worker: u64,
    pub(crate) workers: u64,
}

/// One worker's compressor and its state.
pub(crate) trait Sender {
    /// The blocks of a round's update. `local`: the worker's own optimiser, for schemes that reach into it.
    fn send(
        &mut self,
        turn: Turn,
        update: &[(String, TensorBuf)],
        local: &mut Optimiser,
    ) -> Result<Vec<Block>>;

    /// How positions are written.
    fn positions(&self) -> Positions;
}

fn inputs(update: &[(String, TensorBuf)]) -> Vec<Input<'_>> {
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
    /// Whether the local momentum of what was sent is cleared (SBC, arXiv 1805.08768; DGC, arXiv 1712.01887, section 3.2).
    mask: bool,
}

impl ByCodec {
    pub(crate) fn new(codec: Codec, feedback: bool, mask: bool) -> Self {
        Self { codec, feedback: feedback.then(Feedback::new), mask }
    }
}

impl Sender for ByCodec {
    fn send(
        &mut self,
        turn: Turn,
        update: &[(String, TensorBuf)],
        local: &mut Optimiser,
    ) -> Result<Vec<Block>> {
        let codecs = vec![seeded(self.codec, turn); update.len()];
        let blocks = compress(&inputs(update), &codecs, &Options::default(), self.feedback.as_mut())?;
        if self.mask {
            for (tensor, index) in sent(&blocks, update) {
                local.clear(tensor, index);
            }
        }
        Ok(blocks)
    }

    fn positions(&self) -> Positions {
        self.codec.positions()
    }
}

/// The codec with random numbers of its own for each round, and for each worker where workers' need not agree.
fn seeded(mut codec: Codec, turn: Turn) -> Codec {
    let own = 1 + turn.round * turn.workers + turn.worker;
    match &mut codec {
        Codec::TopK { seed, .. }
        | Codec::Threshold { seed, .. }
        | Codec::Sidco { seed, .. }
        | Codec::Natural { seed }
        | Codec::Qsgd { seed, .. }
        | Codec::Dither { seed, .. }
        | Codec::TernGrad { seed, .. } => *seed = own,
        Codec::RandK { seed, .. } => *seed = 1 + turn.round,
        _ => {}
    }
    codec
}

/// The elements that sparse blocks speak of: tensor and index.
fn sent<'a>(
    blocks: &'a [Block],
    update: &'a [(String, TensorBuf)],
) -> impl Iterator<Item = (usize, usize)> + 'a {
    blocks.iter().flat_map(move |block| {
        let (Scope::Tensor(first) | Scope::Tensors { first, .. } | Scope::Range { tensor: first, .. }) =
            block.scope;
        let positions: &[u64] = match &block.support {
            Support::Sparse(positions) => positions,
            _ => &[],
        };
        let (mut tensor, mut start) = (first as usize, 0);
        positions.iter().map(move |&position| {
            while position - start >= update[tensor].1.view().elements() {
                start += update[tensor].1.view().elements();
                tensor += 1;
            }
            (tensor, (position - start) as usize)
        })
    })
}

/// Deep Gradient Compression.
pub(crate) struct ByDgc(pub(crate) Dgc, Positions);

impl ByDgc {
    pub(crate) fn new(options: DgcOptions) -> Result<Self> {
        let positions = options.positions;
        Ok(Self(Dgc::new(options)?, positions))
    }
}

impl Sender for ByDgc {
    fn send(&mut self, _: Turn, update: &[(String, TensorBuf)], _: &mut Optimiser) -> Result<Vec<Block>> {
        Ok(self.0.step(&inputs(update), &Options::default())?)
    }

    fn positions(&self) -> Positions {
        self.1
    }
}
