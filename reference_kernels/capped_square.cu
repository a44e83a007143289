// capped_square: min(rs(x, shift)^2, 2^bits), bits at most 59.
#pragma once
#include "law.cuh"

__device__ inline i64 capped_square_value(i64 x, i64 shift, i64 bits) {
    const i64 root = clamp(rs(x, shift), -(1ll << 30), 1ll << 30);
    const i64 most = 1ll << bits;
    return root * root < most ? root * root : most;
}

extern "C" __global__ void capped_square(i64 count, const void* x, i64 dtype, i64 shift, i64 bits,
                                         i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = capped_square_value(load(x, dtype, i), shift, bits);
}
