//! A worker: its residuals, its turn to choose the set, and what it sends in each phase.

use std::collections::HashMap;
use std::sync::Arc;

use gcodec::block::{
    Block, BlockOptions, CodedBlock, Floats, Positions, Scope, Set, SetId, Sparse, Support, Values,
};
use gcodec::compress::codecs::TopK;
use gcodec::compress::senders::mask_momenta;
use gcodec::compress::senders::scalecom::{Choice, Role, ScaleComOptions, ScaleComWorker};
use gcodec::compress::{Codec, Feedback, Input, Kept, Options, Selection, compress};
use gcodec::frame::{IndexSet, Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::element::{decode_f32s, encode_f32s};
use gcodec::stream::Encoder;
use gcodec::tensor::{TensorBuf, TensorView};

use super::{Class, Outcome, Phase, ProtocolOptions, Shared, Variant, space_of};
use crate::codes::{encode_latent, floats};
use crate::error::{Error, Result};
use crate::model::Model;

/// Suffix of velocities in a checkpoint.
const MOMENTUM: &str = "#momentum";

/// A worker's next action in a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Begun {
    /// Phase 1: it sends at once.
    Full,
    /// It leads: it sends this set ([`Encoder::index_set`]), and passes it to [`Worker::take_set`] like all
    /// workers.
    Leader(IndexSet),
    /// It waits for the set of this worker.
    Follower {
        /// Number of the leader.
        leader: u64,
    },
}

/// One worker's state.
///
/// Memory: 4 bytes per element of a learned tensor between steps, 8 within one, and 4 per element of a top-k
/// tensor.
pub struct Worker {
    manifest: Arc<Manifest>,
    settings: ProtocolOptions,
    rank: u64,
    world: u64,
    scope: Scope,
    learned: ScaleComWorker,
    /// Residuals of the top-k tensors.
    feedback: Feedback,
    /// Velocity of each element, by tensor; empty without momentum.
    velocities: Vec<Vec<f32>>,
    model: Option<Arc<Model>>,
    round: Option<Round>,
}

struct Round {
    step: u64,
    phase: Phase,
    /// Blocks of the other tensors, and their residuals after sending.
    blocks: Vec<CodedBlock>,
    feedback: Feedback,
    velocities: Vec<Vec<f32>>,
    /// Whether each tensor of the manifest takes part.
    used: Vec<bool>,
    shared: Option<Shared>,
    /// Values on the set in phase 3.
    numbers: Vec<f32>,
    /// Blocks of the learned tensors once the set is known: the leader's codes for the server, then the
    /// worker's own block.
    common: Option<Block>,
    own: Option<Block>,
}

impl Worker {
    /// Returns worker `rank` of `world`, without residual or model.
    ///
    /// # Errors
    /// [`Error::Input`] or [`Error::Gcodec`] for settings that are out of range or do not fit the manifest.
    pub fn new(manifest: &Arc<Manifest>, settings: ProtocolOptions, rank: u64, world: u64) -> Result<Self> {
        let scope = settings.check(manifest)?;
        let choice = ScaleComOptions::new(Choice::TopKOfEach(settings.amount)).with_values(Kept::F32);
        let learned = ScaleComWorker::new(manifest, scope, rank, world, choice)?;
        let (manifest, feedback, velocities) = (Arc::clone(manifest), Feedback::new(), Vec::new());
        Ok(Self {
            manifest,
            settings,
            rank,
            world,
            scope,
            learned,
            feedback,
            velocities,
            model: None,
            round: None,
        })
    }

    /// Takes the model of phase 3.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`] within a step; [`Error::Input`] if the model has another variant or number of
    /// workers.
    pub fn set_model(&mut self, model: Arc<Model>) -> Result<()> {
        if self.round.is_some() {
            return Err(Error::OutOfTurn("the model cannot change inside a step"));
        }
        self.settings.check_model(&model, self.world)?;
        self.model = Some(model);
        Ok(())
    }

    /// Returns the residuals of the learned tensors by name. They are never sent.
    pub fn residual(&self) -> &Feedback {
        self.learned.memory()
    }

    /// Returns the residuals of the top-k tensors by name.
    pub fn top_k_residual(&self) -> &Feedback {
        &self.feedback
    }

    /// Returns the velocity of each element by tensor: momentum times the last velocity, plus the gradient.
    /// Empty without momentum, and before the first step.
    pub fn velocities(&self) -> &[Vec<f32>] {
        &self.velocities
    }

    /// Returns the residuals of all tensors by name, and the velocities by name and `#momentum`, for a
    /// checkpoint. The model is not among them.
    pub fn save(&self) -> Vec<(String, TensorBuf)> {
        let velocity = |(info, row): (&TensorInfo, &Vec<f32>)| {
            let tensor = TensorBuf::from_f32(info.shape.clone(), row).ok()?;
            Some((format!("{}{MOMENTUM}", info.name), tensor))
        };
        let velocities = self.manifest.tensors().iter().zip(&self.velocities).filter_map(velocity);
        self.learned.memory().save().into_iter().chain(self.feedback.save()).chain(velocities).collect()
    }

    /// Restores what [`Self::save`] returned.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`] within a step; [`Error::Input`] or [`Error::Gcodec`] if an entry belongs to no
    /// tensor, or a velocity has another shape. The state is unchanged then.
    pub fn load(&mut self, tensors: impl IntoIterator<Item = (String, TensorBuf)>) -> Result<()> {
        if self.round.is_some() {
            return Err(Error::OutOfTurn("the residuals cannot change inside a step"));
        }
        let infos = self.manifest.tensors();
        let (mut learned, mut others) = (Vec::new(), Vec::new());
        let mut velocities: Vec<Vec<f32>> = Vec::new();
        for (name, tensor) in tensors {
            let (of, momentum) = name.strip_suffix(MOMENTUM).map_or((&*name, false), |of| (of, true));
            let place = infos.iter().position(|info| info.name == of);
            let place = place.ok_or(Error::Input("state of a tensor that is not in the manifest"))?;
            if infos[place].shape != tensor.shape() {
                return Err(Error::Input("state of a tensor of another shape"));
            }
            if momentum {
                velocities.resize_with(infos.len(), Vec::new);
                velocities[place] = tensor.view().to_f32()?;
            } else if self.settings.classes[place] == Class::Learned {
                learned.push((name, tensor));
            } else {
                others.push((name, tensor));
            }
        }
        for (row, info) in velocities.iter_mut().zip(infos) {
            row.resize(info.elements() as usize, 0.0);
        }
        let feedback = Feedback::load(others)?;
        self.learned.set_memory(Feedback::load(learned)?)?;
        (self.feedback, self.velocities) = (feedback, velocities);
        Ok(())
    }

    /// Begins a step with this worker's gradients, one for each tensor of the manifest.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`] if a step is open, or phase 3 begins without a model; [`Error::Input`] or
    /// [`Error::Gcodec`] if a gradient does not match the manifest or is not finite.
    pub fn begin(&mut self, step: u64, gradients: &[TensorView<'_>]) -> Result<Begun> {
        self.begin_used(step, gradients, &vec![true; gradients.len()])
    }

    /// Begins a step like [`Self::begin`], without the tensors for which `used` is false: this worker neither
    /// chooses nor sends anything of them, and their residuals and velocities stay. For a model of which a
    /// step uses a part, where the mean of an unused tensor is not applied.
    ///
    /// # Errors
    /// The errors of [`Self::begin`].
    pub fn begin_used(&mut self, step: u64, gradients: &[TensorView<'_>], used: &[bool]) -> Result<Begun> {
        if self.round.is_some() {
            return Err(Error::OutOfTurn("a step begins before the last one is finished"));
        }
        let phase = self.settings.phase(step);
        if phase == Phase::Learned && self.model.is_none() {
            return Err(Error::OutOfTurn("phase 3 begins without a model"));
        }
        let infos = self.manifest.tensors();
        if gradients.len() != infos.len() || used.len() != infos.len() {
            return Err(Error::Input("not as many gradients as tensors"));
        }
        if infos.iter().zip(gradients).any(|(i, g)| i.dtype != g.dtype() || i.shape != g.shape()) {
            return Err(Error::Input("a gradient that is not the manifest's tensor"));
        }
        let (velocities, moved) = self.moved(gradients, used)?;
        let moved: Vec<TensorView<'_>> = moved.iter().map(TensorBuf::view).collect();
        let gradients = if velocities.is_empty() { gradients } else { &moved };
        let (mut inputs, mut codecs) = (Vec::new(), Vec::new());
        for (i, class) in self.settings.classes.iter().enumerate().filter(|(i, _)| used[*i]) {
            let top_k = Codec::TopK(TopK {
                amount: self.settings.amount,
                values: self.settings.values,
                selection: Selection::Tensor,
                seed: step,
                positions: Positions::Auto,
            });
            codecs.push(match (phase, class) {
                (Phase::Full, _) | (_, Class::Full) => Codec::Raw,
                (_, Class::TopK) => top_k,
                (_, Class::Learned) => continue,
            });
            inputs.push(Input { tensor: i as u64, name: &infos[i].name, view: gradients[i], base: None });
        }
        let mut feedback = self.feedback.clone();
        let blocks = compress(&inputs, &codecs, &Options::default(), Some(&mut feedback))?;
        let begun = match phase {
            Phase::Full => Begun::Full,
            _ => {
                let first = self.scope.first() as usize;
                let learned = first..first + self.scope.tensors() as usize;
                match self.learned.begin_used(step, &gradients[learned.clone()], &used[learned])? {
                    Role::Leader(set) => Begun::Leader(set),
                    Role::Follower { leader } => Begun::Follower { leader },
                }
            }
        };
        let (shared, numbers, common, own) = (None, Vec::new(), None, None);
        let used = used.to_vec();
        self.round =
            Some(Round { step, phase, blocks, feedback, velocities, used, shared, numbers, common, own });
        Ok(begun)
    }

    /// Returns the velocities with these gradients, also as tensors; nothing without momentum. Those of
    /// tensors that are not used stay.
    fn moved(&self, gradients: &[TensorView<'_>], used: &[bool]) -> Result<(Vec<Vec<f32>>, Vec<TensorBuf>)> {
        let (mut velocities, mut tensors) = (Vec::new(), Vec::new());
        if self.settings.momentum == 0.0 {
            return Ok((velocities, tensors));
        }
        for (t, gradient) in gradients.iter().enumerate() {
            let before = self.velocities.get(t);
            let row = match (used[t], before) {
                (true, before) => {
                    let mut row = gradient.to_f32()?;
                    let before = before.into_iter().flatten();
                    row.iter_mut().zip(before).for_each(|(x, v)| *x += self.settings.momentum * v);
                    row
                }
                (false, Some(before)) => before.clone(),
                (false, None) => vec![0.0; gradient.elements() as usize],
            };
            let mut bytes = vec![0; gradient.data().len()];
            encode_f32s(gradient.dtype(), &row, 0, &mut bytes)?;
            tensors.push(TensorBuf::new(gradient.dtype(), gradient.shape().to_vec(), bytes)?);
            velocities.push(row);
        }
        Ok((velocities, tensors))
    }

    /// Returns the velocities of a step, zero where an element was sent without the others of its tensor.
    fn masked(&self, round: &Round) -> Result<Vec<Vec<f32>>> {
        let mut velocities = round.velocities.clone();
        if velocities.is_empty() {
            return Ok(velocities);
        }
        let sparse = |b: &&CodedBlock| !matches!(b.block.support, Support::All);
        let blocks: Vec<CodedBlock> = round.blocks.iter().filter(sparse).cloned().collect();
        let mut momenta: Vec<(u64, &mut [f32])> =
            (0..).zip(velocities.iter_mut().map(Vec::as_mut_slice)).collect();
        mask_momenta(&blocks, &mut momenta)?;
        let (mut tensor, mut base) = (self.scope.first() as usize, 0);
        for &position in round.shared.iter().flat_map(|s| &s.positions) {
            while position - base >= velocities[tensor].len() as u64 {
                base += velocities[tensor].len() as u64;
                tensor += 1;
            }
            if round.used[tensor] {
                velocities[tensor][(position - base) as usize] = 0.0;
            }
        }
        Ok(velocities)
    }

    /// Takes the leader's set and its id from a decoder, or for the leader from [`Encoder::index_set`].
    ///
    /// # Errors
    /// [`Error::OutOfTurn`] if no step is open, a set was taken already, or the set has another step;
    /// [`Error::Peer`] or [`Error::Gcodec`] if it has other tensors; in phase 3, the errors of
    /// [`Model::encode`].
    pub fn take_set(&mut self, set: &IndexSet, id: SetId) -> Result<()> {
        let Some(round) = &mut self.round else {
            return Err(Error::OutOfTurn("an index set outside a step"));
        };
        if round.phase == Phase::Full || round.shared.is_some() {
            return Err(Error::OutOfTurn("a second index set in one step, or one in phase 1"));
        }
        let shared = Shared::take(set, id, &self.manifest, self.scope, round.step, self.world)?;
        // Works on a copy, so that an error leaves the state unchanged.
        let mut learned = self.learned.clone();
        learned.take_set(set, id)?;
        let values = learned.values()?;
        let mut numbers = Vec::new();
        let (common, own) = match round.phase {
            Phase::Full | Phase::TopK => (None, Some(values)),
            Phase::Learned => {
                let model = self.model.as_ref().ok_or(Error::OutOfTurn("phase 3 without a model"))?;
                numbers.resize(shared.positions.len(), 0.0);
                if let Values::Floats(Floats { stored, bytes }) = &values.values {
                    let dtype = space_of(&self.manifest, self.scope)?.dtype;
                    decode_f32s(stored.dtype(dtype), bytes, 0, &mut numbers)?;
                }
                let leads = set.leader == self.rank;
                let latent = if leads || self.settings.variant == Variant::Ring {
                    let values = encode_latent(model, &numbers, self.settings.codes)?;
                    Some(Block { scope: self.scope, add: false, support: Support::Set(Set { id }), values })
                } else {
                    None
                };
                match self.settings.variant {
                    Variant::Ring => (None, latent),
                    Variant::Server => {
                        (latent, innovation(&self.settings, self.scope, &numbers, &shared.positions)?)
                    }
                }
            }
        };
        self.learned = learned;
        (round.common, round.own, round.numbers, round.shared) = (common, own, numbers, Some(shared));
        Ok(())
    }

    /// Appends this worker's update and, if it leads in phase 3 with a server, the update with its codes.
    /// The encoder has the step's index set.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`] before the set was taken; [`Error::Gcodec`] if the encoder does not have the set.
    pub fn send(&self, encoder: &mut Encoder, out: &mut Vec<u8>) -> Result<()> {
        let round = self.complete()?;
        let header = UpdateHeader::default()
            .with_step(round.step)
            .with_round(round.step)
            .with_sender(self.rank)
            .with_world(self.world)
            .with_contributors(1);
        let own = round.own.iter().map(|block| (block, BlockOptions::default()));
        let mut blocks: Vec<_> =
            round.blocks.iter().map(|coded| (&coded.block, coded.options)).chain(own).collect();
        blocks.sort_by_key(|(block, _)| block.scope.first());
        encoder.update(out, &header, &self.manifest, blocks)?;
        if let Some(common) = &round.common {
            encoder.update(out, &header, &self.manifest, [common])?;
        }
        Ok(())
    }

    /// Ends the step: clears the residual on the set, and keeps the unsent values elsewhere.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`] before the set was taken.
    pub fn finish(&mut self) -> Result<()> {
        let velocities = self.masked(self.complete()?)?;
        if self.complete()?.phase != Phase::Full {
            self.learned.finish()?;
        }
        if let Some(round) = self.round.take() {
            (self.feedback, self.velocities) = (round.feedback, velocities);
        }
        Ok(())
    }

    /// Ends the step like [`Self::finish`], with what all receivers got. With [`ProtocolOptions::feedback`],
    /// the error of the decoded values stays in the residual in phase 3.
    ///
    /// # Errors
    /// The errors of [`Self::finish`]; [`Error::Input`] if the outcome is of another step or group.
    pub fn finish_with(&mut self, outcome: &Outcome) -> Result<()> {
        let round = self.complete()?;
        if round.phase != Phase::Learned || !self.settings.feedback {
            return self.finish();
        }
        // In a ring, all workers have the decoded mean.
        let row = if outcome.signals.len() == 1 { 0 } else { self.rank as usize };
        let decoded = outcome.signals.get(row).ok_or(Error::Input("an outcome of another group"))?;
        let positions = round.shared.as_ref().map_or(&[][..], |s| &s.positions);
        if outcome.positions != positions || decoded.len() != round.numbers.len() {
            return Err(Error::Input("an outcome of another step"));
        }
        let errors: Vec<f32> = round.numbers.iter().zip(decoded).map(|(x, d)| x - d).collect();
        self.finish()?;
        let memory = add(self.learned.memory(), &self.manifest, self.scope, &outcome.positions, &errors)?;
        Ok(self.learned.set_memory(memory)?)
    }

    /// Discards the open step, if there is one, and restores the residuals.
    pub fn abort(&mut self) {
        self.learned.abort();
        self.round = None;
    }

    fn complete(&self) -> Result<&Round> {
        let round = self.round.as_ref().ok_or(Error::OutOfTurn("no step is open"))?;
        if round.phase != Phase::Full && round.shared.is_none() {
            return Err(Error::OutOfTurn("the leader's index set is missing"));
        }
        Ok(round)
    }
}

/// Returns residuals with numbers added at positions of the tensors of a scope.
fn add(
    residuals: &Feedback,
    manifest: &Manifest,
    scope: Scope,
    positions: &[u64],
    numbers: &[f32],
) -> Result<Feedback> {
    let mut rows: HashMap<String, TensorBuf> = residuals.save().into_iter().collect();
    let (mut rest, mut base) = (positions.iter().zip(numbers).peekable(), 0);
    for info in &manifest.tensors()[scope.first() as usize..][..scope.tensors() as usize] {
        let (start, end) = (base, base + info.elements());
        base = end;
        if rest.peek().is_none_or(|(position, _)| **position >= end) {
            continue;
        }
        // A tensor that this worker has never used has no residual yet.
        let mut row = match rows.get(&info.name) {
            Some(tensor) => tensor.view().to_f32()?,
            None => vec![0.0; info.elements() as usize],
        };
        while let Some((&position, number)) = rest.next_if(|(position, _)| **position < end) {
            row[(position - start) as usize] += number;
        }
        rows.insert(info.name.clone(), TensorBuf::from_f32(info.shape.clone(), &row)?);
    }
    Ok(Feedback::load(rows)?)
}

/// Returns the largest of the values on the set, with their positions in the tensors.
fn innovation(
    settings: &ProtocolOptions,
    scope: Scope,
    values: &[f32],
    positions: &[u64],
) -> Result<Option<Block>> {
    let order = largest(values, settings.innovation);
    if order.is_empty() {
        return Ok(None);
    }
    let kept: Vec<f32> = order.iter().map(|&i| values[i]).collect();
    let values = floats(settings.innovation_values, &kept)?;
    let support = Support::Sparse(Sparse { positions: order.iter().map(|&i| positions[i]).collect() });
    Ok(Some(Block { scope, add: false, support, values }))
}

/// Returns the places of the largest values, ascending: this part of all, without zeros.
pub(crate) fn largest(values: &[f32], part: f64) -> Vec<usize> {
    let count = (part * values.len() as f64).round() as usize;
    let mut order: Vec<usize> = (0..values.len()).filter(|&i| values[i] != 0.0).collect();
    // Stable: of equal magnitudes the first one wins.
    order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()));
    order.truncate(count);
    order.sort_unstable();
    order
}
