// clip_factor: min(2^15, floor(limit 2^15 / isqrt(max(total, 1)))).
#include "isqrt.cuh"

extern "C" __global__ void clip_factor(i64 count, const i64* total, i64 limit, i64* out) {
    if (INDEX() >= count) return;
    const i64 norm = isqrt(total[0] < 1 ? 1 : total[0]);
    out[0] = clamp(shift_left(limit, 15) / norm, 0, 1ll << 15);
}
