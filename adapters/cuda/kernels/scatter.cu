// Values at positions: sent values are subtracted from residuals, received values are written to tensors. The
// positions of a tensor are distinct, so the result does not depend on an order; later blocks of a stream are
// later launches.
#include "element.cuh"

// One row of blocks for each piece.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_subtract(const Subtract s) {
    const Taken taken = s.taken[blockIdx.y];
    const u64 step = static_cast<u64>(gridDim.x) * THREADS;
    for (u64 i = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x; i < taken.len; i += step) {
        taken.after[s.places[taken.first + i]] -= taken.values != nullptr ? taken.values[taken.first + i] : taken.value;
    }
}

// Adds; a NaN result has one bit pattern, whatever the operands are, because devices and hosts differ in it.
__device__ __forceinline__ float sum_of(float a, float b) {
    const float sum = a + b;
    return (bits_of(sum) & ~SIGN) > INFINITE ? float_of(0x7fc00000u) : sum;
}

// One row of blocks for each tensor. For each value it reads 4 bytes, 8 of its position if there are
// positions, and the element if values are added; it writes the element.
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
