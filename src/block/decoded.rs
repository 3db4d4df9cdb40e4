//! A block in memory.

use crate::block::{Scope, Support, Values};

/// Values for some elements of some tensors.
///
/// `values` holds one value for each element of `support`, in the order of their positions. Positions count
/// the elements of the tensors that `scope` names, in row-major order, one tensor after the other: the
/// block's index space.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The tensors, or the part of one, that the block's index space covers.
    pub scope: Scope,
    /// Whether the values are added to those of earlier blocks of the update, instead of replacing them.
    pub add: bool,
    /// The elements of the index space that have values.
    pub support: Support,
    /// The values.
    pub values: Values,
}

impl AsRef<Block> for Block {
    fn as_ref(&self) -> &Block {
        self
    }
}
