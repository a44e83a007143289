// slice: along one axis, the elements from ``start`` on.
#include "law.cuh"

// ``from`` and ``to``: extents of the input and the output along the axis; ``inner``: elements of
// one place along it.
extern "C" __global__ void slice(i64 count, const void* x, i64 x_dtype, i64 from, i64 to,
                                 i64 inner, i64 start, void* out, i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 row = i / (to * inner), along = i / inner % to, within = i % inner;
    store(out, out_dtype, i, load(x, x_dtype, (row * from + start + along) * inner + within));
}
