// Sums over magnitudes, in the order of `src/compress/moments.rs`, to which the host fits thresholds; and the
// means of `sbc`:
//
//   measure    takes the sums of each chunk of a sample, of a tensor, of candidates or of kept elements
//   decide     stores the decision of the host: where candidates begin, or what is kept
//   choose     chooses the side to send, for searches with two sides, by its sum
//   pack       gathers the copy to the host
//
// The host computes the mean of logarithms. The device computes the product of all mantissas and the sum of
// all exponents for it.
#include "cut.cuh"
#include "element.cuh"

__device__ __forceinline__ long long exponent_of(double x) { return (__double_as_longlong(x) >> 52) - 1023; }
// The mantissa of a positive normal number, from 1 to 2.
__device__ __forceinline__ double mantissa_of(double x) {
    return __longlong_as_double((__double_as_longlong(x) & ((1ll << 52) - 1)) | 1023ll << 52);
}

__device__ __forceinline__ Moments both(const Moments &a, const Moments &b) {
    const double product = a.product * b.product;
    return {a.count + b.count,
            a.sum + b.sum,
            a.squares + b.squares,
            mantissa_of(product),
            a.exponent + b.exponent + exponent_of(product),
            b.max > a.max ? b.max : a.max,
            0};
}

// Adds the moments of the lane at distance `step`, for one half of the lanes and the other alike: a sum of
// two does not depend on their order.
__device__ __forceinline__ Moments with_lane(const Moments &m, u32 step) {
    return both(m, {__shfl_xor_sync(ALL_LANES, m.count, step), __shfl_xor_sync(ALL_LANES, m.sum, step),
                    __shfl_xor_sync(ALL_LANES, m.squares, step), __shfl_xor_sync(ALL_LANES, m.product, step),
                    __shfl_xor_sync(ALL_LANES, m.exponent, step), __shfl_xor_sync(ALL_LANES, m.max, step), 0});
}

// The sums of a tile while it is read. Sums and the product are complete in every lane of its warp. The
// count, the exponent and the maximum are of this lane only, because their order does not matter.
struct Reading {
    double sum = 0.0, squares = 0.0, product = 1.0;
    u32 count = 0;
    int exponent = 0;
    float max = 0.0f;
};

// Adds a run; each thread of a warp has four columns of it.
template <bool LOGS>
__device__ __forceinline__ void add_run(Reading &m, const float (&x)[ROWS][4], float at, float location) {
    double sums[4], squares[4], products[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        sums[j] = 0.0, squares[j] = 0.0, products[j] = 1.0;
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            const float a = float_of(bits_of(x[row][j]) & ~SIGN);
            // NaN is not counted, but reaches the sum.
            const double y = a < at ? 0.0 : static_cast<double>(a) - static_cast<double>(location);
            sums[j] += y;
            squares[j] += y * y;
            m.count += a >= at;
            m.max = a > m.max ? a : m.max;
            if (LOGS) {
                const double factor = a >= at ? static_cast<double>(a) : 1.0;
                // With its bias, which is subtracted below.
                m.exponent += __double2hiint(factor) >> 20;
                products[j] *= mantissa_of(factor);
            }
        }
    }
    double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double square = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    double product = (products[0] * products[1]) * (products[2] * products[3]);
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, step);
        square += __shfl_xor_sync(ALL_LANES, square, step);
        if (LOGS) {
            product *= __shfl_xor_sync(ALL_LANES, product, step);
        }
    }
    m.sum += sum;
    m.squares += square;
    if (LOGS) {
        // The exponents of the products are the same in all lanes, and count once.
        const double all = m.product * mantissa_of(product);
        m.product = mantissa_of(all);
        const int exponents = lane() == 0 ? static_cast<int>(exponent_of(product) + exponent_of(all)) : 0;
        m.exponent += exponents - 4 * static_cast<int>(ROWS) * 1023;
    }
}

// Reads four elements of each row of a run of a list, from `begin` on. Zeros beyond the end.
__device__ __forceinline__ void read_list(const u32 *bits, u64 len, u64 begin, bool full, float (&x)[ROWS][4]) {
    if (full && reinterpret_cast<u64>(bits) % 16 == 0) {
        float4 four[ROWS];
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            four[row] = *reinterpret_cast<const float4 *>(bits + begin + row * (RUN_LEN / ROWS));
        }
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            x[row][0] = four[row].x, x[row][1] = four[row].y, x[row][2] = four[row].z, x[row][3] = four[row].w;
        }
        return;
    }
#pragma unroll
    for (u32 row = 0; row < ROWS; row++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u64 i = begin + row * (RUN_LEN / ROWS) + j;
            x[row][j] = i < len ? float_of(bits[i]) : 0.0f;
        }
    }
}

// One row of blocks for each search, one block for each chunk, one warp for each tile, which reads a run at a
// time.
template <bool LOGS>
__device__ __forceinline__ void measure(const Select &s) {
    __shared__ Moments tiles[CHUNK_TILES];
    const u32 number = blockIdx.y;
    const Search &search = s.searches[number];
    const Directive directive = s.directives[number];
    const u32 actions = directive.actions & s.sum_actions;
    const u32 key = directive.key != 0 ? directive.key : s.states[number].least[0];
    const float at = float_of(key);
    const float location = directive.key != 0 ? directive.location : at;
    for (u32 side = 0; side < search.sides && actions != 0; side++) {
        u64 len = search.elements;
        const u32 *bits = nullptr;
        if ((actions & SUM_SAMPLE) != 0) {
            len = SAMPLE_LEN;
            bits = s.samples + static_cast<u64>(search.sample) * SAMPLE_LEN;
        } else if ((actions & SUM_TENSOR) == 0) {
            len = s.totals[2 * number + side];
            bits = ((actions & SUM_SIDES) != 0 ? s.out_bits : s.list) + s.bases[2 * number + side];
        }
        for (u32 chunk = blockIdx.x; chunk * CHUNK_LEN < len; chunk += gridDim.x) {
            for (u32 t = warp(); t < CHUNK_TILES; t += WARPS) {
                Reading m;
                const u64 first = chunk * CHUNK_LEN + static_cast<u64>(t) * TILE_LEN;
                const u32 tile = search.first_tile + static_cast<u32>(first / TILE_LEN);
                if (first >= len || (bits == nullptr && tile < s.first_tile)) {
                    if (lane() == 0) {
                        tiles[t] = {0, 0.0, 0.0, 1.0, 0, 0.0f, 0};
                    }
                    continue;
                }
                Piece piece = {};
                u64 begin = first, end = len;
                if (bits == nullptr) {
                    piece = s.pieces[piece_of_tile(s, tile)];
                    begin = static_cast<u64>(tile - piece.first_tile) * TILE_LEN;
                    end = piece.len;
                }
                for (u32 run = 0; run < TILE_LEN && begin + run < end; run += RUN_LEN) {
                    float x[ROWS][4];
                    const u64 mine = begin + run + 4 * lane();
                    if (bits == nullptr) {
                        read_rows<RUN_LEN / ROWS>(piece, mine, begin + run + RUN_LEN <= end, x);
                    } else {
                        read_list(bits, end, mine, begin + run + RUN_LEN <= end, x);
                    }
                    add_run<LOGS>(m, x, at, location);
                }
                const u32 count = warp_sum(m.count);
                long long exponent = m.exponent;
                for (u32 step = 16; step > 0; step /= 2) {
                    exponent += __shfl_xor_sync(ALL_LANES, exponent, step);
                    const float max = __shfl_xor_sync(ALL_LANES, m.max, step);
                    m.max = max > m.max ? max : m.max;
                }
                if (lane() == 0) {
                    tiles[t] = {count, m.sum, m.squares, m.product, exponent, m.max, 0};
                }
            }
            __syncthreads();
            if (warp() == 0) {
                Moments m = tiles[lane()];
                for (u32 step = 16; step > 0; step /= 2) {
                    m = with_lane(m, step);
                }
                if (lane() == 0) {
                    s.moments[search.chunks + side * ((search.k + CHUNK_LEN - 1) / CHUNK_LEN) + chunk] = m;
                }
            }
            __syncthreads();
        }
    }
}

// One row of blocks for each search. Reads each element once, in 16-byte loads, 512 consecutive bytes for
// each warp, and writes 48 bytes for each 262,144 elements. Each stage of a fit reads a tensor and its
// residual again, and does not store their sum.
extern "C" __global__ void __launch_bounds__(THREADS, 3) gcodec_measure(const Select s) { measure<false>(s); }

// The same with the products of mantissas, for an update in which some fit needs them.
extern "C" __global__ void __launch_bounds__(THREADS, 3) gcodec_measure_logs(const Select s) { measure<true>(s); }

// One block for each search. Reads a sample three times if candidates begin at one of its keys, else no
// elements.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_decide(const Select s) {
    __shared__ u32 counts[BINS];
    __shared__ u64 scratch[WARPS];
    __shared__ u64 answer[2];
    const Search &search = s.searches[blockIdx.x];
    State &state = s.states[blockIdx.x];
    const Directive directive = s.directives[blockIdx.x];
    u32 least = directive.key;
    if ((directive.actions & BEGIN_AT_RANK) != 0) {
        const u32 *bits = s.samples + static_cast<u64>(search.sample) * SAMPLE_LEN;
        least = largest_of_sample(bits, directive.rank, 1, 0, counts, scratch, answer);
    }
    if (threadIdx.x == 0 && (directive.actions & (BEGIN_AT_KEY | BEGIN_AT_RANK | KEEP_FROM_KEY)) != 0) {
        state.least[0] = least;
    }
    if (threadIdx.x == 0 && (directive.actions & KEEP_FROM_KEY) != 0) {
        state.cut[0] = least;
        state.ties[0] = NO_LIMIT;
        state.exact = 1;
    }
}

// One block for all searches. Reads the moments of each chunk of kept elements.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_choose(const Pack p) {
    __shared__ u64 scratch[WARPS];
    u64 places_before = 0, values_before = 0;
    for (u32 i = 0; i < p.n_searches; i += THREADS) {
        const u32 at = i + threadIdx.x;
        const bool here = at < p.n_searches;
        const u32 sides = here ? p.searches[at].sides : 0;
        double sums[2] = {0.0, 0.0};
        for (u32 side = 0; side < 2 && sides == 2; side++) {
            const u64 first = p.searches[at].chunks + side * ((p.searches[at].k + CHUNK_LEN - 1) / CHUNK_LEN);
            const u64 chunks = (p.totals[2 * at + side] + CHUNK_LEN - 1) / CHUNK_LEN;
            for (u64 chunk = 0; chunk < chunks; chunk++) {
                sums[side] += p.moments[first + chunk].sum;
            }
        }
        const u64 kept = here ? p.totals[2 * at + (sums[0] >= sums[1] ? 0 : 1)] : 0;
        u64 places, values;
        const u64 place = places_before + block_exclusive(kept, scratch, places);
        const u64 value = values_before + block_exclusive(sides == 2 ? 0 : kept, scratch, values);
        places_before += places;
        values_before += values;
        if (here) {
            p.choices[at] = {{sums[0], sums[1]}, place, value};
        }
    }
}

// One row of blocks for each search. Reads and writes each kept element once.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_pack(const Pack p) {
    const Choice choice = p.choices[blockIdx.y];
    const u32 side = side_of(choice);
    const bool values = p.searches[blockIdx.y].sides == 1;
    const u64 kept = p.totals[2 * blockIdx.y + side], first = p.bases[2 * blockIdx.y + side];
    const u64 step = static_cast<u64>(gridDim.x) * THREADS;
    for (u64 i = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x; i < kept; i += step) {
        p.places[choice.places + i] = p.out_places[first + i];
        if (values) {
            p.bits[choice.values + i] = p.out_bits[first + i];
        }
    }
}
