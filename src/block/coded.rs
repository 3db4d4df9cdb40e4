//! A block together with the choices that the format leaves to its encoder.

use std::ops::Deref;

use super::{Block, BlockOptions};

/// A block and how to write it, as [`compress()`](../compress/fn.compress.html) makes it and
/// [`Encoder::update`](../stream/struct.Encoder.html#method.update) takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct CodedBlock {
    /// The block.
    pub block: Block,
    /// How to write it.
    pub options: BlockOptions,
}

impl Deref for CodedBlock {
    type Target = Block;

    fn deref(&self) -> &Block {
        &self.block
    }
}

impl AsRef<Block> for CodedBlock {
    fn as_ref(&self) -> &Block {
        &self.block
    }
}

impl From<Block> for CodedBlock {
    /// The block with the default choices.
    fn from(block: Block) -> Self {
        Self { block, options: BlockOptions::default() }
    }
}
