// Packing: an operand of int16 or int8, or the windows of an image, as tiles of bytes (gemm.cuh).
//
// A block makes one tile, every plane of it.  A source is an array of ``majors`` rows of ``minors``
// neighbouring elements, read eight at a time; beyond its ends it is 0.  Where the inner axis is
// the minor one, a thread has 16 inner places of a row at hand (pack_along); where it is the major
// one, the tile is turned in shared memory (pack_across).  Windows are packed straight from the
// image: the tiles are the only matrix of them that is stored.
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
    // All move down by one, and ``value`` becomes the last.
    __device__ void push(i64 value) {
#pragma unroll
        for (int i = 0; i < 3; i++) pairs[i] = pairs[i] >> 16 | pairs[i + 1] << 16;
        pairs[3] = pairs[3] >> 16 | (u32)value << 16;
    }
};

__device__ inline Eight load_eight(const void* x, i64 dtype, i64 at, i64 count) {
    Eight eight = {};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) eight.put(i, load(x, dtype, at + i));
    return eight;
}
// The same in one load, all eight being there and aligned as a whole.
template <typename T>
__device__ inline Eight load_whole(const void* x, i64 at) {
    if constexpr (sizeof(T) == 2) {
        const uint4 whole = __ldg((const uint4*)((const i16*)x + at));
        return {{whole.x, whole.y, whole.z, whole.w}};
    } else {
        // Each byte and its sign's, or a zero (of the second word).
        constexpr u32 LOW = (T)-1 < 0 ? 0x9180 : 0x4140, HIGH = (T)-1 < 0 ? 0xb3a2 : 0x4342;
        const uint2 whole = __ldg((const uint2*)((const T*)x + at));
        return {{__byte_perm(whole.x, 0, LOW), __byte_perm(whole.x, 0, HIGH),
                 __byte_perm(whole.y, 0, LOW), __byte_perm(whole.y, 0, HIGH)}};
    }
}
__device__ inline bool is_aligned(const void* x) { return ((u64)x & 15) == 0; }

// A source says of a tile whether it is plain: of int16 or bytes, nothing of it beyond the ends,
// every eight aligned.  Loads of a plain tile take no branches, so that many are under way at a
// time.

// A matrix whose rows lie ``stride`` elements apart.
struct MatrixSource {
    const void* x;
    i64 dtype, start, stride, majors, minors;

    __device__ bool is_plain(i64 major, i64 minor) const {
        return dtype <= I16 && major + TILE <= majors && minor + TILE <= minors &&
               is_aligned(x) && start % 8 == 0 && stride % 8 == 0;
    }
    template <typename T>
    __device__ Eight load_plain(i64 major, i64 minor) const {
        return load_whole<T>(x, start + major * stride + minor);
    }
    __device__ Eight load_any(i64 major, i64 minor) const {
        if (major >= majors || minor >= minors) return {};
        return load_eight(x, dtype, start + major * stride + minor, minors - minor);
    }
};

// Windows of an image: a row a window, [offset, channel] in it.  Sizes are below 2^32 (MAX_ELEMENTS
// of the law), and short divisions are fast ones.
struct PatchSource {
    const void* x;
    i64 dtype;
    Window window;
    i64 majors, minors;

    // Eight neighbours are of one pixel then.
    __device__ bool is_plain(i64 major, i64 minor) const {
        return dtype <= I16 && major + TILE <= majors && minor + TILE <= minors &&
               is_aligned(x) && window.channels % 8 == 0;
    }
    template <typename T>
    __device__ Eight load_plain(i64 major, i64 minor) const {
        const i64 at = find((u32)major, (u32)minor);
        return at < 0 ? Eight{} : load_whole<T>(x, at);
    }
    __device__ Eight load_any(i64 major, i64 minor) const {
        Eight eight = {};
#pragma unroll 1
        for (int i = 0; i < 8; i++) {
            const bool inside = major < majors && minor + i < minors;
            const i64 at = inside ? find((u32)major, (u32)minor + i) : -1;
            eight.push(at < 0 ? 0 : load(x, dtype, at));
        }
        return eight;
    }

    // Where element ``minor`` of window ``major`` lies in the image; -1 for padding.
    __device__ i64 find(u32 major, u32 minor) const {
        const u32 columns = (u32)window.columns, rows = (u32)window.rows;
        const u32 line = major / columns, batch = line / rows;
        const u32 channels = (u32)window.channels, width = (u32)window.kernel_width;
        const u32 offset = minor / channels;
        const i64 y = line % rows * window.stride_y - window.top + offset / width;
        const i64 x_at = major % columns * window.stride_x - window.left + offset % width;
        if (y < 0 || y >= window.height || x_at < 0 || x_at >= window.width) return -1;
        return ((batch * window.height + y) * window.width + x_at) * channels + minor % channels;
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

constexpr u32 ALONG_PARTS = TILE * 8 / PACK_THREADS, ACROSS_PARTS = TILE * 16 / PACK_THREADS;

// Pieces of a plain tile; ``row`` and ``piece`` are this thread's first.
template <typename T, typename Source>
__device__ inline void pack_plain(const Source& source, u8* tile, i64 planes, i64 row0, i64 inner,
                                  u32 row, u32 piece) {
    Eight eights[ALONG_PARTS][2];
#pragma unroll
    for (u32 part = 0; part < ALONG_PARTS; part++)
#pragma unroll
        for (u32 half = 0; half < 2; half++)
            eights[part][half] = source.template load_plain<T>(
                row0 + row + part * (PACK_THREADS / 8), inner + 8 * half);
#pragma unroll
    for (u32 part = 0; part < ALONG_PARTS; part++)
        put_piece(tile, planes, row + part * (PACK_THREADS / 8), piece, eights[part][0],
                  eights[part][1]);
}

template <typename Source>
__device__ inline void pack_along(const Source& source, u8* tile, i64 planes, i64 row0,
                                  i64 inner0) {
    constexpr u32 PARTS = ALONG_PARTS;
    const u32 row = threadIdx.x / 8, piece = threadIdx.x % 8;
    const i64 inner = inner0 + 16 * piece;
    if (source.is_plain(row0, inner0)) {
        if (source.dtype == I16)
            pack_plain<i16>(source, tile, planes, row0, inner, row, piece);
        else if (source.dtype == I8)
            pack_plain<i8>(source, tile, planes, row0, inner, row, piece);
        else
            pack_plain<u8>(source, tile, planes, row0, inner, row, piece);
        return;
    }
#pragma unroll 1
    for (u32 part = 0; part < PARTS; part++) {
        const u32 at = row + part * (PACK_THREADS / 8);
        put_piece(tile, planes, at, piece, source.load_any(row0 + at, inner),
                  source.load_any(row0 + at, inner + 8));
    }
}

// In shared memory the word of rows 2 w and 2 w + 1 at inner place k is k * 64 + (w + 2 (k / 16)) %
// 64: neither what writes along the rows nor what reads 16 inner places meets a bank twice.
__device__ inline u32 turned_word(u32 k, u32 word) { return k * 64 + ((word + 2 * (k / 16)) & 63); }

// Eight rows of an inner place, from ``group`` times eight on.
__device__ inline void turn_eight(u32* words, u32 k, u32 group, const Eight& eight) {
#pragma unroll
    for (u32 pair = 0; pair < 4; pair += 2)
        *(uint2*)(words + turned_word(k, 4 * group + pair)) =
            make_uint2(eight.pairs[pair], eight.pairs[pair + 1]);
}

// Loads of a plain tile, and their turning; ``k`` and ``group`` are this thread's first.
template <typename T, typename Source>
__device__ inline void turn_plain(const Source& source, u32* words, i64 row0, i64 inner0, u32 k,
                                  u32 group) {
    Eight eights[ACROSS_PARTS];
#pragma unroll
    for (u32 part = 0; part < ACROSS_PARTS; part++)
        eights[part] = source.template load_plain<T>(inner0 + k + part * (PACK_THREADS / 16),
                                                     row0 + 8 * group);
#pragma unroll
    for (u32 part = 0; part < ACROSS_PARTS; part++)
        turn_eight(words, k + part * (PACK_THREADS / 16), group, eights[part]);
}

template <typename Source>
__device__ inline void pack_across(const Source& source, u8* tile, i64 planes, i64 row0,
                                   i64 inner0) {
    __shared__ __align__(16) u32 words[TILE * TILE / 2];
    constexpr u32 PARTS = ACROSS_PARTS;
    const u32 k = threadIdx.x / 16, group = threadIdx.x % 16;
    if (source.is_plain(inner0, row0)) {
        if (source.dtype == I16)
            turn_plain<i16>(source, words, row0, inner0, k, group);
        else if (source.dtype == I8)
            turn_plain<i8>(source, words, row0, inner0, k, group);
        else
            turn_plain<u8>(source, words, row0, inner0, k, group);
    } else {
#pragma unroll 1
        for (u32 part = 0; part < PARTS; part++) {
            const u32 at = k + part * (PACK_THREADS / 16);
            turn_eight(words, at, group, source.load_any(inner0 + at, row0 + 8 * group));
        }
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

// An image of int16 as planes of bytes, lo and hi, ``plane_bytes`` apart: what a product gathers
// the windows from by itself.  One thread for 16 neighbours.
extern "C" __global__ void matmul_split_image(i64 count, const i16* x, i64 plane_bytes, u8* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const Eight first = load_whole<i16>(x, 16 * i), second = load_whole<i16>(x, 16 * i + 8);
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
