// The structures that the host exchanges with the kernels of rice.cu. `adapters/cuda/src/rice.rs` declares
// the same ones.
#pragma once
#include "abi.cuh"

// Gaps of a unit, which a block of threads codes at a time: four for each thread.
constexpr u32 UNIT_LEN = 1024;
constexpr u32 PER_THREAD = UNIT_LEN / THREADS;
// The chunk lengths that a writer tries beside one chunk for all, as binary logarithms: those of the
// library's encoder (`src/block/support`). Chunks of the first `INNER_LEVELS` lengths lie inside of units.
constexpr u32 LEVELS = 4;
constexpr u32 INNER_LEVELS = 3;
constexpr u32 OUTER_LOG = 13;
__device__ __forceinline__ constexpr u32 log_of(u32 level) { return level < 2 ? 7 + level : level == 2 ? 10 : OUTER_LOG; }
__device__ __forceinline__ constexpr u32 level_of(u32 log) { return log == 7 ? 0 : log == 8 ? 1 : log == 10 ? 2 : 3; }
// The chunks of all inner lengths in a unit, and the index of the first of each length.
constexpr u32 UNIT_CHUNKS = 8 + 4 + 1;
__device__ __forceinline__ constexpr u32 first_chunk(u32 level) { return level == 0 ? 0 : level == 1 ? 8 : 12; }
// The number of Rice parameters that a writer tries: from three below the logarithm of the mean gap on.
constexpr u32 TRIED_PARAMETERS = 6;
// The `side` of a segment whose search chooses its side on the device.
constexpr u32 CHOSEN_SIDE = 2;

// The kept elements of one piece, as a part of a row.
struct Segment {
    // The piece's first element in the row's index space.
    u64 start;
    u32 piece;
    u32 side;
};

// The positions of one block of the wire: those of its segments, in their order.
struct Row {
    u32 first_segment;
    u32 segments;
    // Whether the row is one chunk with one parameter.
    u32 one;
    u32 reserved;
};

// The progress of a row.
struct RowState {
    u64 count;
    u64 first_unit;
    u64 bytes;
    // Its first byte in the payload.
    u64 at;
    // Bytes before the planes.
    u64 planes;
    u32 log;
    u32 k;
};

// Sums and sizes of the 1024 gaps of a unit.
struct Unit {
    u64 sum;
    // Sums of quotients for each parameter tried: in a chunk of 2^13 gaps, and in a single chunk.
    u64 sums[2][TRIED_PARAMETERS];
    // Bytes of the table's entries, and of planes, for each inner length.
    u64 table[INNER_LEVELS];
    u64 planes[INNER_LEVELS];
    // Where these begin, counted from the row's first byte. For longer chunks: where the planes of the whole
    // chunk begin.
    u64 table_at;
    u64 planes_at;
    // For longer chunks: bits of the second plane before this unit, bytes of that plane, the chunk's span.
    u64 unary_before;
    u64 unary_bytes;
    u64 span;
    // The parameters of inner chunks; for a longer chunk the first entry.
    u8 ks[16];
};

// A row for the host: where the bytes of its support are in the payload.
struct Written {
    u64 at;
    u64 bytes;
    u64 count;
    u64 reserved;
};

struct Rice {
    const Piece *pieces;
    const Search *searches;
    const u64 *totals;
    const u64 *piece_kept;
    const u64 *bases;
    const u32 *places;
    // [search]: the side that is sent, for segments with `CHOSEN_SIDE`.
    const Choice *choices;
    const Row *rows;
    const Segment *segments;
    // [segment]: gaps of the row before it; its first place.
    u64 *segment_first;
    u64 *segment_from;
    RowState *states;
    Unit *units;
    Written *written;
    // Zeros, into which rows are written one after the other.
    u32 *payload;
    // [2]: zeros
    u32 *tickets;
    u32 n_rows;
    u32 n_searches;
};

static_assert(sizeof(Segment) == 16 && sizeof(Row) == 16 && sizeof(RowState) == 48, "as in rice.rs");
static_assert(sizeof(Unit) == 208 && sizeof(Written) == 32 && sizeof(Rice) == 16 * 8 + 8, "as in rice.rs");
