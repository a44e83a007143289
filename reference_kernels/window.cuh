// Sliding windows over an NHWC image.  Twin of Window in vtrain/ops/layout.py.
#pragma once

#include "law.cuh"

// Padding of max pooling: no operand is less.
constexpr i64 BELOW_INT16 = -32768;

// An element of [batch, rows, columns, channels], or of the image.
struct Place {
    i64 batch, y, x, channel;
};

// Image, windows down and across, and how a window moves; laid out as lowering packs it.
struct Window {
    i64 height, width, channels, rows, columns;
    i64 kernel_height, kernel_width, stride_y, stride_x, top, left;

    __device__ i64 area() const { return kernel_height * kernel_width; }

    __device__ Place place(i64 index, i64 extent_y, i64 extent_x) const {
        const i64 pixel = index / channels, line = pixel / extent_x;
        return {line / extent_y, line % extent_y, pixel % extent_x, index % channels};
    }
    __device__ Place window(i64 index) const { return place(index, rows, columns); }
    __device__ Place pixel(i64 index) const { return place(index, height, width); }

    // Flat index of the pixel that ``window`` has at ``offset``, -1 where that is padding.
    __device__ i64 find_pixel(Place window, i64 offset) const {
        const i64 y = window.y * stride_y + offset / kernel_width - top;
        const i64 x = window.x * stride_x + offset % kernel_width - left;
        if (y < 0 || y >= height || x < 0 || x >= width) return -1;
        return ((window.batch * height + y) * width + x) * channels + window.channel;
    }

    // Whether a window has ``pixel`` at ``offset``, and which.
    __device__ bool find_window(Place pixel, i64 offset, Place* found) const {
        const i64 y = pixel.y + top - offset / kernel_width;
        const i64 x = pixel.x + left - offset % kernel_width;
        if (y < 0 || y % stride_y != 0 || y / stride_y >= rows) return false;
        if (x < 0 || x % stride_x != 0 || x / stride_x >= columns) return false;
        *found = {pixel.batch, y / stride_y, x / stride_x, pixel.channel};
        return true;
    }

    // Flat index of a window's element in [batch, rows, columns, channels].
    __device__ i64 index_window(Place window) const {
        return ((window.batch * rows + window.y) * columns + window.x) * channels + window.channel;
    }
    // Flat index of its element at ``offset`` in [batch, rows, columns, area, channels].
    __device__ i64 index_patch(Place window, i64 offset) const {
        const i64 patch = (window.batch * rows + window.y) * columns + window.x;
        return (patch * area() + offset) * channels + window.channel;
    }
};
