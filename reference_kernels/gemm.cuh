// Exact products of int16 and int8 matrices on int8 tensor cores: what the kernels share.
//
// An int16 is q = 256 hi + lo with hi = floor(q / 256), signed, and lo = q mod 256, unsigned: its
// two bytes as they lie in memory, and right for every int16.  The instructions multiply any mix of
// signed and unsigned bytes, so a product of int16 is four products of bytes, kept in three sums:
//     hi hi 2^16 + (hi lo + lo hi) 2^8 + lo lo.
// An operand proven to lie in [-128, 127] or, if the other has two planes, in [0, 255] is one plane
// of bytes, signed or not.
//
// No sum of int32 overflows: a term of the middle sum is at most 2 * 128 * 255 in magnitude, of the
// others 128 * 128 and 255 * 255; 32,768 terms of 65,280 are 2,139,095,040 < 2^31.  A block adds at
// most LONGEST_SUM terms; what is longer is split over blocks that add their int64 sums atomically
// (adding modulo 2^64 is exact in any order), as are products too small to fill the device.
//
// Packed operands (gemm_pack.cuh).  An operand is a matrix [rows, inner]: A as it stands, B with
// its columns as rows.  It is cut into tiles of 128 rows and 128 inner places, padded with zeros;
// tile (row_tile, inner_tile) is, at (row_tile * inner_tiles + inner_tile) * planes * 16384, its
// plane lo and then hi (or the one there is), each of 128 rows of 128 bytes, in which the 16 bytes
// at place c lie at c ^ row % 8.  So a tile lies in memory as the tensor cores want it in shared
// memory ("Shared Memory Matrix Layout", 128-byte swizzle): one contiguous copy brings it.
//
// Included by matmul.cu after the files of the operators that the epilogue takes its arithmetic
// from.
#pragma once

#include "mma.cuh"
#include "warp.cuh"

constexpr i64 TILE = 128;               // rows of a packed tile, and its bytes of inner places
constexpr i64 PLANE_BYTES = TILE * TILE;
constexpr i64 LONGEST_SUM = 32768;      // terms that a block may add

// Where the 16 bytes at place ``piece`` of a row lie in a plane of a packed tile.
__device__ inline u32 packed_offset(u32 row, u32 piece) {
    return row * TILE + ((piece ^ (row & 7)) << 4);
}

// Bits of ``flags``.
constexpr i64 STORES_SUMS = 1, ADDS_SUMS = 2, NARROWS = 4, HAS_BIAS = 8, IS_RELU = 16, TURNS = 32;

// How outputs leave a block.  BY_SUMS and BY_I16 go from the registers that the tensor cores leave
// them in; BY_SLAB, for all else, by way of shared memory.
enum Way { BY_SLAB, BY_SUMS, BY_I16 };

// On the way by slab, 16 x COLUMNS outputs of a warp lie in shared memory, each weight of the sums
// by itself: so that stores to device memory are whole lines.  A row is 8 words longer than its
// columns, so that the pairs of neighbours that a warp writes, of 8 rows, lie in different banks.
constexpr u32 SLAB_ROWS = 16;
template <int COLUMNS>
__device__ inline u32 slab_place(u32 weight, u32 row, u32 column) {
    return (weight * SLAB_ROWS + row) * (COLUMNS + 8) + column;
}
template <int SUMS, int COLUMNS>
__device__ constexpr u32 slab_size() {
    return SUMS * SLAB_ROWS * (COLUMNS + 8);
}

// Of four lanes that have words 0 to 3 each, lane t gets word t of all four, in their order.
__device__ inline void exchange_quad(u32 (&words)[4]) {
    const bool odd = (threadIdx.x & 1) != 0, high = (threadIdx.x & 2) != 0;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const u32 got = __shfl_xor_sync(0xffffffffu, odd ? words[i] : words[i + 1], 1);
        words[i] = odd ? got : words[i];
        words[i + 1] = odd ? words[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 got = __shfl_xor_sync(0xffffffffu, high ? words[i] : words[i + 2], 2);
        words[i] = high ? got : words[i];
        words[i + 2] = high ? words[i + 2] : got;
    }
}

// What becomes of the sums [m, n]: stored, or added to what is there, as [n, m] if turned; and if
// they are narrowed, bias and rescaling as in add_bias.cu and rescale.cu, then relu.cu.  Pointers
// that the flags do not ask for are not read.
struct Epilogue {
    i64 m, n, flags;
    i64* sums;
    void* out;
    i64 out_dtype;
    const i32* bias;
    i64 bias_shift, multiplier, shift;
    u64* saturated;

    __device__ bool has(i64 flag) const { return (flags & flag) != 0; }

    __device__ i64 load_bias(i64 column) const {
        return has(HAS_BIAS) ? rs(bias[column], bias_shift) : 0;
    }

    // The narrow value of a sum, relu and all; counts a change by saturation.
    __device__ i64 narrow(i64 sum, i64 aligned_bias, u64& clamped) const {
        const i64 wide = rescale_value(wrap_add(sum, aligned_bias), multiplier, shift);
        const i64 value = saturate(wide, out_dtype);
        clamped += value != wide;
        return has(IS_RELU) ? relu_value(value) : value;
    }

    // The way of a block whose sums have so many terms, each of which is at most 2^30.  What goes
    // without a slab is what steps do most: sums as they are, and int16 where magnitudes allow it
    // to be rounded in 64 bits and clamped in 32 (store_i16).
    __device__ Way choose_way(i64 terms) const {
        const i64 wanted = flags & (STORES_SUMS | ADDS_SUMS | NARROWS | TURNS);
        if (wanted == STORES_SUMS && n % 2 == 0) return BY_SUMS;
        const bool plain = wanted == NARROWS && out_dtype == I16 && n % 8 == 0 &&
                           multiplier > 0 && multiplier < 1ll << 31 && shift > 0 && shift < 62;
        if (!plain || (has(HAS_BIAS) && (bias_shift < -20 || bias_shift > 31))) return BY_SLAB;
        const i64 left = bias_shift < 0 ? -bias_shift : 0;
        const i64 most = (terms << 30) + (has(HAS_BIAS) ? 1ll << (31 + left) : 0);
        const i64 room = shift < 31 ? shift + 31 : 62;  // bits of what is shifted
        // In units of 2^20, rounded up: 64 bits hold the product.
        return ((most >> 20) + 1) * multiplier < (1ll << (room - 20)) - (1ll << shift >> 21)
                   ? BY_I16
                   : BY_SLAB;
    }

    // The next three are of a lane and a group of 32 columns, of which ``left`` are not beyond the
    // edge (none where the row is): it has columns 8 j + 2 (lane % 4) and the next, as the tensor
    // cores leave them.

    // ``at`` is where the lane's first sum belongs.  A store of the warp is 8 rows of 64 bytes, two
    // whole sectors each.
    template <int SUMS>
    static __device__ void store_sums(const i32 (&parts)[4][2][SUMS], i64* at, i32 left) {
        left -= threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (8 * j < left)
                store_16_bytes(at + 8 * j, add_weights<SUMS>(parts[j][0]),
                               add_weights<SUMS>(parts[j][1]));
    }

    template <int SUMS>
    static __device__ i64 add_weights(const i32 (&parts)[SUMS]) {
        i64 sum = parts[0];
#pragma unroll
        for (int weight = 1; weight < SUMS; weight++)
            sum += (i64)parts[weight] * (1ll << 8 * weight);
        return sum;
    }

    // The biases of the lane's columns, of which ``column`` is the first, as load_bias() has them
    // but for a shift to the left.
    __device__ void load_biases(i32 (&biases)[4][2], i64 column, i32 left) const {
        const i32 down = (i32)bias_shift;
        left -= threadIdx.x % 4 * 2;
        const i32* const from = bias + column;
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                i32 value = has(HAS_BIAS) && 8 * j < left ? from[8 * j + c] : 0;
                if (down > 0) value = (value >> down) + (value >> (down - 1) & 1);
                biases[j][c] = value;
            }
    }

    // narrow() for what choose_way() lets through.  All lanes of a warp come here: they exchange
    // columns, so that a lane has eight neighbours, from 8 (lane % 4) on, which belong to ``at``; a
    // store is 8 rows of 64 bytes again.
    template <int SUMS>
    __device__ void store_i16(const i32 (&parts)[4][2][SUMS], const i32 (&biases)[4][2], i16* at,
                              i32 left, u32& clamped) const {
        const i32 least = has(IS_RELU) ? 0 : -32639;
        const i32 bias_factor = bias_shift < 0 ? 1 << (i32)-bias_shift : 1;
        const i64 half = 1ll << (shift - 1);
        u32 words[4], changed = 0;
        i32 wide[4][2];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            i32 values[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const i64 sum = add_weights<SUMS>(parts[j][c]) + (i64)biases[j][c] * bias_factor;
                const i32 value = (i32)((sum * (u32)multiplier + half) >> shift);
                const i32 inside = value < -32639 ? -32639 : value > 32639 ? 32639 : value;
                changed |= (u32)(value ^ inside);
                wide[j][c] = value;
                values[c] = inside < least ? least : inside;
            }
            words[j] = __byte_perm((u32)values[0], (u32)values[1], 0x5410);
        }
        if (changed != 0) clamped += count_clamped(wide, left);
        exchange_quad(words);
        if ((i32)(threadIdx.x % 4 * 8) < left)
            store_16_bytes(at, (i64)((u64)words[1] << 32 | words[0]),
                           (i64)((u64)words[3] << 32 | words[2]));
    }

    // A whole warp comes here: where many are clamped, as many atomics would wait for each other.
    __device__ void count(u32 clamped) const {
        const i64 all = reduce_warp<Adds>(clamped);
        if (threadIdx.x % 32 == 0 && all != 0) atomicAdd(saturated, (u64)all);
    }

    // Beyond the edges there is nothing to count.
    static __device__ u32 count_clamped(const i32 (&wide)[4][2], i32 left) {
        u32 count = 0;
        left -= threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                count += 8 * j < left && (wide[j][c] < -32639 || wide[j][c] > 32639);
        return count;
    }

    // How many of ``most`` columns from ``column`` on are not beyond the edge.
    __device__ i32 count_columns(i64 column, i32 most) const {
        return n - column < most ? (i32)(n - column) : most;
    }

    // Takes a slab; done by a warp, in which a lane has four columns, the same in every row.
    template <int SUMS, int COLUMNS>
    __device__ void finish(const i32* slab, i64 row, i64 column) const {
        column += threadIdx.x % (COLUMNS / 4) * 4;
        u64 clamped = 0;
#pragma unroll 1
        for (u32 c = 0; c < 4 && column + c < n; c++) {
            const i64 aligned_bias = has(NARROWS) ? load_bias(column + c) : 0;
#pragma unroll 1
            for (u32 r = first_row<COLUMNS>(); r < SLAB_ROWS && row + r < m; r += 128 / COLUMNS) {
                const i64 y = row + r, x = column + c, at = has(TURNS) ? x * m + y : y * n + x;
                i64 sum = 0;
#pragma unroll
                for (int weight = 0; weight < SUMS; weight++)
                    sum += (i64)slab[slab_place<COLUMNS>(weight, r, own_column<COLUMNS>() + c)] *
                           (1ll << 8 * weight);
                if (has(STORES_SUMS)) sums[at] = sum;
                if (has(ADDS_SUMS)) atomicAdd((u64*)sums + at, (u64)sum);
                if (has(NARROWS)) store(out, out_dtype, at, narrow(sum, aligned_bias, clamped));
            }
        }
        if (clamped != 0) atomicAdd(saturated, clamped);
    }

    // Of a lane: its first row of a slab, and its first column.
    template <int COLUMNS>
    static __device__ u32 first_row() { return threadIdx.x % 32 / (COLUMNS / 4); }
    template <int COLUMNS>
    static __device__ u32 own_column() { return threadIdx.x % (COLUMNS / 4) * 4; }
};

// Tile of a block, so that blocks that run at the same time share rows and columns: the grid goes
// through groups of 8 tiles of rows, each column by column.
struct TilePlace {
    i64 row_tile, column_tile;
};
__device__ inline TilePlace place_tile(u32 index, u32 row_tiles, u32 column_tiles) {
    const u32 group_size = 8 * column_tiles;
    const u32 group = index / group_size, within = index % group_size;
    const u32 left = row_tiles - group * 8, height = left < 8 ? left : 8;
    return {group * 8 + within % height, within / height};
}

// Parameters of every product of ``batch`` matrices.  ``batch_a`` and ``batch_b`` are 1 where each has
// one of its own, 0 where all take the same; a block adds ``split`` inner tiles.  Grid: x tiles, y
// parts of the inner axis, z matrices; for kernels that take more than one tile each, x blocks, to
// which the tiles of all matrices go in turn.
#define PRODUCT_PARAMETERS                                                                         \
    const u8 *a, const u8 *b, i64 m, i64 n, i64 inner, i64 split, i64 batch, i64 batch_a,          \
        i64 batch_b, i64 flags, i64 *sums, void *out, i64 out_dtype, const i32 *bias,              \
        i64 bias_shift, i64 multiplier, i64 shift, u64 *saturated

// Tiles of one matrix of the results.
template <int COLUMNS>
__device__ inline u32 count_tiles(i64 m, i64 n) {
    return (u32)((m + TILE - 1) / TILE) * (u32)((n + COLUMNS - 1) / COLUMNS);
}

// What a block works on: inner tiles [first, end) of tile (row, column) of one matrix of the batch.
struct Work {
    const u8 *a, *b;  // tile 0 of the operands' matrices
    i64 inner_tiles, row_tile, column_tile, first, end;
    i64 terms;  // inner places of them that are not padding
    Epilogue epilogue;
};

template <int PLANES_A, int PLANES_B, int COLUMNS>
__device__ inline Work find_work(u32 tile, u32 matrix, PRODUCT_PARAMETERS) {
    const i64 row_tiles = (m + TILE - 1) / TILE, column_tiles = (n + COLUMNS - 1) / COLUMNS;
    const TilePlace place = place_tile(tile, (u32)row_tiles, (u32)column_tiles);
    constexpr i64 TALL = COLUMNS > TILE ? COLUMNS / TILE : 1;  // B is padded to whole blocks
    const i64 tiles_b = (n + TALL * TILE - 1) / (TALL * TILE) * TALL;
    const i64 inner_tiles = (inner + TILE - 1) / TILE;
    const i64 first = blockIdx.y * split;
    const i64 end = first + split < inner_tiles ? first + split : inner_tiles;
    const i64 width = out_dtype == I16 ? 2 : out_dtype == I32 ? 4 : 8;
    return {a + matrix * batch_a * row_tiles * inner_tiles * (PLANES_A * PLANE_BYTES),
            b + matrix * batch_b * tiles_b * inner_tiles * (PLANES_B * PLANE_BYTES),
            inner_tiles,
            place.row_tile,
            place.column_tile,
            first,
            end,
            (end < inner_tiles ? end * TILE : inner) - first * TILE,
            {m, n, flags, sums + matrix * m * n, (u8*)out + matrix * m * n * width, out_dtype, bias,
             bias_shift, multiplier, shift, saturated}};
}
#define PRODUCT_ARGUMENTS                                                              \
    a, b, m, n, inner, split, batch, batch_a, batch_b, flags, sums, out, out_dtype,    \
        bias, bias_shift, multiplier, shift, saturated
