//! Publishing: immutable objects first, then one record that commits them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use gcodec::compress::{self, Digests, Input};
use gcodec::frame::{Digest, TensorInfo, UpdateHeader, tensor_digest};
use gcodec::internal::run_digest;
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Codec, TensorBuf, TensorView};
use rayon::prelude::*;

use crate::Store;
use crate::error::{Error, Result};
use crate::layout::{self, Kind, ModelText, Object, Record};
use crate::options::Policy;
use crate::weights::{Model, Replica, Staging, cut};

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
    ///
    /// # Errors
    /// [`Error::Conflict`] if another publisher was first; [`Error::Input`] or [`Error::Codec`] for tensors
    /// that cannot be stored; [`Error::Io`] before the work for a folder without hard links;
    /// [`Error::Transport`]. Nothing was published then.
    pub fn publish(
        &mut self,
        tensors: &[(&str, TensorView<'_>)],
        meta: BTreeMap<String, String>,
    ) -> Result<Published> {
        let start = Instant::now();
        self.store.check_links()?;
        let settings = self.store.create_settings()?;
        let last = self.last.as_ref();
        let version = last.map_or(1, |(replica, _)| replica.version + 1);
        let infos: Vec<TensorInfo> =
            tensors.iter().map(|(name, view)| TensorInfo::new(*name, view.dtype(), view.shape())).collect();
        let continues = last.filter(|(replica, _)| replica.model.infos == infos);
        let model = match continues {
            Some((replica, _)) => Arc::clone(&replica.model),
            None => self.new_model(version, infos)?,
        };
        let views: Vec<TensorView<'_>> = tensors.iter().map(|(_, view)| *view).collect();
        let digests = digests(&views, continues.map(|(replica, _)| replica));
        let differs = |n: &usize| continues.is_none_or(|(replica, _)| replica.digests[*n] != digests[*n]);
        let changed: Vec<usize> = (0..views.len()).filter(differs).collect();

        let (store, codec) = (self.store, self.policy.codec);
        let sender = Sender { store, model: &model, version, codec, fresh: settings.grace() / 4 };
        let delta = match continues {
            Some((replica, _)) => Some(sender.deltas(replica, &views, &digests, &changed)?),
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
            meta: meta.clone(),
            model: model.object.clone(),
            state: layout::hex(&run_digest(&digests)),
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
        let kept = self.keep(&views, &changed)?;
        self.last = Some((Replica { version, meta, model, tensors: kept, digests }, record));
        Ok(published)
    }

    /// Returns the bytes of the anchor of a record's chain.
    fn anchor_bytes(&self, record: &Record) -> u64 {
        let anchor = self.store.record(record.anchor_version).ok().and_then(|record| record.anchor);
        // An anchor that cannot be read is replaced.
        anchor.as_deref().map_or(0, layout::size)
    }

    /// Copies the changed tensors, and shares the others with the last version.
    fn keep(&self, views: &[TensorView<'_>], changed: &[usize]) -> Result<Vec<Arc<TensorBuf>>> {
        let copy = |view: &TensorView<'_>| {
            TensorBuf::new(view.dtype(), view.shape().to_vec(), view.data().to_vec()).map(Arc::new)
        };
        let copied =
            changed.par_iter().map(|&n| Ok((n, copy(&views[n])?))).collect::<gcodec::Result<HashMap<_, _>>>();
        let mut copied = copied.map_err(Error::Codec)?;
        let old = self.last.as_ref().map_or(&[][..], |(replica, _)| &replica.tensors);
        let keep = |n| copied.remove(&n).or_else(|| old.get(n).cloned());
        let kept = (0..views.len()).map(keep).collect::<Option<_>>();
        kept.ok_or_else(|| Error::input("an unchanged tensor has no older version"))
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
            let input = |&n: &usize| self.input(group, n, new[n], None);
            self.encode(group, &tensors.iter().map(input).collect::<Vec<_>>(), Digests::default())
        })
    }

    /// Uploads the differences of the `changed` tensors. `digests`: of the new tensors.
    fn deltas(
        &self,
        old: &Replica,
        new: &[TensorView<'_>],
        digests: &[Digest],
        changed: &[usize],
    ) -> Result<Vec<Object>> {
        let mut groups: Vec<usize> = changed.iter().map(|&n| self.model.group_of(n)).collect();
        groups.dedup();
        self.send(Kind::Delta, groups, |group| {
            let of_group = |n: &&usize| self.model.groups[group].contains(n);
            let (mut inputs, mut known) = (Vec::new(), Digests::default());
            for &n in changed.iter().filter(of_group) {
                let input = self.input(group, n, new[n], Some(old.tensors[n].view()));
                known.keep_base(input.tensor, old.digests[n]);
                known.keep_result(input.tensor, digests[n]);
                inputs.push(input);
            }
            self.encode(group, &inputs, known)
        })
    }

    /// Encodes groups and uploads them, in batches of at most the memory of transfers.
    pub(crate) fn send(
        &self,
        kind: Kind,
        groups: Vec<usize>,
        encode: impl Fn(usize) -> Result<Vec<u8>>,
    ) -> Result<Vec<Object>> {
        let (mut sent, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
        for group in groups {
            let stream = Bytes::from(encode(group)?);
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

    /// Encodes the differences of tensors of a group, whose digests both stagings know.
    pub(crate) fn encode_changes(
        &self,
        group: usize,
        changed: &[usize],
        old: &Staging,
        new: &Staging,
    ) -> Result<Vec<u8>> {
        let (mut inputs, mut known) = (Vec::new(), Digests::default());
        for &n in changed {
            let missing = || Error::input("a changed tensor is missing");
            let of = |staging: &'_ Staging| staging.digests[n];
            let (before, after) = (old.tensors[n].as_ref(), new.tensors[n].as_ref());
            let (before, after) = (before.ok_or_else(missing)?, after.ok_or_else(missing)?);
            let input = self.input(group, n, after.view(), Some(before.view()));
            if let (Some(base), Some(result)) = (of(old), of(new)) {
                known.keep_base(input.tensor, base);
                known.keep_result(input.tensor, result);
            }
            inputs.push(input);
        }
        self.encode(group, &inputs, known)
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

    /// Encodes tensors of a group as a stream with one update: a delta if they have bases.
    fn encode(&self, group: usize, inputs: &[Input<'_>], known: Digests) -> Result<Vec<u8>> {
        let is_delta = inputs.iter().any(|input| input.base.is_some());
        let codec = if is_delta { self.codec } else { Codec::Lossless };
        encode_stream(&self.model.manifests[group], inputs, known, codec, self.version).map_err(Error::Codec)
    }
}

/// Returns the digests of tensors. Those that equal the tensors of the last version have its digests.
fn digests(new: &[TensorView<'_>], last: Option<&Replica>) -> Vec<Digest> {
    let digest = |(n, view): (usize, &TensorView<'_>)| match last {
        Some(last) if last.tensors[n].data() == view.data() => last.digests[n],
        _ => tensor_digest(*view),
    };
    new.par_iter().enumerate().map(digest).collect()
}

/// Encodes tensors as a stream with one update. `known`: digests of tensors, for a delta.
fn encode_stream(
    manifest: &Arc<gcodec::frame::Manifest>,
    inputs: &[Input<'_>],
    mut known: Digests,
    codec: Codec,
    step: u64,
) -> gcodec::Result<Vec<u8>> {
    let codecs = vec![codec; inputs.len()];
    let blocks = compress::pending(inputs, &codecs, &compress::Options::default())?;
    let deltas = layout::is_delta(&codec).then(|| blocks.deltas(&mut known));
    let header = UpdateHeader::default().with_step(step).with_label(codec.to_string()).with_delta(deltas);
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut out = Vec::new();
    encoder.update(&mut out, &header, manifest, blocks)?;
    encoder.finish(&mut out);
    Ok(out)
}
