// adam_correction: sqrt(1 - beta2^n) / (1 - beta1^n) of step t, n = t + 1, in 24 fraction bits.
#include "isqrt.cuh"

// base^exponent of 31 fraction bits, rounded after each product of square and multiply.
__device__ inline i64 power31(i64 base, i64 exponent) {
    i64 power = 1ll << 31;
    for (i64 bit = 62; bit >= 0; bit--) {
        // Of leading zeros this is 1 times 1.
        power = rs(power * power, 31);
        if (exponent >> bit & 1) power = rs(power * base, 31);
    }
    return power;
}

extern "C" __global__ void adam_correction(i64 count, const i64* t, i64 beta1, i64 beta2,
                                           i64* out) {
    if (INDEX() >= count) return;
    const i64 n = clamp(t[0], 0, 1ll << 40) + 1;
    const i64 rest1 = (1ll << 31) - power31(beta1, n), rest2 = (1ll << 31) - power31(beta2, n);
    out[0] = clamp(shift_left(isqrt(shift_left(rest2, 31)), 24) / rest1, 0, 1ll << 32);
}
