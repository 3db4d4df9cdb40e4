//! The bytes of an input: a mapped file, or a pipe read to its end.

use crate::fail::{Failure, InFile, Result};
use gcodec::file::Map;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::Path;

/// Most bytes to read from a pipe or unpack from an archive, unless the caller passes a limit.
pub(crate) const DEFAULT_MAX_BYTES: u64 = 16 << 30;

/// All bytes of an input.
#[derive(Debug)]
pub(crate) enum Input {
    /// A regular file.
    Mapped(Map),
    /// Bytes read from standard input, or from a file that cannot be mapped.
    Owned(Vec<u8>),
}

impl Input {
    /// Maps the file at `path`; reads it to its end if it is not a regular file. `-` is standard input.
    ///
    /// `max_bytes`: most bytes to hold in memory for an input that is not mapped.
    pub(crate) fn open(path: &Path, max_bytes: u64) -> Result<Self> {
        if is_standard(path) {
            return read_to_end(io::stdin().lock(), max_bytes).map(Self::Owned).in_file(path);
        }
        let open = || {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            // An empty file cannot be mapped; files of /proc claim to be empty and are not.
            if metadata.is_file() && metadata.len() > 0 {
                return Ok(Self::Mapped(Map::open(path)?));
            }
            read_to_end(file, max_bytes).map(Self::Owned)
        };
        open().in_file(path)
    }
}

impl Deref for Input {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Whether the path is `-`: standard input or output.
pub(crate) fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// Reads to the end; the buffer grows as the bytes arrive.
pub(crate) fn read_to_end(reader: impl Read, max_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(Failure::limit(format_args!("more than {max_bytes} bytes of input")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::Code;

    #[test]
    fn a_pipe_is_read_up_to_the_limit() {
        assert_eq!(read_to_end(&b"abcd"[..], 4).unwrap(), b"abcd");
        assert_eq!(read_to_end(&b"abcd"[..], 3).unwrap_err().code, Code::Limit);
        assert_eq!(read_to_end(&b"abcd"[..], u64::MAX).unwrap(), b"abcd");
    }

    #[test]
    fn files_are_mapped_and_missing_ones_named() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let input = Input::open(&path, 0).unwrap();
        assert!(matches!(input, Input::Mapped(_)));
        assert_eq!(&*input, std::fs::read(&path).unwrap());
        let failure = Input::open(Path::new("/nonexistent/x"), 0).unwrap_err();
        assert_eq!(failure.code, Code::Io);
        assert!(failure.message.starts_with("/nonexistent/x: "));
    }
}
