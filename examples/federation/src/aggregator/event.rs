//! Events during training.

use std::fmt;

use crate::model::Score;

/// An event during training.
#[derive(Debug, Clone)]
pub enum Event {
    /// A worker became a member.
    Joined {
        /// Its name and address.
        who: String,
        /// Its own description of its program.
        program: String,
        /// First round that it takes part in.
        round: u64,
    },
    /// A member left or was dropped.
    Left {
        /// Its name.
        name: String,
        /// Current round.
        round: u64,
        /// Reason.
        why: String,
    },
    /// A peer was disconnected because of its data.
    Refused {
        /// Its name, if it sent one, and its address.
        who: String,
        /// Error, with its byte offset in the peer's stream.
        why: String,
    },
    /// An update arrived after its round, or a second time after a reconnection.
    Late {
        /// Name of the member.
        name: String,
        /// Round of the update.
        round: u64,
    },
    /// A round ended.
    Round {
        /// Its number.
        round: u64,
        /// Members whose updates are in the mean.
        took_part: Vec<String>,
        /// Members whose updates did not arrive in time.
        left_out: Vec<String>,
    },
    /// Score on the test digits, before a round.
    Score {
        /// The round.
        round: u64,
        /// The score.
        score: Score,
    },
    /// A worker sent its weights at the end.
    Weights {
        /// Its name.
        name: String,
        /// Whether they equal the aggregator's, bit for bit.
        equal: bool,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { who, program, round } => write!(f, "round {round}: {who} joined ({program})"),
            Self::Left { name, round, why } => write!(f, "round {round}: {name} is gone: {why}"),
            Self::Refused { who, why } => write!(f, "refused {who}: {why}"),
            Self::Late { name, round } => {
                write!(f, "{name}'s update of round {round} came late and is left out")
            }
            Self::Round { round, took_part, left_out } => {
                write!(f, "round {round}: {}", took_part.join(", "))?;
                if !left_out.is_empty() {
                    write!(f, "; too late: {}", left_out.join(", "))?;
                }
                Ok(())
            }
            Self::Score { round, score } => {
                let Score { loss, accuracy } = score;
                write!(f, "round {round}: test loss {loss:.4}, {:.1} % accuracy", 100.0 * accuracy)
            }
            Self::Weights { name, equal: true } => write!(f, "{name} has the same weights, bit for bit"),
            Self::Weights { name, equal: false } => write!(f, "{name} has OTHER weights"),
        }
    }
}
