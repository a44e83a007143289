// relu_grad: the gradient where the forward output is positive, else 0.
#pragma once
#include "law.cuh"

__device__ inline i64 relu_grad_value(i64 grad, i64 output) { return output > 0 ? grad : 0; }

extern "C" __global__ void relu_grad(i64 count, const void* grad, i64 grad_dtype,
                                     const void* output, i64 output_dtype, void* out,
                                     i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 value = relu_grad_value(load(grad, grad_dtype, i), load(output, output_dtype, i));
    store(out, out_dtype, i, value);
}
