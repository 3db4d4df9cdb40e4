//! Senders that keep state between steps, one file per paper.

pub mod demo;
pub mod dgc;
mod momentum;
pub mod onebit;
pub mod powersgd;
pub mod sbc;
pub mod scalecom;
pub mod shared_set;
mod state;

pub use demo::{DeMo, DeMoOptions};
pub use dgc::{Dgc, DgcOptions};
pub use momentum::mask_momenta;
pub use sbc::{SbcOptions, SbcSender};
