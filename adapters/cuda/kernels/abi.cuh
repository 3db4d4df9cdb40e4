// The structures that host and kernels exchange. `adapters/cuda/src/abi.rs` declares the same ones. Fields
// are ordered by alignment, so that padding stands at the end only, and both sides check the sizes.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Threads of every block.
constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / 32;
// Elements of a tile, which a block reads at a time: 8 rows of 4 elements for each thread.
constexpr u32 ROWS = 8;
constexpr u32 ROW_LEN = 4 * THREADS;
constexpr u32 TILE_LEN = ROWS * ROW_LEN;
// Elements of a sample. In a search with at most this many elements all are candidates.
constexpr u32 SAMPLE_LEN = 1 << 15;
// The `sample` of a search without one.
constexpr u32 NO_SAMPLE = ~0u;
// Bins of the widest digit of a key.
constexpr u32 BINS = 2048;
// The key of the smallest magnitude above zero, and that of infinity.
constexpr u32 LOWEST = 1;
constexpr u32 INFINITE = 0x7f800000u;
constexpr u64 NO_LIMIT = ~0ull;
// The order of sums (`src/compress`): elements of a run, tiles of a chunk, elements of a chunk.
constexpr u32 RUN_LEN = 1024;
constexpr u32 CHUNK_TILES = 32;
constexpr u64 CHUNK_LEN = static_cast<u64>(CHUNK_TILES) * TILE_LEN;

// Actions of a `Directive`: sum over the sample, the tensor, the candidates or the kept sides of a search;
// let candidates begin at `key`, or where the `rank` largest keys of the sample do; keep every key from `key`
// on.
constexpr u32 SUM_SAMPLE = 1;
constexpr u32 SUM_TENSOR = 2;
constexpr u32 SUM_CANDIDATES = 4;
constexpr u32 SUM_SIDES = 8;
constexpr u32 BEGIN_AT_KEY = 16;
constexpr u32 BEGIN_AT_RANK = 32;
constexpr u32 KEEP_FROM_KEY = 64;

// Element types, by their numbers on the wire.
constexpr u32 F32 = 2;
constexpr u32 F16 = 3;
constexpr u32 BF16 = 4;

// Consecutive elements of one tensor, at most 2^31.
struct Piece {
    const void *data;
    // One 32-bit float for each element, or null.
    const float *residual;
    // Where the sums of element and residual are written, or null.
    float *after;
    u64 len;
    // Elements of the search before this piece.
    u64 start;
    u32 dtype;
    u32 search;
    u32 first_tile;
    // Whether elements that are not finite count as zero.
    u32 zero_non_finite;
};

// A search over consecutive pieces.
struct Search {
    u64 elements;
    // How many elements each side keeps.
    u64 k;
    // Index of its first candidate among all, and the capacity of its candidate list.
    u64 candidates;
    u64 capacity;
    // If `rank` + 1 elements of the sample reach a key, then k of all elements do, by four standard
    // deviations.
    u32 rank;
    // Index of its sample among all samples; `NO_SAMPLE`: candidates begin at `least`.
    u32 sample;
    u32 least;
    // Whether everything from `least` on is kept; known before the first kernel.
    u32 exact;
    u32 first_piece;
    u32 pieces;
    u32 first_tile;
    u32 tiles;
    // 1: by magnitude; 2: positive and negative elements apart.
    u32 sides;
    // Whether the host fits its threshold: 0 no, 1 to candidates, 2 to the whole tensor.
    u32 fitted;
    // Index of the moments of its first chunk; those of its second side begin (k + CHUNK_LEN - 1) / CHUNK_LEN
    // later.
    u64 chunks;
};

// A request of the host for one search, or its decision.
struct Directive {
    u32 actions;
    // The smallest key that counts. 0: where the candidates begin, which is then the location too.
    u32 key;
    float location;
    // Whether the host needs the product of mantissas.
    u32 logs;
    u64 rank;
};

// As `Moments` of the library (`src/compress/moments.rs`).
struct Moments {
    u64 count;
    double sum;
    double squares;
    double product;
    long long exponent;
    float max;
    u32 reserved;
};

// The progress of a search; zero in the beginning.
struct State {
    u64 candidates;
    // Candidates of each side.
    u64 reached[2];
    // How many elements with key `cut` are kept.
    u64 ties[2];
    // Where candidates begin.
    u32 least[2];
    // Keys above this are kept. While digits are counted: its digits found so far.
    u32 cut[2];
    // Whether fewer than k elements have a key above zero.
    u32 all[2];
    u32 ticket;
    // Whether everything from `cut` on is kept.
    u32 exact;
};

struct Select {
    const Piece *pieces;
    const Search *searches;
    State *states;
    // [search][side][BINS]
    u64 *counts;
    // [sample][SAMPLE_LEN]: bits of elements
    u32 *samples;
    // [tile]: its first candidate, and the number of its candidates.
    u64 *tile_first;
    u32 *tile_hits;
    // [tile][side]: keys above the cut, and keys equal to it; then how many of the latter are kept.
    u32 *tile_above;
    u32 *tile_equal;
    // [tile][side]: elements of the search kept before this tile.
    u64 *tile_kept;
    // [candidate]: its place in its piece, and its bits.
    u32 *candidate_places;
    u32 *candidate_bits;
    // [search][side]: elements kept; [piece][side]: elements of the search kept before this piece.
    u64 *totals;
    u64 *piece_kept;
    // [search][side]: index of its first kept element.
    u64 *bases;
    u32 *out_places;
    u32 *out_bits;
    u32 *ticket;
    const Directive *directives;
    // [chunk]
    Moments *moments;
    // The bits of all candidates of searches by fits, in the order of the elements.
    u32 *list;
    u32 n_pieces;
    u32 n_searches;
    // The first tile to read: 0, except in tests of large tensors, whose first tiles hold zeros.
    u32 first_tile;
    u32 n_tiles;
    // Lowest bit and width, in bits, of the digit of the keys that is counted.
    u32 shift;
    u32 width;
    // The sums that this launch takes, out of those of the directives.
    u32 sum_actions;
    // Whether candidates are put in order, and nothing is selected yet.
    u32 listing;
};

// Which side a search sends, and where its elements begin in the copy to the host.
struct Choice {
    // Sums of the magnitudes of each side.
    double sums[2];
    u64 places;
    u64 values;
};

__device__ __forceinline__ u32 side_of(const Choice &choice) { return choice.sums[0] >= choice.sums[1] ? 0 : 1; }

// The copy to the host: positions of the side with the larger sum for searches with two sides, else positions
// and values.
struct Pack {
    const Search *searches;
    const u64 *totals;
    const u64 *bases;
    const Moments *moments;
    const u32 *out_places;
    const u32 *out_bits;
    Choice *choices;
    u32 *places;
    u32 *bits;
    u32 n_searches;
    u32 reserved;
};

// Kept elements of one piece, which leave its residual.
struct Taken {
    float *after;
    // Index of its first kept element in `places` and `values`.
    u64 first;
    u64 len;
    // Null: `value` is subtracted from each of them.
    const float *values;
    float value;
    u32 reserved;
};

struct Subtract {
    const Taken *taken;
    const u32 *places;
};

// The values of one block of an update for one tensor.
struct Put {
    void *data;
    // Null: value i belongs to element `start + i`.
    const u64 *positions;
    const float *values;
    u64 start;
    u64 len;
    u32 dtype;
    // 0: values replace elements; 1: values are added to elements; 2: the low 16 bits of each value replace
    // the element.
    u32 add;
};

struct Scatter {
    const Put *puts;
};

struct NonFinite {
    Piece piece;
    // Elements of the tensor before the piece.
    u64 start;
    u64 *least;
};

static_assert(sizeof(Piece) == 56 && sizeof(Search) == 80 && sizeof(State) == 72, "as in abi.rs");
static_assert(sizeof(Directive) == 24 && sizeof(Moments) == 48, "as in abi.rs");
static_assert(sizeof(Choice) == 32 && sizeof(Pack) == 80, "as in abi.rs");
static_assert(sizeof(Select) == 21 * 8 + 32 && sizeof(Taken) == 40 && sizeof(Put) == 48, "as in abi.rs");
static_assert(sizeof(NonFinite) == 72, "as in abi.rs");
