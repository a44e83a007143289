// sum_pool_grad: for each pixel the sum, in int64, of the gradients of the windows that have it.
#include "window.cuh"

extern "C" __global__ void sum_pool_grad(i64 count, const void* grad, i64 grad_dtype,
                                         const Window* window, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const Place pixel = window->pixel(i);
    Place place;
    i64 total = 0;
    for (i64 offset = 0; offset < window->area(); offset++)
        if (window->find_window(pixel, offset, &place))
            total = wrap_add(total, load(grad, grad_dtype, window->index_window(place)));
    out[i] = total;
}
