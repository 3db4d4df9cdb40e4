//! Settings of an aggregator, and control over one that runs.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Configuration of the aggregator.
#[derive(Debug, Clone)]
pub struct Config {
    /// Names that may take part. A worker's number is its index here.
    pub roster: Vec<String>,
    /// Workers that must join before the first round; also the number of shards of the data.
    pub start_with: usize,
    /// Minimum number of rounds.
    pub rounds: u64,
    /// Learning rate: factor of the mean gradient.
    pub rate: f32,
    /// Codec of the workers' gradients; each worker appends `,seed=`.
    pub codec: String,
    /// Time that a round waits for members whose update has not arrived.
    pub deadline: Duration,
    /// Rounds in a row that a member may miss before it is dropped.
    pub patience: u32,
    /// Minimum time of a round.
    pub pace: Duration,
    /// Time for a peer to send its name.
    pub hello: Duration,
    /// File of the stream that all members receive: the weights, and each step. It is created when training
    /// ends.
    pub record: PathBuf,
}

impl Config {
    /// Returns the default configuration for these workers, with a record at `record`.
    pub fn new(roster: Vec<String>, record: PathBuf) -> Self {
        Self {
            start_with: roster.len(),
            roster,
            rounds: 300,
            rate: 0.3,
            codec: "topk:density=0.02,values=pow2".into(),
            deadline: Duration::from_secs(2),
            patience: 10,
            pace: Duration::ZERO,
            hello: Duration::from_secs(5),
            record,
        }
    }
}

/// Flags that control a running aggregator.
#[derive(Debug, Default)]
pub struct Control {
    /// Whether to go on after the configured rounds.
    pub go_on: AtomicBool,
    /// Whether to stop with an error.
    pub give_up: AtomicBool,
}
