//! Memory-mapped files.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::Mmap;

/// A file mapped into memory, to be read without copying by [`SliceReader`](crate::stream::SliceReader) and
/// [`File`](crate::file::File).
///
/// If another process truncates the file while it is mapped, this process ends with SIGBUS on Unix. If
/// another process writes to it, the data read changes, and checksums may or may not detect that. Map only
/// files that no other process changes.
#[derive(Debug)]
pub struct Map(Mmap);

impl Map {
    /// Maps the whole of a regular file, which must not be empty.
    ///
    /// # Errors
    /// [`io::Error`] if the file cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(&File::open(path)?)
    }

    /// Maps the whole of an open regular file, which must not be empty.
    ///
    /// # Errors
    /// [`io::Error`] if the file cannot be mapped.
    pub fn of(file: &File) -> io::Result<Self> {
        // SAFETY: the map is read-only and seen only as `&[u8]`, for which every bit pattern is valid.
        // Another process that writes to the file while the map lives cannot be prevented. Readers copy every
        // length and offset out of the map before they check and use it, so their memory safety does not
        // depend on reading a byte twice with the same result.
        unsafe { Mmap::map(file) }.map(Self)
    }

    /// Takes the pages of a range of bytes out of this process's memory, so that what was read does not add
    /// to what was decoded. They stay in the system's cache, from which the next access gets them. Does
    /// nothing on other systems than Linux.
    pub fn forget(&self, range: Range<u64>) {
        #[cfg(target_os = "linux")]
        {
            let len = self.0.len() as u64;
            let range = range.start.min(len)..range.end.min(len);
            if range.is_empty() {
                return;
            }
            let (start, len) = (range.start as usize, (range.end - range.start) as usize);
            // SAFETY: the map is shared and read-only, so the pages have nothing that is not in the file, and
            // a later access, also of another thread meanwhile, reads it again. It is only advice: an error
            // changes nothing.
            let _ = unsafe { self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
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
        let map = Map::open(&path).unwrap();
        let first = map[0];
        for range in [0..u64::MAX, 5..6, 5000..5001, u64::MAX..u64::MAX, Range { start: 9, end: 3 }] {
            map.forget(range);
            assert_eq!((map[0], &*map), (first, &*std::fs::read(&path).unwrap()));
        }
    }
}
