//! Errors, by the party at fault.

use std::fmt;

use gcodec::block::ModelId;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error, with one variant per party at fault.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a model of format `lgc-conv1d/1`.
    Model {
        /// Description of the error.
        what: &'static str,
        /// Offset in bytes from the beginning of the model.
        offset: u64,
    },
    /// A model, or a signal for it, exceeds the [`Limits`](crate::Limits).
    Limit {
        /// Field of [`Limits`](crate::Limits).
        limit: &'static str,
        /// Requested amount.
        asked: u64,
        /// Allowed amount.
        allowed: u64,
    },
    /// Latent codes refer to an unknown model.
    MissingModel(ModelId),
    /// The bytes of a model have another hash.
    WrongModel {
        /// Id of the requested model.
        expected: ModelId,
        /// Hash of the bytes.
        found: ModelId,
    },
    /// A model computed a non-finite number from finite ones.
    NotFinite,
    /// The caller passed an argument that does not fit.
    Input(&'static str),
    /// A call is out of turn, because of the caller or of the order of messages.
    OutOfTurn(&'static str),
    /// A peer's update is valid but breaks the protocol.
    Peer {
        /// Number of the peer.
        sender: u64,
        /// Description of the violation.
        what: &'static str,
    },
    /// An error of blocks, frames or streams.
    Gcodec(gcodec::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model { what, offset } => write!(f, "not a model: {what} at byte {offset:#x}"),
            Self::Limit { limit, asked, allowed } => {
                write!(f, "limit {limit} exceeded: {asked} asked, {allowed} allowed")
            }
            Self::MissingModel(id) => write!(f, "missing model {id}"),
            Self::WrongModel { expected, found } => {
                write!(f, "the bytes of model {expected} have the hash {found}")
            }
            Self::NotFinite => f.write_str("the model's result is not finite"),
            Self::Input(what) => f.write_str(what),
            Self::OutOfTurn(what) => write!(f, "out of turn: {what}"),
            Self::Peer { sender, what } => write!(f, "the update of sender {sender} is refused: {what}"),
            Self::Gcodec(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Gcodec(e) => Some(e),
            _ => None,
        }
    }
}

impl From<gcodec::Error> for Error {
    fn from(e: gcodec::Error) -> Self {
        Self::Gcodec(e)
    }
}
