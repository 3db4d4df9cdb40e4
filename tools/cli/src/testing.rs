//! Helpers of the unit tests.

use std::path::{Path, PathBuf};

/// A new, empty directory, removed with its contents when dropped.
pub(crate) struct TempDir(tempfile::TempDir);

impl TempDir {
    /// Creates the directory.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Returns the directory's path.
    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
