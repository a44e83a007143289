// What generated kernels are made of (vtrain/engines/cuda/fuse.py): packs of neighbouring elements
// that are loaded and stored at once, and saturation counted in a register.
#pragma once
#include "law.cuh"

// N neighbours; at most 16 bytes of them are one access.
template <typename T, int N>
struct alignas(sizeof(T) * N <= 16 ? sizeof(T) * N : 16) Pack {
    T v[N];
};

// Element `at` and its neighbours; `at` is a multiple of N, and data aligned as all buffers are.
template <int N, typename T>
__device__ inline Pack<T, N> load_pack(const T* data, i64 at) {
    return *(const Pack<T, N>*)(data + at);
}

template <int N, typename T>
__device__ inline void store_pack(T* data, i64 at, const Pack<T, N>& pack) {
    *(Pack<T, N>*)(data + at) = pack;
}

// The saturated value; `clamped` grows by one if that changed it.
__device__ inline i64 saturate_counted(i64 value, i64 dtype, u64& clamped) {
    const i64 narrow = saturate(value, dtype);
    clamped += narrow != value;
    return narrow;
}
