// normalize: sat(rs(x multiplier + offset, shift)), raw samples made into operands.
#pragma once
#include "law.cuh"

__device__ inline i64 normalize_value(i64 x, i64 multiplier, i64 offset, i64 shift) {
    return rs(wrap_add(wrap_mul(x, multiplier), offset), shift);
}

extern "C" __global__ void normalize(i64 count, const void* x, i64 x_dtype, i64 multiplier,
                                     i64 offset, i64 shift, void* out, i64 out_dtype,
                                     u64* saturated) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 value = normalize_value(load(x, x_dtype, i), multiplier, offset, shift);
    store_saturated(out, out_dtype, i, value, saturated);
}
