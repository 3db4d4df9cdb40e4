//! The destinations that encoded bytes are appended to.

use crate::arch::pages;

/// Destination of an [`Encoder`](crate::stream::Encoder): a `Vec<u8>`, or memory of another program's object.
///
/// Appended bytes do not change, except that a frame's header is written when its body is complete. Several
/// threads may append, one at a time.
pub trait Output: Send {
    /// Returns the bytes so far: those present before encoding, then the appended ones.
    fn bytes(&self) -> &[u8];

    /// Returns the same bytes, mutable.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Appends `bytes`.
    fn append(&mut self, bytes: &[u8]);

    /// Keeps the first `len` bytes and removes the rest. Does nothing if there are at most `len` bytes.
    fn truncate(&mut self, len: usize);
}

impl Output for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn append(&mut self, bytes: &[u8]) {
        pages::append(self, bytes);
    }

    fn truncate(&mut self, len: usize) {
        Vec::truncate(self, len);
    }
}
