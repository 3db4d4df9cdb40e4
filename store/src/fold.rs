//! Folds: one delta in the place of several.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use gcodec::digest::SumDigest;

use crate::Store;
use crate::error::{Error, Result};
use crate::layout::{self, Kind, Record};
use crate::plan::plan;
use crate::publish::Sender;

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
    /// One group of tensors at both versions; all tensors if some were added or dropped since the anchor
    /// before `from`. They are in temporary files if the store has [`scratch`](crate::Options::scratch).
    ///
    /// # Errors
    /// [`Error::Input`] unless `from` is before `to`; the errors of [`Store::stage`].
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
        let model = self.model(&to_last.record.model)?;
        self.remote.expect(to_first.bytes().saturating_add(to_last.bytes()));
        let runs = self.runs(&[&to_first, &to_last], 0)?;
        let is_whole = runs.len() == 1;
        let (mut all_old, mut all_new) = (Vec::new(), Vec::new());
        let (mut objects, mut touched, mut bytes) = (Vec::new(), 0, 0);
        let codec = to_last.record.codec();
        let sender = Sender { store: self, model: &model, version: to, codec, fresh };
        for run in runs {
            let mut old = self.walk(&to_first, self.start(&to_first, None)?, &run)?;
            old.digest();
            let mut new = self.walk(&to_last, self.start(&to_last, Some(old.clone()))?, &run)?;
            new.digest();
            let groups = run.start as usize..model.groups.len().min(run.end as usize);
            let tensors = model.groups[groups.clone()].iter().flat_map(Clone::clone);
            let missing = || Error::corrupt(layout::version_path(from), "an anchor lacks a group");
            let known = |digests: &mut dyn Iterator<Item = Option<SumDigest>>| {
                digests.collect::<Option<Vec<_>>>().ok_or_else(missing)
            };
            all_old.extend(match is_whole {
                // Version `from` may have other tensors.
                true => known(&mut old.digests.iter().copied())?,
                false => known(&mut tensors.clone().map(|n| old.digests[n]))?,
            });
            all_new.extend(known(&mut tensors.map(|n| new.digests[n]))?);
            let counterparts = old.model.counterparts(&model.infos);
            let base = |n: usize| {
                let old_n = counterparts[n]?;
                Some((old.tensors[old_n].as_ref()?.view(), old.digests[old_n]))
            };
            for number in groups {
                let differs = |n: &usize| counterparts[*n].and_then(|o| old.digests[o]) != new.digests[*n];
                let changed: Vec<usize> = model.groups[number].clone().filter(differs).collect();
                touched += changed.len() as u64;
                if changed.is_empty() {
                    continue;
                }
                let whole = changed.iter().map(|&n| Some((n, new.tensors[n].as_ref()?.view())));
                let whole = whole.collect::<Option<HashMap<_, _>>>().ok_or_else(missing)?;
                let streams = sender.send(Kind::Fold, vec![number], |_| {
                    sender.encode_changes(number, &changed, base, |n| (whole[&n], new.digests[n]))
                })?;
                bytes += layout::size(&streams);
                objects.extend(streams);
            }
        }
        // What the fold leads from and to must be the versions that were published.
        let wrong = |version| {
            Error::corrupt(layout::version_path(version), "the tensors differ from the record's digest")
        };
        for (version, digests, record) in
            [(from, &all_old, &to_first.record), (to, &all_new, &to_last.record)]
        {
            if digests.iter().copied().sum::<SumDigest>().to_string() != record.state {
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
