// increment: the step counter, min(t + 1, 2^40).
#pragma once
#include "law.cuh"

__device__ inline i64 increment_value(i64 t) {
    const i64 next = wrap_add(t, 1), most = 1ll << 40;
    return next < most ? next : most;
}

extern "C" __global__ void increment(i64 count, const void* t, i64 t_dtype, void* out,
                                     i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    store(out, out_dtype, i, increment_value(load(t, t_dtype, i)));
}
