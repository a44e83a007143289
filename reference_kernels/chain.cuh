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

// What ``saturate`` of law.cuh gives, in fewer instructions, for the dtype is known when a chain is
// compiled; `clamped` grows by one if that is not the value.
__device__ inline i64 saturate_counted(i64 value, i64 dtype, u32& clamped) {
    if (dtype != I8 && dtype != I16 && dtype != I32) return value;
    const i64 most = saturate(1ll << 40, dtype);
    const bool is_beyond = (u64)value + (u64)most > 2 * (u64)most;
    clamped += is_beyond;
    return is_beyond ? (value < 0 ? -most : most) : value;
}
