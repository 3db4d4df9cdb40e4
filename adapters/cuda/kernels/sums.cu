// Sum digests of tensors (spec, section 6.1): the sum over all units of the product of the keys of a unit's
// indices and the unit plus 2^16, modulo 2^31 - 1, in four lanes.
//
// A tensor is rows of columns. A block of threads takes some rows of a range of columns. Each thread keeps
// the sums of four columns, in which every unit is multiplied by the key of its row only; the keys of the
// columns follow once, after the last row. That is one multiplication a unit and lane, and no reduction in
// the loop.
#include "group.cuh"

namespace sums {

constexpr u32 LANES = 4;
constexpr u32 P = 0x7fffffff;
constexpr u32 BIAS = 1 << 16;
// Indices have a factor for their low 16 bits, and one for the others.
constexpr u32 LEVEL_BITS = 16;
// Factors that an axis contributes.
constexpr u32 LOW = 1, HIGH = 2;
// Columns of a thread, which it reads together.
constexpr u32 COLUMNS = 4;
// Rows that a thread reads before it adds them, so that two reads are under way.
constexpr u32 BATCH = 2;
// Rows whose keys are in shared memory at a time.
constexpr u32 STAGE = 1024;

// `adapters/cuda/src/abi.rs` declares the same structures.

// An axis of a box. Index i of the box is index `first` + i * `step` of the axis `number` of the tensor; the
// last axis has number 0 and is counted in units.
struct Axis {
    u64 len;
    // Bytes.
    long long stride;
    u64 first;
    u32 step;
    u32 number;
    u32 factors;
    u32 reserved;
};

// A box of units of one tensor.
struct Summed {
    const u8 *data;
    u64 rows;
    // Bytes from a column to the next.
    long long stride;
    // Those of the columns first; of each kind, those with the smallest stride first.
    const Axis *axes;
    // [LANES]: the sum of all boxes of the tensor.
    u64 *out;
    u32 columns;
    u32 n_column_axes;
    u32 n_axes;
    // Bytes of a unit: 1 or 2.
    u32 width;
    // Threads that share a row: a power of two.
    u32 threads;
    // Rows of a block of threads.
    u32 chunk;
    // Ranges of columns.
    u32 tiles;
    u32 first_work;
    // Whether COLUMNS units can be read as one word.
    u32 together;
    u32 reserved;
};

struct Sums {
    const Summed *summed;
    u32 n_summed;
    // Blocks of threads that all boxes take.
    u32 n_work;
};

static_assert(sizeof(Axis) == 40 && sizeof(Summed) == 80 && sizeof(Sums) == 16, "as in abi.rs");

// Returns a number modulo P.
__device__ __forceinline__ u32 fold(u64 x) {
    x = (x & P) + (x >> 31);
    x = (x & P) + (x >> 31);
    return static_cast<u32>(x >= P ? x - P : x);
}

__device__ __forceinline__ u32 multiply(u32 a, u32 b) { return fold(static_cast<u64>(a) * b); }

// Returns a factor of a key: 1 to P - 1, by SplitMix64.
__device__ __forceinline__ u32 factor(u32 stream, u64 number) {
    u64 z = ((static_cast<u64>(stream) << 56 | number) + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return 1 + static_cast<u32>((z >> 1) % (P - 1));
}

// Multiplies keys by those of an index on an axis.
__device__ __forceinline__ void multiply_keys(u32 (&keys)[LANES], const Axis &axis, u64 i) {
    const u64 index = axis.first + i * axis.step;
#pragma unroll
    for (u32 lane = 0; lane < LANES; lane++) {
        const u32 stream = 2 * axis.number * LANES + lane;
        if (axis.factors & LOW) {
            keys[lane] = multiply(keys[lane], factor(stream, index % (1 << LEVEL_BITS)));
        }
        if (axis.factors & HIGH) {
            keys[lane] = multiply(keys[lane], factor(stream + LANES, index >> LEVEL_BITS));
        }
    }
}

// Returns the keys of a row or column, and the bytes before it.
__device__ __forceinline__ long long find(const Axis *axes, u32 n, u64 number, u32 (&keys)[LANES]) {
    long long offset = 0;
    for (u32 lane = 0; lane < LANES; lane++) {
        keys[lane] = 1;
    }
    for (u32 a = 0; a < n; a++) {
        const Axis axis = axes[a];
        const u64 rest = number / axis.len, i = number - rest * axis.len;
        multiply_keys(keys, axis, i);
        offset += static_cast<long long>(i) * axis.stride;
        number = rest;
    }
    return offset;
}

__device__ __forceinline__ u64 widened(u32 bytes, u32 i) {
    return static_cast<u64>(static_cast<u16>(static_cast<signed char>(bytes >> 8 * i))) << 16 * i;
}

// Reads `n` units, 16 bits each; zeros in place of the others.
__device__ __forceinline__ u64 read(const Summed &t, const u8 *at, u32 n) {
    if (t.together) {
        if (t.width == 2) {
            const uint2 words = *reinterpret_cast<const uint2 *>(at);
            return static_cast<u64>(words.y) << 32 | words.x;
        }
        const u32 bytes = *reinterpret_cast<const u32 *>(at);
        return widened(bytes, 0) | widened(bytes, 1) | widened(bytes, 2) | widened(bytes, 3);
    }
    u64 units = 0;
    for (u32 i = 0; i < n; i++, at += t.stride) {
        units |= t.width == 2 ? static_cast<u64>(*reinterpret_cast<const u16 *>(at)) << 16 * i : widened(*at, 0) << 16 * i;
    }
    return units;
}

// Adds the units of four columns, times the keys of their row. At most 2^15 rows: products are below 2^48.
__device__ __forceinline__ void add(u64 (&sums)[COLUMNS][LANES], u64 units, const uint4 &keys) {
#pragma unroll
    for (u32 i = 0; i < COLUMNS; i++) {
        const u32 unit = static_cast<u32>(static_cast<int>(static_cast<short>(units >> 16 * i)) + static_cast<int>(BIAS));
        sums[i][0] += static_cast<u64>(unit) * keys.x;
        sums[i][1] += static_cast<u64>(unit) * keys.y;
        sums[i][2] += static_cast<u64>(unit) * keys.z;
        sums[i][3] += static_cast<u64>(unit) * keys.w;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) gcodec_sums(const Sums s) {
    __shared__ uint4 row_keys[STAGE];
    __shared__ const u8 *row_data[STAGE];
    for (u32 work = blockIdx.x; work < s.n_work; work += gridDim.x) {
        const Summed &t = s.summed[last_at_most(s.n_summed, work, [&](u32 i) { return s.summed[i].first_work; })];
        const u32 tile = (work - t.first_work) % t.tiles;
        const u64 first = static_cast<u64>((work - t.first_work) / t.tiles) * t.chunk;
        const u32 rows = t.rows - first < t.chunk ? static_cast<u32>(t.rows - first) : t.chunk;
        const u32 beside = THREADS / t.threads, own = threadIdx.x / t.threads;
        const u32 column = COLUMNS * (tile * t.threads + threadIdx.x % t.threads);
        const u32 columns = column >= t.columns ? 0 : t.columns - column < COLUMNS ? t.columns - column : COLUMNS;
        u64 sums[COLUMNS][LANES] = {};
        for (u32 stage = 0; stage < rows; stage += STAGE) {
            const u32 n = rows - stage < STAGE ? rows - stage : STAGE;
            __syncthreads();
            for (u32 row = threadIdx.x; row < n; row += THREADS) {
                u32 keys[LANES];
                row_data[row] = t.data + find(t.axes + t.n_column_axes, t.n_axes - t.n_column_axes, first + stage + row, keys);
                row_keys[row] = {keys[0], keys[1], keys[2], keys[3]};
            }
            __syncthreads();
            if (columns == 0) {
                continue;
            }
            for (u32 row = own; row < n; row += BATCH * beside) {
                u64 units[BATCH];
#pragma unroll
                for (u32 b = 0; b < BATCH; b++) {
                    const u32 other = row + b * beside;
                    units[b] = other < n ? read(t, row_data[other] + column * t.stride, columns) : 0;
                }
#pragma unroll
                for (u32 b = 0; b < BATCH; b++) {
                    if (row + b * beside < n) {
                        add(sums, units[b], row_keys[row + b * beside]);
                    }
                }
            }
        }
        u64 total[LANES] = {};
        for (u32 i = 0; i < columns; i++) {
            u32 keys[LANES];
            find(t.axes, t.n_column_axes, column + i, keys);
#pragma unroll
            for (u32 lane = 0; lane < LANES; lane++) {
                // `i` picks registers only if it is known.
                u64 sum = 0;
#pragma unroll
                for (u32 c = 0; c < COLUMNS; c++) {
                    sum = c == i ? sums[c][lane] : sum;
                }
                total[lane] += multiply(fold(sum), keys[lane]);
            }
        }
        // Below 2^33 for a thread, 2^38 for a warp. A tensor has less than 2^31 works of 8 warps, and each
        // adds a number below P, so that `out` does not overflow.
#pragma unroll
        for (u32 lane_of_sum = 0; lane_of_sum < LANES; lane_of_sum++) {
            u64 sum = total[lane_of_sum];
            for (u32 step = 16; step > 0; step /= 2) {
                sum += __shfl_xor_sync(ALL_LANES, sum, step);
            }
            if (lane() == 0) {
                atomicAdd(&t.out[lane_of_sum], static_cast<u64>(fold(sum)));
            }
        }
    }
}

}  // namespace sums
