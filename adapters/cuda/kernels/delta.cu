// Elements that differ from a base, like `src/compress/codecs/delta`:
//
//   keys       counts the base's keys and the changes of each, in a sample
//   count      counts for each tile the elements and the changed elements of each class
//   place      sums these over the tiles before each tile
//   emit       writes ranks and values of the changed elements, by class and then in order; reads only tiles
//              with changes
//
// Counts are integers, so that the result does not depend on the order in which blocks run. Between the first
// two kernels the host chooses the classes.
#include "delta.cuh"
#include "group.cuh"

namespace delta {

// Rows of 32 elements that a warp reads of a tile.
constexpr u32 WARP_LEN = TILE_LEN / WARPS;

__device__ __forceinline__ u32 element(const void *data, u32 width, u64 i) {
    return width == 2 ? static_cast<const u16 *>(data)[i] : static_cast<const u32 *>(data)[i];
}

// The eight bits below the sign.
__device__ __forceinline__ u32 key_of(u32 bits, u32 width) { return bits >> (8 * width - 9) & (KEYS - 1); }

// The rank of a bit pattern among those of its width, at the high end of 32 bits.
__device__ __forceinline__ u32 rank_of(u32 bits, u32 width) {
    const u32 high = bits << (32 - 8 * width);
    const u32 sign = 1u << 31;
    return ((high & sign) != 0 ? ~high : high | sign) & ~0u << (32 - 8 * width);
}

// The difference of ranks.
__device__ __forceinline__ int difference(u32 base, u32 fresh, u32 width) {
    return static_cast<int>(rank_of(fresh, width) - rank_of(base, width)) >> (32 - 8 * width);
}

__device__ __forceinline__ u32 code_of(int diff) {
    const u32 magnitude = diff < 0 ? 0 - static_cast<u32>(diff) : static_cast<u32>(diff);
    const u32 code = magnitude < CODES ? 2 * magnitude - (diff < 0 ? 1 : 0) : CODES;
    return code < CODES ? code : CODES - 1;
}

__device__ __forceinline__ u32 span_of_tile(const Delta &d, u32 tile) {
    return last_at_most(d.n_spans, tile, [&](u32 s) { return d.spans[s].first_tile; });
}

// A row of 32 elements: an element in each lane.
struct Row {
    u32 base;
    u32 fresh;
    u32 which;
    // The lanes of elements, of changed elements, and of elements of this lane's class.
    u32 lanes;
    u32 changed;
    u32 peers;
};

// `i`: this lane's element.
__device__ __forceinline__ Row read_row(const Span &span, const Change &change, u64 i) {
    Row row;
    const bool inside = i < span.len;
    row.base = inside ? element(span.base, change.width, i) : 0;
    row.fresh = inside ? element(span.fresh, change.width, i) : 0;
    row.which = change.classes > 1 ? change.class_of[key_of(row.base, change.width)] : 0;
    row.lanes = __ballot_sync(ALL_LANES, inside);
    row.changed = __ballot_sync(ALL_LANES, row.base != row.fresh);
    row.peers = row.lanes;
    for (u32 bit = 1; bit < change.classes; bit *= 2) {
        const u32 with = __ballot_sync(ALL_LANES, (row.which & bit) != 0);
        row.peers &= (row.which & bit) != 0 ? with : ~with;
    }
    return row;
}

// Numbers of elements and of changed elements by class, for each warp of a tile.
using Counts = u32[WARPS][2][MOST_CLASSES];

// Counts a tile.
__device__ __forceinline__ void count_tile(const Span &span, const Change &change, u64 begin, Counts &counts) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < WARPS * 2 * MOST_CLASSES; i += THREADS) {
        (&counts[0][0][0])[i] = 0;
    }
    __syncthreads();
    for (u32 at = 0; at < WARP_LEN; at += 32) {
        const Row row = read_row(span, change, begin + warp() * WARP_LEN + at + lane());
        // One lane counts for all of its class.
        if ((row.lanes >> lane() & 1) != 0 && (row.peers & below()) == 0) {
            atomicAdd(&counts[warp()][0][row.which], static_cast<u32>(__popc(row.peers)));
            atomicAdd(&counts[warp()][1][row.which], static_cast<u32>(__popc(row.peers & row.changed)));
        }
    }
    __syncthreads();
}

__device__ __forceinline__ u32 *sums_of(const Change &change, u32 which, u32 kind, u32 tile) {
    return change.sums + (static_cast<u64>(2 * which + kind) * change.tiles + (tile - change.first_tile));
}

// Whether a tile has changed elements, by the sums over tiles. All threads of the block call it.
__device__ __forceinline__ bool changes(const Change &change, u32 tile) {
    bool more = false;
    if (threadIdx.x < change.classes) {
        const u32 *sum = sums_of(change, threadIdx.x, 1, tile);
        const bool last = tile - change.first_tile + 1 == change.tiles;
        more = sum[0] != (last ? change.totals[threadIdx.x] : sum[1]);
    }
    return __syncthreads_or(more) != 0;
}

__device__ __forceinline__ void put(const Change &change, u32 at, u32 value) {
    if (change.width == 2) {
        static_cast<u16 *>(change.values)[at] = static_cast<u16>(value);
    } else {
        static_cast<u32 *>(change.values)[at] = value;
    }
}

// Each block counts consecutive tiles, and adds what it has where a task ends.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_delta_keys(const Delta d) {
    __shared__ u32 elements[WARPS][KEYS];
    __shared__ u32 codes[CODES][KEYS];
    const u32 key = threadIdx.x;
    for (u32 w = 0; w < WARPS; w++) {
        elements[w][key] = 0;
    }
    for (u32 code = 0; code < CODES; code++) {
        codes[code][key] = 0;
    }
    const u32 each = (d.n_tiles - 1) / gridDim.x + 1;
    const u64 first = static_cast<u64>(blockIdx.x) * each;
    const u64 end = first + each < d.n_tiles ? first + each : d.n_tiles;
    __syncthreads();
    for (u64 tile = first; tile < end; tile++) {
        const u32 number = span_of_tile(d, static_cast<u32>(tile));
        const Span span = d.spans[number];
        const Change &change = d.changes[span.task];
        const u32 inside = static_cast<u32>(tile) - span.first_tile;
        for (u32 step = 0; step < STEPS && change.every != 0; step++) {
            const u64 of_task = static_cast<u64>(span.first_step) + inside * STEPS + step;
            if ((of_task * 0x9e3779b97f4a7c15ull >> 32) % change.every != 0) {
                continue;
            }
            const u64 begin = static_cast<u64>(inside) * TILE_LEN + step * STEP_LEN;
            for (u64 i = begin + threadIdx.x; i < begin + STEP_LEN && i < span.len; i += THREADS) {
                const u32 base = element(span.base, change.width, i);
                const u32 fresh = element(span.fresh, change.width, i);
                const u32 of_base = key_of(base, change.width);
                atomicAdd(&elements[warp()][of_base], 1u);
                if (base != fresh) {
                    atomicAdd(&codes[code_of(difference(base, fresh, change.width))][of_base], 1u);
                }
            }
        }
        const bool ends = tile + 1 == end || tile + 1 == static_cast<u64>(change.first_tile) + change.tiles;
        if (!ends || change.every == 0) {
            continue;
        }
        __syncthreads();
        u32 *counts = change.counts + static_cast<u64>(key) * (1 + CODES);
        u32 sum = 0;
        for (u32 w = 0; w < WARPS; w++) {
            sum += elements[w][key];
            elements[w][key] = 0;
        }
        if (sum > 0) {
            atomicAdd(&counts[0], sum);
        }
        for (u32 code = 0; code < CODES; code++) {
            if (codes[code][key] > 0) {
                atomicAdd(&counts[1 + code], codes[code][key]);
                codes[code][key] = 0;
            }
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gcodec_delta_count(const Delta d) {
    __shared__ Counts counts;
    for (u32 tile = blockIdx.x; tile < d.n_tiles; tile += gridDim.x) {
        const Span span = d.spans[span_of_tile(d, tile)];
        const Change change = d.changes[span.task];
        if (change.classes == 0) {
            continue;
        }
        const u64 begin = static_cast<u64>(tile - span.first_tile) * TILE_LEN;
        count_tile(span, change, begin, counts);
        for (u32 i = threadIdx.x; i < 2 * change.classes; i += THREADS) {
            u32 sum = 0;
            for (u32 w = 0; w < WARPS; w++) {
                sum += counts[w][i % 2][i / 2];
            }
            *sums_of(change, i / 2, i % 2, tile) = sum;
        }
    }
}

// One block for each task; a warp for each list of sums.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_delta_place(const Delta d) {
    const Change change = d.changes[blockIdx.x];
    for (u32 list = warp(); list < 2 * change.classes; list += WARPS) {
        u32 *sums = change.sums + static_cast<u64>(list) * change.tiles;
        u32 before = 0;
        for (u32 first = 0; first < change.tiles; first += 32) {
            const u32 tile = first + lane();
            const u32 x = tile < change.tiles ? sums[tile] : 0;
            const u32 inclusive = warp_inclusive(x);
            if (tile < change.tiles) {
                sums[tile] = before + inclusive - x;
            }
            before += __shfl_sync(ALL_LANES, inclusive, 31);
        }
        if (lane() == 0 && list % 2 == 1) {
            change.totals[list / 2] = before;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gcodec_delta_emit(const Delta d) {
    __shared__ Counts counts;
    for (u32 tile = blockIdx.x; tile < d.n_tiles; tile += gridDim.x) {
        const Span span = d.spans[span_of_tile(d, tile)];
        const Change change = d.changes[span.task];
        const u64 begin = static_cast<u64>(tile - span.first_tile) * TILE_LEN;
        if (change.classes == 0) {
            for (u64 i = begin + threadIdx.x; i < begin + TILE_LEN && i < span.len; i += THREADS) {
                put(change, static_cast<u32>(span.start + i), element(span.fresh, change.width, i));
            }
            continue;
        }
        if (!changes(change, tile)) {
            continue;
        }
        count_tile(span, change, begin, counts);
        for (u32 i = threadIdx.x; i < 2 * change.classes; i += THREADS) {
            const u32 kind = i % 2, which = i / 2;
            u32 before = *sums_of(change, which, kind, tile) + (kind == 1 ? change.places[which] : 0);
            for (u32 w = 0; w < WARPS; w++) {
                const u32 own = counts[w][kind][which];
                counts[w][kind][which] = before;
                before += own;
            }
        }
        __syncthreads();
        for (u32 at = 0; at < WARP_LEN; at += 32) {
            const Row row = read_row(span, change, begin + warp() * WARP_LEN + at + lane());
            const u32 rank = counts[warp()][0][row.which] + __popc(row.peers & below());
            const u32 place = counts[warp()][1][row.which] + __popc(row.peers & row.changed & below());
            if ((row.changed >> lane() & 1) != 0) {
                change.ranks[place] = rank;
                put(change, place,
                           change.overwrites != 0 ? row.fresh
                                                  : static_cast<u32>(difference(row.base, row.fresh, change.width)));
            }
            // All lanes have read the counts before one of each class writes them.
            __syncwarp();
            if ((row.lanes >> lane() & 1) != 0 && (row.peers & below()) == 0) {
                counts[warp()][0][row.which] += __popc(row.peers);
                counts[warp()][1][row.which] += __popc(row.peers & row.changed);
            }
            __syncwarp();
        }
    }
}

}  // namespace delta
