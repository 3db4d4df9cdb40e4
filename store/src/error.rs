//! Errors: what is wrong, where, and whose fault it is.

use std::time::Duration;

/// Result of an operation on a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why an operation on a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object store or the network failed, after all retries.
    #[error("{path}: {source}")]
    Transport {
        /// Object concerned.
        path: String,
        /// Error of the object store.
        source: object_store::Error,
    },
    /// A file or thread of this machine failed.
    #[error("{what}: {source}")]
    Io {
        /// File or resource concerned.
        what: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// An object that a version refers to does not exist: `gc` deleted it, or it was never written.
    #[error("{path}: the object is missing; a newer anchor may replace it")]
    Missing {
        /// Object concerned.
        path: String,
    },
    /// An object is not what its writer declared.
    #[error("{path}: {what}")]
    Corrupt {
        /// Object concerned.
        path: String,
        /// Check that failed.
        what: String,
    },
    /// The content of an object is not a valid gcodec stream, or does not fit its base.
    #[error("{path}: {source}")]
    Stream {
        /// Object concerned.
        path: String,
        /// Error of the decoder.
        source: gcodec::Error,
    },
    /// An object was written by a newer version of this crate.
    #[error("{path}: store format {found}; this reader knows format 1")]
    Newer {
        /// Object concerned.
        path: String,
        /// Format of the object.
        found: u64,
    },
    /// An object exceeds a limit of the reader.
    #[error("{path}: {what} is {found}, the limit is {limit}")]
    Limit {
        /// Object concerned.
        path: String,
        /// Quantity concerned.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The reader's limit.
        limit: u64,
    },
    /// Another publisher committed this version first. Nothing was published.
    #[error("version {version} was published by another publisher; synchronise and publish again")]
    Conflict {
        /// Version concerned.
        version: u64,
    },
    /// The object store ignores or does not know the condition of a write, by which only one publisher
    /// commits a version. Nothing was published.
    #[error(
        "{path}: the server has no conditional writes: it ignores or refuses `If-None-Match: *`, so two publishers \
         could both commit a version, and one would be lost; use a service that has them, or a folder"
    )]
    Unconditional {
        /// Object that was written twice to learn it.
        path: String,
    },
    /// Publishing took longer than the store's grace period allows. Nothing was published.
    #[error("publishing took longer than half of the store's grace period of {} s", .grace.as_secs())]
    TooSlow {
        /// Grace period of the store.
        grace: Duration,
    },
    /// The store has no such version.
    #[error("the store has no version {version}; the latest is {latest}")]
    NoVersion {
        /// Version that the caller asked for.
        version: u64,
        /// Latest version.
        latest: u64,
    },
    /// The store has no version at all.
    #[error("the store has no versions")]
    Empty,
    /// No anchor from which the version can be built is left.
    #[error("version {version} cannot be built: no anchor before it is left")]
    Unreachable {
        /// Version that the caller asked for.
        version: u64,
    },
    /// An argument of the caller is wrong.
    #[error("{0}")]
    Input(String),
    /// The codec refused the caller's tensors.
    #[error("{0}")]
    Codec(gcodec::Error),
    /// The address of a store is wrong.
    #[error("{url}: {what}")]
    Address {
        /// Address as given.
        url: String,
        /// Reason.
        what: String,
    },
    /// This build lacks the backend of the address.
    #[error("{url}: gcodec-store was built without its feature `{feature}`")]
    Backend {
        /// Address as given.
        url: String,
        /// Feature of this crate that adds the backend.
        feature: &'static str,
    },
}

impl Error {
    /// Returns the party at fault: `world`, `store`, `limits`, `newer writer`, `other publisher` or `caller`.
    pub fn fault(&self) -> &'static str {
        match self {
            Self::Transport { .. } | Self::Io { .. } | Self::TooSlow { .. } | Self::Unconditional { .. } => {
                "world"
            }
            Self::Missing { .. } | Self::Corrupt { .. } | Self::Stream { .. } | Self::Unreachable { .. } => {
                "store"
            }
            Self::Limit { .. } => "limits",
            Self::Newer { .. } => "newer writer",
            Self::Conflict { .. } => "other publisher",
            Self::NoVersion { .. }
            | Self::Empty
            | Self::Input(_)
            | Self::Codec(_)
            | Self::Address { .. }
            | Self::Backend { .. } => "caller",
        }
    }

    pub(crate) fn corrupt(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Corrupt { path: path.into(), what: what.into() }
    }

    pub(crate) fn input(what: impl Into<String>) -> Self {
        Self::Input(what.into())
    }
}
