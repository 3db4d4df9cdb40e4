// What the host gives the kernels of dense codecs and gets from them. `adapters/cuda/src/plan.rs` has the same structures.
#pragma once
#include "plan.cuh"

namespace dense {

// Elements of a run, the work of a warp: 8 rows of 128 columns (`src/compress/sum.rs`).
constexpr u32 RUN_ROWS = 8;
constexpr u32 RUN_ROW = 128;
constexpr u32 RUN = RUN_ROWS * RUN_ROW;
// Tiles of a chunk.
constexpr u32 CHUNK_TILES = 32;

// What is made of an element.
constexpr u32 NATURAL = 0;
constexpr u32 UNIFORM = 1;
constexpr u32 DITHER = 2;
constexpr u32 INT8 = 3;
constexpr u32 SIGNS = 4;

// Norms, by their numbers on the wire.
constexpr u32 L1 = 1;
constexpr u32 L2 = 2;

// The exponent of code 1 on the scale of `wide` exponents, where 2^-149 is 1, and 0 is none.
constexpr int WIDE = 150;
// In the place of a biased exponent: the power is below 2^-126, and found again when codes are made.
constexpr u32 SUBNORMAL = 255;

// Consecutive elements of one tensor in one block of the wire. Of `piece`, `start` is the number of elements of the block before it,
// `search` the number of the block.
struct Span {
    Piece piece;
    // The tensor's number, and that of the first element in it.
    u64 tensor;
    u64 first;
    // Natural compression: a byte for each element, its biased exponent, then a bit for each, its sign. Others: codes, of the bits
    // that the plane has of each, where this is the plane; else of a byte or two.
    u8 *codes;
    u32 *signs;
};

// A block of the wire.
struct Quantized {
    u64 len;
    u64 seed;
    // Elements that share a scale, and the runs of so many: one bucket of all where the scale is known.
    u64 bucket;
    u64 runs;
    float *scales;
    // Bit plane of codes; of natural compression that of signs.
    u32 *plane;
    u32 kind;
    u32 max_level;
    u32 norm;
    float clip;
    // Bits of a code, but of natural compression, and bits that each takes where it is put first.
    u32 width;
    u32 step;
    // Whether scales are there already.
    u32 known;
    u32 first_span;
    u32 spans;
    // Tiles of natural compression.
    u32 first_tile;
    u32 tiles;
    // Teams: what a block of threads quantises at a time.
    u32 first_team;
    // Tiles whose codes are packed.
    u32 first_pack;
    u32 reserved;
};

// What was made of a block of the wire; zero in the beginning.
struct Made {
    // Natural compression: where the plane of codes is in the payload, the exponent of code 1, the bits of a code.
    u64 plane;
    int min_exponent;
    u32 width;
    // Whether an element is not finite.
    u32 bad;
    // Whether there are powers below that of code 1.
    u32 below;
};

// Buckets whose scales are made before they are quantised.
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
    // [tile]: the smallest wide exponent less one, and the largest; its highest bit if an element is not finite.
    u32 *seen;
    // [natural block]: bytes of its plane of codes.
    u64 *bytes;
    u32 *ticket;
    u8 *payload;
    // Where planes of natural codes begin in the payload.
    u64 base;
    u32 n_spans;
    // These come first.
    u32 n_natural;
    u32 n_blocks;
    u32 n_measured;
    // Tiles to round to powers of two, to measure; teams; tiles to pack.
    u32 n_tiles;
    u32 n_measure;
    u32 n_teams;
    u32 n_packs;
};

static_assert(sizeof(Span) == 88 && sizeof(Quantized) == 104 && sizeof(Made) == 24, "as in plan.rs");
static_assert(sizeof(Measured) == 112 && sizeof(Work) == 104, "as in plan.rs");

}  // namespace dense
