// matmul: sum over k of a[row, k] b[k, column], exact in int64; a transpose is a pair of strides.
#include "law.cuh"

extern "C" __global__ void matmul(i64 count, const void* a, i64 a_dtype, i64 a_row, i64 a_inner,
                                  const void* b, i64 b_dtype, i64 b_inner, i64 b_column,
                                  i64 columns, i64 inner, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 row = i / columns, column = i % columns;
    i64 total = 0;
    for (i64 k = 0; k < inner; k++) {
        const i64 left = load(a, a_dtype, row * a_row + k * a_inner);
        const i64 right = load(b, b_dtype, k * b_inner + column * b_column);
        total = wrap_add(total, wrap_mul(left, right));
    }
    out[i] = total;
}

// --- fast: pack the operands, multiply on tensor cores, and take the epilogue along
#include "add_bias.cu"
#include "relu.cu"
#include "rescale.cu"

#include "gemm_pack.cuh"
#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 800  // asynchronous copies begin there
#include "gemm_mma.cuh"
#endif
#include "gemm_wgmma.cuh"

// Zeroes what products add to.
extern "C" __global__ void matmul_clear(i64 count, i64* sums) {
    const i64 i = INDEX();
    if (i < count) sums[i] = 0;
}

// The epilogue of sums that several blocks have added up.
extern "C" __global__ void matmul_finish(i64 count, const i64* sums, i64 n, i64 flags, void* out,
                                         i64 out_dtype, const i32* bias, i64 bias_shift,
                                         i64 multiplier, i64 shift, u64* saturated) {
    const i64 i = INDEX();
    if (i >= count) return;
    const Epilogue epilogue = {1,    n,          flags,      nullptr, out,      out_dtype,
                               bias, bias_shift, multiplier, shift,   saturated};
    u64 clamped = 0;
    store(out, out_dtype, i, epilogue.narrow(sums[i], epilogue.load_bias(i % n), clamped));
    if (clamped != 0) atomicAdd(saturated, clamped);
}
