/// Where an [`Encoder`](crate::Encoder) puts its bytes: a `Vec<u8>`, or memory that belongs to another program's object.
///
/// What was put stays as it is, but for headers of frames, which are written when the frame is there.
pub trait Output {
    /// The bytes so far: those that were there before, and then what was appended.
    fn bytes(&self) -> &[u8];

    /// The same, to be written over.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Puts `bytes` behind the others.
    fn append(&mut self, bytes: &[u8]);

    /// Takes all but the first `len` bytes away again; nothing if there are no more than that.
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
        self.extend_from_slice(bytes);
    }

    fn truncate(&mut self, len: usize) {
        Vec::truncate(self, len);
    }
}
