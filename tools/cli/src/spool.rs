//! Bytes that are written once and then read: few in memory, others in a temporary file. The file has no
//! name, so that nothing stays behind, however the program ends.

use crate::fail::{InOutput, Result};
use crate::input::{Input, is_standard};
use gcodec::file::Map;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes that are held before they are written.
const HELD: usize = 8 << 20;
/// Bytes that the system takes at a time: many at once are slow on some file systems.
const AT_ONCE: usize = 1 << 20;

/// Bytes that are being written.
pub(crate) struct Spool {
    folder: PathBuf,
    file: Option<File>,
    held: Vec<u8>,
    len: u64,
}

impl Spool {
    /// Returns no bytes, whose file will be in the system's folder for temporary files.
    pub(crate) fn new() -> Self {
        Self { folder: std::env::temp_dir(), file: None, held: Vec::new(), len: 0 }
    }

    /// Returns no bytes, whose file will be in the folder of an output.
    pub(crate) fn beside(output: &Path) -> Self {
        let folder = match output.parent() {
            _ if is_standard(output) => std::env::temp_dir(),
            Some(folder) if folder != Path::new("") => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        Self { folder, ..Self::new() }
    }

    /// Returns the number of bytes so far.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Appends bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.len += bytes.len() as u64;
        if self.held.len() + bytes.len() <= HELD {
            self.held.extend_from_slice(bytes);
            return Ok(());
        }
        let written = self.write(bytes).map(drop);
        written.in_output(&self.folder)
    }

    /// Writes what is held, and then these bytes. Returns the file.
    fn write(&mut self, bytes: &[u8]) -> io::Result<&File> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile_in(&self.folder)?),
        };
        let mut chunks = self.held.chunks(AT_ONCE).chain(bytes.chunks(AT_ONCE));
        chunks.try_for_each(|chunk| file.write_all(chunk))?;
        self.held.clear();
        Ok(file)
    }

    /// Returns the bytes; those of a file are mapped.
    pub(crate) fn finish(mut self) -> Result<Input> {
        if self.file.is_none() {
            return Ok(Input::Owned(self.held));
        }
        let mapped = self.write(&[]).and_then(Map::of);
        mapped.map(Input::Mapped).in_output(&self.folder)
    }
}
