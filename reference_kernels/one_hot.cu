// one_hot: each token as ``depth`` elements, 1.0 in 14 fraction bits at its own place.
#pragma once
#include "law.cuh"

__device__ inline i64 one_hot_value(i64 token, i64 place) { return token == place ? 1 << 14 : 0; }

extern "C" __global__ void one_hot(i64 count, const void* x, i64 x_dtype, i64 depth, void* out,
                                   i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    store(out, out_dtype, i, one_hot_value(load(x, x_dtype, i / depth), i % depth));
}
