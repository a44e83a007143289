// exp2_diff: 2^(z - max) in 16 fraction bits, by the table of 1024 mantissas.
#pragma once
#include "tables.cuh"

constexpr i64 DEEPEST = 31 << 10;  // 2^-31 is 0 in 16 fraction bits

// 0 for a z above the given maximum.
__device__ inline i64 exp2_diff_value(i64 z, i64 maximum) {
    const i64 gap = maximum - z;
    if (gap < 0) return 0;
    const i64 below = clamp(gap, 0, DEEPEST);
    return rs(EXP2_TABLE[below & 1023], below >> 10);
}

extern "C" __global__ void exp2_diff(i64 count, const i32* z, const i32* maximum, i64 classes,
                                     i32* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = (i32)exp2_diff_value(z[i], maximum[i / classes]);
}
