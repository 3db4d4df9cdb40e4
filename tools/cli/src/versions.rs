//! Versions of slime and miles in folders (`tensors::versions`), for the Python package.

use crate::fail::{Code, Failure};
use crate::tensors::versions::{self, Chain, Start};
use crate::tensors::{Dump, NamedTensor};
use gcodec::{TensorBuf, TensorView};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The folder that has the versions.
#[derive(Debug)]
pub struct Run {
    folder: PathBuf,
    base: Option<PathBuf>,
}

/// A version that was read, and whose checksums were compared.
#[derive(Debug)]
pub struct Version {
    /// All tensors, or those that differences changed in the tensors of the caller.
    pub tensors: Vec<(String, TensorBuf)>,
    /// Whether these are all.
    pub is_whole: bool,
    /// Bytes of the differences, and of the whole version they begin with, if it was read.
    pub bytes: u64,
    /// Number of versions that were read.
    pub steps: usize,
}

/// The tensors of a version that the caller has, by name.
pub type Held<'h> = (u64, &'h (dyn Fn(&str) -> Option<TensorBuf> + Sync));

/// Why a version cannot be read.
#[derive(Debug)]
pub struct Error {
    /// The side at fault: `caller`, `limits`, `store` or `world`.
    pub fault: &'static str,
    /// The message, which names the file and the tensor.
    pub message: String,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let fault = match failure.code {
            Code::Usage => "caller",
            Code::Limit => "limits",
            Code::Invalid => "store",
            Code::Io => "world",
        };
        Self { fault, message: failure.message }
    }
}

impl Run {
    /// Returns the versions in a folder. `base`: version 0, unless the folder has it.
    pub fn new(folder: PathBuf, base: Option<PathBuf>) -> Self {
        Self { folder, base }
    }

    /// Returns the number of the newest complete version, 0 if there is none.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn latest(&self) -> Result<u64, Error> {
        Ok(versions::published(&self.folder)?.unwrap_or(0))
    }

    /// Reads a version: from the tensors that the caller has, if differences lead from them to it.
    ///
    /// # Errors
    /// Files are missing, corrupt or not of one run, or exceed a limit.
    pub fn read(&self, version: u64, held: Option<Held<'_>>) -> Result<Version, Error> {
        let at = self.folder.join(versions::folder_of(version));
        // Version 0 may be in another place.
        if let (0, Some(base)) = (version, &self.base) {
            return Ok(Self::whole(Dump::open_carrying(base)?, 0, 1));
        }
        let chain = Chain::to(&at, held.map(|(version, _)| version))?;
        let (bytes, steps) = (chain.bytes(), chain.steps.len());
        let from_held =
            held.filter(|(version, _)| matches!(chain.start, Start::Version(at) if at == *version));
        if let Some((_, tensor)) = from_held {
            let changed: BTreeSet<&str> = chain.steps.iter().flat_map(|step| step.names()).collect();
            let named = |name: &&str| Some(NamedTensor::new((*name).to_owned(), tensor(name)?));
            let base = Dump { tensors: changed.iter().filter_map(named).collect(), ..Dump::default() };
            let dump = chain.resolve(Some(base))?;
            return Ok(Version { is_whole: false, ..Self::whole(dump, bytes, steps) });
        }
        let base = match (&chain.start, &self.base) {
            (Start::Version(0), Some(base)) => Some(Dump::open_carrying(base)?),
            _ => None,
        };
        Ok(Self::whole(chain.resolve(base)?, bytes, steps + 1))
    }

    fn whole(dump: Dump, bytes: u64, steps: usize) -> Version {
        let tensors = dump.tensors.into_iter().filter_map(|tensor| tensor.into_parts().ok()).collect();
        Version { tensors, is_whole: true, bytes, steps }
    }
}

/// Whether tensors that a caller has are those of a version: names the first that differs.
pub fn difference<'t>(
    version: &Version,
    held: impl Iterator<Item = (&'t str, TensorView<'t>)>,
) -> Option<String> {
    let mut missing: BTreeMap<&str, &TensorBuf> =
        version.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    for (name, view) in held {
        match missing.remove(name) {
            None => return Some(format!("the version has no tensor {name:?}")),
            Some(tensor) if tensor.view() != view => return Some(format!("tensor {name:?} differs")),
            Some(_) => {}
        }
    }
    missing.first_key_value().map(|(name, _)| format!("tensor {name:?} is missing"))
}
