// The structures that the host exchanges with the kernels of dense codecs. `adapters/cuda/src/abi.rs`
// declares the same ones.
#pragma once
#include "abi.cuh"

namespace dense {

// A run, the work of a warp: 8 rows of 128 columns (`src/compress/sum.rs`).
constexpr u32 RUN_ROWS = 8;
constexpr u32 RUN_ROW_LEN = 128;
static_assert(RUN_ROWS * RUN_ROW_LEN == RUN_LEN, "rows of a run");

// Kinds of codes.
constexpr u32 NATURAL = 0;
constexpr u32 UNIFORM = 1;
constexpr u32 DITHER = 2;
constexpr u32 INT8 = 3;
constexpr u32 SIGNS = 4;

// Norms, by their numbers on the wire.
constexpr u32 L1 = 1;
constexpr u32 L2 = 2;

// The difference between wide exponents and exponents: the wide exponent of 2^-149 is 1, and 0 stands for
// zero.
constexpr int WIDE = 150;
// Stands for the biased exponent of a power below 2^-126, which is computed again when codes are packed.
constexpr u32 SUBNORMAL = 255;

// Consecutive elements of one tensor in one block of the wire. In `piece`, `start` counts the elements of the
// block before it, and `search` is the index of the block.
struct Span {
    Piece piece;
    // The tensor's number, and the index of the first element in it.
    u64 tensor;
    u64 first;
    // For natural compression: the biased exponents, one byte for each element, and the signs, one bit for
    // each. For others: the codes, in the width of the plane if they are written to it directly, else of one
    // or two bytes.
    u8 *codes;
    u32 *signs;
};

// A block of the wire.
struct Quantized {
    u64 len;
    u64 seed;
    // Elements that share a scale, and the runs of these: one bucket of all elements if they share one scale.
    u64 bucket;
    u64 runs;
    float *scales;
    // The bit plane of codes; for natural compression that of signs.
    u32 *plane;
    u32 kind;
    u32 max_level;
    u32 norm;
    float clip;
    // Bits of a code, except for natural compression, and bits that a code takes where it is written first.
    u32 width;
    u32 step;
    // Whether scales are measured before codes are made.
    u32 known;
    u32 first_span;
    u32 spans;
    // The tiles of a natural block.
    u32 first_tile;
    u32 tiles;
    // A team is what a block of threads quantises at a time.
    u32 first_team;
    // Tiles whose codes are packed by a kernel of their own.
    u32 first_pack;
    u32 reserved;
};

// The result for a block of the wire; zero in the beginning.
struct Made {
    // For natural compression: the offset of the plane of codes in the payload, the exponent of code 1, the
    // bits of a code.
    u64 plane;
    int min_exponent;
    u32 width;
    // Whether an element is not finite.
    u32 bad;
    // Whether some powers are below that of code 1.
    u32 below;
};

// Buckets whose scales are measured before they are quantised.
struct Measured {
    Piece piece;
    u64 bucket;
    // Tiles of a bucket.
    u64 tiles;
    // [bucket][tile]
    double *sums;
    u32 *largest;
    float *scales;
    u32 block;
    u32 first_team;
    u32 first_bucket;
    u32 reserved;
};

struct Work {
    const Span *spans;
    const Quantized *blocks;
    const Measured *measured;
    Made *made;
    // [tile]: the smallest wide exponent less one, and the largest; the highest bit of the latter marks
    // elements that are not finite.
    u32 *seen;
    // [natural block]: the bytes of its plane of codes.
    u64 *bytes;
    u32 *ticket;
    u8 *payload;
    // The offset of the planes of natural codes in the payload.
    u64 base;
    u32 n_spans;
    // Natural blocks come first.
    u32 n_natural;
    u32 n_blocks;
    u32 n_measured;
    // Tiles to round to powers of two; tiles to measure; teams; tiles to pack.
    u32 n_tiles;
    u32 n_measure;
    u32 n_teams;
    u32 n_packs;
};

static_assert(sizeof(Span) == 88 && sizeof(Quantized) == 104 && sizeof(Made) == 24, "as in abi.rs");
static_assert(sizeof(Measured) == 112 && sizeof(Work) == 104, "as in abi.rs");

}  // namespace dense
