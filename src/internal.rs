//! Items for this repository's other crates and tests alone: any version may change or remove them.

pub use crate::codes::CODINGS;
pub use crate::compress::pending::batches;
pub use crate::digest::hash::run_digest;
pub use crate::frame::header::{HEADER_LEN, PREAMBLE_LEN, SYNC};
pub use crate::frame::update::AttributeId;
pub use crate::frame::zstd_frame;
pub use crate::reduce::stats::dense::stats_of_pieces;
pub use crate::tensor::name::{WRAPPERS, counterparts, without_prefix};
pub use crate::tensor::shape::{check_len, elements};

/// The CPU half of compression on devices.
pub mod device {
    pub use crate::block::values::{Packed, WireValues};
    pub use crate::compress::device::*;
    pub use crate::compress::select::Chosen;
}

/// The threads of a program in another language.
pub mod threads {
    pub use crate::arch::pool::{pool, set_threads};
}

/// Large pages for memory of a program in another language.
pub use crate::arch::pages::prefer_large_for;

/// Elements as bits and as numbers.
pub mod element {
    pub use crate::tensor::element::*;
}
