//! Tensors in a temporary file, from where they are read as from a file of tensors.

use super::{Data, NamedTensor, Outline};
use crate::fail::Result;
use crate::spool::Spool;
use gcodec::tensor::Dtype;
use std::ops::Range;
use std::sync::Arc;

/// Tensors that are being written, one after another.
pub(crate) struct Spooled {
    spool: Spool,
    /// Name, type, shape and place of each.
    tensors: Vec<(String, Dtype, Vec<u64>, Range<u64>)>,
}

impl Spooled {
    /// Returns no tensors.
    pub(crate) fn new() -> Self {
        Self { spool: Spool::new(), tensors: Vec::new() }
    }

    /// Adds a tensor, or the next bytes of the last one.
    pub(crate) fn add(&mut self, tensor: &Outline<'_>, bytes: &[u8]) -> Result<()> {
        let start = self.spool.len();
        self.spool.add(bytes)?;
        let end = self.spool.len();
        match self.tensors.last_mut() {
            Some((name, .., place)) if name == tensor.name => place.end = end,
            _ => self.tensors.push((tensor.name.to_owned(), tensor.dtype, tensor.shape.to_vec(), start..end)),
        }
        Ok(())
    }

    /// Returns the tensors. The file's room is free when none of them is left.
    pub(crate) fn finish(self) -> Result<Vec<NamedTensor>> {
        let input = Arc::new(self.spool.finish()?);
        let tensor = |(name, dtype, shape, place)| {
            NamedTensor::from_data(name, dtype, shape, Data::shared(&input, place))
        };
        self.tensors.into_iter().map(tensor).collect()
    }
}
