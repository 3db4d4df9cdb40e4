// What the host gives the kernels and gets from them. `adapters/cuda/src/plan.rs` has the same structures: fields in the order of their
// alignment, so that there is no padding but at the end, and sizes that both sides check.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Threads of every block.
constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / 32;
// Elements of a tile, what a block reads at a time: 8 rows of 4 elements for each thread.
constexpr u32 ROWS = 8;
constexpr u32 ROW = 4 * THREADS;
constexpr u32 TILE = ROWS * ROW;
// Elements of a sample; a search among no more takes all elements for candidates.
constexpr u32 SAMPLE = 1 << 15;
// Bins of the widest digit of a key.
constexpr u32 BINS = 2048;
// The key of the smallest magnitude above zero, and that of infinity.
constexpr u32 LOWEST = 1;
constexpr u32 INFINITE = 0x7f800000u;
constexpr u64 NO_LIMIT = ~0ull;
// How magnitudes are summed, as `src/compress/moments.rs` has it: elements of a run, runs of a tile, tiles of a chunk.
constexpr u32 RUN = 1024;
constexpr u32 CHUNK_TILES = 32;
constexpr u64 CHUNK = static_cast<u64>(CHUNK_TILES) * TILE;

// What an `Ask` says: sums over a search's sample, tensor, candidates or kept sides; candidates begin at `at`, or where the sample's
// largest `rank` keys do; all that reaches `at` is kept.
constexpr u32 SAMPLES = 1;
constexpr u32 TENSORS = 2;
constexpr u32 CANDIDATES = 4;
constexpr u32 SIDES = 8;
constexpr u32 FROM = 16;
constexpr u32 FROM_SAMPLE = 32;
constexpr u32 KEEP = 64;

// Element types, by their numbers on the wire.
constexpr u32 F32 = 2;
constexpr u32 F16 = 3;
constexpr u32 BF16 = 4;

// At most 2^31 elements of one tensor.
struct Piece {
    const void *data;
    // One 32-bit float for each element, or null.
    const float *residual;
    // Where the sums of element and residual go, or null.
    float *after;
    u64 len;
    // The number of elements of the search before it.
    u64 start;
    u32 dtype;
    u32 search;
    u32 first_tile;
    // Whether elements that are not finite count as zero.
    u32 zero_non_finite;
};

// What is to be found in consecutive pieces.
struct Search {
    u64 elements;
    // How many are kept of each side.
    u64 k;
    // The place of its candidates among all, and how many there is room for.
    u64 candidates;
    u64 capacity;
    // If so many of a sample reach a key, then k of all elements do, by four standard deviations.
    u32 rank;
    // The place of its sample among all samples; ~0 if it has none, and `least` is where candidates begin.
    u32 sample;
    u32 least;
    // Whether everything from `least` on is kept, which is known from the beginning.
    u32 exact;
    u32 first_piece;
    u32 pieces;
    u32 first_tile;
    u32 tiles;
    // 1: magnitudes; 2: positive and negative elements apart.
    u32 sides;
    // Whether the host finds its threshold, by fits: 1 among candidates, 2 from the whole tensor.
    u32 fitted;
    // The place of its first chunk's moments; those of its second side come after (k + CHUNK - 1) / CHUNK of them.
    u64 chunks;
};

// What the host wants to know of a search, or tells it.
struct Ask {
    u32 what;
    // A key: the smallest that counts. 0: where the candidates begin, and the location is that too.
    u32 at;
    float location;
    // Whether the product of mantissas is wanted.
    u32 logs;
    u64 rank;
};

// As `Moments` of `src/compress/moments.rs`.
struct Moments {
    u64 count;
    double sum;
    double squares;
    double product;
    long long exponent;
    float max;
    u32 reserved;
};

// What is known of a search while it runs; zero in the beginning.
struct State {
    u64 candidates;
    // Candidates of each side.
    u64 reached[2];
    // How many of those with key `cut` are kept.
    u64 ties[2];
    // Where candidates begin.
    u32 least[2];
    // Keys above this are kept; while digits are counted, those that are known of it.
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
    // [sample][SAMPLE]: bits of elements
    u32 *samples;
    // Of each tile: its first candidate, and how many it has.
    u64 *tile_first;
    u32 *tile_hits;
    // [tile][side]: keys above the cut, and equal to it; then how many of these are kept.
    u32 *tile_above;
    u32 *tile_equal;
    // [tile][side]: kept elements of the search before it.
    u64 *tile_kept;
    // Of each candidate: its place in its piece, and its bits.
    u32 *candidate_places;
    u32 *candidate_bits;
    // [search][side]: how many were kept; [piece][side]: how many of the search before it.
    u64 *totals;
    u64 *piece_kept;
    // [search][side]: where its kept elements begin.
    u64 *bases;
    u32 *out_places;
    u32 *out_bits;
    u32 *ticket;
    const Ask *asks;
    // Of each chunk.
    Moments *moments;
    // The bits of all candidates of searches by fits, in the order of the elements.
    u32 *list;
    u32 n_pieces;
    u32 n_searches;
    // The first tile to read: 0, but in tests of large tensors, whose first tiles are known to hold zeros.
    u32 first_tile;
    u32 n_tiles;
    // The digit of the keys that is counted: its place and its width in bits.
    u32 shift;
    u32 width;
    // Which sums are taken: those of asks that say so.
    u32 what;
    // Whether candidates are only put in their order.
    u32 listing;
};

// Which side a search sends, and where its elements are in what goes to the host.
struct Choice {
    // Of the magnitudes of each side.
    double sums[2];
    u64 places;
    u64 values;
};

__device__ __forceinline__ u32 side_of(const Choice &choice) { return choice.sums[0] >= choice.sums[1] ? 0 : 1; }

// What goes to the host: of searches with two sides the positions of the one with the larger sum, of others positions and values.
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

// What is taken from the residual of one piece.
struct Taken {
    float *after;
    // Where its kept elements begin in `places` and `values`.
    u64 first;
    u64 len;
    // Null: each of them takes `value`.
    const float *values;
    float value;
    u32 reserved;
};

struct Subtract {
    const Taken *taken;
    const u32 *places;
};

// What one block of an update says of one tensor.
struct Put {
    void *data;
    // Null: element `start + i` takes value i.
    const u64 *positions;
    const float *values;
    u64 start;
    u64 len;
    u32 dtype;
    // 0: values take the place of what is there; 1: they are added to it; 2: the low 16 bits of each are the element.
    u32 add;
};

struct Scatter {
    const Put *puts;
};

struct NonFinite {
    Piece piece;
    // The number of elements of the tensor before the piece.
    u64 start;
    u64 *least;
};

static_assert(sizeof(Piece) == 56 && sizeof(Search) == 80 && sizeof(State) == 72, "as in plan.rs");
static_assert(sizeof(Ask) == 24 && sizeof(Moments) == 48 && sizeof(Choice) == 32 && sizeof(Pack) == 80, "as in plan.rs");
static_assert(sizeof(Select) == 21 * 8 + 32 && sizeof(Taken) == 40 && sizeof(Put) == 48, "as in plan.rs");
static_assert(sizeof(NonFinite) == 72, "as in plan.rs");
