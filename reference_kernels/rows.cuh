// Reductions of the rows of a matrix of int32, for row_max and row_sum.
#pragma once

#include "chain.cuh"
#include "warp.cuh"

// Elements first, first + step, ... of a row.
template <class Reduction>
__device__ inline i64 reduce_row(const i32* row, i64 classes, i64 first, i64 step) {
    i64 value = Reduction::of_nothing();
    for (i64 column = first; column < classes; column += step)
        value = Reduction::join(value, row[column]);
    return value;
}

// The same by four neighbours at once, where rows are of whole packs of them.
template <class Reduction>
__device__ inline i64 reduce_packs(const i32* row, i64 classes, i64 first, i64 step) {
    if (classes % 4 != 0) return reduce_row<Reduction>(row, classes, first, step);
    i64 value = Reduction::of_nothing();
    for (i64 column = 4 * first; column < classes; column += 4 * step) {
        const auto pack = load_pack<4>(row, column);
        for (int j = 0; j < 4; j++) value = Reduction::join(value, pack.v[j]);
    }
    return value;
}

// A warp a row: neighbouring lanes read neighbouring elements.
template <class Reduction, class Out>
__device__ inline void reduce_rows_by_warps(i64 count, const i32* x, i64 classes, Out* out) {
    const i64 row = INDEX() / 32, lane = threadIdx.x % 32;
    if (row >= count) return;  // the whole warp
    const i64 value = reduce_warp<Reduction>(
        reduce_packs<Reduction>(x + row * classes, classes, lane, 32));
    if (lane == 0) out[row] = (Out)value;
}

// A block a row, for long rows.
template <class Reduction, class Out>
__device__ inline void reduce_rows_by_blocks(const i32* x, i64 classes, Out* out) {
    const i64 row = blockIdx.x;
    const i64 value = reduce_block<Reduction>(
        reduce_packs<Reduction>(x + row * classes, classes, threadIdx.x, blockDim.x));
    if (threadIdx.x == 0) out[row] = (Out)value;
}
