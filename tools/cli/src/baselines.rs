//! Baselines of a model of the learned codec: schemes without an autoencoder, on one step's gradients.
//! Their bytes are those of whole frames in streams that already have the manifest.

use crate::fail::{Failure, Result};
use crate::learned::failure;
use gcodec::block::{Block, BlockOptions, Floats, PendingBlock, Scope, Sparse, Stored, Support, Values};
use gcodec::compress::senders::scalecom::Choice;
use gcodec::compress::senders::shared_set::{Role, SharedSetOptions, SharedSetWorker};
use gcodec::compress::{Amount, Feedback, Input, Options, compress};
use gcodec::frame::{Manifest, UpdateHeader};
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Codec, TensorBuf};
use gcodec_latent::Model;
use gcodec_latent::protocol::{Group, ProtocolOptions};
use std::sync::Arc;

/// One step: the gradients of each worker, and the values of each on the leader's set.
pub(crate) struct Step {
    pub(crate) number: u64,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) gradients: Vec<Vec<TensorBuf>>,
    /// Positions of the set in the row of all tensors.
    pub(crate) positions: Vec<u64>,
    pub(crate) values: Vec<Vec<f32>>,
}

/// Result of a scheme.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    /// Error on the set, relative to the norm of the values there.
    pub(crate) error: f64,
    /// Mean bytes of a worker.
    pub(crate) bytes: f64,
}

/// Results of all schemes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Baselines {
    pub(crate) codes: Figures,
    pub(crate) innovation: Figures,
    pub(crate) shared_set: Figures,
    pub(crate) top_k: Figures,
    /// Density at which top-k has at most the bytes of the shared set.
    pub(crate) density: f64,
    /// Error of the followers' values predicted from the leader's exact ones, by the best coefficient for
    /// each tensor.
    pub(crate) predicted: f64,
}

/// Measures all schemes. `settings`: those of the step's signals.
pub(crate) fn measure(
    step: &Step,
    settings: &ProtocolOptions,
    density: f64,
    model: Model,
) -> Result<Baselines> {
    let leader = (step.number % step.gradients.len() as u64) as usize;
    let shared_set = step.shared_set(density)?;
    // The bytes grow with the density.
    let (mut low, mut high) = (0.0, density);
    for _ in 0..12 {
        let middle = 0.5 * (low + high);
        if step.top_k(middle)?.bytes <= shared_set.bytes { low = middle } else { high = middle }
    }
    Ok(Baselines {
        codes: step.codes(settings, model)?,
        innovation: step.innovation(settings.innovation)?,
        top_k: step.top_k(low)?,
        shared_set,
        density: low,
        predicted: step.predicted(leader),
    })
}

impl Step {
    fn header(&self, sender: usize) -> UpdateHeader {
        let world = self.gradients.len() as u64;
        UpdateHeader::default().with_step(self.number).with_sender(sender as u64).with_world(world)
    }

    /// Returns an encoder that has written the manifest.
    fn encoder(&self) -> Encoder {
        let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
        encoder.manifest(&mut Vec::new(), &self.manifest);
        encoder
    }

    /// Returns the bytes of a worker's update.
    fn bytes<'a, B: Into<PendingBlock<'a>>>(
        &self,
        sender: usize,
        blocks: impl IntoIterator<Item = B>,
    ) -> Result<u64> {
        let blocks = blocks.into_iter().map(B::into);
        let mut encoder = self.encoder();
        let before = encoder.offset();
        encoder.update(&mut Vec::new(), &self.header(sender), &self.manifest, blocks)?;
        Ok(encoder.offset() - before)
    }

    fn scope(&self) -> Scope {
        Scope::Tensors { first: 0, count: self.manifest.tensors().len() as u64 }
    }

    /// Returns the squares of residuals on the set, and those of the values there.
    fn lost(&self, worker: usize, residuals: &Feedback) -> (f64, f64) {
        let mut row = Vec::new();
        for info in self.manifest.tensors() {
            match residuals.get(&info.name) {
                Some(residual) => row.extend_from_slice(residual),
                None => row.resize(row.len() + info.elements() as usize, 0.0),
            }
        }
        let lost = self.positions.iter().map(|&p| f64::from(row[p as usize]).powi(2)).sum();
        (lost, squares(&self.values[worker]))
    }

    /// The leader's set, and all values in powers of two.
    fn shared_set(&self, density: f64) -> Result<Figures> {
        let world = self.gradients.len();
        let settings = SharedSetOptions::new(Choice::TopKOfEach(Amount::Density(density)));
        let worker =
            |rank| SharedSetWorker::new(&self.manifest, self.scope(), rank as u64, world as u64, settings);
        let mut workers = (0..world).map(worker).collect::<gcodec::Result<Vec<_>>>()?;
        let mut led = None;
        for (worker, gradients) in workers.iter_mut().zip(&self.gradients) {
            let views: Vec<_> = gradients.iter().map(TensorBuf::view).collect();
            if let Role::Leader(set) = worker.begin(self.number, &views)? {
                led = Some(set);
            }
        }
        let set = led.ok_or_else(|| Failure::usage("no worker leads"))?;
        let mut encoder = self.encoder();
        let before = encoder.offset();
        let id = encoder.index_set(&mut Vec::new(), &set, &self.manifest, BlockOptions::default())?;
        let mut losses = Vec::new();
        for (w, worker) in workers.iter_mut().enumerate() {
            worker.take_set(&set, id)?;
            let block = (&worker.values()?, BlockOptions::default());
            encoder.update(&mut Vec::new(), &self.header(w), &self.manifest, &[block])?;
            worker.finish()?;
            losses.push(self.lost(w, worker.residuals()));
        }
        Ok(figures(&losses, encoder.offset() - before))
    }

    /// Every worker's own largest elements, in powers of two.
    fn top_k(&self, density: f64) -> Result<Figures> {
        let spec = format!("topk:density={density},values=pow2");
        let codec: Codec = spec.parse().map_err(|e| Failure::usage(format_args!("{spec}: {e}")))?;
        let (mut losses, mut bytes) = (Vec::new(), 0);
        for (w, gradients) in self.gradients.iter().enumerate() {
            let inputs = self.manifest.tensors().iter().zip(gradients).zip(0..);
            let inputs: Vec<_> = inputs
                .map(|((info, g), tensor)| Input { tensor, name: &info.name, view: g.view(), base: None })
                .collect();
            let mut residuals = Feedback::new();
            let codecs = vec![codec.later(w as u64); inputs.len()];
            let blocks = compress(&inputs, &codecs, &Options::default(), Some(&mut residuals))?;
            bytes += self.bytes(w, &blocks)?;
            losses.push(self.lost(w, &residuals));
        }
        Ok(figures(&losses, bytes))
    }

    /// The largest of the values on the set, exact, with their positions.
    fn innovation(&self, part: f64) -> Result<Figures> {
        let (mut losses, mut bytes) = (Vec::new(), 0);
        for (w, values) in self.values.iter().enumerate() {
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()));
            let rest = order.split_off((part * values.len() as f64).round() as usize);
            order.sort_unstable();
            let rest: Vec<f32> = rest.iter().map(|&i| values[i]).collect();
            losses.push((squares(&rest), squares(values)));
            let support =
                Support::Sparse(Sparse { positions: order.iter().map(|&i| self.positions[i]).collect() });
            let kept = order.iter().flat_map(|&i| values[i].to_le_bytes()).collect();
            let values = Values::Floats(Floats { stored: Stored::F32, bytes: kept });
            let block = Block { scope: self.scope(), add: false, support, values };
            bytes += self.bytes(w, [(&block, BlockOptions::default())])?;
        }
        Ok(figures(&losses, bytes))
    }

    /// The innovation, and codes of the leader's values.
    fn codes(&self, settings: &ProtocolOptions, model: Model) -> Result<Figures> {
        let settings = settings.clone().with_full_steps(0).with_top_k_steps(0);
        let world = self.gradients.len() as u64;
        let mut group = Group::new(&self.manifest, &settings, world).map_err(failure)?;
        group.set_model(&Arc::new(model)).map_err(failure)?;
        let (outcome, bytes) = group.step(self.number, &self.gradients).map_err(failure)?;
        let each = self.values.iter().zip(outcome.signals.iter().cycle());
        let lost = each.map(|(values, decoded)| {
            let errors: Vec<f32> = values.iter().zip(decoded).map(|(x, d)| x - d).collect();
            (squares(&errors), squares(values))
        });
        Ok(figures(&lost.collect::<Vec<_>>(), bytes))
    }

    fn predicted(&self, leader: usize) -> f64 {
        let (mut lost, mut total, mut start, mut base) = (0.0, 0.0, 0, 0);
        for info in self.manifest.tensors() {
            base += info.elements();
            let end = self.positions.partition_point(|&p| p < base);
            let of_leader = &self.values[leader][start..end];
            let power = squares(of_leader);
            for (_, row) in self.values.iter().enumerate().filter(|(w, _)| *w != leader) {
                let own = &row[start..end];
                let dot: f64 = own.iter().zip(of_leader).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                let square = squares(own);
                total += square;
                lost += square - if power > 0.0 { dot * dot / power } else { 0.0 };
            }
            start = end;
        }
        (lost / total).sqrt()
    }
}

fn squares(numbers: &[f32]) -> f64 {
    numbers.iter().map(|x| f64::from(*x).powi(2)).sum()
}

/// Returns the figures of workers with these squared errors and squares, and bytes of all of them together.
fn figures(losses: &[(f64, f64)], bytes: u64) -> Figures {
    let (lost, total) = losses.iter().fold((0.0, 0.0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
    Figures { error: (lost / total).sqrt(), bytes: bytes as f64 / losses.len() as f64 }
}
