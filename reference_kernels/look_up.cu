// look_up: a function by table, at the point of its grid that is nearest to x.
#pragma once
#include "curves.cuh"

// T[j] with j = rs(x, shift), held to the ends of the table; the table has j >= 0.
__device__ inline i64 look_up_value(i64 x, i64 table, i64 shift) {
    const i64 last = curve_last(table), j = clamp(rs(x, shift), -last, last);
    const i64 entry = curve_entry(table, j < 0 ? -j : j);
    if (j >= 0) return entry;
    switch (curve_symmetry(table)) {
        case COMPLEMENT: return CURVE_ONE - entry;
        case ODD: return -entry;
        default: return entry;
    }
}

extern "C" __global__ void look_up(i64 count, const i16* x, i64 table, i64 shift, i16* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = (i16)look_up_value(x[i], table, shift);
}
