//! Receiving tensor by tensor, for versions that are larger than the memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use gcodec::TensorView;
use gcodec::digest::SumDigest;
use gcodec::frame::TensorInfo;

use crate::Store;
use crate::error::{Error, Result};
use crate::layout::{self, Record};
use crate::plan::Plan;
use crate::weights::{Model, Replica, Staging};

/// A version whose tensors are read one after another ([`Store::read`]).
pub struct Reading<'s> {
    store: &'s Store,
    held: Option<&'s Replica>,
    record: Record,
    model: Arc<Model>,
}

/// Facts about a version that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Read {
    /// Bytes of the objects that it was made from.
    pub bytes: u64,
    /// Number of anchors and deltas that it was made from.
    pub steps: usize,
    /// Tensors that differ from those that the receiver holds, or all if it holds none.
    pub touched: usize,
}

impl Store {
    /// Finds a version, to read its tensors one after another: by the deltas from what the receiver holds, as
    /// [`Self::stage`] does. `None`: the latest version.
    ///
    /// # Errors
    /// [`Error::Empty`] or [`Error::NoVersion`] if the store has no such version.
    pub fn read<'s>(&'s self, held: Option<&'s Replica>, version: Option<u64>) -> Result<Reading<'s>> {
        let record = self.record(self.target(held, version)?)?;
        let model = self.model(&record.model)?;
        Ok(Reading { store: self, held, record, model })
    }
}

impl Reading<'_> {
    /// Returns the version.
    pub fn version(&self) -> u64 {
        self.record.version
    }

    /// Returns the keys and values that the publisher gave the version.
    pub fn meta(&self) -> &BTreeMap<String, String> {
        &self.record.meta
    }

    /// Returns names, types and shapes of the tensors, in the order of the version's table.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.model.infos
    }

    /// Builds the tensors, some groups after others, and calls `take` with each in the order of
    /// [`Self::tensors`]. Last, it checks the digest of all tensors against the version's record: without
    /// `Ok`, what was taken is not the version.
    ///
    /// # Memory
    /// The tensors of the groups whose objects together have at most [`Options::memory`](crate::Options)
    /// bytes, in files if the store has [`scratch`](crate::Options::scratch).
    ///
    /// # Errors
    /// The first error of `take`; the errors of [`Store::stage`] and [`Staged::verify`](crate::Staged).
    pub fn for_each<E: From<Error>>(
        &self,
        mut take: impl FnMut(&str, TensorView<'_>) -> Result<(), E>,
    ) -> Result<Read, E> {
        let mut digests = Vec::with_capacity(self.model.infos.len());
        // Another way to the version continues with the tensors that were not taken.
        let (taken, plan) = self
            .store
            .on_a_way(self.held, self.record.version, |plan| self.follow(plan, &mut digests, &mut take))?;
        taken?;
        let path = || layout::version_path(self.record.version);
        if digests.iter().copied().sum::<SumDigest>() != layout::digest(&self.record.state, &path())? {
            return Err(Error::corrupt(path(), "the tensors differ from the record's digest").into());
        }
        let old = self.held.map(|held| (held, held.model.counterparts(&self.model.infos)));
        let held = |n: usize| old.as_ref().and_then(|(held, old)| Some(held.digests[old[n]?]));
        let touched = (0..digests.len()).filter(|&n| held(n) != Some(digests[n])).count();
        Ok(Read { bytes: plan.bytes(), steps: plan.steps.len(), touched })
    }

    /// Follows a plan. `digests`: those of the tensors that were taken.
    fn follow<E>(
        &self,
        plan: &Plan,
        digests: &mut Vec<SumDigest>,
        take: &mut impl FnMut(&str, TensorView<'_>) -> Result<(), E>,
    ) -> Result<Result<(), E>> {
        let missing = || Error::corrupt(layout::version_path(self.record.version), "a tensor is missing");
        self.store.remote.expect(plan.bytes());
        for groups in self.store.runs(&[plan], self.store.remote.options.memory)? {
            let end = self.model.groups.len().min(groups.end as usize);
            let of_groups = &self.model.groups[groups.start as usize..end];
            if of_groups.last().is_none_or(|last| last.end <= digests.len()) {
                continue;
            }
            let staging = self.store.start(plan, self.held.map(Staging::of))?;
            let mut staging = self.store.walk(plan, staging, &groups)?;
            staging.digest();
            let taken = digests.len();
            for n in of_groups.iter().flat_map(Clone::clone).filter(|n| *n >= taken) {
                let tensor = staging.tensors[n].as_ref().ok_or_else(missing)?;
                let digest = staging.digests[n].ok_or_else(missing)?;
                if let Err(e) = take(&self.model.infos[n].name, tensor.view()) {
                    return Ok(Err(e));
                }
                digests.push(digest);
            }
        }
        Ok(Ok(()))
    }
}
