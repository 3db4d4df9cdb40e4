//! How the difference of a tensor is written, and the checksum of the result.

use crate::fail::{Failure, Result};
use crate::stream::{Base, Updates};
use crate::tensors::NamedTensor;
use gcodec::compress;
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::zstd_frame;
use gcodec::stream::EncodeOptions;
use gcodec::{Limits, TensorView};
use std::sync::Arc;
use twox_hash::XxHash3_128;

/// How the difference of a tensor is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Encoding {
    /// The new bytes and the old ones, exclusive or
    Xor,
    /// The positions of the bytes that change, and the new ones
    Overwrite,
    /// A stream of one delta
    Gcodec,
}

/// Checksum of a tensor's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Checksum {
    #[value(name = "xxh3-128")]
    Xxh3,
    Blake3,
    Adler32,
}

impl Encoding {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xor => "xor",
            Self::Overwrite => "overwrite",
            Self::Gcodec => "gcodec",
        }
    }

    pub(super) fn of(name: &str) -> Result<Self> {
        let all = [Self::Xor, Self::Overwrite, Self::Gcodec];
        let found = all.into_iter().find(|encoding| encoding.name() == name);
        found.ok_or_else(|| unknown("encoding", name, "xor, overwrite and gcodec"))
    }

    /// Changes the bytes of a tensor.
    pub(super) fn apply(self, data: &mut [u8], compressed: &[u8]) -> Result<()> {
        let len = data.len() as u64;
        let most = match self {
            Self::Xor => len,
            // A position and a byte for each byte, and their number.
            Self::Overwrite => len.saturating_mul(5).saturating_add(4),
            // No stream of the tensor is longer.
            Self::Gcodec => len.saturating_mul(2).saturating_add(1 << 20),
        };
        let change = zstd_frame(compressed, most)
            .ok_or_else(|| Failure::invalid("its difference is not one whole zstd frame"))?;
        if change.len() as u64 > most {
            let what =
                format!("more than {most} bytes of differences for {len} bytes: the base is the wrong one");
            return Err(Failure::invalid(what));
        }
        match self {
            Self::Xor => xor(data, &change),
            Self::Overwrite => overwrite(data, &change),
            Self::Gcodec => change_by_stream(data, &change),
        }
    }

    /// Returns the difference of a tensor and one of its type and shape; `None` if they are equal.
    ///
    /// # Errors
    /// A limit, if the positions do not fit.
    pub(crate) fn difference(self, old: &NamedTensor, new: &NamedTensor) -> Result<Option<Vec<u8>>> {
        let (old_bytes, new_bytes) = (old.bytes(), new.bytes());
        match self {
            _ if old_bytes == new_bytes => Ok(None),
            Self::Xor => Ok(Some(old_bytes.iter().zip(&*new_bytes).map(|(old, new)| old ^ new).collect())),
            Self::Overwrite => positions(&old_bytes, &new_bytes).map(Some),
            Self::Gcodec => stream(old, new).map(Some),
        }
    }
}

/// Returns the difference of bytes as positions and new bytes.
fn positions(old: &[u8], new: &[u8]) -> Result<Vec<u8>> {
    if new.len() as u64 > u64::from(u32::MAX) {
        let what = format!("{} bytes; positions of overwrite end at 2^32: use xor", new.len());
        return Err(Failure::limit(what));
    }
    let changed: Vec<u32> =
        (0u32..).zip(old.iter().zip(new)).filter(|(_, (old, new))| old != new).map(|(at, _)| at).collect();
    let mut bytes = (changed.len() as u32).to_le_bytes().to_vec();
    bytes.extend(changed.iter().flat_map(|at| at.to_le_bytes()));
    bytes.extend(changed.iter().map(|&at| new[at as usize]));
    Ok(bytes)
}

/// Returns the difference of tensors as a stream of one delta.
fn stream(old: &NamedTensor, new: &NamedTensor) -> Result<Vec<u8>> {
    let view = new.view();
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new(new.name(), view.dtype(), view.shape())])?);
    let input = [compress::Input { tensor: 0, name: new.name(), view, base: Some(old.view()) }];
    let codecs = ["delta".parse().map_err(Failure::usage)?];
    let mut pending = compress::pending(&input, &codecs, &compress::Options::default())?;
    let runs = pending.deltas(&manifest, &mut compress::Digests::default())?;
    let mut writer = gcodec::Writer::new(Vec::new(), EncodeOptions::default());
    writer.update(&UpdateHeader::default().with_runs(runs), &manifest, pending)?;
    Ok(writer.finish()?)
}

/// Changes the bytes of a tensor by a stream of one delta, which says its type and shape.
fn change_by_stream(data: &mut [u8], stream: &[u8]) -> Result<()> {
    let updates = Updates::open(stream, &Limits::default())?;
    let one = (updates.len() == 1).then(|| updates.manifest(0).tensors());
    let Some([info]) = one else {
        return Err(Failure::invalid("its difference is not a stream of one update of one tensor"));
    };
    if info.bytes() != data.len() as u64 {
        let (found, old) = (info.bytes(), data.len());
        return Err(Failure::usage(format_args!(
            "a difference of {found} bytes for {old} bytes of the base"
        )));
    }
    let base = TensorView::new(info.dtype, &info.shape, data)?;
    let (base, mut new) = (Base::from([(info.name.clone(), base)]), Vec::new());
    updates.decode_to(0, |_| true, &base, &mut |_, bytes| {
        new.extend_from_slice(bytes);
        Ok(())
    })?;
    if new.len() == data.len() {
        data.copy_from_slice(&new);
    }
    Ok(())
}

impl Checksum {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xxh3 => "xxh3-128",
            Self::Blake3 => "blake3",
            Self::Adler32 => "adler32",
        }
    }

    pub(super) fn of(name: &str) -> Result<Self> {
        let all = [Self::Xxh3, Self::Blake3, Self::Adler32];
        let found = all.into_iter().find(|checksum| checksum.name() == name);
        found.ok_or_else(|| unknown("checksum", name, "xxh3-128, blake3 and adler32"))
    }

    /// Returns the checksum in hexadecimal digits.
    pub(crate) fn digits(self, data: &[u8]) -> String {
        match self {
            Self::Xxh3 => format!("{:032x}", XxHash3_128::oneshot(data)),
            Self::Blake3 => blake3::hash(data).to_hex().to_string(),
            Self::Adler32 => format!("{:08x}", adler2::adler32_slice(data)),
        }
    }
}

pub(super) fn unknown(what: &str, found: &str, known: &str) -> Failure {
    Failure::invalid(format_args!("{what} {found:?} is unknown; gcodec reads {known}"))
}

fn xor(data: &mut [u8], change: &[u8]) -> Result<()> {
    if change.len() != data.len() {
        let (change, old) = (change.len(), data.len());
        return Err(Failure::usage(format_args!(
            "{change} bytes of differences for {old} bytes of the base"
        )));
    }
    data.iter_mut().zip(change).for_each(|(byte, change)| *byte ^= change);
    Ok(())
}

fn overwrite(data: &mut [u8], change: &[u8]) -> Result<()> {
    let cut = || Failure::invalid("its difference ends early");
    let (count, rest) = change.split_first_chunk::<4>().ok_or_else(cut)?;
    let count = u32::from_le_bytes(*count) as usize;
    let (places, bytes) = count.checked_mul(4).and_then(|len| rest.split_at_checked(len)).ok_or_else(cut)?;
    if bytes.len() != count {
        return Err(Failure::invalid(format_args!("{} bytes for {count} positions", bytes.len())));
    }
    for (place, byte) in places.as_chunks::<4>().0.iter().zip(bytes) {
        let place = u32::from_le_bytes(*place);
        let len = data.len();
        *data.get_mut(place as usize).ok_or_else(|| {
            Failure::invalid(format_args!("byte {place} is to change, of {len}: the base is the wrong one"))
        })? = *byte;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        zstd::bulk::compress(bytes, 1).unwrap()
    }

    #[test]
    fn both_encodings_give_the_new_bytes() {
        let (old, new) = ([1u8, 2, 3, 4], [1u8, 7, 3, 9]);
        let tensor = |data: [u8; 4]| {
            let tensor = gcodec::TensorBuf::new(gcodec::tensor::Dtype::I16, vec![2], data.into()).unwrap();
            NamedTensor::new("w".into(), tensor)
        };
        for (encoding, expected) in [
            (Encoding::Xor, Some(&[0, 5, 0, 13][..])),
            (Encoding::Overwrite, Some(&[2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 7, 9])),
            (Encoding::Gcodec, None),
        ] {
            let change = encoding.difference(&tensor(old), &tensor(new)).unwrap().unwrap();
            assert!(expected.is_none_or(|expected| change == expected), "{encoding:?}");
            assert_eq!(encoding.difference(&tensor(new), &tensor(new)).unwrap(), None);
            let mut data = old;
            encoding.apply(&mut data, &packed(&change)).unwrap();
            assert_eq!(data, new, "{encoding:?}");
            for cut in 0..change.len() {
                let failed = encoding.apply(&mut old.clone(), &packed(&change[..cut]));
                assert!(failed.is_err(), "{encoding:?} {cut}");
            }
            let whole = packed(&change);
            for cut in 0..whole.len() {
                assert!(encoding.apply(&mut old.clone(), &whole[..cut]).is_err(), "{encoding:?} frame {cut}");
            }
            let more = encoding.apply(&mut old.clone(), &[&whole[..], b"x"].concat());
            assert!(more.is_err(), "{encoding:?}");
            let bomb = encoding.apply(&mut old.clone(), &packed(&[0; 2 << 20])).unwrap_err();
            assert!(bomb.message.contains("more than"), "{bomb}");
        }
        let outside = Encoding::Overwrite.apply(&mut old.clone(), &packed(&[1, 0, 0, 0, 4, 0, 0, 0, 1]));
        assert!(outside.unwrap_err().message.contains("byte 4 is to change, of 4"));
    }

    #[test]
    fn checksums_are_those_of_python() {
        // xxhash.xxh3_128(b"gcodec"), blake3.blake3(..) and zlib.adler32(..), in hexadecimal digits.
        for (name, expected) in [
            ("xxh3-128", "23606de186c05214ae642933514ff759"),
            ("blake3", "867392d5a901f3508ee1cee40ee8bed89cf45f0bbf2908824d4553982f03bd2b"),
            ("adler32", "08740266"),
        ] {
            assert_eq!(Checksum::of(name).unwrap().digits(b"gcodec"), expected);
        }
        assert!(Checksum::of("crc").is_err());
    }
}
