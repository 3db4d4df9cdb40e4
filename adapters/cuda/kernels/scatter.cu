// Numbers at positions: what was sent is taken from residuals, what was received goes to its tensor. The positions of a tensor
// differ, so no order matters; what comes later in a stream is a later launch.
#include "element.cuh"

// Rows of blocks: one for each piece.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_subtract(const Subtract s) {
    const Taken taken = s.taken[blockIdx.y];
    const u64 step = static_cast<u64>(gridDim.x) * THREADS;
    for (u64 i = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x; i < taken.len; i += step) {
        taken.after[s.places[taken.first + i]] -= taken.values != nullptr ? taken.values[taken.first + i] : taken.value;
    }
}

// NaN has one form where arithmetic gives it, whatever the operands had in theirs; devices and hosts would differ.
__device__ __forceinline__ float sum_of(float a, float b) {
    const float sum = a + b;
    return (bits_of(sum) & ~SIGN) > INFINITE ? float_of(0x7fc00000u) : sum;
}

// Rows of blocks: one for each tensor. Reads 4 bytes for each number, 8 for its position unless all elements follow each other, and an
// element that is added to; writes an element.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_scatter(const Scatter s) {
    const Put put = s.puts[blockIdx.y];
    const u64 step = static_cast<u64>(gridDim.x) * THREADS;
    for (u64 i = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x; i < put.len; i += step) {
        const u64 at = put.positions != nullptr ? put.positions[i] : put.start + i;
        const float x = put.values[i];
        if (put.dtype == F32) {
            float *place = static_cast<float *>(put.data) + at;
            *place = put.add == 1 ? sum_of(*place, x) : x;
        } else {
            u16 *place = static_cast<u16 *>(put.data) + at;
            if (put.add == 2) {
                *place = static_cast<u16>(bits_of(x));
                continue;
            }
            *place = narrow(put.dtype, put.add == 1 ? sum_of(widen(put.dtype, *place), x) : x);
        }
    }
}
