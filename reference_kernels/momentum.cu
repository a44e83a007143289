// momentum: sat32(V + rs(g, shift) - rs(V decay, 16)), V int32, g the exact int64 gradient.
#pragma once
#include "law.cuh"

// Before saturation.
__device__ inline i64 momentum_value(i64 velocity, i64 grad, i64 decay, i64 shift) {
    return wrap_sub(wrap_add(velocity, rs(grad, shift)), rs(wrap_mul(velocity, decay), 16));
}

extern "C" __global__ void momentum(i64 count, const i32* velocity, const i64* grad, i64 decay,
                                    i64 shift, i32* out, u64* saturated) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 value = momentum_value(velocity[i], grad[i], decay, shift);
    store_saturated(out, I32, i, value, saturated);
}
