// divide: floor((e 2^14 + floor(S / 2)) / S) with S = max(total, 1), the low 16 bits of it.
#pragma once
#include "law.cuh"

__device__ inline i64 divide_value(i64 e, i64 total) {
    const i64 divisor = total < 1 ? 1 : total;
    const i64 numerator = e * 16384 + divisor / 2;
    // Division of integers rounds towards zero; the law rounds down.
    const i64 quotient = numerator / divisor;
    return (i16)(quotient - (numerator % divisor < 0 ? 1 : 0));
}

extern "C" __global__ void divide(i64 count, const i32* e, const i64* total, i64 classes,
                                  i16* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = (i16)divide_value(e[i], total[i / classes]);
}

// --- fast: what does not change along a row is computed once
#include "division.cuh"

__device__ inline i64 divide_quick(i64 e, const Divisor& total) {
    return (i16)divide_floor(e * 16384 + (i64)(total.value / 2), total);
}
