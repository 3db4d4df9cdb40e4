// The structures of `delta.cu`. `adapters/cuda/src/abi.rs` declares the same ones.
#pragma once
#include "abi.cuh"

namespace delta {

// Elements of a step, of which samples consist.
constexpr u32 STEP_LEN = 4096;
constexpr u32 STEPS = TILE_LEN / STEP_LEN;
// Keys of elements, and zigzag codes of differences that are counted apart; the last one counts all larger
// ones too.
constexpr u32 KEYS = 256;
constexpr u32 CODES = 8;
constexpr u32 MOST_CLASSES = 48;

static_assert(KEYS == THREADS, "a thread for each key");

// Consecutive elements of one tensor and of its base; at least one, and at most 2^24.
struct Span {
    const void *base;
    const void *fresh;
    u64 len;
    // Elements of the task before this span.
    u64 start;
    u32 task;
    u32 first_tile;
    // Number of its first step in the task.
    u32 first_step;
    u32 reserved;
};

// A block of the update: consecutive spans.
struct Change {
    // [key]: its class. Unused with one class.
    const u8 *class_of;
    // [class][elements, changed elements][tile]: their number; then the number before the tile in the task.
    u32 *sums;
    // [class]: number of changed elements.
    u32 *totals;
    // [class]: where its first changed element is in `ranks` and `values`.
    const u32 *places;
    u32 *ranks;
    void *values;
    // [key]: its elements, then its changed elements by code.
    u32 *counts;
    // One of so many steps is counted; 0: none.
    u32 every;
    // 0: all elements are values, without ranks.
    u32 classes;
    // 0: values are differences; 1: values are elements.
    u32 overwrites;
    // Bytes of an element: 2 or 4.
    u32 width;
    u32 first_tile;
    u32 tiles;
};

struct Delta {
    const Span *spans;
    const Change *changes;
    u32 n_spans;
    u32 n_tiles;
};

static_assert(sizeof(Span) == 48 && sizeof(Change) == 80 && sizeof(Delta) == 24, "as in abi.rs");

}  // namespace delta
