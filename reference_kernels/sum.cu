// sum: the int64 sum of all elements, modulo 2^64.
#include "warp.cuh"

extern "C" __global__ void sum(i64 count, const void* x, i64 x_dtype, i64 elements, i64* out) {
    if (INDEX() >= count) return;
    i64 total = 0;
    for (i64 i = 0; i < elements; i++) total = wrap_add(total, load(x, x_dtype, i));
    out[0] = total;
}

// --- fast: each block leaves a part; one more block adds the parts (the same kernel, on int64)

extern "C" __global__ void sum_parts(i64 elements, const void* x, i64 x_dtype, i64* parts) {
    i64 total = 0;
    for (i64 i = INDEX(); i < elements; i += (i64)gridDim.x * blockDim.x)
        total = wrap_add(total, load(x, x_dtype, i));
    total = reduce_block<Adds>(total);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}
