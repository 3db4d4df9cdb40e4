//! Bytes that are written once and then read: in memory, or in a temporary file without a name.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use bytes::Bytes;
use gcodec::file::Map;

use crate::error::{Error, Result};

/// Bytes that are being written.
#[derive(Debug)]
pub(crate) enum Scratch {
    Memory(Vec<u8>),
    File { file: File, len: u64 },
}

/// Bytes that the system takes at a time: many at once are slow on some file systems.
const AT_ONCE: usize = 1 << 20;

impl Scratch {
    /// Returns no bytes, which grow in a file in `folder`, or in memory.
    pub(crate) fn new(folder: Option<&Path>) -> Result<Self> {
        let Some(folder) = folder else { return Ok(Self::Memory(Vec::new())) };
        let file = tempfile::tempfile_in(folder).map_err(|source| Error::Io {
            what: format!("a temporary file in {}", folder.display()),
            source,
        })?;
        Ok(Self::File { file, len: 0 })
    }

    /// Returns zeros, in whose place [`Self::put_at`] puts bytes.
    pub(crate) fn zeros(folder: Option<&Path>, len: u64) -> Result<Self> {
        let mut scratch = Self::new(folder)?;
        match &mut scratch {
            Self::Memory(bytes) => *bytes = vec![0; len as usize],
            Self::File { file, len: of_file } => {
                file.set_len(len).map_err(failed)?;
                *of_file = len;
            }
        }
        Ok(scratch)
    }

    /// Replaces bytes.
    pub(crate) fn put_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Memory(memory) => memory[at as usize..][..bytes.len()].copy_from_slice(bytes),
            Self::File { file, .. } => {
                file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(bytes)).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Calls `f` with the bytes so far.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        match self {
            Self::Memory(bytes) => Ok(f(bytes)),
            Self::File { file, len } => mapped(file, *len).map(|bytes| f(&bytes)).map_err(failed),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File { len, .. } => *len,
        }
    }

    /// Removes all bytes.
    pub(crate) fn clear(&mut self) -> Result<()> {
        match self {
            Self::Memory(bytes) => bytes.clear(),
            Self::File { file, len } => {
                file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
                *len = 0;
            }
        }
        Ok(())
    }

    /// Appends bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes).map_err(failed)
    }

    /// Returns the bytes; those of a file are mapped, and its room is free when nothing refers to them.
    pub(crate) fn finish(self) -> Result<Bytes> {
        match self {
            Self::Memory(bytes) => Ok(Bytes::from(bytes)),
            Self::File { file, len } => mapped(&file, len).map_err(failed),
        }
    }
}

impl Write for Scratch {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Memory(memory) => memory.write(bytes),
            Self::File { file, len } => {
                let written = file.write(&bytes[..bytes.len().min(AT_ONCE)])?;
                *len += written as u64;
                Ok(written)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the bytes of a file that no other process changes.
pub(crate) fn mapped(file: &File, len: u64) -> io::Result<Bytes> {
    struct Mapped(Map);

    impl AsRef<[u8]> for Mapped {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    // No system maps an empty file.
    Ok(if len == 0 { Bytes::new() } else { Bytes::from_owner(Mapped(Map::of(file)?)) })
}

/// Returns the error of a temporary file.
pub(crate) fn failed(source: io::Error) -> Error {
    Error::Io { what: "a temporary file".into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_same_in_memory_and_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let large: Vec<u8> = (0..3 << 20).map(|i: u32| (i >> 7) as u8).collect();
        for place in [None, Some(folder.path())] {
            let mut scratch = Scratch::new(place).unwrap();
            scratch.put(b"wrong").unwrap();
            scratch.clear().unwrap();
            assert_eq!(scratch.len(), 0);
            scratch.put(&large).unwrap();
            scratch.put(b"end").unwrap();
            assert_eq!(scratch.len(), large.len() as u64 + 3);
            let bytes = scratch.finish().unwrap();
            assert!(bytes[..large.len()] == large && &bytes[large.len()..] == b"end");
            assert!(Scratch::new(place).unwrap().finish().unwrap().is_empty());
            let mut sparse = Scratch::zeros(place, 1 << 20).unwrap();
            sparse.put_at(100, b"middle").unwrap();
            assert_eq!(sparse.with(|bytes| bytes[99..107].to_vec()).unwrap(), b"\0middle\0");
            assert_eq!(sparse.finish().unwrap().len(), 1 << 20);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let missing = folder.path().join("missing");
        assert!(matches!(Scratch::new(Some(&missing)), Err(Error::Io { .. })));
    }
}
