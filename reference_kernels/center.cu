// center: rs(d x - sum of the row, shift), the low 32 bits; rows of d elements.
#include "warp.cuh"

extern "C" __global__ void center(i64 count, const i16* x, i64 width, i64 shift, i32* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i16* row = x + i / width * width;
    i64 sum = 0;
    for (i64 column = 0; column < width; column++) sum += row[column];
    out[i] = (i32)rs(width * x[i] - sum, shift);
}

// --- fast: a warp a row, so that the sum is made once

extern "C" __global__ void center_warps(i64 rows, const i16* x, i64 width, i64 shift, i32* out) {
    const i64 row = INDEX() / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;  // the whole warp
    i64 sum = 0;
    for (i64 column = lane; column < width; column += 32) sum += x[row * width + column];
    sum = __shfl_sync(0xffffffffu, reduce_warp<Adds>(sum), 0);
    for (i64 column = lane; column < width; column += 32) {
        const i64 i = row * width + column;
        out[i] = (i32)rs(width * x[i] - sum, shift);
    }
}
