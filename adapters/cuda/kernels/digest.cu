// Digests of tensors: BLAKE3 (https://github.com/BLAKE3-team/BLAKE3-specs), without key, of a few bytes that
// name type and shape, and of the elements.
//
//   chunks     hashes each chunk of 1 KiB, and joins those of each group of 256
//   roots      joins the groups of each tensor
//
// Neighbouring nodes are joined level by level, where the last of an odd number goes to the next level as it
// is: this is the tree of BLAKE3, whose left subtrees are the largest powers of two.
#include "group.cuh"

namespace blake3 {

// Chunks of BLAKE3 in a group, which a block of threads hashes.
constexpr u32 GROUP_CHUNKS = THREADS;

// A tensor to hash: `head`, then `data`. `adapters/cuda/src/abi.rs` declares the same structure.
struct Hashed {
    const u8 *data;
    const u8 *head;
    u64 bytes;
    u64 chunks;
    // [group][8]: the chaining value of its root.
    u32 *nodes;
    // The first 16 bytes of the hash.
    u32 *out;
    u32 head_len;
    u32 first_group;
    u32 groups;
    u32 reserved;
};

struct Digests {
    const Hashed *hashed;
    u32 n_hashed;
    u32 n_groups;
};

static_assert(sizeof(Hashed) == 64 && sizeof(Digests) == 16, "as in abi.rs");

constexpr u32 CHUNK = 1024, BLOCK = 64;
constexpr u32 CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8;

__device__ __forceinline__ u32 rotate(u32 x, u32 by) { return x >> by | x << (32 - by); }

__device__ __forceinline__ void mix(u32 &a, u32 &b, u32 &c, u32 &d, u32 x, u32 y) {
    a += b + x;
    d = rotate(d ^ a, 16);
    c += d;
    b = rotate(b ^ c, 12);
    a += b + y;
    d = rotate(d ^ a, 8);
    c += d;
    b = rotate(b ^ c, 7);
}

__device__ __forceinline__ void begin(u32 (&value)[8]) {
    value[0] = 0x6a09e667u, value[1] = 0xbb67ae85u, value[2] = 0x3c6ef372u, value[3] = 0xa54ff53au;
    value[4] = 0x510e527fu, value[5] = 0x9b05688cu, value[6] = 0x1f83d9abu, value[7] = 0x5be0cd19u;
}

// Replaces a chaining value by that after a message block.
__device__ __forceinline__ void compress(u32 (&value)[8], const u32 (&message)[16], u64 counter, u32 len, u32 flags) {
    u32 s[16], m[16], start[8];
    begin(start);
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        s[i] = i < 8 ? value[i % 8] : start[i % 4];
        m[i] = message[i];
    }
    s[12] = static_cast<u32>(counter), s[13] = static_cast<u32>(counter >> 32), s[14] = len, s[15] = flags;
#pragma unroll
    for (u32 round = 0; round < 7; round++) {
        mix(s[0], s[4], s[8], s[12], m[0], m[1]);
        mix(s[1], s[5], s[9], s[13], m[2], m[3]);
        mix(s[2], s[6], s[10], s[14], m[4], m[5]);
        mix(s[3], s[7], s[11], s[15], m[6], m[7]);
        mix(s[0], s[5], s[10], s[15], m[8], m[9]);
        mix(s[1], s[6], s[11], s[12], m[10], m[11]);
        mix(s[2], s[7], s[8], s[13], m[12], m[13]);
        mix(s[3], s[4], s[9], s[14], m[14], m[15]);
        const u32 next[16] = {m[2], m[6], m[3], m[10], m[7], m[0], m[4], m[13], m[1], m[11], m[12], m[5], m[9], m[14], m[15], m[8]};
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            m[i] = next[i];
        }
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        value[i] = s[i] ^ s[i + 8];
    }
}

__device__ __forceinline__ u32 byte_at(const Hashed &h, u64 at) {
    if (at < h.head_len) {
        return h.head[at];
    }
    return at - h.head_len < h.bytes ? h.data[at - h.head_len] : 0;
}

// Reads the message block that begins at byte `at`; zeros beyond the end.
__device__ __forceinline__ void read(const Hashed &h, u64 at, u32 (&message)[16]) {
    const u64 first = at - h.head_len;
    // The words around the block are inside of the tensor, which may begin at any byte of a word.
    if (at >= h.head_len + 4ull && first + BLOCK + 4 <= h.bytes) {
        const u64 address = reinterpret_cast<u64>(h.data + first);
        const u32 *words = reinterpret_cast<const u32 *>(address & ~3ull);
        const u32 shift = static_cast<u32>(address % 4) * 8;
        u32 word = words[0];
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            const u32 next = words[i + 1];
            message[i] = static_cast<u32>((static_cast<u64>(next) << 32 | word) >> shift);
            word = next;
        }
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        u32 word = 0;
        for (u32 j = 0; j < 4; j++) {
            word |= byte_at(h, at + 4 * i + j) << (8 * j);
        }
        message[i] = word;
    }
}

// Computes the chaining value of a chunk, or the hash of a tensor of one chunk.
__device__ __forceinline__ void hash_chunk(const Hashed &h, u64 chunk, u32 (&value)[8]) {
    const u64 first = chunk * CHUNK, rest = h.head_len + h.bytes - first;
    const u32 len = rest < CHUNK ? static_cast<u32>(rest) : CHUNK;
    begin(value);
    for (u32 at = 0; at < len; at += BLOCK) {
        u32 message[16];
        read(h, first + at, message);
        const bool last = at + BLOCK >= len;
        const u32 end = last ? CHUNK_END | (h.chunks == 1 ? ROOT : 0) : 0;
        compress(value, message, chunk, last ? len - at : BLOCK, (at == 0 ? CHUNK_START : 0) | end);
    }
}

// Joins the chaining values of `n` neighbouring nodes to one, at index 0. `whole`: it is the hash. All
// threads of the block call it.
__device__ __forceinline__ void join(u32 (&values)[8][GROUP_CHUNKS], u32 n, bool whole) {
    for (; n > 1; n = (n + 1) / 2) {
        const u32 left = 2 * threadIdx.x;
        u32 value[8];
        __syncthreads();
        if (left + 1 < n) {
            u32 message[16];
#pragma unroll
            for (u32 i = 0; i < 16; i++) {
                message[i] = values[i % 8][left + i / 8];
            }
            begin(value);
            compress(value, message, 0, BLOCK, PARENT | (whole && n == 2 ? ROOT : 0));
        } else if (left < n) {
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                value[i] = values[i][left];
            }
        }
        __syncthreads();
        if (left < n) {
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                values[i][threadIdx.x] = value[i];
            }
        }
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) gcodec_digest_chunks(const Digests d) {
    __shared__ u32 values[8][GROUP_CHUNKS];
    for (u32 group = blockIdx.x; group < d.n_groups; group += gridDim.x) {
        const Hashed h = d.hashed[last_at_most(d.n_hashed, group, [&](u32 i) { return d.hashed[i].first_group; })];
        const u32 inside = group - h.first_group;
        const u64 first = static_cast<u64>(inside) * GROUP_CHUNKS;
        const u32 n = h.chunks - first < GROUP_CHUNKS ? static_cast<u32>(h.chunks - first) : GROUP_CHUNKS;
        __syncthreads();
        if (threadIdx.x < n) {
            u32 value[8];
            hash_chunk(h, first + threadIdx.x, value);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                values[i][threadIdx.x] = value[i];
            }
        }
        join(values, n, h.groups == 1);
        if (threadIdx.x < (h.groups == 1 ? 4 : 8)) {
            (h.groups == 1 ? h.out : h.nodes + 8ull * inside)[threadIdx.x] = values[threadIdx.x][0];
        }
    }
}

// One block for each tensor.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_digest_roots(const Digests d) {
    __shared__ u32 values[8][GROUP_CHUNKS];
    const Hashed h = d.hashed[blockIdx.x];
    u32 nodes = h.groups;
    while (nodes > 1) {
        const bool last = nodes <= GROUP_CHUNKS;
        for (u32 first = 0; first < nodes; first += GROUP_CHUNKS) {
            const u32 n = nodes - first < GROUP_CHUNKS ? nodes - first : GROUP_CHUNKS;
            __syncthreads();
            for (u32 i = threadIdx.x; i < 8 * n; i += THREADS) {
                values[i % 8][i / 8] = h.nodes[8ull * first + i];
            }
            join(values, n, last);
            // All of these nodes were read, so the first ones can be replaced.
            if (threadIdx.x < (last ? 4 : 8)) {
                (last ? h.out : h.nodes + 8ull * (first / GROUP_CHUNKS))[threadIdx.x] = values[threadIdx.x][0];
            }
        }
        nodes = (nodes + GROUP_CHUNKS - 1) / GROUP_CHUNKS;
        __syncthreads();
    }
}

}  // namespace blake3
