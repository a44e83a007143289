// scale_by: rs(x factor, shift), the factor an int64 scalar.
#pragma once
#include "law.cuh"

__device__ inline i64 scale_by_value(i64 x, i64 factor, i64 shift) {
    return rs(wrap_mul(x, factor), shift);
}

extern "C" __global__ void scale_by(i64 count, const void* x, i64 dtype, const i64* factor,
                                    i64 shift, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = scale_by_value(load(x, dtype, i), factor[0], shift);
}
