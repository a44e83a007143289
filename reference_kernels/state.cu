// state: the value of a recurrent tensor before the step.
#include "law.cuh"

extern "C" __global__ void state(i64 count, const void* x, i64 x_dtype, void* out, i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    store(out, out_dtype, i, load(x, x_dtype, i));
}
