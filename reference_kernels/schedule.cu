// schedule: the rate of step t, rates[i] for the last i with starts[i] <= t.
#include "law.cuh"

extern "C" __global__ void schedule(i64 count, const i64* t, const i64* starts, const i64* rates,
                                    i64 entries, i64* out) {
    if (INDEX() >= count) return;
    i64 current = rates[0];
    for (i64 i = 0; i < entries; i++)
        if (starts[i] <= t[0]) current = rates[i];
    out[0] = current;
}
