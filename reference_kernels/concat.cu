// concat: one input takes its place along the axis of the output; launched once for each input.
#include "law.cuh"

// One thread for each element of the input.  ``from`` and ``to``: extents of the input and the
// output along the axis; ``inner``: elements of one place along it; ``begin``: the input's first
// place in the output.
extern "C" __global__ void concat(i64 count, const void* x, i64 from, i64 to, i64 inner, i64 begin,
                                  void* out, i64 dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 row = i / (from * inner), along = i / inner % from, within = i % inner;
    store(out, dtype, (row * to + begin + along) * inner + within, load(x, dtype, i));
}
