// The cut, which is the smallest key that is kept: found digit by digit, from counts of each digit.
#pragma once
#include "element.cuh"
#include "group.cuh"

// Finds the largest of the first `bins` digits such that at least `ties` keys have it or a larger one. `ties`
// becomes the number of keys with this digit that are wanted. Returns false, in all threads, if there are
// fewer keys than `ties`. Calls `count(digit)` once for each digit.
template <typename Count>
__device__ bool pick(u32 bins, Count count, u64 *scratch, u64 *answer, u32 &digit, u64 &ties) {
    const u32 each = bins / THREADS;
    // Digits descend with threads, so that the sum before a thread counts larger digits.
    const u32 top = bins - 1 - threadIdx.x * each;
    u64 mine[BINS / THREADS];
    u64 sum = 0;
    for (u32 i = 0; i < each; i++) {
        mine[i] = count(top - i);
        sum += mine[i];
    }
    u64 total;
    u64 before = block_exclusive(sum, scratch, total);
    if (before < ties && ties <= before + sum) {
        u32 i = 0;
        while (before + mine[i] < ties) {
            before += mine[i];
            i++;
        }
        answer[0] = top - i;
        answer[1] = ties - before;
    }
    __syncthreads();
    if (total < ties) {
        return false;
    }
    digit = static_cast<u32>(answer[0]);
    ties = answer[1];
    __syncthreads();
    return true;
}

// Returns, to all threads, the key that exactly the `rank` largest keys of a sample reach, ties aside: digits
// of 11, 10 and 10 bits. `counts` has BINS entries.
__device__ inline u32 largest_of_sample(const u32 *bits, u64 rank, u32 sides, u32 side, u32 *counts, u64 *scratch,
                                        u64 *answer) {
    u32 least = 0;
    for (u32 step = 0; step < 3; step++) {
        const u32 shift = 20 - 10 * step, width = step == 0 ? 11 : 10;
        for (u32 bin = threadIdx.x; bin < BINS; bin += THREADS) {
            counts[bin] = 0;
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < SAMPLE_LEN; i += THREADS) {
            const u32 key = key_of(bits[i], sides, side);
            if (key >> shift >> width == least) {
                atomicAdd(&counts[key >> shift & ((1u << width) - 1)], 1u);
            }
        }
        __syncthreads();
        u32 digit = 0;
        pick(1u << width, [&](u32 bin) { return counts[bin]; }, scratch, answer, digit, rank);
        least = least << width | digit;
        __syncthreads();
    }
    return least;
}
