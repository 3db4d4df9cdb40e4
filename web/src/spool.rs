//! In the place of temporary files: bytes in memory.

use crate::fail::Result;
use crate::input::Input;

pub(crate) struct Spool(Vec<u8>);

impl Spool {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Input> {
        Ok(Input::Owned(self.0))
    }
}
