// inverse_root: floor(numerator / floor(sqrt(v 4^lift))) with v = max(s, 0) + epsilon.
#pragma once
#include "law.cuh"

// The largest integer whose square is at most x < 2^62, bit by bit from above.
__device__ inline i64 integer_root(i64 x) {
    i64 root = 0;
    for (i64 bit = 1ll << 30; bit > 0; bit >>= 1) {
        const i64 larger = root + bit;
        if (larger * larger <= x) root = larger;
    }
    return root;
}

// A v that would be 2^62 or more under the root counts as the largest that is not.
__device__ inline i64 inverse_root_value(i64 s, i64 epsilon, i64 lift, i64 numerator) {
    const i64 most = ((1ll << 62) - 1) >> (2 * lift);
    const i64 v = clamp(clamp(s, 0, most) + epsilon, 0, most);
    return numerator / integer_root(v << (2 * lift));
}

extern "C" __global__ void inverse_root(i64 count, const i64* s, i64 epsilon, i64 lift,
                                        i64 numerator, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = inverse_root_value(s[i], epsilon, lift, numerator);
}
