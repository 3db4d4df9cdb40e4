//! Many workers' updates into one sum or mean, with the same bits on every node.
//!
//! Floating-point addition is not associative, so a sum is only the same everywhere if its order is. Here it is always that
//! of the senders' numbers, whatever order the updates came in. There are three ways:
//!
//! - [`add()`] adds two blocks without expanding them, where that has a meaning: values that are linear, on one support. This
//!   is what a shared index set is for (ScaleCom, arXiv 2104.11125, section 3: "commutes with averaging").
//! - [`merge`] adds sparse blocks of different positions: the result speaks of the union of them, which grows with the number
//!   of senders ("gradient build-up", the same section).
//! - [`Sum`] takes updates of any kind, expands each as a reader would, and adds them in dense accumulators.
//!
//! Nothing here draws conclusions from a label or a codec's name; what cannot be summed is refused, with the reason.

mod add;
mod dense;
mod headers;
mod linear;
mod sparse;

pub use add::add;
pub use dense::{Precision, Reduced, Sum, SumOptions};
pub use headers::header;
pub use sparse::merge;
