// Philox4x32-10 as in `src/random.rs`: the word of element i of a tensor is word i mod 4 of the counter i /
// 4.
#pragma once
#include "abi.cuh"

__device__ __forceinline__ uint4 philox(u64 seed, u64 tensor, u64 counter) {
    u32 x0 = static_cast<u32>(counter), x1 = static_cast<u32>(counter >> 32);
    u32 x2 = static_cast<u32>(tensor), x3 = static_cast<u32>(tensor >> 32);
    u32 k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
#pragma unroll
    for (u32 round = 0; round < 10; round++) {
        const u64 p0 = static_cast<u64>(x0) * 0xd2511f53u, p1 = static_cast<u64>(x2) * 0xcd9e8d57u;
        x0 = static_cast<u32>(p1 >> 32) ^ x1 ^ k0;
        x1 = static_cast<u32>(p1);
        x2 = static_cast<u32>(p0 >> 32) ^ x3 ^ k1;
        x3 = static_cast<u32>(p0);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    uint4 words;
    words.x = x0, words.y = x1, words.z = x2, words.w = x3;
    return words;
}

// The words of four elements from `first` on.
__device__ __forceinline__ void words_of(u64 seed, u64 tensor, u64 first, u32 (&words)[4]) {
    const uint4 a = philox(seed, tensor, first / 4);
    words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
    const u32 by = static_cast<u32>(first % 4);
    if (by != 0) {
        // All threads take this branch or none: it depends on where a block of the wire begins.
        const uint4 b = philox(seed, tensor, first / 4 + 1);
        words[0] = by == 1 ? a.y : by == 2 ? a.z : a.w;
        words[1] = by == 1 ? a.z : by == 2 ? a.w : b.x;
        words[2] = by == 1 ? a.w : by == 2 ? b.x : b.y;
        words[3] = by == 1 ? b.x : by == 2 ? b.y : b.z;
    }
}

__device__ __forceinline__ u32 word_of(u64 seed, u64 tensor, u64 element) {
    const uint4 four = philox(seed, tensor, element / 4);
    const u32 which = static_cast<u32>(element % 4);
    return which == 0 ? four.x : which == 1 ? four.y : which == 2 ? four.z : four.w;
}
