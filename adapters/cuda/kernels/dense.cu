// Codecs that send every element, like `natural`, the quantisers and `sign` of `src/compress/codecs`:
//
//   round      rounds to powers of two: biased exponents and signs, in the only pass over the tensors
//   ranges     finds the range of exponents of each block, and places its plane
//   measure    takes sums and maxima of tiles, for buckets that a block of threads cannot hold and for
//              tensors with one scale
//   scale      computes their scales
//   quantise   makes levels, integers and signs, bucket by bucket; buckets of at most 8192 elements are
//              measured here, and so read once
//   pack       writes codes into the bit planes of the wire, if `quantise` could not write them there
//
// Each is one launch for all tensors. Sums are taken in the order of `src/compress/sum.rs`, which does not
// depend on which block of threads does what.
#include "dense.cuh"
#include "element.cuh"
#include "group.cuh"
#include "philox.cuh"

namespace dense {

__device__ __forceinline__ double wide_of(float x) { return static_cast<double>(x); }
__device__ __forceinline__ float magnitude_of(float x) { return float_of(bits_of(x) & ~SIGN); }
// 2^e, for exponents of normal numbers.
__device__ __forceinline__ double power(int e) { return __longlong_as_double(static_cast<long long>(e + 1023) << 52); }

// Rounds to an element type.
__device__ __forceinline__ float rounded(u32 dtype, float x) { return dtype == F32 ? x : widen(dtype, narrow(dtype, x)); }

__device__ __forceinline__ float largest_of(u32 dtype) { return dtype == F32 ? float_of(INFINITE - 1) : max_finite(dtype); }

__device__ __forceinline__ u32 warp_least(u32 x) {
    for (u32 step = 16; step > 0; step /= 2) {
        const u32 other = __shfl_xor_sync(ALL_LANES, x, step);
        x = other < x ? other : x;
    }
    return x;
}

__device__ __forceinline__ u32 warp_most(u32 x) { return ~warp_least(~x); }

// Returns the sum over a warp by halves, to every lane.
__device__ __forceinline__ double warp_halves(double x) {
    for (u32 step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, step);
    }
    return x;
}

// Returns the wide exponent of the power of two that a subnormal number is rounded to.
__device__ __forceinline__ u32 round_subnormal(u32 magnitude, u32 word) {
    const u32 exponent = 31 - __clz(magnitude);
    const u32 mantissa = magnitude << (23 - exponent) & 0x7fffffu;
    return exponent + 1 + (word >> 9 < mantissa);
}

// Computes the least and the most over a block's threads, for all of them. The next call may use the same
// `scratch`.
__device__ __forceinline__ void block_range(u32 (&scratch)[2][WARPS], u32 &least, u32 &most) {
    least = warp_least(least);
    most = warp_most(most);
    __syncthreads();
    if (lane() == 0) {
        scratch[0][warp()] = least;
        scratch[1][warp()] = most;
    }
    __syncthreads();
    for (u32 w = 0; w < WARPS; w++) {
        least = scratch[0][w] < least ? scratch[0][w] : least;
        most = scratch[1][w] > most ? scratch[1][w] : most;
    }
}

// Reads each element once, in 4 or 2 bytes, and 4 bytes of residual; writes a byte and a bit, and 4 bytes of
// residual.
extern "C" __global__ void __launch_bounds__(THREADS, 3) gcodec_dense_round(const Work d) {
    __shared__ u32 scratch[2][WARPS];
    for (u32 tile = blockIdx.x; tile < d.n_tiles; tile += gridDim.x) {
        const Span &span = d.spans[last_at_most(d.n_spans, tile, [&](u32 s) { return d.spans[s].piece.first_tile; })];
        const Piece piece = span.piece;
        const u64 tensor = span.tensor, seed = d.blocks[piece.search].seed;
        const u64 begin = static_cast<u64>(tile - piece.first_tile) * TILE_LEN + 4 * threadIdx.x;
        // A span may begin at any element of a residual, so its address may be unaligned.
        const bool even = (reinterpret_cast<u64>(piece.residual) | reinterpret_cast<u64>(piece.after)) % 16 == 0;
        const bool full = even && begin - 4 * threadIdx.x + TILE_LEN <= piece.len;
        const u32 top = bits_of(largest_of(piece.dtype)) >> 23;
        float x[ROWS][4];
        read_rows(piece, begin, full, x);
        u32 least = ~0u, most = 0;
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            const u64 at = begin + row * ROW_LEN;
            u32 words[4];
            words_of(seed, tensor, span.first + at, words);
            u32 codes = 0, signs = 0;
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 bits = bits_of(x[row][j]), magnitude = bits & ~SIGN;
                // r < m if and only if m + (2^23 - 1 - r) carries.
                u32 code = (magnitude + (~words[j] >> 9)) >> 23;
                code = code < top ? code : top;
                u32 wide = code + 23;
                if (magnitude - 1 < (1u << 23) - 1) {
                    wide = round_subnormal(magnitude, words[j]);
                    code = wide > 23 ? wide - 23 : SUBNORMAL;
                }
                if (magnitude != 0) {
                    least = wide - 1 < least ? wide - 1 : least;
                    most = wide > most ? wide : most;
                    signs |= bits >> 31 << j;
                }
                // A bit above any exponent.
                most |= magnitude >= INFINITE ? SIGN : 0;
                codes |= code << 8 * j;
                if (piece.after != nullptr && code != SUBNORMAL) {
                    x[row][j] -= rounded(piece.dtype, float_of(code << 23 | (bits & SIGN)));
                }
            }
            // Eight threads have the signs of 32 elements.
            signs <<= 4 * (lane() % 8);
            signs |= __shfl_xor_sync(ALL_LANES, signs, 1);
            signs |= __shfl_xor_sync(ALL_LANES, signs, 2);
            signs |= __shfl_xor_sync(ALL_LANES, signs, 4);
            if (at < piece.len) {
                // Buffers end with whole words.
                *reinterpret_cast<u32 *>(span.codes + at) = codes;
                if (lane() % 8 == 0) {
                    span.signs[at / 32] = signs;
                }
            }
        }
        if (piece.after != nullptr) {
            store_rows(piece, begin, full, x);
        }
        block_range(scratch, least, most);
        if (threadIdx.x == 0) {
            d.seen[2 * static_cast<u64>(tile)] = least;
            d.seen[2 * static_cast<u64>(tile) + 1] = most;
        }
    }
}

// One block of threads for each natural block. Reads 8 bytes for each 8192 elements.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_dense_ranges(const Work d) {
    __shared__ u32 range[2][WARPS];
    __shared__ u64 scratch[WARPS];
    __shared__ u32 last;
    const Quantized &block = d.blocks[blockIdx.x];
    u32 least = ~0u, most = 0, bad = 0;
    for (u32 t = threadIdx.x; t < block.tiles; t += THREADS) {
        const u64 at = 2 * (static_cast<u64>(block.first_tile) + t);
        const u32 here = d.seen[at + 1];
        least = d.seen[at] < least ? d.seen[at] : least;
        most = (here & ~SIGN) > most ? here & ~SIGN : most;
        bad |= here & SIGN;
    }
    bad = __syncthreads_or(bad != 0);
    block_range(range, least, most);
    if (threadIdx.x == 0) {
        Made &made = d.made[blockIdx.x];
        u32 width = 0;
        if (most != 0) {
            const int smallest = static_cast<int>(least + 1) - WIDE, largest = static_cast<int>(most) - WIDE;
            const int first = smallest > largest - 254 ? smallest : largest - 254;
            made.min_exponent = first;
            made.below = smallest < first;
            width = 32 - __clz(static_cast<u32>(largest - first + 1));
        }
        // The range may be too wide because of elements that are not finite; the host then reports these.
        made.width = width <= 8 ? width : 8;
        made.bad = bad != 0;
        // Planes begin at multiples of 16 bytes.
        d.bytes[blockIdx.x] = (block.len * made.width + 127) / 128 * 16;
        __threadfence();
        last = atomicAdd(d.ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last == 0) {
        return;
    }
    __threadfence();
    u64 place = d.base;
    for (u32 i = 0; i < d.n_natural; i += THREADS) {
        const u32 at = i + threadIdx.x;
        u64 total;
        const u64 mine = at < d.n_natural ? atomicAdd(&d.bytes[at], 0ull) : 0;
        const u64 before = place + block_exclusive(mine, scratch, total);
        place += total;
        if (at < d.n_natural) {
            d.made[at].plane = before;
        }
    }
}

// The sum of magnitudes or squares of a run, if one is needed, and the bits of its largest magnitude.
struct Run {
    double sum;
    u32 largest;
};

// Returns the summands: none (0), magnitudes (1) or squares (2).
__device__ __forceinline__ u32 terms(const Quantized &block) {
    switch (block.kind) {
        case INT8: return 0;
        case SIGNS: return 1;
        default: return block.norm == L2 || bits_of(block.clip) != INFINITE ? 2 : block.norm == L1 ? 1 : 0;
    }
}

// Reads a warp's elements, `n` from `begin` on, zeros beyond. The four of each thread and row go to `mine[row
// * THREADS]`, in shared memory that no other thread reads: loops over it need not be unrolled, which saves
// registers. `again`: reads the sums that `gcodec_dense_measure` stored.
__device__ __forceinline__ void read_run(const Piece &piece, u64 begin, u32 n, bool again, float4 *mine) {
    const u32 first = 4 * lane();
    const bool floats = again || piece.dtype == F32;
    const u64 address = again ? reinterpret_cast<u64>(piece.after + begin)
                              : reinterpret_cast<u64>(piece.data) + (floats ? 4 : 2) * begin;
    const bool added = !again && piece.residual != nullptr;
    const bool even = n % 4 == 0 && address % (floats ? 16 : 8) == 0 &&
                      (!added || reinterpret_cast<u64>(piece.residual + begin) % 16 == 0);
    if (!even) {
#pragma unroll 1
        for (u32 i = 0; i < RUN_LEN; i += RUN_ROW_LEN) {
            float x[4];
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u64 at = begin + i + first + j;
                x[j] = i + first + j >= n ? 0.0f : again ? piece.after[at] : read(piece, at);
            }
            mine[i / RUN_ROW_LEN * THREADS] = make_float4(x[0], x[1], x[2], x[3]);
        }
        return;
    }
    // All loads of a kind come first, so that their latencies overlap.
    const u32 rows = first < n ? (n - first + RUN_ROW_LEN - 1) / RUN_ROW_LEN : 0;
    if (floats) {
        const float4 *from = reinterpret_cast<const float4 *>(address) + lane();
        float4 four[RUN_ROWS];
#pragma unroll
        for (u32 row = 0; row < RUN_ROWS; row++) {
            four[row] = row < rows ? from[row * 32] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (u32 row = 0; row < RUN_ROWS; row++) {
            mine[row * THREADS] = four[row];
        }
    } else {
        const uint2 *from = reinterpret_cast<const uint2 *>(address) + lane();
        uint2 four[RUN_ROWS];
#pragma unroll
        for (u32 row = 0; row < RUN_ROWS; row++) {
            four[row].x = 0, four[row].y = 0;
            if (row < rows) {
                four[row] = from[row * 32];
            }
        }
#pragma unroll
        for (u32 row = 0; row < RUN_ROWS; row++) {
            mine[row * THREADS] = make_float4(
                widen(piece.dtype, static_cast<u16>(four[row].x)), widen(piece.dtype, static_cast<u16>(four[row].x >> 16)),
                widen(piece.dtype, static_cast<u16>(four[row].y)), widen(piece.dtype, static_cast<u16>(four[row].y >> 16)));
        }
    }
    if (again) {
        return;
    }
#pragma unroll 4
    for (u32 row = 0; row < RUN_ROWS; row++) {
        float4 x = mine[row * THREADS];
        if (added && row < rows) {
            const float4 more = reinterpret_cast<const float4 *>(piece.residual + begin)[row * 32 + lane()];
            x.x += more.x, x.y += more.y, x.z += more.z, x.w += more.w;
        }
        mine[row * THREADS] = make_float4(limited(piece, x.x), limited(piece, x.y), limited(piece, x.z), limited(piece, x.w));
    }
}

// Returns the result to all lanes.
__device__ __forceinline__ Run measure_run(u32 terms, const float4 *mine) {
    u32 largest = 0;
    double columns[4] = {0.0, 0.0, 0.0, 0.0};
#pragma unroll 2
    for (u32 row = 0; row < RUN_ROWS; row++) {
        const float4 four = mine[row * THREADS];
        const float x[4] = {magnitude_of(four.x), magnitude_of(four.y), magnitude_of(four.z), magnitude_of(four.w)};
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            largest = bits_of(x[j]) > largest ? bits_of(x[j]) : largest;
        }
        if (terms != 0) {
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const double wide = wide_of(x[j]);
                columns[j] += terms == 2 ? wide * wide : wide;
            }
        }
    }
    Run run;
    run.largest = warp_most(largest);
    run.sum = terms != 0 ? warp_halves((columns[0] + columns[1]) + (columns[2] + columns[3])) : 0.0;
    run.sum = run.largest >= INFINITE ? 0.0 : run.sum;
    return run;
}

// Returns the scale of `n` elements.
__device__ __forceinline__ float scale_of(const Quantized &block, u32 dtype, u32 largest, double sum, u64 n) {
    if (largest >= INFINITE) {
        return 0.0f;
    }
    const float most = float_of(largest);
    if (block.kind == SIGNS) {
        return static_cast<float>(sum / static_cast<double>(n));
    }
    if (block.kind == INT8) {
        if (largest == 0) {
            return 0.0f;
        }
        // Not zero, and rounded down if the largest code would decode to infinity.
        const float near = most / 127.0f;
        const float scale = bits_of(near) == 0 ? float_of(1) : near;
        const bool beyond = bits_of(static_cast<float>(wide_of(scale) * 127.0)) == INFINITE;
        return beyond ? float_of(bits_of(scale) - 1) : scale;
    }
    float scale = most;
    if (block.norm == L1 || block.norm == L2) {
        // Rounded up, so that no element exceeds the scale.
        const double exact = block.norm == L2 ? __dsqrt_rn(sum) : sum;
        scale = static_cast<float>(exact);
        scale = wide_of(scale) < exact ? float_of(bits_of(scale) + 1) : scale;
    }
    if (bits_of(block.clip) != INFINITE) {
        const double limit = wide_of(block.clip) * __dsqrt_rn(sum / static_cast<double>(n));
        const double end = wide_of(float_of(INFINITE - 1));
        const float at = static_cast<float>(limit < end ? limit : end);
        scale = at < scale ? at : scale;
    }
    const float end = largest_of(dtype);
    return end < scale ? end : scale;
}

// Stores the first `some` of four floats.
__device__ __forceinline__ void store_four(float *to, u32 some, float4 four) {
    if (some >= 4 && reinterpret_cast<u64>(to) % 16 == 0) {
        *reinterpret_cast<float4 *>(to) = four;
        return;
    }
    const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        if (j < some) {
            to[j] = x[j];
        }
    }
}

// One block of threads for each tile. Reads each element and its residual once; with error feedback it stores
// their sum.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_dense_measure(const Work d) {
    __shared__ float4 values[RUN_ROWS][THREADS];
    __shared__ double sums[WARPS];
    __shared__ u32 largest[WARPS];
    for (u32 tile = blockIdx.x; tile < d.n_measure; tile += gridDim.x) {
        const Measured &m = d.measured[last_at_most(d.n_measured, tile, [&](u32 i) { return d.measured[i].first_team; })];
        const Piece piece = m.piece;
        const Quantized &block = d.blocks[m.block];
        const u64 which = tile - m.first_team, bucket = which / m.tiles;
        const u64 of_bucket = which % m.tiles * TILE_LEN + warp() * RUN_LEN, begin = bucket * m.bucket + of_bucket;
        const u64 rest = piece.len - bucket * m.bucket, end = rest < m.bucket ? rest : m.bucket;
        const u32 n = of_bucket >= end ? 0 : end - of_bucket < RUN_LEN ? static_cast<u32>(end - of_bucket) : RUN_LEN;
        float4 *mine = &values[0][threadIdx.x];
        read_run(piece, begin, n, false, mine);
        const Run run = measure_run(terms(block), mine);
        if (piece.after != nullptr) {
#pragma unroll 2
            for (u32 i = 4 * lane(); i < n; i += RUN_ROW_LEN) {
                store_four(piece.after + begin + i, n - i, mine[i / RUN_ROW_LEN * THREADS]);
            }
        }
        if (lane() == 0) {
            sums[warp()] = run.sum;
            largest[warp()] = run.largest;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            double sum = 0.0;
            u32 most = 0;
            for (u32 w = 0; w < WARPS; w++) {
                sum += sums[w];
                most = largest[w] > most ? largest[w] : most;
            }
            m.sums[which] = sum;
            m.largest[which] = most;
        }
        __syncthreads();
    }
}

// One block of threads for each measured bucket. Reads 12 bytes for each 8192 elements.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_dense_scale(const Work d) {
    __shared__ double chunks[WARPS];
    __shared__ u32 range[2][WARPS];
    const Measured &m = d.measured[last_at_most(d.n_measured, blockIdx.x, [&](u32 i) { return d.measured[i].first_bucket; })];
    const u64 bucket = blockIdx.x - m.first_bucket, first = bucket * m.tiles;
    double sum = 0.0;
    u32 most = 0, least = ~0u;
    // One warp for each chunk, one lane for each tile of it.
    for (u64 tile = 0; tile < m.tiles; tile += WARPS * CHUNK_TILES) {
        const u64 mine = tile + threadIdx.x;
        const double chunk = warp_halves(mine < m.tiles ? m.sums[first + mine] : 0.0);
        const u32 here = mine < m.tiles ? m.largest[first + mine] : 0;
        most = here > most ? here : most;
        if (lane() == 0) {
            chunks[warp()] = chunk;
        }
        __syncthreads();
        for (u32 w = 0; w < WARPS; w++) {
            sum += chunks[w];
        }
        __syncthreads();
    }
    block_range(range, least, most);
    if (threadIdx.x == 0) {
        const u64 rest = m.piece.len - bucket * m.bucket;
        m.scales[bucket] = scale_of(d.blocks[m.block], m.piece.dtype, most, sum, rest < m.bucket ? rest : m.bucket);
        if (most >= INFINITE) {
            d.made[m.block].bad = 1;
        }
    }
}

// Returns the code of a level with its sign; `decoded` becomes what a receiver decodes.
__device__ __forceinline__ u32 uniform_code(float x, float scale, u32 max_level, u32 word, float &decoded) {
    const double norm = wide_of(scale), s = static_cast<double>(max_level);
    int level = 0;
    if (scale != 0.0f) {
        double y = wide_of(magnitude_of(x)) / norm * s;
        y = y < s ? y : s;
        level = static_cast<int>(y);
        level += static_cast<double>(word) < (y - static_cast<double>(level)) * 0x1p32;
    }
    const bool negative = (bits_of(x) & SIGN) != 0 && level != 0;
    decoded = static_cast<float>(norm * static_cast<double>(negative ? -level : level) / s);
    return 2 * static_cast<u32>(level) - negative;
}

__device__ __forceinline__ u32 dither_code(float x, float scale, u32 max_level, u32 word, float &decoded) {
    decoded = 0.0f;
    if (scale == 0.0f) {
        return 0;
    }
    const double norm = wide_of(scale);
    const int s = static_cast<int>(max_level);
    double y = wide_of(magnitude_of(x)) / norm;
    y = y < 1.0 ? y : 1.0;
    // Products with powers of two are exact.
    int level = 0;
    double up = y * power(s - 1);
    if (y >= power(1 - s)) {
        const int exponent = static_cast<int>(__double_as_longlong(y) >> 52) - 1023;
        level = exponent + s;
        up = y * power(-exponent) - 1.0;
    }
    level += static_cast<double>(word) < up * 0x1p32;
    if (level == 0) {
        return 0;
    }
    const bool negative = (bits_of(x) & SIGN) != 0;
    const float magnitude = static_cast<float>(norm * power(level - s));
    decoded = negative ? -magnitude : magnitude;
    return 2 * static_cast<u32>(level) - negative;
}

__device__ __forceinline__ u32 int8_code(float x, float scale, float &decoded) {
    // The quotient is far below 2^22, so the sum rounds it to an integer, ties to even, in its low bits.
    const float rounder = 12582912.0f;
    int code = static_cast<int>(bits_of(x / (scale == 0.0f ? 1.0f : scale) + rounder) - bits_of(rounder));
    code = code < -127 ? -127 : code > 127 ? 127 : code;
    decoded = static_cast<float>(wide_of(scale) * static_cast<double>(code));
    return static_cast<u32>(code + 128);
}

// A team is a block of threads with 8 runs, of one bucket or of several. Reads each element once, from its
// tensor and residual, or from their sum if it was measured before. Writes its code, in the width of the
// plane or in one or two bytes, and 4 bytes of its residual.
extern "C" __global__ void __launch_bounds__(THREADS, 3) gcodec_dense_quantise(const Work d) {
    __shared__ float4 values[RUN_ROWS][THREADS];
    __shared__ double sums[WARPS];
    __shared__ u32 largest[WARPS];
    for (u32 team = blockIdx.x; team < d.n_teams; team += gridDim.x) {
        const u32 number = last_at_most(d.n_blocks, team, [&](u32 b) { return d.blocks[b].first_team; });
        const Quantized &block = d.blocks[number];
        const Span &span = d.spans[block.first_span];
        const Piece piece = span.piece;
        const u64 of_block = team - block.first_team;
        // A team has as many whole buckets as it has room for, if these have few runs.
        const bool known = block.known != 0;
        const u32 few = known ? 1 : static_cast<u32>(block.runs), each = WARPS / few;
        const u64 place = of_block * WARPS + warp();
        const u64 bucket = known ? place / block.runs : of_block * each + warp() / few;
        const u64 of_bucket = (known ? place % block.runs : warp() % few) * RUN_LEN;
        const u64 before = bucket * block.bucket, begin = before + of_bucket;
        const bool here = (known || warp() < each * few) && before < block.len;
        const u64 rest = here ? block.len - before : 0, end = rest < block.bucket ? rest : block.bucket;
        const u32 n = of_bucket >= end ? 0 : end - of_bucket < RUN_LEN ? static_cast<u32>(end - of_bucket) : RUN_LEN;
        float scale = 0.0f;
        float4 *mine = &values[0][threadIdx.x];
        read_run(piece, begin, n, known && piece.after != nullptr, mine);
        if (known) {
            scale = here ? block.scales[bucket] : 0.0f;
        } else {
            const Run run = measure_run(terms(block), mine);
            double sum = run.sum;
            u32 most = run.largest;
            if (few > 1) {
                if (lane() == 0) {
                    sums[warp()] = run.sum;
                    largest[warp()] = run.largest;
                }
                __syncthreads();
                sum = 0.0;
                const u32 leader = warp() - warp() % few;
                for (u32 w = leader; w < leader + few && w < WARPS; w++) {
                    sum += sums[w];
                    most = largest[w] > most ? largest[w] : most;
                }
                __syncthreads();
            }
            scale = scale_of(block, piece.dtype, most, sum, end);
            if (lane() == 0 && of_bucket == 0 && n != 0) {
                block.scales[bucket] = scale;
                if (most >= INFINITE) {
                    d.made[number].bad = 1;
                }
            }
        }
        const u32 kind = block.kind, max_level = block.max_level, step = block.step;
        const u64 seed = block.seed, tensor = span.tensor, first = span.first + begin;
#pragma unroll 1
        for (u32 row = 0; row * RUN_ROW_LEN < n; row++) {
            const u32 at = row * RUN_ROW_LEN + 4 * lane();
            float *x = reinterpret_cast<float *>(&mine[row * THREADS]);
            u32 words[4] = {0, 0, 0, 0};
            if (kind == UNIFORM || kind == DITHER) {
                words_of(seed, tensor, first + at, words);
            }
            // Unrolled, this takes too many registers.
            u64 codes = 0;
#pragma unroll 1
            for (u32 j = 0; j < 4; j++) {
                const u32 word = j < 2 ? j == 0 ? words[0] : words[1] : j == 2 ? words[2] : words[3];
                float decoded;
                u32 code;
                if (kind == UNIFORM) {
                    code = uniform_code(x[j], scale, max_level, word, decoded);
                } else if (kind == DITHER) {
                    code = dither_code(x[j], scale, max_level, word, decoded);
                } else if (kind == INT8) {
                    code = int8_code(x[j], scale, decoded);
                } else {
                    code = bits_of(x[j]) >> 31;
                    decoded = code != 0 ? -scale : scale;
                }
                codes |= static_cast<u64>(code) << step * j;
                x[j] -= rounded(piece.dtype, decoded);
            }
            // Beyond the end elements are zero, and so are codes of few bits.
            const u32 some = at >= n ? 0 : n - at < 4 ? n - at : 4;
            if (step < 8) {
                // The threads that share one word of the plane.
                const u32 few_lanes = 8 / step;
                u32 word = static_cast<u32>(codes) << 4 * step * (lane() % few_lanes);
                for (u32 by = 1; by < few_lanes; by *= 2) {
                    word |= __shfl_xor_sync(ALL_LANES, word, by);
                }
                if (some != 0 && lane() % few_lanes == 0) {
                    reinterpret_cast<u32 *>(span.codes)[(begin + at) * step / 32] = word;
                }
            } else {
                u8 *to = span.codes + (begin + at) * step / 8;
                if (some == 4 && reinterpret_cast<u64>(to) % (step / 2) == 0) {
                    if (step == 16) {
                        *reinterpret_cast<u64 *>(to) = codes;
                    } else {
                        *reinterpret_cast<u32 *>(to) = static_cast<u32>(codes);
                    }
                } else {
                    for (u32 byte = 0; byte < some * step / 8; byte++) {
                        to[byte] = static_cast<u8>(codes >> 8 * byte);
                    }
                }
            }
            if (piece.after != nullptr && some != 0) {
                store_four(piece.after + begin + at, some, mine[row * THREADS]);
            }
        }
    }
}

// Returns the code of an element whose power is below 2^-126, and stores its residual.
__device__ __forceinline__ u32 code_of_subnormal(const Span &span, u64 seed, u64 i, int first) {
    const Piece &piece = span.piece;
    const float x = read_again(piece, i);
    const u64 number = span.first + i;
    const u32 magnitude = bits_of(x) & ~SIGN;
    const int exponent = static_cast<int>(round_subnormal(magnitude, word_of(seed, span.tensor, number))) - WIDE;
    u32 code;
    if (exponent >= first) {
        code = static_cast<u32>(exponent - first + 1);
    } else {
        // Rounds the power, without bias, to zero or to the least power that has a code.
        const u32 by = static_cast<u32>(first - exponent);
        code = word_of(seed, span.tensor | 1ull << 63, number) < 1ull << 32 >> by;
    }
    if (piece.after != nullptr) {
        const int of_code = first + static_cast<int>(code) - 1;
        const u32 bits = code == 0 ? 0 : of_code < -126 ? 1u << (of_code + 149) : static_cast<u32>(of_code + 127) << 23;
        piece.after[i] = x - rounded(piece.dtype, float_of(bits | (bits_of(x) & SIGN)));
    }
    return code;
}

__device__ __forceinline__ u32 span_at(const Work &d, const Quantized &block, u64 i) {
    return block.first_span + last_at_most(block.spans, i, [&](u32 s) { return d.spans[block.first_span + s].piece.start; });
}

// Reads one or two bytes for each element, and writes the bits of its code. Signs are read and written again
// if small tensors share a block, or if powers became zero.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_dense_pack(const Work d) {
    __shared__ u16 codes[TILE_LEN];
    for (u32 tile = blockIdx.x; tile < d.n_packs; tile += gridDim.x) {
        const u32 number = last_at_most(d.n_blocks, tile, [&](u32 b) { return d.blocks[b].first_pack; });
        const Quantized &block = d.blocks[number];
        const u32 of_block = tile - block.first_pack;
        const u64 begin = static_cast<u64>(of_block) * TILE_LEN, seed = block.seed;
        const u32 n = block.len - begin < TILE_LEN ? static_cast<u32>(block.len - begin) : TILE_LEN;
        const bool natural = block.kind == NATURAL, one = block.spans == 1;
        const int least = natural ? d.made[number].min_exponent : 0;
        const u32 width = natural ? d.made[number].width : block.width;
        for (u32 i = 4 * threadIdx.x; i < TILE_LEN; i += 4 * THREADS) {
            const Span *span = &d.spans[block.first_span];
            u32 c[4] = {0, 0, 0, 0}, rare = 0;
            if (!one) {
                for (u32 j = 0; j < 4 && i + j < n; j++) {
                    span = &d.spans[span_at(d, block, begin + i + j)];
                    const u32 code = span->codes[begin + i + j - span->piece.start];
                    c[0] = j == 0 ? code : c[0], c[1] = j == 1 ? code : c[1];
                    c[2] = j == 2 ? code : c[2], c[3] = j == 3 ? code : c[3];
                }
            } else if (i < n && width > 8) {
                const uint2 four = *reinterpret_cast<const uint2 *>(span->codes + 2 * (begin + i));
                c[0] = four.x & 0xffff, c[1] = four.x >> 16, c[2] = four.y & 0xffff, c[3] = four.y >> 16;
            } else if (i < n) {
                const u32 four = *reinterpret_cast<const u32 *>(span->codes + begin + i);
                c[0] = four & 255, c[1] = four >> 8 & 255, c[2] = four >> 16 & 255, c[3] = four >> 24;
            }
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                // Memory beyond the end is not initialised.
                c[j] = i + j < n ? c[j] : 0;
                rare |= natural && c[j] == SUBNORMAL ? 1u << j : 0;
                codes[i + j] = static_cast<u16>(natural && c[j] != 0 ? c[j] - static_cast<u32>(126 + least) : c[j]);
            }
            for (; rare != 0; rare &= rare - 1) {
                const u32 at = i + 31 - __clz(rare & -rare);
                span = &d.spans[span_at(d, block, begin + at)];
                codes[at] = static_cast<u16>(code_of_subnormal(*span, seed, begin + at - span->piece.start, least));
            }
        }
        __syncthreads();
        u32 *plane = natural ? reinterpret_cast<u32 *>(d.payload + d.made[number].plane) : block.plane;
        plane += static_cast<u64>(of_block) * (TILE_LEN / 32) * width;
        const u32 words = (n * width + 31) / 32;
        for (u32 k = threadIdx.x; k < words; k += THREADS) {
            u32 field = 32 * k / width, filled = width - (32 * k - field * width);
            u64 word = codes[field] >> (width - filled);
            while (filled < 32 && ++field < TILE_LEN) {
                word |= static_cast<u64>(codes[field]) << filled;
                filled += width;
            }
            plane[k] = static_cast<u32>(word);
        }
        if (natural && (!one || d.made[number].below != 0)) {
            u32 *signs = block.plane + static_cast<u64>(of_block) * (TILE_LEN / 32);
            for (u32 k = threadIdx.x; 32 * k < n; k += THREADS) {
                u32 word = one ? signs[k] : 0;
                for (u32 j = 0; j < 32 && 32 * k + j < n; j++) {
                    const u64 i = begin + 32 * k + j;
                    if (!one) {
                        const Span &span = d.spans[span_at(d, block, i)];
                        const u64 at = i - span.piece.start;
                        word |= (span.signs[at / 32] >> at % 32 & 1) << j;
                    }
                    word &= ~(static_cast<u32>(codes[32 * k + j] == 0) << j);
                }
                signs[k] = word;
            }
        }
        __syncthreads();
    }
}

}  // namespace dense
