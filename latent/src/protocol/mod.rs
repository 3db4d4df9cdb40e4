//! The three phases (arXiv 2103.08870), as states without IO. An [`Encoder`](gcodec::stream::Encoder) writes
//! the messages, and a [`Decoder`](gcodec::stream::Decoder) reads them.
//!
//! ```text
//! phase 1, full      every worker sends its dense gradients
//! phase 2, top-k     the leader sends the positions of its largest elements, and every worker its values
//!                    there; an autoencoder is trained on these values (Outcome::signals)
//! phase 3, learned   server: the leader sends the positions and the codes of its values; every worker,
//!                            also the leader, sends its innovation: the largest of its own values, with
//!                            their positions. The server decodes the leader's codes once for each
//!                            worker, with that worker's decoder and innovation.
//!                    ring:   the leader sends the positions, and every worker the codes of its values. Every
//!                            node averages the codes, in the order of the workers, and decodes the mean.
//! ```
//!
//! The leader of step t is worker t mod world. The first layer is sent dense, and of the last layer only the
//! largest elements. The layers between, which must be consecutive in the manifest, are learned
//! ([`ProtocolOptions::classes`]). Sender and receiver derive phase and leader from the step. Every message
//! is an ordinary update that any reader can read: an innovation is a sparse update, and codes are latent
//! values of their sender.
//!
//! **Momentum.** With [`ProtocolOptions::momentum`], a worker's gradients are replaced by their velocities,
//! as in Deep Gradient Compression.
//!
//! **Residual.** In phases 2 and 3 each worker adds its unsent values to the next gradient. The residual is
//! cleared at the positions of the leader's set, on all workers, rather than at the worker's own largest
//! elements. The autoencoder's error is not fed back, as in the paper. With [`ProtocolOptions::feedback`] it
//! is: [`Worker::finish_with`] keeps the difference of the worker's values and the decoded ones.
//!
//! A worker's step is [`Worker::begin`], [`Worker::take_set`] (not in phase 1), [`Worker::send`],
//! [`Worker::finish`]. A receiver's step is [`Receiver::begin`], [`Receiver::take_set`], [`Receiver::take`]
//! for each update, [`Receiver::finish`]. An error leaves the state unchanged.

mod group;
mod receiver;
mod worker;

use gcodec::block::{Block, IndexSpace, Planes, Scope, SetId, Sets, SharedSet, Stored, Support, Values};
use gcodec::compress::{Amount, Kept};
use gcodec::frame::{Budget, IndexSet, Manifest};

pub use group::Group;
pub use receiver::{Outcome, Receiver};
pub(crate) use worker::largest;
pub use worker::{Begun, Worker};

use crate::codes::CodeFormat;
use crate::error::{Error, Result};
use crate::model::{Innovation, Model};

/// Part of a tensor that is sent from phase 2 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// All elements.
    Full,
    /// The largest elements.
    TopK,
    /// Codes of the elements on the shared set.
    Learned,
}

/// A step's phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Phase 1: all elements.
    Full,
    /// Phase 2: the largest elements.
    TopK,
    /// Phase 3: codes of the largest elements.
    Learned,
}

/// Topology that combines the workers' updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// A parameter server, with one decoder for each worker.
    Server,
    /// All workers, with one decoder, as in a ring.
    Ring,
}

/// Options that all workers and receivers share.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProtocolOptions {
    /// Parameter server or ring.
    pub variant: Variant,
    /// Class of each tensor of the manifest; see [`classes`].
    pub classes: Vec<Class>,
    /// Number of elements sent per tensor, except for [`Class::Full`]. Default: a density of 0.001.
    pub amount: Amount,
    /// Values of the elements of [`Class::TopK`]. Default: f32.
    pub values: Kept,
    /// Share of the values on the set that is a worker's innovation, 0 to 1. Default: 0.1, as in the paper.
    pub innovation: f64,
    /// Storage of an innovation's values; [`Stored::Source`] is not allowed. Default: f32.
    pub innovation_values: Stored,
    /// Storage of codes. Default: f32.
    pub codes: CodeFormat,
    /// Momentum correction, 0 to less than 1 (arXiv 1712.01887, section 3.2): each worker accumulates its
    /// velocities instead of its gradients, and the receiver's mean is applied without momentum. The velocity
    /// of an element restarts at zero when the element is sent alone. Default: 0, none.
    pub momentum: f32,
    /// Whether the error of the decoded values returns to the residuals, which needs [`Worker::finish_with`].
    /// Default: no, as in the paper.
    pub feedback: bool,
    /// Steps of phase 1, from step 0. Default: 200.
    pub full_steps: u64,
    /// Steps of phase 2 after them. Default: 300.
    pub top_k_steps: u64,
}

macro_rules! with {
    ($($name:ident $field:ident $type:ty)*) => { $(
        #[doc = concat!("Sets [`ProtocolOptions::", stringify!($field), "`].")]
        #[must_use]
        pub fn $name(mut self, value: $type) -> Self {
            self.$field = value;
            self
        }
    )* };
}

impl ProtocolOptions {
    /// Returns the defaults for these classes.
    pub fn new(variant: Variant, classes: Vec<Class>) -> Self {
        Self {
            variant,
            classes,
            amount: Amount::Density(0.001),
            values: Kept::F32,
            innovation: 0.1,
            innovation_values: Stored::F32,
            codes: CodeFormat::F32,
            momentum: 0.0,
            feedback: false,
            full_steps: 200,
            top_k_steps: 300,
        }
    }

    with! {
        with_amount amount Amount
        with_values values Kept
        with_innovation innovation f64
        with_innovation_values innovation_values Stored
        with_codes codes CodeFormat
        with_momentum momentum f32
        with_feedback feedback bool
        with_full_steps full_steps u64
        with_top_k_steps top_k_steps u64
    }

    /// Returns the phase of a step.
    pub fn phase(&self, step: u64) -> Phase {
        match step {
            _ if step < self.full_steps => Phase::Full,
            _ if step - self.full_steps < self.top_k_steps => Phase::TopK,
            _ => Phase::Learned,
        }
    }

    /// Checks the settings that do not depend on a model, and returns the scope of the learned tensors.
    fn check(&self, manifest: &Manifest) -> Result<Scope> {
        if self.classes.len() != manifest.tensors().len() {
            return Err(Error::Input("not as many classes as tensors"));
        }
        if !(0.0..=1.0).contains(&self.innovation) {
            return Err(Error::Input("part of the values that is the innovation"));
        }
        if !(0.0..1.0).contains(&self.momentum) {
            return Err(Error::Input("momentum of the workers"));
        }
        if self.innovation_values == Stored::Source {
            return Err(Error::Input("an innovation's values need a type other than the source's"));
        }
        let learned = |c: &Class| *c == Class::Learned;
        let first = self.classes.iter().position(learned).ok_or(Error::Input("no tensor is learned"))?;
        let count = self.classes[first..].iter().take_while(|c| learned(c)).count();
        if self.classes[first + count..].iter().any(learned) {
            return Err(Error::Input("learned tensors do not follow each other"));
        }
        let first = first as u64;
        Ok(if count == 1 { Scope::Tensor(first) } else { Scope::Tensors { first, count: count as u64 } })
    }

    fn check_model(&self, model: &Model, world: u64) -> Result<()> {
        match self.variant {
            Variant::Ring if model.innovation() != Innovation::None => {
                Err(Error::Input("a model with innovation in a ring"))
            }
            Variant::Ring if model.decoders().len() != 1 => {
                Err(Error::Input("a ring has one decoder for all"))
            }
            Variant::Server if model.innovation() == Innovation::None && self.innovation > 0.0 => {
                Err(Error::Input("the model takes no innovation"))
            }
            _ => model.decoder_of(world.saturating_sub(1)).map(drop),
        }
    }
}

/// Returns the paper's classes: the first layer full, the last top-k, the others learned. A layer is a run
/// of tensors whose names are equal up to the last `.` or `/`.
///
/// # Errors
/// [`Error::Input`] if there are fewer than three layers.
pub fn classes(manifest: &Manifest) -> Result<Vec<Class>> {
    let layer = |name: &str| name.rfind(['.', '/']).map_or(name, |at| &name[..at]).to_owned();
    let layers: Vec<String> = manifest.tensors().iter().map(|t| layer(&t.name)).collect();
    let (Some(first), Some(last)) = (layers.first(), layers.last()) else {
        return Err(Error::Input("a manifest without tensors"));
    };
    let head = layers.iter().take_while(|l| *l == first).count();
    let tail = layers.iter().rev().take_while(|l| *l == last).count();
    if head + tail >= layers.len() {
        return Err(Error::Input("fewer than three layers"));
    }
    let class = |i| match i {
        _ if i < head => Class::Full,
        _ if i >= layers.len() - tail => Class::TopK,
        _ => Class::Learned,
    };
    Ok((0..layers.len()).map(class).collect())
}

/// Index set of a step.
#[derive(Debug, Clone)]
struct Shared {
    id: SetId,
    /// Positions in the index space of the learned tensors.
    positions: Vec<u64>,
    sets: Sets,
}

impl Shared {
    /// Checks that a set belongs to this step and these tensors.
    fn take(
        set: &IndexSet,
        id: SetId,
        manifest: &Manifest,
        scope: Scope,
        step: u64,
        world: u64,
    ) -> Result<Self> {
        if set.step != step {
            return Err(Error::OutOfTurn("an index set of another step"));
        }
        if set.world != world {
            return Err(Error::OutOfTurn("an index set for another number of workers"));
        }
        if set.leader != step % world {
            return Err(Error::OutOfTurn("an index set of a worker that does not lead this step"));
        }
        if set.manifest != manifest.id() || set.scope != scope {
            return Err(Error::Peer { sender: set.leader, what: "an index set of other tensors" });
        }
        if matches!(set.support, Support::Set(_)) {
            return Err(Error::Peer { sender: set.leader, what: "an index set that refers to a set" });
        }
        let space = space_of(manifest, scope)?;
        let positions = positions_of(&set.support, scope, &space)?;
        let shared = SharedSet {
            manifest: set.manifest.0,
            scope,
            support: set.support.clone(),
            count: positions.len() as u64,
        };
        let sets = Sets::from([(id, shared.into())]);
        Ok(Self { id, positions, sets })
    }
}

fn space_of(manifest: &Manifest, scope: Scope) -> Result<IndexSpace> {
    Ok(manifest.space(scope, 0)?)
}

/// Returns the positions of a support that refers to no set.
fn positions_of(support: &Support, scope: Scope, space: &IndexSpace) -> Result<Vec<u64>> {
    let values = Values::Planes(Planes { bytes: Vec::new() });
    let block = Block { scope, add: false, support: support.clone(), values };
    let positions = block.positions(space, &Sets::new(), &Budget::new(&gcodec::Limits::default()))?;
    let inside = positions.last().is_none_or(|&p| p < space.len());
    if !inside || !positions.is_sorted_by(|a, b| a < b) {
        return Err(Error::Input("positions outside the tensors, or not ascending"));
    }
    Ok(positions)
}
