// sgd_update: sat32(w - rs(V rate, shift)), w and V int32, the rate an int64 scalar.
#pragma once
#include "law.cuh"

// Before saturation.
__device__ inline i64 sgd_update_value(i64 weight, i64 velocity, i64 rate, i64 shift) {
    return wrap_sub(weight, rs(wrap_mul(velocity, rate), shift));
}

extern "C" __global__ void sgd_update(i64 count, const i32* weight, const i32* velocity,
                                      const i64* rate, i64 shift, i32* out, u64* saturated) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 value = sgd_update_value(weight[i], velocity[i], rate[0], shift);
    store_saturated(out, I32, i, value, saturated);
}
