//! The structures of `adapters/cuda/kernels/plan.cuh`. Addresses are integers.
#![allow(unsafe_code)]

pub(crate) const THREADS: u32 = 256;
pub(crate) const WARPS: u64 = 8;
pub(crate) const TILE: u64 = 8192;
pub(crate) const SAMPLE: u64 = 1 << 15;
pub(crate) const BINS: u64 = 2048;
/// Elements whose sums are one.
pub(crate) const CHUNK: u64 = 1 << 18;
/// What an [`Ask`] says.
pub(crate) const SAMPLES: u32 = 1;
pub(crate) const TENSORS: u32 = 2;
pub(crate) const CANDIDATES: u32 = 4;
pub(crate) const SIDES: u32 = 8;
pub(crate) const FROM: u32 = 16;
pub(crate) const FROM_SAMPLE: u32 = 32;
pub(crate) const KEEP: u32 = 64;
/// The key of the smallest magnitude above zero.
pub(crate) const LOWEST: u32 = 1;

/// Has no padding, and any bytes are a value of it.
///
/// # Safety
/// As it says.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for u64 {}

pub(crate) fn bytes_of<T: Plain>(items: &[T]) -> &[u8] {
    // SAFETY: there is no padding, so all bytes are written.
    unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), size_of_val(items)) }
}

/// Items that a device wrote, whose byte order is the host's.
pub(crate) fn items_of<T: Plain>(bytes: &[u8]) -> Vec<T> {
    // SAFETY: any bytes are a value, and the chunk is as long as one.
    bytes.chunks_exact(size_of::<T>()).map(|b| unsafe { b.as_ptr().cast::<T>().read_unaligned() }).collect()
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
        // No padding: the fields are as many bytes as the structure.
        const _: () = assert!(0 $(+ size_of::<$type>())* == $bytes);
        // SAFETY: as asserted; fields are integers, floats and such structures.
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
    Ask(24) {
        what: u32,
        at: u32,
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
        asks: u64,
        moments: u64,
        list: u64,
        n_pieces: u32,
        n_searches: u32,
        first_tile: u32,
        n_tiles: u32,
        shift: u32,
        width: u32,
        what: u32,
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
    use super::{Piece, Plain, TILE, WARPS};

    /// Elements of a run, of which a tile has [`WARPS`].
    pub(crate) const RUN: u64 = TILE / WARPS;

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
