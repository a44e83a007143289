// adam_mean: sat32(m + rs((g 2^lift - m) rate, shift)), m int32, g int16.
#pragma once
#include "law.cuh"

// Before saturation.
__device__ inline i64 adam_mean_value(i64 mean, i64 grad, i64 lift, i64 rate, i64 shift) {
    return mean + rs((shift_left(grad, lift) - mean) * rate, shift);
}

extern "C" __global__ void adam_mean(i64 count, const i32* mean, const i16* grad, i64 lift,
                                     i64 rate, i64 shift, i32* out, u64* saturated) {
    const i64 i = INDEX();
    if (i >= count) return;
    store_saturated(out, I32, i, adam_mean_value(mean[i], grad[i], lift, rate, shift), saturated);
}
