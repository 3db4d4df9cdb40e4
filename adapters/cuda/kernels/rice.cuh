// What the host gives the kernels of rice.cu and gets from them. `adapters/cuda/src/rice.rs` has the same structures.
#pragma once
#include "plan.cuh"

// Gaps of a unit, what a block of threads looks at at a time; `THREADS` times four.
constexpr u32 UNIT = 1024;
constexpr u32 PER_THREAD = UNIT / THREADS;
// Chunk lengths that a writer tries beside one chunk for all, as binary logarithms: those of `src/block/support/sparse.rs`. Chunks of
// the first `INNER` lie inside of units.
constexpr u32 LOGS = 4;
constexpr u32 INNER = 3;
constexpr u32 OUTER_LOG = 13;
__device__ __forceinline__ constexpr u32 log_of(u32 level) { return level < 2 ? 7 + level : level == 2 ? 10 : OUTER_LOG; }
__device__ __forceinline__ constexpr u32 level_of(u32 log) { return log == 7 ? 0 : log == 8 ? 1 : log == 10 ? 2 : 3; }
// Chunks of all inner lengths in a unit, and the first of each length among them.
constexpr u32 CHUNKS = 8 + 4 + 1;
__device__ __forceinline__ constexpr u32 first_chunk(u32 level) { return level == 0 ? 0 : level == 1 ? 8 : 12; }
// Parameters that a writer tries, from three below the logarithm of the mean gap on.
constexpr u32 TRIED = 6;
// The side of a segment whose search chose one.
constexpr u32 CHOSEN = 2;

// What was kept of one piece, as a part of a row.
struct Segment {
    // Where the piece begins in the row's index space.
    u64 start;
    u32 piece;
    u32 side;
};

// The positions of one block: those of its segments, one after the other.
struct Row {
    u32 first_segment;
    u32 segments;
    // Whether there is one parameter for all of them.
    u32 one;
    u32 reserved;
};

// What is found out about a row.
struct RowState {
    u64 count;
    u64 first_unit;
    u64 bytes;
    // Where it begins in the payload.
    u64 at;
    // Bytes before the planes.
    u64 planes;
    u32 log;
    u32 k;
};

// What is found out about 1024 gaps.
struct Unit {
    u64 sum;
    // Sums of quotients by each parameter tried, for a chunk of 2^13 gaps, and for one chunk.
    u64 sums[2][TRIED];
    // Bytes of entries of the table, and of planes, by each inner length.
    u64 table[INNER];
    u64 planes[INNER];
    // Where they go, from the row's first byte on. For longer chunks the planes' first byte is that of the whole chunk's.
    u64 table_at;
    u64 planes_at;
    // For longer chunks: bits of the second plane before this unit's, its bytes, the span.
    u64 unary_before;
    u64 unary_bytes;
    u64 span;
    // The parameters of inner chunks; of longer ones the first.
    u8 ks[16];
};

// What the host is told of a row: a support's bytes in the payload.
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
    // [search]: the side that is sent, where segments ask for it.
    const Choice *choices;
    const Row *rows;
    const Segment *segments;
    // Of each segment: gaps of the row before it; its first place.
    u64 *segment_first;
    u64 *segment_from;
    RowState *states;
    Unit *units;
    Written *written;
    // Zeros, of which each row takes what it needs.
    u32 *payload;
    // [2]: zeros
    u32 *tickets;
    u32 n_rows;
    u32 n_searches;
};

static_assert(sizeof(Segment) == 16 && sizeof(Row) == 16 && sizeof(RowState) == 48, "as in rice.rs");
static_assert(sizeof(Unit) == 208 && sizeof(Written) == 32 && sizeof(Rice) == 16 * 8 + 8, "as in rice.rs");
