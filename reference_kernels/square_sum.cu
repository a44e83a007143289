// square_sum: rs(sum of the squares of all elements, shift), the loss of a batch.
#include "warp.cuh"

extern "C" __global__ void square_sum(i64 count, const i16* x, i64 elements, i64 shift, i64* out) {
    if (INDEX() >= count) return;
    i64 total = 0;
    for (i64 i = 0; i < elements; i++) total = wrap_add(total, (i64)x[i] * x[i]);
    out[0] = rs(total, shift);
}

// --- fast: each block leaves a part; one block adds the parts and rounds

extern "C" __global__ void square_sum_parts(i64 elements, const i16* x, i64* parts) {
    i64 total = 0;
    for (i64 i = INDEX(); i < elements; i += (i64)gridDim.x * blockDim.x)
        total = wrap_add(total, (i64)x[i] * x[i]);
    total = reduce_block<Adds>(total);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

extern "C" __global__ void square_sum_round(i64 elements, const i64* parts, i64 shift, i64* out) {
    i64 total = 0;
    for (i64 i = threadIdx.x; i < elements; i += blockDim.x) total = wrap_add(total, parts[i]);
    total = reduce_block<Adds>(total);
    if (threadIdx.x == 0) out[0] = rs(total, shift);
}
