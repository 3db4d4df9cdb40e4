// Sums and searches that the threads of a warp or block compute together.
#pragma once
#include "abi.cuh"

constexpr u32 ALL_LANES = 0xffffffffu;

__device__ __forceinline__ u32 lane() { return threadIdx.x % 32; }
__device__ __forceinline__ u32 warp() { return threadIdx.x / 32; }
// The mask of the lanes below this one.
__device__ __forceinline__ u32 below() { return (1u << lane()) - 1; }

template <typename T>
__device__ __forceinline__ T warp_inclusive(T x) {
    for (u32 step = 1; step < 32; step *= 2) {
        const T other = __shfl_up_sync(ALL_LANES, x, step);
        x += lane() >= step ? other : 0;
    }
    return x;
}

__device__ __forceinline__ u32 warp_sum(u32 x) {
    for (u32 step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, step);
    }
    return x;
}

// Returns the sum of `x` over the threads before this one, and in `total` over all. `scratch` has WARPS
// entries.
__device__ __forceinline__ u64 block_exclusive(u64 x, u64 *scratch, u64 &total) {
    const u64 inclusive = warp_inclusive(x);
    __syncthreads();
    if (lane() == 31) {
        scratch[warp()] = inclusive;
    }
    __syncthreads();
    u64 before = 0;
    total = 0;
    for (u32 w = 0; w < WARPS; w++) {
        before += w < warp() ? scratch[w] : 0;
        total += scratch[w];
    }
    return before + inclusive - x;
}

// Returns the index of the last of `n` ascending numbers that is at most `x`; `first(0)` is at most `x`.
template <typename First>
__device__ __forceinline__ u32 last_at_most(u32 n, u64 x, First first) {
    u32 low = 0, high = n;
    while (high - low > 1) {
        const u32 middle = low + (high - low) / 2;
        if (first(middle) <= x) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

__device__ __forceinline__ u32 piece_of_tile(const Select &s, u32 tile) {
    return last_at_most(s.n_pieces, tile, [&](u32 p) { return s.pieces[p].first_tile; });
}
