//! gcodec
pub mod block;
pub mod error;
pub mod limits;
pub mod tensor;
pub use error::{Error, Result};
pub use limits::{Budget, Limits};
/// How sparse positions are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Positions { /// smallest
 #[default] Auto }
