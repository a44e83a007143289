// transpose: axis i of the output is axis perm[i] of the input.
#include "law.cuh"

// ``axes``: for each axis of the output its extent, then the input's stride along that axis.
extern "C" __global__ void transpose(i64 count, const void* x, i64 x_dtype, i64 rank,
                                     const i64* axes, void* out, i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    i64 rest = i, source = 0;
    for (i64 axis = rank - 1; axis >= 0; axis--) {
        source += rest % axes[2 * axis] * axes[2 * axis + 1];
        rest /= axes[2 * axis];
    }
    store(out, out_dtype, i, load(x, x_dtype, source));
}

// --- fast: what stays together moves as one unit of 1, 2, 4, 8 or 16 bytes

// Unit i; fewer than 2^32 of them, so that 32 bits number all places and strides.
template <typename Unit>
__device__ inline void move_unit(u32 i, const void* x, u32 rank, const i64* axes, void* out) {
    u32 rest = i, source = 0;
    for (u32 axis = rank; axis-- > 1;) {
        const u32 extent = (u32)axes[2 * axis], above = rest / extent;
        source += (rest - above * extent) * (u32)axes[2 * axis + 1];
        rest = above;
    }
    ((Unit*)out)[i] = ((const Unit*)x)[source + rest * (u32)axes[1]];
}

// ``axes`` as above, in units, of which each has so many bytes.
extern "C" __global__ void transpose_units(i64 count, const void* x, i64 bytes, i64 rank,
                                           const i64* axes, void* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    switch (bytes) {
        case 1: move_unit<u8>((u32)i, x, (u32)rank, axes, out); break;
        case 2: move_unit<u16>((u32)i, x, (u32)rank, axes, out); break;
        case 4: move_unit<u32>((u32)i, x, (u32)rank, axes, out); break;
        case 8: move_unit<u64>((u32)i, x, (u32)rank, axes, out); break;
        default: move_unit<uint4>((u32)i, x, (u32)rank, axes, out);
    }
}
