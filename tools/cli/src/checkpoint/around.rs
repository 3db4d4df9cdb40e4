//! A file around its tensors: the bytes before, between and behind their elements, as an entry of the
//! stream's metadata. With the tensors, which the stream has in the order of the file, it is the whole file.

use crate::fail::{Failure, Result};
use crate::output::human_bytes;
use crate::stream::Updates;
use crate::tensors::AROUND as KEY;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gcodec::frame::TensorInfo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;

/// Most bytes around tensors: metadata is no place for more.
const MOST: usize = 16 << 20;

/// The bytes of a file that are no elements.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Around {
    /// Length of the file.
    pub(super) bytes: u64,
    /// BLAKE3 of the file, in hex.
    pub(super) blake3: String,
    /// Lengths of the pieces: before each tensor, and behind the last.
    gaps: Vec<u64>,
    /// All pieces, one after another.
    pieces: Pieces,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Pieces {
    Text(String),
    Base64(String),
}

impl Around {
    /// Returns what is around the elements at these places, in ascending order, of a file.
    pub(super) fn of(file: &[u8], places: &[Range<usize>]) -> Result<Self> {
        let (mut gaps, mut pieces, mut at) = (Vec::new(), Vec::new(), 0);
        for place in places.iter().cloned().chain(iter::once(file.len()..file.len())) {
            let piece = &file[at..place.start];
            gaps.push(piece.len() as u64);
            if pieces.len() + piece.len() > MOST {
                let elements: usize = places.iter().map(Range::len).sum();
                return Err(Failure::usage(format_args!(
                    "only {} of its {} are elements that it holds as they are: the rest is for a compressor \
                     of bytes, such as zstd",
                    human_bytes(elements as u64),
                    human_bytes(file.len() as u64)
                )));
            }
            pieces.extend_from_slice(piece);
            at = place.end;
        }
        let pieces = match String::from_utf8(pieces) {
            Ok(text) => Pieces::Text(text),
            Err(bytes) => Pieces::Base64(STANDARD.encode(bytes.as_bytes())),
        };
        let blake3 = blake3::Hasher::new().update_rayon(file).finalize().to_string();
        Ok(Self { bytes: file.len() as u64, blake3, gaps, pieces })
    }

    /// Returns the entry of the metadata.
    pub(super) fn entry(&self) -> Result<(String, String)> {
        let text = serde_json::to_string(self).map_err(Failure::invalid)?;
        Ok((KEY.to_owned(), text))
    }

    /// Reads the entry of a stream with one update; `None` if it has none.
    pub(super) fn find(updates: &Updates<'_>) -> Result<Option<Self>> {
        if updates.len() != 1 {
            return Ok(None);
        }
        let Some(text) = updates.metadata(0)?.remove(KEY) else { return Ok(None) };
        let read = serde_json::from_str(&text);
        read.map(Some).map_err(|e| Failure::invalid(format_args!("metadata {KEY:?}: {e}")))
    }

    /// Gives the bytes of the file, in order. They are those of the file that was compressed if it succeeds.
    pub(super) fn write(
        &self,
        updates: &Updates<'_>,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let damaged = |what: &str| Failure::invalid(format_args!("metadata {KEY:?}: {what}"));
        let pieces = match &self.pieces {
            Pieces::Text(text) => text.clone().into_bytes(),
            Pieces::Base64(text) => STANDARD.decode(text).map_err(|e| damaged(&e.to_string()))?,
        };
        if self.gaps.len() != updates.manifest(0).tensors().len() + 1 {
            return Err(damaged("its pieces are not those around the tensors"));
        }
        let (mut hasher, mut written) = (blake3::Hasher::new(), 0u64);
        let mut put = |bytes: &[u8]| {
            hasher.update_rayon(bytes);
            written += bytes.len() as u64;
            // A stream of few bytes can have tensors of any length.
            if written > self.bytes {
                Err(damaged("the file is shorter than its tensors"))
            } else {
                sink(bytes)
            }
        };
        let (mut rest, mut gaps, mut current) = (&pieces[..], self.gaps.iter(), None);
        let mut next = |put: &mut dyn FnMut(&[u8]) -> Result<()>| {
            let len = gaps.next().and_then(|len| usize::try_from(*len).ok());
            let cut = len.and_then(|len| rest.split_at_checked(len));
            let (piece, after) = cut.ok_or_else(|| damaged("a piece is missing"))?;
            rest = after;
            put(piece)
        };
        updates.decode_to(0, |_| true, &BTreeMap::new(), &mut |info: &TensorInfo, bytes: &[u8]| {
            if current.as_ref() != Some(&info.name) {
                next(&mut put)?;
                current = Some(info.name.clone());
            }
            put(bytes)
        })?;
        next(&mut put)?;
        match written == self.bytes && hasher.finalize().to_string() == self.blake3 {
            true => Ok(()),
            false => Err(damaged("the file that it describes is not the one that was compressed")),
        }
    }
}
