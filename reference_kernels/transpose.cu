// transpose: axis i of the output is axis perm[i] of the input.
#include "law.cuh"

// ``axes``: for each axis of the output its extent, then the input's stride along that axis.
extern "C" __global__ void transpose(i64 count, const void* x, i64 x_dtype, i64 rank,
                                     const i64* axes, void* out, i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    i64 rest = i, source = 0;
    for (i64 axis = rank - 1; axis >= 0; axis--) {
        source += rest % axes[2 * axis] * axes[2 * axis + 1];
        rest /= axes[2 * axis];
    }
    store(out, out_dtype, i, load(x, x_dtype, source));
}
