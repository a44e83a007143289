// row_dot: the int64 sum of the products of each row of a with the row of b.
#include "warp.cuh"

// Products of columns first, first + step, ... of a row.
__device__ inline i64 dot_part(const void* a, i64 a_dtype, const void* b, i64 b_dtype, i64 row,
                               i64 width, i64 first, i64 step) {
    i64 sum = 0;
    for (i64 column = first; column < width; column += step) {
        const i64 i = row * width + column;
        sum = wrap_add(sum, wrap_mul(load(a, a_dtype, i), load(b, b_dtype, i)));
    }
    return sum;
}

extern "C" __global__ void row_dot(i64 count, const void* a, i64 a_dtype, const void* b,
                                   i64 b_dtype, i64 width, i64* out) {
    const i64 row = INDEX();
    if (row >= count) return;
    out[row] = dot_part(a, a_dtype, b, b_dtype, row, width, 0, 1);
}

// --- fast: a warp a row

extern "C" __global__ void row_dot_warps(i64 count, const void* a, i64 a_dtype, const void* b,
                                         i64 b_dtype, i64 width, i64* out) {
    const i64 row = INDEX() / 32, lane = threadIdx.x % 32;
    if (row >= count) return;  // the whole warp
    const i64 sum = reduce_warp<Adds>(dot_part(a, a_dtype, b, b_dtype, row, width, lane, 32));
    if (lane == 0) out[row] = sum;
}
