//! Digests of the tensors that a delta changes.

use std::collections::{BTreeMap, HashSet};

use rayon::prelude::*;

use crate::block::{Block, Scope, Support};
use crate::compress::options::Input;
use crate::frame;
use crate::frame::{Digest, run_digest, tensor_digest};

use super::pieces::RUN_BYTES;

/// Digests of a tensor before and after an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digested {
    /// Number of the tensor in the manifest.
    pub tensor: u64,
    /// Bytes of its elements.
    pub bytes: usize,
    /// Digest of the base.
    pub base: Digest,
    /// Digest of the new tensor.
    pub result: Digest,
}

/// Returns the entries that an update's header has for the tensors touched by these blocks, before and after
/// the update ([`UpdateHeader::delta`](crate::frame::UpdateHeader::delta)). Consecutive small tensors share
/// an entry, and so do the tensors of a block classed by the base. Only tensors of `inputs` with a base have
/// one.
pub fn deltas<B: AsRef<Block>>(inputs: &[Input<'_>], blocks: &[B]) -> Vec<frame::Delta> {
    Digests::default().deltas(inputs, blocks)
}

/// Digests of the tensors that a sender of deltas sent last, and of those that it sends next.
///
/// The result of one delta is the base of the next, so a sender that keeps them computes half as many. One
/// that knows the digests of the new tensors, too, computes none.
#[derive(Debug, Clone, Default)]
pub struct Digests {
    bases: BTreeMap<u64, Digest>,
    results: BTreeMap<u64, Digest>,
}

impl Digests {
    /// Keeps the digest ([`tensor_digest`]) of a base, which the caller knows.
    pub fn keep_base(&mut self, tensor: u64, digest: Digest) {
        self.bases.insert(tensor, digest);
    }

    /// Keeps the digest ([`tensor_digest`]) of a new tensor, which the caller knows, for the next
    /// [`Self::deltas`].
    pub fn keep_result(&mut self, tensor: u64, digest: Digest) {
        self.results.insert(tensor, digest);
    }

    /// As [`deltas`], with the kept digests in place of computed ones. Keeps the digests of the results as
    /// those of the next bases.
    ///
    /// The bases of `inputs` have to be the tensors of the call before; a receiver refuses the delta
    /// otherwise.
    pub fn deltas<B: AsRef<Block>>(&mut self, inputs: &[Input<'_>], blocks: &[B]) -> Vec<frame::Delta> {
        let touched: HashSet<u64> = blocks.iter().flat_map(|coded| tensors(coded.as_ref().scope)).collect();
        let digested = self.digested(inputs, |tensor| touched.contains(&tensor));
        self.entries(&digested, blocks)
    }

    /// As [`Self::deltas`], for blocks that are still to make: all tensors are touched. `joined`: those that
    /// share a block classed by the base with the tensor before them.
    pub(in crate::compress) fn expected(
        &mut self,
        inputs: &[Input<'_>],
        joined: &HashSet<u64>,
    ) -> Vec<frame::Delta> {
        let digested = self.digested(inputs, |_| true);
        self.keep(&digested, joined)
    }

    /// Returns the digests of the touched tensors that have a base.
    fn digested(&self, inputs: &[Input<'_>], touched: impl Fn(u64) -> bool + Sync) -> Vec<Digested> {
        let touched = inputs.par_iter().filter(|input| touched(input.tensor));
        touched
            .filter_map(|input| {
                let (tensor, bytes) = (input.tensor, input.view.data().len());
                let base = input.base?;
                let (of_base, of_result) = self.known(tensor);
                let base = of_base.unwrap_or_else(|| tensor_digest(base));
                let result = of_result.unwrap_or_else(|| tensor_digest(input.view));
                Some(Digested { tensor, bytes, base, result })
            })
            .collect()
    }

    /// Returns the kept digests of a base and of a new tensor.
    pub(in crate::compress) fn known(&self, tensor: u64) -> (Option<Digest>, Option<Digest>) {
        (self.bases.get(&tensor).copied(), self.results.get(&tensor).copied())
    }

    /// Returns the entries of the touched tensors, and keeps the digests of the results as those of the next
    /// bases.
    pub(in crate::compress) fn entries<B: AsRef<Block>>(
        &mut self,
        digested: &[Digested],
        blocks: &[B],
    ) -> Vec<frame::Delta> {
        let based = blocks.iter().map(AsRef::as_ref).filter(|b| matches!(b.support, Support::Based(_)));
        let joined: HashSet<u64> = based.flat_map(|block| tensors(block.scope).skip(1)).collect();
        self.keep(digested, &joined)
    }

    fn keep(&mut self, digested: &[Digested], joined: &HashSet<u64>) -> Vec<frame::Delta> {
        self.bases.extend(digested.iter().map(|d| (d.tensor, d.result)));
        self.results.clear();
        runs(digested, joined)
    }
}

/// The tensors of a scope.
fn tensors(scope: Scope) -> impl Iterator<Item = u64> {
    (scope.first()..).take(scope.tensors() as usize)
}

/// Divides digested tensors into runs that share an entry. `joined`: those in the run of the tensor before
/// them.
fn runs(digested: &[Digested], joined: &HashSet<u64>) -> Vec<frame::Delta> {
    let mut runs: Vec<Vec<&Digested>> = Vec::new();
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
    let entry = |run: &Vec<&Digested>| {
        let (bases, results): (Vec<Digest>, Vec<Digest>) = run.iter().map(|d| (d.base, d.result)).unzip();
        let more = run.len() as u64 - 1;
        frame::Delta { first: run[0].tensor, more, base: run_digest(&bases), result: run_digest(&results) }
    };
    runs.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::{Options, compress};
    use crate::{Dtype, TensorBuf};

    #[test]
    fn kept_digests_are_those_of_the_bases() {
        let version =
            |n: u8| TensorBuf::new(Dtype::Bf16, vec![40], (0..80).map(|i| i / 7 * n).collect()).unwrap();
        let mut kept = Digests::default();
        for n in 1..4 {
            let (base, new) = (version(n), version(n + 1));
            let inputs = [Input { tensor: 0, name: "w", view: new.view(), base: Some(base.view()) }];
            let blocks = compress(&inputs, &["delta".parse().unwrap()], &Options::default(), None).unwrap();
            assert_eq!(kept.deltas(&inputs, &blocks), deltas(&inputs, &blocks), "{n}");
        }
        // Digests that the caller computed are taken as they are.
        let (base, new) = (version(4), version(5));
        let inputs = [Input { tensor: 0, name: "w", view: new.view(), base: Some(base.view()) }];
        let blocks = compress(&inputs, &["delta".parse().unwrap()], &Options::default(), None).unwrap();
        let mut given = Digests::default();
        given.keep_base(0, [1; 16]);
        given.keep_result(0, [2; 16]);
        let entry = given.deltas(&inputs, &blocks)[0];
        assert_eq!((entry.base, entry.result), ([1; 16], [2; 16]));
        given.keep_base(0, tensor_digest(base.view()));
        assert_eq!(
            given.deltas(&inputs, &blocks),
            deltas(&inputs, &blocks),
            "a result is kept for one update"
        );
        // A base that is another one has the digest that was kept, and receivers refuse it.
        let (base, new) = (version(9), version(10));
        let inputs = [Input { tensor: 0, name: "w", view: new.view(), base: Some(base.view()) }];
        let blocks = compress(&inputs, &["delta".parse().unwrap()], &Options::default(), None).unwrap();
        assert_ne!(kept.deltas(&inputs, &blocks), deltas(&inputs, &blocks));
    }
}
