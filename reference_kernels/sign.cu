// sign: 1 where x is above 0, -1 where it is below, 0 at 0.
#pragma once
#include "law.cuh"

__device__ inline i64 sign_value(i64 x) { return (x > 0 ? 1 : 0) - (x < 0 ? 1 : 0); }

extern "C" __global__ void sign(i64 count, const void* x, i64 dtype, i32* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = (i32)sign_value(load(x, dtype, i));
}
