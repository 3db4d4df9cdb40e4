//! Finished files: random access through the index, appending, recovery (spec, sections 3, 4.6 and 4.7);
//! and reports on any stream.

mod append;
mod fill;
mod large;
mod open;
mod parts;
mod pieces;
mod ranges;
mod recover;
mod replace;
pub mod report;

pub use crate::arch::map::Map;
pub use append::append;
pub use fill::Place;
pub use open::{File, UpdateEntry};
pub use pieces::{Piece, Pieces};
pub use ranges::{TAIL_LEN, index_start, ranges};
pub use recover::{Recovered, recover};
pub use replace::AtomicFile;
