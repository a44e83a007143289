// keep_span: the elements of each row within its span, and ``fill`` elsewhere.
#pragma once
#include "law.cuh"

struct alignas(8) Span {
    i32 begin, end;
};

__device__ inline i64 keep_span_value(i64 x, Span span, i64 column, i64 fill) {
    return span.begin <= column && column < span.end ? x : fill;
}

// Row r has span r mod ``spans_count``: its begin and its end.
extern "C" __global__ void keep_span(i64 count, const void* x, i64 x_dtype, i64 columns,
                                     const i32* spans, i64 spans_count, i64 fill, void* out,
                                     i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 column = i % columns, span = i / columns % spans_count;
    const Span own = {spans[2 * span], spans[2 * span + 1]};
    store(out, out_dtype, i, keep_span_value(load(x, x_dtype, i), own, column, fill));
}

// --- fast: chains read both ends at once

__device__ inline Span load_span(const i32* spans, u32 at) { return ((const Span*)spans)[at]; }
