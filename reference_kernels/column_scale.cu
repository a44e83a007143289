// column_scale: each column of x times its own number, in int64; exponents add.
#pragma once
#include "law.cuh"

__device__ inline i64 column_scale_value(i64 x, i64 factor) {
    return wrap_mul(x, factor);
}

extern "C" __global__ void column_scale(i64 count, const void* x, i64 x_dtype,
                                        const void* factors, i64 factors_dtype, i64 width,
                                        i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = column_scale_value(load(x, x_dtype, i), load(factors, factors_dtype, i % width));
}
