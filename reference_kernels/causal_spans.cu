// causal_spans: place i attends to itself and to the places before it, ``window`` of them at most.
#include "law.cuh"

extern "C" __global__ void causal_spans(i64 count, i64 window, i32* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 end = i / 2 + 1, begin = end > window ? end - window : 0;
    out[i] = (i32)(i % 2 == 0 ? begin : end);
}
