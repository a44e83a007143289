// sum_pool: the sum of each window in int64; padding is 0.
#include "window.cuh"

extern "C" __global__ void sum_pool(i64 count, const void* x, i64 x_dtype, const Window* window,
                                    i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const Place place = window->window(i);
    i64 total = 0;
    for (i64 offset = 0; offset < window->area(); offset++) {
        const i64 pixel = window->find_pixel(place, offset);
        if (pixel >= 0) total = wrap_add(total, load(x, x_dtype, pixel));
    }
    out[i] = total;
}
