//! Digests of the tensors of an update.

use gcodec::compress::Digests;
use gcodec::frame::Digest;
use gcodec::internal::device::delta::{Digested, digest_head, known};

use super::DeltaInput;
use crate::abi::delta::{GROUP_CHUNKS, Hashed};
use crate::error::{Result, TensorError, inconsistent};
use crate::tensor::DeviceTensor;

/// Bytes of a chunk.
const CHUNK_BYTES: u64 = 1024;
/// Bytes of a digest.
pub(super) const DIGEST_BYTES: u64 = size_of::<Digest>() as u64;

/// The digests that an update needs.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// For each input the digests of base and new tensor, where they are known.
    known: Vec<[Option<Digest>; 2]>,
    /// The other tensors.
    pub(super) hashed: Vec<Hashed>,
    /// The bytes before the elements of each of them.
    pub(super) heads: Vec<u8>,
    pub(super) groups: u32,
}

impl Plan {
    pub(super) fn new(inputs: &[DeltaInput<'_>], digests: &Digests) -> Result<Self> {
        let mut plan = Self::default();
        let mut groups = 0u64;
        for input in inputs {
            let [base, result] = known(digests, input.tensor);
            plan.known.push([base, result]);
            let missing = [(base, &input.base), (result, &input.new)].into_iter();
            for (_, tensor) in missing.filter(|(known, _)| known.is_none()) {
                plan.add(tensor, &mut groups);
            }
        }
        plan.groups = i32::try_from(groups)
            .map_err(|_| TensorError::TooMany { most: i32::MAX as usize })?
            .unsigned_abs();
        Ok(plan)
    }

    fn add(&mut self, tensor: &DeviceTensor<'_>, groups: &mut u64) {
        let head = digest_head(tensor.dtype(), tensor.shape());
        let bytes = tensor.elements() * u64::from(tensor.dtype().bits() / 8);
        let chunks = (head.len() as u64 + bytes).div_ceil(CHUNK_BYTES);
        let own = chunks.div_ceil(GROUP_CHUNKS);
        self.hashed.push(Hashed {
            data: tensor.address(),
            head: self.heads.len() as u64,
            bytes,
            chunks,
            head_len: head.len() as u32,
            first_group: *groups as u32,
            groups: own as u32,
            ..Hashed::default()
        });
        self.heads.extend(head);
        *groups += own;
    }

    /// Bytes of the digests.
    pub(super) fn bytes(&self) -> u64 {
        DIGEST_BYTES * self.hashed.len() as u64
    }

    /// Bytes of the roots of groups.
    pub(super) fn node_bytes(&self) -> u64 {
        32 * u64::from(self.groups)
    }

    /// Turns offsets into addresses.
    pub(super) fn place(&mut self, heads: u64, out: u64, nodes: u64) {
        for (hashed, out) in self.hashed.iter_mut().zip((out..).step_by(DIGEST_BYTES as usize)) {
            hashed.head += heads;
            hashed.out = out;
            hashed.nodes = nodes + 32 * u64::from(hashed.first_group);
        }
    }

    /// `computed`: the digests of the device.
    pub(super) fn digested(&self, inputs: &[DeltaInput<'_>], computed: &[u8]) -> Result<Vec<Digested>> {
        let mut computed = computed.as_chunks().0.iter().copied();
        let mut digested = Vec::with_capacity(inputs.len());
        for (input, known) in inputs.iter().zip(&self.known) {
            let mut take = |known: Option<Digest>| known.or_else(|| computed.next()).ok_or_else(inconsistent);
            let bytes = input.new.elements() * u64::from(input.new.dtype().bits() / 8);
            digested.push(Digested {
                tensor: input.tensor,
                bytes: usize::try_from(bytes).map_err(|_| TensorError::Shape)?,
                base: take(known[0])?,
                result: take(known[1])?,
            });
        }
        Ok(digested)
    }
}
