// CUDA's device language as plain C++, for one operating-system thread: every thread of a block is a fiber, and blocks run one after
// the other. It is a way to test the logic of kernels where there is no device, under sanitizers. It is no model of a device: it has
// no concurrency, so it finds no races, and says nothing about speed.
//
// Shared memory is filled with rubbish before every block (but not under AddressSanitizer, which watches its bounds instead).
// A block whose threads do not all reach the same barrier ends the program with a message.
#pragma once

#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SHIM_SHARED
#else
inline void __sanitizer_start_switch_fiber(void **, const void *, size_t) {}
inline void __sanitizer_finish_switch_fiber(void *, const void **, size_t *) {}
#define SHIM_SHARED __attribute__((section("shim_shared")))
extern "C" char __start_shim_shared[], __stop_shim_shared[];
#endif

#define __global__
#define __device__
#define __shared__ static SHIM_SHARED
#define __forceinline__ inline
#define __launch_bounds__(...)

struct float4 {
    float x, y, z, w;
} __attribute__((aligned(16)));
struct uint2 {
    unsigned x, y;
} __attribute__((aligned(8)));
struct uint4 {
    unsigned x, y, z, w;
} __attribute__((aligned(16)));
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace shim {

struct Index {
    unsigned x, y, z;
};

constexpr unsigned LANES = 32;
constexpr size_t STACK = 64 << 10;

// What the lanes of a warp tell each other. Two sets in turn: nobody can be two operations ahead of another.
struct Warp {
    uint64_t slots[2][LANES];
    unsigned arrived = 0, generation = 0;
};

struct Fiber {
    ucontext_t context;
    jmp_buf place;
    void *sanitizer = nullptr;
    char *stack = nullptr;
    bool begun = false, done = false;
    Index thread = {0, 0, 0};
    Warp *warp = nullptr;
    unsigned turn = 0;
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char> stacks;
    Fiber *current = nullptr;
    jmp_buf place;
    // What AddressSanitizer wants to know of the stack that fibers are begun from.
    void *sanitizer = nullptr;
    const void *stack = nullptr;
    size_t stack_bytes = 0;
    unsigned live = 0, arrived = 0, generation = 0, vote = 0, result = 0;
    bool moved = false;
    void (*body)(void *) = nullptr;
    void *arguments = nullptr;
    Index block = {0, 0, 0}, grid = {0, 0, 0}, threads = {0, 0, 0};
};

inline Block &block() {
    static Block block;
    return block;
}

[[noreturn]] inline void fail(const char *what) {
    fprintf(stderr, "shim: %s (block %u, %u)\n", what, block().block.x, block().block.y);
    abort();
}

// A fiber begins as a ucontext. After that, switches are jumps, which make no system calls.
inline void to_scheduler() {
    Block &b = block();
    Fiber &fiber = *b.current;
    __sanitizer_start_switch_fiber(&fiber.sanitizer, b.stack, b.stack_bytes);
    if (_setjmp(fiber.place) == 0) {
        _longjmp(b.place, 1);
    }
    __sanitizer_finish_switch_fiber(fiber.sanitizer, nullptr, nullptr);
}

inline void run(Fiber &fiber) {
    Block &b = block();
    b.current = &fiber;
    __sanitizer_start_switch_fiber(&b.sanitizer, fiber.stack, STACK);
    if (_setjmp(b.place) == 0) {
        if (fiber.begun) {
            _longjmp(fiber.place, 1);
        }
        fiber.begun = true;
        setcontext(&fiber.context);
    }
    __sanitizer_finish_switch_fiber(b.sanitizer, nullptr, nullptr);
}

inline void enter() {
    Block &b = block();
    __sanitizer_finish_switch_fiber(nullptr, &b.stack, &b.stack_bytes);
    b.body(b.arguments);
    b.current->done = true;
    b.live--;
    b.moved = true;
    // Those who wait for the others no longer wait for this one; a kernel in which that matters does not return early.
    if (b.live > 0 && b.arrived > 0) {
        fail("a thread returned while others wait at a barrier");
    }
    to_scheduler();
    fail("a fiber went on after its end");
}

// The threads of a block, one after the other and over again, each to its next barrier.
inline void run_block() {
    Block &b = block();
#if !defined(__SANITIZE_ADDRESS__)
    memset(__start_shim_shared, 0xa5, __stop_shim_shared - __start_shim_shared);
#endif
    const unsigned n = b.threads.x;
    b.fibers.resize(n);
    b.warps.resize(n / LANES);
    b.stacks.resize(n * STACK);
    b.live = n;
    b.arrived = b.vote = 0;
    for (unsigned t = 0; t < n; t++) {
        Fiber &fiber = b.fibers[t];
        fiber.begun = fiber.done = false;
        fiber.turn = 0;
        fiber.thread = {t, 0, 0};
        fiber.warp = &b.warps[t / LANES];
        fiber.warp->arrived = 0;
        getcontext(&fiber.context);
        fiber.stack = b.stacks.data() + t * STACK;
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
    }
    while (b.live > 0) {
        b.moved = false;
        for (Fiber &fiber : b.fibers) {
            if (!fiber.done) {
                run(fiber);
            }
        }
        if (!b.moved) {
            fail("threads wait for each other at different barriers");
        }
    }
}

template <typename Wait>
inline void wait_while(Wait wait) {
    while (wait()) {
        to_scheduler();
    }
}

inline unsigned barrier(unsigned vote) {
    Block &b = block();
    b.moved = true;
    b.vote |= vote;
    if (++b.arrived == b.threads.x) {
        b.arrived = 0;
        b.result = b.vote;
        b.vote = 0;
        b.generation++;
    } else {
        const unsigned generation = b.generation;
        wait_while([&] { return b.generation == generation; });
    }
    return b.result;
}

// Gives the others of the warp `x`; the slots of all lanes.
inline const uint64_t *exchange(unsigned mask, uint64_t x) {
    Block &b = block();
    Fiber &fiber = *b.current;
    if (mask != 0xffffffffu) {
        fail("a warp operation of some lanes only");
    }
    Warp &warp = *fiber.warp;
    uint64_t *slots = warp.slots[fiber.turn++ % 2];
    slots[fiber.thread.x % LANES] = x;
    b.moved = true;
    if (++warp.arrived == LANES) {
        warp.arrived = 0;
        warp.generation++;
    } else {
        const unsigned generation = warp.generation;
        wait_while([&] { return warp.generation == generation; });
    }
    return slots;
}

template <typename T>
inline T from(unsigned mask, T x, unsigned lane) {
    uint64_t word = 0;
    static_assert(sizeof(T) <= sizeof word, "a number");
    memcpy(&word, &x, sizeof x);
    const uint64_t *slots = exchange(mask, word);
    memcpy(&x, &slots[lane], sizeof x);
    return x;
}

inline unsigned own_lane() { return block().current->thread.x % LANES; }

template <typename Arguments>
inline void launch(void (*kernel)(Arguments), const void *arguments, Index grid, Index threads) {
    struct Call {
        void (*kernel)(Arguments);
        Arguments arguments;
    } call = {kernel, *static_cast<const Arguments *>(arguments)};
    Block &b = block();
    b.grid = grid;
    b.threads = threads;
    b.body = [](void *call) { static_cast<Call *>(call)->kernel(static_cast<Call *>(call)->arguments); };
    b.arguments = &call;
    for (unsigned y = 0; y < grid.y; y++) {
        for (unsigned x = 0; x < grid.x; x++) {
            b.block = {x, y, 0};
            run_block();
        }
    }
}

}  // namespace shim

#define threadIdx (shim::block().current->thread)
#define blockIdx (shim::block().block)
#define gridDim (shim::block().grid)
#define blockDim (shim::block().threads)

inline void __syncthreads() { shim::barrier(0); }
inline int __syncthreads_or(int vote) { return shim::barrier(vote != 0); }
inline void __threadfence() {}
inline unsigned __ballot_sync(unsigned mask, int vote) {
    const uint64_t *slots = shim::exchange(mask, vote != 0);
    unsigned votes = 0;
    for (unsigned i = 0; i < shim::LANES; i++) {
        votes |= static_cast<unsigned>(slots[i]) << i;
    }
    return votes;
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T x, unsigned by) {
    const unsigned lane = shim::own_lane();
    return shim::from(mask, x, lane >= by ? lane - by : lane);
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T x, unsigned by) {
    return shim::from(mask, x, shim::own_lane() ^ by);
}
template <typename T>
inline T atomicAdd(T *place, T x) {
    const T before = *place;
    *place += x;
    return before;
}
template <typename T>
inline T atomicMin(T *place, T x) {
    const T before = *place;
    *place = x < before ? x : before;
    return before;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline long long __double_as_longlong(double x) {
    long long bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline double __longlong_as_double(long long bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
