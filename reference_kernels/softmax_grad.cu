// softmax_grad: p[j] (grad[j] 2^14 - sum of p[i] grad[i] over the row), exact in int64.
#pragma once
#include "law.cuh"

__device__ inline i64 softmax_grad_value(i64 p, i64 grad, i64 total) {
    return wrap_mul(p, wrap_sub(grad * 16384, total));
}

extern "C" __global__ void softmax_grad(i64 count, const i16* p, const i16* grad, i64 classes,
                                        i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 first = i / classes * classes;
    i64 total = 0;
    for (i64 j = first; j < first + classes; j++) {
        total = wrap_add(total, (i64)p[j] * grad[j]);
    }
    out[i] = softmax_grad_value(p[i], grad[i], total);
}

// --- fast: the sum of a row once, by a warp
#include "warp.cuh"

extern "C" __global__ void softmax_grad_sums(i64 count, const i16* p, const i16* grad, i64 classes,
                                             i64* sums) {
    const i64 row = INDEX() / 32, lane = threadIdx.x % 32;
    if (row >= count) return;  // the whole warp
    i64 total = 0;
    for (i64 j = row * classes + lane; j < (row + 1) * classes; j += 32) {
        total = wrap_add(total, (i64)p[j] * grad[j]);
    }
    total = reduce_warp<Adds>(total);
    if (lane == 0) sums[row] = total;
}

extern "C" __global__ void softmax_grad_apply(i64 count, const i16* p, const i16* grad,
                                              const i64* sums, i64 classes, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = softmax_grad_value(p[i], grad[i], sums[i / classes]);
}
