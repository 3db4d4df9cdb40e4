//! Items for this repository's other crates and tests alone: any version may change or remove them.

pub use crate::tensor::shape::elements;

/// The CPU half of compression on devices.
pub mod device {
    pub use crate::compress::device::*;
}

/// Elements as bits and as numbers.
pub mod element {
    pub use crate::tensor::element::*;
}
