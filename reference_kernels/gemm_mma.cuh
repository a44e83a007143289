// The product on any tensor core from sm_80 on: mma.sync, with copies that run ahead.
//
// A block of 8 warps computes 128 x 128 outputs, each warp 64 x 32, by steps of 64 inner places:
// half of a packed tile.  A step in shared memory is 128 rows of 64 bytes a plane, in which the 16
// bytes at place c lie at c ^ (row / 2) % 4: the 8 rows that a part of ldmatrix reads then lie in
// different banks, two rows to a line of 128 bytes.
//
// Work for the tensor cores between two barriers, a warp: 2 * 16 instructions for each pair of
// planes; 96 KiB of shared memory for int16 by int16, so one block a multiprocessor.
#pragma once

#include "gemm.cuh"

constexpr int MMA_STAGES = 3, MMA_THREADS = 256;
constexpr u32 STEP_BYTES = 64, STEP_PLANE_BYTES = 128 * STEP_BYTES;

__device__ inline u32 step_offset(u32 row, u32 piece) {
    return row * STEP_BYTES + ((piece ^ (row >> 1 & 3)) << 4);
}

// Begins to copy step ``step`` (half a tile) of an operand's row of tiles.
template <int PLANES>
__device__ inline void fetch_step(u32 to, const u8* tiles, i64 step) {
    const u8* tile = tiles + step / 2 * (PLANES * PLANE_BYTES);
    const u32 half = (u32)(step % 2) * 4;
#pragma unroll
    for (u32 plane = 0; plane < PLANES; plane++)
#pragma unroll
        for (u32 part = 0; part < 2; part++) {
            const u32 row = threadIdx.x / 4 + 64 * part, piece = threadIdx.x % 4;
            copy_async_16(to + plane * STEP_PLANE_BYTES + step_offset(row, piece),
                          tile + plane * PLANE_BYTES + packed_offset(row, half + piece));
        }
}

template <int PLANES_A, int PLANES_B, bool A_SIGNED, bool B_SIGNED>
__device__ inline void multiply_mma(PRODUCT_PARAMETERS) {
    SHARED_BYTES(shared);
    constexpr int SUMS = PLANES_A + PLANES_B - 1;
    constexpr u32 STAGE_BYTES = (PLANES_A + PLANES_B) * STEP_PLANE_BYTES;
    const Work work =
        find_work<PLANES_A, PLANES_B, 128>(blockIdx.x, blockIdx.z, PRODUCT_ARGUMENTS);
    const u8* const tiles_a =
        work.a + work.row_tile * work.inner_tiles * (PLANES_A * PLANE_BYTES);
    const u8* const tiles_b =
        work.b + work.column_tile * work.inner_tiles * (PLANES_B * PLANE_BYTES);
    const u32 base = shared_address(shared);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 row0 = warp / 4 * 64, column0 = warp % 4 * 32;

    const i64 first = work.first * 2;
    const i32 steps = (i32)((work.terms + STEP_BYTES - 1) / STEP_BYTES);
    const auto fetch = [&](i32 step) {
        if (step < steps) {
            const u32 stage = base + (u32)(step % MMA_STAGES) * STAGE_BYTES;
            fetch_step<PLANES_A>(stage, tiles_a, first + step);
            fetch_step<PLANES_B>(stage + PLANES_A * STEP_PLANE_BYTES, tiles_b, first + step);
        }
        copy_async_commit();
    };

    i32 held[SUMS][4][4][4] = {};
    for (i32 step = 0; step < MMA_STAGES - 1; step++) fetch(step);
    for (i32 step = 0; step < steps; step++) {
        copy_async_wait<MMA_STAGES - 2>();
        __syncthreads();
        fetch(step + MMA_STAGES - 1);
        const u32 stage = base + (u32)(step % MMA_STAGES) * STAGE_BYTES;
#pragma unroll
        for (u32 part = 0; part < 2; part++) {
            u32 right[PLANES_B][4][2];
#pragma unroll
            for (int plane = 0; plane < PLANES_B; plane++)
#pragma unroll
                for (u32 j = 0; j < 4; j += 2) {
                    const u32 row = column0 + 8 * j + lane % 8 + (lane >> 4 << 3);
                    ldmatrix_x4(right[plane][j][0], right[plane][j][1], right[plane][j + 1][0],
                                right[plane][j + 1][1],
                                stage + (PLANES_A + plane) * STEP_PLANE_BYTES +
                                    step_offset(row, 2 * part + (lane >> 3 & 1)));
                }
#pragma unroll
            for (int plane = 0; plane < PLANES_A; plane++) {
                u32 left[4][4];
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    ldmatrix_x4(left[i][0], left[i][1], left[i][2], left[i][3],
                                stage + plane * STEP_PLANE_BYTES +
                                    step_offset(row0 + 16 * i + lane % 16, 2 * part + lane / 16));
                // Of two planes the low one is unsigned, the high one signed.
                constexpr bool LOW = false;
#pragma unroll
                for (int other = 0; other < PLANES_B; other++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
#pragma unroll
                        for (int j = 0; j < 4; j++) {
                            i32(&sum)[4] = held[plane + other][i][j];
                            if (plane == PLANES_A - 1 && other == PLANES_B - 1)
                                mma_m16n8k32<A_SIGNED, B_SIGNED>(sum, left[i], right[other][j]);
                            else if (plane == PLANES_A - 1)
                                mma_m16n8k32<A_SIGNED, LOW>(sum, left[i], right[other][j]);
                            else if (other == PLANES_B - 1)
                                mma_m16n8k32<LOW, B_SIGNED>(sum, left[i], right[other][j]);
                            else
                                mma_m16n8k32<LOW, LOW>(sum, left[i], right[other][j]);
                        }
            }
        }
    }
    const Epilogue& epilogue = work.epilogue;
    const Way way = epilogue.choose_way(work.terms);
    if (way != BY_SLAB) {
        const i64 row = work.row_tile * TILE + row0 + lane / 4;
        const i64 column = work.column_tile * TILE + column0;
        const i32 columns = epilogue.count_columns(column, 32);
        const auto take = [&](i32(&parts)[4][2][SUMS], int i, int half) {
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 2; c++)
#pragma unroll
                    for (int weight = 0; weight < SUMS; weight++)
                        parts[j][c][weight] = held[weight][i][j][2 * half + c];
        };
        if (way == BY_SUMS) {
            i64* const at = epilogue.sums + row * epilogue.n + column + 2 * (lane % 4);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                i32 parts[4][2][SUMS];
                take(parts, i / 2, i % 2);
                const i32 left = row + 8 * i < epilogue.m ? columns : 0;
                Epilogue::store_sums<SUMS>(parts, at + 8 * i * epilogue.n, left);
            }
            return;
        }
        i32 biases[4][2];
        u32 clamped = 0;
        i16* const at = (i16*)epilogue.out + row * epilogue.n + column + 8 * (lane % 4);
        epilogue.load_biases(biases, column + 2 * (lane % 4), columns);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            i32 parts[4][2][SUMS];
            take(parts, i / 2, i % 2);
            const i32 left = row + 8 * i < epilogue.m ? columns : 0;
            epilogue.store_i16<SUMS>(parts, biases, at + 8 * i * epilogue.n, left, clamped);
        }
        epilogue.count(clamped);
        return;
    }
    copy_async_wait<0>();
    __syncthreads();

    // The stages are free: their memory takes 16 x 32 outputs of each warp, four times.
    static_assert(8 * 4 * slab_size<SUMS, 32>() <= MMA_STAGES * STAGE_BYTES, "slabs fit");
    i32* const slab = (i32*)shared + warp * slab_size<SUMS, 32>();
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int weight = 0; weight < SUMS; weight++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    *(int2*)(slab + slab_place<32>(weight, lane / 4 + 8 * half,
                                                   8 * j + 2 * (lane % 4))) =
                        make_int2(held[weight][i][j][2 * half], held[weight][i][j][2 * half + 1]);
        __syncwarp();
        epilogue.finish<SUMS, 32>(slab, work.row_tile * TILE + row0 + 16 * i,
                                  work.column_tile * TILE + column0);
        __syncwarp();
    }
}

// NAME: how A and B are taken apart; planes of A and of B, and is a single one signed (i8).
#define MMA_PRODUCT(NAME, ...)                                                              \
    extern "C" __global__ void __launch_bounds__(MMA_THREADS, 1) NAME(PRODUCT_PARAMETERS) { \
        multiply_mma<__VA_ARGS__>(PRODUCT_ARGUMENTS);                                       \
    }
MMA_PRODUCT(matmul_mma_i16_i16, 2, 2, true, true)
MMA_PRODUCT(matmul_mma_i16_i8, 2, 1, true, true)
MMA_PRODUCT(matmul_mma_i16_u8, 2, 1, true, false)
MMA_PRODUCT(matmul_mma_i8_i16, 1, 2, true, true)
MMA_PRODUCT(matmul_mma_u8_i16, 1, 2, false, true)
MMA_PRODUCT(matmul_mma_i8_i8, 1, 1, true, true)
