//! The central type: a [`Block`] pairs a [`Support`], the positions of some elements, with [`Values`] for
//! them.
//!
//! Compressors make blocks, and the wire carries them without loss (spec, section 5). Positions and values
//! are stored separately, so that any compressor fits. A support kind is a file in `support/`, a values kind
//! a file in `values/`.

mod bits;
mod coded;
mod decoded;
mod dense;
mod groups;
mod part;
mod pending;
mod profile;
mod scales;
mod scope;
pub(crate) mod space;
pub(crate) mod support;
pub(crate) mod values;
mod views;
mod wire;

pub use crate::codes::{Effort, Entropy, Profile};
pub use bits::Bits;
pub use coded::CodedBlock;
pub use decoded::Block;
pub use dense::Target;
pub(crate) use dense::{Run, for_each_run_in};
pub use groups::Groups;
pub(crate) use part::WrittenBlock;
pub use part::{Part, WireBlock};
pub use pending::PendingBlock;
pub(crate) use pending::{Later, LaterValues};
pub use scales::{ScaleFormat, Scales};
pub use scope::Scope;
pub use space::{IndexSpace, Lens, Sets, Shapes, SharedSet};
pub use support::{
    BaseElements, Based, Chunked, Positions, Rows, Seeded, Set, SetId, Sparse, Support, SupportId,
};
pub(crate) use support::{ROWS, Ranker, STEP, Selector, fill_keys, steps};
pub use values::{
    Affine, Codebook, Constant, Dct, Floats, Latent, LevelList, Levels, LowRank, Minifloat, Planes, Pow2,
    Sign, Ulp, Values, ValuesId,
};
pub use values::{MinifloatFormat, ModelId, Norm, Spacing, Stored, Underflow, Zero};
pub use wire::{BlockOptions, RawBlock};
