//! The learned codec in a closed loop: the paper's three phases, with training of the autoencoder in the
//! second.

use std::sync::Arc;
use std::time::Duration;

use gcodec::TensorBuf;
use gcodec::block::Stored;
use gcodec::compress::Amount;
use gcodec::frame::Manifest;
use gcodec_latent::protocol::{self, Class, Outcome, Phase, Variant};
use gcodec_latent::training::{self, Signals, Trainer};
use gcodec_latent::{Architecture, CodeFormat, Innovation, Layer, Model};

use crate::Result;
use crate::clock;
use crate::group::{Group, Traffic, named};
use crate::model::Tensors;
use crate::optim::Optimiser;

/// Autoencoder of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Autoencoder {
    /// The paper's: the innovation is a channel of the decoders, and codes of different workers attract each
    /// other.
    Paper,
    /// The innovation replaces decoded values, and the loss has no distance of codes.
    Replace,
    /// Its decoders return zeros: the innovation alone, with codes that say nothing.
    Zero,
}

/// Settings of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Lgc {
    pub(crate) autoencoder: Autoencoder,
    pub(crate) density: f64,
    /// Momentum correction of the workers.
    pub(crate) momentum: f32,
    /// Whether the error of the decoded values returns to the workers' residuals.
    pub(crate) feedback: bool,
    /// Steps of the autoencoder's optimizer for each step of the second phase.
    pub(crate) iterations: u64,
    /// Whether the decoders are trained on codes rounded as on the wire.
    pub(crate) rounded: bool,
    /// Training again in the third phase.
    pub(crate) again: Option<Again>,
}

/// Training of the autoencoder in the third phase, from its last weights, on the values that the workers
/// had in the last steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Again {
    /// Steps between two trainings.
    pub(crate) every: u64,
    /// Steps whose values are used. The workers also send these values as f32 then, like all of the second
    /// phase.
    pub(crate) steps: u64,
    /// Steps of the optimizer for each of them.
    pub(crate) iterations: u64,
}

/// Results of the third phase, also of schemes without an autoencoder.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Learned {
    /// Squared error of the receiver's values on the set, and squares of the workers' values.
    lost: f64,
    total: f64,
    /// Time of training the autoencoder.
    pub(crate) training: Duration,
    pub(crate) model_bytes: usize,
}

impl Learned {
    /// Returns the error of the workers' values on the set, relative to their norm.
    pub(crate) fn error(&self) -> f64 {
        (self.lost / self.total).sqrt()
    }

    /// Counts a worker's value and the receiver's.
    pub(crate) fn count(&mut self, wanted: f32, received: f32) {
        let wanted = f64::from(wanted);
        self.lost += (wanted - f64::from(received)).powi(2);
        self.total += wanted.powi(2);
    }
}

/// A group with the learned codec.
pub(crate) struct LearnedGroup {
    manifest: Arc<Manifest>,
    settings: Lgc,
    protocol: protocol::ProtocolOptions,
    group: protocol::Group,
    trainer: Trainer,
    training: training::TrainerOptions,
    receivers: usize,
    round: u64,
    learned: Learned,
    traffic: Traffic,
}

/// Channels of the encoder's first layer; 64 in the paper.
const WIDTH: usize = 32;

impl LearnedGroup {
    /// `dense`, `top_k`: steps of the first two phases.
    pub(crate) fn new(
        manifest: &Arc<Manifest>,
        workers: usize,
        receivers: usize,
        (dense, top_k): (u64, u64),
        settings: Lgc,
    ) -> Result<Self> {
        let innovation = match settings.autoencoder {
            Autoencoder::Paper => Innovation::Channel,
            Autoencoder::Replace | Autoencoder::Zero => Innovation::Replace,
        };
        // All layers are learned: the first one, sent dense as in the paper, would be most of the bytes.
        let classes = vec![Class::Learned; manifest.tensors().len()];
        let protocol = protocol::ProtocolOptions::new(Variant::Server, classes)
            .with_amount(Amount::Density(settings.density))
            .with_innovation_values(Stored::Bf16)
            .with_codes(CodeFormat::Int8)
            .with_momentum(settings.momentum)
            .with_feedback(settings.feedback)
            .with_full_steps(dense)
            .with_top_k_steps(top_k);
        let lambda_sim = if settings.autoencoder == Autoencoder::Paper { 0.5 } else { 0.0 };
        let codes = if settings.rounded { CodeFormat::Int8 } else { CodeFormat::F32 };
        let training = training::TrainerOptions::default().with_lambda_sim(lambda_sim).with_codes(codes);
        let model = Architecture::new(workers, innovation).with_width(WIDTH).init(1)?;
        Ok(Self {
            manifest: Arc::clone(manifest),
            settings,
            group: protocol::Group::new(manifest, &protocol, workers as u64)?,
            protocol,
            trainer: Trainer::new(&model, training.clone())?,
            training,
            receivers,
            round: 0,
            learned: Learned::default(),
            traffic: Traffic::of(workers),
        })
    }

    /// Trains the autoencoder on the signals of the second phase, and gives it to all.
    fn train(&mut self) -> Result<()> {
        let begin = clock::now();
        if self.settings.autoencoder != Autoencoder::Zero {
            let each = match self.settings.again {
                Some(again) if self.learned.model_bytes > 0 => again.iterations,
                _ => self.settings.iterations,
            };
            let all = each * self.trainer.steps() as u64;
            self.trainer.run(all, |done| done as f64 / all as f64)?;
        }
        let model = self.trainer.model()?;
        // A later training uses the values since then alone.
        self.trainer = Trainer::new(&model, self.training.clone())?;
        let model = if self.settings.autoencoder == Autoencoder::Zero { zero(&model)? } else { model };
        self.learned.training += clock::now().saturating_sub(begin);
        self.learned.model_bytes = model.as_bytes().len();
        Ok(self.group.set_model(&Arc::new(model))?)
    }

    /// Trains again where the schedule says so, before a step of the third phase. Every worker gets the
    /// model, whose bytes count as sent by each.
    fn train_again(&mut self) -> Result<()> {
        let done = self.round - self.protocol.full_steps - self.protocol.top_k_steps;
        if let Some(again) = self.settings.again
            && done > 0
            && done.is_multiple_of(again.every)
        {
            self.train()?;
            let model = self.learned.model_bytes as u64;
            self.traffic.sent.iter_mut().for_each(|sent| *sent += model);
        }
        Ok(())
    }

    /// Keeps the workers' values on the set for the next training, and counts their bytes.
    fn keep(&mut self, sums: &[Vec<f32>], outcome: &Outcome) -> Result<()> {
        let done = self.round - self.protocol.full_steps - self.protocol.top_k_steps;
        if let Some(again) = self.settings.again
            && done % again.every + again.steps >= again.every
        {
            let on_set = |sums: &Vec<f32>| outcome.positions.iter().map(|&p| sums[p as usize]).collect();
            let values: Vec<Vec<f32>> = sums.iter().map(on_set).collect();
            self.trainer.push(&Signals { leader: (self.round % sums.len() as u64) as usize, values })?;
            let bytes = 4 * outcome.positions.len() as u64;
            self.traffic.sent.iter_mut().for_each(|sent| *sent += bytes);
        }
        Ok(())
    }

    /// Returns the values of each worker that the outcome of this step has approximated: velocities plus
    /// residuals, all tensors in one row.
    fn sums(&self, updates: &[Tensors]) -> Vec<Vec<f32>> {
        let workers = self.group.workers().iter().zip(updates);
        let sums = workers.map(|(worker, update)| {
            let tensors = self.manifest.tensors().iter().zip(update).enumerate();
            let tensors = tensors.flat_map(|(t, (info, gradient))| {
                let (velocity, residual) = (worker.velocities().get(t), worker.residual().get(&info.name));
                let sum = move |(i, g): (usize, &f32)| {
                    g + velocity.map_or(0.0, |u| self.settings.momentum * u[i])
                        + residual.map_or(0.0, |v| v[i])
                };
                gradient.iter().enumerate().map(sum)
            });
            tensors.collect()
        });
        sums.collect()
    }

    fn count(&mut self, sums: &[Vec<f32>], outcome: &Outcome) {
        for (sums, signal) in sums.iter().zip(&outcome.signals) {
            let wanted = outcome.positions.iter().map(|&position| sums[position as usize]);
            wanted.zip(signal).for_each(|(wanted, &x)| self.learned.count(wanted, x));
        }
    }
}

/// Returns a model whose decoders return zeros.
fn zero(model: &Model) -> Result<Model> {
    let mut decoders: Vec<Vec<Layer>> = model.decoders().iter().map(|d| d.layers().to_vec()).collect();
    for layer in decoders.iter_mut().flatten() {
        if let Layer::Conv(conv) | Layer::Transposed(conv) = layer {
            conv.weights.fill(0.0);
        }
    }
    Ok(Model::new(model.innovation(), model.encoder().layers().to_vec(), decoders)?)
}

impl Group for LearnedGroup {
    fn round(&mut self, updates: Vec<Tensors>, _: &mut [Optimiser]) -> Result<Vec<Tensors>> {
        let phase = self.protocol.phase(self.round);
        if phase == Phase::Learned && self.learned.model_bytes == 0 {
            self.train()?;
        } else if phase == Phase::Learned {
            self.train_again()?;
        }
        let begin = clock::now();
        let sums = if phase == Phase::Learned { self.sums(&updates) } else { Vec::new() };
        let tensors = |update: &Tensors| -> Result<Vec<TensorBuf>> {
            Ok(named(&self.manifest, update)?.into_iter().map(|(_, tensor)| tensor).collect())
        };
        let gradients = updates.iter().map(tensors).collect::<Result<Vec<_>>>()?;
        let (outcome, bytes) = self.group.step(self.round, &gradients)?;
        match phase {
            Phase::TopK => {
                let leader = (self.round % updates.len() as u64) as usize;
                self.trainer.push(&Signals { leader, values: outcome.signals.clone() })?;
            }
            Phase::Learned => {
                self.count(&sums, &outcome);
                self.keep(&sums, &outcome)?;
            }
            Phase::Full => {}
        }
        let each = bytes / updates.len() as u64;
        self.traffic.sent.iter_mut().for_each(|sent| *sent += each);
        self.traffic.received += bytes - each;
        self.traffic.encoding += clock::now().saturating_sub(begin);
        self.round += 1;
        Ok(vec![outcome.mean; self.receivers])
    }

    fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn learned(&self) -> Option<Learned> {
        Some(self.learned)
    }
}
