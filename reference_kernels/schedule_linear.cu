// schedule_linear: the rate of step t on straight lines between starts, rounded half up.
#include "law.cuh"

extern "C" __global__ void schedule_linear(i64 count, const i64* t, const i64* starts,
                                           const i64* rates, i64 entries, i64* out) {
    if (INDEX() >= count) return;
    i64 at = -1;
    while (at + 1 < entries && starts[at + 1] <= t[0]) at++;
    if (at < 0 || at == entries - 1) {
        out[0] = rates[at < 0 ? 0 : at];
        return;
    }
    const i64 length = starts[at + 1] - starts[at];
    const i64 twice = 2 * (rates[at + 1] - rates[at]) * (t[0] - starts[at]) + length;
    // Division of integers rounds towards zero; the law rounds down.
    const i64 rise = twice / (2 * length) - (twice % (2 * length) < 0 ? 1 : 0);
    out[0] = rates[at] + rise;
}
