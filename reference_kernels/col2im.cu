// col2im: for each pixel the sum, in int64, of the patch elements that came from it.
#include "window.cuh"

extern "C" __global__ void col2im(i64 count, const void* patches, i64 patches_dtype,
                                  const Window* window, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const Place pixel = window->pixel(i);
    Place place;
    i64 total = 0;
    for (i64 offset = 0; offset < window->area(); offset++)
        if (window->find_window(pixel, offset, &place)) {
            const i64 element = window->index_patch(place, offset);
            total = wrap_add(total, load(patches, patches_dtype, element));
        }
    out[i] = total;
}

// --- fast: where windows move by one pixel, the sums are those of a convolution of the gradients
// with the turned kernel, and patches of int64 are never made (vtrain/engines/cuda/dense.py)

// kernel [outputs][area][channels] -> turned [area][outputs][channels], the area backwards.
extern "C" __global__ void col2im_turn_kernel(i64 count, const void* kernel, i64 dtype, i64 outputs,
                                              i64 area, i64 channels, void* turned) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 channel = i % channels, output = i / channels % outputs;
    const i64 offset = area - 1 - i / channels / outputs;
    store(turned, dtype, i, load(kernel, dtype, (output * area + offset) * channels + channel));
}
