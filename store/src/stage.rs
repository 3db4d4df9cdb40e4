//! Receiving: stage, verify, commit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use gcodec::TensorView;
use gcodec::digest::SumDigest;
use rayon::prelude::*;

use crate::Store;
use crate::difference;
use crate::error::{Error, Result};
use crate::layout;
use crate::plan::{Plan, Step, plan};
use crate::tensor::Tensor;
use crate::weights::{Model, Replica, Staging};

/// Ways that are tried before a pull fails: each failure rules out at least one object.
const WAYS: usize = 16;

/// A version that was downloaded and decoded beside what the receiver holds. Nothing visible has changed.
#[must_use = "a staged version changes nothing until it is committed"]
#[derive(Debug)]
pub struct Staged {
    pub(crate) staging: Staging,
    /// Version that the receiver held, its table, and its digests.
    held: Option<(u64, Arc<Model>, Vec<SumDigest>)>,
    version: u64,
    state: SumDigest,
    meta: BTreeMap<String, String>,
    bytes: u64,
    steps: usize,
}

impl Staged {
    /// Returns the version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the bytes of the objects that it was made from.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of anchors and deltas that it was made from.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Checks the digest of all tensors against the version's record.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it differs. What the receiver holds is unchanged.
    pub fn verify(mut self) -> Result<Verified> {
        let path = layout::version_path(self.version);
        if self.staging.digest() != Some(self.state) {
            return Err(Error::corrupt(path, "the tensors differ from the record's digest"));
        }
        let missing = || Error::corrupt(layout::version_path(self.version), "a tensor is missing");
        let tensors = self.staging.tensors.into_iter().collect::<Option<Vec<_>>>().ok_or_else(missing)?;
        let digests = self.staging.digests.into_iter().collect::<Option<Vec<_>>>().ok_or_else(missing)?;
        let old = match &self.held {
            Some((_, model, _)) => model.counterparts(&self.staging.model.infos),
            None => vec![None; digests.len()],
        };
        let held_digest = |n: usize| self.held.as_ref().zip(old[n]).map(|((_, _, held), old)| held[old]);
        let touched = (0..digests.len()).filter(|&n| held_digest(n) != Some(digests[n])).collect();
        let (version, meta, model) = (self.version, self.meta, self.staging.model);
        let replica = Replica { version, meta, model, tensors, digests };
        Ok(Verified { replica, held: self.held.map(|(version, ..)| version), touched })
    }
}

/// A version whose tensors were all checked. Nothing visible has changed.
#[must_use = "a verified version changes nothing until it is committed"]
#[derive(Debug)]
pub struct Verified {
    replica: Replica,
    held: Option<u64>,
    touched: Vec<usize>,
}

impl Verified {
    /// Returns the version.
    pub fn version(&self) -> u64 {
        self.replica.version
    }

    /// Returns the tensors that differ from those that the receiver holds, or all if it held none. Without
    /// any, there is nothing to do but to note the version.
    pub fn touched(&self) -> impl ExactSizeIterator<Item = (&str, TensorView<'_>)> {
        let tensor = |&n: &usize| (self.replica.model.infos[n].name.as_str(), self.replica.tensors[n].view());
        self.touched.iter().map(tensor)
    }

    /// Replaces what the receiver holds. The old tensors are freed with `held`.
    ///
    /// # Errors
    /// [`Error::Input`] if `held` is not what the version was staged for.
    pub fn commit(self, held: Option<Replica>) -> Result<Replica> {
        match held.map(|held| held.version) == self.held {
            true => Ok(self.replica),
            false => Err(Error::input("the version was staged for another replica")),
        }
    }

    /// Writes the touched tensors to `sink`, for example the buffers of an engine that is paused.
    ///
    /// # Errors
    /// [`Poisoned`] if a write fails: the sink then has tensors of both versions.
    pub fn commit_to<S: Sink>(self, sink: &mut S) -> Result<Replica, Poisoned<S::Error>> {
        for (written, (name, tensor)) in self.touched().enumerate() {
            sink.write(name, tensor).map_err(|cause| Poisoned { cause, tensor: name.to_owned(), written })?;
        }
        Ok(self.replica)
    }
}

/// A place for tensors outside of this crate: buffers of an engine, tensors on a device.
pub trait Sink {
    /// Reason why a write failed.
    type Error;

    /// Replaces a tensor.
    fn write(&mut self, name: &str, tensor: TensorView<'_>) -> Result<(), Self::Error>;
}

impl<E, F: FnMut(&str, TensorView<'_>) -> Result<(), E>> Sink for F {
    type Error = E;

    fn write(&mut self, name: &str, tensor: TensorView<'_>) -> Result<(), E> {
        self(name, tensor)
    }
}

/// A receiver whose sink has tensors of two versions. It must not serve. The only way out is
/// [`Poisoned::reanchor`], which writes every tensor.
#[must_use = "a poisoned receiver must re-anchor before it serves"]
#[derive(Debug)]
pub struct Poisoned<E> {
    cause: E,
    tensor: String,
    written: usize,
}

impl<E> Poisoned<E> {
    /// Returns the reason why the write failed.
    pub fn cause(&self) -> &E {
        &self.cause
    }

    /// Returns the name of the tensor whose write failed.
    pub fn tensor(&self) -> &str {
        &self.tensor
    }

    /// Builds a version from its anchor and writes every tensor to `sink`. `None`: the latest version.
    ///
    /// # Errors
    /// [`Reanchor::Pull`] if the version cannot be built, [`Reanchor::Sink`] if a write fails again. Both
    /// return the poisoned receiver.
    pub fn reanchor<S: Sink<Error = E>>(
        self,
        store: &Store,
        version: Option<u64>,
        sink: &mut S,
    ) -> Result<Replica, Reanchor<E>> {
        match store.stage(None, version).and_then(Staged::verify) {
            Ok(verified) => verified.commit_to(sink).map_err(Reanchor::Sink),
            Err(error) => Err(Reanchor::Pull { error: Box::new(error), poisoned: self }),
        }
    }
}

impl<E: fmt::Display> fmt::Display for Poisoned<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cause, tensor, written } = self;
        write!(f, "tensor {tensor:?} could not be written after {written} others: {cause}; re-anchor")
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for Poisoned<E> {}

/// Reason why a poisoned receiver is still poisoned.
#[derive(Debug)]
pub enum Reanchor<E> {
    /// The version could not be built. The sink is unchanged.
    Pull {
        /// Reason.
        error: Box<Error>,
        /// The receiver.
        poisoned: Poisoned<E>,
    },
    /// The sink failed again.
    Sink(Poisoned<E>),
}

impl Store {
    /// Downloads and decodes a version beside what the receiver holds: by the deltas between both, by a fold
    /// of them, or from an anchor, whichever is the fewest bytes. `None`: the latest version.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::NoVersion`] or [`Error::Unreachable`] if the store has no such version; the
    /// error of the first object that failed if no way to the version is left.
    pub fn stage(&self, held: Option<&Replica>, version: Option<u64>) -> Result<Staged> {
        let target = self.target(held, version)?;
        let (staging, plan) = self.on_a_way(held, target, |plan| self.build(plan, held.map(Staging::of)))?;
        finish(staging, &plan, held)
    }

    /// Returns the number of a version that exists. `None`: the latest version.
    pub(crate) fn target(&self, held: Option<&Replica>, version: Option<u64>) -> Result<u64> {
        let latest = self.latest_from(held.map_or(0, Replica::version))?;
        match version.unwrap_or(latest) {
            version if version == 0 || version > latest => Err(Error::NoVersion { version, latest }),
            version => Ok(version),
        }
    }

    /// Calls `follow` with ways to a version until one succeeds.
    pub(crate) fn on_a_way<T>(
        &self,
        held: Option<&Replica>,
        target: u64,
        mut follow: impl FnMut(&Plan) -> Result<T>,
    ) -> Result<(T, Plan)> {
        let mut dead = HashSet::new();
        let mut first = None;
        for _ in 0..WAYS {
            let plan = match plan(&self.remote, held.map(Replica::version), target, &dead) {
                Ok(plan) => plan,
                Err(Error::Unreachable { .. }) if first.is_some() => break,
                Err(e) => return Err(e),
            };
            match follow(&plan) {
                Ok(followed) => return Ok((followed, plan)),
                // The object may be gone or damaged; another way may avoid it.
                Err(error) => match path_of(&error).filter(|path| plan.has(path)) {
                    Some(path) => {
                        dead.insert(path);
                        first.get_or_insert(error);
                    }
                    None => return Err(error),
                },
            }
        }
        Err(first.unwrap_or(Error::Unreachable { version: target }))
    }

    /// Stages, verifies and commits a version. `None`: the latest version.
    ///
    /// # Errors
    /// The errors of [`Self::stage`] and [`Staged::verify`].
    pub fn pull(&self, held: Option<Replica>, version: Option<u64>) -> Result<Replica> {
        self.stage(held.as_ref(), version)?.verify()?.commit(held)
    }

    /// Returns a replica of tensors that the caller holds, in any order, after comparing them with the
    /// version's digest.
    ///
    /// # Errors
    /// [`Error::Input`] if they are not the version's tensors. It names those that are missing, too many, or
    /// differ; for other elements, the version is downloaded to find them.
    pub fn hold(&self, version: u64, tensors: Vec<(String, impl Into<Tensor>)>) -> Result<Replica> {
        let tensors: Vec<_> = tensors.into_iter().map(|(name, tensor)| (name, tensor.into())).collect();
        let record = self.record(version)?;
        let model = self.model(&record.model)?;
        difference::check(&model, version, &tensors)?;
        let mut given: HashMap<String, Tensor> = tensors.into_iter().collect();
        let ordered = model.infos.iter().map(|info| given.remove(&info.name));
        let missing = || Error::input(format!("a tensor of version {version} is missing"));
        let tensors = ordered.collect::<Option<Vec<_>>>().ok_or_else(missing)?;
        let digests =
            model.infos.par_iter().zip(&tensors).map(|(info, tensor)| info.sum_digest(tensor.view()));
        let digests: Vec<_> = digests.collect::<gcodec::Result<_>>().map_err(Error::Codec)?;
        let replica = Replica { version, meta: record.meta.clone(), model, tensors, digests };
        match replica.state().to_string() == record.state {
            true => Ok(replica),
            false => Err(self.other_values(&replica)),
        }
    }

    /// Follows a plan from what the receiver holds, or from an anchor.
    fn build(&self, plan: &Plan, held: Option<Staging>) -> Result<Staging> {
        self.remote.expect(plan.bytes());
        let staging = self.start(plan, held)?;
        let runs = self.runs(&[plan], self.remote.options.memory)?;
        runs.into_iter().try_fold(staging, |staging, groups| self.walk(plan, staging, &groups))
    }

    /// Returns what a plan begins with.
    pub(crate) fn start(&self, plan: &Plan, held: Option<Staging>) -> Result<Staging> {
        let starts_anew = plan.steps.first().is_some_and(|step| !step.is_delta());
        match held.filter(|_| !starts_anew) {
            Some(held) => Ok(held),
            None => {
                let first = plan.steps.first().map_or(&plan.record.model, |step| &step.model);
                Ok(Staging::new(self.model(first)?))
            }
        }
    }

    /// Returns runs of groups that can be built one after another, whose objects have at most `memory` bytes:
    /// all groups together unless the plans have one table.
    pub(crate) fn runs(&self, plans: &[&Plan], memory: u64) -> Result<Vec<Range<u64>>> {
        let all = 0..u64::MAX;
        let mut runs = vec![all];
        let [first, rest @ ..] = plans else { return Ok(runs) };
        let is_first = |plan: &&Plan| plan.record.model == first.record.model;
        if !plans.iter().all(|plan| plan.has_one_table()) || !rest.iter().all(is_first) {
            return Ok(runs);
        }
        let groups = self.model(&first.record.model)?.groups.len() as u64;
        let mut sizes = BTreeMap::new();
        for object in plans.iter().flat_map(|plan| &plan.steps).flat_map(|step| &step.objects) {
            let size = sizes.entry(object.group).or_insert(0u64);
            *size = size.saturating_add(object.size);
        }
        let mut bytes = 0u64;
        for (group, size) in sizes.range(..groups) {
            bytes = bytes.saturating_add(*size);
            if bytes > memory
                && let Some(last) = runs.last_mut().filter(|last| last.start < *group)
            {
                last.end = *group;
                runs.push(*group..u64::MAX);
                bytes = *size;
            }
        }
        Ok(runs)
    }

    /// Follows a plan with the objects of some groups: of all, unless the plan has one table.
    pub(crate) fn walk(&self, plan: &Plan, staging: Staging, groups: &Range<u64>) -> Result<Staging> {
        let mut staging = staging;
        let steps = plan.steps.iter().enumerate();
        let all = steps.flat_map(|(n, step)| step.objects.iter().map(move |object| (n, object)));
        let wanted: Vec<_> = all.filter(|(_, object)| groups.contains(&object.group)).collect();
        let mut rest = wanted.as_slice();
        // Steps that were begun. Also one without objects may drop a tensor that a later one brings back.
        let mut begun = 0;
        while !rest.is_empty() {
            let mut bytes = 0u64;
            let fits = rest.iter().take_while(|(_, object)| {
                bytes = bytes.saturating_add(object.size);
                bytes <= self.remote.options.memory
            });
            let (batch, later) = rest.split_at(fits.count().max(1));
            let objects: Vec<_> = batch.iter().map(|(_, object)| *object).collect();
            let fetched = self.remote.fetch(&objects)?;
            for (&(n, object), bytes) in batch.iter().zip(fetched) {
                staging = self.begin(staging, &plan.steps[begun..=n])?;
                begun = n + 1;
                let is_delta = plan.steps[n].is_delta();
                staging.apply(object, &bytes, is_delta, None, &self.remote.options)?;
            }
            rest = later;
        }
        self.begin(staging, &plan.steps[begun..])
    }

    /// Gives a staging the tables of steps, one after another.
    fn begin(&self, staging: Staging, steps: &[Step]) -> Result<Staging> {
        let new = |staging: &Staging, step: &Step| staging.model.object != step.model;
        steps.iter().try_fold(staging, |staging, step| match new(&staging, step) {
            true => Ok(staging.with_model(self.model(&step.model)?)),
            false => Ok(staging),
        })
    }
}

fn finish(staging: Staging, plan: &Plan, held: Option<&Replica>) -> Result<Staged> {
    let record = &plan.record;
    Ok(Staged {
        held: held.map(|held| (held.version, Arc::clone(&held.model), held.digests.clone())),
        version: record.version,
        state: layout::digest(&record.state, &layout::version_path(record.version))?,
        meta: record.meta.clone(),
        bytes: plan.bytes(),
        steps: plan.steps.len(),
        staging,
    })
}

/// Returns the object with weights that an error is about.
fn path_of(error: &Error) -> Option<String> {
    match error {
        Error::Missing { path } | Error::Corrupt { path, .. } | Error::Stream { path, .. } => {
            Some(path.clone())
        }
        _ => None,
    }
}
