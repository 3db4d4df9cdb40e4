// Exact selection by magnitude that reads a tensor once, like `src/compress/select.rs`:
//
//   sample     estimates from a small sample a threshold that is slightly too low
//   collect    lists the candidates, which are the elements that reach it, and stores the sums of error
//              feedback: the only pass over the tensors
//   digits     finds the exact cut among the candidates, in three launches; among all elements in the rare
//              case that candidates are too few or too many
//   count      counts for each tile the keys above the cut and equal to it
//   place      computes where each tile's kept elements go, by two prefix sums
//   emit       writes the kept elements, in order
//
// The result does not depend on the order in which blocks run: the candidates of a tile are adjacent, while
// tiles may be in any order; counts are integers; everything else is by tile.
//
// For a search by fits the host finds the threshold, with the sums of `fit.cu`. Then `sample` only gathers,
// and before the cut is known
//
//   count, place, emit     put all candidates in order
#include "cut.cuh"
#include "element.cuh"

// Whether the cut has to be found among all elements: candidates are too few or too many.
__device__ __forceinline__ bool not_among_candidates(const Search &search, const State &state) {
    bool fails = state.candidates > search.capacity;
    for (u32 side = 0; side < search.sides && state.exact == 0; side++) {
        fails |= state.least[side] != LOWEST && state.reached[side] < search.k;
    }
    return fails;
}

// Whether a search has nothing to do while candidates are put in order.
__device__ __forceinline__ bool rests(const Select &s, const Search &search, const State &state) {
    return s.listing != 0 && (search.fitted != 1 || state.exact != 0 || not_among_candidates(search, state));
}

// Elements of the sample that a thread loads at once.
constexpr u32 GATHERED = 8;
static_assert(SAMPLE_LEN % (GATHERED * THREADS) == 0, "every thread loads as many");

// One block for each search.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_sample(const Select s) {
    __shared__ u32 counts[BINS];
    __shared__ u64 scratch[WARPS];
    __shared__ u64 answer[2];
    const Search &search = s.searches[blockIdx.x];
    State &state = s.states[blockIdx.x];
    for (u32 side = threadIdx.x; side < 2; side += THREADS) {
        state.least[side] = search.least;
        state.cut[side] = search.exact != 0 ? search.least : 0;
        state.ties[side] = search.exact != 0 ? NO_LIMIT : search.k;
        state.exact = search.exact;
    }
    if (search.sample == NO_SAMPLE) {
        return;
    }
    u32 *bits = s.samples + static_cast<u64>(search.sample) * SAMPLE_LEN;
    const u64 stride = search.elements / SAMPLE_LEN, rest = search.elements % SAMPLE_LEN;
    const Piece *pieces = s.pieces + search.first_piece;
    for (u32 first = threadIdx.x; first < SAMPLE_LEN; first += GATHERED * THREADS) {
        // All loads come first, so that their latencies overlap.
        u32 found[GATHERED];
#pragma unroll
        for (u32 j = 0; j < GATHERED; j++) {
            const u32 i = first + j * THREADS;
            // One element from each stride, at changing places: at a fixed place the sample could be a matrix
            // column.
            const u64 jitter = (i * 0x9e3779b97f4a7c15ull >> 32) % stride;
            const u64 at = i * stride + i * rest / SAMPLE_LEN + jitter;
            const Piece &piece = pieces[last_at_most(search.pieces, at, [&](u32 p) { return pieces[p].start; })];
            found[j] = bits_of(read(piece, at - piece.start));
        }
#pragma unroll
        for (u32 j = 0; j < GATHERED; j++) {
            bits[first + j * THREADS] = found[j];
        }
    }
    __syncthreads();
    for (u32 side = 0; side < search.sides && search.fitted == 0; side++) {
        const u32 least = largest_of_sample(bits, search.rank + 1, search.sides, side, counts, scratch, answer);
        if (threadIdx.x == 0) {
            state.least[side] = least < LOWEST ? LOWEST : least > INFINITE ? INFINITE : least;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gcodec_collect(const Select s) {
    // [row][warp]: hits, then the hits before them.
    __shared__ u32 hits[ROWS * WARPS];
    __shared__ u64 first;
    __shared__ u32 plus;
    for (u32 tile = s.first_tile + blockIdx.x; tile < s.n_tiles; tile += gridDim.x) {
        const u32 number = piece_of_tile(s, tile);
        const Piece piece = s.pieces[number];
        const Search &search = s.searches[piece.search];
        State &state = s.states[piece.search];
        const u32 sides = search.sides, least = state.least[0], least_minus = state.least[1];
        const u64 begin = static_cast<u64>(tile - piece.first_tile) * TILE_LEN + 4 * threadIdx.x;
        const bool full = begin - 4 * threadIdx.x + TILE_LEN <= piece.len;
        float x[ROWS][4];
        read_rows(piece, begin, full, x);
        if (piece.after != nullptr) {
            store_rows(piece, begin, full, x);
        }
        u32 mask = 0, minus = 0;
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 bits = bits_of(x[row][j]), bit = 1u << (4 * row + j);
                mask |= key_of(bits, sides, 0) >= least ? bit : 0;
                minus |= sides == 2 && key_of(bits, 2, 1) >= least_minus ? bit : 0;
            }
        }
        const u32 both = mask | minus;
        if (__syncthreads_or(both != 0) == 0) {
            if (threadIdx.x == 0) {
                s.tile_hits[tile] = 0;
            }
            continue;
        }
        if (threadIdx.x == 0) {
            plus = 0;
        }
        // Hits of each row in lower lanes of the warp.
        u32 before[ROWS];
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            const u32 count = __popc(both >> 4 * row & 15);
            const u32 one = __ballot_sync(ALL_LANES, count & 1), two = __ballot_sync(ALL_LANES, count & 2);
            const u32 four = __ballot_sync(ALL_LANES, count & 4);
            before[row] = __popc(one & below()) + 2 * __popc(two & below()) + 4 * __popc(four & below());
            if (lane() == 0) {
                hits[row * WARPS + warp()] = __popc(one) + 2 * __popc(two) + 4 * __popc(four);
            }
        }
        __syncthreads();
        if (mask != 0 && sides == 2) {
            atomicAdd(&plus, static_cast<u32>(__popc(mask)));
        }
        if (warp() == 0) {
            const u32 a = hits[2 * lane()], b = hits[2 * lane() + 1];
            const u32 inclusive = warp_inclusive(a + b);
            hits[2 * lane()] = inclusive - a - b;
            hits[2 * lane() + 1] = inclusive - b;
            if (lane() == 31) {
                first = atomicAdd(&state.candidates, static_cast<u64>(inclusive));
                s.tile_first[tile] = first;
                s.tile_hits[tile] = inclusive;
                if (sides == 1) {
                    atomicAdd(&state.reached[0], static_cast<u64>(inclusive));
                }
            }
        }
        __syncthreads();
        if (sides == 2 && threadIdx.x == 0) {
            const u32 all = s.tile_hits[tile];
            atomicAdd(&state.reached[0], static_cast<u64>(plus));
            atomicAdd(&state.reached[1], static_cast<u64>(all - plus));
        }
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            u64 at = first + hits[row * WARPS + warp()] + before[row];
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                if ((both >> (4 * row + j) & 1) != 0) {
                    if (at < search.capacity) {
                        s.candidate_places[search.candidates + at] = static_cast<u32>(begin + row * ROW_LEN + j);
                        s.candidate_bits[search.candidates + at] = bits_of(x[row][j]);
                    }
                    at++;
                }
            }
        }
        __syncthreads();
    }
}

// One row of blocks for each search.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_digits(const Select s) {
    __shared__ u32 counts[2][BINS];
    __shared__ u64 scratch[WARPS];
    __shared__ u64 answer[2];
    __shared__ u32 last;
    const Search &search = s.searches[blockIdx.y];
    State &state = s.states[blockIdx.y];
    if (state.exact != 0) {
        return;
    }
    const u32 sides = search.sides, bins = 1u << s.width;
    for (u32 bin = threadIdx.x; bin < 2 * BINS; bin += THREADS) {
        counts[bin / BINS][bin % BINS] = 0;
    }
    __syncthreads();
    const u32 cut[2] = {state.cut[0], state.cut[1]};
    auto visit = [&](u32 bits) {
        for (u32 side = 0; side < sides; side++) {
            const u32 key = key_of(bits, sides, side);
            if (key != 0 && key >> s.shift >> s.width == cut[side]) {
                atomicAdd(&counts[side][key >> s.shift & (bins - 1)], 1u);
            }
        }
    };
    if (!not_among_candidates(search, state)) {
        const u64 step = static_cast<u64>(gridDim.x) * THREADS;
        for (u64 c = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x; c < state.candidates; c += step) {
            visit(s.candidate_bits[search.candidates + c]);
        }
    } else {
        for (u32 t = blockIdx.x; t < search.tiles; t += gridDim.x) {
            const Piece &piece = s.pieces[piece_of_tile(s, search.first_tile + t)];
            const u64 begin = static_cast<u64>(search.first_tile + t - piece.first_tile) * TILE_LEN;
            const u64 end = begin + TILE_LEN < piece.len ? begin + TILE_LEN : piece.len;
            for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
                visit(bits_of(read_again(piece, i)));
            }
        }
    }
    __syncthreads();
    u64 *all = s.counts + static_cast<u64>(blockIdx.y) * 2 * BINS;
    for (u32 bin = threadIdx.x; bin < 2 * BINS; bin += THREADS) {
        const u32 count = counts[bin / BINS][bin % BINS];
        if (count != 0) {
            atomicAdd(&all[bin], static_cast<u64>(count));
        }
    }
    // The last block to arrive sees the counts of all others.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&state.ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last == 0) {
        return;
    }
    __threadfence();
    for (u32 side = 0; side < sides; side++) {
        if (state.all[side] != 0) {
            continue;
        }
        u32 digit = 0;
        u64 ties = state.ties[side];
        auto count = [&](u32 bin) {
            u64 *place = &all[side * BINS + bin];
            const u64 found = atomicAdd(place, 0ull);
            *place = 0;
            return found;
        };
        const bool found = pick(bins, count, scratch, answer, digit, ties);
        if (threadIdx.x == 0) {
            state.all[side] = !found;
            state.ties[side] = found ? ties : NO_LIMIT;
            // With fewer than k keys above zero all of these are kept, and no others.
            state.cut[side] = found ? cut[side] << s.width | digit : LOWEST;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        state.ticket = 0;
    }
}

// The candidates of a tile; all of its elements if the cut is found among all.
struct Items {
    const Piece &piece;
    const u32 *places;
    const u32 *bits;
    u64 begin;
    u32 len;

    __device__ Items(const Select &s, const Piece &piece, const Search &search, const State &state, u32 tile)
        : piece(piece), places(nullptr), bits(nullptr), begin(0), len(0) {
        if (rests(s, search, state)) {
            return;
        }
        if (!not_among_candidates(search, state)) {
            len = s.tile_hits[tile];
            const u64 first = len == 0 ? 0 : search.candidates + s.tile_first[tile];
            places = s.candidate_places + first;
            bits = s.candidate_bits + first;
        } else {
            begin = static_cast<u64>(tile - piece.first_tile) * TILE_LEN;
            len = static_cast<u32>(begin + TILE_LEN < piece.len ? TILE_LEN : piece.len - begin);
        }
    }

    __device__ u32 place(u32 i) const { return places != nullptr ? places[i] : static_cast<u32>(begin + i); }
    __device__ u32 bits_at(u32 i) const {
        return places != nullptr ? bits[i] : bits_of(read_again(piece, begin + i));
    }
};

// One warp for each tile.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_count(const Select s) {
    for (u32 tile = s.first_tile + blockIdx.x * WARPS + warp(); tile < s.n_tiles; tile += gridDim.x * WARPS) {
        const Piece &piece = s.pieces[piece_of_tile(s, tile)];
        const Search &search = s.searches[piece.search];
        const State &state = s.states[piece.search];
        const Items items(s, piece, search, state, tile);
        for (u32 side = 0; side < search.sides; side++) {
            u32 above = 0, equal = 0;
            for (u32 i = lane(); i < items.len; i += 32) {
                const u32 key = key_of(items.bits_at(i), search.sides, side);
                above += key > state.cut[side];
                equal += key == state.cut[side];
            }
            above = warp_sum(above);
            equal = warp_sum(equal);
            if (lane() == 0) {
                s.tile_above[2 * static_cast<u64>(tile) + side] = above;
                s.tile_equal[2 * static_cast<u64>(tile) + side] = equal;
            }
        }
    }
}

// Tiles that a thread places at a time.
constexpr u32 PLACED = 8;

// One block for each search.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_place(const Select s) {
    __shared__ u64 scratch[WARPS];
    __shared__ u32 last;
    const Search &search = s.searches[blockIdx.x];
    const State &state = s.states[blockIdx.x];
    for (u32 side = 0; side < 2; side++) {
        u64 equal_before = 0, kept_before = 0;
        const u64 most = state.ties[side];
        for (u32 t = 0; t < search.tiles && side < search.sides; t += THREADS * PLACED) {
            const u32 first = t + threadIdx.x * PLACED;
            const u64 at = 2 * (static_cast<u64>(search.first_tile) + first) + side;
            u32 equal[PLACED], kept[PLACED];
            u64 equals = 0, sum = 0, total;
#pragma unroll
            for (u32 j = 0; j < PLACED; j++) {
                const bool here = first + j < search.tiles;
                equal[j] = here ? s.tile_equal[at + 2 * j] : 0;
                kept[j] = here ? s.tile_above[at + 2 * j] : 0;
                equals += equal[j];
            }
            u64 before = equal_before + block_exclusive(equals, scratch, total);
            equal_before += total;
#pragma unroll
            for (u32 j = 0; j < PLACED; j++) {
                const u64 left = before < most ? most - before : 0;
                before += equal[j];
                equal[j] = equal[j] < left ? equal[j] : static_cast<u32>(left);
                kept[j] += equal[j];
                sum += kept[j];
            }
            u64 place = kept_before + block_exclusive(sum, scratch, total);
            kept_before += total;
#pragma unroll
            for (u32 j = 0; j < PLACED; j++) {
                if (first + j < search.tiles) {
                    s.tile_equal[at + 2 * j] = equal[j];
                    s.tile_kept[at + 2 * j] = place;
                    place += kept[j];
                }
            }
        }
        __syncthreads();
        for (u32 p = threadIdx.x; p < search.pieces; p += THREADS) {
            const u32 piece = search.first_piece + p;
            const u64 tile = s.pieces[piece].first_tile;
            s.piece_kept[2 * piece + side] = side < search.sides ? s.tile_kept[2 * tile + side] : 0;
        }
        if (threadIdx.x == 0) {
            s.totals[2 * blockIdx.x + side] = kept_before;
        }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(s.ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last == 0) {
        return;
    }
    __threadfence();
    u64 base = 0;
    for (u32 i = 0; i < 2 * s.n_searches; i += THREADS) {
        const u32 at = i + threadIdx.x;
        u64 total;
        const u64 mine = at < 2 * s.n_searches ? atomicAdd(&s.totals[at], 0ull) : 0;
        const u64 before = base + block_exclusive(mine, scratch, total);
        base += total;
        if (at < 2 * s.n_searches) {
            s.bases[at] = before;
        }
    }
    if (threadIdx.x == 0) {
        *s.ticket = 0;
    }
}

// One warp for each tile.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_emit(const Select s) {
    for (u32 tile = s.first_tile + blockIdx.x * WARPS + warp(); tile < s.n_tiles; tile += gridDim.x * WARPS) {
        const Piece &piece = s.pieces[piece_of_tile(s, tile)];
        const Search &search = s.searches[piece.search];
        const State &state = s.states[piece.search];
        const Items items(s, piece, search, state, tile);
        for (u32 side = 0; side < search.sides; side++) {
            const u64 at = 2 * static_cast<u64>(tile) + side;
            u64 out = s.bases[2 * piece.search + side] + s.tile_kept[at];
            u32 equals = 0;
            for (u32 i = 0; i < items.len; i += 32) {
                const bool here = i + lane() < items.len;
                const u32 bits = here ? items.bits_at(i + lane()) : 0;
                const u32 key = key_of(bits, search.sides, side);
                const bool equal = here && key == state.cut[side];
                const u32 equal_lanes = __ballot_sync(ALL_LANES, equal);
                const u32 rank = equals + __popc(equal_lanes & below());
                const bool keep = here && (key > state.cut[side] || (equal && rank < s.tile_equal[at]));
                const u32 kept_lanes = __ballot_sync(ALL_LANES, keep);
                if (keep) {
                    const u64 place = out + __popc(kept_lanes & below());
                    if (s.listing != 0) {
                        s.list[place] = bits;
                    } else {
                        s.out_places[place] = items.place(i + lane());
                        s.out_bits[place] = bits;
                    }
                }
                equals += __popc(equal_lanes);
                out += __popc(kept_lanes);
            }
        }
    }
}

// Finds the first element of a piece that is not finite.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_non_finite(const NonFinite n) {
    const u64 step = static_cast<u64>(gridDim.x) * THREADS;
    for (u64 i = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x; i < n.piece.len; i += step) {
        if (!is_finite(read(n.piece, i))) {
            atomicMin(n.least, n.start + i);
            return;
        }
    }
}
