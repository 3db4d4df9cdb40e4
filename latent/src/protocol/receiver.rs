//! The receiver: combines the workers' updates of a step.

use std::sync::Arc;

use gcodec::Dtype;
use gcodec::block::{Block, Floats, ModelId, Scope, Set, SetId, Support, Target, Values};
use gcodec::frame::{Budget, IndexSet, Manifest, Reduction, UpdatePart};
use gcodec::internal::element::decode_f32s;

use super::{Phase, ProtocolOptions, Shared, Variant, positions_of, space_of};
use crate::codes::codes;
use crate::error::{Error, Result};
use crate::model::{Model, Models};

/// Combined updates of a step.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Phase of the step.
    pub phase: Phase,
    /// Mean of the workers' updates, one row of elements per tensor, summed in binary64 in the order of the
    /// workers.
    pub mean: Vec<Vec<f32>>,
    /// Positions of the set among the learned tensors' elements; none in phase 1.
    pub positions: Vec<u64>,
    /// Values on the set. Phase 2: each worker's values, which the autoencoder is trained on. Phase 3: each
    /// worker's decoded values, or in a ring one row, the decoded mean. Phase 1: none.
    pub signals: Vec<Vec<f32>>,
}

/// The server, or in a ring the receiving half of each node: collects a step's updates.
///
/// Memory: the blocks of a step, and in [`Self::finish`] 12 bytes per element beside the result.
pub struct Receiver {
    manifest: Arc<Manifest>,
    settings: ProtocolOptions,
    world: u64,
    scope: Scope,
    models: Models,
    round: Option<Round>,
}

struct Round {
    step: u64,
    phase: Phase,
    shared: Option<Shared>,
    /// Each worker's values of the other tensors, and of the learned ones.
    workers: Vec<Said>,
    /// Codes of the leader, for a server.
    common: Option<(ModelId, Vec<f32>)>,
}

#[derive(Clone, Default)]
struct Said {
    blocks: Vec<Block>,
    own: Option<Own>,
    complete: bool,
}

#[derive(Clone)]
enum Own {
    Values(Vec<f32>),
    Innovation(Vec<(usize, f32)>),
    Codes(ModelId, Vec<f32>),
}

impl Receiver {
    /// Returns a receiver of the updates of `world` workers.
    ///
    /// # Errors
    /// [`Error::Input`] for settings that are out of range or do not fit the manifest, and for zero workers.
    pub fn new(manifest: &Arc<Manifest>, settings: ProtocolOptions, world: u64) -> Result<Self> {
        let scope = settings.check(manifest)?;
        if !(1..=1 << 20).contains(&world) {
            return Err(Error::Input("number of workers"));
        }
        let (manifest, models) = (Arc::clone(manifest), Models::new());
        Ok(Self { manifest, settings, world, scope, models, round: None })
    }

    /// Adds a model that codes may refer to.
    ///
    /// # Errors
    /// [`Error::Input`] if the model has another variant or number of workers.
    pub fn add_model(&mut self, model: Arc<Model>) -> Result<()> {
        self.settings.check_model(&model, self.world)?;
        self.models.add(model);
        Ok(())
    }

    /// Begins a step.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`] if a step is open.
    pub fn begin(&mut self, step: u64) -> Result<()> {
        if self.round.is_some() {
            return Err(Error::OutOfTurn("a step begins before the last one is finished"));
        }
        let workers = vec![Said::default(); self.world as usize];
        let phase = self.settings.phase(step);
        self.round = Some(Round { step, phase, shared: None, workers, common: None });
        Ok(())
    }

    /// Takes the leader's set and its id from a decoder; call it before the updates of the step.
    ///
    /// # Errors
    /// The errors of [`Worker::take_set`](super::Worker::take_set).
    pub fn take_set(&mut self, set: &IndexSet, id: SetId) -> Result<()> {
        let Some(round) = &mut self.round else {
            return Err(Error::OutOfTurn("an index set outside a step"));
        };
        if round.phase == Phase::Full || round.shared.is_some() {
            return Err(Error::OutOfTurn("a second index set in one step, or one in phase 1"));
        }
        let shared = Shared::take(set, id, &self.manifest, self.scope, round.step, self.world)?;
        round.shared = Some(shared);
        Ok(())
    }

    /// Takes a part of a worker's update. Workers come in any order, the parts of an update in theirs.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`] if no step is open or the set is missing; [`Error::Peer`] if the update has
    /// another step or other tensors, repeats a worker, or has content that the phase does not allow;
    /// [`Error::MissingModel`]; the errors of decoding a block. The state is unchanged on an error.
    pub fn take(&mut self, part: &UpdatePart<'_>) -> Result<()> {
        let Some(round) = &self.round else { return Err(Error::OutOfTurn("an update outside a step")) };
        let header = &part.header;
        let sender = header.sender;
        let refuse = |what| Err(Error::Peer { sender, what });
        if round.phase != Phase::Full && round.shared.is_none() {
            return Err(Error::OutOfTurn("an update before the step's index set"));
        }
        if header.step != round.step || header.world != self.world || sender >= self.world {
            return refuse("it is of another step or group");
        }
        if part.manifest.id() != self.manifest.id() {
            return refuse("it is of other tensors");
        }
        if header.reduction != Reduction::None || header.is_delta() {
            return refuse("it is a sum or a delta");
        }
        let mut said = round.workers[sender as usize].clone();
        let mut common = None;
        let budget = part.budget();
        for i in 0..part.blocks.len() {
            let block = part.decode(i, &budget)?;
            let leads = sender == round.step % self.world;
            let is_common = round.phase == Phase::Learned
                && self.settings.variant == Variant::Server
                && matches!(block.values, Values::Latent(_));
            if is_common {
                if !leads || round.common.is_some() || part.blocks.len() != 1 || part.part != 0 || !part.last
                {
                    return refuse("codes that are not the leader's only ones");
                }
                common = Some(self.codes_of(round, &block, sender)?);
            } else if said.complete {
                return refuse("it is the second of this worker");
            } else if round.phase != Phase::Full && self.touches_learned(block.scope) {
                if said.own.is_some() {
                    return refuse("a second block of the learned tensors");
                }
                said.own = Some(self.own(round, &block, sender, &budget)?);
            } else if block.add || matches!(block.support, Support::Set(_)) {
                return refuse("a block of a kind that has no place here");
            } else {
                said.blocks.push(block);
            }
        }
        let Some(round) = &mut self.round else { return Err(Error::OutOfTurn("an update outside a step")) };
        if common.is_some() {
            round.common = common;
        } else {
            said.complete = part.last;
            round.workers[sender as usize] = said;
        }
        Ok(())
    }

    fn touches_learned(&self, scope: Scope) -> bool {
        let end = |s: Scope| s.first() + s.tensors();
        scope.first() < end(self.scope) && self.scope.first() < end(scope)
    }

    /// Returns the codes of a block on the step's set.
    fn codes_of(&self, round: &Round, block: &Block, sender: u64) -> Result<(ModelId, Vec<f32>)> {
        let shared = on_set(round, block, self.scope, sender)?;
        let (model, codes) = codes(&self.models, &block.values, shared.positions.len())?;
        Ok((model.id(), codes))
    }

    /// A worker's data on the learned tensors.
    fn own(&self, round: &Round, block: &Block, sender: u64, budget: &Budget) -> Result<Own> {
        match (round.phase, self.settings.variant) {
            (Phase::Full | Phase::TopK, _) => {
                let shared = on_set(round, block, self.scope, sender)?;
                let space = space_of(&self.manifest, self.scope)?;
                let mut numbers = vec![0.0; shared.positions.len()];
                match &block.values {
                    Values::Floats(Floats { stored, bytes }) => {
                        decode_f32s(stored.dtype(space.dtype), bytes, 0, &mut numbers)?;
                    }
                    _ => return Err(Error::Peer { sender, what: "values that are no floats" }),
                }
                Ok(Own::Values(numbers))
            }
            (Phase::Learned, Variant::Ring) => {
                let (model, codes) = self.codes_of(round, block, sender)?;
                Ok(Own::Codes(model, codes))
            }
            (Phase::Learned, Variant::Server) => {
                let refuse = |what| Error::Peer { sender, what };
                if block.scope != self.scope || block.add || matches!(block.support, Support::Set(_)) {
                    return Err(refuse("an innovation that is not a sparse block of the learned tensors"));
                }
                let shared =
                    round.shared.as_ref().ok_or(Error::OutOfTurn("the step's index set is missing"))?;
                let space = space_of(&self.manifest, self.scope)?;
                let positions = positions_of(&block.support, self.scope, &space)?;
                let numbers = block.numbers(&space, &shared.sets, budget)?;
                let place =
                    |p| shared.positions.binary_search(p).map_err(|_| refuse("an innovation off the set"));
                let places = positions.iter().map(place).collect::<Result<Vec<_>>>()?;
                if !numbers.iter().all(|x| x.is_finite()) {
                    return Err(refuse("an innovation that is not finite"));
                }
                Ok(Own::Innovation(places.into_iter().zip(numbers).collect()))
            }
        }
    }

    /// Whether every message of the step has arrived.
    pub fn is_complete(&self) -> bool {
        self.round.as_ref().is_some_and(|round| self.missing(round).is_none())
    }

    /// Returns the description of a missing message.
    fn missing(&self, round: &Round) -> Option<&'static str> {
        if round.phase != Phase::Full && round.shared.is_none() {
            Some("the step's index set is missing")
        } else if round.workers.iter().any(|w| !w.complete) {
            Some("a worker's update is missing")
        } else if round.phase == Phase::Learned
            && self.settings.variant == Variant::Server
            && round.common.is_none()
        {
            Some("the leader's codes are missing")
        } else {
            None
        }
    }

    /// Ends the step and returns the combined updates.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`] if a message is missing; the errors of [`Model::decode`]. The step stays open on
    /// an error.
    pub fn finish(&mut self) -> Result<Outcome> {
        let round = self.round.as_ref().ok_or(Error::OutOfTurn("no step is open"))?;
        if let Some(what) = self.missing(round) {
            return Err(Error::OutOfTurn(what));
        }
        let signals = self.signals(round)?;
        let infos = self.manifest.tensors();
        let mut sums: Vec<Vec<f64>> = infos.iter().map(|i| vec![0.0; i.elements() as usize]).collect();
        for said in &round.workers {
            for block in &said.blocks {
                self.add(block, &mut sums)?;
            }
        }
        let positions = round.shared.as_ref().map_or(Vec::new(), |s| s.positions.clone());
        let first = self.scope.first() as usize;
        let (mut tensor, mut base) = (first, 0);
        for (i, &position) in positions.iter().enumerate() {
            while position - base >= sums[tensor].len() as u64 {
                base += sums[tensor].len() as u64;
                tensor += 1;
            }
            // A single row is the mean already.
            let sum: f64 = signals.iter().map(|s| f64::from(s[i])).sum();
            sums[tensor][(position - base) as usize] = sum * (self.world as f64 / signals.len() as f64);
        }
        let mean = |sums: Vec<f64>| sums.into_iter().map(|x| (x / self.world as f64) as f32).collect();
        let outcome =
            Outcome { phase: round.phase, mean: sums.into_iter().map(mean).collect(), positions, signals };
        self.round = None;
        Ok(outcome)
    }

    /// Discards the open step, if there is one.
    pub fn abort(&mut self) {
        self.round = None;
    }

    fn signals(&self, round: &Round) -> Result<Vec<Vec<f32>>> {
        let Some(shared) = &round.shared else { return Ok(Vec::new()) };
        let count = shared.positions.len();
        let each = round.workers.iter().zip(0..);
        match (round.phase, self.settings.variant, &round.common) {
            (Phase::Learned, Variant::Server, Some((model, codes))) => {
                let model = self.models.get(*model)?;
                let decode = |(said, sender): (&Said, u64)| match &said.own {
                    Some(Own::Innovation(innovation)) => model.decode(sender, codes, count, innovation),
                    _ => model.decode(sender, codes, count, &[]),
                };
                each.map(decode).collect()
            }
            (Phase::Learned, ..) => {
                let mut of: Option<ModelId> = None;
                let mut sums: Vec<f64> = Vec::new();
                for (said, sender) in each {
                    let Some(Own::Codes(model, codes)) = &said.own else {
                        return Err(Error::Peer { sender, what: "it has no codes" });
                    };
                    if *of.get_or_insert(*model) != *model {
                        return Err(Error::Peer { sender, what: "its codes are of another model" });
                    }
                    sums.resize(codes.len(), 0.0);
                    sums.iter_mut().zip(codes).for_each(|(sum, &code)| *sum += f64::from(code));
                }
                let Some(model) = of else { return Ok(Vec::new()) };
                let mean: Vec<f32> = sums.iter().map(|x| (x / self.world as f64) as f32).collect();
                Ok(vec![self.models.get(model)?.decode(0, &mean, count, &[])?])
            }
            _ => each
                .map(|(said, sender)| match &said.own {
                    Some(Own::Values(values)) => Ok(values.clone()),
                    _ => Err(Error::Peer { sender, what: "it has no values on the set" }),
                })
                .collect(),
        }
    }

    /// Adds a block's values.
    fn add(&self, block: &Block, sums: &mut [Vec<f64>]) -> Result<()> {
        let space = space_of(&self.manifest, block.scope)?;
        let start = match block.scope {
            Scope::Range { start, .. } => start,
            _ => 0,
        };
        let first = block.scope.first() as usize;
        let bytes = |elements: u64| space.dtype.bytes_for(elements).unwrap_or(0) as usize;
        let mut buffers: Vec<Vec<u8>> = space.lens.iter().map(|&len| vec![0; bytes(start + len)]).collect();
        let target = |(data, &len)| Target { data, start, len };
        let mut targets: Vec<Target<'_>> =
            buffers.iter_mut().map(Vec::as_mut_slice).zip(&space.lens).map(target).collect();
        let (sets, budget) = (Default::default(), Budget::new(&gcodec::Limits::default()));
        block.apply(&space, &sets, &budget, &mut targets)?;
        for ((data, &len), sums) in buffers.iter().zip(&space.lens).zip(&mut sums[first..]) {
            let mut numbers = vec![0.0; len as usize];
            decode_f32s(numeric(space.dtype)?, data, start, &mut numbers)?;
            let sums = &mut sums[start as usize..];
            sums.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += f64::from(x));
        }
        Ok(())
    }
}

fn numeric(dtype: Dtype) -> Result<Dtype> {
    if dtype.is_float() { Ok(dtype) } else { Err(Error::Input("a mean of tensors that are not floats")) }
}

/// Returns the step's set, if a block uses it.
fn on_set<'r>(round: &'r Round, block: &Block, scope: Scope, sender: u64) -> Result<&'r Shared> {
    let shared = round.shared.as_ref().ok_or(Error::OutOfTurn("the step's index set is missing"))?;
    if block.scope != scope || block.add || block.support != Support::Set(Set { id: shared.id }) {
        return Err(Error::Peer {
            sender,
            what: "a block of the learned tensors that is not on the step's set",
        });
    }
    Ok(shared)
}
