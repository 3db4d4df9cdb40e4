//! The tensors that a block covers.

/// The index space of a block, in terms of the manifest's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One whole tensor, by its number in the manifest.
    Tensor(u64),
    /// `count` >= 2 consecutive whole tensors of one element type.
    Tensors {
        /// Number of the first tensor in the manifest.
        first: u64,
        /// Number of tensors.
        count: u64,
    },
    /// The elements `start .. start + len` of one tensor; `len` >= 1.
    Range {
        /// Number of the tensor in the manifest.
        tensor: u64,
        /// First element.
        start: u64,
        /// Number of elements.
        len: u64,
    },
}
