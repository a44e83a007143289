// sub_one_hot: p - onehot(label), the gradient of the cross-entropy, modulo 2^16.
#pragma once
#include "law.cuh"

// A label outside [0, classes) counts as the nearest class.
__device__ inline i64 sub_one_hot_value(i64 p, i64 label, i64 column, i64 classes) {
    return (i16)(p - (column == clamp(label, 0, classes - 1) ? 16384 : 0));
}

extern "C" __global__ void sub_one_hot(i64 count, const i16* p, const void* labels, i64 label_dtype,
                                       i64 classes, i16* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 label = load(labels, label_dtype, i / classes);
    out[i] = (i16)sub_one_hot_value(p[i], label, i % classes, classes);
}
