//! Files that are read by ranges, and parts of inputs as readers.

use super::Input;
use std::borrow::Cow;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Bytes of a block: shorter reads are made of blocks, which are kept.
const BLOCK: u64 = 1 << 16;
/// Blocks that are kept.
const BLOCKS: usize = 16;
/// Bytes in which a text is looked for at a time.
const WINDOW: u64 = 1 << 20;

/// Fills a buffer with the bytes from an offset on. Reading cannot fail: who provides it ends the work.
type ReadAt = dyn Fn(u64, &mut [u8]) + Send + Sync;

/// A file of which any range can be read.
pub(crate) struct Ranges {
    len: u64,
    read_at: Box<ReadAt>,
    /// Blocks that were read last, the latest at the end, with their numbers.
    blocks: Mutex<Vec<(u64, Vec<u8>)>>,
    whole: OnceLock<Vec<u8>>,
}

impl Ranges {
    /// Returns a file of `len` bytes. `read_at` is called with ranges that lie in it.
    #[allow(dead_code, reason = "the page of `web/` makes it")]
    pub(crate) fn new(len: u64, read_at: Box<ReadAt>) -> Self {
        Self { len, read_at, blocks: Mutex::default(), whole: OnceLock::new() }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn whole(&self) -> &[u8] {
        self.whole.get_or_init(|| self.read(0..self.len))
    }

    /// Reads a range, which lies in the file.
    fn read(&self, range: Range<u64>) -> Vec<u8> {
        // More than a 32-bit machine has is refused as such, not cut.
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
        self.fill(range.start, &mut bytes);
        bytes
    }

    fn fill(&self, start: u64, out: &mut [u8]) {
        if out.len() as u64 >= BLOCK {
            return (self.read_at)(start, out);
        }
        let (mut at, mut out) = (start, out);
        while !out.is_empty() {
            let within = (at % BLOCK) as usize;
            let here = out.len().min(BLOCK as usize - within);
            let (now, rest) = out.split_at_mut(here);
            self.with_block(at / BLOCK, |block| now.copy_from_slice(&block[within..within + here]));
            (at, out) = (at + here as u64, rest);
        }
    }

    fn with_block(&self, number: u64, take: impl FnOnce(&[u8])) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let block = match blocks.iter().position(|block| block.0 == number) {
            Some(place) => blocks.remove(place),
            None => {
                let start = number * BLOCK;
                let mut bytes = vec![0; BLOCK.min(self.len - start) as usize];
                (self.read_at)(start, &mut bytes);
                (number, bytes)
            }
        };
        take(&block.1);
        if blocks.len() == BLOCKS {
            blocks.remove(0);
        }
        blocks.push(block);
    }
}

impl std::fmt::Debug for Ranges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ranges").field("len", &self.len).finish_non_exhaustive()
    }
}

/// A part of an input, as a reader.
#[derive(Debug, Clone)]
pub(crate) struct Section<'a> {
    bytes: Bytes<'a>,
    /// Its place in them.
    range: Range<u64>,
    /// Where the reader is.
    at: u64,
}

#[derive(Debug, Clone, Copy)]
enum Bytes<'a> {
    Held(&'a [u8]),
    Ranges(&'a Ranges),
}

impl<'a> Section<'a> {
    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns a part of this part, which must lie in it.
    pub(crate) fn cut(&self, range: Range<u64>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "the range was checked");
        let start = self.range.start;
        Self { bytes: self.bytes, range: start + range.start..start + range.end, at: 0 }
    }

    /// Returns the bytes of a range, which must lie in the part.
    pub(crate) fn slice(&self, range: Range<u64>) -> Cow<'a, [u8]> {
        let place = self.cut(range).range;
        match self.bytes {
            // Offsets in a slice fit.
            Bytes::Held(bytes) => Cow::Borrowed(&bytes[place.start as usize..place.end as usize]),
            Bytes::Ranges(ranges) => Cow::Owned(ranges.read(place)),
        }
    }

    /// Returns the bytes of a range if they lie in the part.
    pub(crate) fn get(&self, range: Range<u64>) -> Option<Cow<'a, [u8]>> {
        (range.start <= range.end && range.end <= self.len()).then(|| self.slice(range))
    }

    /// Returns the first bytes, at most `most`.
    pub(crate) fn head(&self, most: u64) -> Cow<'a, [u8]> {
        self.slice(0..most.min(self.len()))
    }

    /// Whether a text is somewhere in the part.
    pub(crate) fn contains(&self, what: &[u8]) -> bool {
        let find = |bytes: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        let mut start = 0;
        loop {
            let end = self.len().min(start + WINDOW + what.len() as u64 - 1);
            if find(&self.slice(start..end)) {
                return true;
            }
            if end == self.len() {
                return false;
            }
            start += WINDOW;
        }
    }

    /// Calls `parse` with a beginning of the part that is long enough for it: all that is held, or more and
    /// more of what is read.
    pub(crate) fn parse_head<T, E>(&self, mut parse: impl FnMut(&[u8]) -> Result<T, E>) -> Result<T, E> {
        let mut len = match self.bytes {
            Bytes::Held(_) => self.len(),
            Bytes::Ranges(_) => WINDOW.min(self.len()),
        };
        loop {
            match parse(&self.slice(0..len)) {
                Err(_) if len < self.len() && len < MOST_PARSED => {
                    len = len.saturating_mul(8).min(self.len()).min(MOST_PARSED);
                }
                done => return done,
            }
        }
    }
}

/// Most bytes of a beginning that is read for a parser.
const MOST_PARSED: u64 = 1 << 28;

impl<'a, B: AsRef<[u8]> + ?Sized> From<&'a B> for Section<'a> {
    fn from(bytes: &'a B) -> Self {
        let bytes = bytes.as_ref();
        Self { bytes: Bytes::Held(bytes), range: 0..bytes.len() as u64, at: 0 }
    }
}

impl<'a> From<&'a Input> for Section<'a> {
    fn from(input: &'a Input) -> Self {
        let bytes = match input {
            Input::Mapped(map) => Bytes::Held(map),
            Input::Owned(bytes) => Bytes::Held(bytes),
            Input::Ranges(ranges) => Bytes::Ranges(ranges),
        };
        Self { bytes, range: 0..input.len(), at: 0 }
    }
}

impl Read for Section<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let start = self.at.min(self.len());
        let len = (out.len() as u64).min(self.len() - start) as usize;
        let place = self.range.start + start;
        match self.bytes {
            Bytes::Held(bytes) => {
                let place = place as usize;
                out[..len].copy_from_slice(&bytes[place..place + len]);
            }
            Bytes::Ranges(ranges) => ranges.fill(place, &mut out[..len]),
        }
        self.at = start + len as u64;
        Ok(len)
    }
}

impl Seek for Section<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a place before the file"))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A file of so many bytes, and the bytes that were read of it.
    fn file(len: u64) -> (Input, Vec<u8>, Arc<AtomicU64>) {
        let bytes: Vec<u8> = (0..len).map(|i| ((i * 31) >> 3) as u8).collect();
        let (kept, read) = (bytes.clone(), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&read);
        let read_at = move |at: u64, out: &mut [u8]| {
            counted.fetch_add(out.len() as u64, Ordering::Relaxed);
            out.copy_from_slice(&kept[at as usize..at as usize + out.len()]);
        };
        (Input::Ranges(Ranges::new(len, Box::new(read_at))), bytes, read)
    }

    #[test]
    fn ranges_are_those_of_the_file() {
        let (input, bytes, read) = file(5 * BLOCK + 77);
        for (start, len) in [(0, 10), (BLOCK - 3, 7), (5 * BLOCK, 77), (9, 3 * BLOCK), (4 * BLOCK + 70, 7)] {
            let range = start..start + len;
            assert_eq!(*input.slice(range.clone()), bytes[range.start as usize..range.end as usize]);
        }
        let before = read.load(Ordering::Relaxed);
        assert_eq!(input.slice(20..30).len(), 10);
        assert_eq!(read.load(Ordering::Relaxed), before, "the block was kept");
        assert!(Section::from(&input).get(5 * BLOCK..5 * BLOCK + 78).is_none());
        assert_eq!(&*input, bytes);
    }

    #[test]
    fn sections_are_read_and_sought_in() {
        let (input, bytes, _) = file(3 * BLOCK);
        let held = Input::Owned(bytes.clone());
        for input in [&input, &held] {
            let mut section = input.section(100..2 * BLOCK);
            section.seek(SeekFrom::End(-5)).unwrap();
            let mut out = Vec::new();
            section.read_to_end(&mut out).unwrap();
            assert_eq!(out, bytes[2 * BLOCK as usize - 5..2 * BLOCK as usize]);
            section.seek(SeekFrom::Start(7)).unwrap();
            let mut four = [0; 4];
            section.read_exact(&mut four).unwrap();
            assert_eq!(four, bytes[107..111]);
            assert!(section.seek(SeekFrom::Current(-99)).is_err());
            section.seek(SeekFrom::Start(u64::MAX)).unwrap();
            assert_eq!(section.read(&mut four).unwrap(), 0);
        }
    }

    #[test]
    fn a_text_is_found_across_windows() {
        let mut bytes = vec![b'.'; 2 * WINDOW as usize];
        bytes[WINDOW as usize - 3..][..6].copy_from_slice(b"needle");
        let section = Section::from(&bytes[..]);
        assert!(section.contains(b"needle") && !section.contains(b"needles"));
        assert!(!section.cut(0..WINDOW).contains(b"needle") && !section.cut(0..2).contains(b"needle"));
    }
}
