// largest: the largest magnitude of all elements, 0 of none.  No operator of the law: calibration
// asks for it.  Magnitudes are unsigned, since int64 has none for -2^63.
#include "warp.cuh"

__device__ inline u64 magnitude(i64 x) { return x < 0 ? 0 - (u64)x : (u64)x; }

// Of two values the one of larger magnitude, as its magnitude.
struct TakesLargerMagnitude {
    static __device__ i64 of_nothing() { return 0; }
    static __device__ i64 join(i64 a, i64 b) {
        const u64 left = magnitude(a), right = magnitude(b);
        return (i64)(left < right ? right : left);
    }
};

extern "C" __global__ void largest(i64 count, const void* x, i64 x_dtype, i64 elements, u64* out) {
    if (INDEX() >= count) return;
    u64 found = 0;
    for (i64 i = 0; i < elements; i++) {
        const u64 size = magnitude(load(x, x_dtype, i));
        if (size > found) found = size;
    }
    out[0] = found;
}

// --- fast: each block leaves a part; one more block takes the largest of them (the same kernel, on
// int64: 2^63 reads as -2^63 there, which has that magnitude)

extern "C" __global__ void largest_parts(i64 elements, const void* x, i64 x_dtype, u64* parts) {
    i64 found = 0;
    for (i64 i = INDEX(); i < elements; i += (i64)gridDim.x * blockDim.x)
        found = TakesLargerMagnitude::join(found, load(x, x_dtype, i));
    found = reduce_block<TakesLargerMagnitude>(found);
    if (threadIdx.x == 0) parts[blockIdx.x] = (u64)found;
}
