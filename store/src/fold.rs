//! Folds: one delta in the place of several.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use crate::Store;
use crate::error::{Error, Result};
use crate::layout::{self, Kind, Record};
use crate::plan::plan;
use crate::publish::Sender;
use crate::weights::Staging;

/// A fold that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Folded {
    /// Version that it applies to.
    pub from: u64,
    /// Version that it results in.
    pub to: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of the deltas that it stands for.
    pub replay_bytes: u64,
    /// Tensors that differ between both versions.
    pub touched: u64,
}

impl Store {
    /// Stores one delta from version `from` to version `to`, bit-equal to the deltas between them. Receivers
    /// that hold `from`, or pass it on their way, take it if it is smaller. It has the codec of the delta to
    /// version `to`.
    ///
    /// # Memory
    /// One group of tensors at both versions.
    ///
    /// # Errors
    /// [`Error::Input`] unless `from` is before `to`, and both have the same tensors; the errors of
    /// [`Store::stage`].
    pub fn fold(&self, from: u64, to: u64) -> Result<Folded> {
        let latest = self.latest()?;
        if from == 0 || to > latest {
            return Err(Error::NoVersion { version: if from == 0 { 0 } else { to }, latest });
        }
        if from >= to {
            return Err(Error::input(format!("a fold goes forward, not from {from} to {to}")));
        }
        let settings = self.settings()?;
        let fresh = settings.grace() / 4;
        let start = Instant::now();
        let to_first = plan(&self.remote, None, from, &HashSet::new())?;
        let to_last = plan(&self.remote, Some(from), to, &HashSet::new())?;
        let model = self.model(&to_first.record.model)?;
        if self.model(&to_last.record.model)?.infos != model.infos {
            return Err(Error::input(format!("versions {from} and {to} have different tensors")));
        }
        // An anchor between them may be the shorter way to `to`.
        let anew = to_last.steps.first().is_some_and(|step| !step.is_delta());
        let (mut all_old, mut all_new) = (Vec::new(), Vec::new());
        let (mut objects, mut touched, mut bytes) = (Vec::new(), 0, 0);
        let codec = to_last.record.codec();
        let sender = Sender { store: self, model: &model, version: to, codec, fresh };
        for (number, group) in model.groups.iter().enumerate() {
            let mut old = Staging::new(Arc::clone(&model));
            self.walk_into(&to_first, &mut old, Some(number as u64))?;
            old.digest();
            let mut new = Staging::new(Arc::clone(&model));
            if !anew {
                new.tensors.clone_from(&old.tensors);
                new.digests.clone_from(&old.digests);
                new.changed.clone_from(&old.changed);
            }
            self.walk_into(&to_last, &mut new, Some(number as u64))?;
            new.digest();
            let missing = || Error::corrupt(layout::version_path(from), "an anchor lacks a group");
            let of_group = |staging: &Staging| {
                staging.digests[group.clone()].iter().copied().collect::<Option<Vec<_>>>()
            };
            let (before, after) = (of_group(&old).ok_or_else(missing)?, of_group(&new).ok_or_else(missing)?);
            let changed: Vec<usize> =
                group.clone().filter(|n| before[n - group.start] != after[n - group.start]).collect();
            touched += changed.len() as u64;
            all_old.extend(before);
            all_new.extend(after);
            if changed.is_empty() {
                continue;
            }
            let streams = sender
                .send(Kind::Fold, vec![number], |_| sender.encode_changes(number, &changed, &old, &new))?;
            bytes += layout::size(&streams);
            objects.extend(streams);
        }
        // What the fold leads from and to must be the versions that were published.
        let wrong = |version| {
            Error::corrupt(layout::version_path(version), "the tensors differ from the record's digest")
        };
        for (version, digests, record) in
            [(from, &all_old, &to_first.record), (to, &all_new, &to_last.record)]
        {
            if layout::hex(&gcodec::internal::run_digest(digests)) != record.state {
                return Err(wrong(version));
            }
        }
        if settings.is_too_late(start) {
            return Err(Error::TooSlow { grace: settings.grace() });
        }
        let replay_bytes = self.replay_bytes(from, to)?;
        let record = Record {
            parent: from,
            meta: BTreeMap::new(),
            touched,
            anchor: None,
            delta: Some(objects),
            codec: Some(codec.to_string()),
            anchor_version: to_last.record.anchor_version.min(to - 1),
            ..to_last.record
        };
        // The same fold by another process is as good.
        self.remote.create(&layout::fold_path(from, to), &record)?;
        Ok(Folded { from, to, bytes, replay_bytes, touched })
    }

    /// Returns the bytes of the deltas between two versions.
    fn replay_bytes(&self, from: u64, to: u64) -> Result<u64> {
        let names: Vec<String> = (from + 1..=to).map(layout::version_path).collect();
        let records = self.remote.texts::<Record>(&names)?;
        Ok(records.iter().flatten().map(|record| record.delta.as_deref().map_or(0, layout::size)).sum())
    }
}
