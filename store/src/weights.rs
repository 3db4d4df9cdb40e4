//! Whole weights in memory: the table of tensors, the tensors, and what a stream changes in them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use gcodec::digest::{SumDigest, TensorDigests};
use gcodec::file::File;
use gcodec::frame::{Manifest, TensorInfo};
use gcodec::stream::Assembler;
use gcodec::{Limits, TensorBuf, TensorView};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::layout::{ModelText, Object};
use crate::options::Options;
use crate::scratch::Scratch;
use crate::tensor::Tensor;

/// The table of tensors.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) infos: Vec<TensorInfo>,
    /// Tensors of each group.
    pub(crate) groups: Vec<Range<usize>>,
    /// Manifest of each group's streams.
    pub(crate) manifests: Vec<Arc<Manifest>>,
    by_name: HashMap<String, usize>,
    /// Object in the store.
    pub(crate) object: Object,
}

impl Model {
    pub(crate) fn new(
        infos: Vec<TensorInfo>,
        counts: &[usize],
        object: Object,
    ) -> Result<Self, gcodec::Error> {
        // Its rules hold for all tensors together: names are unique.
        Manifest::new(infos.clone())?;
        let mut groups = Vec::with_capacity(counts.len());
        let mut start = 0;
        for count in counts {
            groups.push(start..start + count);
            start += count;
        }
        let manifest = |range: &Range<usize>| Manifest::new(infos[range.clone()].to_vec()).map(Arc::new);
        let manifests = groups.iter().map(manifest).collect::<gcodec::Result<_>>()?;
        let by_name = infos.iter().enumerate().map(|(i, info)| (info.name.clone(), i)).collect();
        Ok(Self { infos, groups, manifests, by_name, object })
    }

    pub(crate) fn parse(text: ModelText, object: &Object) -> Result<Self> {
        let (infos, counts) = text.check(&object.path)?;
        let path = object.path.clone();
        Self::new(infos, &counts, object.clone()).map_err(|source| Error::Stream { path, source })
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// For each of `infos`, returns the number of the tensor here with its name, type and shape.
    pub(crate) fn counterparts(&self, infos: &[TensorInfo]) -> Vec<Option<usize>> {
        infos.iter().map(|info| self.find(&info.name).filter(|&n| self.infos[n] == *info)).collect()
    }

    /// Returns the group of a tensor.
    pub(crate) fn group_of(&self, tensor: usize) -> usize {
        self.groups.partition_point(|group| group.end <= tensor)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.infos.iter().fold(0, |sum, info| sum.saturating_add(info.bytes()))
    }
}

/// Returns the number of tensors in each group: runs of tensors of at most `bytes`, or one tensor.
pub(crate) fn cut(infos: &[TensorInfo], bytes: u64) -> Vec<usize> {
    let mut counts: Vec<usize> = Vec::new();
    let mut filled = u64::MAX;
    for info in infos {
        filled = filled.saturating_add(info.bytes());
        match counts.last_mut() {
            Some(last) if filled <= bytes => *last += 1,
            _ => {
                counts.push(1);
                filled = info.bytes();
            }
        }
    }
    counts
}

/// Tensors of a version that a receiver or publisher holds, in memory or in files that are mapped.
///
/// Clones share the tensors.
#[derive(Debug, Clone)]
pub struct Replica {
    pub(crate) version: u64,
    pub(crate) meta: BTreeMap<String, String>,
    pub(crate) model: Arc<Model>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) digests: Vec<SumDigest>,
}

impl Replica {
    /// Returns tensors that come from no store, such as those of another project's versions. Deltas of a
    /// [`Store`] do not apply to them.
    ///
    /// # Errors
    /// [`Error::Codec`] if two tensors have one name.
    ///
    /// [`Store`]: crate::Store
    pub fn of_tensors(
        version: u64,
        meta: BTreeMap<String, String>,
        tensors: Vec<(String, TensorBuf)>,
    ) -> Result<Self> {
        let info = |(name, tensor): &(String, TensorBuf)| {
            TensorInfo::new(name.clone(), tensor.dtype(), tensor.shape().to_vec())
        };
        let infos: Vec<TensorInfo> = tensors.iter().map(info).collect();
        let model = Model::new(infos, &[tensors.len()], Object::default()).map_err(Error::Codec)?;
        let tensors: Vec<_> = tensors.into_iter().map(|(_, tensor)| Tensor::from(tensor)).collect();
        let digest = |(info, tensor): (&TensorInfo, &Tensor)| info.sum_digest(tensor.view());
        let digests = model.infos.par_iter().zip(&tensors).map(digest).collect::<gcodec::Result<_>>();
        Ok(Self { version, meta, digests: digests.map_err(Error::Codec)?, model: Arc::new(model), tensors })
    }

    /// Returns another version, which shares the tensors that are not in `changed`, and the names of those
    /// that differ.
    ///
    /// # Errors
    /// [`Error::Codec`] if a tensor is not as one of the replica.
    pub fn with_changed(
        &self,
        version: u64,
        meta: BTreeMap<String, String>,
        changed: Vec<(String, TensorBuf)>,
    ) -> Result<(Self, Vec<String>)> {
        let mut next = Self { version, meta, ..self.clone() };
        let mut touched = Vec::new();
        for (name, tensor) in changed {
            let n =
                self.model.find(&name).ok_or_else(|| Error::input(format!("there is no tensor {name:?}")))?;
            let digest = self.model.infos[n].sum_digest(tensor.view()).map_err(Error::Codec)?;
            if digest != self.digests[n] {
                touched.push(name);
            }
            (next.tensors[n], next.digests[n]) = (tensor.into(), digest);
        }
        Ok((next, touched))
    }

    /// Returns the version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the keys and values that the publisher gave the version.
    pub fn meta(&self) -> &BTreeMap<String, String> {
        &self.meta
    }

    /// Returns the tensors, in the order of the version's table: the publisher's, or that of the version
    /// before if both have the same tensors.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, TensorView<'_>)> {
        self.model.infos.iter().zip(&self.tensors).map(|(info, tensor)| (info.name.as_str(), tensor.view()))
    }

    /// Returns a tensor.
    pub fn get(&self, name: &str) -> Option<TensorView<'_>> {
        self.model.find(name).map(|i| self.tensors[i].view())
    }

    /// Returns the digest of all tensors: the sum of theirs (spec, section 6.1).
    pub fn state(&self) -> SumDigest {
        self.digests.iter().copied().sum()
    }
}

/// Tensors on their way to a version: what is known of it, and the tensors that streams may have changed.
#[derive(Debug, Clone)]
pub(crate) struct Staging {
    pub(crate) model: Arc<Model>,
    pub(crate) tensors: Vec<Option<Tensor>>,
    /// Digests of the tensors, where they are known: an anchor's are computed when they are needed.
    pub(crate) digests: Vec<Option<SumDigest>>,
}

impl Staging {
    pub(crate) fn new(model: Arc<Model>) -> Self {
        let n = model.infos.len();
        Self { model, tensors: vec![None; n], digests: vec![None; n] }
    }

    pub(crate) fn of(replica: &Replica) -> Self {
        Self {
            model: Arc::clone(&replica.model),
            tensors: replica.tensors.iter().cloned().map(Some).collect(),
            digests: replica.digests.iter().copied().map(Some).collect(),
        }
    }

    /// Continues with another table: tensors that both have, with the same type and shape, stay.
    pub(crate) fn with_model(mut self, model: Arc<Model>) -> Self {
        let mut next = Self::new(Arc::clone(&model));
        for (n, old) in self.model.counterparts(&model.infos).into_iter().enumerate() {
            let Some(old) = old else { continue };
            next.tensors[n] = self.tensors[old].take();
            next.digests[n] = self.digests[old];
        }
        next
    }

    /// Applies an object: the whole tensors of its group, or a delta to them. `only`: tensors to decode.
    pub(crate) fn apply(
        &mut self,
        object: &Object,
        bytes: &[u8],
        is_delta: bool,
        only: Option<&HashSet<usize>>,
        options: &Options,
    ) -> Result<()> {
        let stream = |source| Error::Stream { path: object.path.clone(), source };
        let wrong = |what: &str| Error::corrupt(&object.path, what);
        let group = usize::try_from(object.group).ok().and_then(|g| self.model.groups.get(g).cloned());
        let group = group.ok_or_else(|| wrong("the table of tensors has no such group"))?;
        let manifest = &self.model.manifests[object.group as usize];
        let limits = &options.limits;
        let file = File::open(bytes, limits.clone()).map_err(stream)?;
        let [update] = file.updates() else { return Err(wrong("the stream has not one update")) };
        if update.manifest.tensors() != manifest.tensors() {
            return Err(wrong("the stream has other tensors than the table of tensors"));
        }
        if update.header.is_delta() != is_delta {
            return Err(wrong("a delta stands in the place of an anchor, or the reverse"));
        }
        let runs = update.header.runs();
        let numbers = runs.flat_map(|(first, last)| first..=last).map(|n| group.start + n as usize);
        let mut wanted: HashSet<usize> = match is_delta {
            true => numbers.collect(),
            false => group.clone().collect(),
        };
        if let Some(only) = only {
            wanted.retain(|n| only.contains(n));
        }
        let names: HashSet<&str> = wanted.iter().map(|&n| self.model.infos[n].name.as_str()).collect();
        let decoded = match &options.scratch {
            None => self.decode(&file, group.clone(), &names, limits, stream)?,
            Some(folder) => self.decode_to_file(&file, group.clone(), &names, folder, stream)?,
        };
        for (number, tensor, sum) in decoded {
            let n = group.start + number as usize;
            (self.tensors[n], self.digests[n]) = (Some(tensor), sum);
        }
        Ok(())
    }

    /// Decodes tensors of a group. Digests that are known are not computed again.
    fn decode(
        &self,
        file: &File<'_>,
        group: Range<usize>,
        names: &HashSet<&str>,
        limits: &Limits,
        stream: impl Fn(gcodec::Error) -> Error,
    ) -> Result<Vec<Decoded>> {
        let (zeros, manifest) = (self.zeros(group.clone(), names, None)?, &file.updates()[0].manifest);
        let decode = || {
            // Checks first that the wanted tensors fit into the memory of `limits`.
            let mut assembler = Assembler::new(manifest, limits, |name| names.contains(name))?;
            for (name, view, sum) in self.bases(group, names, &zeros)? {
                assembler.base_with_digests(name, view, TensorDigests { sum, hash: None })?;
            }
            file.apply(0, &mut assembler)?;
            assembler.finish_with_digests()
        };
        let decoded = decode().map_err(stream)?.into_iter();
        Ok(decoded.map(|(number, tensor, digests)| (number, tensor.into(), digests.sum)).collect())
    }

    /// As [`Self::decode`], a few tensors at a time into a temporary file.
    fn decode_to_file(
        &self,
        file: &File<'_>,
        group: Range<usize>,
        names: &HashSet<&str>,
        folder: &Path,
        stream: impl Fn(gcodec::Error) -> Error,
    ) -> Result<Vec<Decoded>> {
        let zeros = self.zeros(group.clone(), names, Some(folder))?;
        let (mut base, mut sums) = (BTreeMap::new(), HashMap::new());
        for (name, view, sum) in self.bases(group.clone(), names, &zeros).map_err(&stream)? {
            base.insert(name.to_owned(), view);
            sums.extend(sum.map(|sum| (name.to_owned(), sum)));
        }
        let pieces = file.pieces(0, |name| names.contains(name), &base).map_err(&stream)?;
        let (mut pieces, mut scratch) = (pieces.with_sums(sums), Scratch::new(Some(folder))?);
        let mut found: Vec<(u64, usize, Option<SumDigest>)> = Vec::new();
        while let Some(piece) = pieces.next().transpose().map_err(&stream)? {
            match found.last_mut().filter(|_| piece.start > 0) {
                Some((.., sum)) => *sum = piece.sum,
                None => found.push((piece.tensor, scratch.len() as usize, piece.sum)),
            }
            scratch.put(&piece.data)?;
            pieces.reuse(piece.data);
        }
        let bytes = scratch.finish()?;
        let decoded = found.into_iter().map(|(number, start, sum)| {
            let info = &self.model.infos[group.start + number as usize];
            let data = bytes.slice(start..start + info.bytes() as usize);
            let tensor = Tensor::of_bytes(info.dtype, info.shape.clone(), data).map_err(&stream)?;
            Ok((number, tensor, sum))
        });
        decoded.collect()
    }

    /// Returns zeros for the tensors of a group that are wanted and not here.
    fn zeros(&self, group: Range<usize>, names: &HashSet<&str>, folder: Option<&Path>) -> Result<Zeros> {
        let infos = self.model.infos[group.clone()].iter().zip(&self.tensors[group]);
        let new = infos.filter(|(info, tensor)| tensor.is_none() && names.contains(info.name.as_str()));
        Zeros::of(new.map(|(info, _)| info), folder)
    }

    /// Returns the tensors of a group as bases of a delta, with digests that are known. The base of a tensor
    /// that is wanted and not here is zeros.
    fn bases<'s>(
        &'s self,
        group: Range<usize>,
        names: &HashSet<&str>,
        zeros: &'s Zeros,
    ) -> gcodec::Result<Vec<(&'s str, TensorView<'s>, Option<SumDigest>)>> {
        let mut bases = Vec::new();
        for n in group {
            let info = &self.model.infos[n];
            match &self.tensors[n] {
                Some(tensor) => bases.push((info.name.as_str(), tensor.view(), self.digests[n])),
                None if names.contains(info.name.as_str()) => {
                    bases.push((&info.name, zeros.like(info)?, None));
                }
                None => {}
            }
        }
        Ok(bases)
    }

    /// Computes the digests that are not known yet, and returns the digest of all; `None` if some are
    /// missing.
    pub(crate) fn digest(&mut self) -> Option<SumDigest> {
        let (tensors, infos) = (&self.tensors, &self.model.infos);
        self.digests.par_iter_mut().enumerate().for_each(|(n, digest)| {
            if let (None, Some(tensor)) = (&digest, &tensors[n]) {
                *digest = infos[n].sum_digest(tensor.view()).ok();
            }
        });
        self.digests.iter().copied().sum()
    }
}

/// A tensor of a group: its number, its elements, and its digest if it is known.
type Decoded = (u64, Tensor, Option<SumDigest>);

/// Bytes of zeros: the bases of tensors that the version before does not have.
pub(crate) struct Zeros(Bytes);

impl Zeros {
    /// Returns enough for each of the tensors, in memory or in a file in `scratch`.
    pub(crate) fn of<'i>(
        infos: impl Iterator<Item = &'i TensorInfo>,
        scratch: Option<&Path>,
    ) -> Result<Self> {
        // What is never touched takes no room.
        let bytes = infos.map(TensorInfo::bytes).max().unwrap_or(0);
        Scratch::zeros(scratch, bytes)?.finish().map(Self)
    }

    /// Returns a tensor of zeros.
    pub(crate) fn like<'z>(&'z self, info: &'z TensorInfo) -> gcodec::Result<TensorView<'z>> {
        TensorView::new(info.dtype, &info.shape, self.0.get(..info.bytes() as usize).unwrap_or_default())
    }
}
