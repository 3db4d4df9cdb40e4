//! A temporary folder for one part, and commands run in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::Result;

/// A new folder, removed with its contents when dropped.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new(name: &str) -> Result<Self> {
        Ok(Self(tempfile::Builder::new().prefix(&format!("gcodec-torture-{name}-")).tempdir()?))
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        Ok(std::fs::write(self.path(name), bytes)?)
    }

    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>> {
        Ok(std::fs::read(self.path(name))?)
    }

    /// Returns temporary files that a command left beside its target.
    pub(crate) fn temporary(&self) -> Result<Vec<String>> {
        let names =
            std::fs::read_dir(self.root())?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned()));
        let names: Vec<String> = names.collect::<Result<_>>()?;
        Ok(names.into_iter().filter(|name| name.starts_with('.')).collect())
    }

    pub(crate) fn remove_temporary(&self) -> Result<u64> {
        let names = self.temporary()?;
        for name in &names {
            std::fs::remove_file(self.path(name))?;
        }
        Ok(names.len() as u64)
    }
}

/// Runs a command in a folder and expects success.
pub(crate) fn must(program: &Path, folder: &Path, args: &str) -> Result<Output> {
    let output = Command::new(program).args(args.split_whitespace()).current_dir(folder).output()?;
    match output.status.success() {
        true => Ok(output),
        false => Err(format!("gcodec {args}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// Whether a program is installed.
pub(crate) fn has(program: &str) -> bool {
    Command::new(program).arg("-V").output().is_ok_and(|o| o.status.success())
}
