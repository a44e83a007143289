// logit_grad: floor((e 2^29 + floor(S / 2)) / S) - 2^29 onehot(label) with S = max(total, 1), the low
// 32 bits of it.
#pragma once
#include "law.cuh"

constexpr i64 FINE_ONE = 1 << 29;

// A label outside [0, classes) counts as the nearest class.
__device__ inline i64 logit_grad_value(i64 e, i64 total, i64 label, i64 column, i64 classes) {
    const i64 divisor = total < 1 ? 1 : total;
    const i64 numerator = e * FINE_ONE + divisor / 2;
    // Division of integers rounds towards zero; the law rounds down.
    const i64 share = numerator / divisor - (numerator % divisor < 0 ? 1 : 0);
    return (i32)(share - (column == clamp(label, 0, classes - 1) ? FINE_ONE : 0));
}

extern "C" __global__ void logit_grad(i64 count, const i32* e, const i64* total, const void* labels,
                                      i64 label_dtype, i64 classes, i32* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 row = i / classes;
    const i64 label = load(labels, label_dtype, row);
    out[i] = (i32)logit_grad_value(e[i], total[row], label, i % classes, classes);
}

// --- fast: what does not change along a row is computed once
#include "division.cuh"

__device__ inline i64 logit_grad_quick(i64 e, const Divisor& total, i64 label, i64 column,
                                       i64 classes) {
    const i64 share = divide_floor(e * FINE_ONE + (i64)(total.value / 2), total);
    return (i32)(share - (column == clamp(label, 0, classes - 1) ? FINE_ONE : 0));
}
