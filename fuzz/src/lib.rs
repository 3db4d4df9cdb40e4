//! What the fuzz targets share: an allocator that counts, small limits, and a mutator that knows what a stream is.

pub mod frames;
pub mod memory;
mod mutate;

use std::fmt::Write;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use gcodec::{Body, Event, Limits, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};

pub use mutate::mutate;

/// Limits that a fuzzer can reach, and under which no input takes long.
pub fn limits() -> Limits {
    Limits::default()
        .with_max_frame_bytes(1 << 16)
        .with_max_tensors(1 << 10)
        .with_max_elements(1 << 18)
        .with_max_alloc_bytes(ALLOC)
        .with_max_blocks(1 << 12)
        .with_max_inflated_bytes(1 << 16)
        .with_max_definitions(64)
}

/// `max_alloc_bytes` of [`limits`].
pub const ALLOC: u64 = 1 << 18;

/// Bytes that `input` bytes may take by the [`limits`], where what is declared may be held `times` times: once for what is
/// remembered of the stream, once for each decoded frame or set of tensors that is held.
///
/// Beside that: what arrived, as it is and taken apart. The smallest block has 6 bytes and becomes a `RawBlock` of 200
/// with two vectors, the smallest tensor 5 and becomes a `TensorInfo` of 150, and vectors that grow are there twice: 128
/// times the input covers both. The tensors that scopes touch take 8 bytes each, twice while they grow. A constant for
/// tables (64 shared ones of 512 bytes; 16 KiB of slots for each thread that decodes), names, buffers of adapters
/// (256 KiB for a `Reader`), what errors and threads take.
pub fn allowance(input: usize, times: u64) -> usize {
    let limits = limits();
    let declared = times * limits.max_alloc_bytes + 2 * limits.max_inflated_bytes + 16 * limits.max_blocks;
    declared as usize + 128 * input + (1 << 19)
}

/// Two pools: of one thread and of several. The first input builds them, before anything is counted.
pub static POOLS: LazyLock<[ThreadPool; 2]> = LazyLock::new(|| {
    // What runs outside the pools runs on the fuzzer's own thread: nothing is handed over.
    let own = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global();
    own.expect("the first pool");
    [1, 3].map(|n| ThreadPoolBuilder::new().num_threads(n).build().expect("threads"))
});

/// To be called at the beginning of each input.
pub fn begin(checksums: bool) {
    LazyLock::force(&POOLS);
    gcodec::fuzzing::CHECKSUMS.store(checksums, Ordering::Relaxed);
    widest(2);
}

/// Takes kernels up to this width: 0 the plain loop, 1 AVX2, 2 AVX-512.
pub fn widest(width: u8) {
    gcodec::fuzzing::WIDEST.store(width, Ordering::Relaxed);
}

/// The hash of what `Debug` says, without the memory of its text: the contents of values that know no `PartialEq`, or in
/// which NaN is unlike itself.
pub fn fingerprint(value: &impl std::fmt::Debug) -> [u8; 32] {
    struct Hash(blake3::Hasher);
    impl Write for Hash {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.update(text.as_bytes());
            Ok(())
        }
    }
    let mut hash = Hash(blake3::Hasher::new());
    write!(hash, "{value:?}").expect("a hash takes all");
    *hash.0.finalize().as_bytes()
}

/// What a reader made of a stream: a fingerprint for each event, with the blocks of updates, and how it ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub events: Vec<[u8; 32]>,
    pub end: Option<String>,
}

impl Seen {
    /// Notes what a reader said; true if it will say more.
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

/// Makes the mutator of streams the target's own.
#[macro_export]
macro_rules! mutate_streams {
    () => {
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            $crate::mutate(data, size, max_size, seed)
        });
    };
}
