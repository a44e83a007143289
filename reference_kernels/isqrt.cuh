// The floor of a square root, exactly.  Twin of isqrt in vtrain/spec/number.py.
#pragma once
#include "law.cuh"

// Of x >= 0: digit by digit, two bits of x at a time.
__device__ inline i64 isqrt(i64 x) {
    u64 rest = (u64)x, root = 0;
    for (u64 bit = 1ull << 62; bit != 0; bit >>= 2) {
        const u64 trial = root + bit;
        root >>= 1;
        if (rest >= trial) {
            rest -= trial;
            root += bit;
        }
    }
    return (i64)root;
}
