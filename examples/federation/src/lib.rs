//! Workers written for different libraries train one small network together. Each sends its gradients as a
//! gcodec stream over TCP to an [`aggregator`], which sums them and sends every worker the same step.
//! `README.md` describes the protocol.

pub mod aggregator;
pub mod data;
pub mod launch;
pub mod model;
pub mod wire;
pub mod worker;

/// A result of this crate.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;
