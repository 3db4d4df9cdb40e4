//! Digests of the tensors that a delta changes.

use std::collections::{BTreeMap, HashSet};

use rayon::prelude::*;

use crate::block::{Block, Scope, Support};
use crate::compress::codec::Codec;
use crate::compress::codecs::DigestKind;
use crate::compress::codecs::delta::RUN_BYTES;
use crate::compress::options::Input;
use crate::digest::SumDigest;
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{Delta, DeltaRuns, Digest, Manifest, TensorInfo, run_digest, tensor_digest};
use crate::tensor::TensorView;

/// Returns the kinds of digests that the deltas among these codecs want; `None` without a delta.
pub fn wanted(codecs: &[Codec]) -> Option<DigestKind> {
    let kinds = codecs.iter().filter_map(|codec| match codec {
        Codec::Delta(delta) => Some(delta.digest),
        _ => None,
    });
    // Each kind covers all tensors of an update, so that a mixture is both.
    kinds.reduce(|all, kind| if all == kind { all } else { DigestKind::Both })
}

/// Digests of a tensor before and after an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digested<D = Digest> {
    /// Number of the tensor in the manifest.
    pub tensor: u64,
    /// Bytes of its elements.
    pub bytes: usize,
    /// Digest of the base.
    pub base: D,
    /// Digest of the new tensor.
    pub result: D,
}

/// Returns the runs of tensors that an update's header has, with their digests before and after the update
/// ([`UpdateHeader::with_runs`](crate::frame::UpdateHeader::with_runs)), for the tensors touched by these
/// blocks. Consecutive small tensors share a run, and so do the tensors of a block classed by the base. Only
/// tensors of `inputs` with a base are in one. There are no runs if none of the codecs is a delta.
///
/// # Errors
/// [`Error::Input`] if `manifest` has no tensor of an input's number, type and shape.
pub fn deltas<B: AsRef<Block>>(
    manifest: &Manifest,
    inputs: &[Input<'_>],
    codecs: &[Codec],
    blocks: &[B],
) -> Result<DeltaRuns> {
    Digests::default().deltas(manifest, inputs, codecs, blocks)
}

/// Digests of the tensors that a sender of deltas sent last, and of those that it sends next.
///
/// The result of one delta is the base of the next, so a sender that keeps them computes half as many. One
/// that knows the digests of the new tensors, too, computes none. Where few elements change, the sum of the
/// result is that of the base and of the changes.
#[derive(Debug, Clone, Default)]
pub struct Digests {
    hashes: Known<Digest>,
    sums: Known<SumDigest>,
}

/// What is known of blocks before they are made.
#[derive(Debug, Default)]
pub(in crate::compress) struct Expected {
    /// Tensors that share a block classed by the base with the tensor before them.
    pub(in crate::compress) joined: HashSet<u64>,
    /// What each of these tensors adds to the sum of its base.
    pub(in crate::compress) changes: BTreeMap<u64, SumDigest>,
}

/// Digests of one kind by the numbers of tensors.
#[derive(Debug, Clone)]
struct Known<D> {
    bases: BTreeMap<u64, D>,
    results: BTreeMap<u64, D>,
}

impl<D> Default for Known<D> {
    fn default() -> Self {
        Self { bases: BTreeMap::new(), results: BTreeMap::new() }
    }
}

impl<D: Copy> Known<D> {
    fn of(&self, tensor: u64) -> [Option<D>; 2] {
        [&self.bases, &self.results].map(|digests| digests.get(&tensor).copied())
    }

    /// Returns the runs of digested tensors, and keeps the digests of the results as those of the next bases.
    fn keep(
        &mut self,
        digested: &[Digested<D>],
        joined: &HashSet<u64>,
        of_run: impl Fn(&[D]) -> D,
    ) -> Vec<Delta<D>> {
        self.bases.extend(digested.iter().map(|d| (d.tensor, d.result)));
        self.results.clear();
        runs(digested, joined, of_run)
    }
}

impl Digests {
    /// Keeps the hash ([`tensor_digest`]) of a base, which the caller knows.
    pub fn keep_base(&mut self, tensor: u64, digest: Digest) {
        self.hashes.bases.insert(tensor, digest);
    }

    /// Keeps the hash ([`tensor_digest`]) of a new tensor, which the caller knows, for the next
    /// [`Self::deltas`].
    pub fn keep_result(&mut self, tensor: u64, digest: Digest) {
        self.hashes.results.insert(tensor, digest);
    }

    /// Keeps the sum ([`TensorInfo::sum_digest`]) of a base, which the caller knows.
    pub fn keep_base_sum(&mut self, tensor: u64, sum: SumDigest) {
        self.sums.bases.insert(tensor, sum);
    }

    /// Keeps the sum ([`TensorInfo::sum_digest`]) of a new tensor, which the caller knows, for the next
    /// [`Self::deltas`].
    pub fn keep_result_sum(&mut self, tensor: u64, sum: SumDigest) {
        self.sums.results.insert(tensor, sum);
    }

    /// As [`deltas`], with the kept digests in place of computed ones. Keeps the digests of the results as
    /// those of the next bases.
    ///
    /// The bases of `inputs` have to be the tensors of the call before; a receiver refuses the delta
    /// otherwise.
    ///
    /// # Errors
    /// As [`deltas`].
    pub fn deltas<B: AsRef<Block>>(
        &mut self,
        manifest: &Manifest,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        blocks: &[B],
    ) -> Result<DeltaRuns> {
        let touched: HashSet<u64> = blocks.iter().flat_map(|coded| tensors(coded.as_ref().scope)).collect();
        let inputs: Vec<_> = inputs.iter().filter(|input| touched.contains(&input.tensor)).copied().collect();
        self.expected(
            manifest,
            &inputs,
            codecs,
            &Expected { joined: joined(blocks), changes: BTreeMap::new() },
        )
    }

    /// As [`Self::deltas`], for blocks that are still to make: all tensors are touched.
    pub(in crate::compress) fn expected(
        &mut self,
        manifest: &Manifest,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        Expected { joined, changes }: &Expected,
    ) -> Result<DeltaRuns> {
        let mut found = DeltaRuns::default();
        let Some(kind) = wanted(codecs) else { return Ok(found) };
        if kind != DigestKind::Sum {
            let hashed = digested(inputs, |input, base| {
                let [of_base, of_result] = self.hashes.of(input.tensor);
                let of_base = of_base.unwrap_or_else(|| tensor_digest(base));
                Ok([of_base, of_result.unwrap_or_else(|| tensor_digest(input.view))])
            })?;
            found.hashed = Some(self.hashes.keep(&hashed, joined, run_digest));
        }
        if kind != DigestKind::Blake3 {
            let summed = digested(inputs, |input, base| {
                let missing = || Error::input(InputErrorKind::Mismatch { what: "input and manifest" });
                let info = usize::try_from(input.tensor).ok().and_then(|n| manifest.tensors().get(n));
                let change = changes.get(&input.tensor).copied();
                sums(info.ok_or_else(missing)?, base, input.view, self.sums.of(input.tensor), change)
            })?;
            found.summed = Some(self.sums.keep(&summed, joined, sum_of_run));
        }
        Ok(found)
    }

    /// Returns the kept hashes of a base and of a new tensor.
    pub(in crate::compress) fn known(&self, tensor: u64) -> [Option<Digest>; 2] {
        self.hashes.of(tensor)
    }

    /// Returns the kept sums of a base and of a new tensor.
    pub(in crate::compress) fn known_sum(&self, tensor: u64) -> [Option<SumDigest>; 2] {
        self.sums.of(tensor)
    }

    /// Returns the runs of tensors whose digests are known, of each kind that is given, and keeps the digests
    /// of the results as those of the next bases.
    pub(in crate::compress) fn given<B: AsRef<Block>>(
        &mut self,
        hashed: Option<&[Digested]>,
        summed: Option<&[Digested<SumDigest>]>,
        blocks: &[B],
    ) -> DeltaRuns {
        let joined = joined(blocks);
        DeltaRuns {
            hashed: hashed.map(|hashed| self.hashes.keep(hashed, &joined, run_digest)),
            summed: summed.map(|summed| self.sums.keep(summed, &joined, sum_of_run)),
        }
    }
}

fn sum_of_run(sums: &[SumDigest]) -> SumDigest {
    sums.iter().copied().sum()
}

/// Returns the digests of the inputs that have a base. `of`: those of the base and of the new tensor.
fn digested<D: Send>(
    inputs: &[Input<'_>],
    of: impl Fn(&Input<'_>, TensorView<'_>) -> Result<[D; 2]> + Sync,
) -> Result<Vec<Digested<D>>> {
    let digested = inputs.par_iter().filter_map(|input| {
        let digests = of(input, input.base?).map_err(|e| e.in_tensor(input.tensor));
        let (tensor, bytes) = (input.tensor, input.view.data().len());
        Some(digests.map(|[base, result]| Digested { tensor, bytes, base, result }))
    });
    // Results are collected in two steps, so that the first error is returned.
    digested.collect::<Vec<_>>().into_iter().collect()
}

/// Returns the sums of a base and of the new tensor. `change`: what the latter has more, if it is known.
fn sums(
    info: &TensorInfo,
    base: TensorView<'_>,
    new: TensorView<'_>,
    known: [Option<SumDigest>; 2],
    change: Option<SumDigest>,
) -> Result<[SumDigest; 2]> {
    Ok(match (known, change) {
        ([Some(of_base), Some(of_new)], _) => [of_base, of_new],
        ([None, Some(of_new)], Some(change)) => [of_new - change, of_new],
        ([None, Some(of_new)], None) => [info.sum_after(of_new, new, base)?, of_new],
        ([of_base, None], change) => {
            let of_base = of_base.map_or_else(|| info.sum_digest(base), Ok)?;
            let after = || info.sum_after(of_base, base, new);
            [of_base, change.map_or_else(after, |change| Ok(of_base + change))?]
        }
    })
}

/// Returns the tensors that share a block classed by the base with the tensor before them.
fn joined<B: AsRef<Block>>(blocks: &[B]) -> HashSet<u64> {
    let based = blocks.iter().map(AsRef::as_ref).filter(|block| matches!(block.support, Support::Based(_)));
    based.flat_map(|block| tensors(block.scope).skip(1)).collect()
}

/// The tensors of a scope.
fn tensors(scope: Scope) -> impl Iterator<Item = u64> {
    (scope.first()..).take(scope.tensors() as usize)
}

/// Divides digested tensors into runs that share a digest. `joined`: those in the run of the tensor before
/// them.
fn runs<D: Copy>(
    digested: &[Digested<D>],
    joined: &HashSet<u64>,
    of_run: impl Fn(&[D]) -> D,
) -> Vec<Delta<D>> {
    let mut runs: Vec<Vec<&Digested<D>>> = Vec::new();
    let mut run_bytes = 0;
    for together in digested.chunk_by(|_, next| joined.contains(&next.tensor)) {
        let bytes: usize = together.iter().map(|d| d.bytes).sum();
        match runs.last_mut() {
            Some(run)
                if run[run.len() - 1].tensor + 1 == together[0].tensor && run_bytes + bytes <= RUN_BYTES =>
            {
                run.extend(together);
                run_bytes += bytes;
            }
            _ => {
                runs.push(together.iter().collect());
                run_bytes = bytes;
            }
        }
    }
    let entry = |run: &Vec<&Digested<D>>| {
        let (bases, results): (Vec<D>, Vec<D>) = run.iter().map(|d| (d.base, d.result)).unzip();
        let more = run.len() as u64 - 1;
        Delta { first: run[0].tensor, more, base: of_run(&bases), result: of_run(&results) }
    };
    runs.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::{Options, compress};
    use crate::{Dtype, TensorBuf};

    fn version(n: u8) -> TensorBuf {
        TensorBuf::new(Dtype::Bf16, vec![40], (0..80).map(|i| i / 7 * n).collect()).unwrap()
    }

    /// The runs of the step from one version to another, with these digests kept.
    fn step(kept: &mut Digests, codec: &str, from: u8, to: u8) -> DeltaRuns {
        let (base, new) = (version(from), version(to));
        let inputs = [Input { tensor: 0, name: "w", view: new.view(), base: Some(base.view()) }];
        let codecs = [codec.parse().unwrap()];
        let blocks = compress(&inputs, &codecs, &Options::default(), None).unwrap();
        kept.deltas(&manifest(), &inputs, &codecs, &blocks).unwrap()
    }

    fn manifest() -> Manifest {
        Manifest::new(vec![TensorInfo::new("w", Dtype::Bf16, [40])]).unwrap()
    }

    fn new_step(codec: &str, from: u8, to: u8) -> DeltaRuns {
        step(&mut Digests::default(), codec, from, to)
    }

    #[test]
    fn the_codec_chooses_the_kinds_of_digests() {
        let [base, new] = [version(1), version(2)];
        let both = new_step("delta:digest=both", 1, 2);
        let info = &manifest().tensors()[0].clone();
        let [base_sum, new_sum] = [&base, &new].map(|tensor| info.sum_digest(tensor.view()).unwrap());
        let hashes = [&base, &new].map(|tensor| tensor_digest(tensor.view()));
        assert_eq!(both.hashed, Some(vec![Delta { first: 0, more: 0, base: hashes[0], result: hashes[1] }]));
        assert_eq!(both.summed, Some(vec![Delta { first: 0, more: 0, base: base_sum, result: new_sum }]));
        let hashed = DeltaRuns { hashed: both.hashed.clone(), summed: None };
        assert_eq!(new_step("delta:digest=blake3", 1, 2), hashed);
        let summed = DeltaRuns { hashed: None, summed: both.summed.clone() };
        assert_eq!(new_step("delta", 1, 2), summed);
        assert_eq!(new_step("lossless", 1, 2), DeltaRuns::default());
        let inputs = [Input { tensor: 0, name: "w", view: new.view(), base: Some(base.view()) }];
        let codecs = ["delta", "delta:digest=blake3", "raw"].map(|codec| codec.parse().unwrap());
        let expected =
            |codecs| Digests::default().expected(&manifest(), &inputs, codecs, &Expected::default()).unwrap();
        assert_eq!(expected(&codecs), both, "a mixture has both");
        assert_eq!(expected(&codecs[1..]), hashed);
    }

    #[test]
    fn a_tensor_of_another_manifest_has_no_sum() {
        let [base, new] = [version(1), version(2)];
        for (tensor, shape) in [(1, 40), (0, 41)] {
            let inputs = [Input { tensor, name: "w", view: new.view(), base: Some(base.view()) }];
            let manifest = Manifest::new(vec![TensorInfo::new("w", Dtype::Bf16, [shape])]).unwrap();
            let error = Digests::default().expected(
                &manifest,
                &inputs,
                &["delta".parse().unwrap()],
                &Expected::default(),
            );
            assert!(matches!(error, Err(Error::Input(_))), "{tensor} {shape}");
        }
    }

    #[test]
    fn kept_digests_are_those_of_the_bases() {
        let codec = "delta:digest=both";
        let mut kept = Digests::default();
        for n in 1..4 {
            assert_eq!(step(&mut kept, codec, n, n + 1), new_step(codec, n, n + 1), "{n}");
        }
        // Digests that the caller computed are taken as they are.
        let sums = [3, 4].map(|byte| SumDigest::from_bytes([byte; 16]).unwrap());
        let mut given = Digests::default();
        given.keep_base(0, [1; 16]);
        given.keep_result(0, [2; 16]);
        given.keep_base_sum(0, sums[0]);
        given.keep_result_sum(0, sums[1]);
        let runs = step(&mut given, codec, 4, 5);
        assert_eq!(runs.hashed, Some(vec![Delta { first: 0, more: 0, base: [1; 16], result: [2; 16] }]));
        assert_eq!(runs.summed, Some(vec![Delta { first: 0, more: 0, base: sums[0], result: sums[1] }]));
        // A result is kept for one update. That of a base is the sum of the other and the changes.
        given.keep_base(0, tensor_digest(version(4).view()));
        given.sums.bases.clear();
        assert_eq!(step(&mut given, codec, 4, 5), new_step(codec, 4, 5));
        let of_new = manifest().tensors()[0].sum_digest(version(5).view()).unwrap();
        let mut given = Digests::default();
        given.keep_result_sum(0, of_new);
        assert_eq!(step(&mut given, "delta", 4, 5), new_step("delta", 4, 5));
        // A base that is another one has the digests that were kept, and receivers refuse it.
        for codec in ["delta", "delta:digest=blake3"] {
            let mut kept = Digests::default();
            step(&mut kept, codec, 1, 2);
            assert_ne!(step(&mut kept, codec, 9, 10), new_step(codec, 9, 10), "{codec}");
        }
    }
}
