//! Trains the autoencoders of `gcodec-latent` with burn, and measures them (`docs/latent.md`).

pub mod autoencoder;
pub mod digits;
pub mod dumps;
pub mod experiment;

/// Error of a command.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Values on the set of one step, which an autoencoder is trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct Signals {
    /// Worker that chose the set.
    pub leader: usize,
    /// Values of each worker, in the order of the positions.
    pub values: Vec<Vec<f32>>,
}
