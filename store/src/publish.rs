//! Publishing: immutable objects first, then one record that commits them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use gcodec::compress::{self, Change, Digests, Input, codecs::Delta};
use gcodec::digest::SumDigest;
use gcodec::frame::{TensorInfo, UpdateHeader};
use gcodec::stream::EncodeOptions;
use gcodec::{Codec, TensorView, Writer};
use rayon::prelude::*;

use crate::Store;
use crate::error::{Error, Result};
use crate::layout::{self, Kind, ModelText, Object, Record};
use crate::options::Policy;
use crate::scratch::{self, Scratch};
use crate::tensor::Tensor;
use crate::weights::{Model, Replica, Zeros, cut};

/// A version that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// Its number.
    pub version: u64,
    /// Tensors that differ from the version before.
    pub touched: u64,
    /// Bytes of its delta, if it has one.
    pub delta_bytes: Option<u64>,
    /// Bytes of its anchor, if it is one.
    pub anchor_bytes: Option<u64>,
    /// Bytes of the weights.
    pub bytes: u64,
}

/// Publishes versions one after another. It keeps the last one in memory, as the base of the next delta.
pub struct Publisher<'s> {
    store: &'s Store,
    policy: Policy,
    /// The last version and its record.
    last: Option<(Replica, Record)>,
}

impl<'s> Publisher<'s> {
    /// Returns a publisher after the latest version of the store, which it downloads.
    ///
    /// # Errors
    /// The errors of [`Store::pull`].
    pub fn new(store: &'s Store, policy: Policy) -> Result<Self> {
        Self::with_base(store, policy, None)
    }

    /// Returns a publisher that has some version of the store already.
    ///
    /// # Errors
    /// [`Error::Input`] if the policy's codec makes no deltas; the errors of [`Store::pull`].
    pub fn with_base(store: &'s Store, policy: Policy, held: Option<Replica>) -> Result<Self> {
        if !layout::is_delta(&policy.codec) {
            return Err(Error::input(format!("{} does not encode deltas of versions", policy.codec)));
        }
        let mut publisher =
            Self { store, policy, last: held.map(|held| store.with_record(held)).transpose()? };
        publisher.synchronise()?;
        Ok(publisher)
    }

    /// Downloads what other publishers published since. Necessary after [`Error::Conflict`].
    ///
    /// # Errors
    /// The errors of [`Store::pull`].
    pub fn synchronise(&mut self) -> Result<()> {
        let held = self.last.as_ref().map(|(replica, _)| replica.clone());
        match self.store.pull(held, None) {
            Ok(replica) => self.last = Some(self.store.with_record(replica)?),
            Err(Error::Empty) => self.last = None,
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Returns the version that the next delta applies to.
    pub fn base(&self) -> Option<&Replica> {
        self.last.as_ref().map(|(replica, _)| replica)
    }

    /// Publishes tensors as the next version. Readers see it whole, or not at all.
    ///
    /// # Memory
    /// The weights of the last version; one group of tensors, encoded; and the objects being transferred.
    /// With [`scratch`](crate::Options::scratch), these are in temporary files, and a few blocks in memory.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another publisher was first; [`Error::Input`] or [`Error::Codec`] for tensors
    /// that cannot be stored; [`Error::Io`] before the work for a folder without hard links, and
    /// [`Error::Unconditional`] for a server without conditional writes; [`Error::Transport`]. Nothing was
    /// published then.
    pub fn publish(
        &mut self,
        tensors: &[(&str, TensorView<'_>)],
        meta: BTreeMap<String, String>,
    ) -> Result<Published> {
        let (published, next) = self.write(tensors, meta)?;
        let Written { record, model, views, old, changed, digests } = next;
        let (version, meta) = (record.version, record.meta.clone());
        let last = self.last.take().map(|(replica, _)| replica);
        let tensors = keep(&views, &old, &changed, last, self.store.remote.options.scratch.as_deref());
        self.last = Some((Replica { version, meta, model, tensors, digests }, record));
        Ok(published)
    }

    /// Publishes as [`Self::publish`] does, as the last version of this publisher: it keeps no tensors.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub fn publish_last(
        self,
        tensors: &[(&str, TensorView<'_>)],
        meta: BTreeMap<String, String>,
    ) -> Result<Published> {
        self.write(tensors, meta).map(|(published, _)| published)
    }

    /// Writes a version.
    fn write<'t>(
        &self,
        tensors: &'t [(&str, TensorView<'t>)],
        meta: BTreeMap<String, String>,
    ) -> Result<(Published, Written<'t>)> {
        let start = Instant::now();
        self.store.check_links()?;
        self.store.check_conditions()?;
        let settings = self.store.create_settings()?;
        let last = self.last.as_ref();
        let version = last.map_or(1, |(replica, _)| replica.version + 1);
        let Next { model, views, old } = self.next(version, tensors)?;
        let continues = last.filter(|_| is_worth_a_delta(&model, &old));
        let of_last = last.map(|(replica, _)| replica);
        let digests = digests(&model, &views, &old, of_last)?;
        let old_digest = |n: usize| of_last.zip(old[n]).map(|(last, old)| last.digests[old]);
        let changed: Vec<usize> = (0..views.len()).filter(|&n| old_digest(n) != Some(digests[n])).collect();

        let (store, codec) = (self.store, self.policy.codec);
        let sender = Sender { store, model: &model, version, codec, fresh: settings.grace() / 4 };
        let delta = match continues {
            Some((last, _)) => {
                let base = |n: usize| old[n].map(|old| (last.tensors[old].view(), Some(last.digests[old])));
                Some(sender.deltas(&changed, base, |n| (views[n], Some(digests[n])))?)
            }
            None => None,
        };
        let delta_bytes = delta.as_deref().map(layout::size);
        let needs_anchor = continues.is_none_or(|(_, record)| {
            let chain = record.chain_bytes.saturating_add(delta_bytes.unwrap_or(0));
            version - record.anchor_version >= self.policy.anchor_every || chain >= self.anchor_bytes(record)
        });
        let anchor = if needs_anchor { Some(sender.anchors(&views)?) } else { None };
        let before = continues.filter(|_| anchor.is_none());
        let record = Record {
            version,
            parent: continues.map_or(0, |(replica, _)| replica.version),
            created_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64),
            nonce: nonce(),
            meta,
            model: model.object.clone(),
            state: digests.iter().copied().sum::<SumDigest>().to_string(),
            bytes: model.bytes(),
            touched: changed.len() as u64,
            anchor_version: before.map_or(version, |(_, record)| record.anchor_version),
            chain_bytes: before.map_or(0, |(_, r)| r.chain_bytes.saturating_add(delta_bytes.unwrap_or(0))),
            codec: delta.as_ref().map(|_| codec.to_string()),
            anchor,
            delta,
        };
        // Until the record exists, `gc` takes the objects for those of a publisher that was stopped.
        if settings.is_too_late(start) {
            return Err(Error::TooSlow { grace: settings.grace() });
        }
        if !self.store.remote.create(&layout::version_path(version), &record)? {
            return Err(Error::Conflict { version });
        }
        // Readers find the version without it, too.
        let _ = self.store.remote.replace(layout::HINT, &layout::Hint { version });
        let published = Published {
            version,
            touched: changed.len() as u64,
            delta_bytes,
            anchor_bytes: record.anchor.as_deref().map(layout::size),
            bytes: record.bytes,
        };
        Ok((published, Written { record, model, views, old, changed, digests }))
    }

    /// Returns the bytes of the anchor of a record's chain.
    fn anchor_bytes(&self, record: &Record) -> u64 {
        let anchor = self.store.record(record.anchor_version).ok().and_then(|record| record.anchor);
        // An anchor that cannot be read is replaced.
        anchor.as_deref().map_or(0, layout::size)
    }

    /// Finds the tensors in the last version. A version with the same tensors in another order has the last
    /// one's table, so that no delta depends on the order.
    fn next<'t>(&self, version: u64, tensors: &'t [(&str, TensorView<'t>)]) -> Result<Next<'t>> {
        let infos: Vec<TensorInfo> =
            tensors.iter().map(|(name, view)| TensorInfo::new(*name, view.dtype(), view.shape())).collect();
        let last = self.last.as_ref().map(|(replica, _)| &replica.model);
        let old = last.map_or_else(|| vec![None; infos.len()], |last| last.counterparts(&infos));
        if let Some(last) = last.filter(|last| last.infos.len() == infos.len()) {
            let found: HashMap<usize, TensorView<'t>> =
                old.iter().zip(tensors).filter_map(|(old, (_, view))| Some(((*old)?, *view))).collect();
            // Some are missing if the last version lacks a tensor, or if a name is repeated.
            let ordered: Option<Vec<_>> = (0..infos.len()).map(|n| found.get(&n).copied()).collect();
            if let Some(views) = ordered {
                let old = (0..infos.len()).map(Some).collect();
                return Ok(Next { model: Arc::clone(last), views, old });
            }
        }
        let views = tensors.iter().map(|(_, view)| *view).collect();
        Ok(Next { model: self.new_model(version, infos)?, views, old })
    }

    fn new_model(&self, version: u64, infos: Vec<TensorInfo>) -> Result<Arc<Model>> {
        let counts = cut(&infos, self.policy.group_bytes);
        let text = Bytes::from(layout::to_text(&ModelText::new(&infos, &counts))?);
        let object = Object::of(Kind::Model, version, 0, &text);
        // Refuses repeated names before anything is written.
        let model = Model::new(infos, &counts, object.clone()).map_err(Error::Codec)?;
        self.store.remote.upload(&[(object, text)], std::time::Duration::ZERO)?;
        Ok(Arc::new(model))
    }
}

/// Tensors of the version to publish, in the order of its table.
struct Next<'t> {
    model: Arc<Model>,
    views: Vec<TensorView<'t>>,
    /// For each tensor, its number in the last version; `None` if that has none of its name, type and shape.
    old: Vec<Option<usize>>,
}

/// A version that was published, and what the next one needs of it.
struct Written<'t> {
    record: Record,
    model: Arc<Model>,
    views: Vec<TensorView<'t>>,
    old: Vec<Option<usize>>,
    /// Numbers of the tensors that differ from the last version.
    changed: Vec<usize>,
    digests: Vec<SumDigest>,
}

/// Returns the tensors of a version: the changed ones copied, into the memory of the version before if nobody
/// else has it or to a file in `scratch`, and the others as they are there.
fn keep(
    views: &[TensorView<'_>],
    old: &[Option<usize>],
    changed: &[usize],
    last: Option<Replica>,
    scratch: Option<&Path>,
) -> Vec<Tensor> {
    let mut held: Vec<_> = last.map_or_else(Vec::new, |last| last.tensors).into_iter().map(Some).collect();
    let mut before = |n: usize| held.get_mut(old[n]?)?.take();
    let of_each: Vec<_> =
        (0..views.len()).map(|n| (views[n], before(n), changed.binary_search(&n).is_ok())).collect();
    let copied = of_each.iter().filter(|(_, before, is_changed)| before.is_none() || *is_changed);
    let views: Vec<_> = copied.map(|(view, ..)| *view).collect();
    // The version is published by now: a folder without room must not be an error.
    if let Some(mut bytes) = scratch.and_then(|folder| copy(&views, folder).ok()) {
        let kept = of_each.into_iter().map(|(view, before, is_changed)| match before {
            Some(before) if !is_changed => before,
            _ => Tensor::of_view(view, bytes.split_to(view.data().len())),
        });
        return kept.collect();
    }
    let kept = of_each.into_par_iter().map(|(view, before, is_changed)| match before {
        Some(before) if is_changed => before.replaced(view),
        Some(before) => before,
        None => Tensor::of_view(view, Bytes::copy_from_slice(view.data())),
    });
    kept.collect()
}

/// Copies tensors to a temporary file.
fn copy(views: &[TensorView<'_>], folder: &Path) -> Result<Bytes> {
    let mut file = Scratch::new(Some(folder))?;
    views.iter().try_for_each(|view| file.put(view.data()))?;
    file.finish()
}

/// Whether at least an eighth of the bytes is in tensors that the last version has. Below, a delta saves
/// little, and an anchor begins a new chain.
fn is_worth_a_delta(model: &Model, old: &[Option<usize>]) -> bool {
    let new = model.infos.iter().zip(old).filter(|(_, old)| old.is_none());
    new.fold(0, |sum: u64, (info, _)| sum.saturating_add(info.bytes())) <= model.bytes() / 8 * 7
}

pub(crate) fn nonce() -> String {
    let random = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// Encodes groups of tensors and uploads them.
pub(crate) struct Sender<'s> {
    pub(crate) store: &'s Store,
    pub(crate) model: &'s Model,
    pub(crate) version: u64,
    /// Codec of deltas.
    pub(crate) codec: Codec,
    pub(crate) fresh: std::time::Duration,
}

impl Sender<'_> {
    /// Uploads the whole tensors.
    fn anchors(&self, new: &[TensorView<'_>]) -> Result<Vec<Object>> {
        self.send(Kind::Anchor, (0..self.model.groups.len()).collect(), |group| {
            let tensors: Vec<usize> = self.model.groups[group].clone().collect();
            let inputs: Vec<_> = tensors.iter().map(|&n| self.input(group, n, new[n], None)).collect();
            let codecs = vec![Codec::LOSSLESS; inputs.len()];
            self.encode(group, &inputs, &codecs, Digests::default(), Codec::LOSSLESS)
        })
    }

    /// Uploads the differences of the `changed` tensors. `base`: tensor and digest in the version before;
    /// `None` if that has no such tensor. `new`: tensor and digest now.
    fn deltas<'t>(
        &self,
        changed: &[usize],
        base: impl Fn(usize) -> Option<Known<'t>>,
        new: impl Fn(usize) -> Known<'t>,
    ) -> Result<Vec<Object>> {
        let mut groups: Vec<usize> = changed.iter().map(|&n| self.model.group_of(n)).collect();
        groups.dedup();
        self.send(Kind::Delta, groups, |group| {
            let of_group: Vec<usize> =
                changed.iter().copied().filter(|n| self.model.groups[group].contains(n)).collect();
            self.encode_changes(group, &of_group, &base, &new)
        })
    }

    /// Encodes groups and uploads them, in batches of at most the memory of transfers.
    pub(crate) fn send(
        &self,
        kind: Kind,
        groups: Vec<usize>,
        encode: impl Fn(usize) -> Result<Bytes>,
    ) -> Result<Vec<Object>> {
        let (mut sent, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
        for group in groups {
            let stream = encode(group)?;
            let object = Object::of(kind, self.version, group, &stream);
            bytes += object.size;
            sent.push(object.clone());
            batch.push((object, stream));
            if bytes >= self.store.remote.options.memory {
                self.store.remote.upload(&std::mem::take(&mut batch), self.fresh)?;
                bytes = 0;
            }
        }
        self.store.remote.upload(&batch, self.fresh)?;
        Ok(sent)
    }

    /// Encodes the differences of tensors of a group. `base`, `new`: as in [`Self::deltas`].
    pub(crate) fn encode_changes<'t>(
        &self,
        group: usize,
        changed: &[usize],
        base: impl Fn(usize) -> Option<Known<'t>>,
        new: impl Fn(usize) -> Known<'t>,
    ) -> Result<Bytes> {
        let bases: Vec<_> = changed.iter().map(|&n| base(n)).collect();
        let whole = changed.iter().zip(&bases).filter(|(_, base)| base.is_none());
        let scratch = self.store.remote.options.scratch.as_deref();
        let zeros = Zeros::of(whole.map(|(&n, _)| &self.model.infos[n]), scratch)?;
        let (mut inputs, mut known, mut codecs) = (Vec::new(), Digests::default(), Vec::new());
        for (&n, base) in changed.iter().zip(&bases) {
            let (view, result) = new(n);
            let (before, digest) = match base {
                Some((view, digest)) => (*view, *digest),
                None => (zeros.like(&self.model.infos[n]).map_err(Error::Codec)?, None),
            };
            let input = self.input(group, n, view, Some(before));
            if let Some(digest) = digest {
                known.keep_base_sum(input.tensor, digest);
            }
            if let Some(digest) = result {
                known.keep_result_sum(input.tensor, digest);
            }
            inputs.push(input);
            // Differences from zeros are longer than the elements.
            codecs.push(if base.is_some() { self.codec } else { overwriting() });
        }
        self.encode(group, &inputs, &codecs, known, self.codec)
    }

    /// Returns a tensor of a group as the input of a compressor.
    fn input<'t>(
        &'t self,
        group: usize,
        n: usize,
        view: TensorView<'t>,
        base: Option<TensorView<'t>>,
    ) -> Input<'t> {
        let tensor = (n - self.model.groups[group].start) as u64;
        Input { tensor, name: &self.model.infos[n].name, view, base }
    }

    /// Encodes tensors of a group as a stream with one update. `known`: digests of tensors, for a delta.
    /// `label`: the codec of most of them.
    fn encode(
        &self,
        group: usize,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        mut known: Digests,
        label: Codec,
    ) -> Result<Bytes> {
        let scratch = self.store.remote.scratch()?;
        let stream = || {
            let mut blocks = compress::pending(inputs, codecs, &compress::Options::default())?;
            let runs = blocks.deltas(&self.model.manifests[group], &mut known)?;
            let header = UpdateHeader::default().with_step(self.version).with_label(label.to_string());
            let mut writer = Writer::new(scratch, EncodeOptions::default());
            writer.update(&header.with_runs(runs), &self.model.manifests[group], blocks)?;
            writer.finish()
        };
        let written = stream().map_err(|e| match e {
            gcodec::Error::Io(source) => scratch::failed(source),
            e => Error::Codec(e),
        });
        written?.finish()
    }
}

/// A tensor, and its digest if it is known.
type Known<'t> = (TensorView<'t>, Option<SumDigest>);

/// Returns the codec of tensors that the version before does not have.
fn overwriting() -> Codec {
    Codec::Delta(Delta { values: Change::Overwrite, ..Delta::default() })
}

/// Returns the digests of tensors: where the last version has such a tensor, its digest and the changes.
fn digests(
    model: &Model,
    new: &[TensorView<'_>],
    old: &[Option<usize>],
    last: Option<&Replica>,
) -> Result<Vec<SumDigest>> {
    let digest = |((info, view), old): ((&TensorInfo, &TensorView<'_>), &Option<usize>)| match last.zip(*old)
    {
        Some((last, old)) => info.sum_after(last.digests[old], last.tensors[old].view(), *view),
        None => info.sum_digest(*view),
    };
    let digests = model.infos.par_iter().zip(new).zip(old).map(digest);
    digests.collect::<Vec<_>>().into_iter().collect::<gcodec::Result<_>>().map_err(Error::Codec)
}
