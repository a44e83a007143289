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
#include "chain.cuh"
#include "warp.cuh"

extern "C" __global__ void softmax_grad_sums(i64 count, const i16* p, const i16* grad, i64 classes,
                                             i64* sums) {
    const i64 row = INDEX() / 32, lane = threadIdx.x % 32;
    if (row >= count) return;  // the whole warp
    const i64 end = (row + 1) * classes;
    i64 total = 0;
    if (classes % 8 == 0) {
        for (i64 j = row * classes + 8 * lane; j < end; j += 8 * 32) {
            const auto some = load_pack<8>(p, j), slopes = load_pack<8>(grad, j);
            for (int k = 0; k < 8; k++) total = wrap_add(total, some.v[k] * slopes.v[k]);
        }
    } else {
        for (i64 j = row * classes + lane; j < end; j += 32) total = wrap_add(total, p[j] * grad[j]);
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
