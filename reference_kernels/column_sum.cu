// column_sum: the sum over all axes but the last, in int64.
#include "warp.cuh"

extern "C" __global__ void column_sum(i64 count, const void* x, i64 x_dtype, i64 rows, i64* out) {
    const i64 column = INDEX();
    if (column >= count) return;
    i64 total = 0;
    for (i64 row = 0; row < rows; row++)
        total = wrap_add(total, load(x, x_dtype, row * count + column));
    out[column] = total;
}

// --- fast: blocks of 32 columns and 32 rows at a time leave parts, the sums of some of the rows;
// the same kernel adds the parts

extern "C" __global__ void column_sum_parts(i64 columns, const void* x, i64 x_dtype, i64 rows,
                                            i64* parts) {
    __shared__ i64 sums[32][33];  // one column more keeps a column off a single bank
    const i64 column = (i64)blockIdx.x * 32 + threadIdx.x;
    i64 total = 0;
    if (column < columns) {
#pragma unroll 4
        for (i64 row = (i64)blockIdx.y * 32 + threadIdx.y; row < rows; row += (i64)gridDim.y * 32)
            total = wrap_add(total, load(x, x_dtype, row * columns + column));
    }
    sums[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    // Now a warp has one column.
    total = reduce_warp<Adds>(sums[threadIdx.x][threadIdx.y]);
    const i64 summed = (i64)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && summed < columns) parts[blockIdx.y * columns + summed] = total;
}
