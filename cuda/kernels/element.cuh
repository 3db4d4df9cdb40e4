// Elements as the codec sees them: 32-bit floats, the residual added, in the arithmetic of `src/compress/source.rs`.
#pragma once
#include "plan.cuh"

constexpr u32 SIGN = 0x80000000u;

__device__ __forceinline__ u32 bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float float_of(u32 bits) { return __uint_as_float(bits); }

__device__ __forceinline__ bool is_finite(float x) { return (bits_of(x) & ~SIGN) < INFINITE; }

// Exact, as every widening. A signalling NaN becomes quiet.
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
        // A product of a small integer and a power of two: exact, and a zero keeps its sign.
        return float_of(sign | bits_of(static_cast<float>(mantissa) * 0x1p-24f));
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

// To nearest, ties to even.
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
        // Below the smallest normal number: the sum's last place is that of the type's, so the sum is what rounds.
        const u32 sum = bits_of(float_of(magnitude) + 0.5f);
        return static_cast<u16>(sign | (sum - bits_of(0.5f)));
    }
    // The carry of the mantissa goes to the exponent, and beyond the largest number to infinity.
    const u32 rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
    return static_cast<u16>(sign | ((rounded - (112u << 23)) >> 13));
}

__device__ __forceinline__ float max_finite(u32 dtype) {
    return dtype == F16 ? 65504.0f : float_of(0x7f7f0000u);
}

// An element as it is stored.
__device__ __forceinline__ float stored(const Piece &piece, u64 i) {
    if (piece.dtype == F32) {
        return static_cast<const float *>(piece.data)[i];
    }
    return widen(piece.dtype, static_cast<const u16 *>(piece.data)[i]);
}

__device__ __forceinline__ float with_residual(const Piece &piece, float x, u64 i) {
    if (piece.residual != nullptr) {
        x += piece.residual[i];
        if (piece.dtype != F32 && is_finite(x)) {
            // What a narrow type cannot hold cannot be sent, nor is it worth keeping.
            const float most = max_finite(piece.dtype);
            x = x < -most ? -most : x > most ? most : x;
        }
    }
    return piece.zero_non_finite != 0 && !is_finite(x) ? 0.0f : x;
}

__device__ __forceinline__ float read(const Piece &piece, u64 i) {
    return with_residual(piece, stored(piece, i), i);
}

// What `read` gave when the sums were stored.
__device__ __forceinline__ float read_again(const Piece &piece, u64 i) {
    return piece.after != nullptr ? piece.after[i] : read(piece, i);
}

// Four elements from `i`, a multiple of four, on; zeros beyond the end.
__device__ __forceinline__ void read_four(const Piece &piece, u64 i, float (&x)[4]) {
    if (i + 4 <= piece.len) {
        const u64 address = reinterpret_cast<u64>(piece.data);
        if (piece.dtype == F32 && address % 16 == 0) {
            const float4 four = *reinterpret_cast<const float4 *>(static_cast<const float *>(piece.data) + i);
            x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        } else if (piece.dtype != F32 && address % 8 == 0) {
            const uint2 four = *reinterpret_cast<const uint2 *>(static_cast<const u16 *>(piece.data) + i);
            x[0] = widen(piece.dtype, static_cast<u16>(four.x)), x[1] = widen(piece.dtype, static_cast<u16>(four.x >> 16));
            x[2] = widen(piece.dtype, static_cast<u16>(four.y)), x[3] = widen(piece.dtype, static_cast<u16>(four.y >> 16));
        } else {
            for (u32 j = 0; j < 4; j++) {
                x[j] = stored(piece, i + j);
            }
        }
        for (u32 j = 0; j < 4; j++) {
            x[j] = with_residual(piece, x[j], i + j);
        }
        return;
    }
    for (u32 j = 0; j < 4; j++) {
        x[j] = i + j < piece.len ? read(piece, i + j) : 0.0f;
    }
}

// Orders the floats of a side by their magnitude; 0 for those that are never kept. `side`: 0 for all of a search that does not
// tell signs apart, and for the positive ones of one that does.
__device__ __forceinline__ u32 key_of(u32 bits, u32 sides, u32 side) {
    if (sides == 1) {
        return bits & ~SIGN;
    }
    const u32 flipped = side == 0 ? bits : bits ^ SIGN;
    return (flipped & SIGN) != 0 ? 0 : flipped;
}
