// Divisions and roots for chains (vtrain/engines/cuda/fuse.py), in a third of the instructions that plain
// ones take, and with the same results: a float is a first guess only, and integers decide.  So no
// rounding of a float shows, whatever a device makes of it within the errors that are counted here.
#pragma once
#include "law.cuh"

// A divisor d of 1 to 2^63 - 1, and its inverse: less than M = 2^64 / d, by less than 2.2.
struct Divisor {
    u64 value, inverse;
};

// Of a divisor below 1, that of 1.
//
// The guess c / d with c = 2^64 (1 - 2^-20) is off by d's rounding (2^-24 of it) and two units in the
// last place of the quotient (2^-22): together less than 2^-21, so that it stays below M.  With the
// rounding to an integer it is below M by a0 <= 2^-19.3 M + 1.
// A step of Newton, m + floor(m (2^64 - m d) / 2^64), is below M by a^2 / M and less than 1 more, where m
// is by a; with M > 2 that makes a1 < 2^-38.6 M + 1.6 after one, a2 < 2^-77 M + 1.2 + 1 < 2.2 after two.
__device__ inline Divisor make_divisor(i64 d) {
    const u64 value = d < 1 ? 1 : (u64)d;
    u64 inverse = (u64)__fdividef(18446726481523507200.0f, (float)value);
    inverse += __umul64hi(inverse, 0 - inverse * value);
    inverse += __umul64hi(inverse, 0 - inverse * value);
    return {value, inverse};
}

// floor(n / d) for n from -(2^62 + 2^61) to 2^62 + 2^61.
//
// Of n >= 0, floor(n inverse / 2^64) is below n / d by less than 1 + 2.2 n / 2^64 < 1.83: it is the
// quotient, or one less, and then the rest is d or more.  Of n < 0 the floor is -1 - floor((-1 - n) / d).
__device__ inline i64 divide_floor(i64 n, const Divisor& d) {
    const u64 sign = (u64)(n >> 63), magnitude = (u64)n ^ sign;
    const u64 below = __umul64hi(magnitude, d.inverse);
    const u64 quotient = magnitude - below * d.value >= d.value ? below + 1 : below;
    return (i64)(quotient ^ sign);
}

// The largest integer whose square is at most x; x from 0 to 2^63 - 1, s its true root.
//
// The guess r is s but for 2^-21 of it and less than 1: all roundings and the two units of the inverse
// root are 2^-22.3 of it; what is added to x (for 0, which has no inverse) matters where x is small, and
// is less than the 1 then.  With y as good an inverse of s, (x - r^2) y / 2 is s - r, less (s - r)^2 / (2 s)
// of 0 to 0.51, and off by a further 2^-20 of its at most 1,460 and by 2^-12, the rounding of the sum
// with 4096.  So r and the floor of that are s, less 0.00 to 1.52 and no more than 0.01 above it: the
// floor of s, or one beside it.
__device__ inline u64 quick_root(u64 x) {
    const float wide = (float)x + 9.5367431640625e-7f;
    const float inverse = rsqrtf(wide);
    const u32 guess = (u32)(wide * inverse);
    const float rest = (float)(i64)(x - (u64)guess * guess);
    const u64 root = guess + (u32)(i32)(rest * (0.5f * inverse) + 4096.0f) - 4096u;
    const u64 square = root * root;
    if (square > x) return root - 1;
    return x - square > 2 * root ? root + 1 : root;
}
