//! The structures that host and kernels exchange, as `adapters/cuda/kernels/abi.cuh` declares them. Addresses
//! are integers. That file documents the fields.

/// Threads of every block.
pub(crate) const THREADS: u32 = 256;
/// Warps of every block.
pub(crate) const WARPS: u64 = 8;
/// Elements of a tile, which a block of threads reads at a time.
pub(crate) const TILE_LEN: u64 = 8192;
/// Elements of a sample.
pub(crate) const SAMPLE_LEN: u64 = 1 << 15;
/// The [`Search::sample`] of a search without a sample.
pub(crate) const NO_SAMPLE: u32 = u32::MAX;
/// Bins of the widest digit of a key.
pub(crate) const BINS: u64 = 2048;
/// Elements of a chunk, the largest unit of the order of sums.
pub(crate) const CHUNK_LEN: u64 = 1 << 18;
/// The key of the smallest magnitude above zero.
pub(crate) const LOWEST: u32 = 1;

/// The bits of [`Directive::actions`].
pub(crate) mod action {
    pub(crate) const SUM_SAMPLE: u32 = 1;
    pub(crate) const SUM_TENSOR: u32 = 2;
    pub(crate) const SUM_CANDIDATES: u32 = 4;
    pub(crate) const SUM_SIDES: u32 = 8;
    pub(crate) const BEGIN_AT_KEY: u32 = 16;
    pub(crate) const BEGIN_AT_RANK: u32 = 32;
    pub(crate) const KEEP_FROM_KEY: u32 = 64;
}

/// A type that can be copied to and from a device as bytes.
///
/// # Safety
/// The type has no padding, and any bytes are a value of it.
#[expect(unsafe_code, reason = "declares an unsafe trait")]
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: an integer has no padding, and any bytes are a value of it.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl Plain for u64 {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl Plain for u32 {}

/// Returns the bytes of `items`.
#[expect(unsafe_code, reason = "reads structures as bytes")]
pub(crate) fn bytes_of<T: Plain>(items: &[T]) -> &[u8] {
    // SAFETY: `Plain` types have no padding, so all bytes are initialised.
    unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), size_of_val(items)) }
}

/// Returns the items that a device wrote as `bytes`; its byte order is the host's.
#[expect(unsafe_code, reason = "reads bytes as structures")]
pub(crate) fn items_of<T: Plain>(bytes: &[u8]) -> Vec<T> {
    let chunks = bytes.chunks_exact(size_of::<T>());
    // SAFETY: any bytes are a value of a `Plain` type, and the chunk has its length.
    chunks.map(|b| unsafe { b.as_ptr().cast::<T>().read_unaligned() }).collect()
}

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident($bytes:literal) { $($field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $bytes $(&& size_of::<$type>() > 0)*);
        // No padding: the fields take as many bytes as the structure.
        const _: () = assert!(0 $(+ size_of::<$type>())* == $bytes);
        // SAFETY: no padding, as asserted; fields are integers, floats and structures of them.
        #[expect(unsafe_code, reason = "implements an unsafe trait")]
        unsafe impl Plain for $name {}
    )* };
}

pub(crate) use structures;

structures! {
    Piece(56) {
        data: u64,
        residual: u64,
        after: u64,
        len: u64,
        start: u64,
        dtype: u32,
        search: u32,
        first_tile: u32,
        zero_non_finite: u32,
    }
    Search(80) {
        elements: u64,
        k: u64,
        candidates: u64,
        capacity: u64,
        rank: u32,
        sample: u32,
        least: u32,
        exact: u32,
        first_piece: u32,
        pieces: u32,
        first_tile: u32,
        tiles: u32,
        sides: u32,
        fitted: u32,
        chunks: u64,
    }
    Directive(24) {
        actions: u32,
        key: u32,
        location: f32,
        logs: u32,
        rank: u64,
    }
    Moments(48) {
        count: u64,
        sum: f64,
        squares: f64,
        product: f64,
        exponent: i64,
        max: f32,
        reserved: u32,
    }
    State(72) {
        candidates: u64,
        reached: [u64; 2],
        ties: [u64; 2],
        least: [u32; 2],
        cut: [u32; 2],
        all: [u32; 2],
        ticket: u32,
        exact: u32,
    }
    Select(200) {
        pieces: u64,
        searches: u64,
        states: u64,
        counts: u64,
        samples: u64,
        tile_first: u64,
        tile_hits: u64,
        tile_above: u64,
        tile_equal: u64,
        tile_kept: u64,
        candidate_places: u64,
        candidate_bits: u64,
        totals: u64,
        piece_kept: u64,
        bases: u64,
        out_places: u64,
        out_bits: u64,
        ticket: u64,
        directives: u64,
        moments: u64,
        list: u64,
        n_pieces: u32,
        n_searches: u32,
        first_tile: u32,
        n_tiles: u32,
        shift: u32,
        width: u32,
        sum_actions: u32,
        listing: u32,
    }
    Choice(32) {
        sums: [f64; 2],
        places: u64,
        values: u64,
    }
    Pack(80) {
        searches: u64,
        totals: u64,
        bases: u64,
        moments: u64,
        out_places: u64,
        out_bits: u64,
        choices: u64,
        places: u64,
        bits: u64,
        n_searches: u32,
        reserved: u32,
    }
    Taken(40) {
        after: u64,
        first: u64,
        len: u64,
        values: u64,
        value: f32,
        reserved: u32,
    }
    Subtract(16) {
        taken: u64,
        places: u64,
    }
    Put(48) {
        data: u64,
        positions: u64,
        values: u64,
        start: u64,
        len: u64,
        dtype: u32,
        add: u32,
    }
    Puts(8) {
        puts: u64,
    }
    NonFinite(72) {
        piece: Piece,
        start: u64,
        least: u64,
    }
}

/// The structures of `adapters/cuda/kernels/dense.cuh`.
pub(crate) mod dense {
    use super::{Piece, Plain, TILE_LEN, WARPS};

    /// Elements of a run, the work of one warp.
    pub(crate) const RUN_LEN: u64 = TILE_LEN / WARPS;

    structures! {
        Span(88) {
            piece: Piece,
            tensor: u64,
            first: u64,
            codes: u64,
            signs: u64,
        }
        Quantized(104) {
            len: u64,
            seed: u64,
            bucket: u64,
            runs: u64,
            scales: u64,
            plane: u64,
            kind: u32,
            max_level: u32,
            norm: u32,
            clip: f32,
            width: u32,
            step: u32,
            known: u32,
            first_span: u32,
            spans: u32,
            first_tile: u32,
            tiles: u32,
            first_team: u32,
            first_pack: u32,
            reserved: u32,
        }
        Made(24) {
            plane: u64,
            min_exponent: i32,
            width: u32,
            bad: u32,
            below: u32,
        }
        Measured(112) {
            piece: Piece,
            bucket: u64,
            tiles: u64,
            sums: u64,
            largest: u64,
            scales: u64,
            block: u32,
            first_team: u32,
            first_bucket: u32,
            reserved: u32,
        }
        Work(104) {
            spans: u64,
            blocks: u64,
            measured: u64,
            made: u64,
            seen: u64,
            bytes: u64,
            ticket: u64,
            payload: u64,
            base: u64,
            n_spans: u32,
            n_natural: u32,
            n_blocks: u32,
            n_measured: u32,
            n_tiles: u32,
            n_measure: u32,
            n_teams: u32,
            n_packs: u32,
        }
    }
}

/// The structures of `adapters/cuda/kernels/delta.cuh` and `digest.cu`.
pub(crate) mod delta {
    use super::Plain;

    /// Chunks of a group, which one block of threads hashes.
    pub(crate) const GROUP_CHUNKS: u64 = super::THREADS as u64;

    structures! {
        Span(48) {
            base: u64,
            fresh: u64,
            len: u64,
            start: u64,
            task: u32,
            first_tile: u32,
            first_step: u32,
            reserved: u32,
        }
        Change(80) {
            class_of: u64,
            sums: u64,
            totals: u64,
            places: u64,
            ranks: u64,
            values: u64,
            counts: u64,
            every: u32,
            classes: u32,
            overwrites: u32,
            width: u32,
            first_tile: u32,
            tiles: u32,
        }
        Delta(24) {
            spans: u64,
            changes: u64,
            n_spans: u32,
            n_tiles: u32,
        }
        Hashed(64) {
            data: u64,
            head: u64,
            bytes: u64,
            chunks: u64,
            nodes: u64,
            out: u64,
            head_len: u32,
            first_group: u32,
            groups: u32,
            reserved: u32,
        }
        Digests(16) {
            hashed: u64,
            n_hashed: u32,
            n_groups: u32,
        }
    }
}

/// The structures of `adapters/cuda/kernels/sums.cu`.
pub(crate) mod sums {
    use super::Plain;

    /// The bits of [`Axis::factors`].
    pub(crate) const LOW: u32 = 1;
    pub(crate) const HIGH: u32 = 2;
    /// Columns of a thread.
    pub(crate) const COLUMNS: u32 = 4;

    structures! {
        Axis(40) {
            len: u64,
            stride: i64,
            first: u64,
            step: u32,
            number: u32,
            factors: u32,
            reserved: u32,
        }
        Summed(80) {
            data: u64,
            rows: u64,
            stride: i64,
            axes: u64,
            out: u64,
            columns: u32,
            n_column_axes: u32,
            n_axes: u32,
            width: u32,
            threads: u32,
            chunk: u32,
            tiles: u32,
            first_work: u32,
            together: u32,
            reserved: u32,
        }
        Sums(16) {
            summed: u64,
            n_summed: u32,
            n_work: u32,
        }
    }
}
