// relu: max(x, 0).
#pragma once
#include "law.cuh"

__device__ inline i64 relu_value(i64 x) { return x > 0 ? x : 0; }

extern "C" __global__ void relu(i64 count, const void* x, i64 x_dtype, void* out, i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    store(out, out_dtype, i, relu_value(load(x, x_dtype, i)));
}
