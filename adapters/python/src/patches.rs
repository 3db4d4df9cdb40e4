//! Updates as patches: positions and values of the elements that change, tensor by tensor.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use gcodec::block::{RawBlock, SupportId};
use gcodec::digest::SumDigest;
use gcodec::file::{File, UpdateEntry};
use gcodec::frame::{Delta, Manifest, TensorInfo, UpdateHeader, UpdatePart};
use gcodec::stream::Assembler;
use gcodec::{Dtype, Limits, TensorBuf, TensorView};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rayon::prelude::*;

use crate::decode::{Bytes, bases, header_dict, is_wanted};
use crate::digests::{Lanes, lanes};
use crate::errors::{self, Failure};
use crate::limits::PyLimits;
use crate::named::{Given, Named};
use crate::tensor::Tensor;
use crate::threads;

/// The changed elements of a tensor.
pub(crate) struct Patch {
    name: String,
    shape: Vec<u64>,
    dtype: Dtype,
    /// Positions, ascending, as i32 if all positions of the tensor fit, or else i64; `None` is all of them.
    indices: Option<TensorBuf>,
    values: TensorBuf,
}

/// A patch for Python: name, shape, element type, positions (`None` is all) and values.
pub(crate) type Parts = (String, Vec<u64>, &'static str, Option<Tensor>, Tensor);

/// Returns the header of the last update of a stream, and the patches of the tensors that it changes.
///
/// Tensors are decoded and checked in groups with a common digest, which are tensors of at most 8 MiB or
/// single tensors: no more than one group for each thread is in memory.
#[pyfunction]
pub(crate) fn patches<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    limits: PyLimits,
    names: Option<HashSet<String>>,
    base: Given<'py>,
) -> PyResult<(Bound<'py, PyDict>, Vec<Parts>)> {
    let bytes = Bytes::new(data)?;
    let base = bases(py, base)?;
    let limits = limits.get();
    let mut known = None;
    let found = threads::run(py, || read(bytes.as_slice(), &limits, names.as_ref(), &base, &mut known))?;
    let (header, patches) = found.map_err(|e| errors::raise_failure(py, e, known.as_deref()))?;
    Ok((header_dict(py, &header)?, patches.into_iter().map(Patch::into_parts).collect()))
}

/// Names of tensors that are decoded together, and bytes of their elements.
type Group = (Vec<String>, u64);
/// Names of the tensors of a run, and the sum digest that a delta gives them.
type Sum = (Vec<String>, Lanes);

/// Returns the groups of the last update of a stream, and the sums of its result.
#[pyfunction]
pub(crate) fn patch_groups(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    limits: PyLimits,
) -> PyResult<(Vec<Group>, Vec<Sum>)> {
    let bytes = Bytes::new(data)?;
    let limits = limits.get();
    let found = threads::run(py, || groups_and_sums(bytes.as_slice(), &limits))?;
    found.map_err(|e| errors::raise(py, e, None))
}

fn groups_and_sums(bytes: &[u8], limits: &Limits) -> gcodec::Result<(Vec<Group>, Vec<Sum>)> {
    let file = File::scan(bytes, limits.clone())?;
    let last = file.last()?;
    let manifest = Arc::clone(&file.updates()[last].manifest);
    let parts = file.parts(last, |_| true)?;
    let infos = |range: RangeInclusive<usize>| manifest.tensors().get(range).unwrap_or_default();
    let names = |infos: &[TensorInfo]| infos.iter().map(|info| info.name.clone()).collect();
    let group = |infos: &[TensorInfo]| (names(infos), infos.iter().map(TensorInfo::bytes).sum());
    let groups = groups(&parts).into_iter().map(|range| group(infos(range))).collect();
    let runs = parts.iter().filter_map(|part| part.header.sums.as_deref()).flatten();
    let mut runs: Vec<_> = runs.collect();
    // Each part has the runs of its own blocks, so that a large tensor's is in several.
    runs.sort_by_key(|run| run.first);
    runs.dedup_by_key(|run| run.first);
    // The sum of a shard counts as a part of its whole tensor, whose name and shape are not the update's.
    let is_whole = |run: &&Delta<SumDigest>| {
        infos(run.first as usize..=run.last() as usize).iter().all(|info| info.shard.is_none())
    };
    let sum =
        |run: &Delta<SumDigest>| (names(infos(run.first as usize..=run.last() as usize)), lanes(run.result));
    Ok((groups, runs.into_iter().filter(is_whole).map(sum).collect()))
}

fn read(
    bytes: &[u8],
    limits: &Limits,
    names: Option<&HashSet<String>>,
    base: &[Named],
    known: &mut Option<Arc<Manifest>>,
) -> Result<(UpdateHeader, Vec<Patch>), Failure> {
    let file = File::scan(bytes, limits.clone())?;
    let last = file.last()?;
    let UpdateEntry { manifest, header, .. } = file.updates()[last].clone();
    *known = Some(Arc::clone(&manifest));
    let parts = file.parts(last, |_| true)?;
    // Also finds parts that do not belong together, where no tensor is wanted.
    let mut check = Assembler::new(&manifest, limits, |_| false)?;
    parts.iter().try_for_each(|part| check.apply(part))?;
    check.finish()?;
    let update = Update {
        base: base.iter().map(|named| (named.name.as_str(), named)).collect(),
        delta: header.is_delta(),
        manifest: &manifest,
        parts: &parts,
        limits,
    };
    let wanted = |number: &usize| is_wanted(names, &manifest.tensors()[*number].name);
    let groups = groups(&parts);
    let patches: Vec<Result<Vec<Patch>, gcodec::Error>> = groups
        .into_par_iter()
        .map(|group| {
            let of_group: Vec<usize> = group.filter(wanted).collect();
            if of_group.is_empty() { Ok(Vec::new()) } else { update.patches(&of_group) }
        })
        .collect();
    let patches: Vec<Vec<Patch>> = patches.into_iter().collect::<Result<_, _>>()?;
    Ok((header, patches.into_iter().flatten().collect()))
}

/// Returns the tensors with blocks, in groups that are decoded together: the runs of a delta's digests, or
/// the tensors of each block.
fn groups(parts: &[UpdatePart<'_>]) -> Vec<RangeInclusive<usize>> {
    let runs = parts.iter().flat_map(|part| match part.header.is_delta() {
        true => part.header.runs().collect::<Vec<_>>(),
        false => {
            part.blocks.iter().map(|b| (b.scope.first(), b.scope.first() + b.scope.tensors() - 1)).collect()
        }
    });
    let mut sorted: Vec<(u64, u64)> = runs.collect();
    sorted.sort_unstable();
    let mut groups: Vec<RangeInclusive<usize>> = Vec::new();
    for (first, last) in sorted {
        // Numbers of a manifest's tensors fit.
        let (first, last) = (first as usize, last as usize);
        match groups.last_mut() {
            Some(group) if *group.end() >= first => *group = *group.start()..=last.max(*group.end()),
            _ => groups.push(first..=last),
        }
    }
    groups
}

struct Update<'a> {
    base: BTreeMap<&'a str, &'a Named>,
    delta: bool,
    manifest: &'a Arc<Manifest>,
    parts: &'a [UpdatePart<'a>],
    limits: &'a Limits,
}

impl Update<'_> {
    /// Returns the patches of the tensors of a group, after checking their digests.
    fn patches(&self, wanted: &[usize]) -> gcodec::Result<Vec<Patch>> {
        let infos = self.manifest.tensors();
        let names: HashSet<&str> = wanted.iter().map(|&number| infos[number].name.as_str()).collect();
        let mut assembler = Assembler::new(self.manifest, self.limits, |name| names.contains(name))?;
        if self.delta {
            // A run may have tensors that are not wanted.
            let all = wanted.iter().flat_map(|&number| self.run_of(number));
            for number in all {
                if let Some(named) = self.base.get(infos[number].name.as_str()) {
                    assembler.base(&named.name, named.tensor.view()?)?;
                }
            }
        }
        self.parts.iter().try_for_each(|part| assembler.apply(part))?;
        let tensors = assembler.finish()?;
        tensors
            .into_iter()
            .map(|(number, tensor)| self.patch(number as usize, tensor))
            .filter_map(Result::transpose)
            .collect()
    }

    /// Returns the tensors that share a digest of either kind with one.
    fn run_of(&self, number: usize) -> RangeInclusive<usize> {
        let headers = || self.parts.iter().map(|part| &part.header);
        let hashed = headers().filter_map(|header| Delta::find(header.delta.as_deref()?, number as u64));
        let summed = headers().filter_map(|header| Delta::find(header.sums.as_deref()?, number as u64));
        let runs = hashed.map(|run| (run.first, run.last()));
        let runs = runs.chain(summed.map(|run| (run.first, run.last())));
        let own = (number as u64, number as u64);
        let (first, last) = runs.fold(own, |own, run| (own.0.min(run.0), own.1.max(run.1)));
        first as usize..=last as usize
    }

    /// Returns the patch that makes `new`; `None` if nothing changes.
    fn patch(&self, number: usize, new: TensorBuf) -> gcodec::Result<Option<Patch>> {
        let info = &self.manifest.tensors()[number];
        let whole = info.dtype.bits() < 8 || (!self.delta && self.is_dense(number as u64));
        if whole {
            return Ok(Some(Patch::of(info, None, new)));
        }
        let base = match self.base.get(info.name.as_str()).filter(|_| self.delta) {
            Some(named) => Some(named.tensor.view()?),
            None => None,
        };
        Patch::between(info, new.view(), base)
    }

    /// Whether the update has a value for every element of some part of a tensor.
    fn is_dense(&self, number: u64) -> bool {
        let covers = |raw: &RawBlock<'_>| {
            raw.support_id == SupportId::ALL
                && (raw.scope.first()..).take(raw.scope.tensors() as usize).any(|n| n == number)
        };
        self.parts.iter().any(|part| part.blocks.iter().any(covers))
    }
}

impl Patch {
    fn of(info: &TensorInfo, indices: Option<TensorBuf>, values: TensorBuf) -> Self {
        Self { name: info.name.clone(), shape: info.shape.clone(), dtype: info.dtype, indices, values }
    }

    /// Returns the patch of the elements of `new` that differ from `old`, or from zero if there is none;
    /// `None` if nothing does. Elements have whole bytes.
    fn between(
        info: &TensorInfo,
        new: TensorView<'_>,
        old: Option<TensorView<'_>>,
    ) -> gcodec::Result<Option<Self>> {
        let (new, old) = (new.data(), old.map(|old| old.data()));
        let positions = match info.dtype.bits() {
            8 => changed::<1>(new, old),
            16 => changed::<2>(new, old),
            32 => changed::<4>(new, old),
            _ => changed::<8>(new, old),
        };
        if positions.is_empty() {
            return Ok(None);
        }
        let width = (info.dtype.bits() / 8) as usize;
        let mut values = Vec::with_capacity(positions.len() * width);
        positions.iter().for_each(|&p| values.extend_from_slice(&new[p * width..][..width]));
        let values = TensorBuf::new(info.dtype, vec![positions.len() as u64], values)?;
        let indices = indices(info.elements(), &positions)?;
        Ok(Some(Self::of(info, Some(indices), values)))
    }

    /// Returns the patch that replaces `old` by `new`: of all elements where `old` is another kind of tensor
    /// or there is none.
    pub(crate) fn replacing(
        name: &str,
        new: TensorView<'_>,
        old: Option<TensorView<'_>>,
    ) -> gcodec::Result<Option<Self>> {
        let info = TensorInfo::new(name, new.dtype(), new.shape());
        match old.filter(|old| old.dtype() == new.dtype() && old.shape() == new.shape()) {
            Some(old) if info.dtype.bits() >= 8 => Self::between(&info, new, Some(old)),
            _ => {
                let whole = TensorBuf::new(new.dtype(), new.shape().to_vec(), new.data().to_vec())?;
                Ok(Some(Self::of(&info, None, whole)))
            }
        }
    }

    pub(crate) fn into_parts(self) -> Parts {
        let positions = self.indices.map(Tensor::of);
        (self.name, self.shape, self.dtype.name(), positions, Tensor::of(self.values))
    }
}

/// Returns positions as a tensor of the narrower type that holds every position of the tensor.
fn indices(elements: u64, positions: &[usize]) -> gcodec::Result<TensorBuf> {
    let (dtype, bytes) = match i32::try_from(elements) {
        Ok(_) => (Dtype::I32, positions.iter().flat_map(|&p| (p as i32).to_le_bytes()).collect()),
        Err(_) => (Dtype::I64, positions.iter().flat_map(|&p| (p as i64).to_le_bytes()).collect()),
    };
    TensorBuf::new(dtype, vec![positions.len() as u64], bytes)
}

/// Bytes that are compared at once. Most pieces of a sparse update are equal.
const PIECE: usize = 512;

/// Returns the positions of the elements of W bytes that differ from `old`, or from zero if there is none.
fn changed<const W: usize>(new: &[u8], old: Option<&[u8]>) -> Vec<usize> {
    let zeros = [0; PIECE];
    let mut positions = Vec::new();
    for (number, new) in new.chunks(PIECE).enumerate() {
        let old = old.map_or(&zeros[..new.len()], |old| &old[number * PIECE..][..new.len()]);
        if new == old {
            continue;
        }
        let pairs = new.as_chunks::<W>().0.iter().zip(old.as_chunks::<W>().0);
        let differing = pairs.enumerate().filter(|(_, (new, old))| new != old);
        positions.extend(differing.map(|(i, _)| number * PIECE / W + i));
    }
    positions
}
