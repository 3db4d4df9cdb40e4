use std::fmt;

use gcodec::block::ModelId;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, one variant per party at fault.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a model of format `lgc-conv1d/1`.
    Model {
        /// What is wrong.
        what: &'static str,
        /// Where: bytes from the beginning of the model.
        offset: u64,
    },
    /// A model, or a signal for it, asks for more than the [`Limits`](crate::Limits) allow.
    Limit {
        /// The field of [`Limits`](crate::Limits).
        limit: &'static str,
        /// How much was asked for.
        asked: u64,
        /// How much is allowed.
        allowed: u64,
    },
    /// Latent codes refer to a model that is not there.
    MissingModel(ModelId),
    /// The bytes given for a model have another hash.
    WrongModel {
        /// The model asked for.
        expected: ModelId,
        /// The hash of the bytes.
        found: ModelId,
    },
    /// A model made a number that is not finite of finite ones.
    NotFinite,
    /// The caller: an argument does not fit.
    Input(&'static str),
    /// The caller, or the order in which messages came: a call that is not the next one.
    OutOfTurn(&'static str),
    /// What a peer sent is a valid update but does not fit the protocol.
    Peer {
        /// Its number.
        sender: u64,
        /// What does not fit.
        what: &'static str,
    },
    /// Blocks, frames and streams.
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
