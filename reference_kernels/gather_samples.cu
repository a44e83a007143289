// gather_samples: the rows of the samples that the batch takes; zeros where there is no such row.
#include "law.cuh"

// Indices lie in [0, last] in a legal graph, which draws them from that many samples.
extern "C" __global__ void gather_samples(i64 count, const void* index, i64 index_dtype, i64 last,
                                          const void* samples, i64 per_sample, void* out,
                                          i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 sample = load(index, index_dtype, i / per_sample);
    const bool exists = 0 <= sample && sample <= last;
    const i64 value = exists ? load(samples, out_dtype, sample * per_sample + i % per_sample) : 0;
    store(out, out_dtype, i, value);
}
