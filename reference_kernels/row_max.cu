// row_max: [rows, classes] int32 -> the largest of each row.
#include "rows.cuh"

extern "C" __global__ void row_max(i64 count, const i32* x, i64 classes, i32* out) {
    const i64 row = INDEX();
    if (row >= count) return;
    out[row] = (i32)reduce_row<TakesLarger>(x + row * classes, classes, 0, 1);
}

// --- fast: a warp, or a block, a row

extern "C" __global__ void row_max_warps(i64 count, const i32* x, i64 classes, i32* out) {
    reduce_rows_by_warps<TakesLarger>(count, x, classes, out);
}

extern "C" __global__ void row_max_blocks(i64 count, const i32* x, i64 classes, i32* out) {
    reduce_rows_by_blocks<TakesLarger>(x, classes, out);
}
