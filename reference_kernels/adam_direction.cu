// adam_direction: sat32(floor(m 2^shift / (isqrt(v) + epsilon))), m int32, v int64, 0 if negative.
#pragma once
#include "isqrt.cuh"

// Before saturation.
__device__ inline i64 adam_direction_value(i64 mean, i64 square, i64 shift, i64 epsilon) {
    const i64 divisor = isqrt(square < 0 ? 0 : square) + epsilon;
    const i64 numerator = shift_left(mean, shift);
    // Division of integers rounds towards zero; the law rounds down.
    return numerator / divisor - (numerator % divisor < 0 ? 1 : 0);
}

extern "C" __global__ void adam_direction(i64 count, const i32* mean, const i64* square, i64 shift,
                                          i64 epsilon, i32* out, u64* saturated) {
    const i64 i = INDEX();
    if (i >= count) return;
    store_saturated(out, I32, i, adam_direction_value(mean[i], square[i], shift, epsilon),
                    saturated);
}

// --- fast: a float is the first guess of root and quotient
#include "division.cuh"

__device__ inline i64 adam_direction_quick(i64 mean, i64 square, i64 shift, i64 epsilon) {
    const i64 root = (i64)quick_root(square < 0 ? 0 : (u64)square);
    return divide_floor(shift_left(mean, shift), make_divisor(root + epsilon));
}
