// rescale: sat(rs(x multiplier, shift)), the one place of an arithmetic step that rounds.
#pragma once
#include "law.cuh"

__device__ inline i64 rescale_value(i64 x, i64 multiplier, i64 shift) {
    return rs(wrap_mul(x, multiplier), shift);
}

extern "C" __global__ void rescale(i64 count, const void* x, i64 x_dtype, i64 multiplier, i64 shift,
                                   void* out, i64 out_dtype, u64* saturated) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 value = rescale_value(load(x, x_dtype, i), multiplier, shift);
    store_saturated(out, out_dtype, i, value, saturated);
}
