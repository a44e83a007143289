// adam_square: v + rs((g^2 2^16 - v) rate, shift), v int64 held to [0, 2^46], g int16.
#pragma once
#include "law.cuh"

__device__ inline i64 adam_square_value(i64 square, i64 grad, i64 rate, i64 shift) {
    const i64 old = clamp(square, 0, 1ll << 46);
    return old + rs((shift_left(grad * grad, 16) - old) * rate, shift);
}

extern "C" __global__ void adam_square(i64 count, const i64* square, const i16* grad, i64 rate,
                                       i64 shift, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = adam_square_value(square[i], grad[i], rate, shift);
}
