//! Files seen as memory.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// A file's bytes, mapped into memory, to be read without copying: for [`SliceReader`](crate::SliceReader) and
/// [`File`](crate::File).
///
/// Another process that cuts the file short while it is mapped ends this one with SIGBUS on Unix; one that writes to it
/// changes what is read, which the checksums may or may not notice. Map files that nobody else changes.
#[derive(Debug)]
pub struct Map(Mmap);

impl Map {
    /// Maps the whole of a regular file, which must not be empty.
    ///
    /// # Errors
    /// [`io::Error`] if it cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the map is read-only and only ever seen as `&[u8]`, for which every bit pattern is valid. What remains
        // is another process that writes to the file while the map lives, which cannot be prevented; readers copy every
        // length and offset out of it before they check and use them, so that their memory safety does not rest on
        // reading a byte twice with one result.
        unsafe { Mmap::map(&file) }.map(Self)
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_the_file() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert_eq!(*Map::open(&path).unwrap(), *std::fs::read(&path).unwrap());
        assert!(Map::open(Path::new("/nonexistent")).is_err());
    }
}
