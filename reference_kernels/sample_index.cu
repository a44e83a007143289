// sample_index: which samples step t takes, by the keyed permutation of each epoch.
#pragma once
#include "philox.cuh"

constexpr i64 LAST_STEP = 1ll << 40;

// Steps outside [0, 2^40], which no legal graph has, count as the nearest.
__device__ inline i64 sample_index_value(i64 t, i64 slot, i64 batch, i64 samples, i64 seed) {
    const u64 position = (u64)clamp(t, 0, LAST_STEP) * (u64)batch + (u64)slot;
    return (i64)sample_at((u64)seed, (u64)samples, position);
}

extern "C" __global__ void sample_index(i64 count, const i64* t, i64 samples, i64 seed, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = sample_index_value(t[0], i, count, samples, seed);
}
