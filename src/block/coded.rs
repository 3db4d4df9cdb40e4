//! A block together with the choices that the format leaves to its encoder.

use std::ops::Deref;

use super::{Block, BlockOptions, WireBlock};

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

impl From<Block> for CodedBlock {
    /// The block with the default choices.
    fn from(block: Block) -> Self {
        Self { block, options: BlockOptions::default() }
    }
}

/// A block whose parts may be in wire form, and how to write the others, as
/// [`Encoder::update_wire`](../stream/struct.Encoder.html#method.update_wire) takes it.
pub type CodedWireBlock<'a> = (WireBlock<'a>, BlockOptions);

impl From<CodedBlock> for CodedWireBlock<'static> {
    fn from(CodedBlock { block, options }: CodedBlock) -> Self {
        (block.into(), options)
    }
}

/// A block that an encoder can write: a [`CodedBlock`], a [`Block`] with the default choices, or a pair of a
/// block and its choices.
pub trait Coded {
    /// The block.
    fn block(&self) -> &Block;

    /// How to write it. Default: [`BlockOptions::default`].
    fn options(&self) -> BlockOptions {
        BlockOptions::default()
    }
}

impl Coded for Block {
    fn block(&self) -> &Block {
        self
    }
}

impl Coded for CodedBlock {
    fn block(&self) -> &Block {
        &self.block
    }

    fn options(&self) -> BlockOptions {
        self.options
    }
}

impl Coded for (&Block, BlockOptions) {
    fn block(&self) -> &Block {
        self.0
    }

    fn options(&self) -> BlockOptions {
        self.1
    }
}

impl<T: Coded> Coded for &T {
    fn block(&self) -> &Block {
        (**self).block()
    }

    fn options(&self) -> BlockOptions {
        (**self).options()
    }
}
