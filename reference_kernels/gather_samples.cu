// gather_samples: the samples that the batch takes, rows or windows of tokens; zeros where there is
// no such sample.
#include "law.cuh"

// Code of tokens of two bytes, which no tensor has.
constexpr i64 U16 = 5;

// Sample s has the elements from start + s stride on, which windows of tokens have in common.
// Indices lie in [0, last] in a legal graph, which draws them from that many samples.
extern "C" __global__ void gather_samples(i64 count, const void* index, i64 index_dtype, i64 last,
                                          const void* samples, i64 samples_dtype, i64 stride,
                                          i64 start, i64 per_sample, void* out, i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 sample = load(index, index_dtype, i / per_sample);
    i64 value = 0;
    if (0 <= sample && sample <= last) {
        const i64 at = start + sample * stride + i % per_sample;
        value = samples_dtype == U16 ? ((const u16*)samples)[at] : load(samples, samples_dtype, at);
    }
    // Of tokens beyond int32 the low 32 bits.
    store(out, out_dtype, i, value);
}
