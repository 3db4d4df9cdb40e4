//! Where the storages of a file lie: in the entries of an archive, or one after another in files from before
//! PyTorch 1.6.

use crate::fail::{Failure, Result};
use crate::tensors::archive::Archive;
use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use zip::CompressionMethod;

/// The storages of a file, by their keys.
#[derive(Debug, Default)]
pub(super) struct Storages(HashMap<String, Place>);

#[derive(Debug)]
enum Place {
    /// Its bytes in the input.
    At(Range<u64>),
    Compressed,
}

impl Storages {
    /// Finds the storages in the entries `folder` of an archive that begins at `start` in the input.
    pub(super) fn of_archive(archive: &mut Archive<'_>, folder: &str, start: u64) -> Result<Self> {
        let mut places = HashMap::new();
        for index in 0..archive.len() {
            let entry = archive.by_index_raw(index).map_err(Failure::invalid)?;
            let name = entry.name().map_err(Failure::invalid)?;
            let Some(key) = name.strip_prefix(folder) else { continue };
            let place = match entry.compression() {
                CompressionMethod::Stored => {
                    let first = entry.data_start().and_then(|at| at.checked_add(start));
                    let range = first.and_then(|first| Some(first..first.checked_add(entry.size())?));
                    Place::At(range.ok_or_else(|| Failure::invalid("an entry without data").about(&name))?)
                }
                _ => Place::Compressed,
            };
            places.insert(key.to_owned(), place);
        }
        Ok(Self(places))
    }

    /// Adds a storage that lies at these bytes of the input.
    pub(super) fn add(&mut self, key: String, range: Range<u64>) {
        self.0.insert(key, Place::At(range));
    }

    /// Returns the bytes of a storage in the input of `len` bytes.
    pub(super) fn find(&self, key: &str, len: u64) -> Result<Range<u64>> {
        match self.0.get(key) {
            Some(Place::At(range)) if range.end <= len => Ok(range.clone()),
            Some(Place::At(_)) => {
                Err(Failure::invalid(format_args!("its storage {key} lies outside of the file")))
            }
            Some(Place::Compressed) => Err(Failure::invalid(format_args!(
                "its storage {key} is compressed, which torch.save never does"
            ))),
            None => Err(Failure::invalid(format_args!("its storage {key} is not in the file"))),
        }
    }

    /// Returns the keys and lengths of storages, sorted.
    pub(super) fn all(&self) -> Vec<(&str, Range<u64>)> {
        let mut all: Vec<_> = self
            .0
            .iter()
            .filter_map(|(key, place)| match place {
                Place::At(range) => Some((key.as_str(), range.clone())),
                Place::Compressed => None,
            })
            .collect();
        all.sort_by_key(|storage| storage.1.start);
        all
    }
}

/// Most bytes of an entry that is compressed, which PyTorch never does: the file may have a thousandth of
/// them, and the values of a pickle take many times its bytes.
const MAX_UNPACKED: u64 = 1 << 20;

/// Returns the bytes of an archive's entry.
pub(super) fn entry(archive: &mut Archive<'_>, name: &str, max_bytes: u64) -> Result<Vec<u8>> {
    let file = archive.by_name(name).map_err(|e| Failure::invalid(e).about(name))?;
    let max_bytes = match file.compression() {
        CompressionMethod::Stored => max_bytes,
        _ => max_bytes.min(MAX_UNPACKED),
    };
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|e| Failure::invalid(e).about(name))?;
    match bytes.len() as u64 > max_bytes {
        true => Err(Failure::limit(format_args!("{name}: more than {max_bytes} bytes"))),
        false => Ok(bytes),
    }
}
