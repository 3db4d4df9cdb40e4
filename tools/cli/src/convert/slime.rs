//! Deltas of slime and miles: a folder for each version, as their engines read it from disk.
//!
//! ```text
//! model.safetensors.index.json  metadata: version, base_version, delta_encoding (xor, overwrite),
//!                               compression_format (zstd), checksum_format; weight_map
//! *.safetensors                 a tensor of bytes for each tensor that changed, compressed; __metadata__ has
//!                               the checksum of each result
//! xor                           new bytes ^ old bytes
//! overwrite                     count | positions | new bytes, all little-endian; 4 bytes for each position
//! ```

use super::Foreign;
use crate::fail::{Failure, InFile, Result};
use crate::origin::Origin;
use crate::tensors::{Dump, NamedTensor};
use gcodec::TensorBuf;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;
use twox_hash::XxHash3_128;

/// The index, as far as it is read.
#[derive(serde::Deserialize)]
struct Index {
    metadata: BTreeMap<String, serde_json::Value>,
}

/// Reads the version in a folder, or in the folder of an index.
pub(super) fn read(path: &Path, base: &Dump) -> Result<Foreign> {
    let path = if path.is_dir() { path.join("model.safetensors.index.json") } else { path.to_owned() };
    let index = std::fs::read(&path).in_file(&path)?;
    let index: Index = serde_json::from_slice(&index).map_err(Failure::invalid)?;
    let text = |key: &str| match index.metadata.get(key) {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let (encoding, checksum) = (text("delta_encoding"), text("checksum_format"));
    if text("compression_format") != "zstd" {
        let found = text("compression_format");
        return Err(Failure::invalid(format_args!("compression {found:?}; zstd is the one that is known")));
    }
    let delta = Dump::open(&path)?;
    let changes: HashMap<&str, &NamedTensor> = delta.tensors.iter().map(|t| (t.name(), t)).collect();
    if let Some(name) = changes.keys().find(|name| base.tensors.iter().all(|t| t.name() != **name)) {
        return Err(Failure::usage(format_args!("--base has no tensor {name:?}")));
    }
    let tensor = |old: &NamedTensor| -> Result<NamedTensor> {
        let about = |e: Failure| e.about(format_args!("tensor {:?}", old.name()));
        let view = old.view();
        let mut data = view.data().to_vec();
        if let Some(change) = changes.get(old.name()) {
            apply(&mut data, change.view().data(), &encoding).map_err(about)?;
            let expected = delta.metadata.get(old.name());
            check(&data, &checksum, expected.map(String::as_str)).map_err(about)?;
        }
        Ok(NamedTensor::new(
            old.name().to_owned(),
            TensorBuf::new(view.dtype(), view.shape().to_vec(), data)?,
        ))
    };
    Ok(Foreign {
        tensors: base.tensors.iter().map(tensor).collect::<Result<_>>()?,
        label: format!("converted from slime, {encoding}"),
        metadata: BTreeMap::new(),
        said: Origin { step: text("version").parse().ok(), ..Origin::default() },
    })
}

/// Applies a compressed change to the bytes of a tensor.
fn apply(data: &mut [u8], compressed: &[u8], encoding: &str) -> Result<()> {
    let limit = match encoding {
        "xor" => data.len() as u64,
        // A position and a byte for each byte, and their number.
        "overwrite" => 4 + 5 * data.len() as u64,
        other => {
            return Err(Failure::invalid(format_args!("encoding {other:?}; xor and overwrite are known")));
        }
    };
    let mut change = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(compressed).map_err(Failure::invalid)?;
    decoder.take(limit + 1).read_to_end(&mut change).map_err(Failure::invalid)?;
    if change.len() as u64 > limit {
        return Err(Failure::invalid(format_args!(
            "more than {limit} bytes of changes: the base is the wrong one"
        )));
    }
    if encoding == "xor" {
        if change.len() != data.len() {
            let (change, old) = (change.len(), data.len());
            return Err(Failure::usage(format_args!(
                "{change} bytes of changes for {old} bytes of the base"
            )));
        }
        data.iter_mut().zip(&change).for_each(|(byte, change)| *byte ^= change);
        return Ok(());
    }
    let cut = || Failure::invalid("the changes end early");
    let (count, rest) = change.split_first_chunk::<4>().ok_or_else(cut)?;
    let count = u32::from_le_bytes(*count) as usize;
    let (places, bytes) = count.checked_mul(4).and_then(|len| rest.split_at_checked(len)).ok_or_else(cut)?;
    if bytes.len() != count {
        return Err(cut());
    }
    for (place, byte) in places.as_chunks::<4>().0.iter().zip(bytes) {
        let place = u32::from_le_bytes(*place);
        let len = data.len();
        *data.get_mut(place as usize).ok_or_else(|| {
            Failure::invalid(format_args!("position {place} in a tensor of {len} bytes: wrong base"))
        })? = *byte;
    }
    Ok(())
}

/// Fails unless the bytes have this checksum.
fn check(data: &[u8], format: &str, expected: Option<&str>) -> Result<()> {
    let expected = expected.ok_or_else(|| Failure::invalid("its checksum is missing"))?;
    let found = match format {
        "xxh3-128" => format!("{:032x}", XxHash3_128::oneshot(data)),
        "blake3" => blake3::hash(data).to_hex().to_string(),
        "adler32" => format!("{:08x}", adler2::adler32_slice(data)),
        other => return Err(Failure::invalid(format_args!("a checksum of an unknown format, {other:?}"))),
    };
    match found == expected {
        true => Ok(()),
        false => Err(Failure::usage("wrong checksum: the base is another version, or the update is damaged")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 1).unwrap()
    }

    #[test]
    fn both_encodings_give_the_new_bytes() {
        let (old, new) = ([1u8, 2, 3, 4], [1u8, 7, 3, 9]);
        let xor: Vec<u8> = old.iter().zip(new).map(|(a, b)| a ^ b).collect();
        let overwrite = [2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 7, 9];
        for (encoding, change) in [("xor", &xor[..]), ("overwrite", &overwrite)] {
            let mut data = old;
            apply(&mut data, &packed(change), encoding).unwrap();
            assert_eq!(data, new, "{encoding}");
            for cut in 0..change.len() {
                assert!(
                    apply(&mut old.clone(), &packed(&change[..cut]), encoding).is_err(),
                    "{encoding} {cut}"
                );
            }
        }
        assert!(apply(&mut old.clone(), &packed(&[1, 0, 0, 0, 4, 0, 0, 0, 1]), "overwrite").is_err());
        assert!(apply(&mut old.clone(), &packed(&[0; 1 << 20]), "xor").unwrap_err().message.contains("more"));
        assert!(apply(&mut old.clone(), b"no zstd", "xor").is_err());
        assert!(apply(&mut old.clone(), &packed(&xor), "other").is_err());
    }

    #[test]
    fn checksums_are_those_of_python() {
        // xxhash.xxh3_128(b"gcodec"), blake3.blake3(..) and zlib.adler32(..), in hexadecimal digits.
        for (format, expected) in CHECKSUMS {
            check(b"gcodec", format, Some(expected)).unwrap();
            assert!(check(b"gcodeC", format, Some(expected)).is_err(), "{format}");
            assert!(check(b"gcodec", format, None).is_err(), "{format}");
        }
        assert!(check(b"gcodec", "crc", Some("0")).is_err());
    }

    const CHECKSUMS: [(&str, &str); 3] = [
        ("xxh3-128", "23606de186c05214ae642933514ff759"),
        ("blake3", "867392d5a901f3508ee1cee40ee8bed89cf45f0bbf2908824d4553982f03bd2b"),
        ("adler32", "08740266"),
    ];
}
