// batched_matmul: of each pair of matrices of two stacks, the sum over k of a[row, k] b[k, column],
// exact in int64; a transpose is a pair of strides.
#include "law.cuh"

extern "C" __global__ void batched_matmul(i64 count, const void* a, i64 a_dtype, i64 a_row,
                                          i64 a_inner, const void* b, i64 b_dtype, i64 b_inner,
                                          i64 b_column, i64 rows, i64 columns, i64 inner,
                                          i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 matrix = i / (rows * columns), row = i / columns % rows, column = i % columns;
    const i64 first_a = matrix * rows * inner, first_b = matrix * inner * columns;
    i64 total = 0;
    for (i64 k = 0; k < inner; k++) {
        const i64 left = load(a, a_dtype, first_a + row * a_row + k * a_inner);
        const i64 right = load(b, b_dtype, first_b + k * b_inner + column * b_column);
        total = wrap_add(total, wrap_mul(left, right));
    }
    out[i] = total;
}
