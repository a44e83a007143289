// cross_entropy: loss of each row in bits, (max - z[label]) + log2(S) - 16 in 16 fraction bits.
#pragma once
#include "tables.cuh"

// Base-2 logarithm of x > 0 in 16 fraction bits: the exponent, and the table at the ten bits after
// the leading one.
__device__ inline i64 log2_q16(i64 x) {
    int n = 0;
    for (int step = 32; step > 0; step /= 2)
        if (x >> (n + step) != 0) n += step;
    const i64 index = (n >= 10 ? x >> (n - 10) : x << (10 - n)) & 1023;
    return ((i64)n << 16) + LOG2_TABLE[index];
}

__device__ inline i64 cross_entropy_value(i64 chosen, i64 maximum, i64 total) {
    return (maximum - chosen) * 64 + log2_q16(total < 1 ? 1 : total) - (16 << 16);
}

extern "C" __global__ void cross_entropy(i64 count, const i32* z, const i32* maximum,
                                         const i64* total, const void* labels, i64 label_dtype,
                                         i64 classes, i64* out) {
    const i64 row = INDEX();
    if (row >= count) return;
    // A label outside [0, classes) counts as the nearest class.
    const i64 label = clamp(load(labels, label_dtype, row), 0, classes - 1);
    out[row] = cross_entropy_value(z[row * classes + label], maximum[row], total[row]);
}
