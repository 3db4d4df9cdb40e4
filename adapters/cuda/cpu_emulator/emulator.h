// CUDA's device language as plain C++ on one operating-system thread: every thread of a block is a fiber, and
// blocks run one after the other. It tests the logic of kernels without a device, and under sanitizers. It
// does not model a device: without concurrency it finds no races, and it says nothing about speed.
//
// Fibers are kept from block to block. On x86-64 an own routine switches between them, elsewhere ucontext.
//
// Shared memory is filled with arbitrary bytes before every block, except under AddressSanitizer, which
// watches its bounds. A block whose threads do not all reach the same barrier ends the program with a
// message.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define EMULATOR_SHARED
#else
inline void __sanitizer_start_switch_fiber(void **, const void *, size_t) {}
inline void __sanitizer_finish_switch_fiber(void *, const void **, size_t *) {}
#define EMULATOR_SHARED __attribute__((section("emulator_shared")))
extern "C" char __start_emulator_shared[], __stop_emulator_shared[];
#endif

#define __global__
#define __device__
#define __shared__ static EMULATOR_SHARED
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

namespace emulator {

struct Index {
    unsigned x, y, z;
};

constexpr unsigned LANES = 32;
constexpr size_t STACK = 64 << 10;

// The values that the lanes of a warp exchange. Two sets in turn suffice: no lane can be two operations ahead
// of another.
struct Warp {
    uint64_t slots[2][LANES];
    unsigned arrived = 0, generation = 0;
};

struct Fiber {
#if defined(__x86_64__)
    void *top = nullptr;
#else
    ucontext_t context;
#endif
    void *sanitizer = nullptr;
    char *stack = nullptr;
    bool done = false;
    Index thread = {0, 0, 0};
    Warp *warp = nullptr;
    unsigned turn = 0;
    // It continues once this word is no longer `seen`; null: at once.
    const unsigned *word = nullptr;
    unsigned seen = 0;
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char> stacks;
    Fiber *current = nullptr, *previous = nullptr;
    // The caller of the kernel, and its stack for AddressSanitizer.
    Fiber main;
    const void *stack = nullptr;
    size_t stack_bytes = 0;
    unsigned live = 0, arrived = 0, generation = 0, vote = 0, result = 0;
    void (*body)(void *) = nullptr;
    void *arguments = nullptr;
    Index block = {0, 0, 0}, grid = {0, 0, 0}, threads = {0, 0, 0};
};

inline Block the_block;
inline Block &block() { return the_block; }

[[noreturn]] inline void fail(const char *what) {
    fprintf(stderr, "emulator: %s (block %u, %u)\n", what, block().block.x, block().block.y);
    abort();
}

#if defined(__x86_64__)
// Saves the callee-saved registers to the old stack and loads them from the new one, without the system call
// of swapcontext.
__attribute__((naked, noinline)) inline void switch_stacks(void **, void *) {
    __asm__(
        "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}
#endif

// Runs first on the stack that was switched to.
inline void arrive(void *sanitizer) {
    Block &b = block();
    const void *stack = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(sanitizer, &stack, &bytes);
    if (b.previous == &b.main) {
        b.stack = stack;
        b.stack_bytes = bytes;
    }
}

// Switches from one fiber to another. Returns when some fiber switches back.
inline void go(Fiber &from, Fiber &to) {
    Block &b = block();
    if (&from == &to) {
        return;
    }
    b.current = &to;
    b.previous = &from;
    const bool home = &to == &b.main;
    __sanitizer_start_switch_fiber(&from.sanitizer, home ? b.stack : to.stack, home ? b.stack_bytes : STACK);
#if defined(__x86_64__)
    switch_stacks(&from.top, to.top);
#else
    swapcontext(&from.context, &to.context);
#endif
    arrive(from.sanitizer);
}

// Returns the next thread that does not wait, beginning after `fiber`.
inline Fiber &next(const Fiber &fiber) {
    Block &b = block();
    const unsigned n = b.threads.x;
    for (unsigned i = 1, t = fiber.thread.x; i <= n; i++) {
        t = t + 1 == n ? 0 : t + 1;
        Fiber &other = b.fibers[t];
        if (!other.done && (other.word == nullptr || *other.word != other.seen)) {
            other.word = nullptr;
            return other;
        }
    }
    fail("threads wait at different barriers");
}

inline void wait_for(const unsigned *word) {
    Fiber &fiber = *block().current;
    fiber.word = word;
    fiber.seen = *word;
    go(fiber, next(fiber));
}

// The body of a fiber, which is the thread of its number in all blocks.
inline void enter() {
    Block &b = block();
    arrive(nullptr);
    for (;;) {
        b.body(b.arguments);
        Fiber &fiber = *b.current;
        fiber.done = true;
        b.live--;
        // On a device, the waiting threads would no longer wait for this one. No kernel here returns early
        // before a barrier.
        if (b.live > 0 && b.arrived > 0) {
            fail("a thread returned while others wait at a barrier");
        }
        go(fiber, b.live > 0 ? next(fiber) : b.main);
    }
}

inline void make_fibers(unsigned n) {
    Block &b = block();
    b.fibers.resize(n);
    b.warps.resize(n / LANES);
    b.stacks.resize(n * STACK + 16);
    char *first = b.stacks.data() + (16 - reinterpret_cast<uintptr_t>(b.stacks.data()) % 16) % 16;
    for (unsigned t = 0; t < n; t++) {
        Fiber &fiber = b.fibers[t];
        fiber.thread = {t, 0, 0};
        fiber.warp = &b.warps[t / LANES];
        fiber.stack = first + t * STACK;
#if defined(__x86_64__)
        // As `switch_stacks` leaves a stack: six registers, the address to continue at, and an unused return
        // address.
        void **top = reinterpret_cast<void **>(fiber.stack + STACK) - 8;
        memset(top, 0, 8 * sizeof *top);
        top[6] = reinterpret_cast<void *>(enter);
        fiber.top = top;
#else
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
#endif
    }
}

// Runs the threads of a block, each to its next barrier in turn, until all have returned.
inline void run_block() {
    Block &b = block();
#if !defined(__SANITIZE_ADDRESS__)
    memset(__start_emulator_shared, 0xa5, __stop_emulator_shared - __start_emulator_shared);
#endif
    const unsigned n = b.threads.x;
    if (b.fibers.size() != n) {
        make_fibers(n);
    }
    b.live = n;
    b.arrived = b.vote = 0;
    for (Fiber &fiber : b.fibers) {
        fiber.done = false;
        fiber.turn = 0;
        fiber.word = nullptr;
        fiber.warp->arrived = 0;
    }
    go(b.main, b.fibers[0]);
}

inline unsigned barrier(unsigned vote) {
    Block &b = block();
    b.vote |= vote;
    if (++b.arrived == b.threads.x) {
        b.arrived = 0;
        b.result = b.vote;
        b.vote = 0;
        b.generation++;
    } else {
        wait_for(&b.generation);
    }
    return b.result;
}

// Gives `x` to the other lanes of the warp, and returns the values of all lanes.
inline const uint64_t *exchange(unsigned mask, uint64_t x) {
    Block &b = block();
    Fiber &fiber = *b.current;
    if (mask != 0xffffffffu) {
        fail("a warp operation without all lanes");
    }
    Warp &warp = *fiber.warp;
    uint64_t *slots = warp.slots[fiber.turn++ % 2];
    slots[fiber.thread.x % LANES] = x;
    if (++warp.arrived == LANES) {
        warp.arrived = 0;
        warp.generation++;
    } else {
        wait_for(&warp.generation);
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

}  // namespace emulator

#define threadIdx (emulator::block().current->thread)
#define blockIdx (emulator::block().block)
#define gridDim (emulator::block().grid)
#define blockDim (emulator::block().threads)

inline void __syncthreads() { emulator::barrier(0); }
inline int __syncthreads_or(int vote) { return emulator::barrier(vote != 0); }
inline void __threadfence() {}
inline void __syncwarp() { emulator::exchange(0xffffffffu, 0); }
inline unsigned __ballot_sync(unsigned mask, int vote) {
    const uint64_t *slots = emulator::exchange(mask, vote != 0);
    unsigned votes = 0;
    for (unsigned i = 0; i < emulator::LANES; i++) {
        votes |= static_cast<unsigned>(slots[i]) << i;
    }
    return votes;
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T x, unsigned by) {
    const unsigned lane = emulator::own_lane();
    return emulator::from(mask, x, lane >= by ? lane - by : lane);
}
template <typename T>
inline T __shfl_sync(unsigned mask, T x, unsigned lane) {
    return emulator::from(mask, x, lane % emulator::LANES);
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T x, unsigned by) {
    return emulator::from(mask, x, emulator::own_lane() ^ by);
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
template <typename T>
inline T atomicOr(T *place, T x) {
    const T before = *place;
    *place |= x;
    return before;
}
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
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
inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
