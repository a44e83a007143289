// add: a 2^shift_a + b 2^shift_b in int64; exponents aligned by exact left shifts.
#pragma once
#include "law.cuh"

__device__ inline i64 add_value(i64 a, i64 shift_a, i64 b, i64 shift_b) {
    return wrap_add(shift_left(a, shift_a), shift_left(b, shift_b));
}

extern "C" __global__ void add(i64 count, const void* a, i64 a_dtype, i64 shift_a, const void* b,
                               i64 b_dtype, i64 shift_b, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = add_value(load(a, a_dtype, i), shift_a, load(b, b_dtype, i), shift_b);
}
