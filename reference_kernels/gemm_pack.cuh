// Packing: an operand of int16 or int8, or the windows of an image, as tiles of bytes (gemm.cuh).
//
// A block makes one tile, every plane of it.  A source is an array of ``majors`` rows of ``minors``
// neighbouring elements, read eight at a time; beyond its ends it is 0.  Where the inner axis is
// the minor one, a thread has 16 inner places of a row at hand (pack_along); where it is the major
// one, the tile is turned in shared memory (pack_across).  Windows are never stored as a matrix:
// their elements are taken from the image when a tile is packed.
//
// A packed int16 operand costs 2 bytes read and 2 written an element; at 4,096 cubed both operands
// together take about a tenth of the product's time.
#pragma once

#include "gemm.cuh"
#include "window.cuh"

constexpr int PACK_THREADS = 256;

// Eight neighbours as int16, two to a word; zeros from place ``count`` on.
struct Eight {
    u32 pairs[4];

    // Element ``i``, which is 0 until then; ``i`` is known to the compiler, pairs are registers.
    __device__ void put(int i, i64 value) {
        pairs[i / 2] |= ((u32)value & 0xffff) << (16 * (i % 2));
    }
};

__device__ inline Eight load_eight(const void* x, i64 dtype, i64 at, i64 count) {
    if (dtype == I16) {
        const i16* from = (const i16*)x + at;
        if (count >= 8 && ((u64)from & 15) == 0) {
            const uint4 whole = *(const uint4*)from;
            return {{whole.x, whole.y, whole.z, whole.w}};
        }
    }
    Eight eight = {};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) eight.put(i, load(x, dtype, at + i));
    return eight;
}

// A matrix whose rows lie ``stride`` elements apart.
struct MatrixSource {
    const void* x;
    i64 dtype, start, stride, majors, minors;

    __device__ Eight load_eight_at(i64 major, i64 minor) const {
        if (major >= majors || minor >= minors) return {};
        return load_eight(x, dtype, start + major * stride + minor, minors - minor);
    }
};

// Windows of an image: a row a window, [offset, channel] in it.
struct PatchSource {
    const void* x;
    i64 dtype;
    Window window;
    i64 majors, minors;

    __device__ Eight load_eight_at(i64 major, i64 minor) const {
        if (major >= majors || minor >= minors) return {};
        // Sizes are below 2^32 (MAX_ELEMENTS of the law), and short divisions are fast ones.
        const u32 channels = (u32)window.channels, columns = (u32)window.columns;
        const u32 line = (u32)major / columns;
        const u32 batch = line / (u32)window.rows;
        const i64 y0 = (i64)(line % (u32)window.rows) * window.stride_y - window.top;
        const i64 x0 = (i64)((u32)major % columns) * window.stride_x - window.left;
        // Eight neighbours are of one pixel, or each is looked up.
        if (channels % 8 == 0) {
            const i64 at = find((u32)minor, batch, y0, x0);
            return at < 0 ? Eight{} : load_eight(x, dtype, at, 8);
        }
        Eight eight = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const i64 at = minor + i < minors ? find((u32)minor + i, batch, y0, x0) : -1;
            if (at >= 0) eight.put(i, load(x, dtype, at));
        }
        return eight;
    }

    // Where element ``minor`` of the window at (y0, x0) lies in the image; -1 for padding.
    __device__ i64 find(u32 minor, u32 batch, i64 y0, i64 x0) const {
        const u32 channels = (u32)window.channels, width = (u32)window.kernel_width;
        const u32 offset = minor / channels;
        const i64 y_at = y0 + offset / width, x_at = x0 + offset % width;
        if (y_at < 0 || y_at >= window.height || x_at < 0 || x_at >= window.width) return -1;
        return ((batch * window.height + y_at) * window.width + x_at) * channels + minor % channels;
    }
};

// The low or the high bytes of eight int16, in order.
__device__ inline uint2 take_bytes(const Eight& eight, bool high) {
    const u32 which = high ? 0x7531 : 0x6420;
    return {__byte_perm(eight.pairs[0], eight.pairs[1], which),
            __byte_perm(eight.pairs[2], eight.pairs[3], which)};
}

// Puts 16 inner places of a row of the tile where they belong, in every plane.
__device__ inline void put_piece(u8* tile, i64 planes, u32 row, u32 piece, const Eight& first,
                                 const Eight& second) {
    for (i64 plane = 0; plane < planes; plane++) {
        const uint2 left = take_bytes(first, plane == 1), right = take_bytes(second, plane == 1);
        uint4* const to = (uint4*)(tile + plane * PLANE_BYTES + packed_offset(row, piece));
        *to = {left.x, left.y, right.x, right.y};
    }
}

template <typename Source>
__device__ inline void pack_along(const Source& source, u8* tile, i64 planes, i64 row0,
                                  i64 inner0) {
    for (u32 unit = threadIdx.x; unit < TILE * 8; unit += PACK_THREADS) {
        const u32 row = unit / 8, piece = unit % 8;
        const i64 inner = inner0 + 16 * piece;
        put_piece(tile, planes, row, piece, source.load_eight_at(row0 + row, inner),
                  source.load_eight_at(row0 + row, inner + 8));
    }
}

// In shared memory the word of rows 2 w and 2 w + 1 at inner place k is k * 64 + (w + 2 (k / 16)) %
// 64: neither what writes along the rows nor what reads 16 inner places meets a bank twice.
__device__ inline u32 turned_word(u32 k, u32 word) { return k * 64 + ((word + 2 * (k / 16)) & 63); }

template <typename Source>
__device__ inline void pack_across(const Source& source, u8* tile, i64 planes, i64 row0,
                                   i64 inner0) {
    __shared__ __align__(16) u32 words[TILE * TILE / 2];
    for (u32 unit = threadIdx.x; unit < TILE * 16; unit += PACK_THREADS) {
        const u32 k = unit / 16, group = unit % 16;
        const Eight eight = source.load_eight_at(inner0 + k, row0 + 8 * group);
#pragma unroll
        for (u32 pair = 0; pair < 4; pair += 2)
            *(uint2*)(words + turned_word(k, 4 * group + pair)) = {eight.pairs[pair],
                                                                  eight.pairs[pair + 1]};
    }
    __syncthreads();
    for (u32 unit = threadIdx.x; unit < TILE * 8; unit += PACK_THREADS) {
        const u32 row = unit / 8, piece = unit % 8;
        Eight halves[2] = {};
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const u32 both = words[turned_word(16 * piece + i, row / 2)];
            halves[i / 8].put(i % 8, both >> (16 * (row % 2)));
        }
        put_piece(tile, planes, row, piece, halves[0], halves[1]);
    }
}

// An image of int16 as planes of bytes, lo and hi, ``plane_bytes`` apart: what a product gathers the
// windows from by itself.  One thread for 16 neighbours.
extern "C" __global__ void matmul_split_image(i64 count, const void* x, i64 x_dtype,
                                              i64 plane_bytes, u8* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const Eight first = load_eight(x, x_dtype, 16 * i, 8);
    const Eight second = load_eight(x, x_dtype, 16 * i + 8, 8);
    for (i64 plane = 0; plane < 2; plane++) {
        const uint2 left = take_bytes(first, plane == 1), right = take_bytes(second, plane == 1);
        *(uint4*)(out + plane * plane_bytes + 16 * i) = {left.x, left.y, right.x, right.y};
    }
}

// Parameters of all: the source; rows and inner extent of the operand; planes 1 (the low bytes) or
// 2; the number of inner tiles.  Grid: x tiles (inner ones fastest), z matrices ``batch_stride``
// apart.
#define PACK_KERNELS(NAME, PACK, MAJORS, MINORS)                                                   \
    extern "C" __global__ void __launch_bounds__(PACK_THREADS) matmul_pack_##NAME(                 \
        const void* x, i64 x_dtype, i64 stride, i64 batch_stride, i64 rows, i64 inner, i64 planes, \
        i64 inner_tiles, u8* out) {                                                                \
        const i64 row_tile = blockIdx.x / inner_tiles, inner_tile = blockIdx.x % inner_tiles;      \
        const i64 tile = blockIdx.z * (i64)gridDim.x + blockIdx.x;                                 \
        const i64 start = blockIdx.z * batch_stride;                                               \
        const MatrixSource source = {x, x_dtype, start, stride, MAJORS, MINORS};                   \
        PACK(source, out + tile * planes * PLANE_BYTES, planes, row_tile * TILE,                   \
             inner_tile * TILE);                                                                   \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(PACK_THREADS) matmul_pack_patches_##NAME(         \
        const void* x, i64 x_dtype, const Window* window, i64 rows, i64 inner, i64 planes,         \
        i64 inner_tiles, u8* out) {                                                                \
        const i64 row_tile = blockIdx.x / inner_tiles, inner_tile = blockIdx.x % inner_tiles;      \
        const PatchSource source = {x, x_dtype, *window, MAJORS, MINORS};                          \
        PACK(source, out + (i64)blockIdx.x * planes * PLANE_BYTES, planes, row_tile * TILE,        \
             inner_tile * TILE);                                                                   \
    }
PACK_KERNELS(along, pack_along, rows, inner)
PACK_KERNELS(across, pack_across, inner, rows)
