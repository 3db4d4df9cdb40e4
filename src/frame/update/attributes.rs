//! Optional attributes of an update (spec, sections 4.2 and 6).

use crate::bits::{Cursor, put_varint};
use crate::error::{Error, FormatErrorKind, Result};
use crate::frame::UpdateHeader;
use crate::tensor::{Dtype, TensorView};

/// Number of an attribute in the registry; readers may skip odd ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributeId(pub u64);

impl AttributeId {
    /// Compression method of the sender, as text.
    pub(crate) const LABEL: Self = Self(1);
    /// Tensors that a delta changes.
    pub(crate) const DELTA: Self = Self(2);

    /// Every registered attribute with its name.
    pub const REGISTERED: [(Self, &'static str); 2] = [(Self::LABEL, "label"), (Self::DELTA, "delta")];
}

/// First 16 bytes of the hash of a tensor's type, shape and elements.
pub type Digest = [u8; 16];

/// A run of consecutive tensors that a delta changes, with one digest for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delta {
    /// Number of the first tensor in the manifest.
    pub first: u64,
    /// Number of further tensors.
    pub more: u64,
    /// Digest before the update.
    pub base: Digest,
    /// Digest after the whole update.
    pub result: Digest,
}

impl Delta {
    /// Number of the last tensor in the manifest; `u64::MAX` if it exceeds 64 bits, which no run of a stream
    /// does.
    pub fn last(&self) -> u64 {
        self.first.saturating_add(self.more)
    }

    /// Whether the run contains a tensor.
    pub(crate) fn contains(&self, tensor: u64) -> bool {
        (self.first..=self.last()).contains(&tensor)
    }

    /// Returns the run in `runs`, in ascending order, that contains a tensor.
    pub fn find(runs: &[Self], tensor: u64) -> Option<&Self> {
        runs.get(runs.partition_point(|run| run.last() < tensor)).filter(|run| run.contains(tensor))
    }
}

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

/// Longest label that is written, in bytes.
const MAX_LABEL: usize = 65_535;

pub(super) fn write(out: &mut Vec<u8>, label: &str, delta: Option<&[Delta]>) {
    let label = &label.as_bytes()[..label.floor_char_boundary(MAX_LABEL)];
    put_varint(out, u64::from(!label.is_empty()) + u64::from(delta.is_some()));
    let mut put = |id: AttributeId, bytes: &[u8]| {
        put_varint(out, id.0);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    };
    if !label.is_empty() {
        put(AttributeId::LABEL, label);
    }
    if let Some(delta) = delta {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, delta.len() as u64);
        for entry in delta {
            put_varint(&mut bytes, entry.first);
            put_varint(&mut bytes, entry.more);
            bytes.extend_from_slice(&entry.base);
            bytes.extend_from_slice(&entry.result);
        }
        put(AttributeId::DELTA, &bytes);
    }
}

pub(super) fn read(cursor: &mut Cursor<'_>, header: &mut UpdateHeader) -> Result<()> {
    let mut previous = 0;
    for _ in 0..cursor.varint()? {
        let offset = cursor.offset();
        let id = cursor.varint_in("attribute", 1, u64::MAX)?;
        if id <= previous {
            return Err(Error::format(FormatErrorKind::NotAscending, offset));
        }
        previous = id;
        let len = cursor.varint()?;
        let mut body = cursor.sub(len, "attribute")?;
        match AttributeId(id) {
            AttributeId::LABEL => {
                let start = body.offset();
                let label = std::str::from_utf8(body.take_rest());
                label
                    .map_err(|_| Error::format(FormatErrorKind::InvalidUtf8, start))?
                    .clone_into(&mut header.label);
            }
            AttributeId::DELTA => header.delta = Some(read_delta(&mut body)?),
            AttributeId(id) if id % 2 == 0 => return Err(Error::unsupported("attribute", id, offset)),
            AttributeId(_) => {}
        }
    }
    Ok(())
}

fn read_delta(cursor: &mut Cursor<'_>) -> Result<Vec<Delta>> {
    let mut delta: Vec<Delta> = Vec::new();
    for _ in 0..cursor.varint()? {
        let offset = cursor.offset();
        let first = cursor.varint()?;
        if delta.last().is_some_and(|run| run.last() >= first) {
            return Err(Error::format(FormatErrorKind::NotAscending, offset));
        }
        let more = cursor.varint()?;
        if first.checked_add(more).is_none() {
            return Err(Error::out_of_range("tensor of a delta", more, offset));
        }
        delta.push(Delta { first, more, base: cursor.array()?, result: cursor.array()? });
    }
    cursor.finish()?;
    Ok(delta)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_of_a_delta_ascend() {
        let read = |runs: &[(u64, u64)]| {
            let delta = |&(first, more): &(u64, u64)| Delta { first, more, base: [1; 16], result: [2; 16] };
            let (mut bytes, delta) = (Vec::new(), Vec::from_iter(runs.iter().map(delta)));
            write(&mut bytes, "", Some(&delta));
            let mut header = UpdateHeader::default();
            read(&mut Cursor::new(&bytes, 100, "update"), &mut header).map_err(|e| e.name())?;
            assert_eq!(header.delta, Some(delta));
            Ok(())
        };
        assert_eq!(read(&[]), Ok(()));
        assert_eq!(read(&[(0, 2), (3, 0), (5, u64::MAX - 5)]), Ok(()));
        for wrong in [&[(0, 0), (5, 0), (3, 0)][..], &[(0, 2), (2, 0)], &[(4, 0), (4, 0)]] {
            assert_eq!(read(wrong), Err("not_ascending"), "{wrong:?}");
        }
        assert_eq!(read(&[(0, 0), (6, u64::MAX - 5)]), Err("out_of_range"));
    }
}
