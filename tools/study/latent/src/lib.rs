//! Trains the autoencoders of `gcodec-latent` with burn, and measures them (`docs/latent.md`).

pub mod autoencoder;
pub mod digits;
pub mod dumps;
pub mod experiment;

/// What a command says when it fails.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The values on the set of one step: what an autoencoder is trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct Signals {
    /// The worker that chose the set.
    pub leader: usize,
    /// Of each worker, in the order of the positions.
    pub values: Vec<Vec<f32>>,
}
