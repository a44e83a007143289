// Reductions over a warp and over a block.  The numbers are integers modulo 2^64, so any order of
// adding gives the same sum.
#pragma once

#include "law.cuh"

struct Adds {
    static __device__ i64 of_nothing() { return 0; }
    static __device__ i64 join(i64 a, i64 b) { return wrap_add(a, b); }
};

struct TakesLarger {
    static __device__ i64 of_nothing() { return -9223372036854775807ll - 1; }
    static __device__ i64 join(i64 a, i64 b) { return a < b ? b : a; }
};

// The values of the 32 lanes of a warp joined, in lane 0; every lane takes part.
template <class Reduction>
__device__ inline i64 reduce_warp(i64 value) {
    for (int distance = 16; distance > 0; distance /= 2)
        value = Reduction::join(value, __shfl_down_sync(0xffffffffu, value, distance));
    return value;
}

// The values of all threads of a block joined, in thread 0; whole warps, every thread takes part.
// May be called again after a barrier.
template <class Reduction>
__device__ inline i64 reduce_block(i64 value) {
    __shared__ i64 of_warp[32];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    value = reduce_warp<Reduction>(value);
    if (lane == 0) of_warp[warp] = value;
    __syncthreads();
    if (warp == 0) {
        value = lane < blockDim.x / 32 ? of_warp[lane] : Reduction::of_nothing();
        value = reduce_warp<Reduction>(value);
    }
    return value;
}
