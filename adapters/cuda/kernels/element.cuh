// Elements as codecs see them: 32-bit floats with the residual added, in the arithmetic of
// `src/compress/source.rs`.
#pragma once
#include "abi.cuh"

constexpr u32 SIGN = 0x80000000u;

__device__ __forceinline__ u32 bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float float_of(u32 bits) { return __uint_as_float(bits); }

__device__ __forceinline__ bool is_finite(float x) { return (bits_of(x) & ~SIGN) < INFINITE; }

// Widens a 16-bit element, exactly. A signalling NaN becomes quiet.
__device__ __forceinline__ float widen(u32 dtype, u16 half) {
    const u32 bits = half;
    if (dtype == BF16) {
        const u32 wide = bits << 16;
        return float_of((wide & ~SIGN) > INFINITE ? wide | 1u << 22 : wide);
    }
    const u32 sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ffu;
    if (exponent == 31) {
        return float_of(sign | INFINITE | mantissa << 13 | (mantissa != 0 ? 1u << 22 : 0));
    }
    if (exponent == 0) {
        // The product of a small integer and a power of two is exact, and zero keeps its sign.
        return float_of(sign | bits_of(static_cast<float>(mantissa) * 0x1p-24f));
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Rounds to a 16-bit element: to nearest, ties to even.
__device__ __forceinline__ u16 narrow(u32 dtype, float x) {
    const u32 bits = bits_of(x), magnitude = bits & ~SIGN;
    const u16 sign = static_cast<u16>(bits >> 16 & 0x8000u);
    if (dtype == BF16) {
        if (magnitude > INFINITE) {
            return static_cast<u16>(bits >> 16 | 0x40u);
        }
        return static_cast<u16>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
    if (magnitude > INFINITE) {
        return static_cast<u16>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (magnitude >= 0x47800000u) {
        return static_cast<u16>(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) {
        // Below the smallest normal number: the last place of the sum is that of the type, so the addition
        // rounds.
        const u32 sum = bits_of(float_of(magnitude) + 0.5f);
        return static_cast<u16>(sign | (sum - bits_of(0.5f)));
    }
    // The mantissa carries into the exponent, and from the largest number to infinity.
    const u32 rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
    return static_cast<u16>(sign | ((rounded - (112u << 23)) >> 13));
}

__device__ __forceinline__ float max_finite(u32 dtype) {
    return dtype == F16 ? 65504.0f : float_of(0x7f7f0000u);
}

// The stored value of an element.
__device__ __forceinline__ float stored(const Piece &piece, u64 i) {
    if (piece.dtype == F32) {
        return static_cast<const float *>(piece.data)[i];
    }
    return widen(piece.dtype, static_cast<const u16 *>(piece.data)[i]);
}

// Applies the limits of the element type, and the rule for elements that are not finite.
__device__ __forceinline__ float limited(const Piece &piece, float x) {
    if (piece.residual != nullptr && piece.dtype != F32 && is_finite(x)) {
        // A value beyond the type's range cannot be sent, so it is not kept as a residual either.
        const float most = max_finite(piece.dtype);
        x = x < -most ? -most : x > most ? most : x;
    }
    return piece.zero_non_finite != 0 && !is_finite(x) ? 0.0f : x;
}

// The element with its residual.
__device__ __forceinline__ float read(const Piece &piece, u64 i) {
    const float x = stored(piece, i);
    return limited(piece, piece.residual != nullptr ? x + piece.residual[i] : x);
}

// The result of the first `read`: from the stored sums, where there are any.
__device__ __forceinline__ float read_again(const Piece &piece, u64 i) {
    return piece.after != nullptr ? piece.after[i] : read(piece, i);
}

// Reads the elements of a thread: four of each row from `begin` on; rows are `STEP` apart. Zeros beyond the
// end.
template <u32 STEP = ROW_LEN>
__device__ __forceinline__ void read_rows(const Piece &piece, u64 begin, bool full, float (&x)[ROWS][4]) {
    const u64 address = reinterpret_cast<u64>(piece.data);
    if (!full || address % (piece.dtype == F32 ? 16 : 8) != 0) {
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u64 i = begin + row * STEP + j;
                x[row][j] = i < piece.len ? read(piece, i) : 0.0f;
            }
        }
        return;
    }
    // All loads of a kind come first, so that their latencies overlap.
    if (piece.dtype == F32) {
        float4 four[ROWS];
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            four[row] = *reinterpret_cast<const float4 *>(static_cast<const float *>(piece.data) + begin + row * STEP);
        }
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            x[row][0] = four[row].x, x[row][1] = four[row].y, x[row][2] = four[row].z, x[row][3] = four[row].w;
        }
    } else {
        uint2 four[ROWS];
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            four[row] = *reinterpret_cast<const uint2 *>(static_cast<const u16 *>(piece.data) + begin + row * STEP);
        }
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            x[row][0] = widen(piece.dtype, static_cast<u16>(four[row].x));
            x[row][1] = widen(piece.dtype, static_cast<u16>(four[row].x >> 16));
            x[row][2] = widen(piece.dtype, static_cast<u16>(four[row].y));
            x[row][3] = widen(piece.dtype, static_cast<u16>(four[row].y >> 16));
        }
    }
    // Residuals are allocated by the host program, so they are aligned.
    if (piece.residual != nullptr) {
        float4 four[ROWS];
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            four[row] = *reinterpret_cast<const float4 *>(piece.residual + begin + row * STEP);
        }
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            x[row][0] += four[row].x, x[row][1] += four[row].y, x[row][2] += four[row].z, x[row][3] += four[row].w;
        }
    }
#pragma unroll
    for (u32 row = 0; row < ROWS; row++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            x[row][j] = limited(piece, x[row][j]);
        }
    }
}

__device__ __forceinline__ void store_rows(const Piece &piece, u64 begin, bool full, const float (&x)[ROWS][4]) {
#pragma unroll
    for (u32 row = 0; row < ROWS; row++) {
        if (full) {
            *reinterpret_cast<float4 *>(piece.after + begin + row * ROW_LEN) =
                make_float4(x[row][0], x[row][1], x[row][2], x[row][3]);
            continue;
        }
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u64 i = begin + row * ROW_LEN + j;
            if (i < piece.len) {
                piece.after[i] = x[row][j];
            }
        }
    }
}

// Returns the key of an element, which orders the elements of a side by magnitude; 0 for elements that are
// never kept. `side`: 0 in a search without sides, and for positive elements; 1 for negative elements.
__device__ __forceinline__ u32 key_of(u32 bits, u32 sides, u32 side) {
    if (sides == 1) {
        return bits & ~SIGN;
    }
    const u32 flipped = side == 0 ? bits : bits ^ SIGN;
    return (flipped & SIGN) != 0 ? 0 : flipped;
}
