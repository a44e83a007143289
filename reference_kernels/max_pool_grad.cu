// max_pool_grad: each window's gradient goes to its first maximum; overlapping windows add.
#include "window.cuh"

// Offset of the first maximum of a window; padding has the least value that there is.
__device__ inline i64 find_maximum(const void* x, i64 x_dtype, const Window* window, Place place) {
    i64 first = 0, most = BELOW_INT16 - 1;
    for (i64 offset = 0; offset < window->area(); offset++) {
        const i64 pixel = window->find_pixel(place, offset);
        const i64 value = pixel < 0 ? BELOW_INT16 : load(x, x_dtype, pixel);
        if (value > most) {
            most = value;
            first = offset;
        }
    }
    return first;
}

extern "C" __global__ void max_pool_grad(i64 count, const void* grad, i64 grad_dtype,
                                         const void* x, i64 x_dtype, const Window* window,
                                         i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const Place pixel = window->pixel(i);
    Place place;
    i64 total = 0;
    for (i64 offset = 0; offset < window->area(); offset++)
        if (window->find_window(pixel, offset, &place) &&
            find_maximum(x, x_dtype, window, place) == offset)
            total = wrap_add(total, load(grad, grad_dtype, window->index_window(place)));
    out[i] = total;
}
