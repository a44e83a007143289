// im2col: each window of an image as a row [offset, channel]; padding is 0.
#include "window.cuh"

extern "C" __global__ void im2col(i64 count, const void* x, i64 x_dtype, const Window* window,
                                  void* out, i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 channel = i % window->channels, element = i / window->channels;
    const i64 offset = element % window->area(), patch = element / window->area();
    const Place place = window->window(patch * window->channels + channel);
    const i64 pixel = window->find_pixel(place, offset);
    store(out, out_dtype, i, pixel < 0 ? 0 : load(x, x_dtype, pixel));
}
