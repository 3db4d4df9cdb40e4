//! The worker's side of ScaleCom.

use std::sync::Arc;

use super::{Choice, ScaleComOptions, quasi};
use crate::arch::pages;
use crate::block::{Block, IndexSpace, Scope, Set, SetId, Sets, Support};
use crate::compress::codecs::sparse;
use crate::compress::options::Outline;
use crate::compress::select::{Chosen, top_k, top_k_each};
use crate::compress::senders::state::{self, out_of_turn};
use crate::compress::source::{CHUNK, Source, all_finite};
use crate::compress::{Feedback, Input, Options};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{IndexSet, Manifest};
use crate::limits::in_memory;
use crate::tensor::TensorView;

/// The role of a worker in a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Role {
    /// The worker leads: it sends this set to all others, and passes it to its own
    /// [`ScaleComWorker::take_set`] too.
    Leader(IndexSet),
    /// The worker waits for the leader's set.
    Follower {
        /// The leader's number.
        leader: u64,
    },
}

/// One worker's state for one index space: whole tensors of one float type.
///
/// A step is [`Self::begin`], [`Self::take_set`], [`Self::values`] and [`Self::finish`], in this order. A
/// call in another order is refused, and an error does not change the state. Only [`Self::finish`] changes
/// the memory: call it when the sum has arrived, or [`Self::abort`] if it has not. Between steps,
/// [`Self::memory`] is the whole state, for a checkpoint.
///
/// Memory: 4 bytes per element between steps, 8 inside one.
#[derive(Debug, Clone)]
pub struct ScaleComWorker {
    manifest: Arc<Manifest>,
    scope: Scope,
    space: IndexSpace,
    rank: u64,
    world: u64,
    options: ScaleComOptions,
    memory: Feedback,
    round: Option<Round>,
}

#[derive(Debug, Clone)]
struct Round {
    step: u64,
    /// Gradient plus memory, over the whole scope.
    sums: Vec<f32>,
    /// This worker's selection, if it leads.
    own: Option<Support>,
    set: Option<(SetId, Vec<u64>)>,
    /// Whether each tensor of the scope takes part.
    used: Vec<bool>,
}

impl ScaleComWorker {
    /// Returns worker `rank` of `world` with an empty memory. `scope`: one or more whole tensors.
    ///
    /// # Errors
    /// [`Error::Input`] for a scope that is not in the manifest, is a part of a tensor, has no elements or no
    /// float type, for a rank that is not below `world`, and for options out of range.
    pub fn new(
        manifest: &Arc<Manifest>,
        scope: Scope,
        rank: u64,
        world: u64,
        options: ScaleComOptions,
    ) -> Result<Self> {
        options.check_sums()?;
        Self::of_any_values(manifest, scope, rank, world, options)
    }

    /// Returns a worker whose values need not have a sum.
    pub(in crate::compress::senders) fn of_any_values(
        manifest: &Arc<Manifest>,
        scope: Scope,
        rank: u64,
        world: u64,
        options: ScaleComOptions,
    ) -> Result<Self> {
        options.check()?;
        if rank >= world {
            return Err(Error::bad_option("rank of a worker"));
        }
        if matches!(scope, Scope::Range { .. }) {
            return Err(Error::bad_option("scope of a worker: whole tensors only"));
        }
        let space = manifest.space(scope, 0).map_err(|_| Error::bad_option("scope of a worker"))?;
        if !space.dtype.is_float() {
            return Err(Error::input(InputErrorKind::WrongDtype { what: "ScaleCom" }));
        }
        if space.is_empty() {
            return Err(Error::bad_option("scope of a worker: no elements"));
        }
        let (manifest, memory) = (Arc::clone(manifest), Feedback::new());
        Ok(Self { manifest, scope, space, rank, world, options, memory, round: None })
    }

    /// Returns the memory, by tensor name. It is never transmitted.
    pub fn memory(&self) -> &Feedback {
        &self.memory
    }

    /// Restores the memory of a checkpoint.
    ///
    /// # Errors
    /// [`Error::Input`] inside a step.
    pub fn set_memory(&mut self, memory: Feedback) -> Result<()> {
        state::replace(&mut self.memory, memory, self.round.is_some())
    }

    /// Returns the leader of a step: step mod world.
    pub fn leader(&self, step: u64) -> u64 {
        step % self.world
    }

    /// Begins a step with this worker's gradients, one per tensor of the scope.
    ///
    /// # Errors
    /// [`Error::Input`] if a step is open, a tensor does not fit the manifest, or an element or its sum with
    /// the memory is not finite.
    pub fn begin(&mut self, step: u64, gradients: &[TensorView<'_>]) -> Result<Role> {
        self.begin_used(step, gradients, &vec![true; gradients.len()])
    }

    /// Begins a step like [`Self::begin`], without the tensors for which `used` is false: this worker neither
    /// chooses nor sends anything of them, and their memory stays. For a model of which a step uses a part,
    /// where the sum of an unused tensor is not applied.
    ///
    /// # Errors
    /// The errors of [`Self::begin`].
    pub fn begin_used(&mut self, step: u64, gradients: &[TensorView<'_>], used: &[bool]) -> Result<Role> {
        if self.round.is_some() {
            return Err(out_of_turn("a step begins before the last one is finished"));
        }
        let infos = self.infos();
        if gradients.len() != infos.len() || used.len() != infos.len() {
            return Err(Error::input(InputErrorKind::Mismatch { what: "numbers of gradients and tensors" }));
        }
        let nothing = Feedback::new();
        let zeros: Vec<Vec<u8>> = gradients
            .iter()
            .zip(used)
            .map(|(view, &used)| vec![0; if used { 0 } else { view.data().len() }])
            .collect();
        let mut sources = Vec::new();
        for (i, (info, &view)) in infos.iter().zip(gradients).enumerate() {
            let tensor = self.scope.first() + i as u64;
            if info.dtype != view.dtype() || info.shape != view.shape() {
                let kind = InputErrorKind::Mismatch { what: "gradient and manifest" };
                return Err(Error::input(kind).in_tensor(tensor));
            }
            let (view, memory) = match used[i] {
                true => (view, &self.memory),
                false => (TensorView::new(view.dtype(), view.shape(), &zeros[i])?, &nothing),
            };
            let input = Input { tensor, name: &info.name, view, base: None };
            let source = Source::new(&input, true, &Options::default(), Some(memory));
            sources.push(source.map_err(|e| e.in_tensor(tensor))?);
        }
        for source in &mut sources {
            let finite = source.scan(0..source.len, CHUNK, |chunk| {
                let mut finite = true;
                chunk.runs(|_, run| finite &= all_finite(&run));
                finite
            });
            if finite.contains(&false) {
                return Err(source.non_finite());
            }
        }
        let leader = self.leader(step);
        let own = match (leader == self.rank, self.options.choice) {
            (true, Choice::TopK(amount)) => {
                let mut group: Vec<&mut Source<'_>> = sources.iter_mut().collect();
                let chosen: Vec<Chosen> = top_k(&mut group, amount.of(self.space.len()))?;
                Some(sparse::join(&sparse::outlines(&sources), &chosen).1)
            }
            (true, Choice::TopKOfEach(amount)) => {
                let chosen = top_k_each(&mut sources, amount)?;
                Some(sparse::join(&sparse::outlines(&sources), &chosen).1)
            }
            _ => None,
        };
        let mut sums = pages::with_room(in_memory(self.space.len()));
        for source in sources {
            sums.extend(source.residual_after.unwrap_or_default());
        }
        let own = match (leader == self.rank, self.options.choice) {
            (true, Choice::PerChunk(len)) => Some(quasi::choose(&sums, len)),
            _ => own,
        };
        let role = match &own {
            Some(support) => Role::Leader(IndexSet {
                manifest: self.manifest.id(),
                step,
                leader,
                world: self.world,
                scope: self.scope,
                support: support.clone(),
            }),
            None => Role::Follower { leader },
        };
        self.round = Some(Round { step, sums, own, set: None, used: used.to_vec() });
        Ok(role)
    }

    /// Takes the leader's set and its id. Followers get both from the decoder, the leader gets the id from
    /// [`Encoder::index_set`](crate::stream::Encoder::index_set).
    ///
    /// # Errors
    /// [`InputErrorKind::OutOfTurn`] if no step is open, a set was taken already, or the set has another
    /// step, leader or number of workers. [`InputErrorKind::Mismatch`] if it is for other tensors. Other
    /// [`Error::Input`] if it does not fit them.
    pub fn take_set(&mut self, set: &IndexSet, id: SetId) -> Result<()> {
        let Some(round) = &mut self.round else { return Err(out_of_turn("an index set outside a step")) };
        if round.set.is_some() {
            return Err(out_of_turn("a second index set in one step"));
        }
        if set.step != round.step {
            let late = set.step < round.step;
            return Err(out_of_turn(if late {
                "an index set of an earlier step"
            } else {
                "one of a later step"
            }));
        }
        if set.world != self.world {
            return Err(out_of_turn("an index set for another number of workers"));
        }
        if set.leader != round.step % self.world {
            return Err(out_of_turn("an index set of a worker that does not lead this step"));
        }
        if set.manifest != self.manifest.id() || set.scope != self.scope {
            return Err(Error::input(InputErrorKind::Mismatch { what: "tensors of worker and index set" }));
        }
        if round.own.as_ref().is_some_and(|own| *own != set.support) {
            return Err(Error::input(InputErrorKind::Mismatch {
                what: "the leader's own index set and this",
            }));
        }
        if matches!(set.support, Support::Set(_)) {
            return Err(Error::inconsistent("an index set that refers to a set"));
        }
        let n = self.space.len();
        set.support.check(n)?;
        let mut positions = Vec::new();
        set.support.for_each_run(n, &Sets::new(), &mut |start, len| {
            positions.extend(start..start + len);
            Ok(())
        })?;
        round.set = Some((id, positions));
        Ok(())
    }

    /// Returns the block of this worker's update: its values on the set.
    ///
    /// # Errors
    /// [`InputErrorKind::OutOfTurn`] before [`Self::take_set`].
    pub fn values(&self) -> Result<Block> {
        let (round, id, positions) = self.with_set()?;
        let (values, _) = self.sent(round, positions)?;
        Ok(Block { scope: self.scope, add: false, support: Support::Set(Set { id }), values })
    }

    /// Ends the step: the memory becomes (1 - beta) memory + beta (gradient + memory - sent values).
    ///
    /// # Errors
    /// [`InputErrorKind::OutOfTurn`] before [`Self::take_set`].
    pub fn finish(&mut self) -> Result<()> {
        let (round, _, positions) = self.with_set()?;
        let (_, sent) = self.sent(round, positions)?;
        // Both are there.
        let Some(Round { sums: mut left, set: Some((_, positions)), used, .. }) = self.round.take() else {
            return Ok(());
        };
        for (position, sent) in positions.into_iter().zip(sent) {
            left[position as usize] -= sent;
        }
        let beta = self.options.beta;
        let infos: Vec<_> = self.infos().iter().map(|t| (t.name.clone(), t.shape.clone())).collect();
        let mut rest = left.as_mut_slice();
        for (((name, shape), &len), used) in infos.iter().zip(&self.space.lens).zip(used) {
            let (mine, others) = std::mem::take(&mut rest).split_at_mut(len as usize);
            rest = others;
            if !used {
                continue;
            }
            if beta < 1.0 {
                let before = self.memory.get(name);
                for (i, x) in mine.iter_mut().enumerate() {
                    *x = (1.0 - beta) * before.map_or(0.0, |m| m[i]) + beta * *x;
                }
            }
            self.memory.set(name, shape, mine.to_vec());
        }
        Ok(())
    }

    /// Gives up the open step, if any. The memory is that before the step. The caller may add the step's
    /// gradient to the next one.
    pub fn abort(&mut self) {
        self.round = None;
    }

    pub(in crate::compress::senders) fn infos(&self) -> &[crate::frame::TensorInfo] {
        &self.manifest.tensors()[self.scope.first() as usize..][..self.space.lens.len()]
    }

    fn with_set(&self) -> Result<(&Round, SetId, &[u64])> {
        let round = self.round.as_ref().ok_or(out_of_turn("no step is open"))?;
        let (id, positions) = round.set.as_ref().ok_or(out_of_turn("the leader's index set is missing"))?;
        Ok((round, *id, positions))
    }

    /// Returns the values on the set, and the same values as receivers decode them.
    fn sent(&self, round: &Round, positions: &[u64]) -> Result<(crate::block::Values, Vec<f32>)> {
        let (mut outlines, mut chosen) = (Vec::new(), Vec::new());
        let mut values = positions.iter().map(|&p| round.sums[p as usize]);
        for ((tensor, &len), positions) in
            (self.scope.first()..).zip(&self.space.lens).zip(self.by_tensor(positions))
        {
            outlines.push(Outline { tensor, dtype: self.space.dtype, len });
            chosen.push(Chosen { values: values.by_ref().take(positions.len()).collect(), positions });
        }
        // Random rounding differs between workers and steps.
        let seed = round.step.wrapping_mul(self.world).wrapping_add(self.rank);
        let (values, decoded) = sparse::values(&outlines, &chosen, self.options.values, seed)?;
        Ok((values, decoded.into_owned()))
    }

    /// Returns the positions of the open step's set, for each tensor of the scope.
    ///
    /// # Errors
    /// [`InputErrorKind::OutOfTurn`] before [`Self::take_set`].
    pub(in crate::compress::senders) fn positions(&self) -> Result<Vec<Vec<u64>>> {
        let (_, _, positions) = self.with_set()?;
        Ok(self.by_tensor(positions))
    }

    /// Returns ascending positions in the scope as positions in each of its tensors.
    fn by_tensor(&self, positions: &[u64]) -> Vec<Vec<u64>> {
        let (mut rest, mut start) = (positions, 0);
        let tensor = |&len: &u64| {
            let (mine, others) = rest.split_at(rest.partition_point(|&p| p < start + len));
            let mine = mine.iter().map(|p| p - start).collect();
            (rest, start) = (others, start + len);
            mine
        };
        self.space.lens.iter().map(tensor).collect()
    }
}
