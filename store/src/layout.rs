//! Names and texts of a store's objects (README, "Layout").

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gcodec::digest::SumDigest;
use gcodec::frame::TensorInfo;
use gcodec::{Codec, Dtype};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// First word of every text object.
const MAGIC: &str = "gcodec-store";
/// Version of the layout.
pub(crate) const FORMAT: u64 = 1;
/// Most bytes of a text object that a reader accepts.
pub(crate) const MAX_TEXT: u64 = 64 << 20;

/// Object with the number of a recent version. It saves a reader the search; it decides nothing.
pub(crate) const HINT: &str = "latest.json";
/// Object with the settings that all users of a store share.
pub(crate) const SETTINGS: &str = "store.json";
/// Prefix of the objects with weights.
pub(crate) const DATA: &str = "data";
/// Prefix of the leases of readers.
pub(crate) const LEASES: &str = "leases";
/// Prefix of the records of folds.
pub(crate) const FOLDS: &str = "folds";
/// Object that publishers try to create again, to learn whether the store refuses it.
pub(crate) const PROBE: &str = "probe.json";
/// Object that `gc` writes to learn the store's time.
pub(crate) const CLOCK: &str = "clock.json";

/// Returns the name of the record that commits a version.
pub(crate) fn version_path(version: u64) -> String {
    format!("versions/{version:020}.json")
}

pub(crate) fn fold_path(from: u64, to: u64) -> String {
    format!("{FOLDS}/{to:020}-{from:020}.json")
}

/// Returns the versions of a fold's record.
pub(crate) fn parse_fold(path: &str) -> Option<(u64, u64)> {
    let (to, from) = path.rsplit('/').next()?.strip_suffix(".json")?.split_once('-')?;
    Some((number(from)?, number(to)?))
}

/// Returns the version that an object with weights was written for.
pub(crate) fn parse_data(path: &str) -> Option<u64> {
    let (version, rest) = path.strip_prefix(DATA)?.strip_prefix('/')?.split_once('-')?;
    number(version).filter(|_| rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

fn number(text: &str) -> Option<u64> {
    (text.len() == 20 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Kind of an object with weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The table of tensors.
    Model,
    Anchor,
    Delta,
    Fold,
}

impl Kind {
    fn letter(self) -> char {
        match self {
            Self::Model => 'm',
            Self::Anchor => 'a',
            Self::Delta => 'd',
            Self::Fold => 'f',
        }
    }
}

/// An immutable object with weights, or with the table of tensors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Object {
    /// Name in the store.
    pub(crate) path: String,
    /// Bytes.
    pub(crate) size: u64,
    /// BLAKE3 of the bytes, 64 hexadecimal digits.
    pub(crate) blake3: String,
    /// Number of its group of tensors.
    #[serde(default)]
    pub(crate) group: u64,
}

impl Object {
    pub(crate) fn of(kind: Kind, version: u64, group: usize, bytes: &[u8]) -> Self {
        let hash = blake3::hash(bytes).to_hex();
        let path = format!("{DATA}/{version:020}-{}{group}-{}", kind.letter(), &hash[..32]);
        Self { path, size: bytes.len() as u64, blake3: hash.to_string(), group: group as u64 }
    }
}

/// A tensor in the table of tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Tensor {
    name: String,
    dtype: String,
    shape: Vec<u64>,
}

/// The table of tensors, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelText {
    tensors: Vec<Tensor>,
    /// Number of tensors in each group. Each group is encoded as streams of its own.
    groups: Vec<u64>,
}

impl ModelText {
    pub(crate) fn new(infos: &[TensorInfo], groups: &[usize]) -> Self {
        let tensors = infos.iter().map(|info| Tensor {
            name: info.name.clone(),
            dtype: info.dtype.name().to_owned(),
            shape: info.shape.clone(),
        });
        Self { tensors: tensors.collect(), groups: groups.iter().map(|&n| n as u64).collect() }
    }

    /// Returns the tensors, and the number of tensors in each group.
    pub(crate) fn check(self, path: &str) -> Result<(Vec<TensorInfo>, Vec<usize>)> {
        let infos: Result<Vec<TensorInfo>> = self
            .tensors
            .into_iter()
            .map(|t| {
                let dtype = Dtype::from_name(&t.dtype);
                let dtype =
                    dtype.ok_or_else(|| Error::corrupt(path, format!("element type {:?}", t.dtype)))?;
                Ok(TensorInfo::new(t.name, dtype, t.shape))
            })
            .collect();
        let infos = infos?;
        let sum = self.groups.iter().try_fold(0u64, |sum, &n| if n == 0 { None } else { sum.checked_add(n) });
        if sum != Some(infos.len() as u64) {
            return Err(Error::corrupt(path, "the groups do not add up to the tensors"));
        }
        Ok((infos, self.groups.iter().map(|&n| n as usize).collect()))
    }
}

/// Record of a version or of a fold. A version exists when its record exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) version: u64,
    /// Version that the deltas apply to; 0 if the record has no deltas.
    pub(crate) parent: u64,
    /// Milliseconds since 1970, by the publisher's clock. For people only.
    pub(crate) created_ms: u64,
    /// Random text that tells two publishers apart.
    pub(crate) nonce: String,
    /// Keys and values of the publisher.
    pub(crate) meta: BTreeMap<String, String>,
    /// The table of tensors.
    pub(crate) model: Object,
    /// Digest of all weights: the sum of those of all tensors (spec, section 6.1), 32 hexadecimal digits.
    pub(crate) state: String,
    /// Bytes of all weights.
    pub(crate) bytes: u64,
    /// Number of tensors that differ from the parent's.
    pub(crate) touched: u64,
    /// One object for each group: the whole weights. Absent if the version is no anchor.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) anchor: Option<Vec<Object>>,
    /// One object for each group that differs from the parent's. Absent in a chain's first version.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) delta: Option<Vec<Object>>,
    /// Codec of the delta, for people and folds. Absent without delta.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) codec: Option<String>,
    /// Version of the nearest anchor, this one included.
    pub(crate) anchor_version: u64,
    /// Bytes of the deltas after that anchor, this one's included.
    pub(crate) chain_bytes: u64,
}

impl Record {
    /// Checks what a reader relies on.
    pub(crate) fn check(self, path: &str, version: u64) -> Result<Self> {
        let wrong = |what: &str| Err(Error::corrupt(path, what));
        if self.version != version {
            return wrong("the record is of another version");
        }
        if self.parent >= version || (self.delta.is_some() != (self.parent > 0)) {
            return wrong("the parent does not come before the version");
        }
        if self.anchor.is_none() && self.delta.is_none() {
            return wrong("the version has neither anchor nor delta");
        }
        if self.anchor_version > version || (self.anchor.is_some() != (self.anchor_version == version)) {
            return wrong("the nearest anchor is wrong");
        }
        digest(&self.state, path)?;
        let ascend = |objects: &Vec<Object>| objects.windows(2).all(|pair| pair[0].group < pair[1].group);
        if !self.anchor.iter().chain(&self.delta).all(ascend) {
            return wrong("the groups do not ascend");
        }
        let named = |object: &Object| parse_data(&object.path).is_some();
        if !self.objects().all(named) || !named(&self.model) {
            return wrong("an object lies outside data/");
        }
        Ok(self)
    }

    /// Returns the codec of the delta; `delta` if the record states none that this build knows.
    pub(crate) fn codec(&self) -> Codec {
        let stated = self.codec.as_deref().and_then(|text| text.parse().ok());
        stated.filter(is_delta).unwrap_or(Codec::Delta(Default::default()))
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.anchor.iter().chain(&self.delta).flatten()
    }
}

/// Whether a codec makes deltas.
pub(crate) fn is_delta(codec: &Codec) -> bool {
    matches!(codec, Codec::Delta(_))
}

/// Bytes of objects.
pub(crate) fn size(objects: &[Object]) -> u64 {
    objects.iter().fold(0, |sum, object| sum.saturating_add(object.size))
}

/// Content of [`HINT`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hint {
    pub(crate) version: u64,
}

/// Content of [`SETTINGS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Milliseconds for which `gc` keeps objects that no version refers to, or that a newer anchor replaces.
    pub(crate) grace_ms: u64,
}

impl Settings {
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }

    /// Whether objects written at `start` may be taken for those of a publisher that was stopped. Without a
    /// grace period, nothing is collected beside publishers.
    pub(crate) fn is_too_late(&self, start: Instant) -> bool {
        self.grace_ms > 0 && start.elapsed() > self.grace() / 2
    }
}

/// Content of [`PROBE`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// Random text, so that two writes differ.
    pub(crate) nonce: String,
}

/// Content of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseText {
    /// Version that the reader holds: `gc` keeps the deltas after it.
    pub(crate) version: u64,
    /// Seconds after its writing for which the lease holds.
    pub(crate) seconds: u64,
}

/// Returns a text object: a line with magic, format and checksum, then JSON.
pub(crate) fn to_text(content: &impl Serialize) -> Result<Vec<u8>> {
    let json = serde_json::to_string(content).map_err(|e| Error::input(e.to_string()))?;
    Ok(format!("{MAGIC} {FORMAT} {}\n{json}\n", blake3::hash(format!("{json}\n").as_bytes()).to_hex())
        .into_bytes())
}

/// Reads a text object, after checking its checksum.
pub(crate) fn from_text<T: DeserializeOwned>(bytes: &[u8], path: &str) -> Result<T> {
    let corrupt = |what: String| Error::corrupt(path, what);
    let end = bytes.iter().take(128).position(|&b| b == b'\n');
    let end = end.ok_or_else(|| corrupt("no gcodec-store text".into()))?;
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| corrupt("no gcodec-store text".into()))?;
    let mut words = head.split(' ');
    if words.next() != Some(MAGIC) {
        return Err(corrupt("no gcodec-store text".into()));
    }
    let format = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    if format != FORMAT {
        return Err(Error::Newer { path: path.to_owned(), found: format });
    }
    let body = &bytes[end + 1..];
    if words.next() != Some(blake3::hash(body).to_hex().as_str()) || words.next().is_some() {
        return Err(corrupt("the checksum is wrong".into()));
    }
    serde_json::from_slice(body).map_err(|e| corrupt(format!("invalid JSON: {e}")))
}

/// Reads a digest of 32 hexadecimal digits.
pub(crate) fn digest(text: &str, path: &str) -> Result<SumDigest> {
    text.parse().map_err(|_| Error::corrupt(path, format!("{text:?} is no digest")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_checked_byte_by_byte() {
        let text = to_text(&Hint { version: 7 }).unwrap();
        assert_eq!(from_text::<Hint>(&text, "x").unwrap().version, 7);
        for i in 0..text.len() {
            assert!(from_text::<Hint>(&text[..i], "x").is_err(), "cut at {i}");
            for bit in 0..8 {
                let mut damaged = text.clone();
                damaged[i] ^= 1 << bit;
                assert!(from_text::<Hint>(&damaged, "x").is_err(), "bit {bit} of byte {i}");
            }
        }
    }

    #[test]
    fn names_state_their_versions() {
        assert_eq!(parse_fold(&fold_path(3, 14)), Some((3, 14)));
        assert_eq!(parse_data(&Object::of(Kind::Delta, 12, 3, b"x").path), Some(12));
        for wrong in ["data/12-d0-x", "versions/00000000000000000012.json", "data/../x", "data/-"] {
            assert_eq!(parse_data(wrong), None);
        }
    }
}
