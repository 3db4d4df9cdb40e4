//! Bases of deltas, and the digests that they are compared with (spec, sections 6 and 6.1).

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::digest::{SumDigest, TensorDigests};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{Delta, Manifest, run_digest, tensor_digest};
use crate::limits::in_memory;
use crate::tensor::TensorView;

/// A tensor that a delta changes.
#[derive(Clone, Copy)]
pub(super) struct Base<'b> {
    pub(super) tensor: TensorView<'b>,
    /// Its digests, as far as the caller knows them or they were computed.
    pub(super) digests: TensorDigests,
}

/// Returns the base of a tensor of the manifest.
pub(super) fn base_of<'b>(
    bases: &BTreeMap<String, Base<'b>>,
    manifest: &Manifest,
    number: u64,
) -> Result<Base<'b>> {
    let base = bases.get(&manifest.tensors()[in_memory(number)].name);
    base.copied().ok_or(Error::input(InputErrorKind::MissingBase).in_tensor(number))
}

/// Runs of tensors that the parts of a delta list, by their first tensor.
pub(super) struct ListedRuns<D>(BTreeMap<u64, Delta<D>>);

impl<D> Default for ListedRuns<D> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<D: Copy + PartialEq> ListedRuns<D> {
    /// Adds those runs of a part that have a wanted tensor. Returns those that no earlier part listed.
    ///
    /// # Errors
    /// [`InputErrorKind::BaseMismatch`] if a run overlaps another one of an earlier part.
    pub(super) fn add(
        &mut self,
        runs: &[Delta<D>],
        is_wanted: impl Fn(u64) -> bool,
    ) -> Result<Vec<Delta<D>>> {
        let mut new = Vec::new();
        for run in runs.iter().filter(|run| (run.first..=run.last()).any(&is_wanted)) {
            // The known runs are disjoint, so the last one that begins before the end of this one overlaps it
            // if any does.
            let before = self.0.range(..=run.last()).next_back().map(|(_, run)| *run);
            match before.filter(|before| before.last() >= run.first) {
                Some(earlier) if earlier == *run => {}
                Some(_) => return Err(Error::input(InputErrorKind::BaseMismatch).in_tensor(run.first)),
                None => {
                    self.0.insert(run.first, *run);
                    new.push(*run);
                }
            }
        }
        Ok(new)
    }

    /// Whether a run contains a tensor.
    pub(super) fn contains(&self, tensor: u64) -> bool {
        self.0.range(..=tensor).next_back().is_some_and(|(_, run)| run.contains(tensor))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Delta<D>> {
        self.0.values()
    }
}

/// Compares bases with the hashes of runs.
pub(super) fn check_hashes<'b>(runs: &[Delta], base: impl Fn(u64) -> Result<Base<'b>> + Sync) -> Result<()> {
    let digest = |number| {
        let base = base(number)?;
        Ok(base.digests.hash.unwrap_or_else(|| tensor_digest(base.tensor)))
    };
    compare(runs, digest, run_digest).map(drop)
}

/// Compares bases with the sums of runs. Returns the sums of their tensors.
pub(super) fn check_sums<'b>(
    runs: &[Delta<SumDigest>],
    manifest: &Manifest,
    base: impl Fn(u64) -> Result<Base<'b>> + Sync,
) -> Result<Vec<(u64, SumDigest)>> {
    let digest = |number| {
        let Base { tensor, digests } = base(number)?;
        digests.sum.map_or_else(|| manifest.tensors()[in_memory(number)].sum_digest(tensor), Ok)
    };
    compare(runs, digest, |shares| shares.iter().copied().sum())
}

/// Compares the digests of bases with those of runs. Returns those of their tensors. `of_run`: the digest of
/// tensors with these.
fn compare<D: Copy + PartialEq + Send>(
    runs: &[Delta<D>],
    digest: impl Fn(u64) -> Result<D> + Sync,
    of_run: impl Fn(&[D]) -> D,
) -> Result<Vec<(u64, D)>> {
    let numbers: Vec<u64> = runs.iter().flat_map(|run| run.first..=run.last()).collect();
    let digests: Vec<Result<D>> = numbers.par_iter().map(|&number| digest(number)).collect();
    let digests = digests.into_iter().collect::<Result<Vec<D>>>()?;
    let mut rest = digests.as_slice();
    for run in runs {
        let own = rest.split_off(..=in_memory(run.more)).unwrap_or_default();
        if of_run(own) != run.base {
            return Err(Error::input(InputErrorKind::BaseMismatch).in_tensor(run.first));
        }
    }
    Ok(numbers.into_iter().zip(digests).collect())
}
