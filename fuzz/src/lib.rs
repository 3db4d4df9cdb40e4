//! Code shared by the fuzz targets: a counting allocator, small limits, and a mutator that knows the
//! structure of streams.

pub mod frames;
pub mod memory;
mod mutate;

use std::fmt::Write;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use gcodec::stream::{Body, Event};
use gcodec::{Limits, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};

pub use mutate::mutate;

/// Returns limits that a fuzzer can reach, and under which every input is fast.
pub fn limits() -> Limits {
    Limits::default()
        .with_max_frame_bytes(1 << 16)
        .with_max_tensors(1 << 10)
        .with_max_elements(1 << 20)
        .with_max_alloc_bytes(ALLOC)
        .with_max_blocks(1 << 12)
        .with_max_inflated_bytes(1 << 16)
        .with_max_definitions(64)
}

/// `max_alloc_bytes` of [`limits`].
pub const ALLOC: u64 = 1 << 18;

/// Returns the bytes of memory that an input of `input` bytes may take under the [`limits`]. `times`: how
/// often the declared amount may be held, once for the stored definitions and once for each held decoded
/// frame or set of tensors.
///
/// In addition there are the input itself and its parsed form. The smallest block has 6 bytes and becomes a
/// `RawBlock` of 200 with two vectors. The smallest tensor has 5 and becomes a `TensorInfo` of 150. Growing
/// vectors exist twice. A factor of 128 covers these. The tensors that scopes cover take 8 bytes each, twice
/// while they grow. A constant covers tables (64 shared ones of 512 bytes; 16 KiB of slots for each decoding
/// thread), names, adapters' buffers (256 KiB for a `Reader`), errors and threads.
pub fn allowance(input: usize, times: u64) -> usize {
    let limits = limits();
    let declared = times * limits.max_alloc_bytes + 2 * limits.max_inflated_bytes + 16 * limits.max_blocks;
    declared as usize + 128 * input + (1 << 19)
}

/// Two pools: one thread, and several. The first input builds them, before memory is counted.
pub static POOLS: LazyLock<[ThreadPool; 2]> = LazyLock::new(|| {
    // Work outside the pools runs on the fuzzer's own thread.
    let own = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global();
    own.expect("the first pool");
    [1, 3].map(|n| ThreadPoolBuilder::new().num_threads(n).build().expect("threads"))
});

/// Prepares an input; each target calls it first.
pub fn begin(checksums: bool) {
    LazyLock::force(&POOLS);
    gcodec::fuzzing::CHECKSUMS.store(checksums, Ordering::Relaxed);
    widest(2);
}

/// Selects kernels up to this width: 0 the plain loop, 1 AVX2, 2 AVX-512.
pub fn widest(width: u8) {
    gcodec::fuzzing::WIDEST.store(width, Ordering::Relaxed);
}

/// Returns the hash of the `Debug` text, without storing the text: a fingerprint for values without
/// `PartialEq`, or with NaN.
pub fn fingerprint(value: &impl std::fmt::Debug) -> [u8; 32] {
    /// Hashes many texts at a time: a text has few bytes, and a call of an instrumented hash is slow.
    struct Hash(blake3::Hasher, String);
    impl Write for Hash {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.1.push_str(text);
            if self.1.len() >= 1 << 16 {
                self.0.update(self.1.as_bytes());
                self.1.clear();
            }
            Ok(())
        }
    }
    let mut hash = Hash(blake3::Hasher::new(), String::new());
    write!(hash, "{value:?}").expect("a hash takes all");
    *hash.0.update(hash.1.as_bytes()).finalize().as_bytes()
}

/// A reader's result for a stream: a fingerprint for each event, with the blocks of updates, and its end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub events: Vec<[u8; 32]>,
    pub end: Option<String>,
}

impl Seen {
    /// Records an event; true if more will follow.
    pub fn note(&mut self, said: Result<Option<Event<'_>>>) -> bool {
        match said {
            Ok(Some(Event::Frame(info, Body::Update(part)))) => {
                self.events.push(fingerprint(&(info, &part, part.decode_all())));
            }
            Ok(Some(event)) => self.events.push(fingerprint(&event)),
            Ok(None) => return false,
            Err(e) => {
                self.end = Some(format!("{e:?}"));
                return false;
            }
        }
        true
    }
}

/// Installs the mutator of streams in a target.
#[macro_export]
macro_rules! mutate_streams {
    () => {
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            $crate::mutate(data, size, max_size, seed)
        });
    };
}
