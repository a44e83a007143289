// max_pool: the maximum of each window; padding never wins.
#include "window.cuh"

extern "C" __global__ void max_pool(i64 count, const void* x, i64 x_dtype, const Window* window,
                                    void* out, i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    const Place place = window->window(i);
    i64 most = BELOW_INT16;
    for (i64 offset = 0; offset < window->area(); offset++) {
        const i64 pixel = window->find_pixel(place, offset);
        const i64 value = pixel < 0 ? BELOW_INT16 : load(x, x_dtype, pixel);
        if (value > most) most = value;
    }
    store(out, out_dtype, i, most);
}
