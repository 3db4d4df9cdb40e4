//! Options of a store, and the policy of its publisher.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gcodec::{Codec, Limits};

/// Function that is called with the bytes transferred so far, and with those and the bytes that are known to
/// follow.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Options of a [`Store`](crate::Store).
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Objects that are transferred at the same time. Default: 8.
    pub transfers: usize,
    /// Bytes of objects that are on this machine at the same time, unless one object has more. Default: 256
    /// MiB.
    pub memory: u64,
    /// Bytes of weights that a version may have. Default: 256 GiB.
    pub max_weights: u64,
    /// Attempts of each request. The HTTP clients of the cloud backends have their own in addition.
    /// Default: 5.
    pub attempts: u32,
    /// Pause before the second attempt; each further one is twice as long, up to 10 s. Default: 100 ms.
    pub backoff: Duration,
    /// Folder that keeps downloaded objects until the pull that needs them succeeds, so that a later process
    /// continues where this one was stopped. Default: none.
    pub cache: Option<PathBuf>,
    /// Folder for temporary files, which then hold weights, objects and encoded streams in the place of
    /// memory: files that are mapped, and that have no names. Objects of a store in a folder are mapped where
    /// they are: no process may cut them. What is larger than the memory can then be published, pulled and
    /// folded. Default: none, all is in memory.
    pub scratch: Option<PathBuf>,
    /// Limits of decoding. An object may have four times `max_frame_bytes`.
    pub limits: Limits,
    /// Called during transfers. Default: none.
    pub progress: Option<Progress>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transfers: 8,
            memory: 256 << 20,
            max_weights: 256 << 30,
            attempts: 5,
            backoff: Duration::from_millis(100),
            cache: None,
            scratch: None,
            limits: Limits::default(),
            progress: None,
        }
    }
}

macro_rules! with {
    ($($name:ident $field:ident: $type:ty)*) => { $(
        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[must_use]
        pub fn $name(mut self, value: $type) -> Self {
            self.$field = value;
            self
        }
    )* };
}

impl Options {
    with! {
        with_transfers transfers: usize
        with_memory memory: u64
        with_max_weights max_weights: u64
        with_attempts attempts: u32
        with_backoff backoff: Duration
        with_cache cache: Option<PathBuf>
        with_scratch scratch: Option<PathBuf>
        with_limits limits: Limits
        with_progress progress: Option<Progress>
    }
}

/// When a publisher writes anchors, how it encodes deltas, and how it cuts models into groups.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Policy {
    /// Versions from one anchor to the next, at most. Default: 64.
    pub anchor_every: u64,
    /// Codec of deltas: any form of [`Codec::Delta`]. Default: `delta`, differences in units of the last
    /// place. `delta:values=overwrite` sends new elements.
    pub codec: Codec,
    /// Bytes of tensors in a group, unless one tensor has more. A group is an object: the unit of transfers,
    /// and of the memory that encoding takes. Default: 128 MiB.
    pub group_bytes: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { anchor_every: 64, codec: Codec::Delta(Default::default()), group_bytes: 128 << 20 }
    }
}

impl Policy {
    with! {
        with_anchor_every anchor_every: u64
        with_codec codec: Codec
        with_group_bytes group_bytes: u64
    }
}
