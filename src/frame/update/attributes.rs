//! Optional attributes of an update (spec, sections 4.2 and 6).

use crate::bits::{Cursor, put_varint};
use crate::digest::{Digest, SumDigest};
use crate::error::{Error, FormatErrorKind, Result};
use crate::frame::UpdateHeader;

/// Number of an attribute in the registry; readers may skip odd ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributeId(pub u64);

impl AttributeId {
    /// Compression method of the sender, as text.
    pub(crate) const LABEL: Self = Self(1);
    /// Tensors that a delta changes.
    pub(crate) const DELTA: Self = Self(2);

    /// Tensors that a delta changes, with sum digests.
    pub(crate) const SUM_DELTA: Self = Self(4);

    /// Every registered attribute with its name.
    pub const REGISTERED: [(Self, &'static str); 3] =
        [(Self::LABEL, "label"), (Self::DELTA, "delta"), (Self::SUM_DELTA, "sum_delta")];
}

/// A run of consecutive tensors that a delta changes, with one digest for all of them: a hash, or the sum of
/// their sum digests ([`TensorInfo::sum_digest`](crate::frame::TensorInfo::sum_digest)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delta<D = Digest> {
    /// Number of the first tensor in the manifest.
    pub first: u64,
    /// Number of further tensors.
    pub more: u64,
    /// Digest before the update.
    pub base: D,
    /// Digest after the whole update.
    pub result: D,
}

impl<D> Delta<D> {
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

/// Longest label that is written, in bytes.
const MAX_LABEL: usize = 65_535;

/// Bytes of a digest on the wire.
pub(super) trait OnWire: Copy + PartialEq {
    fn to_wire(self) -> [u8; 16];

    /// Returns the digest of bytes that stand at `offset`.
    fn from_wire(bytes: [u8; 16], offset: u64) -> Result<Self>;
}

impl OnWire for Digest {
    fn to_wire(self) -> [u8; 16] {
        self
    }

    fn from_wire(bytes: [u8; 16], _: u64) -> Result<Self> {
        Ok(bytes)
    }
}

impl OnWire for SumDigest {
    fn to_wire(self) -> [u8; 16] {
        self.to_bytes()
    }

    fn from_wire(bytes: [u8; 16], offset: u64) -> Result<Self> {
        let found = bytes.as_chunks::<4>().0.iter().map(|lane| u64::from(u32::from_le_bytes(*lane))).max();
        Self::from_bytes(bytes)
            .ok_or_else(|| Error::out_of_range("lane of a sum digest", found.unwrap_or_default(), offset))
    }
}

/// Runs of tensors that a delta changes, by the kind of their digests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeltaRuns {
    /// Runs with hashes; `None` if the update has no hashes.
    pub hashed: Option<Vec<Delta>>,
    /// Runs with sum digests; `None` if the update has none.
    pub summed: Option<Vec<Delta<SumDigest>>>,
}

impl DeltaRuns {
    /// Returns the runs of two sets of tensors, in ascending order.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        fn all<D>(one: Option<Vec<Delta<D>>>, other: Option<Vec<Delta<D>>>) -> Option<Vec<Delta<D>>> {
            let mut runs = match (one, other) {
                (Some(one), Some(other)) => [one, other].into_iter().flatten().collect(),
                (one, other) => one.or(other)?,
            };
            runs.sort_by_key(|run| run.first);
            Some(runs)
        }
        Self { hashed: all(self.hashed, other.hashed), summed: all(self.summed, other.summed) }
    }
}

pub(super) fn write(out: &mut Vec<u8>, label: &str, runs: &DeltaRuns) {
    let label = &label.as_bytes()[..label.floor_char_boundary(MAX_LABEL)];
    let count = [!label.is_empty(), runs.hashed.is_some(), runs.summed.is_some()];
    put_varint(out, count.map(u64::from).iter().sum());
    let mut put = |id: AttributeId, bytes: &[u8]| {
        put_varint(out, id.0);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    };
    if !label.is_empty() {
        put(AttributeId::LABEL, label);
    }
    if let Some(runs) = &runs.hashed {
        put(AttributeId::DELTA, &runs_bytes(runs));
    }
    if let Some(runs) = &runs.summed {
        put(AttributeId::SUM_DELTA, &runs_bytes(runs));
    }
}

fn runs_bytes<D: OnWire>(runs: &[Delta<D>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, runs.len() as u64);
    for run in runs {
        put_varint(&mut bytes, run.first);
        put_varint(&mut bytes, run.more);
        bytes.extend_from_slice(&run.base.to_wire());
        bytes.extend_from_slice(&run.result.to_wire());
    }
    bytes
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
            AttributeId::DELTA => header.delta = Some(read_runs(&mut body)?),
            AttributeId::SUM_DELTA => header.sums = Some(read_runs(&mut body)?),
            AttributeId(id) if id % 2 == 0 => return Err(Error::unsupported("attribute", id, offset)),
            AttributeId(_) => {}
        }
    }
    Ok(())
}

fn read_runs<D: OnWire>(cursor: &mut Cursor<'_>) -> Result<Vec<Delta<D>>> {
    let mut runs: Vec<Delta<D>> = Vec::new();
    for _ in 0..cursor.varint()? {
        let offset = cursor.offset();
        let first = cursor.varint()?;
        if runs.last().is_some_and(|run| run.last() >= first) {
            return Err(Error::format(FormatErrorKind::NotAscending, offset));
        }
        let more = cursor.varint()?;
        if first.checked_add(more).is_none() {
            return Err(Error::out_of_range("tensor of a delta", more, offset));
        }
        let mut digest = || {
            let at = cursor.offset();
            D::from_wire(cursor.array()?, at)
        };
        runs.push(Delta { first, more, base: digest()?, result: digest()? });
    }
    cursor.finish()?;
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_of_a_delta_ascend() {
        let read = |runs: &[(u64, u64)]| {
            let delta = |&(first, more): &(u64, u64)| Delta { first, more, base: [1; 16], result: [2; 16] };
            let (mut bytes, delta) = (Vec::new(), Vec::from_iter(runs.iter().map(delta)));
            write(&mut bytes, "", &DeltaRuns { hashed: Some(delta.clone()), summed: None });
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

    #[test]
    fn runs_of_two_sets_of_tensors_ascend_and_list_them() {
        fn runs<D: Copy>(digest: D, firsts: &[u64]) -> Option<Vec<Delta<D>>> {
            let run = |&first: &u64| Delta { first, more: 1, base: digest, result: digest };
            Some(firsts.iter().map(run).collect())
        }
        let later = DeltaRuns { hashed: runs([1; 16], &[4, 9]), summed: None };
        let both = DeltaRuns { hashed: runs([1; 16], &[0, 6]), summed: runs(SumDigest::ZERO, &[2]) };
        let expected =
            DeltaRuns { hashed: runs([1; 16], &[0, 4, 6, 9]), summed: runs(SumDigest::ZERO, &[2]) };
        assert_eq!(later.clone().with(both.clone()), expected);
        assert_eq!(both.with(later), expected);

        let header = UpdateHeader::default().with_runs(expected);
        let listed: Vec<u64> = (0..13).filter(|&tensor| header.lists(tensor)).collect();
        assert_eq!(listed, [0, 1, 2, 3, 4, 5, 6, 7, 9, 10]);
        let summed = UpdateHeader::default().with_sums(runs(SumDigest::ZERO, &[2]));
        assert_eq!((0..5).filter(|&tensor| summed.lists(tensor)).count(), 2);
        assert!(!UpdateHeader::default().lists(0));
    }

    #[test]
    fn lanes_of_a_sum_are_below_the_prime() {
        fn run<D>(base: D, result: D) -> Delta<D> {
            Delta { first: 0, more: 1, base, result }
        }
        let read = |runs: Vec<u8>| {
            let bytes = [&[1, 4, runs.len() as u8][..], &runs].concat();
            let mut header = UpdateHeader::default();
            read(&mut Cursor::new(&bytes, 100, "update"), &mut header).map_err(|e| e.to_string())?;
            Ok::<_, String>(header.sums.unwrap())
        };
        let sum = SumDigest::from_bytes([0x7f, 0, 0, 0].repeat(4).try_into().unwrap()).unwrap();
        let good = vec![run(sum, SumDigest::ZERO)];
        assert_eq!(read(runs_bytes(&good)), Ok(good));
        let most = [[0; 4], [0xff, 0xff, 0xff, 0x7f], [0; 4], [0; 4]].as_flattened().try_into().unwrap();
        for (runs, offset) in [([most, [0; 16]], 106), ([[0; 16], most], 122)] {
            let error = read(runs_bytes(&[run(runs[0], runs[1])])).unwrap_err();
            assert!(error.contains("2147483647") && error.ends_with(&format!("{offset:#x}")), "{error}");
        }
    }
}
