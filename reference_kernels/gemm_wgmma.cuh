// The product on Hopper (sm_90a): wgmma out of shared memory, filled by bulk copies.
//
// A block of three warpgroups computes 128 x COLUMNS outputs at a time, tile after tile of all
// matrices: there are as many blocks as multiprocessors.  One thread of the first warpgroup copies
// packed tiles, which lie in memory as wgmma reads them, into a ring of stages, those of the next
// tile while the outputs of the last one leave; each of the other two warpgroups multiplies 64 rows
// with all columns.  An mbarrier a stage says that its bytes are there, another that both have done
// with them.
//
// What that takes of an H200, counted, and what is predicted of its speed: docs/cuda.md, "Counted".
// Where the figures fall short, first suspects: the epilogue (tiles of its own for each warpgroup,
// half a tile apart), packing (pack in the epilogue of what made the operand).  L2 and latency are
// none: clusters with multicast and stages of half a tile gained next to nothing (ADR 14).
#pragma once

#include "gemm.cuh"
#include "window.cuh"

#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int WGMMA_THREADS = 384;
// Shared memory for stages, of the 227 KiB that a block can have: as many as fit.
constexpr u32 STAGES_BYTES = 226 * 1024;

// Waits for the two multiplying warpgroups.
__device__ inline void sync_multipliers() {
#ifdef CUDA_ON_CPU
    host::sync_named(1, 256);
#else
    asm volatile("bar.sync 1, 256;\n" ::: "memory");
#endif
}

// Where A's tiles come from: packed they are copied as B's are; the rows of A that are windows of
// an image are gathered from its planes of bytes (matmul_split_image), 16 channels at a time, by
// all threads of the first warpgroup.  So the windows, which repeat every pixel, never lie in
// memory.
struct PackedTiles {
    static constexpr u32 FILLERS = 1, REGISTERS = 24, OTHER_REGISTERS = 240;
};
struct ImagePlanes {
    static constexpr u32 FILLERS = 129, REGISTERS = 56, OTHER_REGISTERS = 224;
    const Window* window;
    i64 plane_bytes;
};

// The part of a tile of windows that a thread gathers: pieces t and t + 4 of rows r + 32 i, where a
// thread is 4 r + t.  Channels come in sixteens.
template <int PLANES>
struct WindowRows {
    u32 height, width, channels, kernel_width;
    i64 start[4];  // of the window, from the image's begin; may lie before it
    i32 y[4], x[4];

    __device__ WindowRows(const Window& window, i64 row0, i64 rows) {
        height = (u32)window.height, width = (u32)window.width;
        channels = (u32)window.channels, kernel_width = (u32)window.kernel_width;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const i64 row = row0 + threadIdx.x / 4 + 32 * i;
            const u32 columns = (u32)window.columns;
            const u32 line = (u32)row / columns, column = (u32)row % columns;
            const u32 batch = line / (u32)window.rows, down = line % (u32)window.rows;
            y[i] = (i32)(down * window.stride_y - window.top);
            x[i] = (i32)(column * window.stride_x - window.left);
            start[i] = (((i64)batch * height + y[i]) * width + x[i]) * channels;
            if (row >= rows) y[i] = -(1 << 30);  // outside of every image, as padding is
        }
    }

    __device__ void fetch(u32 to, const u8* planes, i64 plane_bytes, i64 inner0, i64 inner) const {
#pragma unroll
        for (u32 j = 0; j < TILE / 64; j++) {
            const u32 piece = threadIdx.x % 4 + 4 * j, k = (u32)inner0 + 16 * piece;
            const u32 offset = k / channels, channel = k % channels;
            const u32 dy = offset / kernel_width, dx = offset % kernel_width;
            const i64 shift = ((i64)dy * width + dx) * channels + channel;
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const bool real = k < inner && (u32)y[i] + dy < height && (u32)x[i] + dx < width;
                const u8* const from = planes + (real ? start[i] + shift : 0);
                const u32 at = to + packed_offset(threadIdx.x / 4 + 32 * i, piece);
#pragma unroll
                for (u32 plane = 0; plane < PLANES; plane++)
                    copy_async_16_or_zeros(at + plane * (u32)PLANE_BYTES,
                                           from + plane * plane_bytes, real);
            }
        }
    }
};

// The tiles of B that a block takes, step by step: half of one of 128 rows, one, or two.
template <int PLANES, int COLUMNS>
struct RightTiles {
    static constexpr u32 BYTES = PLANES * PLANE_BYTES, COLUMN_PLANE_BYTES = COLUMNS * TILE;
    static constexpr i64 TALL = COLUMNS > TILE ? COLUMNS / TILE : 1;
    static constexpr i64 PARTS = COLUMNS < TILE ? TILE / COLUMNS : 1;
    const u8* from;
    i64 part, next_row_tile;

    __device__ RightTiles(const Work& work)
        : from(work.b +
               (work.column_tile * TALL / PARTS * work.inner_tiles + work.first) * BYTES),
          part(work.column_tile % PARTS),
          next_row_tile(work.inner_tiles * BYTES) {}

    __device__ void copy_next(u32 to, u32 barrier) {
        if constexpr (PARTS == 1) {
            for (i64 tall = 0; tall < TALL; tall++)
                copy_bulk(to + (u32)tall * BYTES, from + tall * next_row_tile, BYTES, barrier);
        } else {
            for (u32 plane = 0; plane < PLANES; plane++)
                copy_bulk(to + plane * COLUMN_PLANE_BYTES,
                          from + plane * PLANE_BYTES + part * COLUMN_PLANE_BYTES,
                          COLUMN_PLANE_BYTES, barrier);
        }
        from += BYTES;
    }
};

// The part of the multiplying warpgroups in one tile; ``done`` counts the steps of all tiles.
template <int PLANES_A, int PLANES_B, bool A_SIGNED, bool B_SIGNED, int COLUMNS, u32 STAGES>
__device__ inline void multiply_tile(const Work& work, u32 base, u8* shared, u32& done) {
    constexpr int SUMS = PLANES_A + PLANES_B - 1;
    constexpr u32 COLUMN_PLANE_BYTES = COLUMNS * TILE;
    constexpr u32 A_BYTES = PLANES_A * PLANE_BYTES, B_BYTES = PLANES_B * COLUMN_PLANE_BYTES;
    constexpr u32 STAGE_BYTES = A_BYTES + B_BYTES;
    const u32 full = base + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    const u32 drained = empty + 8 * STAGES;
    const u32 group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4;
    const u32 lane = threadIdx.x % 32;
    i32 held[SUMS][COLUMNS / 2];
#pragma unroll
    for (int weight = 0; weight < SUMS; weight++)
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) held[weight][i] = 0;

    const auto multiply_part = [&](u64 left, u64 right, i32 part) {
#pragma unroll
        for (int plane = 0; plane < PLANES_A; plane++)
#pragma unroll
            for (int other = 0; other < PLANES_B; other++) {
                // Addresses in descriptors count 16 bytes; 32 inner places are 2 of them.
                const u64 at_a = left + plane * (PLANE_BYTES >> 4) + 2 * part;
                const u64 at_b = right + other * (COLUMN_PLANE_BYTES >> 4) + 2 * part;
                i32(&sum)[COLUMNS / 2] = held[plane + other];
                constexpr bool LOW = false;  // of two planes the low one is unsigned
                if (plane == PLANES_A - 1 && other == PLANES_B - 1)
                    wgmma_m64k32<COLUMNS, A_SIGNED, B_SIGNED>(sum, at_a, at_b);
                else if (plane == PLANES_A - 1)
                    wgmma_m64k32<COLUMNS, A_SIGNED, LOW>(sum, at_a, at_b);
                else if (other == PLANES_B - 1)
                    wgmma_m64k32<COLUMNS, LOW, B_SIGNED>(sum, at_a, at_b);
                else
                    wgmma_m64k32<COLUMNS, LOW, LOW>(sum, at_a, at_b);
            }
    };
    // Padding is not multiplied: the last step may have fewer parts of 32 than the others.
    const i32 full_steps = (i32)(work.terms / TILE);
    const i32 last_parts = (i32)(work.terms % TILE + 31) / 32;
    i32 step = 0;
#pragma unroll 1
    for (; step < full_steps; step++) {
        const u32 at = done + (u32)step, s = at % STAGES, stage = base + s * STAGE_BYTES;
        const u64 left = describe_tile(stage + group * (64 * TILE));
        const u64 right = describe_tile(stage + A_BYTES);
        mbarrier_wait(full + 8 * s, at / STAGES & 1);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < TILE / 32; part++) multiply_part(left, right, part);
        wgmma_commit();
        // One step stays in flight while the next begins; the one before it is done, and its
        // stage may be filled again.
        wgmma_wait<1>();
        if (step > 0 && lane == 0) mbarrier_arrive(empty + 8 * ((at - 1) % STAGES));
    }
    if (last_parts > 0) {
        const u32 at = done + (u32)step, s = at % STAGES, stage = base + s * STAGE_BYTES;
        const u64 left = describe_tile(stage + group * (64 * TILE));
        const u64 right = describe_tile(stage + A_BYTES);
        mbarrier_wait(full + 8 * s, at / STAGES & 1);
        wgmma_fence();
#pragma unroll 1
        for (i32 part = 0; part < last_parts; part++) multiply_part(left, right, part);
        wgmma_commit();
    }
    wgmma_wait<0>();
    // The stages of the last whole step, and of the one after it, go back: the next tile's first
    // bytes come while the outputs leave.
    done += (u32)full_steps;
    if (full_steps > 0 && lane == 0) mbarrier_arrive(empty + 8 * ((done - 1) % STAGES));
    if (last_parts > 0) {
        if (lane == 0) mbarrier_arrive(empty + 8 * (done % STAGES));
        done++;
    }
    const Epilogue& epilogue = work.epilogue;
    const Way way = epilogue.choose_way(work.terms);
    if (way != BY_SLAB) {
        const i64 row = work.row_tile * TILE + 64 * group + 16 * warp + lane / 4;
        const i64 column = work.column_tile * COLUMNS;
        const i32 columns = epilogue.count_columns(column, COLUMNS);
        const auto take = [&](i32(&parts)[4][2][SUMS], int begin, int half) {
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 2; c++)
#pragma unroll
                    for (int weight = 0; weight < SUMS; weight++)
                        parts[j][c][weight] =
                            held[weight][4 * (begin / 8 + j) + 2 * half + c];
        };
        if (way == BY_SUMS) {
            i64* const at = epilogue.sums + row * epilogue.n + column + 2 * (lane % 4);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const i32 left = row + 8 * half < epilogue.m ? columns : 0;
#pragma unroll
                for (int begin = 0; begin < COLUMNS; begin += 32) {
                    i32 parts[4][2][SUMS];
                    take(parts, begin, half);
                    Epilogue::store_sums<SUMS>(parts, at + 8 * half * epilogue.n + begin,
                                               left - begin);
                }
            }
            return;
        }
        u32 clamped = 0;
        i16* const at = (i16*)epilogue.out + row * epilogue.n + column + 8 * (lane % 4);
#pragma unroll
        for (int begin = 0; begin < COLUMNS; begin += 32) {
            i32 biases[4][2];
            epilogue.load_biases(biases, column + begin + 2 * (lane % 4), columns - begin);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                i32 parts[4][2][SUMS];
                take(parts, begin, half);
                const i32 left = row + 8 * half < epilogue.m ? columns - begin : 0;
                epilogue.store_i16<SUMS>(parts, biases, at + 8 * half * epilogue.n + begin,
                                         left, clamped);
            }
        }
        epilogue.count(clamped);
        return;
    }
    // When all have read their stages, and nothing more arrives before all have arrived at
    // ``drained``, the stages' memory takes 16 x 64 outputs of each warp at a time.
    sync_multipliers();
    static_assert(8 * 4 * slab_size<SUMS, 64>() <= STAGES * STAGE_BYTES, "slabs fit");
    i32* const slabs = (i32*)(shared + (base - shared_address(shared)));
    i32* const slab = slabs + (group * 4 + warp) * slab_size<SUMS, 64>();
#pragma unroll
    for (int begin = 0; begin < COLUMNS; begin += 64) {
#pragma unroll
        for (int weight = 0; weight < SUMS; weight++)
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int at = 4 * (begin / 8 + j) + 2 * half;
                    *(int2*)(slab + slab_place<64>(weight, lane / 4 + 8 * half,
                                                   8 * j + 2 * (lane % 4))) =
                        make_int2(held[weight][at], held[weight][at + 1]);
                }
        __syncwarp();
        epilogue.finish<SUMS, 64>(slab, work.row_tile * TILE + 64 * group + 16 * warp,
                                  work.column_tile * COLUMNS + begin);
        __syncwarp();
    }
    // Bulk copies come after what was written here.
    proxy_fence();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(drained);
}

template <int PLANES_A, int PLANES_B, bool A_SIGNED, bool B_SIGNED, int COLUMNS, typename Left>
__device__ inline void multiply_wgmma(Left source, PRODUCT_PARAMETERS) {
    SHARED_BYTES(shared);
    constexpr bool GATHERS = Left::FILLERS > 1;
    constexpr int SUMS = PLANES_A + PLANES_B - 1;
    constexpr u32 COLUMN_PLANE_BYTES = COLUMNS * TILE;
    constexpr u32 A_BYTES = PLANES_A * PLANE_BYTES, B_BYTES = PLANES_B * COLUMN_PLANE_BYTES;
    constexpr u32 STAGE_BYTES = A_BYTES + B_BYTES, STAGES = STAGES_BYTES / STAGE_BYTES;
    static_assert(COLUMNS <= TILE || PLANES_B == 1, "planes of tall tiles would not be neighbours");
    static_assert(SUMS * COLUMNS / 2 <= 192, "sums fit the registers");
    const u32 own_tiles = count_tiles<COLUMNS>(m, n), tiles = own_tiles * (u32)batch;
    const auto find = [&](u32 tile) {
        return find_work<PLANES_A, PLANES_B, COLUMNS>(tile % own_tiles, tile / own_tiles,
                                                      PRODUCT_ARGUMENTS);
    };

    // Stages begin at a multiple of 1024 in the window; the barriers follow them.
    const u32 base = (shared_address(shared) + 1023) & ~1023u;
    const u32 full = base + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    const u32 drained = empty + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; s++) {
            mbarrier_init(full + 8 * s, Left::FILLERS);
            mbarrier_init(empty + 8 * s, 8);
        }
        mbarrier_init(drained, 8);
        mbarrier_init_fence();
    }
    __syncthreads();

    // A block goes on to the next of its tiles while the last one's outputs are on their way: steps
    // are counted through all of them.  Only where these go by slab, which lies in the stages, the
    // next tile's bytes wait for them.
    if (threadIdx.x < 128) {
        give_registers<Left::REGISTERS>();
        if (GATHERS || threadIdx.x == 0) {
            u32 done = 0, rounds = 0;
#pragma unroll 1
            for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x, rounds++) {
                const Work work = find(tile);
                const i32 steps = (i32)((work.terms + TILE - 1) / TILE);
                if (rounds > 0 && work.epilogue.choose_way(work.terms) == BY_SLAB)
                    mbarrier_wait(drained, (rounds - 1) & 1);
                RightTiles<PLANES_B, COLUMNS> right(work);
                if constexpr (GATHERS) {
                    const WindowRows<PLANES_A> rows(*source.window, work.row_tile * TILE, m);
                    // So many steps lie between asking for a step's bytes and handing them over.  A
                    // stage comes back when the step after its own has been handed over: hence
                    // the 2.
                    constexpr i32 AHEAD = (i32)STAGES - 2;
                    for (i32 step = 0; step < steps + AHEAD; step++) {
                        if (step < steps) {
                            const u32 at = done + (u32)step, s = at % STAGES;
                            const u32 stage = base + s * STAGE_BYTES;
                            mbarrier_wait(empty + 8 * s, (at / STAGES & 1) ^ 1);
                            if (threadIdx.x == 0) {
                                mbarrier_arrive_expect(full + 8 * s, B_BYTES);
                                right.copy_next(stage + A_BYTES, full + 8 * s);
                            }
                            rows.fetch(stage, a, source.plane_bytes, (work.first + step) * TILE,
                                       inner);
                        }
                        copy_async_commit();
                        if (step >= AHEAD) {
                            copy_async_wait<AHEAD>();
                            proxy_fence();
                            mbarrier_arrive(full + 8 * ((done + (u32)(step - AHEAD)) % STAGES));
                        }
                    }
                } else {
                    const u8* left =
                        work.a + (work.row_tile * work.inner_tiles + work.first) * A_BYTES;
#pragma unroll 1
                    for (i32 step = 0; step < steps; step++) {
                        const u32 at = done + (u32)step, s = at % STAGES;
                        const u32 stage = base + s * STAGE_BYTES;
                        mbarrier_wait(empty + 8 * s, (at / STAGES & 1) ^ 1);
                        mbarrier_arrive_expect(full + 8 * s, STAGE_BYTES);
                        copy_bulk(stage, left, A_BYTES, full + 8 * s);
                        right.copy_next(stage + A_BYTES, full + 8 * s);
                        left += A_BYTES;
                    }
                }
                done += (u32)steps;
            }
        }
    } else {
        take_registers<Left::OTHER_REGISTERS>();
        u32 done = 0;
#pragma unroll 1
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x)
            multiply_tile<PLANES_A, PLANES_B, A_SIGNED, B_SIGNED, COLUMNS, STAGES>(
                find(tile), base, shared, done);
    }
}

// Planes of A and of B; is a single one signed; columns of a block, as the registers allow.
#define WGMMA_PRODUCT(NAME, ...)                                                              \
    extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) NAME(PRODUCT_PARAMETERS) { \
        multiply_wgmma<__VA_ARGS__>(PackedTiles{}, PRODUCT_ARGUMENTS);                        \
    }
#define WGMMA_WINDOWS(NAME, ...)                                                              \
    extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1)                            \
        NAME(const Window* window, i64 plane_bytes, PRODUCT_PARAMETERS) {                     \
        multiply_wgmma<__VA_ARGS__>(ImagePlanes{window, plane_bytes}, PRODUCT_ARGUMENTS);     \
    }
WGMMA_PRODUCT(matmul_wgmma_i16_i16, 2, 2, true, true, 128)
WGMMA_PRODUCT(matmul_wgmma_i16_i8, 2, 1, true, true, 128)
WGMMA_PRODUCT(matmul_wgmma_i16_u8, 2, 1, true, false, 128)
WGMMA_PRODUCT(matmul_wgmma_i8_i16, 1, 2, true, true, 128)
WGMMA_PRODUCT(matmul_wgmma_u8_i16, 1, 2, false, true, 128)
WGMMA_PRODUCT(matmul_wgmma_i8_i8, 1, 1, true, true, 256)
WGMMA_PRODUCT(matmul_wgmma_i16_i16_narrow, 2, 2, true, true, 64)
WGMMA_WINDOWS(matmul_wgmma_windows_i16_i16, 2, 2, true, true, 128)
WGMMA_WINDOWS(matmul_wgmma_windows_i16_i16_narrow, 2, 2, true, true, 64)

#endif
