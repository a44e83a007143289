// add_bias: acc[row, column] + rs(bias[column], shift) in int64.
#pragma once
#include "law.cuh"

__device__ inline i64 add_bias_value(i64 acc, i64 bias, i64 shift) {
    return wrap_add(acc, rs(bias, shift));
}

extern "C" __global__ void add_bias(i64 count, const void* acc, i64 acc_dtype, const void* bias,
                                    i64 bias_dtype, i64 columns, i64 shift, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 addend = load(bias, bias_dtype, i % columns);
    out[i] = add_bias_value(load(acc, acc_dtype, i), addend, shift);
}
