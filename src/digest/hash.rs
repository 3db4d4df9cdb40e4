//! Digests that are hashes (spec, section 6).

use crate::bits::put_varint;
use crate::tensor::{Dtype, TensorView};

/// First 16 bytes of the hash of a tensor's type, shape and elements.
pub type Digest = [u8; 16];

/// Returns the digest of a tensor (spec, section 6).
pub fn tensor_digest(tensor: TensorView<'_>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&digest_head(tensor.dtype(), tensor.shape()));
    match tensor.data() {
        // Threads of the caller's pool share a large tensor.
        data if data.len() >= LARGE => hasher.update_rayon(data),
        data => hasher.update(data),
    };
    let hash = hasher.finalize();
    std::array::from_fn(|i| hash.as_bytes()[i])
}

/// Returns the bytes that are hashed before a tensor's elements.
pub(crate) fn digest_head(dtype: Dtype, shape: &[u64]) -> Vec<u8> {
    let mut head = vec![dtype.id()];
    put_varint(&mut head, shape.len() as u64);
    shape.iter().for_each(|&d| put_varint(&mut head, d));
    head
}

/// Bytes of a tensor from which on several threads compute its digest.
const LARGE: usize = 4 << 20;

/// Returns the digest of a run of tensors with these digests (spec, section 6).
pub fn run_digest(tensors: &[Digest]) -> Digest {
    match tensors {
        [one] => *one,
        several => {
            let hash = blake3::hash(several.as_flattened());
            std::array::from_fn(|i| hash.as_bytes()[i])
        }
    }
}
