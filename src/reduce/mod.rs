//! Sums and means of many workers' updates, with the same bits on every node.
//!
//! Floating-point addition is not associative, so a sum is reproducible only in a fixed order. Here that is
//! the order of the senders' numbers, independent of the order of arrival. There are three functions:
//!
//! - [`add()`] adds two blocks without expanding them, for linear values on one support. Shared index sets
//!   exist for this (ScaleCom, arXiv 2104.11125, section 3: "commutes with averaging").
//! - [`merge`] adds sparse blocks with different positions. The result has the union of the positions, which
//!   grows with the number of senders ("gradient build-up", the same section).
//! - [`Sum`] takes updates of any kind, and gives the sum of what a reader would decode of each.
//!
//! Labels and names of codecs have no influence. Updates that cannot be summed are refused with the reason.
//!
//! [`stats`] reduces the elements of tensors and updates to their statistics.

mod add;
mod headers;
mod linear;
mod pieces;
mod scatter;
mod sparse;
pub mod stats;
mod sum;
mod total;
mod windows;

pub use add::add;
pub use headers::header;
pub use pieces::{Reduced, SumPiece, SumPieces};
pub use sparse::merge;
pub use sum::{Precision, Sum, SumOptions};
