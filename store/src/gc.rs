//! Garbage collection.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use crate::Store;
use crate::error::{Error, Result};
use crate::layout::{self, CLOCK, DATA, FOLDS, LEASES, LeaseText, Record};

/// Versions that [`Store::gc`] keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collection {
    /// Latest versions that stay available, at least 1. Default: 1.
    pub keep: u64,
    /// Whether nothing is deleted. Default: false.
    pub dry_run: bool,
}

impl Default for Collection {
    fn default() -> Self {
        Self { keep: 1, dry_run: false }
    }
}

impl Collection {
    /// Sets [`Collection::keep`].
    #[must_use]
    pub fn with_keep(mut self, keep: u64) -> Self {
        self.keep = keep;
        self
    }

    /// Sets [`Collection::dry_run`].
    #[must_use]
    pub fn with_dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

/// Result of a collection: the objects that it deleted, or would delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// Oldest version that is certain to stay available.
    pub oldest: u64,
    /// Objects that stay.
    pub kept: u64,
    /// Objects deleted.
    pub deleted: u64,
    /// Bytes deleted.
    pub bytes: u64,
}

impl Store {
    /// Deletes weights that no reader needs: those before the anchor of the oldest kept version, unless a
    /// lease needs them; and those of publishers that were stopped. Nothing younger than the store's grace
    /// period is deleted, nor anything that a newer anchor replaced within it.
    ///
    /// Records of versions stay, so that no number is used twice.
    ///
    /// # Errors
    /// [`Error::Transport`], also for a store without listing, such as a file server; [`Error::Corrupt`] if a
    /// record is: nothing is deleted then. A collection that was stopped is continued by the next one.
    pub fn gc(&self, collection: &Collection) -> Result<Collected> {
        let grace = self.settings()?.grace();
        // The store's own time, as ages are by its clock.
        self.remote.replace(CLOCK, &layout::Hint { version: 0 })?;
        let now = self.remote.written(CLOCK)?.ok_or_else(|| Error::Missing { path: CLOCK.into() })?;
        let is_old = |written: SystemTime| now.duration_since(written).is_ok_and(|age| age > grace);
        // Listed before the latest version is looked up: an object of a later version is not in the list.
        let data = self.remote.list(DATA)?;
        let folds = self.remote.list(FOLDS)?;
        let latest = self.latest()?;
        let oldest = latest.saturating_sub(collection.keep.max(1) - 1).max(1);
        let anchor = self.settled_anchor(oldest, is_old)?;
        let (leases, ended) = self.leases(now)?;
        let first = leases.iter().map(|version| version + 1).min().unwrap_or(anchor).min(anchor);

        let mut live: HashSet<String> = HashSet::new();
        // A reader that holds the version before the first compares its tensors with that version's table.
        if first > 1 {
            live.insert(self.record(first - 1)?.model.path);
        }
        let mut add = |record: &Record| {
            live.insert(record.model.path.clone());
            live.extend(record.objects().map(|object| object.path.clone()));
        };
        let names: Vec<String> = (first..=latest).map(layout::version_path).collect();
        for ((version, name), record) in (first..).zip(&names).zip(self.remote.texts::<Record>(&names)?) {
            add(&record.ok_or_else(|| Error::Missing { path: name.clone() })?.check(name, version)?);
        }
        let mut dead_folds = Vec::new();
        for fold in &folds {
            let Some((from, to)) = layout::parse_fold(&fold.name) else { continue };
            if from + 1 < first && is_old(fold.written) {
                dead_folds.push(fold.name.clone());
            } else if let Some(record) = self.remote.text::<Record>(&fold.name)? {
                add(&record.check(&fold.name, to)?);
            }
        }
        let is_dead = |object: &&crate::remote::Listed| {
            layout::parse_data(&object.name).is_some()
                && !live.contains(&object.name)
                && is_old(object.written)
        };
        let dead: Vec<_> = data.iter().filter(is_dead).collect();
        let collected = Collected {
            oldest,
            kept: (data.len() - dead.len()) as u64,
            deleted: dead.len() as u64,
            bytes: dead.iter().map(|object| object.size).sum(),
        };
        if !collection.dry_run {
            // Records of folds go before their weights, so that no record refers to what is gone.
            self.remote.delete(&dead_folds)?;
            self.remote.delete(&dead.iter().map(|object| object.name.clone()).collect::<Vec<_>>())?;
            self.remote.delete(&ended)?;
        }
        Ok(collected)
    }

    /// Returns the newest anchor at or before `version` that is old enough for readers to have seen it.
    fn settled_anchor(&self, version: u64, is_old: impl Fn(SystemTime) -> bool) -> Result<u64> {
        let mut at = version;
        loop {
            let anchor = self.record(at)?.anchor_version;
            let written = self.remote.written(&layout::version_path(anchor))?;
            if written.is_some_and(&is_old) || anchor <= 1 {
                return Ok(anchor);
            }
            at = anchor - 1;
        }
    }

    /// Returns the versions of the leases that hold, and the names of those that ended.
    fn leases(&self, now: SystemTime) -> Result<(Vec<u64>, Vec<String>)> {
        let (mut held, mut ended) = (Vec::new(), Vec::new());
        for listed in self.remote.list(LEASES)? {
            // A lease that ends at this moment may be gone.
            let Some(lease) = self.remote.text::<LeaseText>(&listed.name)? else { continue };
            let end = listed.written.checked_add(Duration::from_secs(lease.seconds));
            match end.is_none_or(|end| end >= now) {
                true => held.push(lease.version),
                false => ended.push(listed.name),
            }
        }
        Ok((held, ended))
    }
}
