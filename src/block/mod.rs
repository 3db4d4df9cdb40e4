//! The central type: a [`Block`] pairs a [`Support`], the positions of some elements, with [`Values`] for
//! them.
//!
//! Compressors make blocks, and the wire carries them without loss (spec, section 5). Positions and values
//! are stored separately, so that any compressor fits. A support kind is a file in `support/`, a values kind
//! a file in `values/`.

mod bits;
mod coded;
mod dense;
mod groups;
mod part;
mod pending;
mod scales;
pub(crate) mod space;
pub(crate) mod support;
pub(crate) mod values;
mod views;
mod wire;

pub use crate::codes::{CODINGS, Entropy};
pub use bits::Bits;
pub use coded::{Coded, CodedBlock, CodedWireBlock};
pub use dense::Target;
pub(crate) use dense::{Run, for_each_run_in};
pub use groups::Groups;
pub(crate) use part::WrittenBlock;
pub use part::{Part, WireBlock};
pub use pending::PendingBlock;
pub(crate) use pending::{Later, LaterValues, Pending};
pub use scales::{ScaleFormat, Scales};
pub use space::{IndexSpace, Lens, Sets, Shapes, SharedSet};
pub use support::{
    BaseElements, Based, Chunked, Positions, Rows, Seeded, Set, SetId, Sparse, Support, SupportId,
};
pub(crate) use support::{ROWS, Ranker, STEP, Selector, fill_keys, key, steps};
pub use values::{
    Affine, Codebook, Constant, Dct, Floats, Latent, LevelList, Levels, LowRank, Minifloat, Planes, Pow2,
    Sign, Ulp, Values, ValuesId,
};
pub use values::{MinifloatFormat, ModelId, Norm, Packed, Spacing, Stored, Underflow, WireValues, Zero};
pub use wire::{BlockOptions, RawBlock};

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

/// Prints a hash in hexadecimal digits.
macro_rules! debug_as_hex {
    ($($id:ident)*) => { $(
        impl std::fmt::Display for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
        impl std::fmt::Debug for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({self})", stringify!($id))
            }
        }
    )* };
}
pub(crate) use debug_as_hex;
