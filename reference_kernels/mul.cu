// mul: a b in int64, element by element; exponents add.
#pragma once
#include "law.cuh"

__device__ inline i64 mul_value(i64 a, i64 b) {
    return wrap_mul(a, b);
}

extern "C" __global__ void mul(i64 count, const void* a, i64 a_dtype, const void* b, i64 b_dtype,
                               i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = mul_value(load(a, a_dtype, i), load(b, b_dtype, i));
}
