//! Bytes that have arrived and are not yet used.

use std::io::{self, Read};

/// Most bytes that one read should add: a length that a frame declares allocates no more than this.
pub(super) const CHUNK: usize = 1 << 18;

/// A queue of bytes. Bytes are read to where they stay until they are used.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    bytes: Vec<u8>,
    /// Place of the first byte that is not used, and the end of those that have arrived. Behind it is room.
    start: usize,
    end: usize,
}

impl ByteQueue {
    /// Returns the bytes that are not used.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns the bytes that are not used, and the place of the first, to move it while they are lent.
    pub(super) fn lend(&mut self) -> (&[u8], &mut usize) {
        (&self.bytes[self.start..self.end], &mut self.start)
    }

    /// Uses the next `len` bytes.
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
    }

    /// Appends bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.move_down();
        self.bytes.truncate(self.end);
        self.bytes.extend_from_slice(bytes);
        self.end = self.bytes.len();
    }

    /// Appends what one read of at most `most` bytes gives, and returns how many bytes that is; 0 at the end.
    pub(super) fn read(&mut self, inner: &mut impl Read, most: usize) -> io::Result<usize> {
        self.move_down();
        if self.bytes.len() < self.end + most {
            self.bytes.resize(self.end + most, 0);
        }
        let read = loop {
            match inner.read(&mut self.bytes[self.end..][..most]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.end += read;
        Ok(read)
    }

    /// Returns the memory that it has, in bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Moves the rest to the front where that moves fewer bytes than were used.
    fn move_down(&mut self) {
        if self.start > self.end / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let few = out.len().min(7);
            self.0.read(&mut out[..few])
        }
    }

    #[test]
    fn memory_is_used_again() {
        let (mut queue, bytes) = (ByteQueue::default(), vec![5; 3 * CHUNK]);
        let mut inner = Slow(&bytes);
        let mut read = 0;
        loop {
            match queue.read(&mut inner, CHUNK).unwrap() {
                0 => break,
                more => read += more,
            }
            if queue.rest().len() > 1000 {
                queue.consume(999);
            }
            assert!(queue.bytes.len() <= CHUNK + 3000, "{}", queue.bytes.len());
        }
        assert_eq!(read, bytes.len());
        queue.feed(&[6; 10]);
        assert!(queue.rest().ends_with(&[6; 10]) && queue.rest().len() < 1100);
    }
}
