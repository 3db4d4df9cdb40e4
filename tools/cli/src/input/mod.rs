//! The bytes of an input: a mapped file, a pipe read to its end, or a file that is read by ranges.

mod ranges;

use crate::fail::{Failure, InFile, Result};
use crate::files;
use gcodec::file::Map;
pub(crate) use ranges::{Ranges, Section};
use std::borrow::Cow;
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::Path;

/// Most bytes to read from a pipe or unpack from an archive, unless the caller passes a limit.
pub(crate) const DEFAULT_MAX_BYTES: u64 = if usize::BITS < 64 { 1 << 30 } else { 16 << 30 };

/// Most bytes of a pipe that are read at once to tell its kind.
const HEAD_BYTES: usize = 4096;
/// Fewest bytes that tell it.
const ENOUGH_BYTES: usize = 24;

/// All bytes of an input.
#[derive(Debug)]
pub(crate) enum Input {
    /// A regular file.
    Mapped(Map),
    /// Bytes read from standard input, or from a file that cannot be mapped.
    Owned(Vec<u8>),
    /// A file that can neither be mapped nor held: in a browser.
    #[allow(dead_code, reason = "the page of `web/` makes it")]
    Ranges(Ranges),
}

impl Input {
    /// Maps the file at `path`; reads it to its end if it is not a regular file. `-` is standard input.
    ///
    /// `max_bytes`: most bytes to hold in memory for an input that is not mapped.
    pub(crate) fn open(path: &Path, max_bytes: u64) -> Result<Self> {
        match Opened::open(path)? {
            Opened::Whole(input) => Ok(input),
            Opened::Pipe(pipe) => pipe.read_to_end(max_bytes).in_file(path),
        }
    }

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Ranges(ranges) => ranges.len(),
            _ => self.held().map_or(0, |bytes| bytes.len() as u64),
        }
    }

    /// Returns all bytes, unless they are read by ranges.
    pub(crate) fn held(&self) -> Option<&[u8]> {
        match self {
            Self::Mapped(map) => Some(map),
            Self::Owned(bytes) => Some(bytes),
            Self::Ranges(_) => None,
        }
    }

    /// Returns the bytes of a range, which must lie in the input.
    pub(crate) fn slice(&self, range: Range<u64>) -> Cow<'_, [u8]> {
        Section::from(self).slice(range)
    }

    /// Returns the bytes of the input that one range of it has, to be read and sought in.
    pub(crate) fn section(&self, range: Range<u64>) -> Section<'_> {
        Section::from(self).cut(range)
    }
}

/// An input that was opened and not yet read.
pub(crate) enum Opened {
    /// A regular file, mapped.
    Whole(Input),
    /// Standard input, or a file that cannot be mapped.
    Pipe(Pipe),
}

/// An input that arrives in pieces, and the first of its bytes.
pub(crate) struct Pipe {
    head: Vec<u8>,
    inner: Box<dyn Read>,
}

impl Opened {
    /// Opens the file at `path`; `-` is standard input. Reads at most the first bytes of a pipe.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if is_standard(path) {
            return Pipe::new(Box::new(io::stdin())).map(Self::Pipe).in_file(path);
        }
        if files::is_folder(path) {
            return Err(crate::tensors::folder::refusal(path));
        }
        match files::open(path).in_file(path)? {
            files::Opened::Input(input) => Ok(Self::Whole(input)),
            files::Opened::Pipe(pipe) => Pipe::new(pipe).map(Self::Pipe).in_file(path),
        }
    }
}

impl Pipe {
    fn new(mut inner: Box<dyn Read>) -> Result<Self> {
        let (mut head, mut chunk) = (Vec::new(), [0; HEAD_BYTES]);
        // Does not wait for more than the kind needs: a slow sender may have written only the first frame.
        while head.len() < ENOUGH_BYTES {
            match inner.read(&mut chunk) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
                Ok(0) => break,
                Ok(read) => head.extend_from_slice(&chunk[..read]),
            }
        }
        Ok(Self { head, inner })
    }

    /// Returns the first bytes, at least 24 if there are as many.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns all bytes as they arrive.
    pub(crate) fn into_reader(self) -> impl Read {
        io::Cursor::new(self.head).chain(self.inner)
    }

    /// Reads all bytes, at most `max_bytes`.
    pub(crate) fn read_to_end(self, max_bytes: u64) -> Result<Input> {
        read_to_end(self.into_reader(), max_bytes).map(Input::Owned)
    }
}

/// All bytes. Of a file that is read by ranges they are read once, whole: for streams and small files.
impl Deref for Input {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
            Self::Ranges(ranges) => ranges.whole(),
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
