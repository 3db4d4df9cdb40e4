//! The index space of a block, and the sets that blocks may refer to.

use std::collections::HashMap;
use std::sync::Arc;

use crate::block::{Scope, SetId, Support};
use crate::tensor::Dtype;

/// The elements that a block speaks of: those of one or more tensors, or of a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexSpace {
    /// The element type of all of them.
    pub dtype: Dtype,
    /// Elements of each tensor of the scope, one number unless the scope is [`Scope::Tensors`].
    pub lens: Vec<u64>,
    /// Lengths of rows that the elements may be seen as a matrix of, longest first: for choosing codes, not for meaning.
    pub row_lens: Vec<u64>,
}

impl IndexSpace {
    /// A space of `len` elements without structure.
    pub fn flat(dtype: Dtype, len: u64) -> Self {
        Self { dtype, lens: vec![len], row_lens: Vec::new() }
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.lens.iter().sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An index set that blocks may refer to.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedSet {
    /// Id of the manifest of its scope.
    pub manifest: [u8; 32],
    /// The index space that it was made for.
    pub scope: Scope,
    /// Which elements.
    pub support: Support,
    /// How many.
    pub count: u64,
}

/// Index sets by their ids.
pub type Sets = HashMap<SetId, Arc<SharedSet>>;

/// What a block's wire form depends on beside its own bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) space: &'a IndexSpace,
    pub(crate) manifest: [u8; 32],
    pub(crate) scope: Scope,
    pub(crate) sets: &'a Sets,
}
