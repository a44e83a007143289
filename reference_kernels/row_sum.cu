// row_sum: [rows, classes] int32 -> the int64 sum of each row.
#include "rows.cuh"

extern "C" __global__ void row_sum(i64 count, const i32* x, i64 classes, i64* out) {
    const i64 row = INDEX();
    if (row >= count) return;
    out[row] = reduce_row<Adds>(x + row * classes, classes, 0, 1);
}

// --- fast: a warp, or a block, a row

extern "C" __global__ void row_sum_warps(i64 count, const i32* x, i64 classes, i64* out) {
    reduce_rows_by_warps<Adds>(count, x, classes, out);
}

extern "C" __global__ void row_sum_blocks(i64 count, const i32* x, i64 classes, i64* out) {
    reduce_rows_by_blocks<Adds>(x, classes, out);
}
