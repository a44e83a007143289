// keep_span: the elements of each row within its span, and ``fill`` elsewhere.
#include "law.cuh"

// Row r has span r mod ``spans_count``: its begin and its end.
extern "C" __global__ void keep_span(i64 count, const void* x, i64 x_dtype, i64 columns,
                                     const i32* spans, i64 spans_count, i64 fill, void* out,
                                     i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 column = i % columns, span = i / columns % spans_count;
    const bool is_kept = spans[2 * span] <= column && column < spans[2 * span + 1];
    store(out, out_dtype, i, is_kept ? load(x, x_dtype, i) : fill);
}
