// pad: along one axis, ``before`` zeros, the elements of the input, then zeros.
#include "law.cuh"

// ``from`` and ``to``: extents of the input and the output along the axis; ``inner``: elements of
// one place along it.
extern "C" __global__ void pad(i64 count, const void* x, i64 x_dtype, i64 from, i64 to, i64 inner,
                               i64 before, void* out, i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 row = i / (to * inner), along = i / inner % to - before, within = i % inner;
    const bool is_there = along >= 0 && along < from;
    store(out, out_dtype, i,
          is_there ? load(x, x_dtype, (row * from + along) * inner + within) : 0);
}
